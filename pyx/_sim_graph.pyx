"""Stream capture, and the graphs that come of it.

A captured operation is kept with a vector clock over the branches of its capture. To launch a graph is to submit them
again: branch 0 to the stream it is launched on, each other branch to a stream of its own that nobody can name.
"""

from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from cuda_pool._driver cimport (
    cudaErrorCapturedEvent, cudaErrorMemoryAllocation, cudaErrorNotSupported, cudaErrorStreamCaptureInvalidated,
    cudaErrorStreamCaptureIsolation, cudaErrorStreamCaptureMerge, cudaErrorStreamCaptureUnjoined,
    cudaErrorStreamCaptureUnmatched, cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureWrongThread,
    cudaStreamCaptureModeGlobal, cudaStreamCaptureModeRelaxed, cudaStreamCaptureStatusActive,
    cudaStreamCaptureStatusInvalidated, cudaStreamCaptureStatusNone, cudaSuccess)
from cuda_pool._sim_clock cimport clock_join
from cuda_pool._sim_event cimport CAPTURE_BRANCHES, event_record, event_wait
from cuda_pool._sim_handle cimport HANDLE_GRAPH, handle_add, handle_remove
from cuda_pool._sim_op cimport op_copy, op_free
from cuda_pool._sim_stream cimport stream_create, stream_destroy, stream_prepare, stream_submit

cdef capture_t* captures = NULL     # of all devices
cdef uint64_t ids = 0


# --- captures ---------------------------------------------------------------------------------------------------

cdef cudaError_t capture_begin(stream_t* stream, int mode, uint64_t thread) noexcept nogil:
    """Capture what is queued on the stream from now on."""
    global captures, ids
    cdef capture_t* capture
    if stream is stream.timeline.legacy or stream.capture is not NULL:
        return cudaErrorStreamCaptureUnsupported
    capture = <capture_t*>calloc(1, sizeof(capture_t))
    if capture is not NULL:
        capture.graph = <graph_t*>calloc(1, sizeof(graph_t))
    if capture is NULL or capture.graph is NULL:
        free(capture)
        return cudaErrorMemoryAllocation
    ids += 1
    capture.id = ids
    capture.thread = thread
    capture.mode = mode
    capture.graph.id = ids
    capture.graph.timeline = stream.timeline
    capture.next = captures
    captures = capture
    capture_enter(capture, stream)
    return cudaSuccess


cdef cudaError_t capture_end(stream_t* stream, uint64_t thread, graph_t** graph) noexcept nogil:
    """End the capture that began on this stream; *graph is NULL unless all went well."""
    cdef capture_t* capture = <capture_t*>stream.capture
    cdef cudaError_t code
    graph[0] = NULL
    if capture is NULL or capture.streams[0] is not stream:
        return cudaErrorStreamCaptureUnmatched
    if capture.mode != cudaStreamCaptureModeRelaxed and capture.thread != thread:
        return cudaErrorStreamCaptureWrongThread
    code = capture_outcome(capture)
    if code == cudaSuccess:
        code = graph_enlist(capture.graph)
    if code == cudaSuccess:
        graph[0] = capture.graph
    else:
        graph_free(capture.graph)
    capture_close(capture)
    return code


cdef bint captures_forbid_unsafe(uint64_t thread) noexcept nogil:
    """Break the captures in whose modes the thread may make no unsafe call; tell whether there are any."""
    cdef capture_t* capture = captures
    cdef bint forbid = False
    while capture is not NULL:
        if capture.mode == cudaStreamCaptureModeGlobal or (
                capture.mode != cudaStreamCaptureModeRelaxed and capture.thread == thread):
            capture.broken = forbid = True
        capture = capture.next
    return forbid


cdef bint captures_forbid_legacy(timeline_t* timeline) noexcept nogil:
    """Break the device's captures of blocking streams: the legacy default stream would have to wait for them."""
    cdef capture_t* capture = captures
    cdef bint forbid = False
    while capture is not NULL:
        if capture.graph.timeline is timeline and has_blocking(capture):
            capture.broken = forbid = True
        capture = capture.next
    return forbid


cdef bint captures_forbid_waiting(timeline_t* timeline) noexcept nogil:
    """Break all captures on a device that is to be waited for."""
    cdef capture_t* capture = captures
    cdef bint forbid = False
    while capture is not NULL:
        if capture.graph.timeline is timeline:
            capture.broken = forbid = True
        capture = capture.next
    return forbid


cdef bint captures_use_legacy(const timeline_t* timeline) noexcept nogil:
    cdef capture_t* capture = captures
    while capture is not NULL:
        if capture.graph.timeline is timeline and has_blocking(capture):
            return True
        capture = capture.next
    return False


