"""The programs that the documentation shows build and run against the installed package, from a folder of their own.

Each lets several threads allocate from one pool on the simulated device, and verifies what is in the blocks.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from threading import Thread

import pytest

import cuda_pool as cp

EMBED = Path(__file__).resolve().parent / "embed"
HEADERS = Path(cp.get_include())
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
CC, CXX = (shutil.which(name) for name in ("cc", "c++"))

needs_cc = pytest.mark.skipif(CC is None, reason="there is no C compiler (cc)")
needs_cxx = pytest.mark.skipif(CXX is None, reason="there is no C++ compiler (c++)")
pytestmark = [pytest.mark.threads, pytest.mark.slow]


def run(*command, cwd, timeout=300, **variables):
    return subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=timeout,
                          env={**os.environ, **variables})


def build(*command, cwd):
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr


def python_flags():
    """Options that compile and link a program with this Python in it."""
    value = sysconfig.get_config_var
    folders = [folder for folder in (value("LIBDIR"), value("LIBPL")) if folder]
    return [f"-I{sysconfig.get_path('include')}", *(f"-L{folder}" for folder in folders),
            f"-Wl,-rpath,{folders[0]}", f"-lpython{value('LDVERSION')}",
            *f"{value('LIBS') or ''} {value('SYSLIBS') or ''}".split(), "-lm", "-pthread", "-rdynamic"]


def build_program(compiler, std, source):
    """Compile a program that embeds Python; skip where there is no library of Python to link with."""
    trial = source.with_name("trial" + source.suffix)
    trial.write_text("#include <Python.h>\nint main(void) { return Py_IsInitialized(); }\n")
    if run(compiler, trial.name, *python_flags(), "-o", "trial", cwd=source.parent).returncode:
        pytest.skip("this Python has no headers, or no library to be linked into a program")
    build(compiler, f"-std={std}", "-O1", *STRICT, f"-I{HEADERS}", source.name, *python_flags(), "-o", "program",
          cwd=source.parent)
    return source.with_name("program")


def build_module(folder, name, headers=HEADERS):
    """Compile the .c files of a folder into an extension module."""
    path = folder / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    build(CC, "-std=c99", "-shared", "-fPIC", *STRICT, f"-I{headers}", f"-I{sysconfig.get_path('include')}",
          *sorted(path.name for path in folder.glob("*.c")), "-pthread", "-o", path.name, cwd=folder)
    return path


def load(path):
    spec = importlib.util.spec_from_file_location(path.name.split(".")[0], path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def copied(name, tmp_path_factory):
    return Path(shutil.copytree(EMBED / name, tmp_path_factory.mktemp("embed") / name))


@pytest.fixture
def pool(make_device):
    with cp.Pool("32MiB", device=make_device()) as pool:
        yield pool
        pool.check()


def run_threads(count, work):
    """Return what `work` returns for each number, in a thread each."""
    results = [None] * count

    def keep(number):
        results[number] = work(number)

    threads = [Thread(target=keep, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


# Programs

def assert_fine(done, allocations, says_too_much=True):
    """Nothing was damaged and nothing is left; what did not fit was refused."""
    assert done.returncode == 0, done.stdout + done.stderr
    *first, last = done.stdout.splitlines()
    assert re.fullmatch(rf"faults 0, allocations {allocations}, used 0(, CUDA_POOL_OK)?", last), done.stdout
    assert [line for line in first if line.startswith("too much: ")] or not says_too_much
    assert done.stderr == ""


def test_the_package_is_the_installed_one():
    assert (HEADERS / "cuda_pool.h").is_file()
    assert HEADERS.parent == Path(cp.__file__).parent


@needs_cc
def test_c_program(tmp_path_factory):
    program = build_program(CC, "c99", copied("c", tmp_path_factory) / "main.c")
    done = run(program, cwd=program.parent, PYTHONPATH=os.pathsep.join(filter(os.path.isdir, sys.path)))
    assert_fine(done, 20000)


@needs_cxx
def test_cpp_program(tmp_path_factory):
    program = build_program(CXX, "c++17", copied("cpp", tmp_path_factory) / "main.cpp")
    done = run(program, cwd=program.parent, PYTHONPATH=os.pathsep.join(filter(os.path.isdir, sys.path)))
    assert_fine(done, r"[1-9]\d{5}")


@pytest.mark.parametrize("name, allocations", [("ctypes", 2000), ("cffi", 2000), ("numba", 80001)])
def test_python_program(name, allocations, tmp_path_factory):
    pytest.importorskip(name)
    folder = copied("python", tmp_path_factory)
    assert_fine(run(sys.executable, f"use_{name}.py", cwd=folder), allocations, name != "numba")


# Cython

@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    if CC is None:
        pytest.skip("there is no C compiler (cc)")
    folder = copied("cython", tmp_path_factory)
    build(sys.executable, "setup.py", "build_ext", "--inplace", cwd=folder)
    return load(next(folder.glob("worker.*.so")))


def test_cython_threads(worker, pool):
    assert run_threads(4, lambda number: worker.work(pool, number, 20000)) == [0] * 4
    assert worker.used(pool) == 0
    assert pool.stats().alloc_count == 80000


def test_cython_takes_a_capsule_too(worker, pool):
    assert worker.work(pool.capsule, 1, 100) == 0
    for other in None, 5, worker:
        with pytest.raises(TypeError, match="expected a cuda_pool.Pool or its capsule"):
            worker.used(other)


def test_cython_statuses(worker, pool):
    assert worker.fill_up(pool, 1 << 20) in (31, 32)
    assert worker.used(pool) == 0


def test_cython_raises_what_a_pool_raises(worker, make_device):
    pool = cp.Pool("1MiB", device=make_device())
    with pytest.raises(cp.OutOfMemoryError) as caught:
        worker.Workspace(pool, 1 << 30)
    assert (caught.value.requested, caught.value.capacity) == (1 << 30, 1 << 20)
    workspace = worker.Workspace(pool, 5000)
    pool.free(address_of_only_block(pool))
    with pytest.raises(cp.InvalidPointerError, match="already freed"):
        len(workspace)
    pool.check()
    pool.close()
    with pytest.raises(cp.InvalidPointerError, match="the pool is closed"):
        len(workspace)
    with pytest.raises(ValueError, match="the pool is closed"):
        worker.work(pool, 1, 1)


def address_of_only_block(pool):
    """The address of a slot, found by its size."""
    probe = pool.alloc(5000)
    pool.free(probe)
    return next(ptr for ptr in range(probe - (1 << 20), probe + (1 << 20), 256) if pool.owns(ptr))


def test_cython_out_of_memory_frees_what_was_allocated(worker, make_device):
    with cp.Pool("128KiB", device=make_device()) as pool:
        with pytest.raises(cp.OutOfMemoryError):
            worker.work(pool, 1, 1000)
        assert worker.used(pool) == 0
        pool.check()


def test_cython_object_keeps_the_pool(worker, make_device):
    device = make_device()
    workspace = worker.Workspace(cp.Pool("1MiB", device=device), 5000)
    assert len(workspace) == 5000
    assert device.calls["cudaFree"] == 0
    del workspace
    assert device.calls["cudaFree"] == 1


# Headers

@pytest.mark.parametrize("header", ["cuda_pool.h", "cuda_pool_import.h"])
@pytest.mark.parametrize("std", ["c99", "c11", "c17", "c++11", "c++17", "c++20"])
def test_headers_are_clean(header, std, tmp_path):
    compiler = CXX if "+" in std else CC
    if compiler is None:
        pytest.skip(f"there is no compiler for {std}")
    source = tmp_path / f"user.{'cpp' if '+' in std else 'c'}"
    source.write_text(f"#include <{header}>\n#include <{header}>\nint main(void) {{ return cuda_pool_abi(); }}\n")
    build(compiler, f"-std={std}", *STRICT, "-Wshadow", "-Wconversion", f"-I{HEADERS}",
          f"-isystem{sysconfig.get_path('include')}", "-c", source.name, cwd=tmp_path)


# Import

@pytest.fixture(scope="module")
def probe_path(tmp_path_factory):
    if CC is None:
        pytest.skip("there is no C compiler (cc)")
    return build_module(copied("probe", tmp_path_factory), "probe")


@pytest.fixture(scope="module")
def probe(probe_path):
    return load(probe_path)


def test_before_the_import_every_call_says_so(probe):
    status, name = probe.before()
    assert (status, name) == (cp.capi.Status.NOT_IMPORTED, "CUDA_POOL_ERROR_NOT_IMPORTED")


@pytest.mark.parametrize("change, message", [
    (("#define CUDA_POOL_ABI 1", "#define CUDA_POOL_ABI 7"),
     r"has C interface 1, and this was compiled for 7: compile it again"),
    (("} cuda_pool_api_t;", "int (*later)(void); } cuda_pool_api_t;"), "lacks functions of it"),
])
def test_another_interface_is_refused(change, message, tmp_path_factory):
    folder = copied("probe", tmp_path_factory)
    for header in HEADERS.glob("*.h"):
        shutil.copy(header, folder)
    text = (folder / "cuda_pool.h").read_text()
    assert text.count(change[0]) == 1
    (folder / "cuda_pool.h").write_text(text.replace(*change))
    with pytest.raises(ImportError, match=message):
        load(build_module(folder, "probe", folder))


def test_a_pool_from_an_object(probe, pool):
    assert probe.address_of(pool) == probe.address_of(pool.capsule) == pool.handle
    for other in None, 5, cp.capi.table:
        with pytest.raises(TypeError, match="expected a cuda_pool.Pool or its capsule, got"):
            probe.address_of(other)


@pytest.mark.parametrize("growth", ["static", "dynamic", "predictive"])
@pytest.mark.parametrize("backing", ["malloc", "virtual"])
def test_no_call_needs_the_gil(probe_path, growth, backing, run_python):
    """The pool grows, gives memory back and runs out of it while another thread waits with the GIL held."""
    done = run_python(f"""
        import importlib.util, cuda_pool as cp
        spec = importlib.util.spec_from_file_location("probe", {str(probe_path)!r})
        probe = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(probe)
        limit = None if {growth!r} == "static" else "64MiB"
        pool = cp.Pool("8MiB", device=cp.sim.Device("128MiB"), backing={backing!r}, growth={growth!r},
                       max_capacity=limit)
        print([probe.pairs_under_gil(pool, nbytes) for nbytes in (100, 5000, 500 << 10, 60 << 20)])
        pool.check()
        """.replace("\n        ", "\n"), timeout=60)
    assert done.stdout == "[0, 0, 0, 1]\n", done.stderr


def test_a_capsule_that_is_never_let_go_of(probe_path, run_python):
    """The interpreter ends with the pool and its device still there, and no driver call after that."""
    done = run_python(f"""
        import importlib.util, cuda_pool as cp
        spec = importlib.util.spec_from_file_location("probe", {str(probe_path)!r})
        probe = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(probe)
        pool = cp.Pool("8MiB", device=cp.sim.Device("128MiB"))
        pool.alloc(1000)
        probe.keep(pool.capsule)
        """.replace("\n        ", "\n"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
