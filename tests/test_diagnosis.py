"""Why an allocation failed: pools and traces that are made for one cause, and advice that ends the failure."""

import io
import json
import pickle
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cuda_pool as cp
from cuda_pool import _replay
from cuda_pool.advice import try_advice
from cuda_pool.diagnosis import Moment, diagnose
from cuda_pool.replay import replay
from cuda_pool.trace import Trace

MIB = 1 << 20
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
RECORDED = ("bert_serve_4stream", "gpt2_124m_train", "gpu_transformer_step", "gpu_zeroth_order", "llama_kv_cat_decode",
            "llama_serve_growing_kv", "moe_train_dynamic", "plan_pangu_2p6b", "resnet50_b64_train",
            "vit_b16_prefetch_2stream")


class Script:
    """Events of a trace that is written by hand."""

    def __init__(self):
        self.events, self.size = [], {}

    def alloc(self, nbytes, stream=0):
        block = len(self.size)
        self.size[block] = nbytes
        self.events.append(("alloc", block, nbytes, stream))
        return block

    def free(self, block, stream=0):
        self.events.append(("free", block, self.size[block], stream))

    def temporary(self, nbytes):
        self.free(self.alloc(nbytes))

    @property
    def trace(self):
        return Trace.from_events(self.events)


def recorded(name):
    path = TRACES / f"{name}.csv.gz"
    if not path.exists():
        pytest.skip("the recorded traces are not here")
    return Trace.read(path)


def failed(pool, nbytes, **options):
    """Return the diagnosis of an allocation that fails; the pool is as it was."""
    before, live = pool.stats(), pool.snapshot()
    with pytest.raises(cp.OutOfMemoryError) as caught:
        pool.alloc(nbytes, **options)
    pool.check()
    after = pool.stats()
    assert (after.used, after.reserved, after.free, after.pending) == (
        before.used, before.reserved, before.free, before.pending)
    assert pool.snapshot().segments == live.segments
    return caught.value.report()


def kinds(diagnosis):
    return [cause.kind for cause in diagnosis.causes]


def advised(diagnosis, start):
    [advice] = [one for one in diagnosis.advice if one.setting.startswith(start)]
    return advice


def tried(trace, **options):
    """Replay a trace that fails; return the diagnosis with its advice tried."""
    result = replay(trace, **options)
    assert result.failed_row is not None
    chosen = {name: options[name] for name in ("slab_max", "mid_max", "min_block") if name in options}
    return try_advice(trace, result, settings=chosen).diagnosis


def assert_true(advice, trace, **options):
    """Follow the advice, without its module: does the trace go through, or fail, as it says?"""
    changed = {**options, **advice.options}
    result = replay(trace, **changed)
    assert (result.failed_row is None) is advice.helps
    assert advice.helps or result.failed_row == advice.failed_row
    if advice.capacity is not None:
        assert replay(trace, **{**changed, "capacity": advice.capacity}).failed_row is None


# Fragmentation

def pieces(nbytes=4 * MIB, count=16, then=16 * MIB, later=0):
    """Every second block is freed; then one is asked for that is larger than any piece, and perhaps another one."""
    script = Script()
    blocks = [script.alloc(nbytes) for _ in range(count)]
    for block in blocks[::2]:
        script.free(block)
    script.alloc(then)
    if later:
        script.alloc(later)
    return script.trace


def test_fragmentation_of_a_pool(device):
    with cp.Pool("64MiB", device=device) as pool:
        blocks = [pool.alloc(4 * MIB) for _ in range(16)]
        for ptr in blocks[::2]:
            pool.free(ptr)
        diagnosis = failed(pool, 16 * MIB)
    assert kinds(diagnosis) == ["fragmentation"]
    cause = diagnosis.causes[0]
    assert cause.certainty == "certain" and cause.nbytes == 32 * MIB - 4 * MIB
    assert "32.00 MiB are free" in cause.text and "largest piece is 4.00 MiB" in cause.text
    assert advised(diagnosis, "backing").options == {"backing": "virtual"}
    assert all(advice.helps is None for advice in diagnosis.advice), "nothing was tried"
    [holder] = diagnosis.holders
    assert (holder.blocks, holder.used, holder.largest) == (8, 32 * MIB, 4 * MIB)