cdef cudaError_t capture_break(stream_t* stream, cudaError_t code) noexcept nogil:
    """Break the capture of a stream over a call that returns `code`; one that is broken already has its own code."""
    cdef capture_t* capture = <capture_t*>stream.capture
    if capture.broken:
        return cudaErrorStreamCaptureInvalidated
    capture.broken = True
    return code


cdef void event_forbid(const event_t* event) noexcept nogil:
    cdef capture_t* capture = capture_find(event.capture)
    if capture is not NULL:
        capture.broken = True


cdef int capture_status(const stream_t* stream) noexcept nogil:
    if stream.capture is NULL:
        return cudaStreamCaptureStatusNone
    if (<capture_t*>stream.capture).broken:
        return cudaStreamCaptureStatusInvalidated
    return cudaStreamCaptureStatusActive


cdef void captures_clear(timeline_t* timeline) noexcept nogil:
    """Drop the captures on a device that goes."""
    cdef capture_t* capture = captures
    cdef capture_t* next
    while capture is not NULL:
        next = capture.next
        if capture.graph.timeline is timeline:
            graph_free(capture.graph)
            capture_close(capture)
        capture = next


# --- work on a stream that may be captured -----------------------------------------------------------------------

cdef cudaError_t work_submit(stream_t* stream, op_t* op) noexcept nogil:
    """Queue an operation, or keep it for the graph."""
    cdef capture_t* capture = <capture_t*>stream.capture
    cdef graph_node_t* node
    if capture is NULL:
        return stream_submit(stream, op)
    if capture.broken:
        return cudaErrorStreamCaptureInvalidated
    node = <graph_node_t*>calloc(1, sizeof(graph_node_t))
    if node is not NULL:
        node.op = op_copy(op, node.clock, 0)
    if node is NULL or node.op is NULL:
        free(node)
        return cudaErrorMemoryAllocation
    node.op.pageable = False        # a graph reads host memory when it runs
    node.branch = stream.branch
    graph_append(capture.graph, node)
    capture.clocks[stream.branch][stream.branch] += 1
    memcpy(node.clock, capture.clocks[stream.branch], sizeof(node.clock))
    return cudaSuccess


cdef cudaError_t work_record(event_t* event, stream_t* stream) noexcept nogil:
    """Record an event, or note where in the capture it stands."""
    cdef capture_t* capture = <capture_t*>stream.capture
    if capture is NULL:
        return cudaSuccess if event_record(event, stream) else cudaErrorMemoryAllocation
    if capture.broken:
        return cudaErrorStreamCaptureInvalidated
    event.capture = capture.id
    memcpy(event.branch_clock, capture.clocks[stream.branch], sizeof(event.branch_clock))
    return cudaSuccess


cdef cudaError_t work_wait(stream_t* stream, const event_t* event) noexcept nogil:
    """Wait for an event; to wait for one of a capture draws the stream into it."""
    cdef capture_t* capture = capture_find(event.capture)
    if event.timeline is not stream.timeline:
        return cudaErrorNotSupported
    if stream.capture is not NULL:
        return capture_wait(stream, event, capture)
    if event.capture == 0:
        event_wait(stream, event)
        return cudaSuccess
    if capture is NULL:
        return cudaErrorCapturedEvent
    if capture.broken:
        return cudaErrorStreamCaptureInvalidated
    if stream is stream.timeline.legacy or capture.graph.branches == CAPTURE_BRANCHES:
        capture.broken = True
        return cudaErrorStreamCaptureUnsupported
    capture_enter(capture, stream)
    clock_join(capture.clocks[stream.branch], event.branch_clock, capture.graph.branches)
    return cudaSuccess


cdef cudaError_t capture_wait(stream_t* stream, const event_t* event, capture_t* other) noexcept nogil:
    """Let a captured stream wait for an event of capture `other`, NULL if it has none that is going on."""
    cdef capture_t* mine = <capture_t*>stream.capture
    if other is mine and not mine.broken:
        clock_join(mine.clocks[stream.branch], event.branch_clock, mine.graph.branches)
        return cudaSuccess
    if other is NULL and event.capture == 0 and event.lanes == 0:
        return cudaSuccess
    if other is NULL or other is mine:
        return capture_break(stream, cudaErrorStreamCaptureIsolation)
    other.broken = True
    return capture_break(stream, cudaErrorStreamCaptureMerge)


# --- graphs -----------------------------------------------------------------------------------------------------

