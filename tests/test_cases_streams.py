"""Faults of other GPU pools that have to do with streams, threads and failing drivers; the number is that of the case.

Most tests begin with a full pool, so that whoever allocates has to take what another stream freed. That nothing was
overwritten is shown by data, and that it was no luck by the list of races, which must be empty at the end.
"""

import gc
import threading
import time
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter

import pytest

import cuda_pool as cp
from cuda_pool import _testing, sim

from .models import POOLS, REUSE, SIZES, CheckedPool, comparable

KIB, MIB = 1 << 10, 1 << 20
FOR_EVER = 1 << 40
ROUTES = [{}, {"mid_max": "1MiB"}, {"mid_max": 0}, {"slab_max": 0, "mid_max": 0}]
WAITS = {"cudaStreamWaitEvent", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize",
         "cudaStreamQuery", "cudaEventQuery"}
ASKED_OF_A_HANDLE = {"cudaStreamGetId"}
# Where others may need the memory, an event is recorded at once on a stream that may be gone when they do.
ASKED_EARLY = ASKED_OF_A_HANDLE | {"cudaEventCreateWithFlags", "cudaEventRecord", "cudaStreamIsCapturing"}

each_size = pytest.mark.parametrize("nbytes, capacity", SIZES, ids=["slab", "mid", "buddy"])
each_reuse = pytest.mark.parametrize("reuse", REUSE)
each_name = pytest.mark.parametrize("named", [lambda stream: stream, attrgetter("handle")], ids=["object", "handle"])


@pytest.fixture
def device(make_device):
    return make_device("256MiB", granularity="4KiB")


@pytest.fixture
def worker():
    """Function that runs a function in another thread, always the same one, and returns what it returns."""
    with ThreadPoolExecutor(1) as executor:
        yield lambda action: executor.submit(action).result()


def in_new_thread(action):
    """Run a function in a thread that ends with it."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(action).result()


def fill(pool, nbytes, stream=0):
    """Allocate blocks of a size until the pool is full; return them."""
    blocks = []
    while True:
        try:
            blocks.append(pool.alloc(nbytes, stream))
        except cp.OutOfMemoryError:
            return blocks


def busy_with(stream, ptr, nbytes, ticks=10, value=1):
    """Queue a write and then a read that ends `ticks` later; return the read."""
    stream.write(ptr, nbytes, value, ticks=0)
    return stream.read(ptr, nbytes, ticks=ticks)


def use(stream, ptr, nbytes, value=2):
    """Queue a write and a read; return the read."""
    return busy_with(stream, ptr, nbytes, 1, value)


def holds(read, value):
    """Return whether a read found nothing but `value`."""
    return read.value.count(value) == len(read.value)


def asked(device):
    """Return the calls in the log by name, but for those that only make a device current."""
    return Counter(name for name, _, _ in device.log if name not in ("cudaGetDevice", "cudaSetDevice"))


def waited_on(device, stream):
    """Return how many events the stream was told to wait for."""
    return sum(name == "cudaStreamWaitEvent" and args[0] == stream.handle for name, args, _ in device.log)


def assert_waited(device, reuse, stream, tick):
    """Something was put between what another stream did until `tick` and what comes on `stream`."""
    if reuse == "wait":
        assert device.now == 0 and waited_on(device, stream) >= 1
        assert set(asked(device)) & WAITS <= {"cudaStreamWaitEvent", "cudaEventQuery"}
    else:
        assert device.now >= tick and waited_on(device, stream) == 0


# Streams

@each_size
@each_reuse
@each_name
def test_case_22_the_own_stream_gets_the_block_at_once(device, make_pool, nbytes, capacity, reuse, named):
    pool, own = make_pool(capacity, reuse=reuse), device.stream()
    ptr = fill(pool, nbytes, named(own))[1]
    found = busy_with(own, ptr, nbytes)
    pool.free_async(ptr, named(own))
    device.clear_log()
    assert pool.alloc(nbytes, named(own)) == ptr
    assert set(asked(device)) <= (set() if named(own) is own else ASKED_OF_A_HANDLE) and device.now == 0
    again = use(own, ptr, nbytes)
    device.synchronize()
    assert holds(found, 1) and holds(again, 2)


@each_size
@each_reuse
@each_name
def test_case_22_another_stream_before_tick_10(device, make_pool, nbytes, capacity, reuse, named):
    pool, own, other = make_pool(capacity, reuse=reuse), device.stream(), device.stream()
    ptr = fill(pool, nbytes, named(own))[1]
    found = busy_with(own, ptr, nbytes)
    pool.free_async(ptr, named(own))
    device.clear_log()
    assert pool.alloc(nbytes, named(other)) == ptr
    if named(own) is own or device.now == 0:        # of a handle no event is recorded before there is another stream
        assert_waited(device, reuse, other, 10)
    assert device.now in (0, 10)
    again = use(other, ptr, nbytes)
    device.synchronize()
    assert holds(found, 1) and holds(again, 2)


@each_size
@each_reuse
@each_name
def test_case_22_another_stream_from_tick_10(device, make_pool, nbytes, capacity, reuse, named):
    pool, own, other = make_pool(capacity, reuse=reuse), device.stream(), device.stream()
    ptr = fill(pool, nbytes, named(own))[1]
    found = busy_with(own, ptr, nbytes)
    pool.free_async(ptr, named(own))
    device.advance(10)
    assert pool.alloc(nbytes, named(other)) == ptr
    again = use(other, ptr, nbytes)
    device.advance(1)
    assert device.now == 11 and holds(found, 1) and holds(again, 2)


@each_size
@each_reuse
@each_name
def test_case_22_memory_that_nobody_waits_for_comes_first(device, make_pool, nbytes, capacity, reuse, named):
    pool, own, other = make_pool(capacity, reuse=reuse), device.stream(), device.stream()
    blocks = fill(pool, nbytes, named(own))
    found = busy_with(own, blocks[1], nbytes)
    pool.free(blocks[0])
    pool.free_async(blocks[1], named(own))
    device.clear_log()
    assert pool.alloc(nbytes, named(other)) == blocks[0]
    assert set(asked(device)) <= ASKED_OF_A_HANDLE and device.now == 0
    again = use(other, blocks[0], nbytes)
    assert pool.alloc(nbytes, named(own)) == blocks[1]
    device.synchronize()
    assert holds(found, 1) and holds(again, 2)


@each_size
@each_reuse
def test_case_22_the_own_block_comes_before_one_that_nobody_waits_for(device, make_pool, nbytes, capacity, reuse):
    pool, own = make_pool(capacity, reuse=reuse), device.stream()
    blocks = fill(pool, nbytes, own)
    pool.free_async(blocks[1], own)
    pool.free(blocks[0])
    taken = [pool.alloc(nbytes, own) for _ in range(2)]
    assert sorted(taken) == sorted(blocks[:2])
    assert taken[0] == blocks[1] or capacity == 8192            # slots: last in, first out


@each_size
@each_reuse
def test_case_22_work_queued_after_the_first_wait(device, make_pool, nbytes, capacity, reuse):
    """That a stream has waited for another one says nothing about what that one frees later."""
    pool, own, other = make_pool(capacity, reuse=reuse), device.stream(), device.stream()
    first, second, *_ = fill(pool, nbytes, own)
    reads = []
    for ptr in (first, second, first, second):
        reads.append((busy_with(own, ptr, nbytes), 1))
        pool.free_async(ptr, own)
        assert pool.alloc(nbytes, other) == ptr
        reads.append((busy_with(other, ptr, nbytes, value=2), 2))
        pool.free_async(ptr, other)
        assert pool.alloc(nbytes, own) == ptr
    device.synchronize()
    assert all(holds(read, value) for read, value in reads)


@each_size
@each_reuse
@pytest.mark.parametrize("how", ["free", "free, own stream", "free_async", "free_async elsewhere", "buffer"])
def test_case_22_a_block_that_was_taken_and_never_used(device, make_pool, nbytes, capacity, reuse, how):
    """What its memory waits for is not over because the block was given back."""
    pool, own, idle, other = make_pool(capacity, reuse=reuse), *(device.stream() for _ in range(3))
    if how == "free, own stream":
        idle = own
    ptr = fill(pool, nbytes, own)[1]
    found = busy_with(own, ptr, nbytes)
    pool.free_async(ptr, own)
    if how == "buffer":
        with pool.buffer(nbytes, idle) as buffer:
            assert buffer.ptr == ptr
    else:
        assert pool.alloc(nbytes, idle) == ptr
        if how.startswith("free_async"):
            pool.free_async(ptr, idle if how == "free_async" else other)
        else:
            pool.free(ptr)
    assert pool.alloc(nbytes, other) == ptr
    again = use(other, ptr, nbytes)
    device.synchronize()
    assert holds(found, 1) and holds(again, 2)


@each_size
@each_reuse
def test_case_22_a_batch_is_one_event(device, make_pool, nbytes, capacity, reuse):
    pool, own, other = make_pool(2 * capacity, reuse=reuse), device.stream(), device.stream()
    blocks = fill(pool, nbytes, own)[:6]
    reads = [busy_with(own, ptr, nbytes) for ptr in blocks]
    for ptr in blocks:
        pool.free_async(ptr, own)
    device.clear_log()
    assert {pool.alloc(nbytes, other) for _ in blocks} == set(blocks)
    calls = asked(device)
    assert calls["cudaEventRecord"] + calls["cudaStreamSynchronize"] == 1
    again = [use(other, ptr, nbytes) for ptr in blocks]
    device.synchronize()
    assert all(holds(read, 1) for read in reads) and all(holds(read, 2) for read in again)


@each_reuse
def test_case_22_events_are_used_again(device, make_pool, reuse):
    """Four streams hand memory on to each other 1,000 times; that takes no more than a few events."""
    pool, streams = make_pool("1MiB", cp.Pool, reuse=reuse), [device.stream() for _ in range(4)]
    ptr, reads = fill(pool, MIB, streams[0])[0], []
    for turn in range(1000):
        reads.append(busy_with(streams[turn % 4], ptr, 16, value=turn % 256))
        pool.free_async(ptr, streams[turn % 4])
        assert pool.alloc(MIB, streams[(turn + 1) % 4]) == ptr
        assert device.calls["cudaEventCreateWithFlags"] - device.calls["cudaEventDestroy"] <= 32
        if turn % 10 == 9:
            device.advance(100)
    device.synchronize()
    assert all(holds(read, turn % 256) for turn, read in enumerate(reads))
    pool.close()
    assert device.calls["cudaEventCreateWithFlags"] == device.calls["cudaEventDestroy"]


@pytest.mark.parametrize("kind", ["object", "handle", "held handle", 0, 1, 2])
@pytest.mark.parametrize("nbytes", [100, 20_000, 3 * MIB])
@each_reuse
def test_case_23_pairs_on_one_stream(device, make_pool, kind, nbytes, reuse):
    """No driver call; only a handle that may be another stream's by now is looked up."""
    pool, own = make_pool("16MiB", cp.Pool, reuse=reuse), device.stream()
    own.work(FOR_EVER)
    stream = kind if isinstance(kind, int) else own if kind == "object" else own.handle
    if kind == "held handle":
        pool.hold_stream(stream)
    pool.free_async(pool.alloc(nbytes, stream), stream)
    device.clear_log()
    addresses = set()
    for _ in range(1000):
        addresses.add(pool.alloc(nbytes, stream))
        pool.free_async(max(addresses), stream)
        assert len(addresses) == 1
    calls = asked(device)
    assert set(calls) <= (ASKED_OF_A_HANDLE if kind == "handle" else set()) and calls["cudaStreamGetId"] <= 2000
    assert device.now == 0
    pool.check()


