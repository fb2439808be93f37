"""Why a trace needs the capacity that fit() finds: the figures are those of replays."""

from pathlib import Path

import pytest

from cuda_pool.replay import fit, replay
from cuda_pool.trace import Trace

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
MIB = 1 << 20


@pytest.fixture(scope="module")
def training():
    return Trace.read(EXAMPLES / "resnet50_b64_train.csv.gz")


def thirty_three():
    """Tensors of 33 MiB that come and go beside small ones that stay."""
    events, live = [], []
    for at in range(40):
        events += [("alloc", 2 * at, 33 * MIB, 0), ("alloc", 2 * at + 1, 3 * MIB, 0)]
        live.append(2 * at)
        if len(live) > 6:
            gone = live.pop(at % 5)
            events.append(("free", gone, 33 * MIB, 0))
    return Trace.from_events(events)


def assert_true(result, trace, given=None):
    """Repeat the replays and the bisections that a result quotes."""
    tightest = result.tightest
    failed = replay(trace, capacity=tightest.capacity, **result.settings)
    assert tightest.capacity == result.min_capacity - result.resolution
    assert failed.failed_row == tightest.row
    assert failed.failure == {"requested": tightest.requested, "free": tightest.free, "reserved": tightest.capacity,
                              "largest_free": tightest.largest_free, "capacity": tightest.capacity}
    assert sum(waste.requested for waste in tightest.waste) == tightest.live
    assert sum(waste.requested + waste.rounding for waste in tightest.waste) == tightest.used
    for change in result.changes:
        settings = {**(given or {}), **change.options}
        backing = settings.pop("backing", "malloc")
        found = fit(trace, backing=backing, settings=settings, search=False, reasons=False)
        assert found.min_capacity == change.min_capacity
        assert change.saves == result.min_capacity - change.min_capacity
        assert change.setting in change.text


def test_the_figures_are_those_of_replays(training):
    result = fit(training)
    assert_true(result, training)
    assert sum(waste.free for waste in result.tightest.waste) == result.tightest.free
    assert {change.setting for change in result.changes} >= {'backing="virtual"'}
    saves = [change.saves for change in result.changes]
    assert saves == sorted(saves, reverse=True)


def test_what_a_limit_between_tiers_costs():
    trace = thirty_three()
    result = fit(trace, settings={"mid_max": MIB})
    assert_true(result, trace, {"mid_max": MIB})
    assert result.best is None, "settings were given, so nothing was searched"
    [limit] = [change for change in result.changes if "mid_max" in change.options]
    assert limit.options == {"mid_max": 1 << 30} and limit.saves > 0
    assert limit.min_capacity == fit(trace, search=False).min_capacity
    assert 'mid_max="1GiB" saves' in limit.text and "of 33.00 MiB" in limit.text
    assert "go to the mid tier instead of the buddy tier" in limit.text and limit.text in result.reasons
    [waste] = [waste for waste in result.tightest.waste if waste.tier == "buddy"]
    assert waste.sizes[0].largest == 33 * MIB
    [said] = [reason for reason in result.reasons if "in the buddy tier at that moment" in reason]
    assert f"waste {waste.share:.0%}" in said and "33.00 MiB" in said
    assert waste.share == (waste.rounding + waste.free) / (waste.requested + waste.rounding + waste.free)


def test_rounding_is_told():
    trace = Trace.from_events([("alloc", at, 8192, 0) for at in range(1000)])
    result = fit(trace, settings={"slab_max": 0, "mid_max": 1024})
    assert_true(result, trace, {"slab_max": 0, "mid_max": 1024})
    assert "for rounding" in result.reasons[0]
    [waste] = result.tightest.waste
    assert waste.tier == "buddy" and waste.rounding >= 6 * waste.requested


def test_nothing_needs_less_than_the_peak():
    result = fit(Trace.from_events([("alloc", 0, 50 * MIB, 0)]))
    assert result.tightest is None
    assert result.reasons[0] == "50.00 MiB are the peak of live bytes: no setting could need less"
    assert not any(change.saves > 0 for change in result.changes)


def test_a_search_in_vain_is_told():
    result = fit(Trace.from_events([("alloc", 0, 50 * MIB, 0)]))
    assert result.best.min_capacity == result.min_capacity
    assert any("that was tried needs less" in reason for reason in result.reasons)


def test_without_reasons(training):
    without, plain = (fit(training, search=False, reasons=reasons) for reasons in (False, True))
    assert (without.reasons, without.tightest, without.changes) == ([], None, ())
    assert plain.reasons and plain.changes == () and plain.replays == without.replays + 1


def test_no_reasons_where_no_capacity_serves():
    result = fit(Trace.from_events([("alloc", 0, 100, 0), ("alloc", 1, 2**40, 0)]))
    assert result.min_capacity is None and result.reasons == []


def test_free_memory_is_in_no_tier_where_pages_move():
    trace = thirty_three()
    result = fit(trace, backing="virtual", search=False)
    assert all(waste.free is None for waste in result.tightest.waste) if result.tightest else result.reasons


def test_keys_are_plain_values(training):
    values = fit(training, search=False).as_dict()
    assert isinstance(values["reasons"], list) and all(isinstance(reason, str) for reason in values["reasons"])
    assert set(values["tightest"]["waste"][0]) == {"tier", "blocks", "requested", "rounding", "free", "share", "sizes"}


def test_less_than_the_resolution_is_no_saving():
    # 25 KiB of rounding cost a step of 1 MiB here, and pages half of one; a pool that is tried in between would do.
    sizes = [127 * MIB] * 32 + [33 * MIB + MIB // 2 - 10_000] + [100] * 100
    trace = Trace.from_events([("alloc", at, nbytes, 0) for at, nbytes in enumerate(sizes)])
    result = fit(trace)
    [virtual] = [change for change in result.changes if change.setting == 'backing="virtual"']
    assert 0 < virtual.saves < result.resolution
    assert "saves less than" in virtual.text and virtual.text not in result.reasons
    assert replay(trace, capacity=virtual.min_capacity).failed_row is None


def test_one_setting_is_not_several():
    """One of those that differ does it alone: nothing is said of all together."""
    blocks = range(6000)
    trace = Trace.from_events([(event, block, 9217, 0) for event in ("alloc", "free") for block in blocks])
    result = fit(trace, backing="virtual")
    [change] = [change for change in result.changes if change.min_capacity == result.best.min_capacity]
    assert change.options == {"slab_max": 0} and change.saves == 4 * MIB
    assert result.reasons[-1] == change.text and not any("together" in reason for reason in result.reasons)


def test_blocks_above_the_grid_go_to_the_mid_tier_too():
    events, live = [], []
    for at in range(60):
        events += [("alloc", 2 * at, 5060 * MIB, 0), ("alloc", 2 * at + 1, 127 * MIB, 0)]
        live.append(2 * at)
        if len(live) > 6:
            events.append(("free", live.pop(at % 5), 5060 * MIB, 0))
    trace = Trace.from_events(events)
    result = fit(trace)
    assert result.best.settings["mid_max"] == 8192 * MIB and result.best.ratio < 1.1 < result.ratio


def test_a_peak_that_is_rounded_up_is_told_as_such():
    trace = Trace.from_events([("alloc", 0, 10, 0)])
    assert fit(trace, search=False).reasons[0] == (
        "256 B are the peak of live bytes of 10 B, rounded up: no setting could need less")
    assert fit(trace, search=False, backing="virtual").reasons[0].startswith(
        "2.00 MiB are the peak of live bytes of 10 B, rounded up")
