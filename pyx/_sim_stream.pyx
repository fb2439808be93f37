"""Streams of one simulated device: their queues, virtual time, and the order of what is in them.

What an operation comes after is a vector clock: it is made when the operation is queued, says when it may run, and is
what the race detector compares. An event is a copy of a stream's clock, to wait for one is to join it.
"""

from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from cuda_pool._driver cimport cudaErrorMemoryAllocation, cudaSuccess
from cuda_pool._sim_clock cimport clock_covers, clock_join
from cuda_pool._sim_handle cimport HANDLE_STREAM, handle_add, handle_remove
from cuda_pool._sim_op cimport (
    OP_CALL, OP_CALLING, OP_QUEUED, OP_STARTED, op_copy, op_free, op_run, op_stage, run_t)
from cuda_pool._sim_race cimport races_check, races_collect, races_forget, races_init

cdef enum:
    FIRST_ROOM = 8
    LATEST_START = 7                # with a seed an operation starts up to 1 << this many ticks late

cdef const uint64_t FOREVER = 0x7FFFFFFFFFFFFFFF
cdef uint64_t ids = 2               # ids given out; they start above the handles of the default streams


cdef bint timeline_init(timeline_t* self, memory_t* memory, misuses_t* misuses) noexcept nogil:
    memset(self, 0, sizeof(timeline_t))
    self.memory = memory
    self.misuses = misuses
    if not (races_init(&self.races) and timeline_grow(self)):
        return False
    self.legacy = stream_create(self, True, False)
    return self.legacy is not NULL


cdef void timeline_clear(timeline_t* self) noexcept nogil:
    cdef uint32_t lane
    for lane in range(self.lanes):
        stream_free(self.streams[lane])
    free(self.host)
    free(self.done)
    free(self.streams)
    races_forget(&self.races)
    self.host = self.done = NULL
    self.streams = NULL
    self.legacy = NULL
    self.lanes = self.room = self.calling = 0
    self.pending = 0


cdef int timeline_step(timeline_t* self, uint64_t limit, stream_t** stream) noexcept nogil:
    """Let the operation that ends next, and by `limit`, complete; the time becomes its end."""
    cdef stream_t* next = stream_ending(self)
    if next is NULL or next.head.end > limit:
        return STEP_NONE
    self.now = max(self.now, next.head.end)
    if next.head.kind == OP_CALL:
        next.head.state = OP_CALLING
        self.calling += 1
        stream[0] = next
        return STEP_CALL
    op_perform(next, next.head)
    stream_shift(next)
    return STEP_DONE


cdef void timeline_called(timeline_t* self, stream_t* stream) noexcept nogil:
    """Complete the operation whose host function has returned."""
    self.calling -= 1
    self.done[stream.lane] += 1
    stream_shift(stream)


cdef void timeline_know(timeline_t* self, const uint64_t* clock, uint32_t lanes) noexcept nogil:
    """Tell the host that all `clock` names is complete: whatever it queues from now on comes after that."""
    clock_join(self.host, clock, lanes)
    if self.pending == 0 and clock_covers(self.host, self.done, self.lanes):
        races_forget(&self.races)


cdef bint timeline_done(const timeline_t* self, const uint64_t* clock, uint32_t lanes) noexcept nogil:
    return clock_covers(self.done, clock, lanes)


cdef bint timeline_check(const timeline_t* self) noexcept nogil:
    cdef const stream_t* stream
    cdef uint64_t pending = 0
    cdef uint32_t lane
    for lane in range(self.lanes):
        stream = self.streams[lane]
        pending += stream.queued
        if stream.lane != lane or stream.queued != queue_length(stream):
            return False
        if self.done[lane] + stream.queued != stream.issued or stream.clock[lane] != stream.issued:
            return False
    return pending == self.pending and clock_covers(self.done, self.host, self.lanes) and races_check(&self.races)


# --- streams --------------------------------------------------------------------------------------------------------

