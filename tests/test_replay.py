"""Replaying traces against pools."""

import random
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_pool import _testing, sim
from cuda_pool._api import Pool
from cuda_pool._lag import LaggedReplay
from cuda_pool._replay import MallocReplay, PoolReplay, Replay
from cuda_pool.compare import compare
from cuda_pool.convert import convert
from cuda_pool.errors import CudaError, DeviceUnavailableError, OutOfMemoryError
from cuda_pool.peers import peak_reserved
from cuda_pool.replay import default_capacity, fit, replay, time_malloc
from cuda_pool.trace import Trace

from .models import OPTIMISED

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NAMES = sorted(path.name for path in EXAMPLES.glob("*.csv.gz"))
MIB = 1 << 20


@pytest.fixture(scope="module")
def serving():
    return Trace.read(EXAMPLES / "llama_serve_growing_kv.csv.gz")


def blocks(*sizes):
    return [("alloc", index, size, 0) for index, size in enumerate(sizes)]


@pytest.mark.parametrize("name", NAMES)
def test_bundled_trace(name):
    trace = Trace.read(EXAMPLES / name)
    result = replay(trace)
    assert result.failed_row is None and result.failure is None
    assert result.events == len(trace)
    assert result.peak_live == result.peak_requested == trace.peak_live
    assert result.peak_live <= result.peak_used <= result.peak_reserved <= result.capacity
    assert result.capacity <= default_capacity(trace)
    assert result.ratio == result.peak_reserved / result.peak_live
    assert 0 < result.ns_per_event < 1e6
    assert result.simulated and result.upstream_calls["cudaMalloc"] == 1
    assert (result.cross_stream_waits, result.orphan_frees, result.preexisting) == (0, 0, 0)
    assert (result.host_waits, result.races, result.misuses, result.findings) == (0, 0, 0, [])


def test_default_capacity():
    assert default_capacity(Trace.from_events([])) == 2 * MIB
    assert default_capacity(Trace.from_events(blocks(8 * MIB))) == 10 * MIB
    assert default_capacity(Trace.from_events(blocks(8 * MIB + 1))) == 12 * MIB


def test_keys_of_the_result():
    values = replay(Trace.from_events(blocks(100))).as_dict()
    assert set(values) >= {"events", "peak_live", "peak_requested", "peak_used", "peak_reserved", "ratio", "capacity",
                           "failed_row", "ns_per_event", "upstream_calls", "cross_stream_waits", "host_waits", "races",
                           "misuses", "orphan_frees", "preexisting"}
    assert set(values["settings"]) == {"slab_max", "mid_max", "min_block"}


def test_case_44_frees_without_an_allocation_and_blocks_live_at_the_start():
    trace = Trace.from_events([
        ("free", 900, 3 * MIB + 1, 0), ("alloc", 1, 4097, 0), ("free", 901, 0, 0), ("free", 900, 3 * MIB + 1, 0),
        ("alloc", 2, 12345677, 1), ("free", 1, 4097, 0), ("free", 902, 511, 1), ("free", 2, 12345677, 1)])
    result = replay(trace, capacity="32MiB")
    assert result.failed_row is None
    assert (result.orphan_frees, result.preexisting, result.preexisting_bytes) == (4, 2, 3 * MIB + 512)
    assert result.peak_requested == result.peak_live == 511 + 4097 + 12345677


def test_case_44_preexisting_blocks_take_their_place():
    before, after = [("free", 9, 6 * MIB, 0)], blocks(6 * MIB)
    assert replay(Trace.from_events(before + after), capacity="8MiB").failed_row is None
    result = replay(Trace.from_events(after + before), capacity="8MiB")
    assert result.failed_row == 2
    assert result.failure["requested"] == 6 * MIB and result.failure["largest_free"] < 6 * MIB


def test_case_44_preexisting_block_without_room_is_named_by_its_free():
    trace = Trace.from_events([*blocks(1, 2, 3), ("free", 8, 4 * MIB, 0), ("free", 9, 6 * MIB, 0)])
    result = replay(trace, capacity="8MiB")
    assert result.failed_row == 6 and result.failure["requested"] == 6 * MIB
    assert result.ns_per_event is None


