"""CUDA's calls about streams, events and captures over the simulated devices."""

from libc.stdint cimport uint64_t

from cuda_pool._driver cimport (
    cudaError_t, cudaErrorInvalidDevice, cudaErrorInvalidResourceHandle,
    cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorStreamCaptureImplicit,
    cudaErrorStreamCaptureUnsupported, cudaEvent_t, cudaGraph_t, cudaHostFn_t, cudaStream_t, cudaStreamNonBlocking,
    cudaSuccess, driver_t)
from cuda_pool._sim_calls cimport (
    call_begin_current, call_begin_stream, call_begin_work, call_end, call_record, capture_misuse, event_check,
    handle_misuse, query_check, sim_table)
from cuda_pool._sim_device cimport current_number, devices_get, sim_device_t, sim_lock, thread_number
from cuda_pool._sim_drive cimport device_await, device_query, device_query_stream
from cuda_pool._sim_event cimport event_create, event_destroy, event_t
from cuda_pool._sim_graph cimport (
    capture_begin, capture_break, capture_end, capture_status, captures_forbid_legacy, captures_use_legacy, graph_t,
    work_record, work_submit, work_wait)
from cuda_pool._sim_handle cimport HANDLE_EVENT, handle_get, handle_was_used
from cuda_pool._sim_log cimport *
from cuda_pool._sim_op cimport OP_CALL, op_make, op_t
from cuda_pool._sim_stream cimport stream_create, stream_destroy, stream_t

cdef enum:
    EVENT_FLAGS = 7                 # blocking synchronization, no timing, interprocess
    CAPTURE_MODES = 3


# --- streams --------------------------------------------------------------------------------------------------------

cdef cudaError_t sim_stream_create(cudaStream_t* handle, unsigned int flags) noexcept nogil:
    cdef sim_device_t* device
    cdef stream_t* stream
    cdef cudaError_t code = call_begin_current(CALL_STREAM_CREATE, flags, 0, 0, 0, 0, &device)
    if code == cudaSuccess and flags > cudaStreamNonBlocking:
        code = cudaErrorInvalidValue
    if code == cudaSuccess:
        stream = stream_create(&device.timeline, flags != cudaStreamNonBlocking, True)
        if stream is NULL:
            code = cudaErrorMemoryAllocation
        else:
            handle[0] = <cudaStream_t>stream.handle
    return call_end(code)


cdef cudaError_t sim_stream_destroy(cudaStream_t handle) noexcept nogil:
    cdef sim_device_t* device
    cdef stream_t* stream
    cdef cudaError_t code = call_begin_stream(CALL_STREAM_DESTROY, <uint64_t>handle, 0, 0, handle, &device, &stream)
    if code == cudaSuccess and stream.handle == 0:
        code = cudaErrorInvalidResourceHandle       # a default stream
    elif code == cudaSuccess and stream.capture is not NULL:
        code = capture_misuse(device, CALL_STREAM_DESTROY, <uint64_t>handle,
                              capture_break(stream, cudaErrorStreamCaptureUnsupported))
    if code == cudaSuccess:
        stream_destroy(stream)
    return call_end(code)


cdef cudaError_t sim_stream_get_id(cudaStream_t handle, unsigned long long* id) noexcept nogil:
    cdef sim_device_t* device
    cdef stream_t* stream
    cdef cudaError_t code = call_begin_stream(CALL_STREAM_GET_ID, <uint64_t>handle, 0, 0, handle, &device, &stream)
    if code == cudaSuccess:
        id[0] = stream.id
    return call_end(code)


cdef cudaError_t sim_stream_query(cudaStream_t handle) noexcept nogil:
    cdef sim_device_t* device
    cdef stream_t* stream
    cdef cudaError_t code = call_begin_stream(CALL_STREAM_QUERY, <uint64_t>handle, 0, 0, handle, &device, &stream)
    if code == cudaSuccess:
        code = query_check(device, CALL_STREAM_QUERY, <uint64_t>handle, stream)
    if code == cudaSuccess:
        code = device_query_stream(device, stream)
    return call_end(code)


