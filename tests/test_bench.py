"""The timing loops: they do the work that they say, return what they took, and time it."""

import pytest

import cuda_pool as cp
from cuda_pool import _bench

CAPACITY = "1GiB"
ALONE = {"W1": _bench.SlabLoop, "W2": _bench.SlabLoop, "W3": _bench.MidLoop, "W4": _bench.BuddyLoop}


@pytest.fixture
def pool():
    with cp.Pool(CAPACITY, device=cp.sim.Device(CAPACITY)) as pool:
        yield pool


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
