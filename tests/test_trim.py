"""Giving memory back: trim, by itself above a threshold, and when another part of the process needs it."""

import gc
import threading
import weakref

import pytest

import cuda_pool as cp

from .models import REUSE, ROUTES, CheckedPool, comparable

KIB, MIB = 1 << 10, 1 << 20

each_route = pytest.mark.parametrize("settings", ROUTES)
each_reuse = pytest.mark.parametrize("reuse", REUSE)


@pytest.fixture
def backing():
    """What grows by regions; how pages come and go is in test_virtual.py."""
    return "malloc"


@pytest.fixture
def device(make_device):
    return make_device("256MiB")


def calls(device, name):
    return device.calls[name]


# trim

@each_route
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)])
def test_case_17_three_pieces_of_a_segment(make_growing, device, settings, order):
    pool = make_growing("3MiB", **settings)
    pieces = [pool.alloc(MIB) for _ in range(3)]
    for at in order:
        assert pool.trim() == 0
        pool.free(pieces[at])
    assert pool.trim() == 3 * MIB
    stats = pool.stats()
    assert (stats.reserved, stats.free, stats.largest_free, stats.used) == (0, 0, 0, 0)
    assert device.live == {} and stats.trim_count == 1 and stats.reserved_high == 3 * MIB
    ptr = pool.alloc(MIB)
    device.memset(ptr, 1, MIB)
    assert pool.stats().reserved == 2 * MIB


@each_route
def test_case_18_what_is_to_be_kept(make_growing, device, settings):
    pool = make_growing("16MiB", **settings)
    blocks = [pool.alloc(16 * MIB) for _ in range(4)]
    assert calls(device, "cudaMalloc") == 4
    for ptr in blocks:
        pool.free(ptr)
    assert pool.trim("16MiB") == 48 * MIB and calls(device, "cudaFree") == 3
    assert pool.stats().reserved == 16 * MIB == pool.stats().largest_free
    assert pool.trim(16 * MIB) == pool.trim(1) == 0
    assert pool.trim() == 16 * MIB


@pytest.mark.parametrize("keep, left", [(8, 8), (9, 12), (6, 6), (7, 8), (1, 6), (20, 20)])
def test_as_much_as_may_go_goes(make_growing, keep, left):
    pool = make_growing("8MiB")
    for ptr in [pool.alloc(size * MIB) for size in (8, 6, 6)]:
        pool.free(ptr)
    assert pool.trim(keep * MIB) == (20 - left) * MIB


def test_the_largest_that_may_go_goes(make_growing, device):
    pool = make_growing("2MiB")
    blocks = [pool.alloc(size * MIB) for size in (2, 4, 32, 8)]
    for ptr in blocks:
        pool.free(ptr)
    assert pool.stats().reserved == 46 * MIB
    assert pool.trim("10MiB") == 36 * MIB and pool.trim("9MiB") == 0 and pool.trim("4MiB") == 2 * MIB
    assert pool.trim() == 8 * MIB


def test_a_region_with_a_live_block_stays(make_growing, device):
    pool = make_growing("1MiB")
    kept, large = pool.alloc(100), [pool.alloc(4 * MIB) for _ in range(3)]
    device.memset(kept, 7, 100)
    for ptr in large:
        pool.free(ptr)
    assert pool.trim() == 12 * MIB and pool.stats().reserved == MIB
    assert device.read(kept, 100) == b"\7" * 100
    pool.free(kept)
    assert pool.trim() == MIB


def test_static_keeps_its_region(make_pool, device):
    pool = make_pool("4MiB")
    pool.free(pool.alloc(MIB))
    assert pool.trim() == 0 and pool.stats().reserved == 4 * MIB and calls(device, "cudaFree") == 0
    assert pool.alloc(4 * MIB)


@each_reuse
def test_static_trim_settles_what_is_done(make_pool, device, reuse):
    pool, stream = make_pool("4MiB", reuse=reuse), device.stream()
    pool.free_async(pool.alloc(MIB, stream), stream)
    assert pool.stats().pending
    pool.trim()
    assert pool.stats().pending == 0


