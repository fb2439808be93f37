"""What the documentation shows is what the package does: code, invariants, options, names and figures."""

import argparse
import ast
import doctest
import importlib.util
import json
import re
from pathlib import Path

import pytest

import cuda_pool
from cuda_pool import cli, replay, settings, sim, trace
from cuda_pool.map import svg_of
from cuda_pool.sizes import parse_size

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
DECLARATIONS = ROOT / "cuda_pool"
REFERENCE = "".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
CODE = re.compile(r"^(?:<!-- needs: (?P<needs>\w+) -->\n)?```python\n(?P<code>.*?)^```$", re.M | re.S)
QUOTED = re.compile(r"^<!-- invariants: (\w+\.pxd) -->\n```cython\n(.*?)^```$", re.M | re.S)
OPTION = re.compile(r"^\| `(--?[\w-]+)[^|]*?(?:`, `(--[\w-]+)`)?")
IMAGE = re.compile(r"!\[[^]]*\]\(([^)]+)\)")


def pages(pattern):
    """Return the pages with something that a pattern finds, the README among them."""
    found = [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))]
    return [path for path in found if pattern.search(path.read_text())]


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def page_with_code(path):
    marks = [pytest.mark.threads] if "threading" in path.read_text() else []
    return pytest.param(path, id=name_of(path), marks=marks)


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Text

@pytest.mark.parametrize("path", [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")),
                                  *sorted((ROOT / "tests").glob("*.md"))], ids=name_of)
def test_no_placeholder_is_left(path):
    assert re.findall(r"@\w+@", path.read_text()) == []


# Code

def run_block(code, line, path, names):
    """Run a block of a page: one with prompts must print what it shows, any other must run."""
    if ">>>" not in code:
        exec(compile("\n" * line + code, path, "exec"), names)
        return []
    report = []
    test = doctest.DocTestParser().get_doctest(code, {}, path.name, str(path), line)
    test.globs = names                      # not a copy, which would keep alive what a block deletes
    doctest.DocTestRunner(verbose=False).run(test, out=report.append, clear_globs=False)
    return report


@pytest.mark.parametrize("path", [page_with_code(path) for path in pages(CODE)])
def test_code_runs(path, tmp_path, monkeypatch):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    text, names, missing = path.read_text(), {"__name__": "__main__"}, []
    for block in CODE.finditer(text):
        if block["needs"] and importlib.util.find_spec(block["needs"]) is None:
            missing.append(block["needs"])
            continue
        report = run_block(block["code"], text[:block.start("code")].count("\n"), path, names)
        assert not report, "".join(report)
    if missing:
        pytest.skip(f"all but the code that needs {' and '.join(missing)}")


def test_a_block_that_shows_something_else_is_found():
    assert run_block(">>> 1 + 1\n3\n", 0, Path("page.md"), {})


def test_the_guide_has_code():
    covered = {name_of(path) for path in pages(CODE)}
    assert {"README.md", "docs/guide/first_pool.md", "docs/guide/threads.md"} <= covered


# Streams

def test_the_contract_names_tests_that_exist():
    defined = "".join((ROOT / "tests" / f"test_{name}.py").read_text()
                      for name in ("cases_streams", "capture", "stream_programs"))
    named = re.findall(r"`(test_\w+)`", (DOCS / "guide" / "streams.md").read_text())
    assert len(named) > 50
    assert [name for name in named if f"\ndef {name}(" not in defined] == []


# Invariants

@pytest.mark.parametrize("path", pages(QUOTED), ids=name_of)
def test_quoted_invariants_are_those_of_the_declarations(path):
    for declaration, quotation in QUOTED.findall(path.read_text()):
        assert "\n" + quotation in (DECLARATIONS / declaration).read_text(), f"{declaration} has no such lines"


@pytest.mark.parametrize("path", sorted(DECLARATIONS.glob("*.pxd")), ids=lambda path: path.name)
def test_every_invariant_is_quoted(path):
    quoted = "".join(text for page in pages(QUOTED) for name, text in QUOTED.findall(page.read_text())
                     if name == path.name)
    for block in re.findall(r"(?:^#.*\n)*^# Invariants, .*\n(?:^#.*\n)*", path.read_text(), re.M):
        assert block in quoted


# Command line