cdef cudaError_t sim_stream_wait_event(cudaStream_t handle, cudaEvent_t named, unsigned int flags) noexcept nogil:
    cdef sim_device_t* device
    cdef stream_t* stream
    cdef event_t* event
    cdef cudaError_t code = call_begin_stream(CALL_STREAM_WAIT_EVENT, <uint64_t>handle, <uint64_t>named, flags, handle,
                                              &device, &stream)
    code = event_resolve(code, CALL_STREAM_WAIT_EVENT, named, device, &event)
    if code == cudaSuccess and flags > 1:           # cudaEventWaitExternal
        code = cudaErrorInvalidValue
    if code == cudaSuccess and stream is device.timeline.legacy and captures_forbid_legacy(&device.timeline):
        code = capture_misuse(device, CALL_STREAM_WAIT_EVENT, <uint64_t>handle, cudaErrorStreamCaptureImplicit)
    if code == cudaSuccess:
        code = work_wait(stream, event)
    return call_end(code)


cdef cudaError_t sim_launch_host_func(cudaStream_t handle, cudaHostFn_t function, void* argument) noexcept nogil:
    cdef sim_device_t* device
    cdef stream_t* stream
    cdef op_t op
    cdef cudaError_t code = call_begin_work(CALL_LAUNCH_HOST_FUNC, <uint64_t>handle, <uint64_t>function,
                                            <uint64_t>argument, 0, 0, handle, &device, &stream)
    if code == cudaSuccess and function is NULL:
        code = cudaErrorInvalidValue
    if code == cudaSuccess:
        op = op_make(OP_CALL, CALL_LAUNCH_HOST_FUNC, 0)
        op.function = function
        op.argument = argument
        code = work_submit(stream, &op)
    return call_end(code)


# --- captures ---------------------------------------------------------------------------------------------------

cdef cudaError_t sim_stream_is_capturing(cudaStream_t handle, int* status) noexcept nogil:
    cdef sim_device_t* device
    cdef stream_t* stream
    cdef cudaError_t code = call_begin_stream(CALL_STREAM_IS_CAPTURING, <uint64_t>handle, 0, 0, handle, &device,
                                              &stream)
    if code == cudaSuccess and stream is device.timeline.legacy and captures_use_legacy(&device.timeline):
        code = cudaErrorStreamCaptureImplicit
    if code == cudaSuccess:
        status[0] = capture_status(stream)
    return call_end(code)


cdef cudaError_t sim_begin_capture(cudaStream_t handle, int mode) noexcept nogil:
    cdef sim_device_t* device
    cdef stream_t* stream
    cdef cudaError_t code = call_begin_stream(CALL_BEGIN_CAPTURE, <uint64_t>handle, mode, 0, handle, &device, &stream)
    if code == cudaSuccess and not 0 <= mode < CAPTURE_MODES:
        code = cudaErrorInvalidValue
    if code == cudaSuccess:
        code = capture_begin(stream, mode, thread_number())
    return call_end(code)


cdef cudaError_t sim_end_capture(cudaStream_t handle, cudaGraph_t* graph) noexcept nogil:
    cdef sim_device_t* device
    cdef stream_t* stream
    cdef graph_t* made = NULL
    cdef cudaError_t code = call_begin_stream(CALL_END_CAPTURE, <uint64_t>handle, 0, 0, handle, &device, &stream)
    if code == cudaSuccess:
        code = capture_end(stream, thread_number(), &made)
        graph[0] = <cudaGraph_t>(0 if made is NULL else made.handle)
    return call_end(code)


# --- events -----------------------------------------------------------------------------------------------------

cdef cudaError_t sim_event_create(cudaEvent_t* handle, unsigned int flags) noexcept nogil:
    cdef sim_device_t* device
    cdef event_t* event
    cdef cudaError_t code = call_begin_current(CALL_EVENT_CREATE, flags, 0, 0, 0, 0, &device)
    if code == cudaSuccess and flags > EVENT_FLAGS:
        code = cudaErrorInvalidValue
    if code == cudaSuccess:
        event = event_create(&device.timeline)
        if event is NULL:
            code = cudaErrorMemoryAllocation
        else:
            handle[0] = <cudaEvent_t>event.handle
    return call_end(code)


