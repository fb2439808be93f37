"""CUDA's calls over the simulated devices: each is recorded, delayed and failed as asked, then carried out.

Streams complete at once: every stream handle is accepted, and what is put on one has run when the call returns.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memmove, memset
from posix.time cimport nanosleep, timespec

from cuda_pool._driver cimport (
    cudaError_t, cudaErrorInvalidDevice, cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaMemcpyDefault,
    cudaMemcpyDeviceToDevice, cudaMemcpyDeviceToHost, cudaMemcpyHostToDevice, cudaStream_t, cudaSuccess, driver_t)
from cuda_pool._sim_device cimport (
    NO_DEVICE, current_number, current_set, devices_count, devices_get, devices_owning, sim_device_t, sim_lock,
    sim_unlock)
from cuda_pool._sim_log cimport *
from cuda_pool._sim_memory cimport live_t, memory_allocate, memory_find, memory_largest, memory_release

# What the simulator answers for the interface level it has.
cdef enum:
    VERSION = 13000

# The codes that a call here may return or a test may ask for: number, name, text. Kept alive for the C pointers.
ERRORS = (
    (0, b"cudaSuccess", b"no error"),
    (1, b"cudaErrorInvalidValue", b"invalid argument"),
    (2, b"cudaErrorMemoryAllocation", b"out of memory"),
    (3, b"cudaErrorInitializationError", b"initialization error"),
    (4, b"cudaErrorCudartUnloading", b"driver shutting down"),
    (35, b"cudaErrorInsufficientDriver", b"driver version is too old"),
    (46, b"cudaErrorDevicesUnavailable", b"all devices are busy"),
    (100, b"cudaErrorNoDevice", b"no device"),
    (101, b"cudaErrorInvalidDevice", b"invalid device number"),
    (400, b"cudaErrorInvalidResourceHandle", b"invalid resource handle"),
    (600, b"cudaErrorNotReady", b"not ready"),
    (700, b"cudaErrorIllegalAddress", b"illegal memory access"),
    (719, b"cudaErrorLaunchFailure", b"launch failure"),
    (801, b"cudaErrorNotSupported", b"not supported"),
    (900, b"cudaErrorStreamCaptureUnsupported", b"not permitted while a stream is capturing"),
    (999, b"cudaErrorUnknown", b"unknown error"),
)

ctypedef struct error_t:
    int code
    const char* name
    const char* text

cdef enum:
    ERROR_COUNT = 16

cdef error_t errors[ERROR_COUNT]
cdef driver_t table


cdef const driver_t* sim_table() noexcept nogil:
    return &table


# --- the calls --------------------------------------------------------------------------------------------------

cdef cudaError_t sim_get_device_count(int* count) noexcept nogil:
    cdef sim_device_t* device
    cdef cudaError_t code = call_begin(CALL_GET_DEVICE_COUNT, 0, 0, 0, 0, 0, &device)
    if code == cudaSuccess:
        count[0] = devices_count()
    return call_end(code)


cdef cudaError_t sim_get_device(int* number) noexcept nogil:
    cdef sim_device_t* device
    cdef cudaError_t code = call_begin(CALL_GET_DEVICE, 0, 0, 0, 0, 0, &device)
    if code == cudaSuccess:
        number[0] = current_number()
    return call_end(code)


cdef cudaError_t sim_set_device(int number) noexcept nogil:
    """Make a device current; the call is recorded at the device it names."""
    cdef sim_device_t* device
    cdef cudaError_t code = call_begin_on(number, CALL_SET_DEVICE, 0, &device)
    if code == cudaSuccess and number != NO_DEVICE and (device is NULL or device.closed):
        code = cudaErrorInvalidDevice
    if code == cudaSuccess:
        current_set(number)
    return call_end(code)


cdef cudaError_t sim_get_attribute(int* value, int attribute, int number) noexcept nogil:
    cdef sim_device_t* device
    cdef cudaError_t code = call_begin_on(number, CALL_GET_ATTRIBUTE, attribute, &device)
    if code == cudaSuccess and device is NULL:
        code = cudaErrorInvalidDevice
    if code == cudaSuccess:
        code = attribute_get(attribute, value)
    return call_end(code)


cdef cudaError_t sim_driver_version(int* version) noexcept nogil:
    cdef sim_device_t* device
    cdef cudaError_t code = call_begin(CALL_DRIVER_VERSION, 0, 0, 0, 0, 0, &device)
    version[0] = VERSION
    return call_end(code)


cdef cudaError_t sim_runtime_version(int* version) noexcept nogil:
    cdef sim_device_t* device
    cdef cudaError_t code = call_begin(CALL_RUNTIME_VERSION, 0, 0, 0, 0, 0, &device)
    version[0] = VERSION
    return call_end(code)


cdef cudaError_t sim_mem_get_info(size_t* free, size_t* total) noexcept nogil:
    cdef sim_device_t* device
    cdef cudaError_t code = call_begin_current(CALL_MEM_GET_INFO, 0, 0, 0, 0, 0, &device)
    if code == cudaSuccess:
        free[0] = device.memory.memory - device.memory.allocated
        total[0] = device.memory.memory
    return call_end(code)


cdef cudaError_t sim_malloc(void** ptr, size_t nbytes) noexcept nogil:
    cdef sim_device_t* device
    cdef cudaError_t code = call_begin_current(CALL_MALLOC, nbytes, 0, 0, 0, 0, &device)
    return call_end(device_allocate(device, code, ptr, nbytes))


cdef cudaError_t sim_malloc_async(void** ptr, size_t nbytes, cudaStream_t stream) noexcept nogil:
    cdef sim_device_t* device
    cdef cudaError_t code = call_begin_current(CALL_MALLOC_ASYNC, nbytes, <uint64_t>stream, 0, 0, 0, &device)
    return call_end(device_allocate(device, code, ptr, nbytes))


cdef cudaError_t sim_free(void* ptr) noexcept nogil:
    cdef sim_device_t* device
    cdef cudaError_t code = call_begin(CALL_FREE, <uint64_t>ptr, 0, 0, 0, 0, &device)
    return call_end(device_release(device, code, CALL_FREE, ptr))


cdef cudaError_t sim_free_async(void* ptr, cudaStream_t stream) noexcept nogil:
    cdef sim_device_t* device
    cdef cudaError_t code = call_begin(CALL_FREE_ASYNC, <uint64_t>ptr, <uint64_t>stream, 0, 0, 0, &device)
    return call_end(device_release(device, code, CALL_FREE_ASYNC, ptr))


cdef cudaError_t sim_memcpy_async(void* destination, const void* source, size_t nbytes, int kind,
                                  cudaStream_t stream) noexcept nogil:
    cdef sim_device_t* device
    cdef cudaError_t code = call_begin_current(
        CALL_MEMCPY_ASYNC, <uint64_t>destination, <uint64_t>source, nbytes, kind, <uint64_t>stream, &device)
    if code == cudaSuccess:
        code = copy_check(device, destination, source, nbytes, kind)
    if code == cudaSuccess and nbytes > 0:
        memmove(destination, source, nbytes)
    return call_end(code)


cdef cudaError_t sim_memset_async(void* ptr, int value, size_t nbytes, cudaStream_t stream) noexcept nogil:
    cdef sim_device_t* device
    cdef cudaError_t code = call_begin_current(
        CALL_MEMSET_ASYNC, <uint64_t>ptr, <uint64_t>value, nbytes, <uint64_t>stream, 0, &device)
    if code == cudaSuccess:
        code = access_check(device, CALL_MEMSET_ASYNC, ptr, nbytes)
    if code == cudaSuccess and nbytes > 0:
        memset(ptr, value, nbytes)
    return call_end(code)


cdef cudaError_t sim_stream_synchronize(cudaStream_t stream) noexcept nogil:
    cdef sim_device_t* device
    return call_end(call_begin(CALL_STREAM_SYNCHRONIZE, <uint64_t>stream, 0, 0, 0, 0, &device))


cdef cudaError_t sim_device_synchronize() noexcept nogil:
    cdef sim_device_t* device
    return call_end(call_begin_current(CALL_DEVICE_SYNCHRONIZE, 0, 0, 0, 0, 0, &device))


cdef const char* sim_error_name(cudaError_t code) noexcept nogil:
    cdef int i
    for i in range(ERROR_COUNT):
        if errors[i].code == code:
            return errors[i].name
    return "unrecognized error code"


cdef const char* sim_error_string(cudaError_t code) noexcept nogil:
    cdef int i
    for i in range(ERROR_COUNT):
        if errors[i].code == code:
            return errors[i].text
    return "unrecognized error code"


# --- what the calls share: call_begin takes the lock, call_end gives it back ---------------------------------------

cdef cudaError_t call_begin(int name, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                            sim_device_t** device) noexcept nogil:
    """Begin a call that can do without a device; *device is the thread's current one, NULL if it has none."""
    sim_lock()
    device[0] = devices_get(current_number())
    return call_record(name, a, b, c, d, e, device)


