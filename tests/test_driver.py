"""The base class of devices, the current device, and the driver gate, which raises."""

import ctypes
import threading
import time

import numpy as np
import pytest

from cuda_pool import _bench_driver, _driver, sim
from cuda_pool.errors import CudaError, DeviceUnavailableError

from .conftest import AccessDesc, RawCalls

UNAVAILABLE = (3, 35, 46, 100)

METHODS = {
    "mem_info": ("cudaMemGetInfo", lambda device, ptr: device.mem_info()),
    "malloc": ("cudaMalloc", lambda device, ptr: device.malloc(64)),
    "free": ("cudaFree", lambda device, ptr: device.free(ptr)),
    "memset": ("cudaMemsetAsync", lambda device, ptr: device.memset(ptr, 1, 64)),
    "read": ("cudaMemcpyAsync", lambda device, ptr: device.read(ptr, 64)),
    "write": ("cudaMemcpyAsync", lambda device, ptr: device.write(ptr, b"x" * 64)),
    "read, wait": ("cudaStreamSynchronize", lambda device, ptr: device.read(ptr, 64)),
    "synchronize": ("cudaDeviceSynchronize", lambda device, ptr: device.synchronize()),
}
each_method = pytest.mark.parametrize("method", METHODS)


def test_data_survives_the_trip(device):
    data = bytes(range(256)) * 40
    ptr = device.malloc(len(data) + 1)
    device.memset(ptr, 0xA5, len(data) + 1)
    device.write(ptr, data[:-1])
    assert device.read(ptr, len(data) + 1) == data[:-1] + b"\xa5\xa5"
    device.free(ptr)


def test_data_moves_with_virtual_memory(device, raw):
    calls, size, number = raw(device), device.granularity, make_current(device)
    if size == 0:
        pytest.skip("the device has no virtual memory")
    status, address = calls.reserve(4 * size)
    assert status == 0 and address % size == 0
    handles = [calls.create(size, calls.prop(id=number))[1] for _ in range(2)]
    assert [calls.map(address + page * size, size, handle) for page, handle in enumerate(handles)] == [0, 0]
    assert calls.set_access(address, 2 * size, id=number) == 0
    device.write(address + size - 4, b"nextdoor")
    assert calls.cuMemUnmap(address, 2 * size) == 0
    assert [calls.map(address + page * size, size, handle) for page, handle in zip((3, 2), handles)] == [0, 0]
    assert calls.set_access(address + 2 * size, 2 * size, id=number) == 0
    assert (device.read(address + 4 * size - 4, 4), device.read(address + 2 * size, 4)) == (b"next", b"door")
    assert [calls.cuMemRelease(handle) for handle in handles] == [0, 0]
    assert device.read(address + 2 * size, 4) == b"door"
    assert calls.cuMemUnmap(address + 2 * size, 2 * size) == 0
    assert calls.cuMemAddressFree(address, 4 * size) == 0


def test_granularity_in_a_thread_that_has_no_context_yet(device):
    """The calls named cu* need one, those of the runtime make it."""
    found = []
    thread = threading.Thread(target=lambda: found.append(device.granularity))
    thread.start()
    thread.join()
    assert found == [device.granularity]


def make_current(device):
    """Make a device current and return the number by which CUDA knows it."""
    if device.is_simulated:
        sim.set_current_device(device)
    else:
        assert RawCalls(device).cudaSetDevice(device.ordinal) == 0
    return RawCalls(device).current()


def test_write_takes_any_contiguous_buffer(device):
    ptr = device.malloc(4096)
    array = np.arange(100, dtype=np.float64).reshape(10, 10)
    device.write(ptr, array)
    assert device.read(ptr, array.nbytes) == array.tobytes()
    with pytest.raises(TypeError, match="contiguous"):
        device.write(ptr, array[:, ::2])
    device.free(ptr)


def test_empty_transfers_do_nothing(device):
    ptr = device.malloc(16)
    device.write(ptr, b"")
    device.memset(ptr, 1, 0)
    assert device.read(ptr, 0) == b""
    device.free(ptr)


