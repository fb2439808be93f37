"""An allocation where the shortest path ends: at the seat, with `lock`, with all locks; and then see _slowly."""

from cuda_pool._bins cimport cache_t, is_cache
from cuda_pool._bits cimport is_power_of_two
from cuda_pool._blocks cimport block_take
from cuda_pool._defrag cimport defrag_is_due
from cuda_pool._desk cimport desk_alloc, desk_take_slot
from cuda_pool._front cimport cache_of, named_cache
from cuda_pool._growth cimport could_grow
from cuda_pool._happenings cimport happenings_refuse
from cuda_pool._join cimport join_stream, may_join, sit_down
from cuda_pool._known cimport by_handle, known_locked, may_reuse, named_locked
from cuda_pool._locks cimport enter, enter_heaps, leave, leave_all, seat_key, wants_locks
from cuda_pool._order cimport STREAM_CAPTURE, order_any_pending
from cuda_pool._seat cimport seat_leave
from cuda_pool._segment cimport segment_alloc_slot, segment_free_bytes
from cuda_pool._slowly cimport alloc_slowly
from cuda_pool._state cimport bin_bytes, captured, pool_address, serve_locked
from cuda_pool._status cimport STATUS_BAD_ALIGNMENT, STATUS_OK, STATUS_OUT_OF_MEMORY, STATUS_WOULD_WAIT
from cuda_pool._traced cimport is_traced, traced_alloc, traced_try_alloc
from cuda_pool._upper cimport upper_alloc, upper_take


cdef int serve_on(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream, void** ptr) noexcept nogil:
    cdef stream_ref_t ref = by_handle(stream)
    return serve(pool, nbytes, alignment, &ref, ptr)


cdef int serve_slot(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream, void** ptr,
                    seat_t* seat) noexcept nogil:
    cdef cache_t* cache = cache_of(pool, seat, stream)
    cdef bint done = cache != NULL and desk_take_slot(pool, seat, cache, nbytes, alignment, ptr)
    seat_leave(seat)
    return STATUS_OK if done else serve_unseated(pool, nbytes, alignment, stream, ptr)


cdef int serve_block(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream, void** ptr,
                     seat_t* seat) noexcept nogil:
    cdef cache_t* cache = cache_of(pool, seat, stream)
    cdef bint done
    if cache == NULL or not is_cache(cache):
        seat_leave(seat)
        return serve_unseated(pool, nbytes, alignment, stream, ptr)
    done = block_take(seat, cache, nbytes, alignment, ptr)
    seat_leave(seat)
    return STATUS_OK if done else serve_upper(pool, nbytes, alignment, stream, ptr)     # nor would a new one serve it


cdef int serve_unseated(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream, void** ptr) noexcept nogil:
    cdef stream_ref_t ref = by_handle(stream)
    return serve_elsewhere(pool, nbytes, alignment, &ref, ptr, False)


cdef int serve_upper(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream, void** ptr) noexcept nogil:
    cdef stream_ref_t ref = by_handle(stream)
    if is_power_of_two(alignment) and not is_traced(pool) and upper_take(pool, nbytes, alignment, &ref, ptr):
        return STATUS_OK
    return serve_elsewhere(pool, nbytes, alignment, &ref, ptr, False)


cdef int serve(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream, void** ptr) noexcept nogil:
    cdef bint missed = False
    if is_power_of_two(alignment) and alloc_with(pool, sit_down(pool, pool), nbytes, alignment, stream, ptr, &missed):
        return STATUS_OK
    return serve_elsewhere(pool, nbytes, alignment, stream, ptr, missed)


cdef int serve_elsewhere(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream, void** ptr,
                         bint missed) noexcept nogil:
    """The same where the thread is not at its seat, or that did not serve it; `missed` if it has a cache for it."""
    ptr[0] = NULL
    if not is_power_of_two(alignment):
        return STATUS_BAD_ALIGNMENT
    if is_traced(pool):
        return traced_alloc(pool, nbytes, alignment, stream, ptr)
    return finish_alloc(pool, nbytes, alignment, stream, ptr,
                        try_serve_without(pool, nbytes, alignment, stream, ptr, missed))


cdef int try_serve(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                   void** ptr) noexcept nogil:
    """Serve a request at the thread's seat after all, or else with the locks that it takes."""
    cdef bint missed
    ptr[0] = NULL
    if not is_power_of_two(alignment):
        return STATUS_BAD_ALIGNMENT
    if alloc_with(pool, sit_down(pool, pool), nbytes, alignment, stream, ptr, &missed):
        return STATUS_OK
    if is_traced(pool):
        return traced_try_alloc(pool, nbytes, alignment, stream, ptr)
    return try_serve_without(pool, nbytes, alignment, stream, ptr, missed)


