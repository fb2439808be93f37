"""Letting virtual time pass on a simulated device, as far as a call has to wait.

No thread works behind the scenes: operations that take time complete, and host functions run, in the calls that wait
and in Device.advance(). So a program that does the same calls sees the same things happen.
"""

from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from cuda_pool._driver cimport (
    cudaErrorInvalidDevice, cudaErrorMemoryAllocation, cudaErrorNotReady, cudaHostFn_t, cudaSuccess)
from cuda_pool._sim_device cimport devices_get, sim_lock, sim_sleep, sim_unlock, sim_wake, thread_set_called
from cuda_pool._sim_event cimport events_clear
from cuda_pool._sim_graph cimport captures_clear, graphs_clear
from cuda_pool._sim_memory cimport memory_clear
from cuda_pool._sim_stream cimport (
    STEP_CALL, STEP_NONE, stream_extent, timeline_called, timeline_clear, timeline_done, timeline_know,
    timeline_step, timeline_t)

ctypedef cudaError_t (*about_t)(sim_device_t*, const uint64_t*, uint32_t) noexcept nogil

cdef const uint64_t FOREVER = 0x7FFFFFFFFFFFFFFF


cdef cudaError_t device_await(sim_device_t* device, const uint64_t* clock, uint32_t lanes) noexcept nogil:
    """Let time pass until all that a clock names is complete, and tell the host so."""
    cdef uint64_t* target
    cdef cudaError_t code
    if timeline_done(&device.timeline, clock, lanes):
        return device_query(device, clock, lanes)
    target = <uint64_t*>malloc(lanes * sizeof(uint64_t))
    if target is NULL:
        return cudaErrorMemoryAllocation
    memcpy(target, clock, lanes * sizeof(uint64_t))
    code = await_target(device.number, target, lanes)
    free(target)
    return code


cdef cudaError_t device_await_stream(sim_device_t* device, const stream_t* stream) noexcept nogil:
    """Wait for all that is queued on a stream; for the legacy default stream, on all blocking ones too."""
    return for_extent(device, stream, device_await)


cdef cudaError_t device_query_stream(sim_device_t* device, const stream_t* stream) noexcept nogil:
    """Ask whether all is complete that device_await_stream() would wait for."""
    return for_extent(device, stream, device_query)


cdef cudaError_t device_query(sim_device_t* device, const uint64_t* clock, uint32_t lanes) noexcept nogil:
    """Ask whether all that a clock names is complete; if so, the host knows from then on."""
    if not timeline_done(&device.timeline, clock, lanes):
        return cudaErrorNotReady
    timeline_know(&device.timeline, clock, lanes)
    return device_take_fault(device)


cdef cudaError_t device_await_all(sim_device_t* device) noexcept nogil:
    """Wait for everything that is queued on the device."""
    cdef timeline_t* timeline = &device.timeline
    cdef uint64_t* target
    cdef uint32_t lane
    cdef cudaError_t code
    if timeline.pending == 0:
        return device_await(device, timeline.done, timeline.lanes)
    target = <uint64_t*>malloc(timeline.lanes * sizeof(uint64_t))
    if target is NULL:
        return cudaErrorMemoryAllocation
    for lane in range(timeline.lanes):
        target[lane] = timeline.streams[lane].issued
    code = device_await(device, target, timeline.lanes)
    free(target)
    return code


cdef cudaError_t device_advance(sim_device_t* device, uint64_t ticks) noexcept nogil:
    """Let `ticks` pass; what ends in that time completes."""
    cdef int number = device.number
    cdef uint64_t limit = device.timeline.now + min(ticks, FOREVER - 1 - device.timeline.now)
    device = device_open(number)
    while device is not NULL and device_step(device, limit) != STEP_NONE:
        device = device_open(number)
    if device is NULL:
        return cudaErrorInvalidDevice
    device.timeline.now = max(device.timeline.now, limit)
    return cudaSuccess


cdef cudaError_t device_take_fault(sim_device_t* device) noexcept nogil:
    cdef cudaError_t code = device.timeline.fault
    device.timeline.fault = cudaSuccess
    return code


cdef void device_clear(sim_device_t* device) noexcept nogil:
    captures_clear(&device.timeline)
    graphs_clear(&device.timeline)
    events_clear(&device.timeline)
    timeline_clear(&device.timeline)
    memory_clear(&device.memory)
    sim_wake()


cdef cudaError_t for_extent(sim_device_t* device, const stream_t* stream, about_t about) noexcept nogil:
    """Call `about` with all that to wait for the stream is to wait for."""
    cdef uint32_t lanes = device.timeline.lanes
    cdef uint64_t* extent
    cdef cudaError_t code
    if stream is not device.timeline.legacy or lanes == 1:
        return about(device, stream.clock, lanes)
    extent = <uint64_t*>calloc(lanes, sizeof(uint64_t))
    if extent is NULL:
        return cudaErrorMemoryAllocation
    stream_extent(stream, extent)
    code = about(device, extent, lanes)
    free(extent)
    return code


cdef cudaError_t await_target(int number, const uint64_t* target, uint32_t lanes) noexcept nogil:
    cdef sim_device_t* device = device_open(number)
    while device is not NULL and not timeline_done(&device.timeline, target, lanes):
        if device_step(device, FOREVER) == STEP_NONE:
            sim_sleep()             # what is left waits for a host function that another thread is in
        device = device_open(number)
    if device is NULL:
        return cudaErrorInvalidDevice
    timeline_know(&device.timeline, target, lanes)
    return device_take_fault(device)


cdef int device_step(sim_device_t* device, uint64_t limit) noexcept nogil:
    """Let one operation complete, if one does by `limit`."""
    cdef stream_t* stream = NULL
    cdef int step = timeline_step(&device.timeline, limit, &stream)
    if step == STEP_CALL:
        stream_call(device.number, stream)
    return step


cdef void stream_call(int number, stream_t* stream) noexcept nogil:
    """Call the host function at the head of a stream, without the lock."""
    cdef cudaHostFn_t function = stream.head.function
    cdef void* argument = stream.head.argument
    sim_unlock()
    thread_set_called(True)
    function(argument)
    thread_set_called(False)
    sim_lock()
    if device_open(number) is not NULL:     # else the stream went with it
        timeline_called(stream.timeline, stream)
    sim_wake()


cdef sim_device_t* device_open(int number) noexcept nogil:
    cdef sim_device_t* device = devices_get(number)
    return NULL if device is NULL or device.closed else device
