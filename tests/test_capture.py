"""Pool.capture(): blocks that a graph refers to, while it is captured and as long as it may run."""

import gc
import threading
from collections import Counter
from contextlib import contextmanager

import pytest

import cuda_pool as cp
from cuda_pool import _testing, sim
from cuda_pool.errors import CudaError

from .models import REUSE, SIZES, CheckedPool

MIB = 1 << 20
# What a capture allows on the captured stream; to make a device current is no call on a stream.
HARMLESS = {"cudaStreamIsCapturing", "cudaStreamGetId", "cudaGetDevice", "cudaSetDevice"}
# What a capture elsewhere in the process forbids, or what is a call to the driver for memory.
FORBIDDEN = {"cudaEventQuery", "cudaEventSynchronize", "cudaStreamQuery", "cudaStreamSynchronize",
             "cudaDeviceSynchronize", "cudaMalloc", "cudaFree", "cudaMallocAsync", "cudaFreeAsync"}

each_size = pytest.mark.parametrize("nbytes, capacity", SIZES, ids=["slab", "mid", "buddy"])
each_reuse = pytest.mark.parametrize("reuse", REUSE)


@pytest.fixture
def device(make_device):
    return make_device("64MiB", granularity="4KiB")


class Captured:
    """What comes of a capture: the graph of the driver and what the pool keeps for it."""

    def __init__(self, kept):
        self.kept, self.graph = kept, None


@contextmanager
def capturing(pool, stream, begin="inside", mode="global"):
    """Capture a stream, which the pool is told before or after the capture begins."""
    if begin == "before":
        stream.begin_capture(mode)
    with pool.capture(stream) as kept:
        if begin == "inside":
            stream.begin_capture(mode)
        captured = Captured(kept)
        yield captured
        captured.graph = stream.end_capture()


def fill(pool, nbytes, stream=0):
    """Allocate blocks of a size until the pool is full; return them."""
    blocks = []
    while True:
        try:
            blocks.append(pool.alloc(nbytes, stream))
        except cp.OutOfMemoryError:
            return blocks


def one_free(pool, nbytes):
    """Return the one block of a size that a full pool has room for."""
    ptr = fill(pool, nbytes)[1]
    pool.free(ptr)
    return ptr


def holds(read, value):
    """Return whether a read found nothing but `value`."""
    return read.value.count(value) == len(read.value)


def assert_none_left(pool, nbytes, *streams):
    for stream in streams:
        with pytest.raises(cp.OutOfMemoryError):
            pool.alloc(nbytes, stream)


@each_size
@each_reuse
@pytest.mark.parametrize("begin", ["inside", "before"])
def test_a_block_freed_in_a_capture_stays_until_the_release(device, make_pool, nbytes, capacity, reuse, begin):
    pool, stream, other = make_pool(capacity, reuse=reuse), device.stream(), device.stream()
    ptr = one_free(pool, nbytes)
    with capturing(pool, stream, begin) as captured:
        assert pool.alloc(nbytes, stream) == ptr
        stream.write(ptr, nbytes, 1)
        found = stream.read(ptr, nbytes)
        pool.free_async(ptr, stream)
        assert not pool.owns(ptr)
    assert_none_left(pool, nbytes, stream, other, 0)
    captured.graph.launch(stream)
    device.synchronize()
    assert holds(found, 1)
    assert_none_left(pool, nbytes, stream, other, 0)
    captured.graph.release()
    captured.kept.release()
    assert pool.alloc(nbytes, other) == ptr
    other.write(ptr, nbytes, 2)
    device.synchronize()


