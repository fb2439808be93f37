"""Handles of blocks that may be moved: pins, homes, uses on other streams, and how they end."""

import gc
import threading
import warnings

import pytest

import cuda_pool as cp
from cuda_pool import _testing, sim
from cuda_pool.errors import CudaError

from .models import comparable, forked

KIB, MIB = 1 << 10, 1 << 20
PRELUDE = "import cuda_pool as cp; device = cp.sim.Device('64MiB'); pool = cp.Pool('8MiB', device=device);"
POOLS = [{}, {"mid_max": "1MiB"}, {"mid_max": 0}, {"slab_max": 0}, {"slab_max": 0, "mid_max": 0}, {"size_classes": 64}]


def holes(pool, count=8, nbytes=256 * KIB, stream=0, **more):
    """Fill the pool with movable blocks, free every second one, and return the others."""
    made = []
    while True:
        try:
            made.append(pool.movable(nbytes, stream, **more))
        except cp.OutOfMemoryError:
            break
    for block in made[::2]:
        block.free()
    return made[1::2]


def address_of(block):
    with block.pin() as ptr:
        return ptr


# What a handle is

@pytest.mark.parametrize("settings", POOLS)
@pytest.mark.parametrize("nbytes", [1, 255, 256, 5000, 70_000, MIB, 3 * MIB])
def test_a_block_of_any_size(make_pool, settings, nbytes):
    pool = make_pool("16MiB", **settings)
    before = comparable(pool.stats(), "alloc_count", "free_count", "used_high", "requested_high", "pending")
    block = pool.movable(nbytes)
    pool.check()
    assert block.nbytes == len(block) == nbytes and not block.freed and block.stream == 0
    with block.pin() as ptr:
        assert ptr % 256 == 0 and block.address == ptr and block.pinned
        pool.device.memset(ptr, 7, nbytes)
        assert pool.device.read(ptr, nbytes) == bytes([7]) * nbytes
    stats = pool.stats()
    assert stats.requested == nbytes <= stats.used and stats.alloc_count == 1
    block.free()
    block.free()
    pool.check()
    assert block.freed and comparable(pool.stats(), "alloc_count", "free_count", "used_high", "requested_high",
                                      "pending") == before


def test_0_bytes(make_pool):
    pool = make_pool("1MiB")
    before = comparable(pool.stats())
    with pool.movable(0) as block:
        with block.pin() as ptr, block.pin(stream=pool.device.stream() if hasattr(pool.device, "stream") else 0):
            assert ptr == block.address == 0
        assert not block.pinned
    assert comparable(pool.stats()) == before


@pytest.mark.parametrize("alignment", [1, 256, 512, 4096, 65536, MIB])
@pytest.mark.parametrize("settings", POOLS)
def test_alignment(make_pool, settings, alignment):
    pool = make_pool("16MiB", **settings)
    with pool.movable(5000, alignment=alignment) as one, pool.movable("1KiB", 0, alignment=alignment) as other:
        with one.pin() as first, other.pin() as second:
            assert first % alignment == second % alignment == 0 and first != second


@pytest.mark.parametrize("bad, error", [(-1, ValueError), ("12 bananas", ValueError), (None, TypeError),
                                        (1 << 63, cp.OutOfMemoryError), ((1 << 64) - 1, cp.OutOfMemoryError),
                                        ("17MiB", cp.OutOfMemoryError)])
def test_sizes_that_cannot_be_had(make_pool, bad, error):
    pool = make_pool("16MiB")
    before = comparable(pool.stats(), "oom_count")
    with pytest.raises(error):
        pool.movable(bad)
    with pytest.raises(ValueError, match="power of two"):
        pool.movable(100, alignment=3)
    with pytest.raises(TypeError, match="__cuda_stream__"):
        pool.movable(100, "0")
    assert comparable(pool.stats(), "oom_count") == before


def test_a_handle_is_made_by_a_pool():
    block = cp.Movable()
    assert block.freed and repr(block)
    block.free()
    for use in (lambda: block.address, lambda: block.pinned, block.pin, lambda: block.record_use(0), block.__enter__):
        with pytest.raises(cp.InvalidPointerError, match="freed, or was not made by Pool.movable"):
            use()