def test_fragmentation_of_a_trace_ends_with_pages_that_move():
    trace = pieces()
    diagnosis = tried(trace, capacity=64 * MIB)
    assert kinds(diagnosis) == ["fragmentation"]
    virtual = diagnosis.advice[0]
    assert virtual.setting == 'backing="virtual"' and virtual.helps and virtual.capacity == 64 * MIB
    for advice in diagnosis.advice:
        if advice.options is not None:
            assert_true(advice, trace, capacity=64 * MIB)
    larger = advised(diagnosis, "capacity")
    assert larger.helps and 64 * MIB < larger.capacity <= 80 * MIB


def test_pages_do_not_help_where_each_is_in_use():
    trace = pieces(MIB, 64)             # two blocks share a page
    virtual = advised(tried(trace, capacity=64 * MIB), "backing")
    assert virtual.helps is False and virtual.failed_row == len(trace) + 1 and virtual.capacity > 64 * MIB
    assert_true(virtual, trace, capacity=64 * MIB)


def test_fragmentation_of_the_buddy_tier_ends_with_mid_max():
    trace = Trace.read(EXAMPLES / "gpt2_124m_train.csv.gz")
    options = {"capacity": "29GiB", "mid_max": MIB}
    diagnosis = tried(trace, **options)
    assert kinds(diagnosis)[0] == "fragmentation"
    larger = advised(diagnosis, "mid_max")
    assert larger.options["mid_max"] > MIB and larger.helps
    assert_true(larger, trace, **options)


def test_free_slots_are_named():
    with cp.Pool("4MiB", device=cp.sim.Device("8MiB"), slab_max="16KiB") as pool:
        blocks = [pool.alloc(16_000) for _ in range(240)]
        for at, ptr in enumerate(blocks):
            if at % 8:
                pool.free(ptr)
        diagnosis = failed(pool, 2 * MIB)
    assert kinds(diagnosis)[0] == "fragmentation" and "free slots in slabs" in diagnosis.causes[0].text


# A pool that is too small

def test_small_pool(device):
    with cp.Pool("64MiB", device=device) as pool:
        pool.alloc(40 * MIB)
        diagnosis = failed(pool, 30 * MIB)
    assert kinds(diagnosis) == ["small"]
    assert diagnosis.causes[0].nbytes == 6 * MIB and "6.00 MiB more than the capacity" in diagnosis.causes[0].text
    enough = advised(diagnosis, "capacity").options["capacity"]
    with cp.Pool(enough, device=device) as pool:
        pool.alloc(40 * MIB)
        pool.alloc(30 * MIB)


def test_what_lies_below_a_unit_is_no_room(device):
    with cp.Pool(MIB + 255, device=device) as pool:
        assert kinds(failed(pool, MIB + 1)) == ["small"]


def test_small_pool_of_a_trace_ends_with_the_capacity():
    script = Script()
    for _ in range(5):
        script.temporary(10 * MIB)
        script.free(script.alloc(20 * MIB))
    kept = [script.alloc(24 * MIB), script.alloc(12 * MIB + 5)]
    for block in kept:
        script.free(block)
    diagnosis = tried(script.trace, capacity=32 * MIB)
    assert kinds(diagnosis) == ["small"]
    larger = advised(diagnosis, "capacity")
    assert larger.helps and larger.setting == 'capacity="37MiB"' and larger.capacity == 37 * MIB
    assert_true(larger, script.trace, capacity=32 * MIB)
    assert_true(advised(diagnosis, "growth"), script.trace, capacity=32 * MIB)


def test_what_comes_later_is_told_too():
    trace = pieces(later=200 * MIB)
    diagnosis = tried(trace, capacity=64 * MIB)
    assert kinds(diagnosis) == ["fragmentation", "small"]
    assert "later the program has 248.00 MiB in live blocks" in diagnosis.causes[1].text
    virtual = advised(diagnosis, "backing")
    assert virtual.helps is False and virtual.failed_row == len(trace) + 1 and virtual.capacity == 248 * MIB


