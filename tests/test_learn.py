"""What a predictive pool learns, and the slabs that it keeps and prepares."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cuda_pool as cp
from cuda_pool import _testing
from cuda_pool._profile import profile_of
from cuda_pool.profile import Profile, Slots
from cuda_pool.replay import replay
from cuda_pool.trace import Trace

from .models import POOLS, effort

MIB = 1 << 20
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
FIRST_ITERATION = 2941  # events of the trace below, up to its first fall to the level of later iterations
PERIOD_MAX = 8192       # allocations


def profile(*streams, peak_used=20 * MIB):
    return Profile(
        peak_requested=0, peak_used=peak_used, peak_reserved=peak_used, allocations=0, streams=streams or ((),),
        larger=(), settings={"slab_max": 0, "mid_max": 0, "min_block": 0}, created_by="a test")


def class_of(pool, size):
    return pool.settings.size_classes.index(size)


def slots(pool, size, owner=1):
    """Slots of a stream's class: in use, ready, and what is expected."""
    known = _testing.learned(pool, class_of(pool, size), owner)
    return known["active"], known["ready"], known["expected"]


def wave(pool, size, count):
    """Allocate and free `count` blocks of a size."""
    for ptr in [pool.alloc(size) for _ in range(count)]:
        pool.free(ptr)


@pytest.fixture
def pool(make_device):
    with cp.Pool("32MiB", device=make_device("64MiB"), growth="predictive") as pool:
        yield pool
        pool.check()


