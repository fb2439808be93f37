"""Play the events of a trace against a pool, or against libc's malloc, without the GIL."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from cuda_pool._api cimport Pool
from cuda_pool._calls cimport pool_alloc, pool_free
from cuda_pool._gate cimport status_raise
from cuda_pool._pool cimport pool_get_stats, pool_stats_t, pool_t
from cuda_pool._status cimport STATUS_OK, STATUS_OUT_OF_MEMORY
from cuda_pool._survey cimport survey_destroy, survey_t, survey_take, survey_values
from cuda_pool._trace cimport (
    BLOCK_PREEXISTING, EVENT_ALLOC, EVENT_FREE, TraceTable, event_t, trace_t,
)


cdef class Replay:
    """One run of a trace against an allocator: `PoolReplay`, `LaggedReplay` or `MallocReplay`.

    Call `place`, then `run` until `position` is the number of events or `failed` is true, then `clear`. After that it
    can be run again; in the end, `close` it. It belongs to one thread; the GIL is released while events are played.
    """

    def __cinit__(self, TraceTable trace not None, *args):
        self.table = trace
        self.replay.trace = &trace.trace
        self.replay.address = <void**>calloc(trace.trace.block_count + 1, sizeof(void*))
        if self.replay.address == NULL:
            raise MemoryError("no host memory for the addresses of the trace's blocks")

    def __dealloc__(self):
        free(self.replay.address)

    @property
    def trace(self):
        """The trace that is played."""
        return self.table

    @property
    def position(self):
        """Events played so far."""
        return self.replay.position

    @property
    def ns(self):
        """Time that the events so far took, in nanoseconds."""
        return self.replay.ns

    @property
    def failed(self):
        """Whether an allocation could not be served; nothing is played after it."""
        return self.failure is not None

    @property
    def failed_row(self):
        """Row of the allocation that could not be served, or None.

        A preexisting block has no such row: the row that names it, or else that of its free, stands for it.
        """
        return self.failure[0] if self.failure else None

    @property
    def failed_size(self):
        """Bytes that the failed allocation asked for, or None."""
        return self.failure[1] if self.failure else None

    def place(self):
        """Allocate the blocks that were live before the first event; not timed."""
        cdef const trace_t* trace = self.replay.trace
        cdef uint32_t index = 0
        cdef int status
        with nogil:
            status = blocks_place(self, &index)
        if status != STATUS_OK:
            self.failure = (block_row(trace, index), trace.blocks[index].size, status)

    def run(self, size_t count):
        """Play the next events.

        Parameters
        ----------
        count : int
            At most so many; fewer at the end of the trace or at a failed allocation.
        """
        cdef size_t left = self.replay.trace.event_count - self.replay.position
        cdef size_t stop = self.replay.position + min(count, left)
        cdef const event_t* event
        cdef uint64_t started
        cdef int status
        if self.failure or self.replay.position == stop:
            return
        with nogil:
            started = now_ns()
            status = self.advance(stop)
            self.replay.ns += now_ns() - started
        if status != STATUS_OK:
            event = &self.replay.trace.events[self.replay.position]
            self.failure = (event.row, event.size, status)

    def clear(self):
        """Free every block that is live, and go back to the first event; not timed."""
        cdef uint32_t index
        for index in range(<uint32_t>self.replay.trace.block_count):
            if self.replay.address[index] != NULL:
                self.release(self.replay.address[index])
                self.replay.address[index] = NULL
        self.replay.position = 0
        self.replay.ns = 0
        self.failure = None

    def check(self):
        """Raise what stopped the run if it was anything but a lack of memory."""
        if self.failure and self.failure[2] != STATUS_OUT_OF_MEMORY:
            status_raise(self.pool.state, self.failure[2], self.failure[1], 0)

    def moment(self):
        """What the pool is like now, as ``OutOfMemoryError.moment``; None without a pool."""
        cdef survey_t survey
        cdef int status
        if self.pool is None:
            return None
        with nogil:
            status = survey_take(&survey, self.pool.state, 0)
        try:
            status_raise(self.pool.state, status, 0, 0)
            return survey_values(&survey, self.pool.state)
        finally:
            survey_destroy(&survey)

    def close(self):
        """Give back what the run holds beside the blocks that are live."""

    cdef int acquire(self, uint32_t index, void** address) noexcept nogil:
        return STATUS_OUT_OF_MEMORY

    cdef int release(self, void* address) noexcept nogil:
        return STATUS_OK

    cdef int advance(self, size_t stop) noexcept nogil:
        return STATUS_OUT_OF_MEMORY


cdef class PoolReplay(Replay):
    """A run against a pool, which has to stay open until `clear` is done.

    Parameters
    ----------
    trace : TraceTable
    pool : Pool

    Raises
    ------
    ValueError
        The pool is closed.
    """

    def __cinit__(self, TraceTable trace not None, Pool pool not None):
        cdef pool_stats_t stats
        status_raise(pool.state, pool_get_stats(pool.state, &stats), 0, 0)
        self.pool = pool

    cdef int acquire(self, uint32_t index, void** address) noexcept nogil:
        return pool_alloc(self.pool.state, self.replay.trace.blocks[index].size, ALIGNMENT, NULL, address)

    cdef int release(self, void* address) noexcept nogil:
        return pool_free(self.pool.state, address)

    cdef int advance(self, size_t stop) noexcept nogil:
        return pool_advance(&self.replay, self.pool.state, stop)


cdef class MallocReplay(Replay):
    """A run against libc's malloc; the memory is never touched.

    Parameters
    ----------
    trace : TraceTable
    """

    cdef int acquire(self, uint32_t index, void** address) noexcept nogil:
        address[0] = malloc(self.replay.trace.blocks[index].size)
        return STATUS_OK if address[0] != NULL else STATUS_OUT_OF_MEMORY

    cdef int release(self, void* address) noexcept nogil:
        free(address)
        return STATUS_OK

    cdef int advance(self, size_t stop) noexcept nogil:
        return malloc_advance(&self.replay, stop)


cdef int pool_advance(replay_t* replay, pool_t* pool, size_t stop) noexcept nogil:
    """Play the events before `stop`; at a failure the position is that of the event that failed."""
    cdef const event_t* event
    cdef void** address
    cdef int status = STATUS_OK
    while replay.position < stop:
        event = &replay.trace.events[replay.position]
        address = &replay.address[event.block]
        if event.kind == EVENT_ALLOC:
            status = pool_alloc(pool, event.size, ALIGNMENT, NULL, address)
        elif event.kind == EVENT_FREE:
            status = pool_free(pool, address[0])
            address[0] = NULL
        if status != STATUS_OK:
            break
        replay.position += 1
    return status


cdef int malloc_advance(replay_t* replay, size_t stop) noexcept nogil:
    """Do what pool_advance() does, with malloc and free; a size of 0 gives no address there either."""
    cdef const event_t* event
    cdef void** address
    while replay.position < stop:
        event = &replay.trace.events[replay.position]
        address = &replay.address[event.block]
        if event.kind == EVENT_ALLOC and event.size:
            address[0] = malloc(event.size)
            if address[0] == NULL:
                return STATUS_OUT_OF_MEMORY
        elif event.kind == EVENT_FREE:
            free(address[0])
            address[0] = NULL
        replay.position += 1
    return STATUS_OK


cdef int blocks_place(Replay self, uint32_t* index) noexcept nogil:
    """Allocate the preexisting blocks; on failure `index` is the block that found no place."""
    cdef const trace_t* trace = self.replay.trace
    cdef int status
    while trace.preexisting and index[0] < trace.block_count:
        if trace.blocks[index[0]].state == BLOCK_PREEXISTING:
            status = self.acquire(index[0], &self.replay.address[index[0]])
            if status != STATUS_OK:
                return status
        index[0] += 1
    return STATUS_OK


cdef uint64_t block_row(const trace_t* trace, uint32_t index) noexcept:
    """Return the row that names a preexisting block, or else that of its first event."""
    cdef size_t i
    for i in range(trace.live_count):
        if trace.live[i].block == index:
            return trace.live[i].row
    i = 0
    while trace.events[i].block != index:
        i += 1
    return trace.events[i].row


cdef inline uint64_t now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <uint64_t>now.tv_sec * 1_000_000_000 + <uint64_t>now.tv_nsec