def test_case_45_failed_allocation_names_the_row():
    result = replay(Trace.from_events(blocks(3 * MIB, 100, 0, 9 * MIB, 50)), capacity="8MiB")
    assert result.failed_row == 5
    failure = result.failure
    assert failure["requested"] == 9 * MIB
    assert failure["largest_free"] <= failure["free"] < failure["reserved"] <= failure["capacity"] == result.capacity
    assert failure["capacity"] - failure["free"] >= 3 * MIB + 100
    assert result.ns_per_event is None
    assert result.peak_requested == 3 * MIB + 100


def test_failure_in_the_first_and_the_last_row():
    assert replay(Trace.from_events(blocks(9 * MIB)), capacity="8MiB").failed_row == 2
    assert replay(Trace.from_events(blocks(1, 1, 1, 9 * MIB)), capacity="8MiB").failed_row == 5


def test_size_that_no_device_has():
    for capacity in ("8MiB", None):
        result = replay(Trace.from_events(blocks(100, 2**63 - 1000)), capacity=capacity)
        assert result.failed_row == 3 and result.failure["requested"] == 2**63 - 1000


def test_sizes_of_0():
    trace = Trace.from_events([*blocks(0, 0, 0), ("free", 1, 0, 0), ("free", 0, 0, 0)])
    result = replay(trace)
    assert (result.failed_row, result.peak_used, result.peak_live, result.ratio) == (None, 0, 0, None)


def test_no_events():
    result = replay(Trace.from_events([]))
    assert (result.events, result.failed_row, result.ns_per_event, result.ratio) == (0, None, None, None)


@pytest.mark.parametrize("repeats", [2, 50])
def test_repeats_start_from_the_same_state(repeats):
    trace = Trace.from_events([("free", 90, 999, 0)] + blocks(*range(0, 200000, 1001)) + [("free", 5, 5005, 0)])
    once, often = replay(trace), replay(trace, repeats=repeats)
    for key in ("peak_requested", "peak_used", "peak_reserved", "failed_row", "upstream_calls"):
        assert getattr(once, key) == getattr(often, key)


@st.composite
def event_lists(draw):
    sizes = draw(st.lists(st.integers(0, 70000), max_size=40))
    events, live = [], []
    for index, size in enumerate(sizes):
        events.append(("alloc", index, size, 0))
        live.append((index, size))
        for _ in range(draw(st.integers(0, 2))):
            if live:
                ident, size = live.pop(draw(st.integers(0, len(live) - 1)))
                events.append(("free", ident, size, 0))
    return events


@settings(deadline=None)
@given(event_lists(), st.lists(st.integers(1, 5000), max_size=4))
def test_high_water_marks_agree_with_the_trace(events, before):
    frees = [("free", 1000 + index, size, 0) for index, size in enumerate(before)]
    trace = Trace.from_events(events + frees)
    result = replay(trace, capacity="16MiB")
    assert result.failed_row is None
    assert result.peak_requested == trace.peak_live
    assert result.preexisting == len(before)


def test_device_is_left_as_it_was(serving):
    device = sim.Device("8GiB")
    before = device.mem_info()
    replay(serving, device=device)
    replay(serving, device=device, capacity="4GiB")
    assert device.mem_info() == before
    assert device.calls["cudaMalloc"] == device.calls["cudaFree"] == 2


def test_device_that_is_too_small(serving):
    with pytest.raises(OutOfMemoryError):
        replay(serving, device=sim.Device("1GiB"))


def test_device_that_is_not_there(serving):
    try:
        Pool(MIB, device=0).close()
    except DeviceUnavailableError:
        with pytest.raises(DeviceUnavailableError, match="cp.sim.Device"):
            replay(serving, device=0)
    else:
        pytest.skip("there is a GPU")


