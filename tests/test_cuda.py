"""The driver table filled from cuda-python, as far as the machine allows; the rest is marked gpu."""

import ctypes

import pytest

from cuda_pool import _cuda, _driver, _sim_error, sim
from cuda_pool.errors import DeviceUnavailableError

from .conftest import AccessDesc, AllocationProp

cyruntime = pytest.importorskip("cuda.bindings.cyruntime", reason="cuda-bindings is not installed")

MALLOC = "cudaError_t (void **, size_t)"


@pytest.fixture
def no_device():
    """Why no device is usable; skips where one is."""
    try:
        _cuda.device(0)
    except DeviceUnavailableError as error:
        return error
    pytest.skip("a real device is usable here")


def test_every_symbol_is_found():
    assert _cuda.info()["missing"] == []
    assert _cuda.info()["bindings"]


def test_symbol_address_wants_name_and_signature():
    capi = cyruntime.__pyx_capi__
    assert _cuda.symbol_address(capi, "cudaMalloc", MALLOC) != 0
    assert _cuda.symbol_address(capi, "cudaMalloc", "cudaError_t (void **, int)") == 0
    assert _cuda.symbol_address(capi, "cudaMalloc2", MALLOC) == 0
    assert _cuda.symbol_address({}, "cudaMalloc", MALLOC) == 0
    assert _cuda.symbol_address({"cudaMalloc": 5}, "cudaMalloc", MALLOC) == 0


def test_real_call_answers(no_device):
    """cudaMalloc itself, called as C calls it, after device() has loaded the driver library."""
    address = _cuda.symbol_address(cyruntime.__pyx_capi__, "cudaMalloc", MALLOC)
    ptr = ctypes.c_void_p()
    assert ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(address)(ctypes.byref(ptr), 64) in (35, 100)
    assert not ptr.value


def new_structs(number):
    """cuda-python's own structs: memory of a device, and an array of two accesses to it."""
    driver = pytest.importorskip("cuda.bindings.driver")
    prop, access = driver.CUmemAllocationProp(), driver.CUmemAccessDesc()
    prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    for struct in (prop, access):
        struct.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        struct.location.id = number
    prop.allocFlags.usage = 0x7788
    one = ctypes.string_at(access.getPtr(), ctypes.sizeof(AccessDesc))
    return prop, ctypes.create_string_buffer(one * 2, 2 * len(one))


def test_structs_have_the_layout_of_cuda(make_device, raw):
    """Those of the tests, and those that the table is compiled with, as the simulated device reads them."""
    device = make_device()
    sim.set_current_device(device)
    calls, size = raw(device), device.granularity
    prop, accesses = new_structs(calls.current())
    same = calls.prop()
    same.usage = 0x7788
    assert bytes(same) == ctypes.string_at(prop.getPtr(), ctypes.sizeof(AllocationProp))
    assert bytes((AccessDesc * 2)(*[AccessDesc(calls.location(), 3)] * 2)) == accesses.raw
    handle = ctypes.c_ulonglong()
    given = ctypes.cast(prop.getPtr(), ctypes.POINTER(AllocationProp))
    assert calls.cuMemCreate(ctypes.byref(handle), size, given, 0) == 0
    address = calls.reserve(size)[1]
    assert calls.map(address, size, handle.value) == 0
    assert calls.cuMemSetAccess(address, size, ctypes.cast(accesses, ctypes.POINTER(AccessDesc)), 2) == 0
    device.write(address, b"x")


def test_codes_of_both_libraries_agree():
    """driver_check() tells the two apart by the call, not by the code."""
    driver, runtime = (pytest.importorskip(f"cuda.bindings.{name}") for name in ("driver", "runtime"))
    of_driver = {int(code): code.name for code in driver.CUresult}
    of_runtime = {int(code): code.name for code in runtime.cudaError_t}
    for code, name, driver_name, _ in _sim_error.ERRORS:
        assert of_runtime[code] == name.decode()
        assert of_driver.get(code, "") == driver_name.decode()


