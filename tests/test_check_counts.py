"""tools/check_counts.py: what counts as worse, and what it does about it."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CALLS, SHARE, PAIR = "driver calls, static, x", "min capacity / peak live, malloc, x", "instructions, W1"


@pytest.fixture
def tool(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("check_counts", ROOT / "tools" / "check_counts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "COUNTS", tmp_path / "counts.json")
    return module


def run(tool, monkeypatch, traces, instructions, *arguments):
    monkeypatch.setattr(tool, "count_traces", lambda: traces)
    monkeypatch.setattr(tool, "count_instructions", lambda: instructions)
    monkeypatch.setattr("sys.argv", ["check_counts.py", *arguments])
    return tool.main()


@pytest.mark.parametrize("traces, instructions, code", [
    ({CALLS: 2, SHARE: 1.02}, {PAIR: 177.0}, 0),
    ({CALLS: 1, SHARE: 1.01}, {PAIR: 100.0}, 0),
    ({CALLS: 2, SHARE: 1.0219}, {PAIR: 194.0}, 0),
    ({CALLS: 3, SHARE: 1.02}, {PAIR: 177.0}, 1),
    ({CALLS: 2, SHARE: 1.0225}, {PAIR: 177.0}, 1),
    ({CALLS: 2, SHARE: 1.02}, {PAIR: 195.0}, 1),
    ({CALLS: 2, SHARE: 1.02}, {}, 0),
    ({CALLS: 2, SHARE: 1.02, "driver calls, static, new": 1}, {}, 1),
    ({CALLS: 2, SHARE: 1.02}, {"instructions, most live / fewest": 1.29}, 0),
    ({CALLS: 2, SHARE: 1.02}, {"instructions, most live / fewest": 1.31}, 1),
])
def test_what_is_worse(tool, monkeypatch, capsys, traces, instructions, code):
    assert run(tool, monkeypatch, {CALLS: 2, SHARE: 1.02}, {PAIR: 177.0}, "--update") == 0
    assert run(tool, monkeypatch, traces, instructions) == code
    assert ("WORSE" in capsys.readouterr().out) == bool(code)


def test_update_without_valgrind_keeps_the_instructions(tool, monkeypatch):
    run(tool, monkeypatch, {CALLS: 2}, {PAIR: 177.0}, "--update")
    run(tool, monkeypatch, {CALLS: 1}, {}, "--update")
    assert json.loads(tool.COUNTS.read_text()) == {CALLS: 1, PAIR: 177.0}


def test_instructions_are_skipped_visibly(tool, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tool.count_instructions() == {}
    assert "not checked, valgrind is not installed" in capsys.readouterr().out


@pytest.mark.untraced
def test_the_traces_are_as_they_were_counted(tool):
    known = json.loads((ROOT / "tools" / "counts.json").read_text())
    found = tool.count_traces()
    assert {key: number for key, number in found.items() if tool.is_worse(key, number, known[key])} == {}
    assert set(found) == {key for key in known if not key.startswith("instructions")}