def test_mem_info(device):
    free, total = device.mem_info()
    assert 0 < free <= total
    ptr = device.malloc(64 << 20)
    assert device.mem_info()[0] <= free - (64 << 20) or not device.is_simulated
    device.free(ptr)
    device.synchronize()


def test_malloc_of_nothing_gives_no_address(device):
    assert device.malloc(0) == 0
    device.free(0)


@pytest.mark.parametrize("nbytes", [1 << 62, 2**64 - 512, 2**64 - 1])
def test_sizes_that_no_device_has(device, nbytes):
    before = device.mem_info()
    with pytest.raises(CudaError) as caught:
        device.malloc(nbytes)
    assert caught.value.name == "cudaErrorMemoryAllocation"
    assert caught.value.call == "cudaMalloc"
    assert device.mem_info()[1] == before[1]
    device.free(device.malloc(4096))


@pytest.mark.parametrize("value", [-1, 256])
def test_memset_wants_a_byte(device, value):
    with pytest.raises(ValueError, match="0 to 255"):
        device.memset(0, value, 1)


def test_read_of_a_negative_size(device):
    with pytest.raises(ValueError, match="nbytes is from 0 to 9223372036854775807, got -1"):
        device.read(0, -1)


NUMBERS = {
    "malloc": lambda device, number: device.malloc(number),
    "free": lambda device, number: device.free(number),
    "memset ptr": lambda device, number: device.memset(number, 0, 1),
    "memset value": lambda device, number: device.memset(0, number, 1),
    "memset nbytes": lambda device, number: device.memset(0, 0, number),
    "read ptr": lambda device, number: device.read(number, 1),
    "read nbytes": lambda device, number: device.read(0, number),
    "write ptr": lambda device, number: device.write(number, b"x"),
}


@pytest.mark.parametrize("method", NUMBERS)
def test_numbers_that_are_not_accepted(make_device, method):
    device = make_device()
    device.clear_log()
    for number in (-1, 2**64, -10**400, 10**5000):
        with pytest.raises(ValueError, match="is from 0 to [0-9]+, got") as caught:
            NUMBERS[method](device, number)
        assert len(str(caught.value)) < 200
    for number in (1.5, 64.0, "64", None, True):
        with pytest.raises(TypeError, match="is an integer from 0 to"):
            NUMBERS[method](device, number)
    assert device.calls == {}


def test_numbers_of_numpy(device):
    ptr = device.malloc(np.uint32(64))
    device.memset(np.uint64(ptr), np.uint8(7), np.int64(64))
    assert device.read(np.uint64(ptr), np.int32(2)) == b"\x07\x07"
    device.free(np.uint64(ptr))


def test_kind_of_device(device):
    assert device.is_simulated == isinstance(device, sim.Device)
    assert device.name
    assert device.name in repr(device)


@each_method
def test_bare_device_has_nothing_behind_it(method):
    with pytest.raises(DeviceUnavailableError, match=r'cp\.sim\.Device\("8GiB"\)'):
        METHODS[method][1](_driver.Device(), 0)


@each_method
def test_current_device_is_left_as_it_was(make_device, method):
    device, other = make_device(ordinal=0), make_device(ordinal=1)
    ptr = device.malloc(64)
    sim.set_current_device(other)
    device.clear_log()
    METHODS[method][1](device, ptr)
    assert sim.current_device() is other
    assert all(current == 0 for name, _, current in device.log if name != "cudaSetDevice")
    assert set(other.calls) == {"cudaGetDevice", "cudaSetDevice"}


@each_method
def test_no_set_device_when_it_is_current_already(make_device, method):
    device = make_device()
    ptr = device.malloc(64)
    sim.set_current_device(device)
    device.clear_log()
    METHODS[method][1](device, ptr)
    assert "cudaSetDevice" not in device.calls
    assert device.calls[METHODS[method][0]] == 1


@each_method
def test_failure_names_the_call_and_restores_the_current_device(make_device, method):
    device, other = make_device(), make_device(ordinal=1)
    call, run = METHODS[method]
    ptr = device.malloc(64)
    sim.set_current_device(other)
    device.fail(call, code="cudaErrorLaunchFailure")
    with pytest.raises(CudaError) as caught:
        run(device, ptr)
    assert (caught.value.code, caught.value.name, caught.value.call) == (719, "cudaErrorLaunchFailure", call)
    assert str(caught.value) == f"{call} failed: cudaErrorLaunchFailure (719)"
    assert sim.current_device() is other