@each_size
@pytest.mark.parametrize("where", ["before", "inside"], ids=["allocated-before", "allocated-inside"])
def test_largest_free_leaves_out_what_is_a_graphs(device, make_pool, nbytes, capacity, where):
    """Its memory, however empty, joins no other before the release."""
    pool, stream = make_pool(capacity), device.stream()
    empty = pool.stats().largest_free
    blocks = fill(pool, nbytes)
    middle = blocks.pop(len(blocks) // 2)
    if where == "inside":
        pool.free(middle)
    with capturing(pool, stream) as captured:
        if where == "inside":
            assert pool.alloc(nbytes, stream) == middle
        pool.free_async(middle, stream)
        for ptr in blocks:
            pool.free(ptr)
    check_largest(pool)
    captured.graph.release()
    captured.kept.release()
    assert pool.stats().largest_free == empty


def check_largest(pool):
    """Assert that a request of `largest_free` bytes is served, and none that is larger."""
    largest = pool.stats().largest_free
    assert 0 < largest < pool.stats().free
    pool.free(pool.alloc(largest))
    with pytest.raises(cp.OutOfMemoryError):
        pool.alloc(largest + 1)


@each_size
@each_reuse
def test_within_a_capture_a_block_is_used_again_at_once(device, make_pool, nbytes, capacity, reuse):
    pool, stream = make_pool(capacity, reuse=reuse), device.stream()
    ptr, reads = one_free(pool, nbytes), []
    with capturing(pool, stream) as captured:
        for value in range(20):
            assert pool.alloc(nbytes, stream) == ptr
            stream.write(ptr, nbytes, value)
            reads.append(stream.read(ptr, nbytes))
            pool.free_async(ptr, stream)
    for _ in range(2):
        captured.graph.launch(stream)
        device.synchronize()
        assert all(holds(read, value) for value, read in enumerate(reads))
    captured.kept.release()
    pool.alloc(nbytes, stream)


@each_size
@each_reuse
def test_a_block_from_before_the_capture(device, make_pool, nbytes, capacity, reuse):
    """It is freed in the capture, and so is the graph's."""
    pool, stream, other = make_pool(capacity, reuse=reuse), device.stream(), device.stream()
    ptr = fill(pool, nbytes, stream)[1]
    stream.write(ptr, nbytes, 1)
    with capturing(pool, stream) as captured:
        found = stream.read(ptr, nbytes)
        pool.free_async(ptr, stream)
    assert_none_left(pool, nbytes, stream, other)
    for _ in range(3):
        captured.graph.launch(stream)
    captured.kept.release(stream)
    assert pool.alloc(nbytes, other) == ptr
    other.write(ptr, nbytes, 2)
    device.synchronize()
    assert holds(found, 1)


@each_size
@each_reuse
def test_release_on_a_stream(device, make_pool, nbytes, capacity, reuse):
    """The graph may still run on it: the memory is that stream's at once, and another one's after it."""
    pool, stream, other = make_pool(capacity, reuse=reuse), device.stream(), device.stream()
    ptr = one_free(pool, nbytes)
    with capturing(pool, stream) as captured:
        assert pool.alloc(nbytes, stream) == ptr
        stream.write(ptr, nbytes, 1)
        found = stream.read(ptr, nbytes, ticks=50)
        pool.free_async(ptr, stream)
    captured.graph.launch(stream)
    captured.kept.release(stream)
    assert pool.alloc(nbytes, stream) == ptr and device.now == 0
    stream.write(ptr, nbytes, 2)
    pool.free_async(ptr, stream)
    assert pool.alloc(nbytes, other) == ptr
    other.write(ptr, nbytes, 3)
    again = other.read(ptr, nbytes)
    device.synchronize()
    assert holds(found, 1) and holds(again, 3)


@each_size
@each_reuse
def test_a_use_that_was_recorded_in_a_capture_ends_with_it(device, make_pool, nbytes, capacity, reuse):
    """What is freed later waits for the stream of the last launch, and without one for nobody."""
    pool, stream, other = make_pool(capacity, reuse=reuse), device.stream(), device.stream()
    blocks = fill(pool, nbytes, other)
    other.write(blocks[0], nbytes, 1)
    device.synchronize()
    with capturing(pool, stream) as captured:
        pool.record_use(blocks[0], stream)
        found = stream.read(blocks[0], nbytes, ticks=50)
    captured.graph.launch(stream)
    captured.kept.release(stream)
    pool.free_async(blocks[0], other)
    assert pool.alloc(nbytes, other) == blocks[0]
    other.write(blocks[0], nbytes, 2)
    device.synchronize()
    assert holds(found, 1)
    with capturing(pool, stream) as captured:
        pool.record_use(blocks[1], stream)
    captured.kept.release()
    pool.free_async(blocks[1], other)
    pool.forget_stream(other)
    assert pool.stats().pending == 0


@pytest.mark.parametrize("launched", [False, True])
def test_nothing_is_pending_once_a_capture_is_released(device, make_pool, launched):
    """Batches can be numbered anew, so the device is waited for once."""
    pool, stream = make_pool("8MiB"), device.stream()
    with capturing(pool, stream) as captured:
        pool.free_async(pool.alloc(MIB, stream), stream)
    captured.kept.release(stream if launched else None)
    _testing.skip_batches(pool, (1 << 30) + 5)
    pool.hold_stream(device.stream())
    before = device.calls["cudaDeviceSynchronize"]
    pool.hold_stream(device.stream())
    assert before == 1 and device.calls["cudaDeviceSynchronize"] == before


@each_size
@each_reuse
def test_no_call_during_a_capture(device, make_pool, nbytes, capacity, reuse):
    """Frees of other streams are pending, and nothing is asked about them."""
    pool, stream, other = make_pool(2 * capacity, reuse=reuse), device.stream(), device.stream()
    blocks = fill(pool, nbytes, other)
    pool.free(blocks.pop())
    other.work(10)
    for ptr in blocks[:3]:
        pool.free_async(ptr, other)
    with capturing(pool, stream) as captured:
        device.clear_log()
        for _ in range(10):
            ptr = pool.alloc(nbytes, stream)
            stream.write(ptr, nbytes, 1)
            pool.free_async(ptr, stream)
        pool.free_async(blocks[3], other)
        log = device.log
    assert {name for name, args, _ in log if stream.handle in args} <= HARMLESS
    assert not {name for name, _, _ in log} & FORBIDDEN and device.now == 0
    captured.graph.launch(stream)
    device.synchronize()
    captured.kept.release()


@each_size
@each_reuse
def test_shortage_during_a_capture(device, make_pool, nbytes, capacity, reuse):
    """What is pending elsewhere can be neither asked about nor waited for: an error, and the capture goes on."""
    pool, stream, other = make_pool(capacity, reuse=reuse), device.stream(), device.stream()
    ptr = fill(pool, nbytes, other)[1]
    other.write(ptr, nbytes, 1)
    found = other.read(ptr, nbytes, ticks=10)
    pool.free_async(ptr, other)
    with capturing(pool, stream) as captured:
        device.clear_log()
        with pytest.raises(cp.OutOfMemoryError):
            pool.alloc(nbytes, stream)
        assert not {name for name, _, _ in device.log} & FORBIDDEN
        stream.work(1)
    captured.graph.launch(stream)
    captured.kept.release()
    assert pool.alloc(nbytes, stream) == ptr
    stream.write(ptr, nbytes, 2)
    device.synchronize()
    assert holds(found, 1)


@each_reuse
def test_shortage_of_another_stream_during_a_capture(device, make_pool, reuse):
    """A query, on whatever stream, would break the capture."""
    pool, stream, other, third = make_pool("2MiB", reuse=reuse), *(device.stream() for _ in range(3))
    first, second = pool.alloc(MIB, other), pool.alloc(MIB, other)
    with capturing(pool, stream) as captured:
        found = other.read(first, MIB, ticks=10)
        pool.free_async(first, other)
        try:
            got = pool.alloc(MIB, third)
        except cp.OutOfMemoryError:
            got = None
        stream.work(1)
    captured.kept.release()
    got = got or pool.alloc(MIB, third)
    assert got == first
    third.write(got, MIB, 1)
    device.synchronize()
    assert found.done and pool.owns(second)


FAILURES = ["an error in the block", "a stream not joined", "a call that is not permitted"]


@pytest.mark.parametrize("failure", FAILURES)
@each_reuse
def test_a_hundred_captures_that_fail(make_device, failure, reuse):
    device = make_device("64MiB", misuse=failure == FAILURES[2])
    pool = CheckedPool("1MiB", device=device, reuse=reuse)
    stream, side = device.stream(), device.stream()
    figures = Counter()
    for _ in range(100):
        live = []
        with pytest.raises((RuntimeError, CudaError)):
            with capturing(pool, stream):
                live += [pool.alloc(nbytes, stream) for nbytes in (100, 20_000, 300_000)]
                stream.write(live[2], 300_000, 1)
                pool.free_async(live.pop(1), stream)
                fail(failure, device, stream, side)
        end_quietly(stream)
        for ptr in live:
            pool.free_async(ptr, stream)
        stats = pool.stats()
        figures[stats.reserved, stats.used, stats.requested] += 1
    assert list(figures.values()) == [100]
    pool.forget_stream(stream)
    assert pool.stats().used == pool.stats().pending == 0
    pool.free(pool.alloc(pool.stats().free, side))
    pool.close()
    assert device.calls["cudaEventCreateWithFlags"] == device.calls["cudaEventDestroy"]


def fail(failure, device, stream, side):
    if failure == FAILURES[0]:
        raise RuntimeError("mine")
    if failure == FAILURES[1]:
        side.wait(stream.record())
        side.work(1)
    else:
        stream.query()


def end_quietly(stream):
    """End a capture that an error left open."""
    try:
        stream.end_capture()
    except CudaError:
        pass


@each_reuse
def test_a_capture_that_fails_after_the_block(device, make_pool, reuse):
    """Then there is no graph, and releasing is left to the caller."""
    pool, stream, side = make_pool("1MiB", reuse=reuse), device.stream(), device.stream()
    for _ in range(100):
        stream.begin_capture()
        with pool.capture(stream) as kept:
            ptr = pool.alloc(MIB, stream)
            stream.write(ptr, MIB, 1)
            pool.free_async(ptr, stream)
            side.wait(stream.record())
            side.work(1)
        with pytest.raises(CudaError, match="Unjoined"):
            stream.end_capture()
        kept.release()
    assert pool.stats().used == 0 and pool.alloc(MIB, side)


@each_reuse
def test_two_graphs_keep_their_own(device, make_pool, reuse):
    pool, stream, other = make_pool("2MiB", reuse=reuse), device.stream(), device.stream()
    graphs = []
    for value in (1, 2):
        with capturing(pool, stream) as captured:
            ptr = pool.alloc(MIB, stream)
            stream.write(ptr, MIB, value)
            graphs.append((captured, ptr, stream.read(ptr, MIB), value))
            pool.free_async(ptr, stream)
    assert graphs[0][1] != graphs[1][1]
    for captured, *_ in graphs:
        captured.graph.launch(other)
    device.synchronize()
    assert all(holds(read, value) for _, _, read, value in graphs)
    graphs[0][0].kept.release()
    assert pool.alloc(MIB, other) == graphs[0][1]
    assert_none_left(pool, MIB, stream, other)
    graphs[1][0].kept.release()
    assert pool.alloc(MIB, other) == graphs[1][1]


@pytest.mark.threads
@each_reuse
def test_other_threads_go_on_during_a_capture(device, make_pool, reuse):
    """A thread-local capture forbids nothing elsewhere; a thread with memory of its own needs nothing anyway."""
    pool, stream, other = make_pool("4MiB", reuse=reuse), device.stream(), device.stream()
    pool.free_async(pool.alloc(1000, other), other)
    wrong = []

    def run():
        sim.set_current_device(device)
        reads = []
        for turn in range(500):
            ptr = pool.alloc(1000, other)
            other.write(ptr, 1000, turn % 251)
            reads.append(other.read(ptr, 1000))
            pool.free_async(ptr, other)
        other.synchronize()
        wrong.extend(read for turn, read in enumerate(reads) if not holds(read, turn % 251))

    thread = threading.Thread(target=run)
    with capturing(pool, stream, mode="thread_local") as captured:
        thread.start()
        while thread.is_alive():
            ptr = pool.alloc(MIB, stream)
            pool.free_async(ptr, stream)
            thread.join(0.001)
        stream.work(1)
    assert wrong == []
    captured.kept.release()
    assert pool.stats().used == 0


def test_a_pool_that_is_closed_before_the_release(make_device):
    device = make_device("64MiB")
    pool, stream = cp.Pool("1MiB", device=device), device.stream()
    with capturing(pool, stream) as captured:
        pool.free_async(pool.alloc(1000, stream), stream)
    pool.close()
    assert device.live == {}
    del pool, captured
    gc.collect()
