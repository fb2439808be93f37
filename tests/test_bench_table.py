"""The rows of bench: every workload's runs, their ratios and spread, and instructions where they can be counted."""

import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_pool import _bench, _bench_count, _bench_table

from .models import OPTIMISED

ROOT = Path(__file__).resolve().parents[1]
TRACE = str(ROOT / "examples" / "llama_serve_growing_kv.csv.gz")


class Numbers:
    """Runs that take what they are told."""

    def __init__(self, *numbers):
        self.numbers = [0, *numbers]        # the first is not counted

    def run(self):
        return self.numbers.pop(0)


def test_rows_of_runs():
    runs = {"pool": Numbers(4, 8, 6), "malloc": Numbers(3, 12, 12), "empty": Numbers(1, 2, 3)}
    rows = _bench_table.time_workload("W1", runs, 3, {"pool": 100.5}, "label")
    assert [row.as_dict() for row in rows] == [
        {"workload": "label", "what": "pool", "ns": 6, "spread": 2, "instructions": 100.5, "ratio_to_malloc": 0.5,
         "ratio_to_empty": 3},
        {"workload": "label", "what": "malloc", "ns": 12, "spread": 4.5, "instructions": None, "ratio_to_malloc": 1,
         "ratio_to_empty": 6},
        {"workload": "label", "what": "empty", "ns": 2, "spread": 1, "instructions": None,
         "ratio_to_malloc": pytest.approx(1 / 6), "ratio_to_empty": 1}]


def test_one_round_has_no_spread():
    runs = {what: Numbers(2) for what in ("pool", "malloc", "empty")}
    assert {row.spread for row in _bench_table.time_workload("W1", runs, 1)} == {0}


@pytest.mark.parametrize("name", [*_bench.WORKLOADS, "L2", "L3", TRACE])
def test_runs_of_a_workload(name):
    runs = _bench_table.make_runs(name, ["pool", "malloc", "empty"], 500)
    rows = _bench_table.time_workload(name, runs, 2)
    assert [row.what for row in rows] == ["pool", "malloc", "empty"] and min(row.ns for row in rows) > 0
    runs["pool"].pool.check()


@pytest.mark.threads
def test_threads_are_at_work_at_once():
    runs = _bench_table.make_runs("W6", ["pool", "malloc", "empty"], 500)
    first, second = runs["pool"].loops
    assert first.pool is second.pool and first.pool.stats().alloc_count == 2 * (500 + first.workload.live)
    assert min(row.ns for row in _bench_table.time_workload("W6", runs, 2)) > 0
    first.pool.check()


def test_rows_of_calls_from_python():
    rows = _bench_table.time_workload("Python", _bench_table.make_runs("Python", list(_bench.CALLS)), 3)
    by_what = {row.what: row for row in rows}
    assert list(by_what) == list(_bench.CALLS)
    assert by_what["empty one"].ratio_to_empty == 1 and {row.ratio_to_malloc for row in rows} == {None}


def test_growth_is_by_tens():
    assert [_bench_table.make_work(name, 10).live for name in _bench_table.LIVE] == [100, 1000, 10**4, 10**5, 10**6]


needs_valgrind = pytest.mark.skipif(shutil.which("valgrind") is None or not OPTIMISED,
                                    reason="valgrind is not installed, or the build is instrumented")


@needs_valgrind
@pytest.mark.slow
@pytest.mark.untraced
def test_instructions_by_valgrind():
    """A loop around two empty calls is some instructions; two runs count the same."""
    jobs = [("W1", "empty"), ("W1", "pool"), (TRACE, "empty"), ("Python", "empty one"), ("W1", "empty")]
    counts = _bench_count.count(jobs, "valgrind")
    assert list(counts) == jobs[:-1]
    assert 8 < counts["W1", "empty"] < 40 < counts["W1", "pool"] < 1000
    assert counts["W1", "empty"] < counts[TRACE, "empty"] < 80
    assert 300 < counts["Python", "empty one"] < 2000


@needs_valgrind
def test_counter_that_fails(monkeypatch):
    monkeypatch.setattr(_bench_count, "VALGRIND", ("valgrind", "--no-such-option"))
    with pytest.raises(RuntimeError, match="valgrind did not count: .*--no-such-option"):
        _bench_count.count([("W1", "empty")], "valgrind")


def test_counter_says_why_there_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _bench_count.find_counter() == (None, "perf is not installed, valgrind is not installed")


def test_peers(tmp_path):
    """Without their header and library the peers are left out, and said so."""
    done = subprocess.run([sys.executable, ROOT / "tools" / "bench_peers.py", "W1", "--no-count", "--rounds", "1",
                           "--include", tmp_path, "--json", tmp_path / "rows.json"], capture_output=True, text=True,
                          cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    whats = [row["what"] for row in rows]
    for peer in ("mimalloc", "vma"):
        assert (peer in whats) != (f"{peer}: skipped, " in done.stdout)
    assert [what for what in whats if what not in ("mimalloc", "vma")] == ["pool", "malloc", "empty"]
    assert statistics.median(row["ns"] for row in rows) > 0