@pytest.mark.parametrize("nbytes", [10**5000, 1 << 64, 1 << 62, "1TiB"], ids=["10**5000", "2**64", "2**62", "1TiB"])
def test_a_size_that_no_pool_holds(nbytes):
    with cp.Pool("64MiB", device=cp.sim.Device("64MiB")) as pool:
        diagnosis = failed(pool, nbytes)
    assert kinds(diagnosis) == ["small"] and "alone is more than the capacity" in str(diagnosis)
    assert not any(advice.setting.startswith("capacity") for advice in diagnosis.advice)


# A leak

def leaking(steps, temporary=4 * MIB, leaks=True, stream=7):
    script = Script()
    for _ in range(10):
        script.alloc(2 * MIB, stream)                   # weights
    for _ in range(steps):
        block = script.alloc(temporary, stream)
        lost = script.alloc(MIB + 100, stream)
        script.free(block, stream)
        if not leaks:
            script.free(lost, stream)
    return script.trace


# The trace ends long after the failure; soon after it, but the program frees much now and then; and frees little.
@pytest.mark.parametrize("steps, temporary, causes, certainty", [
    (300, 4 * MIB, ["leak", "small"], "likely"), (60, 12 * MIB, ["leak", "small"], "likely"),
    (70, 4 * MIB, ["small", "leak"], "possible")])
def test_leak(steps, temporary, causes, certainty):
    diagnosis = tried(leaking(steps, temporary), capacity=80 * MIB)
    assert kinds(diagnosis) == causes
    [leak] = [cause for cause in diagnosis.causes if cause.kind == "leak"]
    [lost] = [holder for holder in diagnosis.holders if holder.largest == MIB + 100]
    assert leak.certainty == certainty and leak.nbytes == lost.requested == lost.blocks * (MIB + 100)
    assert (lost.stream, lost.oldest) == (7, 13)
    assert f"{lost.blocks} blocks of 1.00 MiB on stream 7" in leak.text and "never freed" in leak.text
    assert ("ends too early to tell" in leak.text) is (certainty == "possible")
    assert advised(diagnosis, "free these blocks")
    mended = leaking(steps, temporary, leaks=False)
    assert replay(mended, capacity=80 * MIB).failed_row is None, "the advice ends the failure"


def test_a_leak_that_is_freed_at_the_end_of_the_program_is_one():
    script = Script()
    lost = []
    for _ in range(300):
        script.temporary(4 * MIB)
        lost.append(script.alloc(MIB))
    for block in lost:
        script.free(block)
    diagnosis = replay(script.trace, capacity=80 * MIB).diagnosis
    assert kinds(diagnosis)[0] == "leak" and diagnosis.causes[0].certainty == "likely"


def test_what_a_program_loads_and_keeps_is_no_leak():
    script = Script()
    for _ in range(100):
        script.alloc(MIB)
    for _ in range(300):
        script.temporary(4 * MIB)
    diagnosis = replay(script.trace, capacity=64 * MIB).diagnosis
    assert kinds(diagnosis) == ["small"]


def test_what_each_step_frees_is_no_leak():
    script = Script()
    for step in range(10):
        blocks = [script.alloc(MIB) for _ in range(40 + step)]
        for block in blocks:
            script.free(block)
    assert kinds(replay(script.trace, capacity=44 * MIB).diagnosis) == ["small"]


@pytest.mark.parametrize("share", [0.7, 0.95, 1.0])
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_programs_do_not_leak(name, share):
    trace = recorded(name)
    result = replay(trace, capacity=max(int(trace.peak_live * share), 256))
    if result.failed_row is None:
        pytest.skip("the trace goes through")
    assert "leak" not in [cause.kind for cause in result.diagnosis.causes if cause.certainty != "possible"]
    assert result.diagnosis.causes