@pytest.mark.parametrize("given", [
    {"lag": 2**40 + 1}, {"lag": -1}, {"repeats": 0}, {"repeats": -1}, {"capacity": "12 bananas"}, {"capacity": -1},
    {"backing": "paper"}, {"growth": "wild"}, {"mid_max": "x"},
], ids=lambda given: "-".join(map(str, *given.items())))
def test_values_that_are_not_accepted(given):
    trace = Trace.from_events(blocks(100))
    with pytest.raises(ValueError):
        replay(trace, **given)
    assert replay(trace).failed_row is None


@pytest.mark.parametrize("call", [
    replay, fit, time_malloc, default_capacity, compare, lambda trace: peak_reserved(trace, "cupy"),
    lambda trace: convert(trace, "never.csv")],
    ids=["replay", "fit", "malloc", "capacity", "compare", "peers", "convert"])
@pytest.mark.parametrize("trace", ["trace.csv.gz", None, 5])
def test_what_is_no_trace(call, trace):
    with pytest.raises(TypeError, match=r"trace is a cuda_pool.trace.Trace, as Trace.read\(path\) makes it; got "):
        call(trace)


def test_what_is_no_recording():
    with pytest.raises(TypeError, match="recording is a cuda_pool.map.Recording, or None; got 5"):
        replay(Trace.from_events([]), recording=5)


def test_lag_says_what_is_accepted():
    for call in (replay, fit):
        with pytest.raises(ValueError, match=r"from 0 to 2\*\*40"):
            call(Trace.from_events([]), lag=-5)
    with pytest.raises(ValueError, match="accepted on a CUDA device: 0"):
        replay(Trace.from_events([]), device=0, lag=5)


def test_progress_is_reported_between_slices(serving):
    seen = []
    replay(serving, repeats=2, progress=lambda done, total: seen.append((done, total)))
    done = [one for one, _ in seen]
    assert {total for _, total in seen} == {2 * len(serving)}
    assert done == sorted(set(done)) and done[-1] == 2 * len(serving) and len(done) > 20


def test_interrupt_between_slices_gives_the_memory_back(serving):
    def interrupt(done, total):
        raise KeyboardInterrupt

    device = sim.Device("8GiB")
    before = device.mem_info()
    with pytest.raises(KeyboardInterrupt):
        replay(serving, device=device, progress=interrupt)
    assert device.mem_info() == before


def test_events_are_played_without_the_gil(serving):
    """No thread is made to give up the GIL here, so another one runs only where this one releases it."""
    ticks, stop = [0], threading.Event()

    def tick():
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=tick)
    pool = Pool(default_capacity(serving), device=sim.Device(default_capacity(serving)))
    loop = PoolReplay(serving, pool)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        inside = any(ticks_during(loop, len(serving), ticks) for _ in range(1000))
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()
    pool.close()
    assert inside


def ticks_during(loop, events, ticks):
    before = ticks[0]
    loop.run(events)
    after = ticks[0]
    loop.clear()
    return after - before


def test_loop_by_hand():
    trace = Trace.from_events([*blocks(100, 200, 9 * MIB), ("free", 0, 100, 0)])
    pool = Pool(4 * MIB, device=sim.Device(4 * MIB))
    loop = PoolReplay(trace, pool)
    for _ in range(3):
        loop.place()
        loop.run(1)
        assert (loop.position, loop.failed, loop.failed_row) == (1, False, None)
        loop.run(100)
        assert (loop.position, loop.failed, loop.failed_row, loop.failed_size) == (2, True, 4, 9 * MIB)
        loop.run(100)
        assert loop.position == 2
        assert pool.stats().requested == 300
        loop.clear()
        assert (loop.position, loop.failed, loop.ns) == (0, False, 0)
        assert pool.stats().requested == 0
    pool.close()


def test_closed_pool_is_refused():
    pool = Pool(4 * MIB, device=sim.Device(4 * MIB))
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        PoolReplay(Trace.from_events([]), pool)


def test_loop_needs_a_trace_and_a_pool():
    for arguments in ((None, None), (Trace.from_events([]), None)):
        with pytest.raises(TypeError):
            PoolReplay(*arguments)
    with pytest.raises(TypeError):
        MallocReplay(None)


