"""Events of a simulated device: each a copy of the clock that a stream had when it was recorded."""

from libc.stdint cimport uint32_t, uint64_t

from cuda_pool._sim_stream cimport stream_t, timeline_t

cdef enum:
    CAPTURE_BRANCHES = 32           # streams that can take part in one capture

# Complete when the timeline's `done` covers `clock`; one that was never recorded is complete.
# On the list timeline.events; guarded by the simulator's lock.
ctypedef struct event_t:
    timeline_t* timeline
    event_t* previous
    event_t* next
    uint64_t id                     # never used for another event
    uint64_t handle
    uint32_t lanes                  # entries of clock; 0 before the first record
    uint64_t* clock
    uint64_t capture                # id of the capture in which it was recorded last, 0 if outside any
    uint64_t branch_clock[32]       # CAPTURE_BRANCHES; its clock in that capture, over the branches

cdef event_t* event_create(timeline_t* timeline) noexcept nogil         # NULL without host memory for it
cdef void event_destroy(event_t* event) noexcept nogil
cdef void events_clear(timeline_t* timeline) noexcept nogil

cdef bint event_record(event_t* event, stream_t* stream) noexcept nogil     # False without host memory for it
cdef void event_wait(stream_t* stream, const event_t* event) noexcept nogil