@each_reuse
@each_route
def test_case_31_pending_work(make_growing, device, settings, reuse):
    """What a stream still works on stays; once it is done it goes, without an event that would not be over yet."""
    pool, stream = make_growing("4MiB", reuse=reuse, **settings), device.stream()
    ptr = pool.alloc(4 * MIB, stream)
    stream.write(ptr, 4 * MIB, 1, ticks=10)
    pool.free_async(ptr, stream)
    assert pool.trim() == 0 and device.now == 0
    device.advance(9)
    assert pool.trim() == 0 and calls(device, "cudaFree") == 0 and pool.stats().reserved == 4 * MIB
    device.advance(1)
    assert pool.trim() == 4 * MIB and pool.stats().reserved == 0


@each_reuse
def test_case_31_beside_a_region_that_goes(make_growing, device, reuse):
    """cudaFree waits for the device by itself; the region that was pending when trim looked may stay."""
    pool, stream = make_growing("4MiB", reuse=reuse), device.stream()
    ptr, other = pool.alloc(4 * MIB, stream), pool.alloc(6 * MIB, stream)
    stream.write(ptr, 4 * MIB, 1, ticks=10)
    found = stream.read(ptr, 4 * MIB)
    pool.free_async(ptr, stream)
    pool.free(other)
    assert pool.trim() >= 6 * MIB
    device.synchronize()
    assert found.value == b"\1" * (4 * MIB)
    pool.trim()
    assert pool.stats().reserved == 0


@each_reuse
def test_case_31_several_users(make_growing, device, reuse):
    pool, streams = make_growing("4MiB", reuse=reuse), [device.stream() for _ in range(3)]
    ptr = pool.alloc(4 * MIB, streams[0])
    for at, stream in enumerate(streams):
        stream.work(10 * at)
        pool.record_use(ptr, stream)
    pool.free_async(ptr, streams[0])
    for ticks, returned in ((0, 0), (10, 0), (9, 0), (1, 4 * MIB)):
        device.advance(ticks)
        assert pool.trim() == returned


def test_trim_of_a_closed_pool(make_growing):
    pool = make_growing("1MiB")
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        pool.trim()


@pytest.mark.parametrize("keep", [-1, "x", 1.5, None])
def test_what_cannot_be_kept(make_growing, keep):
    pool = make_growing("1MiB")
    with pytest.raises((ValueError, TypeError)):
        pool.trim(keep)
    assert pool.stats().reserved == MIB


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("call", ["cudaFree", "cudaStreamQuery", "cudaStreamIsCapturing", "cudaEventQuery"])
def test_case_40_the_driver_fails_while_memory_is_given_back(make_growing, device, call, nth):
    """What the driver did not take the pool still has, and uses."""
    pool, stream = make_growing("8MiB"), device.stream()
    blocks = [pool.alloc(8 * MIB, stream) for _ in range(3)]
    for ptr in blocks:
        pool.free_async(ptr, stream)
    device.fail(call, after=nth - 1, code="cudaErrorIllegalAddress")
    try:
        pool.trim()
    except cp.CudaError:
        pass
    device.clear_faults()
    assert sum(device.live.values()) == pool.stats().reserved
    for _ in range(2):
        blocks = [pool.alloc(8 * MIB, stream) for _ in range(3)]
        for ptr in blocks:
            device.memset(ptr, 1, 8 * MIB)
            pool.free(ptr)
    assert pool.trim() == 24 * MIB and device.live == {}


# By itself

@each_route
def test_release_threshold(make_growing, device, settings):
    pool = make_growing("8MiB", release_threshold="16MiB", **settings)
    blocks = [pool.alloc(8 * MIB) for _ in range(8)]
    for number, ptr in enumerate(blocks, start=1):
        pool.free(ptr)
        assert pool.stats().free <= 16 * MIB
    assert pool.stats().reserved == 16 * MIB == pool.stats().free


