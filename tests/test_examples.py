"""The examples run and build against the installed package, and the README shows them as they are."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_pool import OutOfMemoryError, Pool, format_size, get_include, sim
from cuda_pool.settings import MID_MAX, MIN_BLOCK, SLAB_MAX

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """The Cython example, built away from the source tree, so that only the installed declarations are found."""
    folder = tmp_path_factory.mktemp("pairs")
    shutil.copy(EXAMPLES / "pairs.pyx", folder)
    command = [sys.executable, "-m", "Cython.Build.Cythonize", "--inplace", "pairs.pyx"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "CFLAGS": f"-I{get_include()}"})
    assert done.returncode == 0, done.stdout + done.stderr
    spec = importlib.util.spec_from_file_location("pairs", next(folder.glob("pairs.*.so")))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pairs


def test_quickstart_runs(run_python):
    done = run_python(f"import runpy; runpy.run_path({str(EXAMPLES / 'quickstart.py')!r})")
    assert done.returncode == 0, done.stderr
    owner, failure, totals = done.stdout.splitlines()
    assert owner.startswith("<cuda_pool.Buffer of 64.00 KiB at 0x") and owner.endswith("> 0")
    assert failure.startswith("out of memory: requested 1073741824 bytes")
    assert totals.startswith("0 268435456 {'cudaMalloc': 1")


def test_cython_example_allocates_from_the_pool(pairs):
    with sim.Device("64MiB") as device, Pool("8MiB", device=device) as pool:
        assert pairs(pool, 4096, 1000) == 1000
        stats = pool.stats()
        assert (stats.alloc_count, stats.free_count, stats.used) == (1000, 1000, 0)
        pool.check()


def test_cython_example_stops_where_the_pool_is_full(pairs):
    with sim.Device("64MiB") as device, Pool("8MiB", device=device) as pool:
        with pytest.raises(OutOfMemoryError):
            pool.alloc("16MiB")
        assert pairs(pool, 16 << 20, 5) == 0
        pool.check()


def test_cython_example_refuses_what_is_no_pool(pairs):
    with pytest.raises(TypeError):
        pairs(None, 4096, 1)


@pytest.mark.parametrize("name", ["quickstart.py", "pairs.pyx"])
def test_readme_shows_the_example_as_it_is(name):
    assert (EXAMPLES / name).read_text() in (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_readme_states_the_figures_of_its_picture(tmp_path):
    command = [sys.executable, ROOT / "tools/draw_readme_picture.py", "--out", tmp_path / "picture.svg"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    _, caption, *_ = (ROOT / "README.md").read_text().split(".svg)\n\n")
    figure = re.compile(r"[\d.]+\s(?:GiB|MiB|times|events)")
    stated = set(figure.findall(caption.split("\n\n")[0].replace("\n", " ")))
    assert len(stated) == 9 and stated <= set(figure.findall(done.stdout))
    assert (tmp_path / "picture.svg").read_bytes() == (ROOT / "docs/images/fragmentation.svg").read_bytes()


def test_readme_states_the_defaults():
    slab_max, mid_max, min_block = (format_size(size).replace(".00", "") for size in (SLAB_MAX, MID_MAX, MIN_BLOCK))
    table = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| ")]
    assert [line for line in table if line.startswith(f"| up to `slab_max` ({slab_max}) |")]
    assert [line for line in table if line.startswith(f"| up to `mid_max` ({mid_max}) |")]
    assert [line for line in table if line.startswith("| `slab_max`") and line.endswith(f"| {slab_max}, {mid_max} |")]
    assert [line for line in table if line.startswith("| `min_block`") and line.endswith(f"| {min_block} |")]
