"""``cuda-pool bench``: rows, options, and what it says when something is not there."""

import json
from pathlib import Path

import pytest

from cuda_pool import _bench, _bench_count, _bench_table
from cuda_pool.cli import main
from cuda_pool.cli.bench import TRACES

from .models import optimised

EXAMPLES = str(Path(__file__).resolve().parents[1] / "examples")
KEYS = ["workload", "what", "ns", "spread", "instructions", "ratio_to_malloc", "ratio_to_empty"]
SMALL = ["--pairs", "50", "--rounds", "1", "--json", "-"]


def bench(capsys, *arguments):
    assert main(["bench", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def pairs_of(result):
    return [(row["workload"], row["what"]) for row in result["rows"]]


@pytest.mark.threads
def test_quick_has_every_workload(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = bench(capsys, "--quick", *SMALL)
    drawn = ["W1", "W2", "W3", "W4", "W6", "L2", "L3", "L4"]
    assert pairs_of(result) == [(name, what) for name in drawn for what in ("pool", "malloc", "empty")] + [
        ("Python", what) for what in _bench.CALLS]
    for row in result["rows"]:
        assert list(row) == KEYS and row["ns"] > 0 and row["spread"] == 0 and row["instructions"] is None
        assert (row["ratio_to_malloc"] is None) == (row["workload"] == "Python")
    assert result["counter"] is None and result["not_counted"] == "not with --quick" and result["live_ratio"] is None
    assert [skipped["workload"] for skipped in result["skipped"]] == list(TRACES)
    assert "--traces" in result["skipped"][0]["reason"]


def test_traces_are_found(capsys):
    result = bench(capsys, TRACES[1], "--quick", "--traces", "nowhere", EXAMPLES, *SMALL)
    assert pairs_of(result) == [(TRACES[1], what) for what in ("pool", "malloc", "empty")] and result["skipped"] == []


def test_tiers_and_debug(capsys):
    result = bench(capsys, "W1", "W3", "L2", "--quick", "--tiers", "--debug", *SMALL)
    assert [what for name, what in pairs_of(result)] == ["pool", "slab", "malloc", "empty", "pool", "mid", "malloc",
                                                         "empty", "pool", "malloc", "empty"]


def test_summary_says_what_is_missing(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "W1", TRACES[0], "--pairs", "50", "--rounds", "1"]) == 0
    out = capsys.readouterr().out
    assert "Instructions were not counted: perf is not installed, valgrind is not installed." in out
    assert f"{TRACES[0]}: skipped, no {TRACES[0]}.csv.gz in examples" in out and "W1 malloc" in out


def test_nothing_but_traces_that_are_missing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *TRACES]) == 2
    out, err = capsys.readouterr()
    assert out == "" and all(f"no {name}.csv.gz in examples: name its folder with --traces" in err for name in TRACES)


def test_counts_are_shown_beside_the_times(capsys, monkeypatch):
    """The counting itself is tested in test_bench_table."""
    def count(jobs, counter, settings):
        assert (counter, settings) == ("valgrind", {})
        return {(name, what): _bench_table.LIVE[name][2] for name, what in jobs if name in _bench_table.LIVE}

    monkeypatch.setattr(_bench_count, "find_counter", lambda: ("valgrind", None))
    monkeypatch.setattr(_bench_count, "count", count)
    result = bench(capsys, "L2", "L3", "W6", *SMALL)
    assert [row["instructions"] for row in result["rows"]] == [100] * 3 + [1000] * 3 + [None] * 3
    assert result["live_ratio"] == 10 and result["counter"] == "valgrind"
    assert main(["bench", "L2", "L3", "W6", *SMALL[:-2]]) == 0
    out = capsys.readouterr().out
    assert "100.0" in out and "10.00 times the least" in out and "two threads are not counted" in out


@optimised                      # a shell does not start with a sanitizer before it
def test_counter_that_fails_is_a_remark(capsys, monkeypatch, tmp_path):
    (tmp_path / "valgrind").write_text("#!/bin/sh\necho out of order >&2\nexit 1\n")
    (tmp_path / "valgrind").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = bench(capsys, "W1", *SMALL)
    assert result["counter"] is None and result["not_counted"] == "valgrind did not count: out of order"


@pytest.mark.parametrize("arguments, said", [(["W7"], "no workload is named 'W7'"), (["--pairs", "0"], "from 1 to"),
                                             (["--rounds", "many"], "from 1 to"), (["--pairs", "9" * 40], "from 1 to")])
def test_bad_arguments(capsys, arguments, said):
    assert main(["bench", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err
