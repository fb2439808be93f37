"""The C interface: what is pinned of it, and what its functions answer."""

import ctypes
import gc
import json
import os
import re
import shutil
import subprocess
import weakref
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

import pytest

import cuda_pool as cp
from cuda_pool import capi
from cuda_pool.capi import Status

PINNED = json.loads((Path(__file__).parent / "data" / "abi.json").read_text())
HEADER = Path(capi.get_include(), "cuda_pool.h").read_text()

ARGUMENTS = {
    "cuda_pool_alloc": [c_size_t, c_void_p, POINTER(c_void_p)],
    "cuda_pool_alloc_aligned": [c_size_t, c_size_t, c_void_p, POINTER(c_void_p)],
    "cuda_pool_free": [c_void_p],
    "cuda_pool_free_async": [c_void_p, c_void_p],
    "cuda_pool_record_use": [c_void_p, c_void_p],
    "cuda_pool_hold_stream": [c_void_p],
    "cuda_pool_forget_stream": [c_void_p],
    "cuda_pool_size_of": [c_void_p, POINTER(c_size_t)],
    "cuda_pool_owns": [c_void_p, POINTER(c_int)],
    "cuda_pool_trim": [c_size_t, POINTER(c_size_t)],
    "cuda_pool_mem_info": [POINTER(c_size_t), POINTER(c_size_t)],
    "cuda_pool_get_stats": [c_void_p],
}
CALLS = {name: ctypes.CFUNCTYPE(c_int, c_void_p, *types)(capi.functions[name].address)
         for name, types in ARGUMENTS.items()}
status_name = ctypes.CFUNCTYPE(c_char_p, c_int)(capi.functions["cuda_pool_status_name"].address)


class Stats(ctypes.Structure):
    """cuda_pool_stats_t, and something behind it."""

    _fields_ = [*((name, c_uint64) for name in PINNED["cuda_pool_stats_t"]["members"]), ("behind", c_uint64)]


STATS_BYTES = PINNED["cuda_pool_stats_t"]["size"]
WITH_RESULTS = {
    "cuda_pool_alloc": (100, None, None), "cuda_pool_alloc_aligned": (100, 256, None, None),
    "cuda_pool_size_of": (None, None), "cuda_pool_owns": (None, None), "cuda_pool_get_stats": (None,),
}


@pytest.fixture
def pool(make_device):
    with cp.Pool("8MiB", device=make_device()) as pool:
        yield pool
        pool.check()


def call(name, pool, *arguments):
    return CALLS[name](pool.handle, *arguments)


def alloc(pool, nbytes=1000, stream=None):
    ptr = c_void_p()
    assert call("cuda_pool_alloc", pool, nbytes, stream, byref(ptr)) == Status.OK
    return ptr.value


def some_arguments(name):
    """Arguments of a call that only the pool itself can be wrong for."""
    stats = Stats(size=STATS_BYTES)
    return [byref(kind._type_()) if kind.__name__.startswith("LP_") else 1 if kind is c_size_t else
            ctypes.addressof(stats) if name.endswith("stats") else None for kind in ARGUMENTS[name]], stats


# What is pinned

def test_functions_are_those_that_are_pinned():
    pinned = {f"cuda_pool_{name}": plain(kind) for name, (kind, _) in PINNED["cuda_pool_api_t"]["members"].items()
              if "(*)" in kind}
    assert {name: plain(function.signature) for name, function in capi.functions.items()} == pinned


def plain(kind):
    """A C type as the pinned file writes it; Cython's versions differ about the place of const."""
    return re.sub(r"\b(void|char) const\b", r"const \1", kind)


def test_cython_functions_are_those_that_are_pinned():
    name_of = ctypes.pythonapi.PyCapsule_GetName
    name_of.restype, name_of.argtypes = c_char_p, [ctypes.py_object]
    exported = {name: plain(name_of(capsule).decode()) for name, capsule in capi.__pyx_capi__.items()}
    assert exported == {name: plain(kind) for name, kind in PINNED["capi"].items()}


def test_table_holds_the_functions():
    pinned = PINNED["cuda_pool_api_t"]
    abi, size = (c_uint32 * 2).from_address(capi.table_address)
    assert (abi, size) == (capi.ABI, pinned["size"]) and abi == PINNED["abi"]
    for name, (kind, offset) in pinned["members"].items():
        if "(*)" in kind:
            assert c_void_p.from_address(capi.table_address + offset).value == \
                capi.functions[f"cuda_pool_{name}"].address