def test_representations(make_pool):
    pool = make_pool("1MiB")
    block = pool.movable("64KiB")
    assert repr(block) == "<cuda_pool.Movable of 64.00 KiB on stream 0>"
    pin = block.pin()
    assert "not entered" in repr(pin)
    with pin:
        assert "entered" in repr(pin)
    block.free()
    assert "freed" in repr(block)


# Pins

def test_without_a_pin_there_is_no_address(make_pool):
    block = make_pool("1MiB").movable(1000)
    with pytest.raises(cp.InvalidPointerError, match=r"only while it is pinned: with movable.pin\(\) as ptr"):
        block.address  # noqa: B018 - raises
    with block.pin() as ptr:
        assert block.address == ptr
    assert not block.pinned
    with pytest.raises(cp.InvalidPointerError, match="pinned"):
        block.record_use(0)


def test_pins_are_counted(make_pool):
    block = make_pool("1MiB").movable(1000)
    again = block.pin()
    with block.pin() as one, again as two, again as three:
        assert one == two == three
        with pytest.raises(ValueError, match="pinned"):
            block.free()
    assert not block.pinned
    block.free()


def test_a_pin_ends_with_its_object(make_pool):
    block = make_pool("1MiB").movable(1000)
    pin = block.pin()
    pin.__enter__()
    assert block.pinned
    del pin
    gc.collect()
    assert not block.pinned


def test_a_pin_keeps_its_handle(make_pool):
    pool = make_pool("1MiB")
    pin = pool.movable(1000).pin()
    gc.collect()
    with pin as ptr:
        assert ptr and pool.stats().requested == 1000
    del pin
    gc.collect()
    assert pool.stats().requested == 0


def test_a_pinned_block_is_not_moved(make_device):
    device = make_device("64MiB")
    with cp.Pool("8MiB", device=device) as pool:
        blocks = holes(pool)
        with blocks[0].pin() as first, blocks[-1].pin() as last:
            report = pool.defragment()
            pool.check()
            assert report.kept_blocks == 2 and blocks[0].address == first and blocks[-1].address == last
            assert report.after.largest_free >= report.before.largest_free
        report = pool.defragment()
        assert report.kept_blocks == 0 and report.after.largest_free == report.after.free


def test_a_raw_address_is_refused(make_pool):
    """It is the handle's: freed by address it would be freed twice."""
    pool = make_pool("1MiB")
    block = pool.movable(70_000)
    with block.pin() as ptr:
        for call in (pool.free, pool.free_async, pool.size_of, lambda ptr: pool.record_use(ptr, 0)):
            with pytest.raises(cp.InvalidPointerError, match="movable block: free its handle"):
                call(ptr)
        assert not pool.owns(ptr)
        with pytest.raises(cp.InvalidPointerError, match="inside a live block"):
            pool.free(ptr + 256)
    block.free()


# Ends

def test_use_after_the_end(make_pool):
    block = make_pool("1MiB").movable(1000)
    with block:
        pin = block.pin()
    for use in (lambda: block.address, lambda: block.pinned, block.pin, pin.__enter__, block.__enter__):
        with pytest.raises(cp.InvalidPointerError, match="freed"):
            use()


def test_a_closed_pool(make_device):
    pool = cp.Pool("1MiB", device=make_device())
    block, other = pool.movable(1000), pool.movable(1000)
    with block.pin():
        pool.close()
        for use in (lambda: block.address, lambda: other.pinned, other.pin, block.pin):
            with pytest.raises(cp.InvalidPointerError, match="closed"):
                use()
    block.free()
    other.free()
    with pytest.raises(ValueError, match="closed"):
        pool.defragment()
    with pytest.raises(ValueError, match="closed"):
        pool.movable(1000)


def test_a_dropped_handle_gives_its_block_back(make_pool):
    pool = make_pool("1MiB")
    block = pool.movable(1000)
    del block
    gc.collect()
    assert pool.stats().used == 0