@pytest.mark.parametrize("kept, others", [(256 << 10, 300), (64 << 10, 100), (12 << 10, 50)])
@pytest.mark.parametrize("cache", [0, 24], ids=["", "after_setting_up"])
def test_a_leak_of_a_live_pool(device, kept, others, cache):
    """Nobody recorded anything: what is in use rises from wave to wave."""
    rng = random.Random(kept)
    with cp.Pool("64MiB", device=device) as pool:
        for _ in range(cache):
            pool.alloc(MIB)
        with pytest.raises(cp.OutOfMemoryError) as caught:
            while True:
                wave = [pool.alloc(int(2 ** rng.uniform(8, 17))) for _ in range(others)]
                pool.alloc(kept)
                for ptr in wave:
                    pool.free(ptr)
        leak = next(cause for cause in caught.value.report().causes if cause.kind == "leak")
        assert leak.certainty == "likely" and leak.nbytes > 15 * MIB
        assert "never falls back" in leak.text and "stacks=True" in leak.text
        pool.check()


@pytest.mark.parametrize("seed", range(4))
def test_a_live_pool_that_loses_nothing(device, seed):
    """Neither a steady load, nor one that has just become larger, nor a program that sets itself up."""
    rng = random.Random(seed)
    with cp.Pool("64MiB", device=device) as pool:
        live = []
        for turn in range(100_000):
            live.append(pool.alloc(int(2 ** rng.uniform(8, 17))))
            if len(live) > (200 if turn < 90_000 else 400):
                pool.free(live.pop(rng.randrange(len(live))))
        for request in ("64MiB", "62MiB"):
            assert not [cause for cause in failed(pool, request).causes if cause.certainty == "likely"]
        with pytest.raises(cp.OutOfMemoryError) as caught:
            while True:
                pool.free(pool.alloc(int(2 ** rng.uniform(8, 17))))
                pool.alloc(MIB)
        assert not [cause for cause in caught.value.report().causes if cause.certainty == "likely"]


@pytest.mark.parametrize("share", [0.7, 0.95, 0.99])
@pytest.mark.parametrize("name", RECORDED)
def test_no_recorded_program_seems_to_lose_memory_to_a_live_pool(name, share):
    trace = recorded(name)
    capacity = int(trace.peak_live * share)
    with cp.Pool(capacity, device=cp.sim.Device(capacity, lazy=True)) as pool:
        loop = _replay.PoolReplay(trace, pool)
        loop.place()
        loop.run(len(trace))
        assert loop.failed
        causes = diagnose(loop.failed_size, Moment.of(loop.moment())).causes
        loop.clear()
        loop.close()
    assert causes and not [cause for cause in causes if cause.kind == "leak" and cause.certainty != "possible"]