cdef cudaError_t call_begin_on(int number, int name, uint64_t a, sim_device_t** device) noexcept nogil:
    """Begin a call that names its device by number; the log shows the ordinal that the user knows."""
    sim_lock()
    device[0] = devices_get(number)
    if device[0] is NULL:
        return cudaSuccess
    return call_record(name, device[0].ordinal, a, 0, 0, 0, device)


cdef cudaError_t call_begin_current(int name, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                                    sim_device_t** device) noexcept nogil:
    """Begin a call that needs a current device."""
    cdef cudaError_t code = call_begin(name, a, b, c, d, e, device)
    return cudaErrorInvalidDevice if device[0] is NULL else code


cdef cudaError_t call_end(cudaError_t code) noexcept nogil:
    sim_unlock()
    return code


cdef cudaError_t call_record(int name, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                             sim_device_t** device) noexcept nogil:
    """Log the call at its device, wait as long as it is delayed there, and return the code it must fail with, or 0."""
    cdef call_t call
    cdef int code
    if device[0] is NULL:
        return cudaSuccess
    call.name = name
    call.current = current_ordinal()
    call.args = [a, b, c, d, e]
    log_add(&device[0].log, &call)
    code = faults_take(&device[0].faults, name)
    if device[0].faults.delay_ns[name] > 0:
        device[0] = call_delay(device[0].faults.delay_ns[name], device[0].number)
    return code