@each_method
def test_nothing_is_called_when_the_device_cannot_be_made_current(make_device, method):
    device = make_device()
    ptr = device.malloc(64)
    device.clear_log()
    device.fail("cudaSetDevice", code="cudaErrorInvalidDevice")
    with pytest.raises(CudaError) as caught:
        METHODS[method][1](device, ptr)
    assert caught.value.call == "cudaSetDevice"
    assert device.calls == {"cudaSetDevice": 1}
    assert sim.current_device() is None


@each_method
def test_driver_runs_without_the_gil(make_device, method):
    """On a busy machine this thread may be late: then it is tried with a longer delay."""
    assert any(this_thread_runs_during(method, seconds, make_device()) for seconds in (0.2, 2, 10))


def this_thread_runs_during(method, seconds, device):
    call, run = METHODS[method]
    ptr = device.malloc(64)
    device.clear_log()
    device.delay(call, seconds)
    done = []
    thread = threading.Thread(target=lambda: (run(device, ptr), done.append(True)))
    thread.start()
    while device.calls[call] == 0:
        time.sleep(0.001)
    running = not done
    thread.join()
    assert done
    return running


@pytest.mark.parametrize("code", UNAVAILABLE)
def test_codes_without_a_device_name_the_simulator(make_device, code):
    device = make_device()
    device.fail("cudaMemGetInfo", code=code)
    with pytest.raises(DeviceUnavailableError, match=r'cp\.sim\.Device\("8GiB"\)') as caught:
        device.mem_info()
    assert caught.value.code == code
    assert caught.value.name.startswith("cudaError")


@pytest.mark.parametrize("code", [1, 2, 101, 700, 999])
def test_other_codes_are_plain_cuda_errors(make_device, code):
    device = make_device()
    device.fail("cudaMemGetInfo", code=code)
    with pytest.raises(CudaError) as caught:
        device.mem_info()
    assert type(caught.value) is CudaError
    assert "sim.Device" not in str(caught.value)


def test_table_and_names_agree(make_device, raw):
    device = make_device()
    sim.set_current_device(device)
    calls = raw(device)
    number = calls.current()
    numbers = [ctypes.c_size_t(), ctypes.c_size_t()]
    out = [ctypes.byref(number) for number in numbers]
    event, captured, doomed = device.event(), device.stream(), (device.stream(), device.event())
    nothing = _driver.call_address(device, "cudaGetErrorName")      # as good as any host function
    arguments = {
        "cudaGetDeviceCount": out[:1], "cudaGetDevice": out[:1], "cudaSetDevice": [number],
        "cudaDeviceGetAttribute": [out[0], 41, number], "cudaDriverGetVersion": out[:1],
        "cudaRuntimeGetVersion": out[:1], "cudaMemGetInfo": out, "cudaMalloc": [out[0], 0], "cudaFree": [0],
        "cudaMallocAsync": [out[0], 0, 0], "cudaFreeAsync": [0, 0], "cudaMemcpyAsync": [0, 0, 0, 1, 0],
        "cudaMemsetAsync": [0, 0, 0, 0], "cudaStreamSynchronize": [0], "cudaDeviceSynchronize": [],
        "cudaStreamCreateWithFlags": [out[0], 0], "cudaStreamDestroy": [doomed[0].handle],
        "cudaStreamGetId": [0, out[0]], "cudaStreamQuery": [0], "cudaStreamWaitEvent": [0, event.handle, 0],
        "cudaStreamIsCapturing": [0, out[0]], "cudaStreamBeginCapture": [captured.handle, 0],
        "cudaStreamEndCapture": [captured.handle, out[0]], "cudaEventCreateWithFlags": [out[0], 2],
        "cudaEventRecord": [event.handle, 0], "cudaEventQuery": [event.handle], "cudaEventSynchronize": [event.handle],
        "cudaEventDestroy": [doomed[1].handle], "cudaLaunchHostFunc": [0, nothing, 0],
    }
    size = device.granularity
    prop, access = ctypes.pointer(calls.prop()), ctypes.pointer(AccessDesc(calls.location(), 3))
    reserved, handle = calls.reserve(2 * size)[1], calls.create(size)[1]
    doomed_range, doomed_handle = calls.reserve(size)[1], calls.create(size)[1]
    arguments_of_driver = {
        "cuDeviceGetAttribute": [out[0], 102, number], "cuMemGetAllocationGranularity": [out[0], prop, 0],
        "cuMemAddressReserve": [out[0], size, 0, 0, 0], "cuMemAddressFree": [doomed_range, size],
        "cuMemCreate": [out[0], size, prop, 0], "cuMemRelease": [doomed_handle],
        "cuMemMap": [reserved, size, 0, handle, 0], "cuMemSetAccess": [reserved, size, access, 1],
        "cuMemUnmap": [reserved, size],
    }
    assert len(_driver.CALLS) == _driver.TABLE_ENTRIES
    assert {*arguments, *arguments_of_driver, "cudaGetErrorName", "cudaGetErrorString",
            "cuGetErrorName"} == set(_driver.CALLS)
    arguments |= arguments_of_driver
    for name, values in arguments.items():
        device.clear_log()
        function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * len(values))(_driver.call_address(device, name))
        assert function(*[ctypes.cast(v, ctypes.c_void_p) if not isinstance(v, int) else v for v in values]) == 0
        assert device.calls == {name: 1}
    assert calls.cudaGetErrorName(1) == b"cudaErrorInvalidValue"
    assert calls.cudaGetErrorString(1) == b"invalid argument"
    name = ctypes.c_char_p()
    assert calls.cuGetErrorName(1, ctypes.byref(name)) == 0 and name.value == b"CUDA_ERROR_INVALID_VALUE"
    assert calls.cuGetErrorName(35, ctypes.byref(name)) == 1 and name.value is None


