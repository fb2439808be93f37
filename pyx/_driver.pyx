"""Devices, as seen through the driver table, and the one gate that turns a status into an exception."""

import atexit

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uintptr_t
from libc.string cimport memset

from cuda_pool.errors import CudaError, DeviceUnavailableError

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
    "cudaMemcpyAsync", "cudaMemsetAsync", "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaGetErrorName",
    "cudaGetErrorString",
)
TABLE_ENTRIES = sizeof(driver_t) // sizeof(void*) - 1


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

    def mem_info(self):
        """Return the device's free and total memory.

        Returns
        -------
        (int, int)
            Free and total, in bytes.
        """
        cdef size_t free = 0, total = 0
        cdef const char* call = NULL
        cdef cudaError_t code
        with nogil:
            code = memory_info(self.driver, self.number, &free, &total, &call)
        check(self.driver, code, call)
        return free, total

    def malloc(self, size_t nbytes):
        """Take `nbytes` bytes from the driver itself, past every pool; return their address, 0 for 0 bytes."""
        cdef void* ptr = NULL
        cdef const char* call = NULL
        cdef cudaError_t code
        with nogil:
            code = memory_take(self.driver, self.number, nbytes, &ptr, &call)
        check(self.driver, code, call)
        return <uintptr_t>ptr

    def free(self, size_t ptr):
        """Give memory from malloc() back to the driver."""
        cdef const char* call = NULL
        cdef cudaError_t code
        with nogil:
            code = memory_give(self.driver, self.number, <void*>ptr, &call)
        check(self.driver, code, call)

    def memset(self, size_t ptr, int value, size_t nbytes):
        """Set `nbytes` bytes of device memory from `ptr` on to `value`, and wait until that is done.

        Raises
        ------
        ValueError
            `value` is no byte.
        """
        if not 0 <= value <= 255:
            raise ValueError(f"value is a byte, 0 to 255, got {value}")
        cdef const char* call = NULL
        cdef cudaError_t code
        with nogil:
            code = memory_set(self.driver, self.number, <void*>ptr, value, nbytes, &call)
        check(self.driver, code, call)

    def read(self, size_t ptr, Py_ssize_t nbytes):
        """Return `nbytes` bytes of device memory from `ptr` on as bytes."""
        if nbytes < 0:
            raise ValueError(f"nbytes cannot be negative, got {nbytes}")
        cdef bytes data = PyBytes_FromStringAndSize(NULL, nbytes)
        cdef void* host = PyBytes_AS_STRING(data)
        self.copy(host, <void*>ptr, nbytes, cudaMemcpyDeviceToHost)
        return data

    def write(self, size_t ptr, data):
        """Copy `data`, any contiguous buffer, into device memory from `ptr` on."""
        cdef const unsigned char[::1] source = memoryview(data).cast("B")
        if source.shape[0] > 0:
            self.copy(<void*>ptr, &source[0], source.shape[0], cudaMemcpyHostToDevice)

    def synchronize(self):
        """Wait until everything queued on the device is done."""
        cdef const char* call = NULL
        cdef cudaError_t code
        with nogil:
            code = device_synchronize(self.driver, self.number, &call)
        check(self.driver, code, call)

    def __repr__(self):
        return f"<{type(self).__module__}.{type(self).__name__} {self.ordinal}: {self.name}>"

    cdef int copy(self, void* destination, const void* source, size_t nbytes, int kind) except -1:
        cdef const char* call = NULL
        cdef cudaError_t code
        with nogil:
            code = memory_copy(self.driver, self.number, destination, source, nbytes, kind, &call)
        return check(self.driver, code, call)


def call_address(Device device not None, str name not None):
    """Return the address of a CUDA call in the device's driver table, for ctypes and C; 0 if the driver lacks it."""
    if name not in CALLS:
        raise ValueError(f"the driver table has no {name!r}; it has {', '.join(CALLS)}")
    return (<const uintptr_t*>device.driver)[1 + CALLS.index(name)]


