"""CUDA's calls over the simulated devices: each is recorded, delayed and failed as asked, then carried out.

Here are the calls about devices and memory, and what all calls share; _sim_stream_calls has those about streams,
_sim_virtual_calls those about virtual memory.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset
from posix.time cimport nanosleep, timespec

from cuda_pool._driver cimport (
    cudaError_t, cudaErrorCapturedEvent, cudaErrorInvalidDevice, cudaErrorInvalidResourceHandle,
    cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorNotPermitted,
    cudaErrorStreamCaptureImplicit, cudaErrorStreamCaptureUnsupported, cudaMemcpyDefault, cudaMemcpyDeviceToDevice,
    cudaMemcpyDeviceToHost, cudaMemcpyHostToDevice, cudaStream_t, cudaSuccess, driver_t)
from cuda_pool._sim_device cimport (
    NO_DEVICE, current_number, current_set, devices_count, devices_get, devices_owning, sim_device_t, sim_lock,
    sim_unlock, thread_is_called, thread_number)
from cuda_pool._sim_drive cimport device_await_all, device_await_stream
from cuda_pool._sim_error cimport sim_driver_error_name, sim_error_name, sim_error_string
from cuda_pool._sim_event cimport event_t
from cuda_pool._sim_graph cimport (
    capture_break, captures_forbid_legacy, captures_forbid_unsafe, captures_forbid_waiting, event_forbid, work_submit)
from cuda_pool._sim_handle cimport HANDLE_STREAM, handle_get, handle_was_used
from cuda_pool._sim_log cimport *
from cuda_pool._sim_memory cimport (
    live_t, memory_allocate, memory_find, memory_free, memory_largest, memory_owns, memory_place, memory_release,
    place_t)
from cuda_pool._sim_op cimport OP_COPY, OP_FILL, OP_FREE, op_make, op_t, span_make
from cuda_pool._sim_stream cimport stream_of_thread, stream_t
from cuda_pool._sim_virtual cimport virtual_find

# What the simulator answers for the interface level it has.
cdef enum:
    VERSION = 13000

cdef driver_t table


cdef driver_t* sim_table() noexcept nogil:
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
        free[0] = memory_free(&device.memory)
        total[0] = device.memory.memory
    return call_end(code)


cdef cudaError_t sim_malloc(void** ptr, size_t nbytes) noexcept nogil:
    cdef sim_device_t* device
    cdef cudaError_t code = call_begin_current(CALL_MALLOC, nbytes, 0, 0, 0, 0, &device)
    if code <= cudaSuccess and captures_forbid_unsafe(thread_number()):
        code = capture_misuse(device, CALL_MALLOC, 0, cudaErrorStreamCaptureUnsupported)
    return call_end(device_allocate(device, code, ptr, nbytes))


cdef cudaError_t sim_malloc_async(void** ptr, size_t nbytes, cudaStream_t stream) noexcept nogil:
    """Allocate at once; only cudaFreeAsync keeps to the order of a stream."""
    cdef sim_device_t* device
    cdef stream_t* queue
    cdef cudaError_t code = call_begin_work(CALL_MALLOC_ASYNC, nbytes, <uint64_t>stream, 0, 0, 0, stream, &device,
                                            &queue)
    if code <= cudaSuccess and queue.capture is not NULL:
        code = capture_misuse(device, CALL_MALLOC_ASYNC, <uint64_t>stream,
                              capture_break(queue, cudaErrorStreamCaptureUnsupported))
    return call_end(device_allocate(device, code, ptr, nbytes))


cdef cudaError_t sim_free(void* ptr) noexcept nogil:
    """Free memory after waiting for all work on its device."""
    cdef sim_device_t* device
    cdef live_t* live = NULL
    cdef cudaError_t code = call_begin(CALL_FREE, <uint64_t>ptr, 0, 0, 0, 0, &device)
    if code != cudaSuccess or ptr is NULL:
        return call_end(code)
    if captures_forbid_unsafe(thread_number()):
        return call_end(capture_misuse(device, CALL_FREE, 0, cudaErrorStreamCaptureUnsupported))
    code = live_check(device, CALL_FREE, ptr, &live)
    if code == cudaSuccess and device.timeline.pending > 0:
        code = await_and_find(CALL_FREE, ptr, &device, &live)
    elif code == cudaSuccess:
        code = device_await_all(device)
    if live is not NULL:
        memory_release(&device.memory, live)
    return call_end(code)


cdef cudaError_t sim_free_async(void* ptr, cudaStream_t stream) noexcept nogil:
    cdef sim_device_t* device
    cdef stream_t* queue
    cdef live_t* live = NULL
    cdef op_t op
    cdef cudaError_t code = call_begin_work(CALL_FREE_ASYNC, <uint64_t>ptr, <uint64_t>stream, 0, 0, 0, stream, &device,
                                            &queue)
    if code == cudaSuccess and queue.capture is not NULL:
        code = capture_misuse(device, CALL_FREE_ASYNC, <uint64_t>stream,
                              capture_break(queue, cudaErrorStreamCaptureUnsupported))
    if code != cudaSuccess or ptr is NULL:
        return call_end(code)
    code = live_check(device, CALL_FREE_ASYNC, ptr, &live)
    if code == cudaSuccess:
        op = op_make(OP_FREE, CALL_FREE_ASYNC, 0)
        op.writes = span_make(&device.memory, ptr, live.size)
        live.leaving = True         # before it runs: then `live` is gone
        code = work_submit(queue, &op)
        if code != cudaSuccess:
            live.leaving = False
    return call_end(code)


cdef cudaError_t sim_memcpy_async(void* destination, const void* source, size_t nbytes, int kind,
                                  cudaStream_t stream) noexcept nogil:
    cdef sim_device_t* device
    cdef stream_t* queue
    cdef cudaError_t code = call_begin_work(CALL_MEMCPY_ASYNC, <uint64_t>destination, <uint64_t>source, nbytes, kind,
                                            <uint64_t>stream, stream, &device, &queue)
    if code == cudaSuccess:
        code = copy_submit(device, queue, destination, source, nbytes, kind)
    return call_end(code)


cdef cudaError_t sim_memset_async(void* ptr, int value, size_t nbytes, cudaStream_t stream) noexcept nogil:
    cdef sim_device_t* device
    cdef stream_t* queue
    cdef op_t op
    cdef cudaError_t code = call_begin_work(CALL_MEMSET_ASYNC, <uint64_t>ptr, <uint64_t>value, nbytes,
                                            <uint64_t>stream, 0, stream, &device, &queue)
    if code == cudaSuccess:
        code = access_check(device, CALL_MEMSET_ASYNC, ptr, nbytes, True)
    if code == cudaSuccess and nbytes > 0:
        op = op_make(OP_FILL, CALL_MEMSET_ASYNC, 0)
        op.writes = span_make(&device.memory, ptr, nbytes)
        op.value = value
        code = work_submit(queue, &op)
    return call_end(code)


cdef cudaError_t sim_stream_synchronize(cudaStream_t stream) noexcept nogil:
    cdef sim_device_t* device
    cdef stream_t* queue
    cdef cudaError_t code = call_begin_stream(CALL_STREAM_SYNCHRONIZE, <uint64_t>stream, 0, 0, stream, &device, &queue)
    if code == cudaSuccess:
        code = query_check(device, CALL_STREAM_SYNCHRONIZE, <uint64_t>stream, queue)
    if code == cudaSuccess:
        code = device_await_stream(device, queue)
    return call_end(code)


cdef cudaError_t sim_device_synchronize() noexcept nogil:
    cdef sim_device_t* device
    cdef cudaError_t code = call_begin_current(CALL_DEVICE_SYNCHRONIZE, 0, 0, 0, 0, 0, &device)
    if code == cudaSuccess and captures_forbid_waiting(&device.timeline):
        code = capture_misuse(device, CALL_DEVICE_SYNCHRONIZE, 0, cudaErrorStreamCaptureUnsupported)
    if code == cudaSuccess:
        code = device_await_all(device)
    return call_end(code)


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


cdef cudaError_t call_begin_stream(int name, uint64_t a, uint64_t b, uint64_t c, cudaStream_t handle,
                                   sim_device_t** device, stream_t** stream) noexcept nogil:
    """Begin a call about a stream, whatever device is current; it is recorded at the stream's device."""
    cdef stream_t* named
    cdef cudaError_t code
    sim_lock()
    named = <stream_t*>handle_get(HANDLE_STREAM, <uint64_t>handle)
    device[0] = devices_get(current_number() if named is NULL else named.timeline.device)
    code = call_record(name, a, b, c, 0, 0, device)
    return stream_resolve(code, name, <uint64_t>handle, device[0], stream)