cdef stream_t* stream_create(timeline_t* self, bint blocking, bint named) noexcept nogil:
    cdef stream_t* stream = <stream_t*>calloc(1, sizeof(stream_t))
    if stream is NULL or not stream_enter_lane(self, stream):
        free(stream)
        return NULL
    stream.blocking = blocking
    if named:
        stream.handle = handle_add(HANDLE_STREAM, stream)
        stream.gone = stream.handle == 0
    return NULL if stream.gone else stream


cdef void stream_destroy(stream_t* stream) noexcept nogil:
    """Take the stream's handle back; what is queued on it runs all the same."""
    if stream.handle != 0:
        handle_remove(HANDLE_STREAM, stream.handle)
    stream.handle = 0
    stream.gone = True


cdef stream_t* stream_of_thread(timeline_t* self, uint64_t thread) noexcept nogil:
    """Return the default stream of a thread, making it if need be."""
    cdef stream_t* stream
    cdef uint32_t lane
    for lane in range(self.lanes):
        if self.streams[lane].thread == thread:
            return self.streams[lane]
    stream = stream_create(self, True, False)
    if stream is not NULL:
        stream.thread = thread
    return stream


cdef void timeline_thread_ends(timeline_t* self, uint64_t thread) noexcept nogil:
    cdef uint32_t lane
    for lane in range(self.lanes):
        if self.streams[lane].thread == thread:
            self.streams[lane].thread = 0
            stream_destroy(self.streams[lane])


cdef void stream_prepare(stream_t* stream) noexcept nogil:
    """Join what the host knows, and what the default stream's rules say: it and every blocking stream wait for each
    other's earlier work."""
    cdef timeline_t* timeline = stream.timeline
    clock_join(stream.clock, timeline.host, timeline.lanes)
    if stream is timeline.legacy:
        stream_extent(stream, stream.clock)
    elif stream.blocking:
        clock_join(stream.clock, timeline.legacy.clock, timeline.lanes)


cdef void stream_follow(stream_t* stream, stream_t* other) noexcept nogil:
    """Let the stream's later operations come after what the other has queued, as an event in between does."""
    stream_prepare(other)
    stream_prepare(stream)
    clock_join(stream.clock, other.clock, stream.timeline.lanes)


cdef void stream_extent(const stream_t* stream, uint64_t* clock) noexcept nogil:
    """The legacy default stream extends over all blocking streams, any other over itself."""
    cdef const timeline_t* timeline = stream.timeline
    cdef uint32_t lane
    clock_join(clock, stream.clock, timeline.lanes)
    if stream is timeline.legacy:
        for lane in range(timeline.lanes):
            if timeline.streams[lane].blocking:
                clock_join(clock, timeline.streams[lane].clock, timeline.lanes)


cdef cudaError_t stream_submit(stream_t* stream, op_t* op) noexcept nogil:
    """Queue an operation, or run it at once if nothing stands before it and it takes no time."""
    cdef timeline_t* timeline = stream.timeline
    cdef op_t* queued
    cdef bint ready
    stream_prepare(stream)
    op_delay(timeline, op)
    op.number = timeline.submitted
    stream.clock[stream.lane] += 1
    ready = stream.queued == 0 and may_run(timeline, stream.clock, timeline.lanes, stream.lane)
    if ready and op.ticks == 0 and op.until <= timeline.now and op.kind != OP_CALL:
        stream.issued += 1
        timeline.submitted += 1
        op.lanes = timeline.lanes
        op.clock = stream.clock
        op_perform(stream, op)
        return cudaSuccess
    queued = op_copy(op, stream.clock, timeline.lanes)
    if queued is NULL or queued.pageable and not op_stage(queued):
        stream.clock[stream.lane] -= 1
        if queued is not NULL:
            op_free(queued)
        return cudaErrorMemoryAllocation
    stream_append(stream, queued)
    if ready:
        op_start(timeline, queued)
    return cudaSuccess


