"""Devices, as seen through the driver table, and the gate that turns the result of a call into an exception."""

import atexit

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, UINT64_MAX, uintptr_t
from libc.string cimport memset

from cuda_pool.errors import CudaError, DeviceUnavailableError
from cuda_pool.sizes import is_index, shown

NO_DEVICE_HINT = ('no usable CUDA device; to run without a GPU, pass the simulated one, '
                  'cp.sim.Device("8GiB") after `import cuda_pool as cp`')

# Codes that say "there is no device to work with", not "this call went wrong".
_UNAVAILABLE = frozenset({
    3,      # cudaErrorInitializationError
    34,     # cudaErrorStubLibrary
    35,     # cudaErrorInsufficientDriver
    46,     # cudaErrorDevicesUnavailable
    100,    # cudaErrorNoDevice
    802,    # cudaErrorSystemNotReady
    803,    # cudaErrorSystemDriverMismatch
    804,    # cudaErrorCompatNotSupportedOnDevice
})

# The entries of driver_t behind its name, in their order.
CALLS = (
    "cudaGetDeviceCount", "cudaGetDevice", "cudaSetDevice", "cudaDeviceGetAttribute", "cudaDriverGetVersion",
    "cudaRuntimeGetVersion", "cudaMemGetInfo", "cudaMalloc", "cudaFree", "cudaMallocAsync", "cudaFreeAsync",
    "cudaMemcpyAsync", "cudaMemsetAsync", "cudaStreamSynchronize", "cudaDeviceSynchronize",
    "cudaStreamCreateWithFlags", "cudaStreamDestroy", "cudaStreamGetId", "cudaStreamQuery", "cudaStreamWaitEvent",
    "cudaStreamIsCapturing", "cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaEventCreateWithFlags",
    "cudaEventRecord", "cudaEventQuery", "cudaEventSynchronize", "cudaEventDestroy", "cudaLaunchHostFunc",
    "cudaGetErrorName", "cudaGetErrorString", "cuDeviceGetAttribute", "cuMemGetAllocationGranularity",
    "cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap",
    "cuMemSetAccess", "cuGetErrorName",
)
TABLE_ENTRIES = sizeof(driver_t) // sizeof(void*) - 1

# One visit to a device: enter it, make a call, perhaps wait for it, leave.
ctypedef struct visit_t:
    const driver_t* driver
    int number
    int previous                    # the device that was current before
    cudaError_t code                # of the latest call
    const char* call                # its name


