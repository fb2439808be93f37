"""Streams of one simulated device: their queues, virtual time, and the order of what is in them."""

from libc.stdint cimport uint32_t, uint64_t

from cuda_pool._driver cimport cudaError_t
from cuda_pool._sim_log cimport misuses_t
from cuda_pool._sim_memory cimport memory_t
from cuda_pool._sim_op cimport op_t
from cuda_pool._sim_race cimport races_t

# A stream keeps its lane until it is destroyed, all its operations are complete and the host knows that; only then
# may another stream stand in the lane, and it goes on counting there.
ctypedef struct stream_t:
    timeline_t* timeline
    uint64_t id                     # never used for another stream
    uint64_t handle                 # 0 for a stream that no caller can name
    uint64_t thread                 # whose default stream it is; 0 for every other stream
    uint32_t lane
    bint blocking                   # orders with the legacy default stream
    bint gone                       # destroyed; what is queued still runs
    uint64_t* clock                 # all that its next operation comes after
    uint64_t issued                 # sequence number of its latest operation
    uint64_t queued                 # operations that are not complete
    op_t* head
    op_t* tail
    void* capture                   # capture_t, or NULL; see _sim_graph.pxd
    uint32_t branch                 # in that capture

# Counting operations, in every lane:
#   done[lane] + queued == issued == clock[lane]    of the stream in it
#   host[lane] <= done[lane]                        the host knows only what is so
# and pending == sum of all queued. An operation may run once `done` covers its clock, its own entry apart.
# timeline_check() asserts these. Guarded by the simulator's lock.
ctypedef struct timeline_t:
    int device                      # number
    uint64_t now                    # ticks
    uint64_t random                 # state of the generator that picks the order; 0: first come, first served
    uint64_t submitted
    uint64_t pending
    uint32_t calling                # operations whose host function some thread is in
    uint32_t lanes
    uint32_t room                   # entries of every array below and of every stream's clock
    uint64_t* host                  # what is complete as far as the host was told
    uint64_t* done
    stream_t** streams              # by lane
    stream_t* legacy                # the legacy default stream; NULL: the timeline is cleared
    void* events                    # event_t, the first of those of this device
    void* graphs                    # graph_t
    cudaError_t fault               # of a queued operation; the next call that asks for work on the device returns it
    memory_t* memory
    misuses_t* misuses
    races_t races

cdef enum step_e:
    STEP_NONE                       # nothing completes by then
    STEP_DONE                       # one operation completed
    STEP_CALL                       # a host function is due: op_t.state is OP_CALLING, timeline_called() completes it

cdef bint timeline_init(timeline_t* self, memory_t* memory, misuses_t* misuses) noexcept nogil  # False: no host memory
cdef void timeline_clear(timeline_t* self) noexcept nogil       # drops everything but the races found
cdef int timeline_step(timeline_t* self, uint64_t limit, stream_t** stream) noexcept nogil
cdef void timeline_called(timeline_t* self, stream_t* stream) noexcept nogil
cdef void timeline_know(timeline_t* self, const uint64_t* clock, uint32_t lanes) noexcept nogil
cdef bint timeline_done(const timeline_t* self, const uint64_t* clock, uint32_t lanes) noexcept nogil
cdef bint timeline_check(const timeline_t* self) noexcept nogil

# A stream, with a handle if `named`; NULL without host memory for it.
cdef stream_t* stream_create(timeline_t* self, bint blocking, bint named) noexcept nogil
cdef void stream_destroy(stream_t* stream) noexcept nogil
cdef stream_t* stream_of_thread(timeline_t* self, uint64_t thread) noexcept nogil
cdef void timeline_thread_ends(timeline_t* self, uint64_t thread) noexcept nogil

# Join into the stream's clock what its next operation comes after without being told so.
cdef void stream_prepare(stream_t* stream) noexcept nogil
cdef cudaError_t stream_submit(stream_t* stream, op_t* op) noexcept nogil
cdef void stream_follow(stream_t* stream, stream_t* other) noexcept nogil

# Join into `clock` all that to wait for the stream is to wait for; it has room for every lane.
cdef void stream_extent(const stream_t* stream, uint64_t* clock) noexcept nogil