cdef void stream_append(stream_t* stream, op_t* op) noexcept nogil:
    if stream.head is NULL:
        stream.head = op
    else:
        stream.tail.next = op
    stream.tail = op
    stream.queued += 1
    stream.issued += 1
    stream.timeline.pending += 1
    stream.timeline.submitted += 1


cdef void stream_shift(stream_t* stream) noexcept nogil:
    """Drop the operation at the head, which is complete, and start whatever waited for it."""
    cdef timeline_t* timeline = stream.timeline
    cdef op_t* op = stream.head
    stream.head = op.next
    stream.queued -= 1
    timeline.pending -= 1
    op_free(op)
    timeline_start(timeline)


cdef bint stream_enter_lane(timeline_t* self, stream_t* stream) noexcept nogil:
    """Give the stream a lane that no other can still be in, or a new one."""
    cdef uint32_t lane
    for lane in range(self.lanes):
        if lane_is_free(self, lane):
            stream_take_lane(self, stream, lane, self.streams[lane].clock)
            free(self.streams[lane])
            self.streams[lane] = stream
            return True
    if self.lanes == self.room and not timeline_grow(self):
        return False
    cdef uint64_t* clock = <uint64_t*>malloc(self.room * sizeof(uint64_t))
    if clock is NULL:
        return False
    self.streams[self.lanes] = stream
    self.lanes += 1
    stream_take_lane(self, stream, self.lanes - 1, clock)
    return True


cdef void stream_take_lane(timeline_t* self, stream_t* stream, uint32_t lane, uint64_t* clock) noexcept nogil:
    global ids
    ids += 1
    stream.id = ids
    stream.timeline = self
    stream.lane = lane
    stream.clock = clock
    memset(clock, 0, self.room * sizeof(uint64_t))
    memcpy(clock, self.host, self.lanes * sizeof(uint64_t))
    stream.issued = self.done[lane]
    clock[lane] = stream.issued


cdef bint lane_is_free(const timeline_t* self, uint32_t lane) noexcept nogil:
    cdef const stream_t* stream = self.streams[lane]
    return stream.gone and stream.queued == 0 and self.host[lane] >= stream.issued and stream.capture is NULL


cdef void stream_free(stream_t* stream) noexcept nogil:
    cdef op_t* op
    while stream.head is not NULL:
        op = stream.head
        stream.head = op.next
        op_free(op)
    if not stream.gone:
        stream_destroy(stream)
    free(stream.clock)
    free(stream)


cdef uint64_t queue_length(const stream_t* stream) noexcept nogil:
    cdef const op_t* op = stream.head
    cdef uint64_t length = 0
    while op is not NULL:
        length += 1
        op = op.next
    return length


cdef bint timeline_grow(timeline_t* self) noexcept nogil:
    """Double the lanes that there is room for; what has grown when memory runs out does no harm."""
    cdef uint32_t lane, room = 2 * self.room if self.room > 0 else FIRST_ROOM
    if not (clock_grow(&self.host, self.room, room) and clock_grow(&self.done, self.room, room)):
        return False
    cdef void* moved = realloc(self.streams, room * sizeof(stream_t*))
    if moved is NULL:
        return False
    self.streams = <stream_t**>moved
    for lane in range(self.lanes):
        if not clock_grow(&self.streams[lane].clock, self.room, room):
            return False
    self.room = room
    return True


cdef bint clock_grow(uint64_t** clock, uint32_t room, uint32_t wanted) noexcept nogil:
    cdef void* moved = realloc(clock[0], wanted * sizeof(uint64_t))
    if moved is NULL:
        return False
    clock[0] = <uint64_t*>moved
    memset(clock[0] + room, 0, (wanted - room) * sizeof(uint64_t))
    return True


# --- what runs when ---------------------------------------------------------------------------------------------

cdef bint may_run(const timeline_t* self, const uint64_t* clock, uint32_t lanes, uint32_t own) noexcept nogil:
    """Tell whether all that a clock names is complete but for the operation of lane `own` that it belongs to."""
    cdef uint32_t lane
    for lane in range(lanes):
        if self.done[lane] < clock[lane] and lane != own:
            return False
    return True


