"""Every shared trace and snapshot through every command that reads one, with totals that are counted here anew."""

import csv
import functools
import gzip
import json
import pickle
from pathlib import Path

import pytest

from cuda_pool.cli import main
from cuda_pool.compare import POOLS
from cuda_pool.peers import POLICIES, PyTorch, play
from cuda_pool.trace import read_trace

from .models import OPTIMISED

ROOT = Path(__file__).resolve().parents[2] / "shared"
LENGTH_MAX = 1 << 30 if OPTIMISED else 40_000       # bytes: an instrumented build takes an hour for all of them
FILES = [pytest.param(path, id=path.name.partition(".")[0])
         for path in sorted([*ROOT.glob("traces/*.csv.gz"), *ROOT.glob("snapshots/*.pickle")])
         if path.stat().st_size <= LENGTH_MAX]
pytestmark = [pytest.mark.untraced, pytest.mark.skipif(not FILES, reason=f"no {Path('..', 'shared')}")]
EACH_FILE = pytest.mark.parametrize("path", FILES or [None])


class Told:
    """What a file says, counted without the package: events, highest and last sum of live bytes, and blocks at the end.

    Attributes
    ----------
    events, peak, left, blocks : int
        Blocks of 0 bytes are not counted.
    device : int or None
        Of a snapshot, with most entries.
    """

    def __init__(self, path):
        steps, self.left, self.blocks, self.device = (of_csv if path.suffix == ".gz" else of_snapshot)(path)
        live = self.left
        self.events, self.peak = len(steps), live
        for step in reversed(steps):        # back from the end, where a snapshot says what is live
            live -= step
            self.peak = max(self.peak, live)


