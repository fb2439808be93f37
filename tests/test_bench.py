"""The timing loops: they do the work that they say, return what they took, and time it."""

import pytest

import cuda_pool as cp
from cuda_pool import _bench
from cuda_pool.trace import Trace

CAPACITY = "1GiB"
ALONE = {"W1": _bench.SlabLoop, "W2": _bench.SlabLoop, "W3": _bench.MidLoop, "W4": _bench.BuddyLoop}


@pytest.fixture
def pool():
    with cp.Pool(CAPACITY, device=cp.sim.Device(CAPACITY)) as pool:
        yield pool


def trace(*events):
    return Trace.from_events([(*event, 0) for event in events])


def loops(work, pool, name):
    return [_bench.PoolLoop(work, pool), ALONE[name](work), _bench.MallocLoop(work), _bench.EmptyLoop(work)]


@pytest.mark.parametrize("name", ["W1", "W2", "W3"])
def test_compare_times_every_loop(pool, name):
    times = _bench.compare(loops(_bench.Workload.named(name, 1000), pool, name), rounds=3)
    assert len(times) == 4 and min(times) > 0


def test_buddy_alone_serves_large_blocks():
    assert _bench.BuddyLoop(_bench.Workload.named("W4", 1000)).run() > 0


@pytest.mark.parametrize("smallest, largest, live", [(512, 512, 1), (64, 32 << 10, 500), (1, 1 << 20, 50)])
def test_pool_loop_keeps_its_blocks_live(pool, smallest, largest, live):
    loop = _bench.PoolLoop(_bench.Workload(smallest, largest, live, 1000), pool)
    for rounds in range(1, 4):
        loop.run()
        stats = pool.stats()
        pool.check()
        assert stats.alloc_count == live + 1000 * rounds
        assert stats.alloc_count - stats.free_count == live
        assert smallest * live <= stats.requested <= largest * live
    del loop
    assert pool.stats().used == 0


def test_sizes_are_spread_over_their_logarithms(pool):
    work = _bench.Workload(256, 256 << 8, 1000, 1)
    loop = _bench.PoolLoop(work, pool)
    loop.run()
    mean = pool.stats().requested / work.live
    assert mean == pytest.approx((work.largest - work.smallest) / 5.545, rel=0.1)     # log(largest / smallest)


def test_same_seed_same_work(pool):
    requested = []
    for seed in (1, 1, 2):
        loop = _bench.PoolLoop(_bench.Workload(1, 4096, 100, 1000, seed), pool)
        loop.run()
        requested.append(pool.stats().requested)
        del loop
    assert requested[0] == requested[1] != requested[2]


def test_loop_that_fails_returns_its_blocks(pool):
    loop = _bench.PoolLoop(_bench.Workload(8 << 20, 8 << 20, 1000, 10), pool)
    for _ in range(2):
        with pytest.raises(MemoryError, match="PoolLoop"):
            loop.run()
        assert pool.stats().used == 0
        pool.check()


@pytest.mark.parametrize("loop", [_bench.MidLoop, _bench.BuddyLoop])
def test_tier_that_is_too_small(loop):
    with pytest.raises(MemoryError, match=loop.__name__):
        loop(_bench.Workload.named("W4", 10), "64MiB").run()


@pytest.mark.parametrize("loop", [_bench.MidLoop, _bench.BuddyLoop])
@pytest.mark.parametrize("capacity", [0, "1PiB"])
def test_capacity_of_a_tier(loop, capacity):
    with pytest.raises(ValueError, match="capacity is from"):
        loop(_bench.Workload.named("W1", 10), capacity)


def test_loop_outlives_the_closing_of_its_pool(pool):
    loop = _bench.PoolLoop(_bench.Workload.named("W1", 10), pool)
    loop.run()
    pool.close()
    with pytest.raises(MemoryError):
        loop.run()


@pytest.mark.parametrize("arguments", [(0, 1, 1), (2, 1, 1), (1, 1 << 32, 1), (1, 1, 0), (1, 1, 1, 0)])
def test_work_that_makes_no_sense(arguments):
    with pytest.raises(ValueError, match="got"):
        _bench.Workload(*arguments)


def test_compare_calls(pool):
    pair, one, none = _bench.compare_calls(pool, rounds=3, calls=100)
    assert min(pair, one, none) > 0
    assert pool.stats().used == 0 and pool.stats().alloc_count == 4 * 100


def test_medians_takes_each_column():
    numbers = iter([0, 0, 5, 1, 3, 9, 4, 2])
    assert _bench.medians([lambda: next(numbers)] * 2, 3) == [4, 2]


def test_in_turn_leaves_the_first_round_out():
    numbers = iter([0, 0, 5, 1, 3, 9])
    assert _bench.in_turn([lambda: next(numbers)] * 2, 2) == [[5, 3], [1, 9]]


def test_work_of_a_trace(pool):
    """An orphan free, a block of no bytes, one that was live before, and one that is left."""
    work = _bench.TraceWork(trace(("alloc", 1, 1000), ("free", 9, 4096), ("free", 8, 0), ("alloc", 2, 0),
                                  ("free", 1, 1000), ("free", 1, 1000), ("free", 2, 0), ("alloc", 3, 70_000)))
    assert work.live == 5 and work.pairs == 2       # four events are left
    loop = _bench.PoolLoop(work, pool)
    for rounds in (1, 2, 3):
        assert loop.run() > 0
        stats = pool.stats()
        assert stats.alloc_count == stats.free_count == 3 * rounds and stats.used == 0
    assert pool.stats().requested_high == 70_000
    pool.check()


def test_trace_that_runs_out_of_memory_returns_its_blocks(pool):
    loop = _bench.PoolLoop(_bench.TraceWork(trace(*(("alloc", block, 600 << 20) for block in range(2)))), pool)
    for _ in range(2):
        with pytest.raises(MemoryError, match="PoolLoop"):
            loop.run()
        assert pool.stats().used == 0


@pytest.mark.parametrize("events", [(), [("alloc", 1, 4 << 30)], [("alloc", 1, 0)], [("free", 1, 0)]])
def test_trace_that_is_no_work(events):
    with pytest.raises(ValueError, match="below 4 GiB each, and events"):
        _bench.TraceWork(trace(*events))


def test_library_loop():
    loop = _bench.LibraryLoop(_bench.Workload.named("W2", 1000), "libc.so.6", "malloc", "free")
    assert loop.run() > 0


@pytest.mark.parametrize("arguments, named", [(("none.so", "malloc", "free"), "none.so"),
                                              (("libc.so.6", "no_such_name", "free"), "no_such_name"),
                                              (("libc.so.6", "malloc", "no_such_name"), "no_such_name")])
def test_library_that_is_not_there(arguments, named):
    with pytest.raises(OSError, match=named):
        _bench.LibraryLoop(_bench.Workload.named("W1", 10), *arguments)


def test_pool_calls(pool):
    timed = _bench.pool_calls(pool, calls=100)
    assert list(timed) == list(_bench.CALLS)
    for what, allocations in (("alloc free", 1), ("alloc free_async", 1), ("buffer", 1), ("empty one", 0)):
        before = pool.stats().alloc_count
        assert timed[what].run() > 0
        assert pool.stats().alloc_count - before == allocations * 100 and pool.stats().used == 0
