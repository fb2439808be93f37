"""The calls of a pool while they are recorded."""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from cuda_pool._order cimport LEGACY_HANDLE, THREAD_HANDLE, this_thread
from cuda_pool._pool cimport pool_release, pool_size_of
from cuda_pool._relaxed cimport get_flag
from cuda_pool._ring cimport (
    NOTE_ALLOC, NOTE_FREE, NOTE_VOID, add_u64, note_kind_t, note_settle, note_t, ring_give_credits, ring_take_credit,
    ring_ticket, see_u32, sem_post)
from cuda_pool._serve cimport serve_unnoted, try_serve_unnoted
from cuda_pool._status cimport STATUS_OK, STATUS_WOULD_WAIT
from cuda_pool._take_back cimport (
    take_back_async_unnoted, take_back_unnoted, try_take_back_async_unnoted, try_take_back_unnoted)
from cuda_pool._tracer cimport STREAM_OF_BLOCK

cdef extern from * nogil:
    """
    #include <time.h>
    static __thread uint32_t cuda_pool_stack;
    static inline void cuda_pool_stack_set(uint32_t stack) { cuda_pool_stack = stack; }
    static inline uint32_t cuda_pool_stack_get(void) { return cuda_pool_stack; }
    static void cuda_pool_rest(void) {
        struct timespec time = {0, 50000};
        nanosleep(&time, 0);
    }
    """
    void stack_set "cuda_pool_stack_set"(uint32_t)
    uint32_t stack_get "cuda_pool_stack_get"()
    void rest "cuda_pool_rest"()

MOVABLE_KEY = <uint64_t>1 << 63
THREAD_STREAM = <uint64_t>1 << 63


cdef int traced_alloc(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                      void** ptr) noexcept nogil:
    cdef tracer_t* tracer
    cdef int status
    traced_enter(pool, &tracer)
    status = serve_unnoted(pool, nbytes, alignment, stream, ptr)
    traced_made(tracer, status, <uintptr_t>ptr[0], nbytes, stream.handle, stack_get())
    return status


cdef int traced_try_alloc(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                          void** ptr) noexcept nogil:
    cdef uint32_t stack = traced_stack(pool)    # first: what runs there may use the pool
    cdef tracer_t* tracer
    cdef int status
    ptr[0] = NULL
    if not traced_try_enter(pool, &tracer):
        return STATUS_WOULD_WAIT
    status = try_serve_unnoted(pool, nbytes, alignment, stream, ptr)
    traced_made(tracer, status, <uintptr_t>ptr[0], nbytes, stream.handle, stack)
    return status


cdef int traced_free(pool_t* pool, void* ptr) noexcept nogil:
    cdef tracer_t* tracer
    cdef note_t* note
    cdef int status
    traced_enter(pool, &tracer)
    note = traced_open(tracer, <uintptr_t>ptr, STREAM_OF_BLOCK)
    status = try_take_back_unnoted(pool, ptr)
    traced_settle(note, status)
    if status == STATUS_WOULD_WAIT:
        return free_late(pool, ptr)
    if get_flag(&pool.release_due):
        pool_release(pool)
    return status


cdef int traced_try_free(pool_t* pool, void* ptr) noexcept nogil:
    cdef tracer_t* tracer
    cdef note_t* note
    cdef int status
    if not traced_try_enter(pool, &tracer):
        return STATUS_WOULD_WAIT
    note = traced_open(tracer, <uintptr_t>ptr, STREAM_OF_BLOCK)
    status = try_take_back_unnoted(pool, ptr)
    traced_settle(note, status)
    return status