cdef cudaError_t call_begin_work(int name, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                                 cudaStream_t handle, sim_device_t** device, stream_t** stream) noexcept nogil:
    """Begin a call that queues work on a stream of the current device."""
    cdef cudaError_t code = call_begin(name, a, b, c, d, e, device)
    code = stream_resolve(code, name, <uint64_t>handle, device[0], stream)
    if code > cudaSuccess:
        return code
    if stream[0].timeline is not &device[0].timeline:
        return handle_misuse(device[0], name, <uint64_t>handle, MISUSE_STREAM_DEVICE, stream[0].timeline.device)
    if stream[0] is device[0].timeline.legacy and captures_forbid_legacy(&device[0].timeline):
        return capture_misuse(device[0], name, <uint64_t>handle, cudaErrorStreamCaptureImplicit)
    return code


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
    if thread_is_called():
        handle_misuse(device[0], name, 0, MISUSE_HOST_FUNCTION, 0)
        return cudaErrorNotPermitted
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


cdef cudaError_t stream_resolve(cudaError_t code, int name, uint64_t handle, sim_device_t* device,
                                stream_t** stream) noexcept nogil:
    """Find the stream that a handle names for the calling thread; `code` is the call's so far."""
    stream[0] = NULL
    if code > cudaSuccess:
        return code
    if device is NULL or device.closed:
        return cudaErrorInvalidDevice
    if handle <= 1:
        stream[0] = device.timeline.legacy
    elif handle == 2:
        stream[0] = stream_of_thread(&device.timeline, thread_number())
        return code if stream[0] is not NULL else cudaErrorMemoryAllocation
    else:
        stream[0] = <stream_t*>handle_get(HANDLE_STREAM, handle)
    if stream[0] is NULL:
        return handle_misuse(device, name, handle,
                             MISUSE_STREAM_GONE if handle_was_used(HANDLE_STREAM, handle) else MISUSE_NO_STREAM, 0)
    return code