def test_call_address_of_an_unknown_call(make_device):
    with pytest.raises(ValueError, match="cudaMalloc, cudaFree"):
        _driver.call_address(make_device(), "cudaNothing")


PAIRS = {"": _bench_driver.time_malloc_pairs, "Async": _bench_driver.time_malloc_async_pairs}
each_kind_of_pair = pytest.mark.parametrize("suffix", PAIRS)


@each_kind_of_pair
def test_time_pairs(device, suffix):
    assert PAIRS[suffix](device, 4096, 10) > 0
    if device.is_simulated:
        assert device.calls[f"cudaMalloc{suffix}"] == device.calls[f"cudaFree{suffix}"] == 10
        assert device.allocated == 0


@pytest.mark.parametrize("suffix, call, after", [
    ("", "cudaMalloc", 3), ("", "cudaFree", 3), ("", "cudaSetDevice", 0), ("Async", "cudaMallocAsync", 3),
    ("Async", "cudaFreeAsync", 3), ("Async", "cudaStreamSynchronize", 0), ("Async", "cudaSetDevice", 0)])
def test_time_pairs_names_the_call_that_fails_and_keeps_nothing(make_device, suffix, call, after):
    device, other = make_device(), make_device(ordinal=1)
    sim.set_current_device(other)
    device.fail(call, after=after, code="cudaErrorLaunchFailure")
    with pytest.raises(CudaError, match="cudaErrorLaunchFailure") as caught:
        PAIRS[suffix](device, 4096, 10)
    assert caught.value.call == call
    assert device.allocated == 0 and sim.current_device() is other


@each_kind_of_pair
def test_time_pairs_wants_one_at_least(make_device, suffix):
    with pytest.raises(ValueError, match="at least 1"):
        PAIRS[suffix](make_device(), 4096, 0)


def test_shutdown_is_flagged_only_at_exit(run_python):
    code = """
import atexit, ctypes

def look():
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    capsule = cuda_pool._driver.__pyx_capi__["driver_is_shut"]
    print(ctypes.CFUNCTYPE(ctypes.c_int)(get(capsule, name(capsule)))())

atexit.register(look)       # registered first, so it runs last
import cuda_pool._driver
look()
"""
    done = run_python(code)
    assert (done.stdout.split(), done.stderr) == (["0", "1"], "")
