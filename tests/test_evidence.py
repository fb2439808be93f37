"""What a history of allocations tells: whose the memory is, by size class, stream and stack, and what only grows."""

import pickle

import numpy as np
import pytest

import cuda_pool as cp
from cuda_pool.evidence import NEVER, bin_of, evidence_of, evidence_of_trace
from cuda_pool.trace import Trace

MIB = 1 << 20
SETTINGS = {"slab_max": 16 << 10, "mid_max": 1 << 30}
TRAIN, LOAD = ("forward", "train", "main"), ("load", "main")


def columns(*rows):
    """Return the arrays of blocks that are given as (size, stream, born, died)."""
    return [np.array(column, np.int64) for column in zip(*rows)]


def test_holders_are_told_apart_by_size_class_and_stream():
    rows = [(MIB, 1, 0, NEVER), (MIB, 1, 1, NEVER), (MIB, 2, 2, NEVER), (300, 1, 3, NEVER), (2 << 30, 1, 4, NEVER),
            (MIB, 1, 5, 6)]
    evidence = evidence_of(*columns(*rows), 7, 7, SETTINGS, row=np.arange(10, 16))
    assert [(one.tier, one.stream, one.blocks, one.requested, one.oldest) for one in evidence.holders] == [
        ("buddy", 1, 1, 2 << 30, 14), ("mid", 1, 2, 2 * MIB, 10), ("mid", 2, 1, MIB, 12), ("slab", 1, 1, 300, 13)]
    assert evidence.leaks == () and evidence.peak_live == (2 << 30) + 4 * MIB + 300


def test_holders_are_told_apart_by_stack():
    stacks = [TRAIN, LOAD, TRAIN, TRAIN]
    rows = [(MIB, 1, at, NEVER) for at in range(4)]
    evidence = evidence_of(*columns(*rows), 4, 4, SETTINGS, stack=stacks)
    assert [(one.stack, one.blocks) for one in evidence.holders] == [(TRAIN, 3), (LOAD, 1)]


def test_a_leak_has_the_stack_that_makes_it():
    rows, stacks = [], []
    for step in range(100):
        rows += [(8 * MIB, 1, 3 * step, 3 * step + 2), (MIB, 1, 3 * step + 1, NEVER)]
        stacks += [LOAD, TRAIN]
    evidence = evidence_of(*columns(*rows), 300, 300, SETTINGS, stack=stacks)
    [leak] = evidence.leaks
    assert (leak.holder.stack, leak.holder.blocks, leak.certainty) == (TRAIN, 100, "possible")
    assert leak.per_1000 == pytest.approx(1000 / 3)


def test_a_report_has_the_evidence_of_an_error():
    with cp.Pool("64MiB", device=cp.sim.Device("64MiB")) as pool:
        for _ in range(60):
            pool.alloc(MIB)
        with pytest.raises(cp.OutOfMemoryError) as caught:
            pool.alloc(8 * MIB)
    rows, stacks = [], []
    for step in range(60):
        rows += [(8 * MIB, 0, 3 * step, 3 * step + 2), (MIB, 0, 3 * step + 1, NEVER)]
        stacks += [LOAD, TRAIN]
    caught.value.evidence = evidence_of(*columns(*rows), 180, 400, SETTINGS, stack=stacks)
    report = caught.value.report()
    assert report.holders[0].stack == TRAIN and "forward < train < main" in str(report)


def lose(pool):
    return pool.alloc(MIB)


@pytest.mark.parametrize("stacks", [False, True])
def test_a_recorded_pool_names_the_place_of_a_leak(stacks, tmp_path):
    options = {"trace": tmp_path / "run.csv", "stacks": True} if stacks else {"trace": tmp_path / "run.csv"}
    with cp.Pool("64MiB", device=cp.sim.Device("64MiB"), **options) as pool:
        weights = pool.alloc(16 * MIB)
        for _ in range(40):
            temporary = pool.alloc(4 * MIB)
            lose(pool)
            pool.free(temporary)
        with pytest.raises(cp.OutOfMemoryError) as caught:
            pool.alloc(20 * MIB)
        pool.free(weights)
    report = caught.value.report()
    assert [cause.kind for cause in report.causes] == ["small", "leak"]
    leak, lost = report.causes[1], report.holders[0]
    assert (leak.certainty, leak.nbytes) == ("possible", 40 * MIB)
    assert (lost.blocks, lost.requested) == (40, 40 * MIB)
    assert (lost.stack is not None) is stacks
    if stacks:
        assert lost.stack[0].startswith("lose (") and __file__ in lost.stack[0] and "lose (" in str(report)
    assert pickle.loads(pickle.dumps(caught.value)).report().holders == report.holders


def test_movable_blocks_of_a_recorded_pool(tmp_path):
    with cp.Pool("8MiB", device=cp.sim.Device("8MiB"), trace=tmp_path / "run.csv", stacks=True) as pool:
        kept = [pool.movable(MIB) for _ in range(4)]
        with pytest.raises(cp.OutOfMemoryError) as caught:
            pool.movable(16 * MIB)
        assert caught.value.report().holders[0].blocks == len(kept)
        del kept


def test_a_block_from_before_the_trace_is_its_holders():
    trace = Trace.from_events([("alloc", 1, 100, 3), ("free", 7, 5 * MIB, 2), ("alloc", 2, MIB, 3)])
    before, after = (evidence_of_trace(trace, moment, SETTINGS) for moment in (1, 3))
    assert [(one.requested, one.stream, one.oldest) for one in before.holders] == [(5 * MIB, 2, 3), (100, 3, 2)]
    assert [one.requested for one in after.holders] == [MIB, 100]
    assert before.peak_live == 5 * MIB + 100 == trace.peak_live


def test_a_stream_may_have_any_number():
    trace = Trace.from_events([("alloc", 1, 100, 2**64 - 2), ("alloc", 2, MIB, 2**63 + 7)])
    assert [one.stream for one in evidence_of_trace(trace, 2, SETTINGS).holders] == [2**63 + 7, 2**64 - 2]


def test_an_empty_history_tells_nothing():
    evidence = evidence_of(*columns((1, 0, 0, NEVER)), 0, 0, SETTINGS)
    assert (evidence.holders, evidence.leaks) == ((), ())


@pytest.mark.parametrize("seed", range(5))
def test_the_peak_is_that_of_the_trace(seed):
    rng = np.random.default_rng(seed)
    events, live = [], []
    for block in range(300):
        events.append(("alloc", block, int(rng.integers(0, 1 << 20)), int(rng.integers(3))))
        live.append(block)
        while live and rng.random() < 0.45:
            gone = live.pop(int(rng.integers(len(live))))
            events.append(("free", gone, 0, 0))
    trace = Trace.from_events(events)
    assert evidence_of_trace(trace, len(trace) // 2, SETTINGS).peak_live == trace.peak_live


def test_size_classes_are_an_eighth_apart():
    sizes = np.arange(1, 1 << 16)
    classes = bin_of(sizes)
    assert (np.diff(classes) >= 0).all()
    for one in np.unique(classes):
        members = sizes[classes == one]
        assert members.max() < members.min() * 9 / 8 + 1