def of_csv(path):
    with gzip.open(path, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    sizes = {row["id"]: int(row["size"]) for row in rows if row["event"] == "alloc"}
    steps = [sizes[row["id"]] * (1 if row["event"] == "alloc" else -1) for row in rows]
    freed = {row["id"] for row in rows if row["event"] == "free"}
    return steps, sum(steps), sum(size > 0 and ident not in freed for ident, size in sizes.items()), None


def of_snapshot(path):
    found = pickle.loads(path.read_bytes())
    found = found if isinstance(found, dict) else {"segments": found, "device_traces": []}
    segments, traces = found["segments"], found["device_traces"]
    if any(traces):
        device = max(range(len(traces)), key=lambda number: len(traces[number]))
    else:
        device = segments[0]["device"]
    entries = traces[device] if any(traces) else []
    steps, pending = [], set()
    for entry in entries:
        if entry["action"] == "alloc":
            steps.append(entry["size"])
        elif entry["action"] == "free_requested":
            steps.append(-entry["size"])
            pending.add(entry["addr"])
        elif entry["action"] == "free_completed":
            if entry["addr"] in pending:
                pending.discard(entry["addr"])
            else:
                steps.append(-entry["size"])
    active = [block for segment in segments if segment["device"] == device for block in segment["blocks"]
              if block["state"] != "inactive"]
    return steps, sum(block["requested_size"] for block in active), len(active), device


@functools.cache
def told(path):
    """What a file says, which is counted once."""
    return Told(path)


@pytest.fixture
def values_of(capsys, tmp_path):
    """Function from arguments to the values of ``--json``; the command must succeed and say nothing on stderr."""

    def run(*arguments):
        assert main([*map(str, arguments), "--json", str(tmp_path / "out.json")]) == 0
        assert capsys.readouterr().err == ""
        return json.loads((tmp_path / "out.json").read_text())

    return run


@EACH_FILE
@pytest.mark.parametrize("backing", ["malloc", "virtual"])
def test_replay(values_of, tmp_path, path, backing):
    values, expected = values_of("replay", path, "--backing", backing, "--map", tmp_path / "film.html"), told(path)
    assert (values["events"], values["trace_device"]) == (expected.events, expected.device)
    assert values["peak_live"] == values["peak_requested"] == expected.peak
    assert expected.peak <= values["peak_used"] <= values["peak_reserved"] <= values["capacity"]
    assert values["failed_row"] is None and values["races"] == values["misuses"] == 0


@EACH_FILE
def test_fit(values_of, path):
    values, expected = values_of("fit", path), told(path)
    assert values["peak_live"] == expected.peak <= values["best"]["min_capacity"] <= values["min_capacity"]
    assert values["ratio"] == values["min_capacity"] / expected.peak < 1.5
    again = values_of("replay", path, "--capacity", values["min_capacity"])
    assert again["failed_row"] is None and again["peak_requested"] == expected.peak


@EACH_FILE
def test_compare(values_of, path):
    values, expected = values_of("compare", path), told(path)
    assert [row["policy"] for row in values["rows"]] == [*POOLS, *POLICIES]
    assert (values["traces"][0]["events"], values["traces"][0]["peak_live"]) == (expected.events, expected.peak)
    for row in values["rows"]:
        assert row["peak_reserved"] >= expected.peak and row["ratio"] == row["peak_reserved"] / expected.peak


@EACH_FILE
def test_map(values_of, tmp_path, path):
    values = values_of("map", "--trace", path, "--at", "end", "--out", tmp_path / "map.svg")
    expected = told(path)
    assert (values["at"], values["live"], values["blocks"]) == (expected.events, expected.left, expected.blocks)
    assert values["live"] <= values["used"] <= values["reserved"] and values["failed_row"] is None
    peak = values_of("map", "--trace", path, "--out", tmp_path / "map.svg")
    assert (peak["moment"], peak["live"], peak["failed_row"]) == ("peak", expected.peak, None)


@EACH_FILE
@pytest.mark.parametrize("middle", ["a.csv", "a.pickle", "a.log"])
def test_convert_there_and_back(values_of, tmp_path, path, middle):
    there = values_of("convert", path, tmp_path / middle)
    back = values_of("convert", tmp_path / middle, tmp_path / "back.csv")
    one, other, expected = read_trace(path), read_trace(tmp_path / "back.csv"), told(path)
    assert there["events"] == expected.events and there["peak_live"] == back["peak_live"] == expected.peak
    added = len(one.live) if middle == "a.log" else 0           # a log begins with nothing live
    for name in "is_free", "size", "stream":
        assert getattr(other, name)[added:].tolist() == getattr(one, name).tolist(), name
    assert numbered(other.block[added:]) == numbered(one.block)
    assert (added > 0) == bool(there["lost"])
    assert sorted(other.size[:added].tolist()) == sorted(one.live["size"].tolist()[:added])


def numbered(blocks):
    """Return numbers of blocks in the order in which they are met."""
    names = {}
    return [names.setdefault(block, len(names)) for block in blocks.tolist()]


def test_the_peaks_of_a_whole_step_are_those_of_pytorch(shared_path, values_of):
    """Its file has all entries, so they add up to what PyTorch says of its segments."""
    path = shared_path("snapshots", "train_step_amp.pickle")
    found = pickle.loads(path.read_bytes())
    own = {name: sum(segment[name] for segment in found["segments"])
           for name in ("total_size", "allocated_size", "requested_size")}
    trace, entries = read_trace(path), found["device_traces"][0]
    live = peak = 0
    for entry in entries:
        live += {"alloc": entry["size"], "free_requested": -entry["size"]}.get(entry["action"], 0)
        peak = max(peak, live)
    assert live == own["requested_size"] and peak == trace.peak_live
    assert values_of("replay", path)["peak_requested"] == peak
    reserved = sum(entry["size"] for entry in entries if entry["action"] == "segment_alloc")
    rows = {row["policy"]: row["peak_reserved"] for row in values_of("compare", path)["rows"]}
    assert rows["pytorch"] == own["total_size"] == reserved
    assert sum(size for _, size in play(trace, PyTorch()).live.values()) == own["allocated_size"]
    assert max(rows["cuda_pool_malloc"], rows["cuda_pool_virtual"]) < reserved