cdef cudaError_t query_check(sim_device_t* device, int name, uint64_t handle, stream_t* stream) noexcept nogil:
    """Refuse to ask after a stream, or wait for it, where a capture forbids that."""
    if stream.capture is not NULL:
        return capture_misuse(device, name, handle, capture_break(stream, cudaErrorStreamCaptureUnsupported))
    if stream is device.timeline.legacy and captures_forbid_legacy(&device.timeline):
        return capture_misuse(device, name, handle, cudaErrorStreamCaptureImplicit)
    if captures_forbid_unsafe(thread_number()):
        return capture_misuse(device, name, handle, cudaErrorStreamCaptureUnsupported)
    return cudaSuccess


cdef cudaError_t event_check(sim_device_t* device, int name, const event_t* event) noexcept nogil:
    """Refuse to ask after an event, or wait for it, where a capture forbids that."""
    if event.capture != 0:
        event_forbid(event)
        return capture_misuse(device, name, event.handle, cudaErrorCapturedEvent)
    if captures_forbid_unsafe(thread_number()):
        return capture_misuse(device, name, event.handle, cudaErrorStreamCaptureUnsupported)
    return cudaSuccess


cdef cudaError_t device_allocate(sim_device_t* device, cudaError_t code, void** ptr, size_t nbytes) noexcept nogil:
    cdef live_t* live = memory_largest(&device.memory) if code == RULE_ALIAS else NULL
    cdef int number
    if live is not NULL:
        ptr[0] = live.address
        return cudaSuccess
    if code > 0:
        return code
    ptr[0] = NULL
    if nbytes == 0 or memory_allocate(&device.memory, nbytes, <char**>ptr) == 0:
        return cudaSuccess
    if device.timeline.pending == 0:
        return cudaErrorMemoryAllocation
    # What cudaFreeAsync has queued may make room.
    number = device.number
    code = device_await_all(device)
    if code == cudaSuccess and memory_allocate(&devices_get(number).memory, nbytes, <char**>ptr) != 0:
        code = cudaErrorMemoryAllocation
    return code