cdef cudaError_t device_enter(const driver_t* driver, int number, int* previous) noexcept nogil:
    """Make `number` the calling thread's current device and tell which one was current before."""
    cdef cudaError_t code = driver.cudaGetDevice(previous)
    if code != cudaSuccess or previous[0] == number:
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
    cdef const char* text
    with nogil:
        text = driver.cudaGetErrorName(code)
    name = "unknown error" if text is NULL else text.decode()
    if code in _UNAVAILABLE:
        raise DeviceUnavailableError(code, name, call, NO_DEVICE_HINT)
    raise CudaError(code, name, call)


cdef bint driver_is_shut() noexcept nogil:
    return shut


# The functions below enter the device, do one thing, wait for it, and leave; *call names the last CUDA call made.

cdef cudaError_t enter(const driver_t* driver, int number, int* previous, const char** call) noexcept nogil:
    call[0] = "cudaSetDevice"
    return device_enter(driver, number, previous)


cdef cudaError_t memory_info(const driver_t* driver, int number, size_t* free, size_t* total,
                             const char** call) noexcept nogil:
    cdef int previous = 0
    cdef cudaError_t code = enter(driver, number, &previous, call)
    if code != cudaSuccess:
        return code
    call[0] = "cudaMemGetInfo"
    code = driver.cudaMemGetInfo(free, total)
    device_leave(driver, number, previous)
    return code


cdef cudaError_t memory_take(const driver_t* driver, int number, size_t nbytes, void** ptr,
                             const char** call) noexcept nogil:
    cdef int previous = 0
    cdef cudaError_t code = enter(driver, number, &previous, call)
    if code != cudaSuccess:
        return code
    call[0] = "cudaMalloc"
    code = driver.cudaMalloc(ptr, nbytes)
    device_leave(driver, number, previous)
    return code


cdef cudaError_t memory_give(const driver_t* driver, int number, void* ptr, const char** call) noexcept nogil:
    cdef int previous = 0
    cdef cudaError_t code = enter(driver, number, &previous, call)
    if code != cudaSuccess:
        return code
    call[0] = "cudaFree"
    code = driver.cudaFree(ptr)
    device_leave(driver, number, previous)
    return code


cdef cudaError_t memory_set(const driver_t* driver, int number, void* ptr, int value, size_t nbytes,
                            const char** call) noexcept nogil:
    cdef int previous = 0
    cdef cudaError_t code = enter(driver, number, &previous, call)
    if code != cudaSuccess:
        return code
    call[0] = "cudaMemsetAsync"
    code = driver.cudaMemsetAsync(ptr, value, nbytes, NULL)
    if code == cudaSuccess:
        code = stream_wait(driver, call)
    device_leave(driver, number, previous)
    return code


cdef cudaError_t memory_copy(const driver_t* driver, int number, void* destination, const void* source, size_t nbytes,
                             int kind, const char** call) noexcept nogil:
    cdef int previous = 0
    cdef cudaError_t code = enter(driver, number, &previous, call)
    if code != cudaSuccess:
        return code
    call[0] = "cudaMemcpyAsync"
    code = driver.cudaMemcpyAsync(destination, source, nbytes, kind, NULL)
    if code == cudaSuccess:
        code = stream_wait(driver, call)
    device_leave(driver, number, previous)
    return code


cdef cudaError_t device_synchronize(const driver_t* driver, int number, const char** call) noexcept nogil:
    cdef int previous = 0
    cdef cudaError_t code = enter(driver, number, &previous, call)
    if code != cudaSuccess:
        return code
    call[0] = "cudaDeviceSynchronize"
    code = driver.cudaDeviceSynchronize()
    device_leave(driver, number, previous)
    return code


cdef cudaError_t stream_wait(const driver_t* driver, const char** call) noexcept nogil:
    call[0] = "cudaStreamSynchronize"
    return driver.cudaStreamSynchronize(NULL)


cdef int check(const driver_t* driver, cudaError_t code, const char* call) except -1:
    if code == cudaSuccess:
        return 0
    return driver_check(driver, code, call.decode())


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
