"""Fixtures shared by all test modules: devices, raw CUDA calls, and the shared data folder."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_pool import _cuda, _driver, sim
from cuda_pool.errors import DeviceUnavailableError

from .models import CheckedPool

ROOT = Path(__file__).resolve().parent.parent

INT, SIZE, PTR, U64 = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_ulonglong
REF = ctypes.POINTER


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = [("type", INT), ("id", INT)]


class AllocationProp(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [("type", INT), ("requestedHandleTypes", INT), ("location", Location), ("win32HandleMetaData", PTR),
                ("compressionType", ctypes.c_ubyte), ("gpuDirectRDMACapable", ctypes.c_ubyte),
                ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 4)]


class AccessDesc(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("location", Location), ("flags", INT)]


PROTOTYPES = {
    "cudaGetDeviceCount": [REF(INT)],
    "cudaGetDevice": [REF(INT)],
    "cudaSetDevice": [INT],
    "cudaDeviceGetAttribute": [REF(INT), INT, INT],
    "cudaDriverGetVersion": [REF(INT)],
    "cudaRuntimeGetVersion": [REF(INT)],
    "cudaMemGetInfo": [REF(SIZE), REF(SIZE)],
    "cudaMalloc": [REF(PTR), SIZE],
    "cudaFree": [PTR],
    "cudaMallocAsync": [REF(PTR), SIZE, PTR],
    "cudaFreeAsync": [PTR, PTR],
    "cudaMemcpyAsync": [PTR, PTR, SIZE, INT, PTR],
    "cudaMemsetAsync": [PTR, INT, SIZE, PTR],
    "cudaStreamSynchronize": [PTR],
    "cudaDeviceSynchronize": [],
    "cudaStreamCreateWithFlags": [REF(PTR), ctypes.c_uint],
    "cudaStreamDestroy": [PTR],
    "cudaStreamGetId": [PTR, REF(ctypes.c_ulonglong)],
    "cudaStreamQuery": [PTR],
    "cudaStreamWaitEvent": [PTR, PTR, ctypes.c_uint],
    "cudaStreamIsCapturing": [PTR, REF(INT)],
    "cudaStreamBeginCapture": [PTR, INT],
    "cudaStreamEndCapture": [PTR, REF(PTR)],
    "cudaEventCreateWithFlags": [REF(PTR), ctypes.c_uint],
    "cudaEventRecord": [PTR, PTR],
    "cudaEventQuery": [PTR],
    "cudaEventSynchronize": [PTR],
    "cudaEventDestroy": [PTR],
    "cudaLaunchHostFunc": [PTR, PTR, PTR],
    "cuDeviceGetAttribute": [REF(INT), INT, INT],
    "cuMemGetAllocationGranularity": [REF(SIZE), REF(AllocationProp), INT],
    "cuMemAddressReserve": [REF(U64), SIZE, SIZE, U64, U64],
    "cuMemAddressFree": [U64, SIZE],
    "cuMemCreate": [REF(U64), SIZE, REF(AllocationProp), U64],
    "cuMemRelease": [U64],
    "cuMemMap": [U64, SIZE, SIZE, U64, U64],
    "cuMemUnmap": [U64, SIZE],
    "cuMemSetAccess": [U64, SIZE, REF(AccessDesc), SIZE],
    "cuGetErrorName": [INT, REF(ctypes.c_char_p)],
}


class RawCalls:
    """The CUDA calls of a device's driver table as C sees them: no current device is set, no status is checked."""

    def __init__(self, device):
        for name, types in PROTOTYPES.items():
            setattr(self, name, ctypes.CFUNCTYPE(INT, *types)(_driver.call_address(device, name)))
        for name in ("cudaGetErrorName", "cudaGetErrorString"):
            setattr(self, name, ctypes.CFUNCTYPE(ctypes.c_char_p, INT)(_driver.call_address(device, name)))

    def malloc(self, nbytes):
        """Return (status, address)."""
        ptr = PTR()
        return self.cudaMalloc(ctypes.byref(ptr), nbytes), ptr.value or 0

    def stream(self, flags=0):
        """Return (status, handle)."""
        handle = PTR()
        return self.cudaStreamCreateWithFlags(ctypes.byref(handle), flags), handle.value or 0

    def event(self, flags=2):
        """Return (status, handle)."""
        handle = PTR()
        return self.cudaEventCreateWithFlags(ctypes.byref(handle), flags), handle.value or 0

    def capturing(self, stream):
        """Return (status, 0 for no capture, 1 for one, 2 for one that is invalidated)."""
        status = INT(-1)
        return self.cudaStreamIsCapturing(stream, ctypes.byref(status)), status.value

    def end_capture(self, stream):
        """Return (status, handle of the graph)."""
        graph = PTR(0xDEAD)
        return self.cudaStreamEndCapture(stream, ctypes.byref(graph)), graph.value or 0

    def reserve(self, size, alignment=0, flags=0):
        """Return (status, address)."""
        address = U64()
        return self.cuMemAddressReserve(ctypes.byref(address), size, alignment, 0, flags), address.value

    def create(self, size, prop=None, flags=0):
        """Return (status, handle); the memory is that of the current device unless `prop` says otherwise."""
        handle = U64()
        prop = prop or self.prop()
        return self.cuMemCreate(ctypes.byref(handle), size, ctypes.byref(prop), flags), handle.value

    def map(self, address, size, handle, offset=0, flags=0):
        return self.cuMemMap(address, size, offset, handle, flags)

    def set_access(self, address, size, flags=3, count=1, **location):
        """Give the current device access, unless `location` (type, id) says otherwise."""
        wanted = AccessDesc(self.location(**location), flags)
        return self.cuMemSetAccess(address, size, ctypes.byref(wanted), count)

    def location(self, type=1, id=None):
        return Location(type, self.current() if id is None else id)

    def prop(self, type=1, handle_types=0, **location):
        return AllocationProp(type=type, requestedHandleTypes=handle_types, location=self.location(**location))

    def current(self):
        number = INT(-1)
        assert self.cudaGetDevice(ctypes.byref(number)) == 0
        return number.value