cdef cudaError_t live_check(sim_device_t* device, int name, void* ptr, live_t** live) noexcept nogil:
    """Find the allocation that starts at `ptr`, unless its free is queued already."""
    cdef int kind = MISUSE_INTERIOR
    live[0] = memory_find(&device.memory, <char*>ptr) if device is not NULL else NULL
    if live[0] is not NULL and live[0].address == ptr and not (live[0].leaving and name == CALL_FREE_ASYNC):
        return cudaSuccess
    if live[0] is NULL:
        kind = MISUSE_VIRTUAL if device is not NULL and memory_owns(&device.memory, ptr) else MISUSE_UNKNOWN
    live[0] = NULL
    return misuse_report(device, name, <uint64_t>ptr, 0, kind)


cdef cudaError_t await_and_find(int name, void* ptr, sim_device_t** device, live_t** live) noexcept nogil:
    """Wait for the device, then find out again where it and the allocation at `ptr` are."""
    cdef int number = device[0].number
    cdef cudaError_t fault = device_await_all(device[0])
    cdef cudaError_t code
    live[0] = NULL
    device[0] = devices_get(number)
    if device[0] is NULL or device[0].closed:
        return cudaErrorInvalidDevice
    code = live_check(device[0], name, ptr, live)
    return code if code != cudaSuccess else fault


cdef cudaError_t copy_submit(sim_device_t* device, stream_t* stream, void* destination, const void* source,
                             size_t nbytes, int kind) noexcept nogil:
    """Queue a copy; one into host memory is waited for, as CUDA does where that is not pinned."""
    cdef bint to_device = False, from_device = False
    cdef cudaError_t code = copy_sides(device, destination, source, nbytes, kind, &to_device, &from_device)
    cdef op_t op = op_make(OP_COPY, CALL_MEMCPY_ASYNC, 0)
    if code != cudaSuccess or nbytes == 0:
        return code
    op.destination = <char*>destination
    op.source = <const char*>source
    op.nbytes = nbytes
    op.pageable = not from_device
    if to_device:
        op.writes = span_make(&device.memory, destination, nbytes)
    if from_device:
        op.reads = span_make(&device.memory, source, nbytes)
    code = work_submit(stream, &op)
    if code != cudaSuccess or to_device or stream.capture is not NULL:
        return code
    return device_await_stream(device, stream)