cdef cudaError_t graph_launch(graph_t* graph, stream_t* stream) noexcept nogil:
    """Queue all of the graph after what is on the stream; what the stream gets next comes after all of it."""
    cdef stream_t* branches[32]
    cdef uint64_t before[32]        # operations that were in the branch's lane when the graph came
    cdef uint32_t i
    cdef cudaError_t code
    if stream.capture is not NULL:
        return capture_break(stream, cudaErrorStreamCaptureUnsupported)
    branches[0] = stream
    for i in range(1, graph.branches):
        branches[i] = stream_create(graph.timeline, False, False)
        if branches[i] is NULL:
            branches_join(branches, i)
            return cudaErrorMemoryAllocation
    stream_prepare(stream)
    for i in range(graph.branches):
        before[i] = branches[i].issued
        clock_join(branches[i].clock, stream.clock, graph.timeline.lanes)
    code = nodes_submit(graph, branches, before)
    branches_join(branches, graph.branches)
    return code


cdef cudaError_t nodes_submit(const graph_t* graph, stream_t** branches, const uint64_t* before) noexcept nogil:
    cdef const graph_node_t* node = graph.head
    cdef cudaError_t code = cudaSuccess
    cdef stream_t* stream
    cdef uint32_t i, lane
    cdef op_t op
    while node is not NULL and code == cudaSuccess:
        stream = branches[node.branch]
        for i in range(graph.branches):
            lane = branches[i].lane
            if i != node.branch and node.clock[i] > 0:
                stream.clock[lane] = max(stream.clock[lane], before[i] + node.clock[i])
        op = node.op[0]
        code = stream_submit(stream, &op)
        node = node.next
    return code


cdef void branches_join(stream_t** branches, uint32_t count) noexcept nogil:
    """Let the stream of branch 0 come after all the others, which then are done with."""
    cdef uint32_t i
    for i in range(1, count):
        clock_join(branches[0].clock, branches[i].clock, branches[0].timeline.lanes)
        stream_destroy(branches[i])


cdef void graph_release(graph_t* graph) noexcept nogil:
    """Forget a graph; what was launched of it runs all the same."""
    handle_remove(HANDLE_GRAPH, graph.handle)
    if graph.previous is NULL:
        graph.timeline.graphs = graph.next
    else:
        graph.previous.next = graph.next
    if graph.next is not NULL:
        graph.next.previous = graph.previous
    graph_free(graph)


cdef void graphs_clear(timeline_t* timeline) noexcept nogil:
    while timeline.graphs is not NULL:
        graph_release(<graph_t*>timeline.graphs)


cdef cudaError_t graph_enlist(graph_t* graph) noexcept nogil:
    graph.handle = handle_add(HANDLE_GRAPH, graph)
    if graph.handle == 0:
        return cudaErrorMemoryAllocation
    graph.next = <graph_t*>graph.timeline.graphs
    if graph.next is not NULL:
        graph.next.previous = graph
    graph.timeline.graphs = graph
    return cudaSuccess


cdef void graph_append(graph_t* graph, graph_node_t* node) noexcept nogil:
    if graph.head is NULL:
        graph.head = node
    else:
        graph.tail.next = node
    graph.tail = node
    graph.nodes += 1
    graph.issued[node.branch] += 1


cdef void graph_free(graph_t* graph) noexcept nogil:
    cdef graph_node_t* node
    while graph.head is not NULL:
        node = graph.head
        graph.head = node.next
        op_free(node.op)
        free(node)
    free(graph)


# --- parts of a capture ---------------------------------------------------------------------------------------------

cdef void capture_enter(capture_t* capture, stream_t* stream) noexcept nogil:
    stream.capture = capture
    stream.branch = capture.graph.branches
    capture.streams[stream.branch] = stream
    capture.graph.branches += 1


cdef cudaError_t capture_outcome(const capture_t* capture) noexcept nogil:
    """Tell whether a graph comes of the capture: nothing broke it, and branch 0 comes after all that others did."""
    cdef uint32_t i
    if capture.broken:
        return cudaErrorStreamCaptureInvalidated
    for i in range(capture.graph.branches):
        if capture.clocks[0][i] < capture.graph.issued[i]:
            return cudaErrorStreamCaptureUnjoined
    return cudaSuccess


cdef void capture_close(capture_t* capture) noexcept nogil:
    """Let the streams of a capture go, and take it off the list; its graph is not its own any more."""
    global captures
    cdef capture_t** link = &captures
    cdef uint32_t i
    for i in range(CAPTURE_BRANCHES):
        if capture.streams[i] is not NULL:
            capture.streams[i].capture = NULL
    while link[0] is not capture:
        link = &link[0].next
    link[0] = capture.next
    free(capture)


cdef capture_t* capture_find(uint64_t id) noexcept nogil:
    cdef capture_t* capture = captures
    while capture is not NULL and capture.id != id:
        capture = capture.next
    return capture


cdef bint has_blocking(const capture_t* capture) noexcept nogil:
    cdef uint32_t i
    for i in range(capture.graph.branches):
        if capture.streams[i].blocking:
            return True
    return False