def test_statuses_are_those_that_are_pinned():
    names = {f"CUDA_POOL_{'' if status is Status.OK else 'ERROR_'}{status.name}": int(status) for status in Status}
    assert names == PINNED["statuses"]
    assert {name: status_name(value).decode() for name, value in names.items()} == {name: name for name in names}
    assert {int(value) for value in re.findall(r"^    CUDA_POOL_\w+ = (\d+)", HEADER, re.M)} == set(names.values())


def test_name_of_a_driver_error_and_of_no_status():
    assert status_name(Status.CUDA | 700 << 8 | 3 << 24) == b"CUDA_POOL_ERROR_CUDA"
    for status in 16, 63, 67, 255:
        assert status_name(status) == b"unknown status"
    assert status_name(-1) == b"unknown status"


def assertions():
    """C that does not compile where the header says something else than the pinned file."""
    yield "#include <stddef.h>\n#include <cuda_pool.h>"
    checks = [f"CUDA_POOL_ABI == {PINNED['abi']}"]
    checks += [f"(int){name} == {value}" for name, value in PINNED["statuses"].items()]
    for struct in "cuda_pool_stats_t", "cuda_pool_api_t":
        checks.append(f"sizeof({struct}) == {PINNED[struct]['size']}")
        for name, (kind, offset) in PINNED[struct]["members"].items():
            checks.append(f"offsetof({struct}, {name}) == {offset}")
            checks.append(f"sizeof((({struct} *)0)->{name}) == sizeof({kind})")
    for number, check in enumerate(checks):
        yield f"typedef char check_{number}[({check}) ? 1 : -1];"


def typed_assertions():
    """The same for types, which C99 cannot compare."""
    yield "#include <type_traits>\n#include <cuda_pool.h>"
    for struct in "cuda_pool_stats_t", "cuda_pool_api_t":
        for name, (kind, _) in PINNED[struct]["members"].items():
            yield f'static_assert(std::is_same<decltype({struct}::{name}), {kind}>::value, "{name}");'
            if "(*)" in kind:
                yield f'static_assert(std::is_same<decltype(&cuda_pool_{name}), {kind}>::value, "{name}");'