def test_the_periods_of_a_life_are_in_even_steps(device):
    """However long it is, at most 64, and neighbours that became one keep the highest and the lowest."""
    with cp.Pool("64MiB", device=device) as pool:
        kept = pool.alloc(MIB)
        for wave in range(1, 601):
            for ptr in [pool.alloc(2 * MIB if turn < 20 else 5 * MIB // 4) for turn in range(30 if wave != 77 else 33)]:
                pool.free(ptr)
            for _ in range(300 - 30):
                pool.free(pool.alloc(5 * MIB // 4))
        with pytest.raises(cp.OutOfMemoryError) as caught:
            pool.alloc("64MiB")
        pool.free(kept)
    periods = caught.value.moment["periods"]
    ends = [allocs for allocs, _, _ in periods]
    steps = [after - before for before, after in zip([0, *ends[:-2]], ends[:-1])]
    assert 32 <= len(periods) <= 64 and max(steps) <= 1.2 * min(steps)
    assert sum(peak > 54 * MIB for _, peak, _ in periods) == 1 and min(peak for _, peak, _ in periods) > 50 * MIB
    assert all(MIB <= trough <= 3 * MIB for _, _, trough in periods)


def test_many_blocks_of_one_size_are_a_guess_without_a_history(device):
    with cp.Pool("64MiB", device=device) as pool:
        for _ in range(120):
            pool.free(pool.alloc(2 * MIB))
            pool.alloc(MIB // 2)
        diagnosis = failed(pool, 6 * MIB)
    assert kinds(diagnosis) == ["small", "leak"]
    leak = diagnosis.causes[1]
    assert leak.certainty == "possible" and leak.nbytes == 60 * MIB
    assert "120 blocks of 512.00 KiB" in leak.text and "240 allocations so far 120 were freed" in leak.text


# Rounding

@pytest.mark.parametrize("nbytes, helps", [(65_537, "mid_max"), (8192, "min_block")])
def test_rounding_in_the_buddy_tier(nbytes, helps):
    script = Script()
    for _ in range(100):
        script.alloc(nbytes)
    options = {"capacity": 8 * MIB if nbytes > 8192 else 4 * MIB, "slab_max": 0, "mid_max": 1024}
    diagnosis = tried(script.trace, **options)
    assert kinds(diagnosis) == ["rounding"]
    waste = diagnosis.causes[0]
    assert waste.nbytes == 64 * (-nbytes % 65536) and "in the buddy tier" in waste.text
    assert f"{-nbytes % 65536 / (nbytes + -nbytes % 65536):.0%} of what is in use" in waste.text
    assert advised(diagnosis, helps).helps
    for advice in diagnosis.advice:
        if advice.options is not None:
            assert_true(advice, script.trace, **options)


def test_rounding_of_slots_ends_without_slabs():
    script = Script()
    for _ in range(480):
        script.alloc(8200)                              # slots of 9,216 bytes
    diagnosis = tried(script.trace, capacity=4 * MIB)
    assert kinds(diagnosis)[0] == "rounding" and "in the slab tier" in diagnosis.causes[0].text
    assert advised(diagnosis, "slab_max=0").helps
    for advice in diagnosis.advice:
        if advice.options is not None:
            assert_true(advice, script.trace, capacity=4 * MIB)


# Pending work

def test_pending_work_while_a_stream_is_captured(make_device):
    device = make_device("64MiB")
    stream, other = device.stream(), device.stream()
    with cp.Pool("32MiB", device=device) as pool:
        ptr = pool.alloc(20 * MIB, stream)
        stream.work(ticks=100)
        pool.free_async(ptr, stream)
        with pool.capture(other):
            other.begin_capture("relaxed")
            diagnosis = failed(pool, 24 * MIB)
            other.end_capture()
        assert kinds(diagnosis) == ["pending"]
        cause = diagnosis.causes[0]
        assert cause.nbytes == 20 * MIB and "captured" in cause.text and f"0x{stream.handle:x}" in cause.text
        assert advised(diagnosis, "allocate before the capture begins")
        pool.free(pool.alloc(24 * MIB))                 # the advice ends the failure


def test_memory_of_a_graph(make_device):
    device = make_device("64MiB")
    stream = device.stream()
    with cp.Pool("32MiB", device=device) as pool:
        with pool.capture(stream) as kept:
            stream.begin_capture("relaxed")
            pool.free_async(pool.alloc(20 * MIB, stream), stream)
            stream.end_capture()
        diagnosis = failed(pool, 24 * MIB)
        assert kinds(diagnosis) == ["pending"]
        assert diagnosis.causes[0].nbytes == 20 * MIB and "CUDA graphs" in diagnosis.causes[0].text
        assert advised(diagnosis, "Capture.release")
        kept.release()
        pool.free(pool.alloc(24 * MIB))                 # the advice ends the failure


def two_streams(rounds=40):
    """One stream works in blocks that the other one needs right afterwards, in other sizes."""
    script = Script()
    for at in range(rounds):
        stream = 1 + at % 2
        blocks = [script.alloc((3 + at % 4) * MIB // 2, stream) for _ in range(6 - at % 3)]
        for block in blocks:
            script.free(block, stream)
    return script.trace


def test_pending_work_of_a_trace_is_told_by_a_replay_without_it():
    trace = two_streams()
    options = {"lag": 50, "reuse": "never"}
    enough = replay(trace, capacity=trace.peak_live)
    assert enough.failed_row is None
    diagnosis = tried(trace, capacity=trace.peak_live, **options)
    assert kinds(diagnosis)[0] == "pending" and "50 events behind" in diagnosis.causes[0].text
    for advice in diagnosis.advice:
        if advice.options is not None:
            assert_true(advice, trace, capacity=trace.peak_live, **options)


# Any trace

@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_advice_is_true_for_any_trace(data):
    rng = random.Random(data.draw(st.integers(0, 10**9)))
    script, live = Script(), []
    for _ in range(rng.randrange(2, 120)):
        if live and rng.random() < 0.4:
            script.free(live.pop(rng.randrange(len(live))), rng.randrange(3))
        else:
            live.append(script.alloc(int(2 ** rng.uniform(6, 24)), rng.randrange(3)))
    trace = script.trace
    options = {"capacity": max(int(trace.peak_live * rng.uniform(0.3, 1.05)), 4096),
               "backing": rng.choice(["malloc", "virtual"]), "growth": rng.choice(["static", "dynamic"]),
               **rng.choice([{}, {"mid_max": MIB}, {"slab_max": 0, "mid_max": 0}, {"min_block": 4096}]),
               **rng.choice([{}, {"lag": 10}, {"lag": 50, "reuse": "never"}])}
    if replay(trace, **options).failed_row is None:
        return
    diagnosis = tried(trace, **options)
    assert diagnosis.causes and str(diagnosis)
    json.dumps(diagnosis.as_dict())
    for advice in diagnosis.advice:
        if advice.options is not None:
            assert_true(advice, trace, **options)


# A device that has no more

def test_device_without_memory(make_device):
    device = make_device("64MiB")
    other = device.malloc(40 * MIB)
    with cp.Pool("2MiB", device=device, growth="dynamic", max_capacity="60MiB") as pool:
        pool.alloc(10 * MIB)
        diagnosis = failed(pool, 20 * MIB)
        assert kinds(diagnosis) == ["device"] and "the device did not give it" in diagnosis.causes[0].text
        assert "others" not in diagnosis.causes[0].text         # nothing tells who has the memory: it may be this pool
        device.free(other)
        pool.alloc(20 * MIB)


def test_a_growing_pool_at_its_limit_is_too_small(make_device):
    with cp.Pool("2MiB", device=make_device("64MiB"), growth="dynamic", max_capacity="16MiB") as pool:
        pool.alloc(10 * MIB)
        diagnosis = failed(pool, 20 * MIB)
    assert kinds(diagnosis) == ["small"]
    assert not any(advice.setting.startswith("growth") for advice in diagnosis.advice)
    assert advised(diagnosis, 'max_capacity="30MiB"')


def test_a_pool_that_the_device_has_no_room_for(make_device):
    with pytest.raises(cp.OutOfMemoryError) as caught:
        cp.Pool("2GiB", device=make_device("1GiB"))
    assert caught.value.moment is None
    diagnosis = caught.value.report()
    assert kinds(diagnosis) == ["device"] and "the device has 1.00 GiB free" in diagnosis.causes[0].text


def test_alignment(device):
    with cp.Pool("8MiB", device=device) as pool:
        diagnosis = failed(pool, MIB, alignment=1 << 40)
    assert kinds(diagnosis) == ["alignment"]


# The report

def test_the_report_is_of_the_moment(make_device):
    pool = cp.Pool("64MiB", device=make_device("64MiB"))
    blocks = [pool.alloc(4 * MIB) for _ in range(16)]
    with pytest.raises(cp.OutOfMemoryError) as caught:
        pool.alloc(MIB)
    said = str(caught.value.report())
    for ptr in blocks:
        pool.free(ptr)
    pool.close()
    del pool
    assert str(caught.value.report()) == said and "in use 64.00 MiB" in said
    assert str(pickle.loads(pickle.dumps(caught.value)).report()) == said


def test_an_error_without_a_moment_has_a_report():
    report = cp.OutOfMemoryError(3 << 30, 2 << 30, 1 << 30, 4 << 30, 5 << 30).report()
    assert report.requested == 3 << 30 and report.causes


def test_keys_are_plain_values():
    values = tried(pieces(), capacity=64 * MIB).as_dict()
    assert json.loads(json.dumps(values))["causes"][0]["kind"] == "fragmentation"
    assert set(values) == {"requested", "capacity", "reserved", "used", "live", "pending", "free", "largest_free",
                           "causes", "holders", "sampled", "advice"}
    assert set(values["causes"][0]) == {"kind", "certainty", "nbytes", "text"}
    assert set(values["advice"][0]) == {"setting", "text", "options", "helps", "capacity", "failed_row"}
    assert set(values["holders"][0]) == {"tier", "stream", "blocks", "used", "requested", "smallest", "largest",
                                         "oldest", "stack"}


def test_advice_is_tried_for_failures_only():
    trace = pieces(then=MIB)
    with pytest.raises(ValueError, match="went well"):
        try_advice(trace, replay(trace, capacity=64 * MIB))


def test_causes_are_ranked_by_what_would_have_made_room():
    moment = Moment(capacity=100 * MIB, reserved=100 * MIB, used=99 * MIB, live=60 * MIB, free=MIB, largest_free=MIB,
                    tiers={"buddy": {"blocks": 9, "used": 99 * MIB, "requested": 60 * MIB}},
                    settings={"slab_max": 0, "mid_max": 0, "min_block": 65536})
    assert kinds(diagnose(20 * MIB, moment)) == ["rounding"]
    assert kinds(diagnose(45 * MIB, moment)) == ["small", "rounding"]


def test_an_advice_is_given_once():
    advice = tried(pieces(later=70 * MIB), capacity=64 * MIB).advice
    settings = [one.setting for one in advice]
    assert any(setting.startswith("capacity=") for setting in settings)
    assert len(settings) == len(set(settings))


def test_blocks_that_found_no_place_have_no_memory():
    trace = Trace.from_events([("free", block, 4 * MIB, 0) for block in range(20)])
    result = replay(trace, capacity=64 * MIB)
    [holder] = result.diagnosis.holders
    assert (holder.blocks, holder.used, result.diagnosis.used) == (16, 64 * MIB, 64 * MIB)
    assert "100%" in str(result.diagnosis)
    assert replay(trace, capacity=MIB).diagnosis.holders == ()


def test_sizes_that_read_alike_are_one(device):
    pool = cp.Pool("64MiB", device=device)
    blocks = [pool.alloc(16 * MIB + extra) for extra in (0, 256, 512)]
    assert "3  blocks of 16.00 MiB  " in str(failed(pool, "32MiB")) and len(blocks) == 3


def test_rich_leaves_out_no_line_of_a_place(device, tmp_path):
    console = pytest.importorskip("rich.console").Console(width=80, file=io.StringIO())
    with cp.Pool("8MiB", device=device, trace=tmp_path / "t.csv", stacks=1) as pool:
        pool.alloc("7MiB")
        diagnosis = failed(pool, "2MiB")
    [holder] = diagnosis.holders
    console.print(diagnosis)
    shown = "".join(line.rpartition("│")[0].rpartition("│")[2].strip() for line in console.file.getvalue().splitlines())
    assert holder.stack[0].rpartition("(")[2] in shown


def test_no_line_ends_between_a_number_and_its_unit():
    moment = Moment(capacity=100 * MIB, reserved=100 * MIB, used=99 * MIB, live=99 * MIB, free=MIB, largest_free=MIB)
    for power in range(50):
        lines = str(diagnose(10**power, moment)).splitlines()
        assert not any(line.lstrip().startswith(("B", "KiB", "MiB", "GiB", "TiB", "PiB")) for line in lines)


def test_no_tier_has_less_than_a_unit_for_a_block(device):
    with cp.Pool("1MiB", device=device) as pool:
        blocks = [pool.alloc(100) for _ in range(4096)]
        diagnosis = failed(pool, 1)
    assert kinds(diagnosis)[0] == "rounding" and len(blocks) == 4096
    assert not any(advice.setting.startswith("slab_max") for advice in diagnosis.advice)