@each_reuse
def test_release_threshold_and_pending_work(make_growing, device, reuse):
    """A try in vain is not repeated at every free, and yet all goes in the end."""
    pool, stream = make_growing("4MiB", release_threshold=0, reuse=reuse), device.stream()
    pool.hold_stream(stream)
    blocks = [pool.alloc(4 * MIB, stream) for _ in range(30)]
    stream.work(50)
    reserved = pool.stats().reserved
    for ptr in blocks:
        pool.free_async(ptr, stream)
    assert pool.stats().reserved == reserved and device.now == 0
    assert calls(device, "cudaStreamQuery") < 8
    device.advance(50)
    for _ in range(40):
        pool.free(pool.alloc(100_000))
    assert pool.stats().reserved <= 4 * MIB


def test_release_threshold_of_zero_gives_all_back(make_growing, device):
    pool = make_growing("1MiB", release_threshold=0, slab_max=0)
    pool.free(pool.alloc(100))
    assert pool.stats().reserved == 0 and device.live == {}
    pool.free(pool.alloc(5 * MIB))
    assert pool.stats().reserved == 0


@pytest.mark.parametrize("how", ["free", "with", "drop"])
def test_release_threshold_and_buffers(make_growing, device, how):
    pool = make_growing("1MiB", release_threshold=0)
    buffer = pool.buffer(MIB)
    if how == "free":
        buffer.free()
    elif how == "with":
        with buffer:
            pass
    else:
        del buffer
    assert pool.stats().reserved == 0 and device.live == {}


def test_a_fault_while_memory_is_given_back_by_itself(make_growing, device):
    pool = make_growing("1MiB", release_threshold=0)
    ptr = pool.alloc(MIB)
    device.fail("cudaFree", code="cudaErrorIllegalAddress")
    pool.free(ptr)
    device.clear_faults()
    assert not pool.owns(ptr) and pool.trim() == MIB


# When another part of the process needs memory

def test_release_memory(make_growing, device, make_device):
    pools = [make_growing("16MiB") for _ in range(3)]
    elsewhere = cp.Pool("16MiB", device=make_device("64MiB"), growth="dynamic")
    static = cp.Pool("16MiB", device=device)
    held = pools[0].alloc(100)
    assert cp.release_memory("10MiB", device) == 16 * MIB
    assert sorted(pool.stats().reserved for pool in pools) == [0, 16 * MIB, 16 * MIB]
    assert cp.release_memory(device=device) == 16 * MIB and cp.release_memory(1, device) == 0
    assert pools[0].owns(held) and elsewhere.stats().reserved == static.stats().reserved == 16 * MIB
    assert cp.release_memory() == 16 * MIB and elsewhere.stats().reserved == 0
    elsewhere.close()
    static.close()


def test_release_memory_takes_the_smallest_region_that_is_enough(make_growing, device):
    pool = make_growing("2MiB")
    for ptr in [pool.alloc(size * MIB) for size in (2, 4, 32, 8)]:
        pool.free(ptr)
    assert cp.release_memory(7 * MIB, device) == 8 * MIB
    assert cp.release_memory(33 * MIB, device) == 34 * MIB
    assert pool.stats().reserved == 4 * MIB


@pytest.mark.parametrize("nbytes", [-1, "x", 1.5])
def test_release_memory_of_no_size(nbytes):
    with pytest.raises((ValueError, TypeError)):
        cp.release_memory(nbytes)


def test_pools_of_one_device_give_way_to_each_other(make_device):
    device = make_device("64MiB")
    first, second = (CheckedPool("2MiB", device=device, growth="dynamic") for _ in range(2))
    first.free(first.alloc(48 * MIB))
    assert first.stats().reserved == 50 * MIB
    ptr = second.alloc(40 * MIB)
    assert first.stats().reserved == 2 * MIB and second.stats().oom_count == 0
    with pytest.raises(cp.OutOfMemoryError):
        first.alloc(48 * MIB)
    second.free(ptr)
    assert first.alloc(48 * MIB)
    first.close()
    second.close()