@pytest.mark.parametrize("compiler, std, lines", [("cc", "c99", assertions), ("c++", "c++11", typed_assertions)])
def test_header_is_what_is_pinned(compiler, std, lines, tmp_path):
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no compiler ({compiler})")
    source = tmp_path / ("pinned.c" if compiler == "cc" else "pinned.cpp")
    source.write_text("\n".join(lines()) + "\n")
    command = [compiler, f"-std={std}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{capi.get_include()}", "-c",
               source.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


# What the functions do

def test_alloc_and_free(pool):
    ptr = alloc(pool)
    nbytes, owns = c_size_t(), c_int(5)
    assert ptr % 256 == 0
    assert call("cuda_pool_size_of", pool, ptr, byref(nbytes)) == 0 and nbytes.value == 1000
    assert call("cuda_pool_owns", pool, ptr, byref(owns)) == 0 and owns.value == 1
    assert call("cuda_pool_free", pool, ptr) == 0
    assert call("cuda_pool_owns", pool, ptr, byref(owns)) == 0 and owns.value == 0
    assert call("cuda_pool_free", pool, ptr) == Status.FREED_POINTER
    assert call("cuda_pool_size_of", pool, ptr, byref(nbytes)) == Status.FREED_POINTER


@pytest.mark.parametrize("alignment", [1, 256, 4096, 1 << 20])
def test_alignment(pool, alignment):
    ptr = c_void_p()
    for nbytes in 100, 5000, 300_000:
        assert call("cuda_pool_alloc_aligned", pool, nbytes, alignment, None, byref(ptr)) == 0
        assert ptr.value % alignment == 0
        assert call("cuda_pool_free_async", pool, ptr, None) == 0


@pytest.mark.parametrize("alignment", [0, 3, 257])
def test_bad_alignment(make_device, alignment):
    """Whether or not the thread has a block ready that would do."""
    with cp.Pool("64MiB", device=make_device("128MiB")) as pool:
        live = pool.alloc(100)
        for nbytes in 100, 200_000:
            for _ in range(3):
                pool.free(pool.alloc(nbytes))
            ptr = c_void_p(1)
            assert call("cuda_pool_alloc_aligned", pool, nbytes, alignment, None, byref(ptr)) == Status.BAD_ALIGNMENT
            assert ptr.value is None
        pool.free(live)


def test_out_of_memory(pool):
    ptr = c_void_p(1)
    for nbytes in 16 << 20, 1 << 63, (1 << 64) - 1:
        assert call("cuda_pool_alloc", pool, nbytes, None, byref(ptr)) == Status.OUT_OF_MEMORY
        assert ptr.value is None
    assert pool.stats().oom_count == 3


def test_nothing(pool):
    ptr = c_void_p(1)
    assert call("cuda_pool_alloc", pool, 0, None, byref(ptr)) == 0 and ptr.value is None
    for name in "cuda_pool_free", "cuda_pool_free_async", "cuda_pool_record_use":
        assert call(name, pool, *[None] * len(ARGUMENTS[name])) == 0


def test_pointers_that_are_none_of_the_pool(pool):
    ptr = alloc(pool, 3 << 20)
    assert call("cuda_pool_free", pool, ptr + 256) == Status.INTERIOR_POINTER
    assert call("cuda_pool_free_async", pool, 4096, None) == Status.FOREIGN_POINTER
    assert call("cuda_pool_record_use", pool, 4096, None) == Status.FOREIGN_POINTER
    assert pool.owns(ptr)


def test_movable_block(pool):
    block = pool.movable(5000)
    with block.pin() as ptr:
        assert call("cuda_pool_free", pool, ptr) == Status.MOVABLE


def test_streams(pool):
    one, two = pool.device.stream(), pool.device.stream()
    assert call("cuda_pool_hold_stream", pool, one.handle) == 0
    assert call("cuda_pool_hold_stream", pool, two.handle) == 0
    ptr = alloc(pool, 5 << 20, one.handle)
    two.work(ticks=10)
    assert call("cuda_pool_record_use", pool, ptr, two.handle) == 0
    assert call("cuda_pool_free_async", pool, ptr, one.handle) == 0
    assert pool.stats().pending == pool.stats().used + (5 << 20)
    for stream in one, two:
        assert call("cuda_pool_forget_stream", pool, stream.handle) == 0
    assert pool.stats().pending == 0
    assert alloc(pool, 5 << 20) == ptr


def test_a_cuda_call_that_fails(pool):
    pool.device.fail("cudaMemGetInfo", after=0)
    status = call("cuda_pool_mem_info", pool, None, None)
    assert status & 0xFF == Status.CUDA and status >> 8 & 0xFFFF != 0


def test_mem_info(pool):
    free, total = c_size_t(), c_size_t()
    assert call("cuda_pool_mem_info", pool, byref(free), byref(total)) == 0
    assert (free.value, total.value) == pool.device.mem_info()
    assert call("cuda_pool_mem_info", pool, byref(free), None) == call("cuda_pool_mem_info", pool, None, None) == 0


def test_trim(make_device):
    with cp.Pool("2MiB", device=make_device(), growth="dynamic", max_capacity="32MiB") as pool:
        pool.free(pool.alloc("8MiB"))
        returned, reserved = c_size_t(), pool.stats().reserved
        assert call("cuda_pool_trim", pool, 2 << 20, byref(returned)) == 0
        assert 8 << 20 <= returned.value == reserved - pool.stats().reserved
        assert call("cuda_pool_trim", pool, 0, None) == 0
        pool.check()


def test_stats(pool):
    for nbytes in 100, 100_000, 1000, 5 << 20:
        alloc(pool, nbytes)
    call("cuda_pool_alloc", pool, 1 << 40, None, byref(c_void_p()))
    now, expected = Stats(size=STATS_BYTES, behind=77), pool.stats()
    assert call("cuda_pool_get_stats", pool, byref(now)) == 0
    assert (now.size, now.behind) == (STATS_BYTES, 77)
    for name in PINNED["cuda_pool_stats_t"]["members"]:
        tier, _, what = name.partition("_")
        if name == "upstream_calls":
            assert now.upstream_calls == sum(expected.upstream_calls.values())
        elif tier in ("slab", "mid", "buddy"):
            assert getattr(now, name) == getattr(getattr(expected, tier), what)
        elif name != "size":
            assert getattr(now, name) == getattr(expected, name)


@pytest.mark.parametrize("size", [8, 16, 44, STATS_BYTES - 1])
def test_stats_of_a_caller_that_knows_fewer(pool, size):
    now = Stats(size=size)
    ctypes.memset(ctypes.addressof(now) + 8, 0xAA, ctypes.sizeof(Stats) - 8)
    assert call("cuda_pool_get_stats", pool, byref(now)) == 0
    assert now.size == size
    assert bytes(now)[size:] == b"\xAA" * (ctypes.sizeof(Stats) - size)
    assert size < 16 or now.capacity == 8 << 20


def test_stats_of_a_caller_that_knows_more(pool):
    now = Stats(size=STATS_BYTES + 8, behind=77)
    assert call("cuda_pool_get_stats", pool, byref(now)) == 0
    assert (now.size, now.behind) == (STATS_BYTES, 77)


@pytest.mark.parametrize("size", [0, 7])
def test_stats_without_a_size(pool, size):
    assert call("cuda_pool_get_stats", pool, byref(Stats(size=size))) == Status.INVALID_ARGUMENT


# No pool, a closed one, and one of the parent process

@pytest.mark.parametrize("name", list(ARGUMENTS))
def test_no_pool(name):
    arguments, _kept = some_arguments(name)
    assert CALLS[name](None, *arguments) == Status.INVALID_ARGUMENT


@pytest.mark.parametrize("name", list(WITH_RESULTS))
def test_no_place_for_the_result(name, pool):
    assert call(name, pool, *WITH_RESULTS[name]) == Status.INVALID_ARGUMENT


def closed_statuses(pool):
    """The status of each function, with an address where one is wanted."""
    statuses = {}
    for name in ARGUMENTS:
        arguments, _kept = some_arguments(name)
        if name.rpartition("_")[2] in ("free", "async", "use", "of", "owns"):
            arguments[0] = 4096
        statuses[name] = call(name, pool, *arguments)
    return statuses


CLOSED = {name: Status.OK if name == "cuda_pool_owns" else Status.CLOSED for name in ARGUMENTS}


def test_closed_pool(make_device):
    device = make_device()
    pool = cp.Pool("8MiB", device=device)
    alloc(pool)
    pool.close()
    before = dict(device.calls)
    assert closed_statuses(pool) == CLOSED
    assert device.calls == before


def test_pool_that_was_never_opened():
    assert closed_statuses(cp.Pool.__new__(cp.Pool)) == CLOSED


def test_forked_child(pool):
    alloc(pool)
    before = dict(pool.device.calls)
    child = os.fork()
    if child == 0:
        forked = {name: Status.FORKED for name in ARGUMENTS}
        os._exit(closed_statuses(pool) != forked or dict(pool.device.calls) != before)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# Lifetime

def address_of(capsule):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = c_void_p, [ctypes.py_object, c_char_p]
    return get(capsule, b"cuda_pool.pool")


def test_capsule_keeps_the_pool(make_device):
    device = make_device()
    pool = cp.Pool("8MiB", device=device)
    capsules = [pool.capsule, pool.capsule]
    gone = weakref.ref(pool)
    handle = pool.handle
    assert [address_of(capsule) for capsule in capsules] == [handle, handle]
    del pool
    capsules.pop()
    gc.collect()
    ptr = c_void_p()
    assert gone() is not None and device.calls["cudaFree"] == 0
    assert CALLS["cuda_pool_alloc"](handle, 1000, None, byref(ptr)) == 0
    assert CALLS["cuda_pool_free"](handle, ptr) == 0
    capsules.pop()
    assert gone() is None and device.calls["cudaFree"] == 1


def test_capsule_of_a_closed_pool(make_device):
    pool = cp.Pool("8MiB", device=make_device())
    capsule, handle = pool.capsule, pool.handle
    pool.close()
    del pool
    gc.collect()
    assert CALLS["cuda_pool_alloc"](handle, 1000, None, byref(c_void_p())) == Status.CLOSED
    assert address_of(capsule) == handle


def test_names_that_cannot_be_changed(pool):
    with pytest.raises(AttributeError):
        pool.handle = 0
    with pytest.raises(TypeError):
        capi.functions["cuda_pool_free"] = 0