cdef class Device:
    """Stand for one device, real or simulated.

    Get one from ``cuda_pool.sim.Device`` or by its CUDA ordinal; a bare ``Device()`` has no device behind it,
    and every call on it raises DeviceUnavailableError.

    Every method is thread-safe, leaves the calling thread's current device as it was, runs its driver calls
    without the GIL, and raises CudaError when one of them fails.

    Attributes
    ----------
    ordinal : int
        Number by which the user knows the device.
    name : str
        Name that the driver gives it.
    """

    def __cinit__(self, *args, **kwargs):
        self.driver = &no_driver
        self.name = "no device"

    @property
    def is_simulated(self):
        """Whether host memory plays the device."""
        return self.driver.name == b"sim"

    @property
    def granularity(self):
        """Bytes of which all virtual memory of the device is a multiple; 0 if it has none, or the driver lacks calls.

        Raises
        ------
        CudaError
            A call failed.
        """
        cdef size_t granularity = 0
        cdef visit_t visit
        with nogil:
            if visit_begin_context(&visit, self.driver, self.number, b"cuDeviceGetAttribute"):
                visit_end(&visit, granularity_ask(&visit, &granularity))
        visit_check(&visit)
        return granularity

    def mem_info(self):
        """Return the device's free and total memory.

        Returns
        -------
        (int, int)
            Free and total, in bytes.

        Raises
        ------
        CudaError
            The call failed.
        """
        cdef size_t free = 0, total = 0
        cdef visit_t visit
        with nogil:
            if visit_begin(&visit, self.driver, self.number, b"cudaMemGetInfo"):
                visit_end(&visit, self.driver.cudaMemGetInfo(&free, &total))
        visit_check(&visit)
        return free, total

    def malloc(self, nbytes):
        """Take `nbytes` bytes from the driver itself, past every pool; return their address, 0 for 0 bytes.

        Raises
        ------
        CudaError
            The driver has no such memory, or the call failed otherwise; nothing is taken.
        ValueError, TypeError
            `nbytes` is no integer from 0 to 2**64 - 1.
        """
        cdef size_t wanted = number_of(nbytes, "nbytes", UINT64_MAX)
        cdef void* ptr = NULL
        cdef visit_t visit
        with nogil:
            if visit_begin(&visit, self.driver, self.number, b"cudaMalloc"):
                visit_end(&visit, self.driver.cudaMalloc(&ptr, wanted))
        visit_check(&visit)
        return <uintptr_t>ptr

    def free(self, ptr):
        """Give memory from malloc() back to the driver.

        Parameters
        ----------
        ptr : int
            What malloc() returned; 0 does nothing.

        Raises
        ------
        CudaError
            The driver did not take it back, because the address is not one of its own, for example.
        ValueError, TypeError
            `ptr` is no integer from 0 to 2**64 - 1.
        """
        cdef size_t address = number_of(ptr, "ptr", UINT64_MAX)
        cdef visit_t visit
        with nogil:
            if visit_begin(&visit, self.driver, self.number, b"cudaFree"):
                visit_end(&visit, self.driver.cudaFree(<void*>address))
        visit_check(&visit)

    def memset(self, ptr, value, nbytes):
        """Set `nbytes` bytes of device memory from `ptr` on to `value`, and wait until that is done.

        Raises
        ------
        ValueError, TypeError
            `value` is no integer from 0 to 255, or `ptr` or `nbytes` none from 0 to 2**64 - 1.
        CudaError
            A call failed, because the memory is not allocated, for example.
        """
        cdef size_t address = number_of(ptr, "ptr", UINT64_MAX)
        cdef int byte = number_of(value, "value", 255)
        cdef size_t length = number_of(nbytes, "nbytes", UINT64_MAX)
        cdef visit_t visit
        with nogil:
            if visit_begin(&visit, self.driver, self.number, b"cudaMemsetAsync"):
                visit_wait(&visit, self.driver.cudaMemsetAsync(<void*>address, byte, length, NULL))
        visit_check(&visit)

    def read(self, ptr, nbytes):
        """Return `nbytes` bytes of device memory from `ptr` on as bytes.

        Raises
        ------
        ValueError, TypeError
            `ptr` is no integer from 0 to 2**64 - 1, or `nbytes` none from 0 to 2**63 - 1.
        MemoryError
            The host has no memory for the copy.
        CudaError
            A call failed, because the memory is not allocated, for example.
        """
        cdef size_t address = number_of(ptr, "ptr", UINT64_MAX)
        cdef size_t length = number_of(nbytes, "nbytes", INT64_MAX)
        cdef bytes data = PyBytes_FromStringAndSize(NULL, length)
        cdef void* host = PyBytes_AS_STRING(data)
        self.copy(host, <void*>address, length, cudaMemcpyDeviceToHost)
        return data

    def write(self, ptr, data):
        """Copy `data`, any contiguous buffer, into device memory from `ptr` on.

        Raises
        ------
        TypeError
            `data` is no buffer, or is not contiguous.
        ValueError, TypeError
            `ptr` is no integer from 0 to 2**64 - 1.
        CudaError
            A call failed, because the memory is not allocated, for example.
        """
        cdef size_t address = number_of(ptr, "ptr", UINT64_MAX)
        cdef const unsigned char[::1] source = memoryview(data).cast("B")
        if source.shape[0] > 0:
            self.copy(<void*>address, &source[0], source.shape[0], cudaMemcpyHostToDevice)

    def synchronize(self):
        """Wait until everything queued on the device is done.

        Raises
        ------
        CudaError
            The call, or work that was queued, failed.
        """
        cdef visit_t visit
        with nogil:
            if visit_begin(&visit, self.driver, self.number, b"cudaDeviceSynchronize"):
                visit_end(&visit, self.driver.cudaDeviceSynchronize())
        visit_check(&visit)

    def __repr__(self):
        return f"<{type(self).__module__}.{type(self).__name__} {self.ordinal}: {self.name}>"

    cdef int copy(self, void* destination, const void* source, size_t nbytes, int kind) except -1:
        cdef visit_t visit
        with nogil:
            if visit_begin(&visit, self.driver, self.number, b"cudaMemcpyAsync"):
                visit_wait(&visit, self.driver.cudaMemcpyAsync(destination, source, nbytes, kind, NULL))
        return visit_check(&visit)


def call_address(Device device not None, str name not None):
    """Return the address of a CUDA call in the device's driver table, for ctypes and C; 0 if the driver lacks it."""
    if name not in CALLS:
        raise ValueError(f"the driver table has no {name!r}; it has {', '.join(CALLS)}")
    return (<const uintptr_t*>device.driver)[1 + CALLS.index(name)]


cdef size_t number_of(object value, str name, size_t limit) except? 0:
    """Return an argument as a number, or raise what is wrong with it."""
    if not is_index(value):
        raise TypeError(f"{name} is an integer from 0 to {limit}, got {shown(value)}")
    if not 0 <= value <= limit:
        raise ValueError(f"{name} is from 0 to {limit}, got {shown(value)}")
    return value


cdef cudaError_t device_enter(const driver_t* driver, int number, int* previous) noexcept nogil:
    """Make `number` the calling thread's current device and tell which one was current before."""
    cdef cudaError_t code = driver.cudaGetDevice(previous)
    if code != cudaSuccess or previous[0] == number:
        return code
    return driver.cudaSetDevice(number)