def test_a_handle_keeps_its_pool(make_device):
    device = make_device()
    block = cp.Pool("1MiB", device=device).movable(1000)
    gc.collect()
    assert len(device.live) == 1 and address_of(block)
    del block
    gc.collect()
    assert device.live == {}


def test_a_cycle_of_handle_and_pool(make_device):
    device = make_device()
    pool = cp.Pool("1MiB", device=device)
    pool.mine = pool.movable(1000)
    del pool
    gc.collect()
    assert device.live == {}


def test_a_handle_that_outlives_everything_is_silent(run_python):
    for more in ("pass", "pin = block.pin(); pin.__enter__()", "import sys; sys.mine = block.pin().__enter__"):
        done = run_python(f"{PRELUDE} block = pool.movable(1000)\n{more}")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_child_process_is_refused(make_device):
    import os
    pool = cp.Pool("1MiB", device=make_device())
    block = pool.movable(1000)
    pinned = pool.movable(1000)

    def child():
        for call in (lambda: pool.movable(1000), pool.defragment, block.free, block.pin,
                     lambda: pinned.address):
            with pytest.raises(RuntimeError, match="belongs to the parent"):
                call()

    with pinned.pin():
        pid = forked(child)
        assert os.waitpid(pid, 0)[1] == 0
        assert pinned.address
    block.free()
    pool.check()
    pool.close()