def parsers():
    """Return {command: parser}; the empty command is the program itself."""
    top = cli._parser()
    commands = next(action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    return {"": top, **commands.choices}


def sections():
    """Return {command: its part of the page}; what precedes the first is the program's."""
    first, *parts = re.split(r"^## `cuda-pool (\w+)[^\n]*\n", (DOCS / "reference" / "cli.md").read_text(), flags=re.M)
    return {"": first, **dict(zip(parts[::2], parts[1::2]))}


def test_every_command_has_a_section():
    assert parsers().keys() == sections().keys()


@pytest.mark.parametrize("command", list(parsers()))
def test_the_page_names_every_option(command):
    accepted = {name for action in parsers()[command]._actions for name in action.option_strings}
    if command:
        accepted -= {"-h", "--help"}        # shown once, for all
    assert options_shown(sections()[command]) == accepted


def options_shown(section):
    return {name for line in section.splitlines() if (row := OPTION.match(line)) for name in row.groups() if name}


@pytest.mark.parametrize("command", ["replay", "fit"])
def test_the_page_shows_the_defaults(command):
    for option, default in ("slab-max", settings.SLAB_MAX), ("mid-max", settings.MID_MAX), \
            ("min-block", settings.MIN_BLOCK):
        row = next(line for line in sections()[command].splitlines() if line.startswith(f"| `--{option} "))
        assert parse_size(row.split("|")[2]) == default


def test_the_page_names_the_keys_of_info(capsys):
    assert cli.main(["info", "--json", "-"]) == 0
    listed = re.search(r"^Keys: (.*)\.$", sections()["info"], re.M)[1]
    assert set(re.findall(r"`(\w+)`", listed)) == json.loads(capsys.readouterr().out).keys()


# Reference

@pytest.mark.parametrize("module", [cuda_pool, sim, trace, replay], ids=lambda module: module.__name__)
def test_every_public_name_has_a_place(module):
    documented = set(re.findall(r"^\.\. (?:auto\w+|data):: ([\w.]+)", REFERENCE, re.M))
    last = {name.rpartition(".")[2] for name in documented}
    assert set(module.__all__) - {"sim", "capi"} <= last


@pytest.mark.parametrize("stub, name", [("_api", "Pool"), ("_sim", "Device")])
def test_signatures_are_those_of_the_stubs(stub, name):
    tree = ast.parse((DECLARATIONS / f"{stub}.pyi").read_text())
    owner = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    arguments = next(node.args for node in owner.body if getattr(node, "name", "") == "__init__")
    arguments.args = arguments.args[1:]
    for argument in (*arguments.args, *arguments.kwonlyargs):
        argument.annotation = None
    shown = re.search(rf"^\.\. autoclass:: [\w.]+\.{name}\((.+)\)$", REFERENCE, re.M)[1]
    assert shown == ast.unparse(arguments)


def test_the_cython_page_names_what_is_declared():
    page = (DOCS / "reference" / "cython.md").read_text()
    declared = "".join((DECLARATIONS / f"{name}.pxd").read_text() for name in ("_calls", "_pool_stream", "_pool"))
    named = {name for name in re.findall(r"\bpool_\w+(?=[`(])", page) if not name.endswith("_t")}
    assert named and all(f" {name}(" in declared for name in named)
    statuses = re.findall(r"^    (STATUS_(?!\w+_SHIFT)\w+) = \d+", (DECLARATIONS / "_status.pxd").read_text(), re.M)
    assert set(re.findall(r"^\| `(STATUS_\w+)`", page, re.M)) == set(statuses)


HEADER = (DECLARATIONS / "include" / "cuda_pool.h").read_text()


def test_the_c_page_names_what_is_declared():
    page = (DOCS / "reference" / "capi.md").read_text()
    functions = set(re.findall(r"^static inline [\w ]+[ *](\w+)\(", HEADER, re.M))
    assert len(functions) == 17
    assert set(re.findall(r"^\| `(\w+)\(", page, re.M)) == functions | {"import_cuda_pool", "cuda_pool_from_object"}
    statuses = re.findall(r"^    (CUDA_POOL_\w+) = (\d+)", HEADER, re.M)
    assert re.findall(r"^\| `(CUDA_POOL_\w+)` \| (\d+) \|", page, re.M) == statuses


def test_the_embedding_pages_include_every_program():
    text = "".join(path.read_text() for path in (DOCS / "embedding").glob("*.md"))
    included = {(DOCS / "embedding" / path).resolve() for path in re.findall(r"^```{literalinclude} (.+)$", text, re.M)}
    programs = {path for path in (ROOT / "tests" / "embed").rglob("*.*") if path.parent.name != "probe"}
    assert included == programs


# Figures

@pytest.mark.parametrize("path", pages(IMAGE), ids=name_of)
def test_images_exist(path):
    assert all((path.parent / image).is_file() for image in IMAGE.findall(path.read_text()))


@pytest.mark.parametrize("name", list(load(DOCS / "figures.py").FIGURES))
def test_figures_are_what_the_script_draws(name, tmp_path):
    load(DOCS / "figures.py").FIGURES[name]().save(tmp_path / "drawn.svg")
    assert (tmp_path / "drawn.svg").read_text() == (DOCS / "images" / f"{name}.svg").read_text()


def test_the_map_is_what_the_tool_draws():
    tool = load(ROOT / "tools" / "draw_map_pictures.py")
    assert svg_of(tool.still(tool.PEAK), "age") == (DOCS / "images" / "map.svg").read_text()


def test_the_first_picture_is_what_the_tool_draws(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["draw_readme_picture.py", "--out", str(tmp_path / "drawn.svg")])
    load(ROOT / "tools" / "draw_readme_picture.py").main()
    assert (tmp_path / "drawn.svg").read_text() == (DOCS / "images" / "fragmentation.svg").read_text()


def test_scan_finds_the_capacity_that_is_safe():
    one = trace.Trace.from_events([("alloc", 0, 64 << 20, 0), ("free", 0, 0, 0)])
    assert load(DOCS / "scan.py").smallest_safe(one) == 1.0
