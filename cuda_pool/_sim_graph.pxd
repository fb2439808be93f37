"""Stream capture, and the graphs that come of it."""

from libc.stdint cimport uint32_t, uint64_t

from cuda_pool._driver cimport cudaError_t
from cuda_pool._sim_event cimport event_t
from cuda_pool._sim_op cimport op_t
from cuda_pool._sim_stream cimport stream_t, timeline_t

# One captured operation: the number clock[branch] of its branch, after all that its clock names.
ctypedef struct graph_node_t:
    graph_node_t* next
    op_t* op
    uint32_t branch
    uint64_t clock[32]              # CAPTURE_BRANCHES

# The operations that one or more streams, the branches, queued while they were captured.
# On the list timeline.graphs once the capture has ended; guarded by the simulator's lock.
ctypedef struct graph_t:
    timeline_t* timeline
    graph_t* previous
    graph_t* next
    uint64_t id                     # that of its capture; never used for another graph
    uint64_t handle
    uint32_t branches
    uint64_t nodes                  # of them there are sum(issued)
    uint64_t issued[32]             # operations by branch
    graph_node_t* head
    graph_node_t* tail

# On a list of its own until it has ended. streams[0] is where it began; each stream[i].branch == i,
# clocks[i][i] == graph.issued[i], and clocks[i][j] <= graph.issued[j].
ctypedef struct capture_t:
    capture_t* next
    uint64_t id
    uint64_t thread                 # that began it
    int mode
    bint broken                     # something illegal was done; only ending it is left
    graph_t* graph
    stream_t* streams[32]
    uint64_t clocks[32][32]

cdef cudaError_t capture_begin(stream_t* stream, int mode, uint64_t thread) noexcept nogil
cdef cudaError_t capture_end(stream_t* stream, uint64_t thread, graph_t** graph) noexcept nogil

# Whether an unsafe call is prohibited in this thread, or a call on the device's legacy default stream or for the whole
# device: each breaks the captures that it would disturb.
cdef bint captures_forbid_unsafe(uint64_t thread) noexcept nogil
cdef bint captures_forbid_legacy(timeline_t* timeline) noexcept nogil
cdef bint captures_forbid_waiting(timeline_t* timeline) noexcept nogil

cdef bint captures_use_legacy(const timeline_t* timeline) noexcept nogil    # as above, but nothing breaks
cdef cudaError_t capture_break(stream_t* stream, cudaError_t code) noexcept nogil
cdef void event_forbid(const event_t* event) noexcept nogil                 # break the capture it was recorded in
cdef int capture_status(const stream_t* stream) noexcept nogil
cdef void captures_clear(timeline_t* timeline) noexcept nogil

# What these do on a stream depends on whether it is captured.
cdef cudaError_t work_submit(stream_t* stream, op_t* op) noexcept nogil
cdef cudaError_t work_record(event_t* event, stream_t* stream) noexcept nogil
cdef cudaError_t work_wait(stream_t* stream, const event_t* event) noexcept nogil

cdef cudaError_t graph_launch(graph_t* graph, stream_t* stream) noexcept nogil
cdef void graph_release(graph_t* graph) noexcept nogil
cdef void graphs_clear(timeline_t* timeline) noexcept nogil
