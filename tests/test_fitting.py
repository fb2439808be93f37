"""The smallest capacity that serves a trace; with a lag in test_replay.py, the reasons in test_reasons.py."""

from pathlib import Path

import pytest

from cuda_pool import fitting
from cuda_pool.replay import GRID, Fit, FitResult, fit, replay
from cuda_pool.trace import Trace

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
MIB = 1 << 20


def blocks(*sizes):
    return [("alloc", index, size, 0) for index, size in enumerate(sizes)]


def test_replay_has_the_same_names():
    assert (GRID, Fit, FitResult, fit) == (fitting.GRID, fitting.Fit, fitting.FitResult, fitting.fit)


@pytest.mark.parametrize("name", ["resnet50_b64_train.csv.gz"])
def test_fit_finds_a_capacity_that_works_and_one_that_does_not(name):
    trace = Trace.read(EXAMPLES / name)
    result = fit(trace, search=False)
    assert result.best is None and result.tried == 1 and result.failed_row is None
    assert result.peak_live <= result.min_capacity < 2 * result.peak_live
    assert result.ratio == result.min_capacity / trace.peak_live
    assert replay(trace, capacity=result.min_capacity).failed_row is None
    below = result.min_capacity - result.resolution
    assert below < trace.peak_live or replay(trace, capacity=below).failed_row is not None
    assert replay(trace).settings == result.settings


def test_fit_searches_settings():
    trace = Trace.read(EXAMPLES / "resnet50_b64_train.csv.gz")
    seen = []
    result = fit(trace, progress=lambda done, total: seen.append((done, total)))
    assert result.tried == seen[-1][0] == seen[-1][1] > 10
    assert result.best.min_capacity <= result.min_capacity
    assert replay(trace, capacity=result.best.min_capacity, **result.best.settings).failed_row is None
    assert result.settings == fit(trace, search=False).settings


def test_fit_with_settings():
    trace = Trace.read(EXAMPLES / "resnet50_b64_train.csv.gz")
    result = fit(trace, settings={"mid_max": "1MiB", "slab_max": None})
    assert result.settings["mid_max"] == MIB and result.best is None
    assert replay(trace, capacity=result.min_capacity, mid_max=MIB).failed_row is None


def test_fit_of_one_block():
    result = fit(Trace.from_events(blocks(50 * MIB + 1)), search=False)
    assert 50 * MIB < result.min_capacity <= 52 * MIB


def test_fit_counts_preexisting_blocks():
    result = fit(Trace.from_events([*blocks(10 * MIB), ("free", 9, 10 * MIB, 0)]), search=False)
    assert result.min_capacity >= 20 * MIB


def test_fit_of_no_events():
    result = fit(Trace.from_events([]))
    assert result.failed_row is None and result.ratio is None and result.min_capacity <= 2 * MIB


def test_fit_of_what_no_pool_can_hold():
    result = fit(Trace.from_events(blocks(100, 2**40)), search=False)
    assert (result.min_capacity, result.ratio, result.failed_row) == (None, None, 3)
    assert fit(Trace.from_events(blocks(100, 2**40))).best is None


def test_fit_near_what_a_pool_can_hold():
    result = fit(Trace.from_events(blocks(511 << 30)), search=False)
    assert result.failed_row is None and 511 << 30 <= result.min_capacity <= 512 << 30


def test_fit_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="slab_max, mid_max, min_block"):
        fit(Trace.from_events([]), settings={"slabs": 4})
    with pytest.raises(ValueError):
        fit(Trace.from_events([]), backing="paper")
    with pytest.raises(TypeError, match="settings is a dict with any of slab_max, mid_max, min_block; got"):
        fit(Trace.from_events([]), settings=["mid_max"])