cdef cudaError_t device_enter_context(const driver_t* driver, int number, int* previous) noexcept nogil:
    """Enter a device and make its primary context current, as the calls named cu* need it."""
    cdef cudaError_t code = driver.cudaGetDevice(previous)
    if code != cudaSuccess:
        return code
    return driver.cudaSetDevice(number)


cdef void device_leave(const driver_t* driver, int number, int previous) noexcept nogil:
    """Undo a device_enter() that succeeded."""
    if previous != number:
        driver.cudaSetDevice(previous)


cdef int driver_check(const driver_t* driver, cudaError_t code, str call) except -1:
    """Raise what `code` of `call` means, or return 0."""
    if code == cudaSuccess:
        return 0
    cdef const char* text = NULL
    cdef bint of_driver = call.startswith("cu") and not call.startswith("cuda") and driver.cuGetErrorName is not NULL
    with nogil:
        if of_driver:
            driver.cuGetErrorName(code, &text)
        else:
            text = driver.cudaGetErrorName(code)
    name = "unknown error" if text is NULL else text.decode()
    if code in _UNAVAILABLE:
        raise DeviceUnavailableError(code, name, call, NO_DEVICE_HINT)
    raise CudaError(code, name, call)


cdef bint driver_has_virtual(const driver_t* driver) noexcept nogil:
    return (driver.cuDeviceGetAttribute is not NULL and driver.cuMemGetAllocationGranularity is not NULL
            and driver.cuMemAddressReserve is not NULL and driver.cuMemAddressFree is not NULL
            and driver.cuMemCreate is not NULL and driver.cuMemRelease is not NULL
            and driver.cuMemMap is not NULL and driver.cuMemUnmap is not NULL and driver.cuMemSetAccess is not NULL)


cdef CUmemAllocationProp memory_of(int number) noexcept nogil:
    cdef CUmemAllocationProp prop
    memset(&prop, 0, sizeof(prop))
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE
    prop.location.id = number
    return prop


cdef bint driver_is_shut() noexcept nogil:
    return shut


cdef bint visit_begin(visit_t* visit, const driver_t* driver, int number, const char* call) noexcept nogil:
    """Enter a device in order to make `call`; False when that fails, and then there is nothing to end."""
    return visit_entered(visit, driver, number, call, device_enter(driver, number, &visit.previous))


cdef bint visit_begin_context(visit_t* visit, const driver_t* driver, int number, const char* call) noexcept nogil:
    """Enter a device in order to make `call`, one named cu*."""
    return visit_entered(visit, driver, number, call, device_enter_context(driver, number, &visit.previous))


cdef bint visit_entered(visit_t* visit, const driver_t* driver, int number, const char* call,
                        cudaError_t code) noexcept nogil:
    visit.driver = driver
    visit.number = number
    visit.call = b"cudaSetDevice"
    visit.code = code
    if code != cudaSuccess:
        return False
    visit.call = call
    return True


cdef CUresult granularity_ask(visit_t* visit, size_t* granularity) noexcept nogil:
    """Ask for the granularity of a device that was entered, if it has virtual memory."""
    cdef CUmemAllocationProp prop = memory_of(visit.number)
    cdef int supported = 0
    cdef CUresult code
    if not driver_has_virtual(visit.driver):
        return cudaSuccess
    code = visit.driver.cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                             visit.number)
    if code != cudaSuccess or not supported:
        return code
    visit.call = b"cuMemGetAllocationGranularity"
    return visit.driver.cuMemGetAllocationGranularity(granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM)


cdef void visit_end(visit_t* visit, cudaError_t code) noexcept nogil:
    """Note the code of the call, and leave the device."""
    visit.code = code
    device_leave(visit.driver, visit.number, visit.previous)


cdef void visit_wait(visit_t* visit, cudaError_t code) noexcept nogil:
    """Wait for what the call has queued on stream 0 unless it failed, and leave the device."""
    if code == cudaSuccess:
        visit.call = b"cudaStreamSynchronize"
        code = visit.driver.cudaStreamSynchronize(NULL)
    visit_end(visit, code)


cdef int visit_check(const visit_t* visit) except -1:
    """Raise what went wrong, if anything did."""
    if visit.code == cudaSuccess:
        return 0
    return driver_check(visit.driver, visit.code, visit.call.decode())


# A table for devices that no filling made: device_enter() refuses, so nothing further is ever called.

cdef driver_t no_driver
memset(&no_driver, 0, sizeof(no_driver))
no_driver.name = "none"
no_driver.cudaGetDevice = absent_device
no_driver.cudaGetErrorName = absent_error_name


cdef cudaError_t absent_device(int* number) noexcept nogil:
    number[0] = -1
    return cudaErrorNoDevice


cdef const char* absent_error_name(cudaError_t code) noexcept nogil:
    return "cudaErrorNoDevice"


cdef bint shut = False


def _shut():
    global shut
    shut = True


atexit.register(_shut)