def test_two_threads_free_one_handle(make_pool):
    pool = make_pool("4MiB")
    for _ in range(200):
        block = pool.movable(100_000)
        threads = [threading.Thread(target=block.free) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert pool.stats().used == 0


# Homes

class Plain:
    """An object that stands for a stream."""

    def __init__(self, stream):
        self.stream = stream

    def __cuda_stream__(self):
        return 0, self.stream.handle


HOMES = {"legacy": lambda pool, stream: 0, "object": lambda pool, stream: stream,
         "handle": lambda pool, stream: stream.handle, "wrapped": lambda pool, stream: Plain(stream),
         "per thread": lambda pool, stream: 2}


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_move_comes_after_the_work_and_before_later_work(make_device, home, blocking, seed):
    device = make_device("64MiB", seed=seed)
    with cp.Pool("8MiB", device=device) as pool:
        stream = device.stream(blocking=blocking)
        name = HOMES[home](pool, stream)
        defaults = {"legacy": device.default_stream(), "per thread": device.default_stream(per_thread=True)}
        lane = defaults.get(home, stream)
        blocks = holes(pool, stream=name)
        for value, block in enumerate(blocks):
            with block.pin() as ptr:
                lane.write(ptr, block.nbytes, value + 1, ticks=20)
        report = pool.defragment()
        pool.check()
        assert report.moved_blocks >= len(blocks) // 2 and report.after.largest_free == report.after.free
        reads = []
        for block in blocks:
            with block.pin() as ptr:
                reads.append(lane.read(ptr, block.nbytes, ticks=3))
                lane.write(ptr, block.nbytes, 99)
        device.synchronize()
        assert [read.value for read in reads] == [bytes([value + 1]) * 256 * KIB for value in range(len(blocks))]


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize("name", ["object", "handle"])
def test_another_stream_is_waited_for_and_put_behind_the_move(make_device, name, seed):
    device = make_device("64MiB", seed=seed)
    with cp.Pool("8MiB", device=device) as pool:
        home, user = device.stream(), device.stream()
        on = user if name == "object" else user.handle
        blocks = holes(pool, stream=home)
        for value, block in enumerate(blocks):
            with block.pin(stream=on) as ptr:
                user.write(ptr, block.nbytes, value + 1, ticks=9)
        pool.defragment()
        pool.check()
        reads = []
        for block in blocks:
            with block.pin() as ptr:
                block.record_use(on)
                reads.append(user.read(ptr, block.nbytes, ticks=3))
        for block in blocks[::2]:
            block.free()
        device.synchronize()
        assert [read.value for read in reads] == [bytes([value + 1]) * 256 * KIB for value in range(len(blocks))]


def test_a_stream_that_was_not_named_before_is_put_behind_the_move(make_device):
    device = make_device("64MiB")
    with cp.Pool("8MiB", device=device, defrag_interval=1) as pool:
        home, user = device.stream(), device.stream(blocking=False)
        blocks = holes(pool, stream=home)
        home.work(50)
        passes = pool.stats().defrag_count
        pool.alloc("64KiB")
        pool.alloc("64KiB")                     # moves them, without a wait of the host
        assert pool.stats().defrag_count > passes and device.now == 0
        before = device.calls["cudaStreamWaitEvent"]
        reads = []
        for block in blocks:
            with block.pin(stream=user) as ptr:
                reads.append(user.read(ptr, 100, ticks=1))
        assert device.calls["cudaStreamWaitEvent"] > before
        device.synchronize()


def test_a_forgotten_home_leaves_its_blocks_to_the_default_stream(make_device):
    device = make_device("64MiB")
    with cp.Pool("8MiB", device=device) as pool:
        home = device.stream()
        blocks = holes(pool, stream=home)
        for value, block in enumerate(blocks):
            with block.pin() as ptr:
                home.write(ptr, block.nbytes, value + 1, ticks=5)
        pool.forget_stream(home)
        home.destroy()
        pool.check()
        assert pool.defragment().after.free_blocks < 4
        for value, block in enumerate(blocks):
            assert device.read(address_of(block), block.nbytes) == bytes([value + 1]) * block.nbytes
            block.free()
        pool.check()


def test_a_home_that_is_gone_is_not_called(make_device):
    """Not forgotten, and its handle is another stream's: its blocks stay until the device was waited for."""
    device = make_device("64MiB")
    with cp.Pool("8MiB", device=device) as pool:
        home = device.stream()
        blocks = holes(pool, stream=home.handle)
        for value, block in enumerate(blocks):
            with block.pin() as ptr:
                home.write(ptr, block.nbytes, value + 1, ticks=50)
        handle = home.handle
        home.destroy()
        new = device.stream()
        assert new.handle == handle
        pool.free(pool.alloc(100, new.handle))
        for _ in range(3):
            pool.defragment()
            pool.check()
        assert pool.defragment().after.largest_free == pool.stats().free
        for value, block in enumerate(blocks):
            assert device.read(address_of(block), block.nbytes) == bytes([value + 1]) * block.nbytes


def test_the_object_of_a_home_is_kept(make_device):
    device = make_device("64MiB")
    with cp.Pool("8MiB", device=device) as pool:
        block = pool.movable(100_000, device.stream())
        gc.collect()
        block.stream.write(0 or address_of(block), 100, 7)
        block.free()


def test_homes_are_not_given_to_other_streams(make_device):
    """A pool keeps 254 streams apart; those of movable blocks keep their places."""
    device = make_device("64MiB")
    with cp.Pool("16MiB", device=device) as pool:
        streams = [device.stream() for _ in range(300)]
        blocks = [pool.movable(1000, stream.handle) for stream in streams[:200]]
        for stream in streams[200:]:
            pool.free_async(pool.alloc(1000, stream.handle), stream.handle)
            pool.check()
        more = [pool.movable(1000, stream.handle) for stream in streams[200:240]]
        with pytest.raises(RuntimeError, match="254 streams"):
            more += [pool.movable(1000, stream.handle) for stream in streams[240:]]
        pool.check()
        del blocks, more
        pool.check()
        pool.movable(1000, streams[-1].handle)


def test_a_captured_home(make_device):
    device = make_device("64MiB")
    with cp.Pool("8MiB", device=device) as pool:
        stream = device.stream()
        blocks = holes(pool, stream=stream)
        with pool.capture(stream) as kept:
            stream.begin_capture()
            with pytest.raises(ValueError, match="captured"):
                pool.movable(100_000, stream)
            report = pool.defragment()
            assert report.moved_blocks == 0 and not report.completed
            graph = stream.end_capture()
        graph.release()
        kept.release()
        assert pool.defragment().completed and all(not block.pinned for block in blocks)


def test_a_capture_that_the_pool_was_not_told_of(make_device):
    device = make_device("64MiB")
    with cp.Pool("8MiB", device=device) as pool:
        home = device.stream(blocking=False)
        made = [(pool.movable(256 * KIB, home), pool.alloc(256 * KIB)) for _ in range(16)]
        for _, ptr in made:
            pool.free(ptr)                      # nothing is pending
        home.begin_capture("relaxed")
        report = pool.defragment()
        assert report.moved_blocks == 0 and not report.completed
        home.end_capture().release()
        assert pool.defragment().moved_blocks > 0


# Faults

CALLS = ["cudaSetDevice", "cudaStreamIsCapturing", "cudaMemcpyAsync", "cudaEventCreateWithFlags", "cudaEventRecord",
         "cudaEventQuery", "cudaStreamWaitEvent", "cudaStreamGetId", "cudaDeviceSynchronize", "cudaEventSynchronize",
         "cudaMemsetAsync"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("scrub", [False, True])
def test_the_driver_fails_at_any_call_of_a_pass(make_device, call, scrub):
    """Every block keeps its place or has its new one, and a later pass does the rest."""
    for after in range(12):
        device = make_device("64MiB")
        sim.set_current_device(None)
        with cp.Pool("4MiB", device=device, scrub=scrub) as pool:
            homes = [device.stream(), device.stream(blocking=False), device.default_stream()]
            blocks = []
            while True:
                try:
                    blocks.append(pool.movable(256 * KIB, homes[len(blocks) % 3]))
                except cp.OutOfMemoryError:
                    break
            for block in blocks[::2]:
                block.free()
            blocks = blocks[1::2]
            for value, block in enumerate(blocks):
                user = homes[(value + 1) % 3]
                with block.pin(stream=user) as ptr:
                    user.write(ptr, block.nbytes, value + 1, ticks=5)
            requested = pool.stats().requested
            device.fail(call, after=after, code="cudaErrorUnknown")
            try:
                pool.defragment()
            except CudaError as error:
                assert error.call == call
            device.clear_faults()
            pool.check()
            assert pool.stats().requested == requested
            assert pool.defragment().after.largest_free == pool.stats().free
            pool.check()
            for value, block in enumerate(blocks):
                assert device.read(address_of(block), block.nbytes) == bytes([value + 1]) * block.nbytes
            assert device.races == [] and device.errors == []


@pytest.mark.parametrize("call", ["cudaStreamGetId", "cudaStreamWaitEvent", "cudaEventRecord"])
def test_the_driver_fails_while_a_block_is_pinned_for_another_stream(make_device, call):
    device = make_device("64MiB")
    with cp.Pool("8MiB", device=device, defrag_interval=1) as pool:
        home, user = device.stream(), device.stream(blocking=False)
        blocks, failed = holes(pool, stream=home), 0
        home.work(50)
        pool.alloc("64KiB")
        pool.alloc("64KiB")                     # moves them, and their new places are not to be used yet
        for block in blocks:
            known = _testing.uses_count(pool)
            device.fail(call, code="cudaErrorUnknown")
            try:
                with block.pin(stream=user.handle) as ptr:
                    user.read(ptr, 100)
            except CudaError as error:
                assert error.call == call
                assert _testing.uses_count(pool) == known
                pool.check()
                failed += 1
            device.clear_faults()
            assert not block.pinned
            with block.pin(stream=user.handle) as ptr:
                user.read(ptr, 100)
        pool.check()
        assert failed
        device.synchronize()


def test_scrub_overwrites_the_old_place(make_device):
    device = make_device("64MiB")
    with cp.Pool("4MiB", device=device, scrub=True) as pool:
        blocks = holes(pool)
        places = []
        for block in blocks:
            with block.pin() as ptr:
                device.memset(ptr, 7, block.nbytes)
                places.append(ptr)
        assert pool.defragment().moved_blocks > 0
        now = {address_of(block) for block in blocks}
        for ptr in places:
            assert device.read(ptr, 100) == bytes([7 if ptr in now else 0]) * 100


def test_nothing_warns(make_pool):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool = make_pool("1MiB")
        with pool.movable(100) as block, block.pin():
            pass
        gc.collect()
