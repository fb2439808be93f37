"""setup.py rebuilds exactly the modules that a changed file touches; tried on a package of four small modules."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[1] / "setup.py"

# user cimports base; far knows of base only through user.pxd; apart uses none of them.
TREE = {
    "cuda_pool/__init__.py": "",
    "cuda_pool/_base.pxd": "cdef enum:\n    NUMBER = 1\n",
    "cuda_pool/_user.pxd": "from cuda_pool._base cimport NUMBER\n\ncdef enum:\n    NEXT = NUMBER + 1\n",
    "cuda_pool/_far.pxd": "cdef enum:\n    OWN = 10\n",
    "cuda_pool/_apart.pxd": "cdef enum:\n    LONE = 0\n",
    "pyx/_base.pyx": "value = NUMBER\n",
    "pyx/_user.pyx": "value = NEXT\n",
    "pyx/_far.pyx": "from cuda_pool._user cimport NEXT\n\nvalue = NEXT + OWN\n",
    "pyx/_apart.pyx": "value = LONE\n",
}
ALL = {"_base", "_user", "_far", "_apart"}

pytestmark = pytest.mark.slow


def build(tree, **environment):
    environment = {"CUDA_POOL_BUILD": "release", "CFLAGS": "-O0", **environment}
    return subprocess.run([sys.executable, "setup.py", "build_ext"], cwd=tree, capture_output=True, text=True,
                          timeout=300, env={**os.environ, **environment})


def outputs(tree):
    """Shared objects by module name."""
    return {path.name.split(".")[0]: path for path in Path(tree, "build", "release").rglob("_*.so")}


def rebuilt(tree):
    """Build, and return the names of the modules whose shared object was written."""
    before = {name: path.stat().st_mtime_ns for name, path in outputs(tree).items()}
    done = build(tree)
    assert done.returncode == 0, done.stdout + done.stderr
    return {name for name, path in outputs(tree).items() if before.get(name) != path.stat().st_mtime_ns}


def values(tree):
    """What each module computed from its declarations, as a fresh interpreter sees it."""
    folder = next(iter(outputs(tree).values())).parent
    code = f"import {', '.join(sorted(ALL))}; print({', '.join(f'{name}.value' for name in sorted(ALL))})"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return dict(zip(sorted(ALL), map(int, done.stdout.split())))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    tree = tmp_path_factory.mktemp("built")
    shutil.copy(SETUP, tree)
    for name, text in TREE.items():
        path = tree / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert rebuilt(tree) == ALL
    assert values(tree) == {"_base": 1, "_user": 2, "_far": 12, "_apart": 0}
    return tree


@pytest.fixture
def tree(built, tmp_path):
    """A copy of the built tree, times of the files included."""
    return Path(shutil.copytree(built, tmp_path / "tree"))


def test_nothing_changed_nothing_rebuilt(tree):
    assert rebuilt(tree) == set()


def test_a_changed_pxd_rebuilds_its_own_module_and_its_users(tree):
    (tree / "cuda_pool/_base.pxd").write_text("cdef enum:\n    NUMBER = 5\n")
    assert rebuilt(tree) == {"_base", "_user", "_far"}
    assert values(tree) == {"_base": 5, "_user": 6, "_far": 16, "_apart": 0}
    assert rebuilt(tree) == set()


def test_a_pxd_that_only_its_own_module_uses(tree):
    (tree / "cuda_pool/_far.pxd").write_text("cdef enum:\n    OWN = 20\n")
    assert rebuilt(tree) == {"_far"}
    assert values(tree)["_far"] == 22


def test_a_changed_pyx_rebuilds_one_module(tree):
    (tree / "pyx/_base.pyx").write_text("value = NUMBER + 100\n")
    assert rebuilt(tree) == {"_base"}
    assert values(tree)["_base"] == 101


def test_a_touched_setup_rebuilds_everything(tree):
    os.utime(tree / "setup.py")
    assert rebuilt(tree) == ALL


def test_an_unknown_kind_of_build_is_refused(tree):
    done = build(tree, CUDA_POOL_BUILD="fast")
    assert done.returncode != 0
    assert "CUDA_POOL_BUILD is one of release, linetrace, thread, sanitize; got 'fast'" in done.stderr
    assert rebuilt(tree) == set()