cdef void timeline_start(timeline_t* self) noexcept nogil:
    """Start every operation that stands first in its stream and waits for nothing more."""
    cdef uint32_t lane
    cdef op_t* op
    for lane in range(self.lanes):
        op = self.streams[lane].head
        if op is not NULL and op.state == OP_QUEUED and may_run(self, op.clock, op.lanes, lane):
            op_start(self, op)


cdef void op_start(timeline_t* self, op_t* op) noexcept nogil:
    op.state = OP_STARTED
    op.end = max(self.now + min(op.ticks, FOREVER - 1 - self.now), op.until)


cdef stream_t* stream_ending(timeline_t* self) noexcept nogil:
    """Return the stream whose operation ends next; among equals the first come, or any with a seed."""
    cdef stream_t* best = NULL
    cdef stream_t* stream
    cdef uint32_t lane, equals = 0
    for lane in range(self.lanes):
        stream = self.streams[lane]
        if stream.head is NULL or stream.head.state != OP_STARTED:
            continue
        if best is NULL or stream.head.end < best.head.end:
            best = stream
            equals = 1
        elif stream.head.end == best.head.end:
            equals += 1
            if comes_first(self, stream.head, best.head, equals):
                best = stream
    return best


cdef bint comes_first(timeline_t* self, const op_t* op, const op_t* best, uint32_t equals) noexcept nogil:
    """Choose between operations that end together; with a seed each of `equals` is as likely (Vitter's reservoir)."""
    return op.number < best.number if self.random == 0 else random_next(self) % equals == 0


cdef void op_delay(timeline_t* self, op_t* op) noexcept nogil:
    """Let an operation be late; where it has a time to end at, so that the delays of a stream do not add up."""
    if op.until > 0:
        op.until += start_delay(self)
    else:
        op.ticks += start_delay(self)


cdef uint64_t start_delay(timeline_t* self) noexcept nogil:
    """Return how many ticks late an operation is: with a seed and several streams, half of them up to 128."""
    if self.random == 0 or self.lanes == 1 or random_next(self) % 2 == 0:
        return 0
    return random_next(self) % (1 << random_next(self) % (LATEST_START + 1))


cdef uint64_t random_next(timeline_t* self) noexcept nogil:
    """Marsaglia's xorshift (Journal of Statistical Software 8(14), 2003) with the shifts 13, 7, 17."""
    self.random ^= self.random << 13
    self.random ^= self.random >> 7
    self.random ^= self.random << 17
    return self.random >> 32


cdef void op_perform(stream_t* stream, op_t* op) noexcept nogil:
    """Do what an operation does, and count it as complete."""
    cdef timeline_t* timeline = stream.timeline
    cdef cudaError_t code
    cdef run_t run
    run.memory = timeline.memory
    run.misuses = timeline.misuses
    run.races = &timeline.races
    run.now = timeline.now
    run.stream = stream.id
    run.lane = stream.lane
    run.lanes = op.lanes
    run.clock = op.clock
    code = op_run(op, &run)
    if code != cudaSuccess and timeline.fault == cudaSuccess:
        timeline.fault = code
    timeline.done[stream.lane] += 1
    if timeline.races.nodes >= timeline.races.collect_at:
        timeline_collect(timeline)


cdef void timeline_collect(timeline_t* self) noexcept nogil:
    """Drop the accesses that come before all that is queued and all that the host can queue yet."""
    cdef const uint64_t** clocks = <const uint64_t**>malloc((self.lanes + 1) * sizeof(uint64_t*))
    cdef uint32_t lane, count = 1, lanes = self.lanes
    if clocks is NULL:
        return
    clocks[0] = self.host
    for lane in range(self.lanes):
        if self.streams[lane].head is not NULL:
            clocks[count] = self.streams[lane].head.clock
            lanes = min(lanes, self.streams[lane].head.lanes)
            count += 1
    races_collect(&self.races, clocks, count, lanes)
    free(clocks)