cdef cudaError_t copy_sides(sim_device_t* device, const void* destination, const void* source, size_t nbytes, int kind,
                            bint* to_device, bint* from_device) noexcept nogil:
    """Tell which sides of a copy are device memory, and check those."""
    to_device[0] = kind == cudaMemcpyHostToDevice or kind == cudaMemcpyDeviceToDevice
    from_device[0] = kind == cudaMemcpyDeviceToHost or kind == cudaMemcpyDeviceToDevice
    if kind == cudaMemcpyDefault:
        to_device[0] = devices_owning(<char*>destination) is not NULL
        from_device[0] = devices_owning(<char*>source) is not NULL
    elif kind < 0 or kind > cudaMemcpyDefault:
        return cudaErrorInvalidValue
    # Whatever `kind` says, reserved addresses are looked up: they may be inaccessible to the host.
    to_device[0] = to_device[0] or virtual_find(&device.memory.space, <uint64_t>destination) is not NULL
    from_device[0] = from_device[0] or virtual_find(&device.memory.space, <uint64_t>source) is not NULL
    cdef cudaError_t code = cudaSuccess
    if to_device[0]:
        code = access_check(device, CALL_MEMCPY_ASYNC, destination, nbytes, True)
    if from_device[0] and code == cudaSuccess:
        code = access_check(device, CALL_MEMCPY_ASYNC, source, nbytes, False)
    return code


cdef cudaError_t access_check(sim_device_t* device, int name, const void* ptr, size_t nbytes,
                              bint write) noexcept nogil:
    """Check that the bytes lie in one allocation of the device, or are mapped there."""
    cdef place_t place
    cdef int kind = memory_place(&device.memory, ptr, nbytes, write, &place) if nbytes > 0 else MISUSE_NONE
    return cudaSuccess if kind == MISUSE_NONE else misuse_report(device, name, <uint64_t>ptr, nbytes, kind)


cdef cudaError_t misuse_report(sim_device_t* device, int name, uint64_t address, size_t nbytes,
                               int kind) noexcept nogil:
    """Record a wrong address at the current device and at the one that owns it; return the call's result."""
    cdef sim_device_t* owner = devices_owning(<char*>address)
    cdef place_t place
    cdef misuse_t misuse
    memset(&misuse, 0, sizeof(misuse_t))
    misuse.name = name
    misuse.current = -1 if device is NULL else device.ordinal
    misuse.address = address
    misuse.size = nbytes
    misuse.kind = kind
    if owner is not NULL:
        memory_place(&owner.memory, <void*>address, 0, False, &place)
        misuse.owner = owner.ordinal
        misuse.base = place.base
        misuse.base_size = place.size
    if owner is not NULL and owner is not device:
        misuse.kind = MISUSE_DEVICE
    if device is not NULL:
        misuses_add(&device.misuses, &misuse)
    if owner is not NULL and owner is not device:
        misuses_add(&owner.misuses, &misuse)
    return cudaErrorInvalidValue


cdef cudaError_t handle_misuse(sim_device_t* device, int name, uint64_t handle, int kind, int owner) noexcept nogil:
    """Record a wrong use of a stream or an event; `owner` is the number of the device that it belongs to."""
    cdef sim_device_t* other = devices_get(owner)
    cdef misuse_t misuse
    memset(&misuse, 0, sizeof(misuse_t))
    misuse.kind = kind
    misuse.name = name
    misuse.current = current_ordinal()
    misuse.address = handle
    misuse.owner = 0 if other is NULL else other.ordinal
    if device is not NULL:
        misuses_add(&device.misuses, &misuse)
    return cudaErrorInvalidResourceHandle


cdef cudaError_t capture_misuse(sim_device_t* device, int name, uint64_t handle, cudaError_t code) noexcept nogil:
    """Record a call that a capture forbids; return `code`."""
    handle_misuse(device, name, handle, MISUSE_CAPTURE, 0)
    return code


cdef cudaError_t attribute_get(int attribute, int* value) noexcept nogil:
    if attribute != 41 and attribute != 115:        # cudaDevAttrUnifiedAddressing, cudaDevAttrMemoryPoolsSupported
        return cudaErrorInvalidValue
    value[0] = 1
    return cudaSuccess


# --- filling the table ----------------------------------------------------------------------------------------------

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
table.cuGetErrorName = sim_driver_error_name