cdef sim_device_t* call_delay(int64_t delay_ns, int number) noexcept nogil:
    """Wait without the lock; return the device, or NULL if it is gone or closed by then."""
    cdef sim_device_t* device
    cdef timespec left
    left.tv_sec = delay_ns // 1_000_000_000
    left.tv_nsec = delay_ns % 1_000_000_000
    sim_unlock()
    while nanosleep(&left, &left) != 0:
        pass
    sim_lock()
    device = devices_get(number)
    return NULL if device is NULL or device.closed else device


cdef int current_ordinal() noexcept nogil:
    cdef sim_device_t* device = devices_get(current_number())
    return -1 if device is NULL else device.ordinal


cdef cudaError_t device_allocate(sim_device_t* device, cudaError_t code, void** ptr, size_t nbytes) noexcept nogil:
    cdef live_t* live = memory_largest(&device.memory) if code == RULE_ALIAS else NULL
    if live is not NULL:
        ptr[0] = live.address
        return cudaSuccess
    if code > 0:
        return code
    ptr[0] = NULL
    if nbytes > 0 and memory_allocate(&device.memory, nbytes, <char**>ptr) != 0:
        return cudaErrorMemoryAllocation
    return cudaSuccess


cdef cudaError_t device_release(sim_device_t* device, cudaError_t code, int name, void* ptr) noexcept nogil:
    if code != cudaSuccess or ptr is NULL:
        return code
    cdef live_t* live = memory_find(&device.memory, <char*>ptr) if device is not NULL else NULL
    if live is NULL or live.address != ptr:
        return misuse_report(device, name, ptr, 0)
    memory_release(&device.memory, live)
    return cudaSuccess