def test_dropped_pools_are_forgotten(device):
    pool = cp.Pool("1MiB", device=device, growth="dynamic")
    gone = weakref.ref(pool)
    del pool
    gc.collect()
    assert gone() is None and cp.release_memory(device=device) == 0


@pytest.mark.parametrize("settings", [{}, {"growth": "dynamic", "max_capacity": "4MiB"}])
def test_on_pressure(make_pool, settings):
    pool, asked = make_pool("4MiB", **settings), []
    cache = [pool.alloc(MIB) for _ in range(4)]

    @pool.on_pressure
    def give_up(nbytes):
        asked.append(nbytes)
        while cache:
            pool.free(cache.pop())

    assert pool.alloc(3 * MIB) and asked == [3 * MIB] and pool.stats().oom_count == 0
    with pytest.raises(cp.OutOfMemoryError):
        pool.alloc("2MiB")
    assert asked == [3 * MIB, 2 * MIB] and pool.stats().oom_count >= 1
    pool.off_pressure(give_up)
    with pytest.raises(cp.OutOfMemoryError):
        pool.alloc("2MiB")
    assert len(asked) == 2
    with pytest.raises(ValueError, match="not registered"):
        pool.off_pressure(give_up)


def test_a_callback_that_takes_itself_back(make_pool):
    """It has freed something all the same."""
    pool = make_pool("8MiB")
    blocks = [pool.alloc("8MiB")]

    @pool.on_pressure
    def once(_):
        pool.off_pressure(once)
        pool.free(blocks.pop())

    assert pool.alloc("4MiB") != 0 and pool.stats().oom_count == 0


@pytest.mark.parametrize("call", ["alloc", "buffer", "movable"])
def test_a_request_that_is_tried_twice_fails_once(make_pool, call):
    pool = make_pool("8MiB")
    pool.on_pressure(lambda _: None)
    with pytest.raises(cp.OutOfMemoryError):
        getattr(pool, call)("9MiB")
    assert pool.stats().oom_count == 1


def test_on_pressure_of_a_buffer(make_pool):
    pool = make_pool("4MiB")
    cache = [pool.buffer(4 * MIB)]
    pool.on_pressure(lambda nbytes: cache.clear())
    with pool.buffer(3 * MIB) as buffer:
        assert buffer.nbytes == 3 * MIB


def test_on_pressure_is_not_called_for_itself(make_pool):
    pool, asked = make_pool("1MiB"), []

    @pool.on_pressure
    def greedy(nbytes):
        asked.append(nbytes)
        with pytest.raises(cp.OutOfMemoryError):
            pool.alloc(2 * MIB)

    with pytest.raises(cp.OutOfMemoryError):
        pool.alloc(3 * MIB)
    assert asked == [3 * MIB]


def test_what_a_callback_raises(make_pool):
    pool = make_pool("1MiB")

    @pool.on_pressure
    def wrong(nbytes):
        raise KeyError("no cache")

    before = comparable(pool.stats(), "oom_count")
    with pytest.raises(KeyError, match="no cache"):
        pool.alloc(2 * MIB)
    assert comparable(pool.stats(), "oom_count") == before
    pool.off_pressure(wrong)
    with pytest.raises(cp.OutOfMemoryError):
        pool.alloc(2 * MIB)


def test_what_is_no_callback(make_pool):
    with pytest.raises(TypeError, match="number of bytes"):
        make_pool("1MiB").on_pressure(5)


@pytest.mark.threads
def test_callbacks_of_several_threads(make_pool):
    pool, asked = make_pool("1MiB", kind=cp.Pool), []
    pool.on_pressure(lambda nbytes: asked.append(threading.get_ident()))

    def fail():
        for _ in range(50):
            with pytest.raises(cp.OutOfMemoryError):
                pool.alloc(2 * MIB)

    threads = [threading.Thread(target=fail) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 200