cdef cudaError_t sim_event_record(cudaEvent_t named, cudaStream_t handle) noexcept nogil:
    cdef sim_device_t* device
    cdef stream_t* stream
    cdef event_t* event
    cdef cudaError_t code = call_begin_work(CALL_EVENT_RECORD, <uint64_t>named, <uint64_t>handle, 0, 0, 0, handle,
                                            &device, &stream)
    code = event_resolve(code, CALL_EVENT_RECORD, named, device, &event)
    if code == cudaSuccess and event.timeline is not stream.timeline:
        code = handle_misuse(device, CALL_EVENT_RECORD, <uint64_t>named, MISUSE_EVENT_DEVICE, event.timeline.device)
    if code == cudaSuccess:
        code = work_record(event, stream)
    return call_end(code)


cdef cudaError_t sim_event_query(cudaEvent_t named) noexcept nogil:
    cdef sim_device_t* device
    cdef event_t* event
    cdef cudaError_t code = call_begin_event(CALL_EVENT_QUERY, named, &device, &event)
    if code == cudaSuccess:
        code = event_check(device, CALL_EVENT_QUERY, event)
    if code == cudaSuccess:
        code = device_query(device, event.clock, event.lanes)
    return call_end(code)


cdef cudaError_t sim_event_synchronize(cudaEvent_t named) noexcept nogil:
    cdef sim_device_t* device
    cdef event_t* event
    cdef cudaError_t code = call_begin_event(CALL_EVENT_SYNCHRONIZE, named, &device, &event)
    if code == cudaSuccess:
        code = event_check(device, CALL_EVENT_SYNCHRONIZE, event)
    if code == cudaSuccess:
        code = device_await(device, event.clock, event.lanes)
    return call_end(code)


cdef cudaError_t sim_event_destroy(cudaEvent_t named) noexcept nogil:
    cdef sim_device_t* device
    cdef event_t* event
    cdef cudaError_t code = call_begin_event(CALL_EVENT_DESTROY, named, &device, &event)
    if code == cudaSuccess:
        event_destroy(event)
    return call_end(code)


# --- what they share ------------------------------------------------------------------------------------------------

cdef cudaError_t call_begin_event(int name, cudaEvent_t handle, sim_device_t** device, event_t** event) noexcept nogil:
    """Begin a call about an event, whatever device is current; it is recorded at the event's device."""
    cdef event_t* named
    cdef cudaError_t code
    sim_lock()
    named = <event_t*>handle_get(HANDLE_EVENT, <uint64_t>handle)
    device[0] = devices_get(current_number() if named is NULL else named.timeline.device)
    code = call_record(name, <uint64_t>handle, 0, 0, 0, 0, device)
    return event_resolve(code, name, handle, device[0], event)


cdef cudaError_t event_resolve(cudaError_t code, int name, cudaEvent_t handle, sim_device_t* device,
                               event_t** event) noexcept nogil:
    """Find the event that a handle names; `code` is the call's so far."""
    event[0] = NULL
    if code != cudaSuccess:
        return code
    if device is NULL or device.closed:
        return cudaErrorInvalidDevice
    event[0] = <event_t*>handle_get(HANDLE_EVENT, <uint64_t>handle)
    if event[0] is not NULL:
        return cudaSuccess
    return handle_misuse(device, name, <uint64_t>handle, MISUSE_EVENT_GONE if handle_was_used(
        HANDLE_EVENT, <uint64_t>handle) else MISUSE_NO_EVENT, 0)


def _fill_table():
    cdef driver_t* table = sim_table()
    table.cudaStreamCreateWithFlags = sim_stream_create
    table.cudaStreamDestroy = sim_stream_destroy
    table.cudaStreamGetId = sim_stream_get_id
    table.cudaStreamQuery = sim_stream_query
    table.cudaStreamWaitEvent = sim_stream_wait_event
    table.cudaStreamIsCapturing = sim_stream_is_capturing
    table.cudaStreamBeginCapture = sim_begin_capture
    table.cudaStreamEndCapture = sim_end_capture
    table.cudaEventCreateWithFlags = sim_event_create
    table.cudaEventRecord = sim_event_record
    table.cudaEventQuery = sim_event_query
    table.cudaEventSynchronize = sim_event_synchronize
    table.cudaEventDestroy = sim_event_destroy
    table.cudaLaunchHostFunc = sim_launch_host_func


_fill_table()
