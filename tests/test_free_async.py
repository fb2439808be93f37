"""Frees that ask the driver: streams that are waited for, and blocks that are overwritten with zeros."""

import threading

import pytest

import cuda_pool as cp
from cuda_pool import _testing

KIB = 1 << 10


@pytest.fixture
def sim_device(make_device):
    return make_device("64MiB")


@pytest.fixture
def pool(sim_device):
    with cp.Pool("8MiB", device=sim_device) as pool:
        yield pool


@pytest.fixture
def streams(sim_device):
    """Two streams."""
    return sim_device.stream(), sim_device.stream()


def waits(device):
    return device.calls["cudaStreamSynchronize"]


def test_one_stream_never_waits(pool, sim_device, streams):
    stream, _ = streams
    for _ in range(1000):
        pool.free_async(pool.alloc(1000, stream), stream)
    pool.check()
    assert waits(sim_device) == 0


@pytest.mark.parametrize("nbytes", [1000, 20_000, 2 << 20])
def test_a_recorded_use_ends_with_the_block(pool, streams, nbytes):
    """The next block at its address was never used by that stream: freed, it waits for its own stream alone."""
    stream, other = streams
    kept, ptr = pool.alloc(nbytes, stream), pool.alloc(nbytes, stream)
    pool.record_use(ptr, other)
    pool.free(ptr)
    assert _testing.uses_count(pool) == 0
    assert pool.alloc(nbytes, stream) == ptr
    pool.free_async(ptr, stream)
    assert pool.alloc(nbytes, stream) == ptr
    pool.free(ptr)
    pool.free(kept)
    pool.check()


def test_a_forgotten_stream_is_not_asked_again(pool, sim_device, streams):
    stream, other = streams
    pool.free_async(pool.alloc(1000, stream), stream)
    pool.forget_stream(other)
    assert waits(sim_device) == 0
    pool.forget_stream(stream)
    pool.forget_stream(stream)
    pool.alloc(1000, other)
    assert waits(sim_device) == 1


def test_the_legacy_default_stream_has_two_handles(pool, sim_device):
    pool.free_async(pool.alloc(1000, 0), 1)
    pool.free_async(pool.alloc(1000, 1), 0)
    assert waits(sim_device) == 0


def test_a_stream_destroyed_too_early_is_covered_by_the_device(pool, sim_device, streams):
    stream, other = streams
    pool.free_async(pool.alloc(1000, stream), stream)
    sim_device.fail("cudaStreamSynchronize", code="cudaErrorInvalidResourceHandle")
    pool.forget_stream(stream)
    assert pool.stats().upstream_calls["cudaDeviceSynchronize"] == sim_device.calls["cudaDeviceSynchronize"] == 1
    assert pool.stats().pending == 0
    pool.forget_stream(stream)
    pool.alloc(1000, other)
    assert waits(sim_device) == 1


@pytest.mark.threads
def test_a_busy_stream_does_not_starve_another(sim_device, streams):
    """An allocation waits for what was freed before it began, however fast another thread frees on its stream."""
    stream, other = streams
    pool, blocks, stop, errors = cp.Pool("64KiB", device=sim_device, slab_max=0), [], threading.Event(), []
    with pytest.raises(cp.OutOfMemoryError):
        while True:
            blocks.append(pool.alloc(8 * KIB, stream))
    for ptr in sorted(blocks)[::2]:             # no neighbours: what is freed again does not grow
        pool.free_async(ptr, stream)

    def busy():
        try:
            while not stop.is_set():
                pool.free_async(pool.alloc(8 * KIB, stream), stream)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for _ in range(200):
            before = calls_of(pool)
            pool.free_async(pool.alloc(8 * KIB, other), other)
            assert calls_of(pool) - before < 400
    finally:
        stop.set()
        thread.join()
    assert errors == []
    pool.check()


def calls_of(pool):
    return sum(pool.stats().upstream_calls.values())


def test_scrubbed_blocks_are_zero(sim_device):
    with cp.Pool("1MiB", device=sim_device, scrub=True) as pool:
        for free in (pool.free, pool.free_async):
            ptr = pool.alloc(5000)
            sim_device.memset(ptr, 7, 5000)
            free(ptr)
            assert sim_device.read(ptr, 5000) == bytes(5000)
        pool.check()


def test_a_failed_scrub_leaves_the_block_live(sim_device):
    with cp.Pool("1MiB", device=sim_device, scrub=True) as pool:
        ptr = pool.alloc(5000)
        for free in (pool.free, pool.free_async):
            sim_device.fail("cudaMemsetAsync", code="cudaErrorInvalidValue")
            with pytest.raises(cp.CudaError):
                free(ptr)
            assert pool.owns(ptr) and pool.size_of(ptr) == 5000
        pool.free(ptr)
        assert not pool.owns(ptr)
        pool.check()