def test_slabs_of_a_profile_are_ready_at_once(make_device):
    with cp.Pool(device=make_device("64MiB"), growth="predictive",
                 profile=profile((Slots(512, 100), Slots(16384, 300)))) as pool:
        assert slots(pool, 512)[0] == 0 and 100 <= slots(pool, 512)[1] < 132
        assert slots(pool, 16384)[1] == 300
        assert pool.stats().largest_free == pool.stats().reserved         # they are free memory
        pool.check()
        ptrs = [pool.alloc(500) for _ in range(100)]
        assert slots(pool, 512)[0] >= 100 and slots(pool, 512)[1] == 0
        assert len({ptr // 4096 for ptr in ptrs}) <= 14                   # in one piece
        pool.check()


def test_a_large_class_is_prepared_in_several_slabs(make_device):
    with cp.Pool(device=make_device("64MiB"), growth="predictive", profile=profile((Slots(16384, 300),))) as pool:
        before = pool.stats()
        ptrs = [pool.alloc(16000) for _ in range(300)]
        assert slots(pool, 16384) == (300, 0, 300)
        assert pool.stats().upstream_calls["cudaMalloc"] == before.upstream_calls["cudaMalloc"] == 1
        for ptr in ptrs:
            pool.free(ptr)
        assert sum(slots(pool, 16384)[:2]) == 300                          # they are kept


def test_ready_slabs_are_given_back_for_want_of_memory(make_device):
    with cp.Pool("8MiB", device=make_device("64MiB"), growth="predictive",
                 profile=profile((Slots(1024, 7000),))) as pool:
        assert 4 * MIB <= 1024 * slots(pool, 1024)[1] <= 5 * MIB        # no more than half of the pool, but for a slab
        pool.check()
        ptr = pool.alloc("8MiB")
        assert slots(pool, 1024)[:2] == (0, 0)
        pool.check()
        pool.free(ptr)
        wave(pool, 1024, 10)


def test_more_than_the_pool_can_hold_is_prepared_up_to_a_half(make_device):
    with cp.Pool("4MiB", device=make_device("64MiB"), growth="predictive",
                 profile=profile((Slots(256, 1 << 30), Slots(512, 1 << 30)))) as pool:
        pool.check()
        assert 2 * MIB <= 256 * slots(pool, 256)[1] <= 3 * MIB and slots(pool, 512)[1] == 0
        assert pool.stats().largest_free == 4 * MIB
        pool.free(pool.alloc("4MiB"))


def test_a_stream_that_appears_gets_the_slabs_of_its_place(make_device):
    device = make_device("64MiB")
    streams = [device.stream() for _ in range(3)]
    with cp.Pool(device=device, growth="predictive",
                 profile=profile((), (Slots(1024, 64),), (Slots(2048, 32),))) as pool:
        for stream in streams:
            pool.free(pool.alloc(100, stream=stream))
        assert slots(pool, 1024, owner=1)[1] == 0
        assert slots(pool, 1024, owner=2)[1:] == (64, 64)
        assert slots(pool, 2048, owner=3)[1:] == (32, 32)
        assert slots(pool, 1024, owner=4)[1:] == slots(pool, 2048, owner=4)[1:] == (0, 0)
        pool.check()
        pool.forget_stream(streams[0])
        assert slots(pool, 1024, owner=2) == (0, 0, 0)
        pool.check()


def test_streams_of_a_profile_are_those_that_appeared(make_device):
    device = make_device("64MiB")
    first, second = device.stream(), device.stream()
    with cp.Pool("8MiB", device=device) as pool:
        pool.free(pool.alloc(1000, stream=second))
        with pool.capture(first):
            pool.free(pool.alloc(2000, stream=first))
        pool.free(pool.alloc(3000, stream=first))
        assert profile_of(pool).streams == ((), (Slots(1024, 1),), (Slots(3072, 1),))


def test_slabs_that_are_expected_to_be_used_again_are_kept(pool):
    wave(pool, 1024, 1000)
    assert sum(slots(pool, 1024)[:2]) >= 1000 and slots(pool, 1024)[1] > 0
    _testing.end_period(pool)
    assert sum(slots(pool, 1024)[:2]) >= 1000


def test_a_static_pool_keeps_one_empty_slab(make_device):
    with cp.Pool("32MiB", device=make_device("64MiB")) as pool:
        wave(pool, 1024, 1000)
        assert slots(pool, 1024)[0] <= 1024 and slots(pool, 1024)[1] == 0
        pool.check()


def test_what_is_expected_falls_by_halves_and_the_slabs_go_back(pool):
    wave(pool, 1024, 1000)
    expected = []
    for _ in range(12):
        _testing.end_period(pool)
        wave(pool, 1024, 10)
        pool.alloc(2048)                # takes a look at the period
        wave(pool, 4096, 9)
        expected.append(slots(pool, 1024)[2])
    assert expected[0] >= 1000 and all(one >= other for one, other in zip(expected, expected[1:]))
    assert expected[-1] < 200 and sum(slots(pool, 1024)[:2]) < 600


def test_slabs_of_a_class_that_is_not_used_any_more_go_back(pool):
    wave(pool, 1024, 1000)
    for _ in range(12):
        _testing.end_period(pool)
        wave(pool, 4096, 20)                # the first slab that is taken in use lets the pool look
    assert slots(pool, 1024)[2] < 16 and slots(pool, 1024)[1] < 64


def test_a_slab_is_made_as_large_as_what_is_expected(make_device):
    """Where ready slabs went back for want of memory, so that none are prepared."""
    with cp.Pool("8MiB", device=make_device("64MiB"), growth="predictive") as pool:
        wave(pool, 1024, 900)
        pool.free(pool.alloc("8MiB"))
        assert slots(pool, 1024)[:2] == (0, 0)
        ptr = pool.alloc(1024)
        assert slots(pool, 1024)[0] >= 900
        pool.free(ptr)


def test_slabs_are_prepared_for_the_next_period(make_device):
    """After a shortage took them, and a whole period without one."""
    with cp.Pool("8MiB", device=make_device("64MiB"), growth="predictive") as pool:
        wave(pool, 1024, 3000)
        pool.free(pool.alloc("8MiB"))
        assert slots(pool, 1024)[:2] == (0, 0)
        for at in range(3):
            _testing.end_period(pool)
            ptrs = [pool.alloc(256) for _ in range(64 << at)]
            assert (sum(slots(pool, 1024)[:2]) > 0) == (at > 0), at
            for ptr in ptrs:
                pool.free(ptr)
        pool.check()


def test_a_period_is_an_iteration(pool):
    """A fall below half of the peak and a rise ends one, if it has 256 allocations."""
    for iteration in range(5):
        assert _testing.learned(pool, 0)["periods"] == max(iteration - 1, 0)
        ptrs = [pool.alloc(20_000) for _ in range(300)]
        for ptr in ptrs:
            pool.free(ptr)


def test_a_period_ends_by_a_rise_from_its_lowest_point(pool):
    ptrs = [pool.alloc(20_000) for _ in range(300)]
    for left in (140, 10):
        while len(ptrs) > left:
            pool.free(ptrs.pop())
        ptrs.append(pool.alloc(20_000))     # where the pool looks
    assert _testing.learned(pool, 0)["periods"] == 0
    ptrs += [pool.alloc(20_000) for _ in range(160)]
    assert _testing.learned(pool, 0)["periods"] == 1
    for ptr in ptrs:
        pool.free(ptr)


def test_short_waves_are_one_period(pool):
    for _ in range(100):
        wave(pool, 20_000, 10)
    assert 1 <= _testing.learned(pool, 0)["periods"] <= 4


def test_a_period_ends_without_a_fall(pool):
    ptr = pool.alloc(MIB)
    for _ in range(3 * PERIOD_MAX):
        pool.free(pool.alloc(20_000))
    assert _testing.learned(pool, 0)["periods"] in (2, 3)
    pool.free(ptr)


@pytest.mark.parametrize("grows", [False, True])
def test_random_loads(grows):
    """The counters are those of the load, and the invariants hold, while slabs are kept, prepared and given back."""

    @effort(20)
    @given(name=st.sampled_from(sorted(POOLS)), seed=st.integers(0, 1000), doublings=st.integers(0, 16),
           slots=st.integers(1, 400), period=st.integers(50, 2000),
           classes=st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 500)), max_size=4))
    def try_one(name, seed, doublings, slots, period, classes):
        capacity, more = POOLS[name]
        known = profile(tuple(Slots(*pair) for pair in sorted(dict(classes).items())))
        with cp.sim.Device("16MiB") as device, cp.Pool(
                capacity, device=device, growth="predictive", max_capacity=None if grows else capacity, profile=known,
                **more) as pool:
            for at in range(4):
                _testing.churn(pool, period, slots, 1, doublings, seed + at, check_every=20, fill=True)
                _testing.end_period(pool)
            pool.check()
            assert grows or pool.stats().largest_free == pool.stats().free
            pool.trim()
            assert pool.stats().reserved == 0
            pool.check()

    try_one()


def test_the_second_run_asks_the_driver_for_a_tenth_at_most(tmp_path):
    """Driver calls of the first iteration, and what is reserved for the whole run."""
    trace = Trace.read(EXAMPLES / "gpt2_124m_train.csv.gz")
    events = zip(trace.is_free, trace.id, trace.size, trace.stream)
    first = Trace.from_events([("free" if is_free else "alloc", int(block), int(size), int(stream))
                               for (is_free, block, size, stream), _ in zip(events, range(FIRST_ITERATION))])
    path, calls = tmp_path / "profile.json", {}
    full = replay(trace, growth="dynamic", save_profile=path)
    assert full.failed_row is None
    for growth, known in ("dynamic", None), ("predictive", path):
        result = replay(first, growth=growth, profile=known)
        assert result.failed_row is None
        calls[growth] = sum(count for name, count in result.upstream_calls.items() if name != "cudaMemGetInfo")
    assert calls["predictive"] <= 0.1 * calls["dynamic"]
    second = replay(trace, growth="predictive", profile=path)
    assert second.failed_row is None and second.ratio <= 1.16