def test_time_malloc():
    assert 0 < time_malloc(Trace.from_events(blocks(*range(2000))), repeats=2) < 1e6
    assert time_malloc(Trace.from_events([])) is None


def test_time_malloc_when_malloc_refuses():
    assert time_malloc(Trace.from_events([*blocks(100, 2**62), ("free", 0, 100, 0)])) is None


def test_time_malloc_with_orphans_and_preexisting_blocks():
    assert time_malloc(Trace.from_events([("free", 9, 100, 0), ("free", 9, 100, 0), *blocks(0, 5)])) > 0


def test_settings_of_400_digits():
    trace = Trace.from_events(blocks(100))
    for name in ("slab_max", "min_block"):
        with pytest.raises(ValueError, match=f"{name} is .*1.00 GiB"):
            replay(trace, **{name: 10**400})
        with pytest.raises(ValueError, match=f"{name} is .*1.00 GiB"):
            fit(trace, settings={name: 10**400})


@pytest.mark.parametrize("value", [False, True, 0.0, 1.0, 2.5, "1", None], ids=repr)
def test_numbers_that_are_no_integers(value):
    trace = Trace.from_events(blocks(100))
    for call, name in ((replay, "lag"), (fit, "lag"), (replay, "repeats"), (time_malloc, "repeats")):
        with pytest.raises(TypeError, match=f"{name} is a number of"):
            call(trace, **{name: value})


def test_abstract_loop_plays_nothing():
    loop = Replay(Trace.from_events([]))
    loop.place()
    loop.run(1)
    assert (loop.position, loop.failed, loop.ns) == (0, False, 0)
    loop = Replay(Trace.from_events(blocks(100)))
    loop.run(1)
    assert (loop.position, loop.failed_row, loop.failed_size) == (0, 2, 100)
    loop.clear()


# --- streams ----------------------------------------------------------------------------------------------------------

def program(seed, events=400, streams=4):
    """A trace of blocks on several streams, of which some are freed on another."""
    chance = random.Random(seed)
    rows, live = [("free", 10**6 + number, 5000 * number, number) for number in range(streams)], []
    for index in range(events):
        if live and chance.random() < 0.48:
            ident, size, stream = live.pop(chance.randrange(len(live)))
            rows.append(("free", ident, size, stream if chance.random() < 0.9 else chance.randrange(streams)))
        else:
            live.append((index, chance.choice([0, 64, 3000, 70000, MIB + 1]), chance.randrange(streams)))
            rows.append(("alloc", *live[-1]))
    return Trace.from_events(rows)


def tight(trace):
    """A capacity that makes streams take each other's memory."""
    return fit(trace, search=False).min_capacity


def one_after_another(events, streams):
    return Trace.from_events([("alloc", index, 4096, index % streams) for index in range(events)])


def disturb(device):
    """Use the only region of a device behind the back of its pool."""
    [(region, nbytes)] = device.live.items()
    device.stream(blocking=False).write(region, nbytes, 1)


@pytest.fixture
def lagged():
    """Factory of (loop, pool, device), for a trace, a lag and a seed; closes what it made."""
    made = []

    def make(trace, lag, seed=None, **parameters):
        device = sim.Device("1GiB", seed=seed)
        pool = Pool("64MiB", device=device, **parameters)
        made.append((LaggedReplay(trace, pool, lag), pool, device))
        return made[-1]

    yield make
    for loop, pool, device in made:
        loop.clear()
        loop.close()
        device.check()
        assert device.errors == []
        pool.close()


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("lag", [1, 2, 7, 100])
def test_work_is_done_when_lag_more_events_have_been_played(lagged, lag, streams):
    loop, _, device = lagged(one_after_another(120, streams), lag)
    for played in range(1, 121):
        loop.run(1)
        assert (device.now, device.pending) == (played, min(played, lag - 1))


@pytest.mark.parametrize("seed", range(5))
def test_with_a_seed_work_is_late_but_never_early_and_never_more_than_128_ticks(lagged, seed):
    loop, _, device = lagged(one_after_another(1000, 3), 10, seed)
    late = 0
    for played in range(1, 1001):
        loop.run(1)
        assert min(played, 9) <= device.pending <= 9 + 128
        late = max(late, device.pending - 9)
    assert late > 5