cdef int serve_unnoted(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                       void** ptr) noexcept nogil:
    return finish_alloc(pool, nbytes, alignment, stream, ptr, try_serve_unnoted(pool, nbytes, alignment, stream, ptr))


cdef int finish_alloc(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream, void** ptr,
                      int status) noexcept nogil:
    if status == STATUS_WOULD_WAIT:
        status = alloc_slowly(pool, nbytes, alignment, stream, ptr)
    if status == STATUS_OUT_OF_MEMORY:
        happenings_refuse(&pool.happenings, nbytes)
    return status


cdef int try_serve_unnoted(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                           void** ptr) noexcept nogil:
    cdef bint missed
    ptr[0] = NULL
    if not is_power_of_two(alignment):
        return STATUS_BAD_ALIGNMENT
    if alloc_with(pool, sit_down(pool, seat_key(pool)), nbytes, alignment, stream, ptr, &missed):
        return STATUS_OK
    return try_serve_without(pool, nbytes, alignment, stream, ptr, missed)


cdef int try_serve_without(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream, void** ptr,
                           bint missed) noexcept nogil:
    """The same where the seat does not serve it: with a cache for the stream, or with locks."""
    cdef owner_t owner
    cdef int status
    if (not missed and may_join(pool, nbytes) and join_stream(pool, stream)
            and alloc_with(pool, sit_down(pool, seat_key(pool)), nbytes, alignment, stream, ptr, &missed)):
        return STATUS_OK
    if upper_alloc(pool, nbytes, alignment, stream, ptr) or try_alloc_slab(pool, nbytes, alignment, stream, ptr):
        return STATUS_OK
    status = enter(pool)
    if status != STATUS_OK:
        return status
    owner = named_locked(pool, stream)
    if may_reuse(pool, owner, stream) and not defrag_is_due(pool):
        status = alloc_locked(pool, owner, nbytes, alignment, ptr)
    else:
        status = STATUS_WOULD_WAIT
    pool.oom_count += status == STATUS_OUT_OF_MEMORY
    leave(pool)
    return status


cdef bint alloc_with(pool_t* pool, seat_t* seat, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                     void** ptr, bint* missed) noexcept nogil:
    """Serve a request at a seat; `missed` says whether there is a cache for it, whatever came of that."""
    cdef cache_t* cache
    cdef bint done
    missed[0] = False
    if seat == NULL:
        return False
    cache = named_cache(pool, seat, stream)
    missed[0] = cache != NULL and is_cache(cache)
    done = cache != NULL and desk_alloc(pool, seat, cache, nbytes, alignment, ptr)
    seat_leave(seat)
    return done


cdef bint try_alloc_slab(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                         void** ptr) noexcept nogil:
    """Serve a request from a new slab of the stream's, while the seats go on; False, and nothing changed, otherwise."""
    cdef owner_t owner
    cdef size_t offset = 0, used = 0
    cdef bint done = False
    if nbytes - 1 >= pool.segment.slabs.max or enter_heaps(pool) != STATUS_OK:
        return False
    owner = known_locked(pool, stream)
    if (not wants_locks(pool) and pool.helds.bytes == 0 and may_reuse(pool, owner, stream) and not pool.defrag.due):
        done = segment_alloc_slot(&pool.segment, owner, nbytes, alignment, bin_bytes(pool), &offset,
                                  &used) == STATUS_OK
    if done:
        ptr[0] = pool_address(pool, offset)
    leave_all(pool)
    return done


cdef int alloc_locked(pool_t* pool, owner_t owner, size_t nbytes, size_t alignment, void** ptr) noexcept nogil:
    cdef int status
    if nbytes == 0:
        return STATUS_OK
    if pool.order.captures != 0:
        owner = captured(pool, owner)
    status = serve_locked(pool, owner, nbytes, alignment, ptr)
    return refuse_locked(pool, owner, nbytes) if status == STATUS_OUT_OF_MEMORY else status


cdef int refuse_locked(pool_t* pool, owner_t owner, size_t nbytes) noexcept nogil:
    """Is a request hopeless, or could the driver help?"""
    if pool.order.stream[owner].kind != STREAM_CAPTURE and nbytes <= segment_free_bytes(&pool.segment):
        if pool.helds.bytes != 0 or pool.movables.count != 0 or order_any_pending(&pool.order, owner):
            return STATUS_WOULD_WAIT
        if pool.segment.pages.shift != 0:
            return STATUS_WOULD_WAIT
    if could_grow(pool, owner, nbytes):
        return STATUS_WOULD_WAIT
    return STATUS_OUT_OF_MEMORY