cdef cudaError_t copy_check(sim_device_t* device, const void* destination, const void* source, size_t nbytes,
                            int kind) noexcept nogil:
    """Check the sides of a copy that are device memory."""
    cdef bint to_device = kind == cudaMemcpyHostToDevice or kind == cudaMemcpyDeviceToDevice
    cdef bint from_device = kind == cudaMemcpyDeviceToHost or kind == cudaMemcpyDeviceToDevice
    if kind == cudaMemcpyDefault:
        to_device = devices_owning(<char*>destination) is not NULL
        from_device = devices_owning(<char*>source) is not NULL
    elif kind < 0 or kind > cudaMemcpyDefault:
        return cudaErrorInvalidValue
    cdef cudaError_t code = cudaSuccess
    if to_device:
        code = access_check(device, CALL_MEMCPY_ASYNC, destination, nbytes)
    if from_device and code == cudaSuccess:
        code = access_check(device, CALL_MEMCPY_ASYNC, source, nbytes)
    return code


cdef cudaError_t access_check(sim_device_t* device, int name, const void* ptr, size_t nbytes) noexcept nogil:
    """Check that the bytes lie in one allocation of the device."""
    cdef live_t* live = memory_find(&device.memory, <char*>ptr)
    if nbytes == 0:
        return cudaSuccess
    if live is NULL or nbytes > live.size - (<char*>ptr - live.address):
        return misuse_report(device, name, ptr, nbytes)
    return cudaSuccess


cdef cudaError_t misuse_report(sim_device_t* device, int name, const void* ptr, size_t nbytes) noexcept nogil:
    """Record a wrong address at the current device and at the one that owns it; return the call's result."""
    cdef sim_device_t* owner = devices_owning(<char*>ptr)
    cdef live_t* live = NULL if owner is NULL else memory_find(&owner.memory, <char*>ptr)
    cdef misuse_t misuse
    misuse.name = name
    misuse.current = -1 if device is NULL else device.ordinal
    misuse.address = <uint64_t>ptr
    misuse.size = nbytes
    misuse.owner = 0 if owner is NULL else owner.ordinal
    misuse.base = 0 if live is NULL else <uint64_t>live.address
    misuse.base_size = 0 if live is NULL else live.size
    misuse.kind = misuse_kind(device, owner, nbytes)
    if device is not NULL:
        misuses_add(&device.misuses, &misuse)
    if owner is not NULL and owner is not device:
        misuses_add(&owner.misuses, &misuse)
    return cudaErrorInvalidValue


cdef int misuse_kind(sim_device_t* device, sim_device_t* owner, size_t nbytes) noexcept nogil:
    if owner is NULL:
        return MISUSE_UNKNOWN
    if owner is not device:
        return MISUSE_DEVICE
    return MISUSE_INTERIOR if nbytes == 0 else MISUSE_OUTSIDE


cdef cudaError_t attribute_get(int attribute, int* value) noexcept nogil:
    if attribute != 41 and attribute != 115:        # cudaDevAttrUnifiedAddressing, cudaDevAttrMemoryPoolsSupported
        return cudaErrorInvalidValue
    value[0] = 1
    return cudaSuccess


# --- filling the tables ---------------------------------------------------------------------------------------------

def _fill_errors():
    cdef int i
    for i in range(ERROR_COUNT):
        errors[i].code, errors[i].name, errors[i].text = ERRORS[i]


_fill_errors()
table.name = "sim"
table.cudaGetDeviceCount = sim_get_device_count
table.cudaGetDevice = sim_get_device
table.cudaSetDevice = sim_set_device
table.cudaDeviceGetAttribute = sim_get_attribute
table.cudaDriverGetVersion = sim_driver_version
table.cudaRuntimeGetVersion = sim_runtime_version
table.cudaMemGetInfo = sim_mem_get_info
table.cudaMalloc = sim_malloc
table.cudaFree = sim_free
table.cudaMallocAsync = sim_malloc_async
table.cudaFreeAsync = sim_free_async
table.cudaMemcpyAsync = sim_memcpy_async
table.cudaMemsetAsync = sim_memset_async
table.cudaStreamSynchronize = sim_stream_synchronize
table.cudaDeviceSynchronize = sim_device_synchronize
table.cudaGetErrorName = sim_error_name
table.cudaGetErrorString = sim_error_string
