"""The calls of a pool while they are recorded: the same, and a note of each that did something.

The note of an allocation has its place in the order after the fact, that of a free before. So a block is freed before
its address is allocated again, whichever threads do that.
"""

from libc.stdint cimport uint32_t, uint64_t

from cuda_pool._driver cimport cudaStream_t
from cuda_pool._order cimport stream_ref_t
from cuda_pool._relaxed cimport get_pointer
from cuda_pool._ring cimport note_t
from cuda_pool._state cimport pool_t
from cuda_pool._tracer cimport tracer_t

cdef uint64_t MOVABLE_KEY       # plus the number of its record: the key of a block whose address may change
cdef uint64_t THREAD_STREAM     # plus the number of a thread: its default stream

cdef int traced_alloc(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                      void** ptr) noexcept nogil
cdef int traced_free(pool_t* pool, void* ptr) noexcept nogil
cdef int traced_free_async(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil
# With the GIL: STATUS_WOULD_WAIT where the ring is full, too.
cdef int traced_try_alloc(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                          void** ptr) noexcept nogil
cdef int traced_try_free(pool_t* pool, void* ptr) noexcept nogil
cdef int traced_try_free_async(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil

# Notes, for movable blocks, whose calls are made in _pin. Enter for one note; where there is no recording, the tracer
# is NULL, which the others take for nothing to be done. traced_try_enter: False where the ring is full.
cdef void traced_enter(pool_t* pool, tracer_t** tracer) noexcept nogil
cdef bint traced_try_enter(pool_t* pool, tracer_t** tracer) noexcept nogil
# An allocation ended with a status. A key of 0 is no block.
cdef void traced_made(tracer_t* tracer, int status, uint64_t key, size_t nbytes, cudaStream_t stream,
                      uint32_t stack) noexcept nogil
# A free begins, and ended with a status.
cdef note_t* traced_open(tracer_t* tracer, uint64_t key, uint64_t stream) noexcept nogil
cdef void traced_settle(note_t* note, int status) noexcept nogil

# Keep the calling thread's stack for the allocation that it makes next, without the GIL; with the GIL. And forget it.
cdef void traced_hold_stack(pool_t* pool) noexcept nogil
cdef void traced_drop_stack() noexcept nogil
cdef uint32_t traced_held_stack() noexcept nogil
cdef uint32_t traced_stack(pool_t* pool) noexcept nogil     # of a thread with the GIL


cdef inline bint is_traced(const pool_t* pool) noexcept nogil:
    return get_pointer(<void* const*>&pool.tracer) != NULL