@pytest.mark.parametrize("name", POOLS)
@each_reuse
def test_case_23_any_size_after_any_other(device, make_pool, name, reuse):
    """One block at a time on one stream: each has all of the pool's memory, and none a driver call."""
    capacity, more = POOLS[name]
    pool, own = make_pool(capacity, reuse=reuse, **more), device.stream()
    own.work(FOR_EVER)
    whole = pool.stats().free
    pool.free_async(pool.alloc(1, own), own)
    device.clear_log()
    for turn in range(60):
        for nbytes in (1 + whole * (turn * 37 % 60) // 60, max(1, whole >> turn % 20), whole, 1):
            ptr = pool.alloc(nbytes, own)
            own.write(ptr, nbytes, turn)
            pool.free_async(ptr, own)
    assert set(asked(device)) == set() and device.now == 0
    own.synchronize()


@each_reuse
@each_name
def test_case_24_four_streams_with_space_for_all(device, make_pool, reuse, named):
    """Each stream lives on what it freed itself, though nothing on any of them ever ends."""
    pool, streams = make_pool("64MiB", cp.Pool, reuse=reuse), [device.stream() for _ in range(4)]
    sizes = [100, 700, 5000, 17_000, 60_000, 1_500_000]
    for stream in streams:
        stream.work(FOR_EVER)
    live, reads = {stream: [] for stream in streams}, []
    device.clear_log()
    for turn in range(1200):
        stream, nbytes = streams[turn % 4], sizes[turn // 4 % 6]
        ptr = pool.alloc(nbytes, named(stream))
        stream.write(ptr, nbytes, turn % 251)
        live[stream].append((ptr, nbytes, turn % 251))
        if len(live[stream]) > 8:
            ptr, nbytes, value = live[stream].pop(0)
            reads.append((stream.read(ptr, min(nbytes, 1000)), value))
            pool.free_async(ptr, named(stream))
        stream.work(turn % 7)
        if turn % 50 == 0:
            pool.check()
    assert set(asked(device)) <= ({"cudaStreamGetId"} if named(stream) is stream else ASKED_EARLY)
    assert device.now == 0
    device.synchronize()
    assert len(reads) > 1000 and all(holds(read, value) for read, value in reads)


@pytest.mark.parametrize("settings", ROUTES)
@each_reuse
@pytest.mark.parametrize("how", ["free", "free_async, done", "free_async, pending"])
@pytest.mark.parametrize("stalled", [0, 1, 2])
@pytest.mark.parametrize("wanted", [[1, 1, 1], [2, 1], [1, 2], [3]], ids=str)
def test_case_25_a_neighbour_that_merges(device, make_pool, settings, reuse, how, stalled, wanted):
    """Three neighbours of 1 MiB, one of them freed on a stalled stream: only who gets its bytes has to wait."""
    pool, slow, fast, taker = make_pool("4MiB", reuse=reuse, **settings), *(device.stream() for _ in range(3))
    blocks = sorted(pool.alloc(MIB, slow) for _ in range(4))
    ptr = blocks[stalled]
    others = [block for block in blocks[:3] if block != ptr]
    reads = [(busy_with(slow, ptr, MIB, ticks=100), 1)]
    pool.free_async(ptr, slow)
    for other in others:
        reads.append((busy_with(fast, other, MIB, ticks=5, value=2), 2))
    if how != "free_async, pending":
        fast.synchronize()
    for other in others:
        pool.free(other) if how == "free" else pool.free_async(other, fast)
    device.clear_log()
    for number, mib in enumerate(wanted):
        for start, nbytes in taken(pool, mib * MIB, taker):
            if how == "free" and number < 2 and wanted[:number + 1] == [1] * (number + 1):
                assert start != ptr and not set(asked(device)) & WAITS
            reads.append((use(taker, start, nbytes, 3), 3))
    assert reuse == "wait" or device.calls["cudaStreamWaitEvent"] == 0
    device.synchronize()
    assert sum(len(read.value) for read, value in reads if value == 3) == 3 * MIB
    assert all(holds(read, value) for read, value in reads)


def taken(pool, nbytes, stream):
    """Allocate in one piece or, where the tier splits only at powers of two, in pieces of 1 MiB."""
    try:
        return [(pool.alloc(nbytes, stream), nbytes)]
    except cp.OutOfMemoryError:
        return [(pool.alloc(MIB, stream), MIB) for _ in range(nbytes // MIB)]


@each_size
@each_reuse
@each_name
@pytest.mark.parametrize("slow_first", [True, False])
def test_case_26_a_slow_stream_does_not_hold_back_a_fast_one(device, make_pool, nbytes, capacity, reuse, named,
                                                            slow_first):
    pool, slow, fast, other = make_pool(capacity, reuse=reuse), *(device.stream() for _ in range(3))
    a, b, *_ = fill(pool, nbytes, named(slow))
    reads = [busy_with(slow, b, nbytes, ticks=100), busy_with(fast, a, nbytes, ticks=1)]
    frees = [(b, slow), (a, fast)]
    for ptr, stream in frees if slow_first else reversed(frees):
        pool.free_async(ptr, named(stream))
    device.advance(1)
    assert pool.alloc(nbytes, named(other)) == a
    again = use(other, a, nbytes)
    device.advance(1)
    assert device.now == 2 and holds(again, 2) and not reads[0].done
    device.synchronize()
    assert all(holds(read, 1) for read in reads)


@each_reuse
def test_case_26_many_frees_on_a_stream_that_never_ends(device, make_pool, reuse):
    pool, slow, fast, other = make_pool("1MiB", reuse=reuse), *(device.stream() for _ in range(3))
    *blocks, last = fill(pool, 20_000, slow)
    slow.work(FOR_EVER)
    for ptr in blocks:
        pool.free_async(ptr, slow)
    for tick in range(20):
        found = busy_with(fast, last, 20_000, ticks=1)
        pool.free_async(last, fast)
        device.advance(1)
        assert pool.alloc(20_000, other) == last
        again = use(other, last, 20_000)
        device.advance(1)
        assert device.now == 2 * tick + 2 and holds(found, 1) and holds(again, 2)
        pool.free_async(last, other)
        assert pool.alloc(20_000, fast) == last
        assert device.now == 2 * tick + 2


@each_size
@each_reuse
@each_name
@pytest.mark.parametrize("asker", ["home", "user", "other"])
@pytest.mark.parametrize("recorded", ["before the use", "after the use"])
def test_case_27_a_block_that_two_streams_use(device, make_pool, nbytes, capacity, reuse, named, asker, recorded):
    """The stream that it is freed on waits for the other one, too."""
    pool, home, user, other = make_pool(capacity, reuse=reuse), *(device.stream() for _ in range(3))
    ptr = fill(pool, nbytes, named(home))[1]
    home.write(ptr, nbytes, 1)
    user.wait(home)
    if recorded == "before the use":
        pool.record_use(ptr, named(user))
    reads = [home.read(ptr, nbytes, ticks=10), user.read(ptr, nbytes, ticks=50)]
    if recorded == "after the use":
        pool.record_use(ptr, named(user))
    pool.free_async(ptr, named(home))
    device.advance(11)
    stream = {"home": home, "user": user, "other": other}[asker]
    assert pool.alloc(nbytes, named(stream)) == ptr
    assert reuse == "wait" or device.now >= 51 or asker == "user"       # whose own work comes first anyhow
    again = use(stream, ptr, nbytes)
    device.synchronize()
    assert all(holds(read, 1) for read in reads) and holds(again, 2)


@each_reuse
def test_case_27_when_all_are_done_nobody_waits(device, make_pool, reuse):
    pool, *streams = make_pool("1MiB", reuse=reuse), *(device.stream() for _ in range(5))
    ptr = pool.alloc(MIB, streams[0])
    streams[0].write(ptr, MIB, 1)
    reads = []
    for ticks, stream in enumerate(streams[1:4], 5):
        stream.wait(streams[0])
        reads.append(stream.read(ptr, MIB, ticks=ticks))
        for _ in range(3):                      # more than once does no harm
            pool.record_use(ptr, stream)
    pool.record_use(ptr, streams[0])
    pool.free_async(ptr, streams[0])
    device.advance(8)
    assert pool.alloc(MIB, streams[4]) == ptr and device.now == 8
    again = use(streams[4], ptr, MIB)
    device.advance(1)
    assert holds(again, 2) and all(holds(read, 1) for read in reads)


def test_case_27_a_plain_free_waits_for_nothing(device, make_pool):
    pool, home, user, other = make_pool("1MiB"), *(device.stream() for _ in range(3))
    ptr = pool.alloc(MIB, home)
    pool.record_use(ptr, user)
    home.work(FOR_EVER), user.work(FOR_EVER)
    pool.free(ptr)
    device.clear_log()
    assert pool.alloc(MIB, other) == ptr and not set(asked(device)) & WAITS


def test_case_27_the_record_ends_with_the_block(device, make_pool):
    """The next block at the address has nothing to do with the stream."""
    pool, home, user = make_pool("1MiB"), device.stream(), device.stream()
    for free in (pool.free, lambda ptr: pool.free_async(ptr, home)):
        ptr = pool.alloc(MIB, home)
        pool.record_use(ptr, user)
        user.read(ptr, MIB)
        user.synchronize()
        free(ptr)
        ptr = pool.alloc(MIB, home)
        user.work(FOR_EVER)
        pool.free_async(ptr, home)
        device.clear_log()
        assert pool.alloc(MIB, home) == ptr and not asked(device)
        pool.free(ptr)
        device.synchronize()


def test_case_27_what_record_use_refuses(device, make_pool):
    pool, stream = make_pool("1MiB"), device.stream()
    ptr, freed = pool.alloc(1000), pool.alloc(1000)
    pool.free_async(freed, stream)
    before = comparable(pool.stats())
    for address, text in ((freed, "already freed"), (ptr + 1, "inside a live block"), (12345, "not an address")):
        with pytest.raises(cp.InvalidPointerError, match=text):
            pool.record_use(address, stream)
    with pytest.raises(TypeError, match="a stream is"):
        pool.record_use(ptr, "stream")
    assert comparable(pool.stats()) == before


class Generation:
    """A stream with a block freed on it that it still reads, destroyed without the pool being told."""

    def __init__(self, device, pool, ptr, nbytes, by_object=False):
        stream = device.stream()
        self.handle, self.id = stream.handle, stream.id
        self.read = busy_with(stream, ptr, nbytes)
        pool.free_async(ptr, stream if by_object else self.handle)
        stream.destroy()


@each_size
@each_reuse
@pytest.mark.parametrize("by_object", [False, True], ids=["handle", "object"])
@pytest.mark.parametrize("asker", ["the new stream", "its object", "another stream"])
def test_case_28_a_new_stream_with_the_handle_of_the_old(device, make_pool, nbytes, capacity, reuse, by_object, asker):
    pool, other = make_pool(capacity, reuse=reuse), device.stream()
    ptr = fill(pool, nbytes)[1]
    old = Generation(device, pool, ptr, nbytes, by_object)
    new = device.stream()
    assert new.handle == old.handle and new.id != old.id
    stream = other if asker == "another stream" else new
    assert pool.alloc(nbytes, new.handle if asker == "the new stream" else stream) == ptr
    assert device.now >= 10 or waited_on(device, stream) > 0
    again = use(stream, ptr, nbytes)
    device.synchronize()
    assert holds(old.read, 1) and holds(again, 2)


@each_size
@each_reuse
def test_case_28_the_new_stream_takes_other_memory_first(device, make_pool, nbytes, capacity, reuse):
    pool = make_pool(capacity, reuse=reuse)
    other, ptr, *_ = fill(pool, nbytes)
    old = Generation(device, pool, ptr, nbytes)
    new = device.stream()
    pool.free(other)
    assert new.handle == old.handle and pool.alloc(nbytes, new.handle) == other
    again = use(new, other, nbytes)
    device.advance(1)
    assert device.now == 1 and holds(again, 2) and not old.read.done
    device.synchronize()
    assert holds(old.read, 1)


@each_reuse
def test_case_28_frees_on_both_streams(device, make_pool, reuse):
    """What the new stream freed itself it gets at once, whatever became of the old one."""
    pool = make_pool("100KB", reuse=reuse)
    first, second, *_ = fill(pool, 20_000)
    old = Generation(device, pool, first, 20_000)
    new = device.stream()
    found = busy_with(new, second, 20_000, ticks=3)
    pool.free_async(second, new.handle)
    assert new.handle == old.handle and pool.alloc(20_000, new.handle) == second and device.now == 0
    reads = [use(new, second, 20_000)]
    assert pool.alloc(20_000, new.handle) == first
    reads.append(use(new, first, 20_000))
    device.synchronize()
    assert holds(old.read, 1) and holds(found, 1) and all(holds(read, 2) for read in reads)


@each_size
@each_reuse
def test_case_28_an_event_of_the_old_stream(device, make_pool, nbytes, capacity, reuse):
    """Part of a batch was taken before the stream went, and the rest after."""
    pool, old, other = make_pool(capacity, reuse=reuse), device.stream(), device.stream()
    first, second, *_ = fill(pool, nbytes)
    reads = [busy_with(old, ptr, nbytes) for ptr in (first, second)]
    for ptr in (first, second):
        pool.free_async(ptr, old.handle)
    taken = [pool.alloc(nbytes, other)]
    again = [use(other, taken[0], nbytes)]
    old.destroy()
    new = device.stream()
    taken.append(pool.alloc(nbytes, new.handle))
    again.append(use(new, taken[1], nbytes))
    assert set(taken) == {first, second}
    device.synchronize()
    assert all(holds(read, 1) for read in reads) and all(holds(read, 2) for read in again)


@each_reuse
@pytest.mark.parametrize("by_object", [False, True], ids=["handle", "object"])
def test_case_28_twenty_generations(device, make_pool, reuse, by_object):
    pool = make_pool(20 * 20_224, reuse=reuse)
    blocks = fill(pool, 20_000)
    generations = [Generation(device, pool, ptr, 20_000, by_object) for ptr in blocks]
    last = device.stream()
    assert {old.handle for old in generations} == {last.handle}
    assert {pool.alloc(20_000, last.handle) for _ in blocks} == set(blocks)
    again = [use(last, ptr, 20_000) for ptr in blocks]
    device.synchronize()
    assert all(holds(old.read, 1) for old in generations) and all(holds(read, 2) for read in again)


@each_reuse
@pytest.mark.parametrize("told", [False, True], ids=["destroyed", "forgotten and destroyed"])
@pytest.mark.parametrize("by_object", [False, True], ids=["handle", "object"])
def test_case_28_a_stream_that_used_a_live_block(device, make_pool, reuse, told, by_object):
    """The block is freed when the stream that was recorded is gone; its work may not be done."""
    pool, home, user, other = make_pool("1MiB", reuse=reuse), *(device.stream() for _ in range(3))
    ptr = pool.alloc(MIB, home)
    home.write(ptr, MIB, 1)
    user.wait(home)
    found = user.read(ptr, MIB, ticks=50)
    pool.record_use(ptr, user if by_object else user.handle)
    if told:
        pool.forget_stream(user if by_object else user.handle)
    user.destroy()
    new = device.stream()
    new.work(1)
    pool.free_async(ptr, home)
    assert pool.alloc(MIB, other) == ptr
    again = use(other, ptr, MIB)
    device.synchronize()
    assert holds(found, 1) and holds(again, 2)


@each_size
@each_reuse
def test_case_28_an_object_that_nobody_else_refers_to(device, make_pool, nbytes, capacity, reuse):
    """The pool keeps it while frees on it are pending, so that no other stream gets its handle, and then lets it go."""
    pool, other = make_pool(capacity, reuse=reuse), device.stream()
    ptr = fill(pool, nbytes)[1]
    stream = device.stream()
    handle, found = stream.handle, busy_with(stream, ptr, nbytes)
    pool.free_async(ptr, stream)
    del stream
    gc.collect()
    assert device.stream().handle != handle
    assert pool.alloc(nbytes, other) == ptr
    again = use(other, ptr, nbytes)
    device.synchronize()
    assert holds(found, 1) and holds(again, 2)


class Wrapper:
    """A stream object of a framework."""

    def __init__(self, stream):
        self.stream, self.asked = stream, 0

    def __cuda_stream__(self):
        self.asked += 1
        return 0, self.stream.handle


def test_case_28_how_long_an_object_is_kept(device, make_pool):
    pool, other = make_pool("1MiB"), device.stream()
    for end in (lambda: pool.forget_stream(kept()), lambda: (device.synchronize(), pool.alloc(MIB, other)), pool.close):
        ptr = pool.alloc(MIB)
        stream = Wrapper(device.stream())
        kept = weakref.ref(stream)
        stream.stream.work(10)
        pool.free_async(ptr, stream)
        del stream
        gc.collect()
        assert kept() is not None
        end()
        gc.collect()
        assert kept() is None
        if not pool.closed and pool.owns(ptr):
            pool.free(ptr)


def test_case_28_the_same_object_is_asked_for_its_id_once(device, make_pool):
    pool, stream = make_pool("1MiB"), Wrapper(device.stream())
    device.clear_log()
    for _ in range(100):
        pool.free_async(pool.alloc(MIB, stream), stream)
    assert asked(device)["cudaStreamGetId"] <= 1


@each_name
def test_case_28_a_forgotten_stream_leaves_nothing(device, make_pool, named):
    """After forgetting, what the stream freed is anyone's, and the pool does not call on it again."""
    pool, stream, other = make_pool("1MiB"), device.stream(), device.stream()
    ptr = pool.alloc(MIB, named(stream))
    found = busy_with(stream, ptr, MIB)
    pool.free_async(ptr, named(stream))
    assert pool.stats().pending >= MIB
    pool.forget_stream(named(stream))
    assert device.now == 10 and pool.stats().pending == 0 and holds(found, 1)
    handle = stream.handle
    stream.destroy()
    device.clear_log()
    assert pool.alloc(MIB, other) == ptr
    assert not set(asked(device)) & WAITS and all(handle not in args for _, args, _ in device.log)
    assert holds_at_once(device, use(other, ptr, MIB), 2)


def holds_at_once(device, read, value):
    device.synchronize()
    return holds(read, value)


@each_name
def test_case_28_to_forget_a_stream_without_frees_is_not_to_wait(device, make_pool, named):
    pool, stream, other = make_pool("1MiB"), device.stream(), device.stream()
    stream.work(FOR_EVER)
    ptr = pool.alloc(1000, named(stream))
    pool.free_async(pool.alloc(1000, other), other)
    device.clear_log()
    pool.forget_stream(named(stream))
    assert device.now == 0 and not set(asked(device)) & WAITS
    pool.free(ptr)


def test_case_28_a_held_handle_is_not_looked_up(device, make_pool):
    """Until it is forgotten; then it may be another stream's."""
    pool, old = make_pool("1MiB"), device.stream()
    pool.hold_stream(old.handle)
    ptr = pool.alloc(MIB, old.handle)
    found = busy_with(old, ptr, MIB)
    pool.free_async(ptr, old.handle)
    device.clear_log()
    assert pool.alloc(MIB, old.handle) == ptr and not asked(device)
    pool.free_async(ptr, old.handle)
    pool.forget_stream(old.handle)
    assert device.now == 10 and holds(found, 1)
    assert pool.alloc(MIB, old.handle) == ptr
    found = busy_with(old, ptr, MIB)
    pool.free_async(ptr, old.handle)
    handle = old.handle
    old.destroy()
    new = device.stream()
    assert new.handle == handle and pool.alloc(MIB, handle) == ptr
    again = use(new, ptr, MIB)
    device.synchronize()
    assert holds(found, 1) and holds(again, 2)


# Per-thread default streams

@each_size
@each_reuse
def test_case_29_per_thread_default_streams(device, make_pool, worker, nbytes, capacity, reuse):
    """The handle is the same in both threads, the stream is not."""
    pool, mine = make_pool(capacity, reuse=reuse), device.default_stream(per_thread=True)
    ptr = fill(pool, nbytes, 2)[1]
    found = busy_with(mine, ptr, nbytes)
    pool.free_async(ptr, 2)
    device.clear_log()
    assert pool.alloc(nbytes, 2) == ptr and device.now == 0 and not asked(device)
    found_again = busy_with(mine, ptr, nbytes, value=3)
    pool.free_async(ptr, 2)
    assert worker(lambda: pool.alloc(nbytes, 2)) == ptr
    again = worker(lambda: use(mine, ptr, nbytes))
    device.synchronize()
    assert holds(found, 1) and holds(found_again, 3) and holds(again, 2)


@each_size
@each_reuse
def test_case_29_work_of_a_thread_that_has_ended(device, make_pool, nbytes, capacity, reuse):
    """Threads that come after one another are often given the same identity."""
    pool, mine = make_pool(capacity, reuse=reuse), device.default_stream(per_thread=True)
    ptr, reads = fill(pool, nbytes, 2)[1], []
    pool.free(ptr)

    def turn(value):
        assert pool.alloc(nbytes, 2) == ptr
        reads.append(busy_with(mine, ptr, nbytes, value=value))
        pool.free_async(ptr, 2)

    for value in range(20):
        in_new_thread(lambda: turn(value))
    assert pool.alloc(nbytes, 2) == ptr
    again = use(mine, ptr, nbytes, 99)
    device.synchronize()
    assert all(holds(read, value) for value, read in enumerate(reads)) and holds(again, 99)


@each_reuse
def test_case_29_a_use_recorded_in_another_thread(device, make_pool, worker, reuse):
    """The free comes from a thread in which the handle means another stream."""
    pool, home, per_thread = make_pool("1MiB", reuse=reuse), device.stream(), device.default_stream(per_thread=True)
    ptr = pool.alloc(MIB, home)
    home.write(ptr, MIB, 1)
    worker(lambda: per_thread.wait(home))
    worker(lambda: pool.record_use(ptr, 2))
    found = worker(lambda: per_thread.read(ptr, MIB, ticks=50))
    pool.free_async(ptr, home)
    assert pool.alloc(MIB, 2) == ptr
    again = use(per_thread, ptr, MIB)
    device.synchronize()
    assert holds(found, 1) and holds(again, 2)


@pytest.mark.threads
@each_reuse
def test_case_29_two_threads_at_once(device, make_pool, reuse):
    """A pool for two blocks; a thread often finds only what the other one has just freed."""
    pool, per_thread = make_pool("2MiB", reuse=reuse), device.default_stream(per_thread=True)
    wrong = []

    def run(value):
        reads = []
        for _ in range(300):
            ptr = pool.alloc(MIB, 2)
            per_thread.write(ptr, 1000, value, ticks=1)
            reads.append(per_thread.read(ptr, 1000, ticks=3))
            pool.free_async(ptr, 2)
        per_thread.synchronize()
        wrong.extend(read for read in reads if not holds(read, value))

    threads = [threading.Thread(target=run, args=(value,)) for value in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_case_29_both_handles_of_the_legacy_default_stream(device, make_pool):
    pool = make_pool("1MiB")
    ptr = pool.alloc(MIB, 0)
    device.default_stream().work(10)
    device.clear_log()
    for freed, taken in ((0, 1), (1, 0), (0, 0), (1, 1)):
        pool.free_async(ptr, freed)
        assert pool.alloc(MIB, taken) == ptr
    assert not asked(device) and device.now == 0


# Shortage

@each_reuse
@each_name
@pytest.mark.parametrize("settings", ROUTES)
def test_case_30_pending_work_is_waited_for(device, make_pool, reuse, named, settings):
    pool, first, second = make_pool("100MiB", reuse=reuse, **settings), device.stream(), device.stream()
    ptr = pool.alloc(80 * MIB, named(second))
    found = busy_with(second, ptr, 1000)
    pool.free_async(ptr, named(second))
    device.clear_log()
    got = pool.alloc(80 * MIB, named(first))
    if named(second) is second or device.now == 0:    # of a handle no event is recorded before there is another
        assert_waited(device, reuse, first, 10)
    assert device.now in (0, 10)
    assert device.calls["cudaMalloc"] == 0 and pool.stats().reserved == 100 * MIB
    again = use(first, got, 80 * MIB)
    device.synchronize()
    assert holds(found, 1) and holds(again, 2)


@each_reuse
def test_case_30_what_several_streams_freed(device, make_pool, reuse):
    """One block needs what three streams freed, so it waits for all three."""
    pool, *streams = make_pool("3MiB", reuse=reuse, slab_max=0), *(device.stream() for _ in range(4))
    blocks = fill(pool, MIB)
    reads = [busy_with(stream, ptr, MIB, ticks) for stream, ptr, ticks in zip(streams, blocks, (30, 5, 80))]
    for stream, ptr in zip(streams, blocks):
        pool.free_async(ptr, stream)
    assert pool.alloc(3 * MIB, streams[3]) == min(blocks)
    again = use(streams[3], min(blocks), 3 * MIB)
    device.synchronize()
    assert all(holds(read, 1) for read in reads) and holds(again, 2)


@each_reuse
def test_case_30_least_waiting_first(device, make_pool, reuse):
    """What one stream will free is enough, so the others are not waited for."""
    pool, *streams = make_pool("4MiB", reuse=reuse), *(device.stream() for _ in range(5))
    blocks = fill(pool, MIB)
    for stream, ptr, ticks in zip(streams, blocks, (FOR_EVER, FOR_EVER, 7, FOR_EVER)):
        stream.work(ticks)
        pool.free_async(ptr, stream)
    device.advance(7)
    assert pool.alloc(MIB, streams[4]) == blocks[2] and device.now == 7
    use(streams[4], blocks[2], MIB)
    device.advance(1)
    assert streams[4].query()


@each_reuse
def test_case_30_an_error_only_when_waiting_does_not_help(device, make_pool, reuse):
    pool, first, second = make_pool("4MiB", reuse=reuse), device.stream(), device.stream()
    blocks = sorted(fill(pool, MIB))
    first.work(10)
    for ptr in blocks[:2]:
        pool.free_async(ptr, first)
    refused = pool.stats().oom_count
    with pytest.raises(cp.OutOfMemoryError) as caught:
        pool.alloc(3 * MIB, second)
    assert (caught.value.requested, caught.value.capacity) == (3 * MIB, 4 * MIB)
    assert [pool.owns(ptr) for ptr in blocks] == [False, False, True, True]
    assert pool.stats().oom_count == refused + 1
    assert pool.alloc(2 * MIB, second) == blocks[0]
    use(second, blocks[0], 2 * MIB)
    device.synchronize()


@each_size
@each_reuse
def test_case_30_pending_is_counted(device, make_pool, nbytes, capacity, reuse):
    """`pending` is what a stream freed and it alone may use again at once."""
    pool, own, other = make_pool(capacity, reuse=reuse), device.stream(), device.stream()
    first, second, *_ = fill(pool, nbytes, own)
    own.work(10)
    assert pool.stats().pending == 0
    pool.free_async(first, own)
    one = pool.stats()
    assert one.pending >= nbytes and one.used + one.free + one.pending >= one.reserved // 256 * 256 - 256
    pool.free_async(second, own)
    assert pool.stats().pending == 2 * one.pending
    assert pool.alloc(nbytes, own) and pool.stats().pending == one.pending
    device.synchronize()
    assert pool.alloc(nbytes, other)
    last = pool.stats()
    assert last.pending in (0, last.free)       # all that nobody had, or nothing, may have been joined with it


@each_size
def test_case_41_a_block_that_is_pending_is_freed(device, make_pool, nbytes, capacity):
    pool, own, other = make_pool(capacity), device.stream(), device.stream()
    ptr = fill(pool, nbytes, own)[1]
    own.work(10)
    pool.free_async(ptr, own)
    before = comparable(pool.stats())
    for again in (pool.free, pool.size_of, lambda ptr: pool.free_async(ptr, own),
                  lambda ptr: pool.free_async(ptr, other), lambda ptr: pool.record_use(ptr, other)):
        with pytest.raises(cp.InvalidPointerError, match="already freed"):
            again(ptr)
    assert not pool.owns(ptr) and comparable(pool.stats()) == before
    assert pool.alloc(nbytes, own) == ptr


# Return of memory

@each_reuse
def test_case_31_trim_while_a_freed_block_is_in_use(device, make_pool, reuse):
    if not hasattr(cp.Pool, "trim"):
        pytest.skip("Pool has no trim")
    pool, stream = make_pool("8MiB", reuse=reuse), device.stream()
    ptr = pool.alloc(4 * MIB, stream)
    found = busy_with(stream, ptr, 4 * MIB)
    pool.free_async(ptr, stream)
    device.clear_log()
    pool.trim()
    assert device.now >= 10 or not set(asked(device)) & {"cudaFree", "cuMemUnmap", "cuMemRelease"}
    device.synchronize()
    assert holds(found, 1)


@each_reuse
def test_case_31_close_while_a_freed_block_is_in_use(device, make_pool, reuse):
    pool, stream = make_pool("8MiB", reuse=reuse), device.stream()
    ptr = pool.alloc(4 * MIB, stream)
    found = busy_with(stream, ptr, 4 * MIB)
    pool.free_async(ptr, stream)
    pool.close()
    assert device.now >= 10 and holds(found, 1) and device.live == {}


@each_size
@each_reuse
@each_name
@pytest.mark.parametrize("how", ["free", "free_async"])
def test_case_32_freed_from_another_thread_on_another_stream(device, make_pool, worker, nbytes, capacity, reuse, named,
                                                            how):
    pool, home, user = make_pool(capacity, reuse=reuse), device.stream(), device.stream()
    ptr = fill(pool, nbytes, named(home))[1]
    found = busy_with(home, ptr, nbytes)
    user.wait(home)
    found_too = user.read(ptr, nbytes, ticks=10)
    if how == "free":
        user.synchronize()
        worker(lambda: pool.free(ptr))
    else:
        worker(lambda: pool.free_async(ptr, named(user)))
    device.clear_log()
    assert worker(lambda: pool.alloc(nbytes, named(user))) == ptr
    assert not set(asked(device)) & WAITS and (how == "free" or device.now == 0)
    again = busy_with(user, ptr, nbytes, value=2)
    worker(lambda: pool.free_async(ptr, named(user)))
    assert pool.alloc(nbytes, named(home)) == ptr
    last = use(home, ptr, nbytes, 3)
    device.synchronize()
    assert holds(found, 1) and holds(found_too, 1) and holds(again, 2) and holds(last, 3)


# Threads

@pytest.mark.threads
@pytest.mark.slow
def test_case_33_eight_threads(device, make_pool):
    """A million operations, each block filled and verified."""
    pool = make_pool("64MiB", cp.Pool)
    with ThreadPoolExecutor(8) as executor:
        loads = [executor.submit(_testing.churn, pool, 125_000, 200, 100, 7, seed, fill=True, alone=False)
                 for seed in range(8)]
    assert sum(load.result()["allocs"] + load.result()["frees"] for load in loads) >= 1_000_000
    assert pool.stats().used == 0


@pytest.mark.threads
@pytest.mark.slow
@each_reuse
def test_case_33_eight_threads_with_streams(device, make_pool, reuse):
    pool = make_pool("1MiB", cp.Pool, reuse=reuse)

    def run(number):
        stream, reads = device.stream(), []
        for turn in range(2000):
            nbytes = 100 + turn * 7919 % 9900
            ptr = pool.alloc(nbytes, stream)
            stream.write(ptr, nbytes, number)
            reads.append(stream.read(ptr, nbytes, ticks=turn % 5))
            pool.free_async(ptr, stream)
        stream.synchronize()
        pool.forget_stream(stream)
        return all(holds(read, number) for read in reads)

    with ThreadPoolExecutor(8) as executor:
        assert all(executor.map(run, range(8)))
    assert pool.stats().used == pool.stats().pending == 0


@pytest.mark.threads
@each_reuse
def test_case_33_streams_without_the_gil(device, make_pool, reuse):
    """Eight threads share four streams, beside the two default ones; what is queued there takes its time."""
    pool = make_pool("512KiB", cp.Pool, reuse=reuse)
    streams = [device.stream(), device.stream(), device.stream(blocking=False), device.stream(blocking=False)]
    pool.hold_stream(streams[2])
    names = [0, 2, streams[0], streams[1].handle, streams[2], streams[3]]

    def run(seed):
        load = _testing.churn_streams(pool, names, 5000, seed)
        pool.forget_stream(2)
        return load

    with ThreadPoolExecutor(8) as executor:
        loads = [executor.submit(run, seed) for seed in range(8)]
        while not all(load.done() for load in loads):
            for stream in streams:
                stream.work(5)
            device.advance(1)
            pool.check()
    allocs = sum(load.result()["allocs"] for load in loads)
    device.synchronize()
    for stream in [0, *streams]:
        pool.forget_stream(stream)
    pool.check()
    stats = pool.stats()
    assert stats.alloc_count == stats.free_count == allocs > 8 * 1500
    assert stats.used == stats.requested == stats.pending == 0


SLOW_CALLS = ["cudaEventCreateWithFlags", "cudaEventRecord", "cudaEventQuery", "cudaEventSynchronize",
              "cudaStreamWaitEvent", "cudaStreamSynchronize", "cudaStreamGetId", "cudaDeviceSynchronize"]


@pytest.mark.threads
@each_reuse
def test_case_34_a_slow_driver_delays_only_those_who_ask_it(device, make_pool, reuse):
    """One thread hands memory from stream to stream, at 100 ms a call; another one lives on what it freed itself.

    One of five tries is enough: on a busy machine any thread may have to wait now and then.
    """
    pool, own, streams = make_pool("4MiB", cp.Pool, reuse=reuse), device.stream(), [device.stream() for _ in range(2)]
    pool.free_async(pool.alloc(1000, own), own)
    ptr = fill(pool, 500_000, streams[0])[1]
    pool.free(ptr)
    for name in SLOW_CALLS:
        device.delay(name, 0.1)
    assert any(percentile_99(pool, own, lambda: hand_on(pool, ptr, streams)) < 1e-3 for _ in range(5))


def hand_on(pool, ptr, streams):
    started = time.perf_counter()
    for stream in streams:
        assert pool.alloc(500_000, stream) == ptr
        pool.free_async(ptr, stream)
    assert time.perf_counter() - started >= 0.1         # the driver was asked


def percentile_99(pool, stream, beside):
    """Return the 99th percentile of the seconds that a pair takes while `beside` runs in another thread."""
    seconds = []
    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(beside)
        while not running.done():
            started = time.perf_counter()
            pool.free_async(pool.alloc(1000, stream), stream)
            seconds.append(time.perf_counter() - started)
        running.result()
    return sorted(seconds)[len(seconds) * 99 // 100]


HOLDER_OF_A_LOCK = """
import ctypes, threading, time
import cuda_pool as cp
from cuda_pool import _driver, sim

device = sim.Device("64MiB")
sim.set_current_device(device)
POINTER = ctypes.c_void_p
launch = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, POINTER, POINTER)(
    _driver.call_address(device, "cudaLaunchHostFunc"))
entered, leave = threading.Event(), threading.Event()

@ctypes.CFUNCTYPE(None, POINTER)
def function(_):
    entered.set()
    leave.wait()

pool = cp.Pool("1MiB", device=device{settings})
slow, other = device.stream(), device.stream()
ptr = pool.alloc("1MiB", slow)
assert launch(slow.handle, ctypes.cast(function, POINTER), None) == 0
waiting = threading.Thread(target=slow.synchronize)
waiting.start()
entered.wait()
threading.Timer(0.2, leave.set).start()
pool.free_async(ptr, slow)
assert pool.alloc("1MiB", other) == ptr         # may wait until the function has returned, which wants the GIL
pool.forget_stream(slow)
waiting.join()
pool.check()
assert device.errors == []
"""


@pytest.mark.threads
@each_reuse
def test_case_35_the_driver_waits_for_one_who_wants_the_gil(run_python, reuse):
    done = run_python(HOLDER_OF_A_LOCK.format(settings=f", reuse={reuse!r}"), timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


@each_reuse
@each_name
def test_case_38_streams_of_a_device_that_is_not_current(make_device, reuse, named):
    """Every call that has to do with another stream's memory runs with the pool's device current."""
    first, second = make_device("64MiB", 0), make_device("64MiB", 1)
    pool = CheckedPool("1MiB", device=first, reuse=reuse)
    streams = [first.stream() for _ in range(3)]
    sim.set_current_device(second)
    second.clear_log()
    first.clear_log()
    pool.hold_stream(streams[0].handle)
    ptr = pool.alloc(MIB, named(streams[0]))
    reads = []
    for turn in range(12):
        stream, following = streams[turn % 3], streams[(turn + 1) % 3]
        reads.append(busy_with(stream, ptr, MIB, value=turn))
        pool.record_use(ptr, named(following))
        pool.free_async(ptr, named(stream))
        if turn % 4 == 3:
            first.advance(100)
        assert pool.alloc(MIB, named(following)) == ptr
        assert sim.current_device() is second
    pool.free_async(ptr, named(streams[0]))
    for stream in streams:
        pool.forget_stream(named(stream))
    pool.free_async(pool.alloc(MIB, 2), 2)
    pool.close()
    assert sim.current_device() is second and set(second.calls) <= {"cudaGetDevice", "cudaSetDevice"}
    ran = [entry for entry in first.log if entry[0] not in ("cudaGetDevice", "cudaSetDevice")]
    assert {current for _, _, current in ran} == {0} and {name for name, _, _ in ran} & WAITS
    first.synchronize()
    assert all(holds(read, turn) for turn, read in enumerate(reads))


# Faults

FAULTS = ["cudaEventCreateWithFlags", "cudaEventRecord", "cudaStreamWaitEvent", "cudaEventQuery",
          "cudaEventSynchronize", "cudaStreamSynchronize", "cudaStreamGetId", "cudaStreamIsCapturing", "cudaSetDevice"]


class Faults:
    """Lets a call fail once, and counts the events that it therefore did not make."""

    def __init__(self, device):
        self.device, self.events_not_made = device, 0

    def attempt(self, call, action):
        """Return what an action gives, None if it raises; it may, and then for the call that failed."""
        before = self.device.calls[call]
        self.device.fail(call, code="cudaErrorUnknown")
        try:
            return action()
        except cp.CudaError as error:
            assert (error.name, error.call) == ("cudaErrorUnknown", call)
        except cp.OutOfMemoryError:
            pass
        finally:
            self.device.clear_faults()
            self.events_not_made += call == "cudaEventCreateWithFlags" and self.device.calls[call] > before
        return None

    @property
    def events(self):
        """Number of events that exist."""
        calls = self.device.calls
        return calls["cudaEventCreateWithFlags"] - self.events_not_made - calls["cudaEventDestroy"]


@pytest.fixture
def faults(make_device):
    return Faults(make_device("64MiB"))


def pool_on(device, reuse, capacity="1MiB"):
    return CheckedPool(capacity, device=device, reuse=reuse)


@each_reuse
@pytest.mark.parametrize("call", FAULTS)
@pytest.mark.parametrize("kind", ["object", "handle", "per thread"])
def test_case_40_the_driver_fails_while_a_block_is_freed(faults, reuse, call, kind):
    """Either the block is freed all the same, or it is live as before, and freed at the second try."""
    device, pool = faults.device, pool_on(faults.device, reuse)
    own, other = device.default_stream(per_thread=True) if kind == "per thread" else device.stream(), device.stream()
    name = {"object": own, "handle": own.handle, "per thread": 2}[kind]
    ptr = pool.alloc(MIB, name)
    found = busy_with(own, ptr, MIB)
    before = comparable(pool.stats())
    faults.attempt(call, lambda: pool.free_async(ptr, name))
    if pool.owns(ptr):
        assert comparable(pool.stats()) == before
        pool.free_async(ptr, name)
    assert pool.alloc(MIB, other) == ptr
    again = use(other, ptr, MIB)
    device.synchronize()
    assert holds(found, 1) and holds(again, 2)
    pool.close()
    assert faults.events == 0


@each_reuse
@pytest.mark.parametrize("call", FAULTS)
@pytest.mark.parametrize("kind", ["object", "handle", "gone", "two streams"])
def test_case_40_the_driver_fails_while_a_block_is_taken(faults, reuse, call, kind):
    """Either the block is taken all the same, or everything is as before, and it is taken at the second try."""
    device, pool = faults.device, pool_on(faults.device, reuse)
    own, user, other = (device.stream() for _ in range(3))
    name = own if kind == "object" else own.handle
    ptr = pool.alloc(MIB, name)
    reads = [busy_with(own, ptr, MIB)]
    if kind == "two streams":
        user.wait(own)
        pool.record_use(ptr, user)
        reads.append(user.read(ptr, MIB, ticks=30))
    pool.free_async(ptr, name)
    if kind == "gone":
        own.destroy()
        new = device.stream()
        assert new.handle == name
    before = comparable(pool.stats(), "oom_count")
    if faults.attempt(call, lambda: pool.alloc(MIB, other)) is None:
        assert comparable(pool.stats(), "oom_count", "pending", "free", "largest_free") == {
            key: value for key, value in before.items() if key not in ("pending", "free", "largest_free")}
        assert pool.alloc(MIB, other) == ptr
    assert pool.owns(ptr)
    again = use(other, ptr, MIB)
    device.synchronize()
    assert all(holds(read, 1) for read in reads) and holds(again, 2)
    pool.close()
    assert faults.events == 0


@each_reuse
@pytest.mark.parametrize("call", FAULTS)
def test_case_40_the_driver_fails_while_a_stream_is_forgotten(faults, reuse, call):
    device, pool = faults.device, pool_on(faults.device, reuse)
    own, other = device.stream(), device.stream()
    ptr = pool.alloc(MIB, own)
    found = busy_with(own, ptr, MIB)
    pool.free_async(ptr, own)
    faults.attempt(call, lambda: pool.forget_stream(own))
    pool.forget_stream(own)
    assert device.now == 10 and pool.stats().pending == 0 and holds(found, 1)
    own.destroy()
    assert pool.alloc(MIB, other) == ptr
    again = use(other, ptr, MIB)
    device.synchronize()
    assert holds(again, 2)
    pool.close()
    assert faults.events == 0


@each_reuse
def test_case_40_no_event_is_lost(faults, reuse):
    """A thousand handovers, every second one with a call that fails."""
    device, pool = faults.device, pool_on(faults.device, reuse)
    streams, reads = [device.stream() for _ in range(3)], []
    ptr = pool.alloc(MIB, streams[0])
    for turn in range(1000):
        stream, following, call = streams[turn % 3], streams[(turn + 1) % 3], FAULTS[turn // 2 % len(FAULTS)]
        reads.append((busy_with(stream, ptr, 16, value=turn % 251), turn % 251))
        pool.free_async(ptr, stream)
        if turn % 2 == 0 and faults.attempt(call, lambda: pool.alloc(MIB, following)):
            continue
        assert pool.alloc(MIB, following) == ptr
        assert faults.events <= 32
        if turn % 10 == 9:
            device.advance(100)
    device.synchronize()
    assert all(holds(read, value) for read, value in reads)
    pool.close()
    assert faults.events == 0