def outcomes(actions):
    """Run functions in threads at once; return the exceptions, None for none."""
    found = [None] * len(actions)

    def run(number):
        try:
            actions[number]()
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.threads
@pytest.mark.parametrize("name", ["free", "free_async"])
def test_two_frees_of_a_block_that_is_being_scrubbed(sim_device, name):
    with cp.Pool("1MiB", device=sim_device, scrub=True) as pool:
        ptr = pool.alloc(300 * KIB)
        neighbour = pool.alloc(300 * KIB)
        sim_device.delay("cudaMemsetAsync", 0.2)
        errors = outcomes([lambda: getattr(pool, name)(ptr)] * 4)
        assert [type(error) for error in errors if error] == [cp.InvalidPointerError] * 3
        assert sim_device.calls["cudaMemsetAsync"] == 1
        assert pool.owns(neighbour) and pool.stats().free_count == 1
        pool.check()


@pytest.mark.threads
def test_close_waits_for_a_scrub(sim_device):
    pool = cp.Pool("1MiB", device=sim_device, scrub=True)
    ptr = pool.alloc(300 * KIB)
    sim_device.delay("cudaMemsetAsync", 0.3)
    started = threading.Event()

    def close():
        started.wait()
        while sim_device.calls["cudaMemsetAsync"] == 0 and pool.owns(ptr):
            pass
        pool.close()

    def free():
        started.set()
        pool.free(ptr)

    errors = outcomes([free, close])
    assert all(error is None or isinstance(error, cp.InvalidPointerError) for error in errors)
    assert sim_device.live == {} and sim_device.errors == []


def test_owns_only_the_start_of_a_live_block(pool):
    for nbytes in (100, 100 * KIB, 5 << 20):
        ptr = pool.alloc(nbytes)
        assert pool.owns(ptr)
        assert not any(pool.owns(other) for other in (ptr + 1, ptr + nbytes - 1, ptr - 1, 0, 1 << 63))
        pool.free(ptr)
        assert not pool.owns(ptr)


def test_scrub_waits_for_a_recorded_use(make_device):
    """Another stream that was recorded still reads the block when it is overwritten on the stream of the free."""
    device = make_device("64MiB")
    with cp.Pool("8MiB", device=device, scrub=True) as pool:
        home, other = device.stream(), device.stream()
        for nbytes in (200, 100_000):
            ptr = pool.alloc(nbytes, home)
            home.write(ptr, nbytes, 7)
            pool.record_use(ptr, other)
            other.wait(home)
            other.work(50)
            found = other.read(ptr, nbytes)
            pool.free_async(ptr, home)
            device.synchronize()
            assert found.value == bytes([7]) * nbytes


@pytest.mark.parametrize("free", [lambda pool, ptr, stream: pool.free(ptr),
                                  lambda pool, ptr, stream: pool.free_async(ptr, stream)], ids=["free", "free_async"])
def test_scrub_of_a_block_that_was_never_used_waits_for_the_work_before_it(make_device, free):
    """Whoever takes a block behind a wait may give it back on a stream that does not wait."""
    device = make_device("64MiB")
    with cp.Pool("8MiB", device=device, scrub=True) as pool:
        first, second, third = (device.stream(blocking=False) for _ in range(3))
        ptr = pool.alloc("8MiB", first)
        pool.free_async(ptr, first)
        ptr = pool.alloc("8MiB", first)
        first.write(ptr, 8 << 20, 7, ticks=50)
        pool.free_async(ptr, first)
        again = pool.alloc("8MiB", second)
        assert again == ptr and device.now == 0
        free(pool, again, third)
        device.synchronize()


def test_scrub_does_not_call_a_stream_that_is_gone(make_device):
    device = make_device("64MiB")
    with cp.Pool("8MiB", device=device, scrub=True) as pool:
        gone, other = (device.stream(blocking=False) for _ in range(2))
        ptr = pool.alloc("8MiB", gone.handle)
        gone.write(ptr, 8 << 20, 7, ticks=50)
        pool.free_async(ptr, gone.handle)
        again = pool.alloc("8MiB", gone.handle)
        gone.destroy()
        pool.free(again)
        assert pool.alloc("8MiB", other) == ptr


@pytest.mark.parametrize("free", ["free", "free_async"])
def test_scrub_that_would_spoil_a_capture_is_refused(make_device, free):
    device = make_device("64MiB")
    with cp.Pool("8MiB", device=device, scrub=True) as pool:
        stream, ptr = device.stream(), pool.alloc(5000)
        with pool.capture(stream) as kept:
            stream.begin_capture()
            with pytest.raises(ValueError, match="captured"):
                getattr(pool, free)(ptr)
            pool.check()
            graph = stream.end_capture()
        graph.release()
        kept.release()
        getattr(pool, free)(ptr)
        assert pool.stats().used == 0