def test_every_lag_starts_anew_after_a_wait_on_the_host(lagged):
    loop, _, device = lagged(one_after_another(60, 2), 20)
    loop.run(30)
    device.synchronize()
    assert device.now == 49
    for played in range(1, 31):
        loop.run(1)
        assert (device.now, device.pending) == (49 + played, min(played, 19))


def test_work_uses_every_byte_of_every_block(lagged):
    trace = Trace.from_events([("alloc", 0, 3000, 0), ("alloc", 1, 50000, 5), ("free", 0, 3000, 0)])
    loop, pool, device = lagged(trace, 10)
    loop.run(2)
    disturb(device)
    loop.run(1)
    device.synchronize()
    assert [(race.second.operation, race.second.nbytes, race.second.tick) for race in device.races] == [
        ("write", 3000, 10), ("write", 50000, 11), ("write", 3000, 12)]


def test_streams_of_the_trace_are_streams_of_the_device(lagged):
    trace = Trace.from_events([("alloc", 0, 8, 0), ("alloc", 1, 8, 2**64 - 1), ("alloc", 2, 8, 7), ("alloc", 3, 8, 7)])
    loop, _, device = lagged(trace, 100)
    disturb(device)
    loop.run(10)
    device.synchronize()
    default, largest, *sevens = [race.second.stream for race in device.races]
    assert default == device.default_stream().id
    assert sevens[0] == sevens[1] and len({default, largest, *sevens}) == 3