@pytest.fixture
def raw():
    """RawCalls, to be called with a device."""
    return RawCalls


@pytest.fixture(scope="session")
def cuda_device():
    """A real device; skips where there is none."""
    try:
        return _cuda.device(0)
    except (DeviceUnavailableError, ImportError) as error:
        pytest.skip(f"no real device: {error}")


@pytest.fixture(params=["sim", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Each test that takes this runs on the simulator and, where there is one, on a real device."""
    if request.param == "cuda":
        yield request.getfixturevalue("cuda_device")
        return
    with sim.Device("8GiB", granularity="4KiB") as simulated:       # small, so that small pools have many
        yield simulated
        assert simulated.errors == [] and simulated.races == []


@pytest.fixture
def make_device():
    """Factory of simulated devices; a test that misuses one, or lets streams race, says so."""
    made = []

    def make(memory="64MiB", *args, misuse=False, races=False, **kwargs):
        simulated = sim.Device(memory, *args, **kwargs)
        made.append((simulated, misuse, races))
        return simulated

    yield make
    sim.set_current_device(None)
    for simulated, misuse, races in made:
        simulated.check()
        simulated.close()
        assert misuse or simulated.errors == []
        assert races or simulated.races == []


@pytest.fixture(params=["malloc", "virtual"])
def backing(request):
    """Each test that takes this runs on both backings."""
    return request.param


@pytest.fixture
def make_pool(device, backing):
    """Function from the arguments of Pool to a pool on `device` that is checked and closed after the test."""
    made = []

    def make(capacity, kind=CheckedPool, **settings):
        made.append(kind(capacity, device=device, backing=backing, **settings))
        return made[-1]

    yield make
    for pool in made:
        if not pool.closed:
            pool.check()
            pool.close()


@pytest.fixture
def make_growing(device, make_pool):
    """Function from what a pool begins with, and its limit, to a pool that grows on `device`."""
    return lambda capacity, limit=None, **settings: make_pool(capacity, growth="dynamic", max_capacity=limit,
                                                              **settings)


@pytest.fixture
def run_python(tmp_path):
    """Function that runs code in a fresh interpreter, away from the source tree, whose package is not built."""

    def run(code, timeout=120):
        return subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True,
                              timeout=timeout)

    return run


@pytest.fixture
def shared_path():
    """Function from a name to its path in ../shared; skips where that is missing."""

    def find(*parts):
        path = ROOT.parent.joinpath("shared", *parts)
        if not path.exists():
            pytest.skip(f"no {Path('..', 'shared', *parts)}")
        return path

    return find


@pytest.fixture(scope="session")
def memory_viz():
    """PyTorch's own tools for snapshots; skips where it is missing."""
    return pytest.importorskip("torch.cuda._memory_viz", exc_type=ImportError)
