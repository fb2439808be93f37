"""Events of a simulated device: each a copy of the clock that a stream had when it was recorded."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy

from cuda_pool._sim_clock cimport clock_join
from cuda_pool._sim_handle cimport HANDLE_EVENT, handle_add, handle_remove
from cuda_pool._sim_stream cimport stream_prepare

cdef uint64_t ids = 0               # events made


cdef event_t* event_create(timeline_t* timeline) noexcept nogil:
    global ids
    cdef event_t* event = <event_t*>calloc(1, sizeof(event_t))
    if event is NULL:
        return NULL
    event.handle = handle_add(HANDLE_EVENT, event)
    if event.handle == 0:
        free(event)
        return NULL
    ids += 1
    event.id = ids
    event.timeline = timeline
    event.next = <event_t*>timeline.events
    if event.next is not NULL:
        event.next.previous = event
    timeline.events = event
    return event


cdef void event_destroy(event_t* event) noexcept nogil:
    """Take the event off its device; what waits for it has a copy of its clock."""
    handle_remove(HANDLE_EVENT, event.handle)
    if event.previous is NULL:
        event.timeline.events = event.next
    else:
        event.previous.next = event.next
    if event.next is not NULL:
        event.next.previous = event.previous
    free(event.clock)
    free(event)


cdef void events_clear(timeline_t* timeline) noexcept nogil:
    while timeline.events is not NULL:
        event_destroy(<event_t*>timeline.events)


cdef bint event_record(event_t* event, stream_t* stream) noexcept nogil:
    """Let the event stand for all that the stream's next operation comes after."""
    cdef uint32_t lanes = stream.timeline.lanes
    cdef void* moved = realloc(event.clock, lanes * sizeof(uint64_t))
    if moved is NULL:
        return False
    stream_prepare(stream)
    event.clock = <uint64_t*>moved
    event.lanes = lanes
    event.capture = 0
    memcpy(event.clock, stream.clock, lanes * sizeof(uint64_t))
    return True


cdef void event_wait(stream_t* stream, const event_t* event) noexcept nogil:
    """Let the stream's later operations come after what the event stands for."""
    stream_prepare(stream)
    clock_join(stream.clock, event.clock, event.lanes)