@pytest.mark.parametrize("seed", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("lag", [1, 10, 100])
def test_no_races_whatever_the_seed(lag, seed):
    for number in range(5):
        trace = program(number)
        result = replay(trace, capacity=tight(trace) + 2 * MIB, lag=lag, seed=seed)
        assert (result.races, result.misuses, result.findings) == (0, 0, []), result.findings
        assert result.failed_row is None
        assert result.peak_requested == trace.peak_live
        assert (result.lag, result.seed) == (lag, seed)


def test_races_are_found_when_nothing_is_tracked(lagged):
    loop, pool, device = lagged(program(1, events=4000), 100)
    _testing.ignore_streams(pool)
    loop.place()
    loop.run(4000)
    device.synchronize()
    assert not loop.failed and device.race_count > 0


def test_races_are_not_found_when_all_is_tracked(lagged):
    loop, _, device = lagged(program(1, events=4000), 100)
    loop.place()
    loop.run(4000)
    device.synchronize()
    assert not loop.failed and device.race_count == 0


class Disturbed(Pool):
    """A pool whose region something else uses as well."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        disturb(self.device)


class Misused(Pool):
    """A pool on a device on which something uses memory that is not there."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.device.stream(blocking=False).write(4096, 256, 1, ticks=2)


def test_races_are_reported(monkeypatch):
    trace = Trace.from_events(blocks(256, 256))
    monkeypatch.setattr("cuda_pool._rounds.Pool", Disturbed)
    result = replay(trace, lag=10)
    assert (result.races, result.misuses, len(result.findings)) == (2, 0, 2)
    assert "nothing orders write on stream" in result.findings[0]
    found = fit(trace, lag=10, search=False)
    assert found.races >= found.replays > 0 and len(found.findings) <= 10
    assert replay(trace).races == 0, "nothing is looked for without a lag"


def test_misuses_are_reported(monkeypatch):
    monkeypatch.setattr("cuda_pool._rounds.Pool", Misused)
    result = replay(Trace.from_events(blocks(256, 256)), lag=10)
    assert (result.races, result.misuses) == (0, 1) and "nothing is allocated there" in result.findings[0]


def test_what_the_device_found_before_does_not_count():
    device = sim.Device("64MiB")
    ptr = device.malloc(256)
    for _ in range(2):
        device.stream(blocking=False).write(ptr, 256, 1)
    device.synchronize()
    device.free(ptr)
    assert device.race_count == 1
    result = replay(program(1), device=device, lag=10)
    assert (result.races, result.misuses, result.findings) == (0, 0, [])


def test_waits_are_the_calls_of_the_pool():
    trace = program(2)
    device = sim.Device("1GiB")
    result = replay(trace, device=device, capacity=tight(trace), lag=50)
    calls = result.upstream_calls
    assert result.cross_stream_waits == calls.get("cudaStreamWaitEvent", 0) == device.calls["cudaStreamWaitEvent"]
    assert result.host_waits == sum(calls.get(name, 0) for name in (
        "cudaEventSynchronize", "cudaStreamSynchronize", "cudaDeviceSynchronize"))
    assert result.cross_stream_waits + result.host_waits > 0, "the streams take each other's memory"


def test_one_stream_needs_no_wait(serving):
    result = replay(serving, lag=100)
    assert (result.failed_row, result.cross_stream_waits, result.host_waits, result.races) == (None, 0, 0, 0)
    assert set(result.upstream_calls) <= {"cudaMalloc", "cudaMemGetInfo"}


def test_lag_with_orphans_and_preexisting_blocks():
    trace = Trace.from_events([
        ("free", 900, 3 * MIB + 1, 0), ("alloc", 1, 4097, 0), ("free", 901, 0, 0), ("free", 900, 3 * MIB + 1, 0),
        ("alloc", 2, 12345677, 1), ("free", 1, 4097, 1), ("free", 902, 511, 1), ("free", 2, 12345677, 1)])
    result = replay(trace, capacity="32MiB", lag=3)
    assert (result.failed_row, result.orphan_frees, result.preexisting) == (None, 4, 2)
    assert result.peak_requested == trace.peak_live
    assert (result.races, result.misuses) == (0, 0)


def test_lag_with_a_failed_allocation():
    result = replay(Trace.from_events(blocks(3 * MIB, 100, 0, 9 * MIB, 50)), capacity="8MiB", lag=10)
    assert result.failed_row == 5 and result.failure["requested"] == 9 * MIB
    assert result.ns_per_event is None and result.races == 0


def test_pending_work_is_waited_for_before_an_allocation_fails():
    trace = Trace.from_events([("alloc", 0, 6 * MIB, 0), ("free", 0, 6 * MIB, 0), ("alloc", 1, 6 * MIB, 1)])
    result = replay(trace, capacity="8MiB", lag=1000)
    assert (result.failed_row, result.races) == (None, 0)
    assert result.cross_stream_waits + result.host_waits == 1


def test_lag_leaves_the_device_as_it_was():
    device = sim.Device("1GiB")
    before = device.mem_info()
    for _ in range(3):
        replay(program(3), device=device, lag=100, repeats=2)
        assert (device.pending, device.live, device.mem_info()) == (0, {}, before)
    device.check()


def test_interrupt_with_a_lag_leaves_the_device_as_it_was(serving):
    def interrupt(done, total):
        raise KeyboardInterrupt

    device = sim.Device("8GiB")
    with pytest.raises(KeyboardInterrupt):
        replay(serving, device=device, lag=100, progress=interrupt)
    assert (device.pending, device.live) == (0, {})


def test_device_that_is_closed_in_the_middle(serving):
    device = sim.Device("8GiB")
    with pytest.raises(CudaError, match="cudaErrorInvalidDevice"):
        replay(serving, device=device, lag=100, progress=lambda done, total: device.close())


def test_lag_and_rounds():
    trace = program(4)
    once, often = replay(trace, lag=20), replay(trace, lag=20, repeats=5)
    assert often.failed_row is None and often.races == 0
    assert often.peak_requested == once.peak_requested == trace.peak_live


@pytest.mark.parametrize("reuse", ["wait", "query", "never"])
def test_reuse_is_passed_to_the_pool(reuse):
    trace = program(5)
    capacity = tight(trace) + 2 * MIB
    result = replay(trace, capacity=capacity, lag=100, reuse=reuse)
    assert (result.failed_row, result.races, result.reuse) == (None, 0, reuse)
    assert fit(trace, lag=100, reuse=reuse, search=False).races == 0
    if reuse != "wait":
        assert result.cross_stream_waits == 0
    with pytest.raises(ValueError, match="reuse"):
        replay(trace, lag=100, reuse=reuse + "!")


def test_seed_is_that_of_a_device_made_here():
    with pytest.raises(ValueError, match="your own device"):
        replay(Trace.from_events([]), device=sim.Device("64MiB"), seed=1)
    for seed in (1.5, "1", True):
        with pytest.raises(TypeError, match="seed is an integer"):
            replay(Trace.from_events([]), seed=seed)


def test_lagged_loop_by_hand(lagged):
    trace = Trace.from_events([*blocks(100, 200, 90 * MIB), ("free", 0, 100, 0)])
    loop, pool, device = lagged(trace, 10)
    for _ in range(3):
        loop.place()
        loop.run(1)
        assert (loop.position, loop.failed, loop.failed_row) == (1, False, None)
        loop.run(100)
        assert (loop.position, loop.failed, loop.failed_row, loop.failed_size) == (2, True, 4, 90 * MIB)
        assert pool.stats().requested == 300
        loop.clear()
        assert (loop.position, loop.failed, loop.ns, device.pending) == (0, False, 0, 0)
        assert pool.stats().requested == 0


def test_lagged_loop_is_closed_once_and_plays_nothing_then(lagged):
    loop, _, _ = lagged(Trace.from_events([*blocks(100), ("free", 9, 100, 0)]), 10)
    for _ in range(2):
        loop.close()
    loop.place()
    assert loop.failed
    loop.clear()
    loop.run(1)
    with pytest.raises(ValueError, match="closed"):
        loop.check()
    loop.clear()


def test_what_a_lagged_loop_refuses():
    trace = Trace.from_events([("alloc", index, 1, index) for index in range(255)])
    pool = Pool(4 * MIB, device=sim.Device(4 * MIB))
    for lag in (0, -1, 2**40 + 1):
        with pytest.raises(ValueError, match="lag is from 1"):
            LaggedReplay(Trace.from_events([]), pool, lag)
    with pytest.raises(ValueError, match="255 streams; accepted with a lag: 254"):
        LaggedReplay(trace, pool, 1)
    for arguments in ((None, pool, 1), (trace, None, 1), (trace, pool, None)):
        with pytest.raises(TypeError):
            LaggedReplay(*arguments)
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        LaggedReplay(Trace.from_events([]), pool, 1)


def test_as_many_streams_as_are_accepted():
    trace = Trace.from_events([("alloc", index, 1, index) for index in range(254)])
    result = replay(trace, lag=5)
    assert (result.streams, result.failed_row, result.races) == (254, None, 0)


def test_fit_with_a_lag():
    trace = program(6)
    result = fit(trace, lag=50, seed=3, search=False)
    assert (result.lag, result.seed, result.races, result.misuses, result.findings) == (50, 3, 0, 0, [])
    again = replay(trace, capacity=result.min_capacity, lag=50, seed=3)
    assert again.failed_row is None
    assert (again.cross_stream_waits, again.host_waits) == (result.cross_stream_waits, result.host_waits)
    assert result.cross_stream_waits + result.host_waits > 0


def test_fit_with_a_lag_of_what_no_pool_can_hold():
    result = fit(Trace.from_events(blocks(100, 2**40)), lag=5, search=False)
    assert (result.min_capacity, result.cross_stream_waits, result.host_waits, result.failed_row) == (
        None, None, None, 3)


@pytest.mark.parametrize("name", ["bert_serve_4stream", "vit_b16_prefetch_2stream"])
@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_shared_traces_on_several_streams(shared_path, name, seed):
    trace = Trace.read(shared_path("traces", f"{name}.csv.gz"))
    result = replay(trace, capacity=trace.peak_live * 135 // 100, lag=100, seed=seed)
    assert (result.failed_row, result.races, result.misuses) == (None, 0, 0), result.findings
    assert result.streams == trace.streams > 1
    assert result.ns_per_event < 20_000 or not OPTIMISED