def test_without_a_device_the_error_names_the_simulator(no_device):
    assert no_device.name in ("cudaErrorInsufficientDriver", "cudaErrorNoDevice")
    assert no_device.call == "cudaGetDeviceCount"
    assert 'cp.sim.Device("8GiB")' in str(no_device)


def test_info_without_a_device(no_device):
    info = _cuda.info()
    assert info["devices"] == []
    assert info["error"] == str(no_device)
    assert info["runtime_version"] >= 12090


@pytest.mark.parametrize("ordinal", [-1, 1 << 31, 1 << 70])
def test_ordinal_out_of_range(ordinal):
    with pytest.raises(ValueError, match="count from 0"):
        _cuda.device(ordinal)


@pytest.mark.parametrize("ordinal", [True, 0.0, "0", None])
def test_ordinal_of_a_wrong_type(ordinal):
    with pytest.raises(TypeError, match=r"CUDA ordinal, such as 0, or a cp\.sim\.Device"):
        _cuda.device(ordinal)


def test_import_leaves_cuda_bindings_alone(run_python):
    """Beyond what those that come with a .pth file, such as 12.9.0, import in every process."""
    done = run_python("import sys; before = set(sys.modules)\n"
                      "import cuda_pool._cuda, cuda_pool.sim\n"
                      "print([name for name in set(sys.modules) - before if name.startswith('cuda.')])")
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_without_cuda_bindings(run_python):
    done = run_python("import sys; sys.modules['cuda.bindings'] = None\n"
                      "from cuda_pool import _cuda\n"
                      "print(_cuda.info()['bindings'], _cuda.info()['devices'])\n"
                      "try: _cuda.device(0)\n"
                      "except ImportError as error: print(error)")
    assert done.stderr == ""
    assert done.stdout.startswith("None []\n")
    assert "pip install cuda-python" in done.stdout and "cp.sim.Device" in done.stdout


@pytest.mark.parametrize("module, name", [("cyruntime", "cudaMallocAsync"), ("cyruntime", "cudaDriverGetVersion"),
                                          ("cydriver", "cuMemMap"), ("cydriver", "cuGetErrorName")])
def test_missing_symbol_only_turns_off_what_needs_it(run_python, module, name):
    done = run_python(f"from cuda.bindings import {module}\n"
                      f"del {module}.__pyx_capi__[{name!r}]\n"
                      "from cuda_pool import _cuda\n"
                      "info = _cuda.info()\n"
                      "print(info['missing'], info['error'] is None or 'sim.Device' in info['error'])")
    assert (done.stdout.strip(), done.stderr) == (f"['{name}'] True", "")


@pytest.mark.parametrize("change", ["del capi['cudaMalloc']", "capi['cudaMalloc'] = capi['cudaFree']"])
def test_missing_symbol_that_every_pool_needs(run_python, change):
    done = run_python("from cuda.bindings import cyruntime\n"
                      f"capi = cyruntime.__pyx_capi__; {change}\n"
                      "from cuda_pool import _cuda\n"
                      "for _ in range(2):\n"
                      "    try: _cuda.device(0)\n"
                      "    except ImportError as error: print(error)")
    assert done.stderr == ""
    assert done.stdout.count("no usable cudaMalloc; versions 12.9 to 13.x do") == 2


@pytest.mark.gpu
def test_real_device(cuda_device):
    assert not cuda_device.is_simulated
    assert cuda_device.ordinal == 0
    assert all(_driver.call_address(cuda_device, name) for name in _driver.CALLS)
    info = _cuda.info()
    assert info["error"] is None
    assert info["devices"][0]["name"] == cuda_device.name
    assert info["devices"][0]["total"] == cuda_device.mem_info()[1]


@pytest.mark.gpu
def test_ordinal_beyond_the_last_real_device(cuda_device):
    count = len(_cuda.info()["devices"])
    with pytest.raises(ValueError, match=f"0 to {count - 1}"):
        _cuda.device(count)