cdef int traced_free_async(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    cdef tracer_t* tracer
    cdef note_t* note
    cdef int status
    traced_enter(pool, &tracer)
    note = traced_open(tracer, <uintptr_t>ptr, stream_number(stream.handle))
    status = try_take_back_async_unnoted(pool, ptr, stream)
    traced_settle(note, status)
    if status == STATUS_WOULD_WAIT:
        return free_async_late(pool, ptr, stream)
    if get_flag(&pool.release_due):
        pool_release(pool)
    return status


cdef int traced_try_free_async(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    cdef tracer_t* tracer
    cdef note_t* note
    cdef int status
    if not traced_try_enter(pool, &tracer):
        return STATUS_WOULD_WAIT
    note = traced_open(tracer, <uintptr_t>ptr, stream_number(stream.handle))
    status = try_take_back_async_unnoted(pool, ptr, stream)
    traced_settle(note, status)
    return status


# Frees that wait for the driver. A note that is open meanwhile would hold up all others: it is written beforehand, and
# if the free fails, another one says that the block is there. Of what is no live block there is nothing to note.

cdef int free_late(pool_t* pool, void* ptr) noexcept nogil:
    cdef int status
    if not is_live(pool, ptr):
        return take_back_unnoted(pool, ptr)
    note_freed(pool, ptr, STREAM_OF_BLOCK)
    status = take_back_unnoted(pool, ptr)
    if status != STATUS_OK:
        note_kept(pool, ptr, NULL)
    return status


cdef int free_async_late(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    cdef int status
    if not is_live(pool, ptr):
        return take_back_async_unnoted(pool, ptr, stream)
    note_freed(pool, ptr, stream_number(stream.handle))
    status = take_back_async_unnoted(pool, ptr, stream)
    if status != STATUS_OK:
        note_kept(pool, ptr, stream.handle)
    return status


cdef bint is_live(pool_t* pool, const void* ptr) noexcept nogil:
    cdef size_t requested = 0, used = 0
    return pool_size_of(pool, ptr, &requested, &used) == STATUS_OK


cdef void note_freed(pool_t* pool, void* ptr, uint64_t stream) noexcept nogil:
    cdef tracer_t* tracer
    traced_enter(pool, &tracer)
    traced_settle(traced_open(tracer, <uintptr_t>ptr, stream), STATUS_OK)


cdef void note_kept(pool_t* pool, void* ptr, cudaStream_t stream) noexcept nogil:
    cdef size_t requested = 0, used = 0
    cdef tracer_t* tracer
    cdef int status = pool_size_of(pool, ptr, &requested, &used)
    traced_enter(pool, &tracer)
    traced_made(tracer, status, <uintptr_t>ptr, requested, stream, 0)


# Notes

cdef void traced_enter(pool_t* pool, tracer_t** tracer) noexcept nogil:
    """Wait for a place in the ring, that is for the writer."""
    while not traced_try_enter(pool, tracer):
        rest()


cdef bint traced_try_enter(pool_t* pool, tracer_t** tracer) noexcept nogil:
    """In a forked child there is no writer, and the pool refuses anyhow."""
    cdef tracer_t* found = <tracer_t*>get_pointer(<void* const*>&pool.tracer)
    tracer[0] = NULL
    if found == NULL or pool.generation != pool.forks[0]:
        return True
    if not ring_take_credit(&found.ring):
        add_u64(&found.waits, 1)
        sem_post(&found.ring.filled)
        return False
    if see_u32(&found.open):
        tracer[0] = found
    else:
        ring_give_credits(&found.ring, 1)
    return True


cdef void traced_made(tracer_t* tracer, int status, uint64_t key, size_t nbytes, cudaStream_t stream,
                      uint32_t stack) noexcept nogil:
    """Note an allocation; one of nothing has no block."""
    cdef note_t* note
    if tracer == NULL:
        return
    if status != STATUS_OK or key == 0:
        ring_give_credits(&tracer.ring, 1)
        return
    note = ring_ticket(&tracer.ring)
    note.key = key
    note.size = nbytes
    note.stream = stream_number(stream)
    note.stack = stack
    note_settle(&note.kind, NOTE_ALLOC)


cdef note_t* traced_open(tracer_t* tracer, uint64_t key, uint64_t stream) noexcept nogil:
    cdef note_t* note
    if tracer == NULL:
        return NULL
    if key == 0:
        ring_give_credits(&tracer.ring, 1)
        return NULL
    note = ring_ticket(&tracer.ring)
    note.key = key
    note.stream = stream
    return note


cdef void traced_settle(note_t* note, int status) noexcept nogil:
    cdef note_kind_t kind = NOTE_FREE if status == STATUS_OK else NOTE_VOID
    if note != NULL:
        note_settle(&note.kind, kind)


cdef inline uint64_t stream_number(cudaStream_t stream) noexcept nogil:
    """How a trace names a stream: a per-thread default stream by its thread."""
    if <uintptr_t>stream <= LEGACY_HANDLE:
        return 0
    return THREAD_STREAM + this_thread() if <uintptr_t>stream == THREAD_HANDLE else <uint64_t><uintptr_t>stream


# Stacks

cdef uint32_t traced_stack(pool_t* pool) noexcept nogil:
    cdef tracer_t* tracer = <tracer_t*>get_pointer(<void* const*>&pool.tracer)
    if tracer == NULL or tracer.owner == NULL:
        return 0
    return tracer.stack_of(tracer.owner)


cdef void traced_hold_stack(pool_t* pool) noexcept nogil:
    stack_set(traced_stack(pool))


cdef void traced_drop_stack() noexcept nogil:
    stack_set(0)


cdef uint32_t traced_held_stack() noexcept nogil:
    return stack_get()
