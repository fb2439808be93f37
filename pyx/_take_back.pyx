"""A free where the shortest path ends: at the seat, with `lock`, with all locks; and then see _slowly."""

from libc.stdint cimport uint32_t

from cuda_pool._ask cimport ask_stream_done
from cuda_pool._bins cimport cache_t, is_cache
from cuda_pool._blocks cimport block_give
from cuda_pool._crowd cimport crowd_note_free, is_shared
from cuda_pool._desk cimport desk_free, desk_give, desk_tag
from cuda_pool._front cimport cache_of, named_cache
from cuda_pool._growth cimport release_note
from cuda_pool._join cimport join_for, join_stream, may_join, sit_down
from cuda_pool._known cimport by_handle, is_sure, known_locked, named_locked
from cuda_pool._lock cimport lock_release
from cuda_pool._locks cimport enter_lock, heaps_acquire, leave_all, seat_key
from cuda_pool._mid cimport MID_UNIT
from cuda_pool._order cimport LEGACY, stream_can_vanish, stream_is_pending
from cuda_pool._owner cimport NOBODY
from cuda_pool._pool cimport pool_release
from cuda_pool._relaxed cimport get_flag
from cuda_pool._seat cimport seat_leave
from cuda_pool._segment cimport (
    TAG_INDEX_SHIFT, TAG_TIER, TIER_MID, place_t, segment_is_cached, segment_is_last, segment_is_upper)
from cuda_pool._shortage cimport is_capturing
from cuda_pool._slowly cimport free_async_slowly, leaving_begin, leaving_end, slow_enter, zero_in_order
from cuda_pool._state cimport captured, find_locked, free_async_locked, free_locked, leaving_t, pool_offset
from cuda_pool._status cimport STATUS_CAPTURING, STATUS_OK, STATUS_WOULD_WAIT
from cuda_pool._traced cimport is_traced, traced_free, traced_free_async, traced_try_free, traced_try_free_async
from cuda_pool._upper cimport upper_free, upper_give


cdef bint free_with(pool_t* pool, seat_t* seat, void* ptr) noexcept nogil:
    """Free a block for anyone."""
    cdef bint done
    if seat == NULL:
        return False
    done = desk_free(pool, seat, NULL, ptr)
    seat_leave(seat)
    return done


cdef bint free_on(pool_t* pool, seat_t* seat, void* ptr, const stream_ref_t* stream, bint* missed) noexcept nogil:
    """Free a block in a stream's order; `missed` says whether there is a cache for that, whatever came of it."""
    cdef cache_t* cache
    cdef bint done
    missed[0] = False
    if seat == NULL:
        return False
    cache = named_cache(pool, seat, stream)
    missed[0] = cache != NULL and is_cache(cache)
    done = cache != NULL and desk_free(pool, seat, cache, ptr)
    seat_leave(seat)
    return done


cdef int take_back_seated(pool_t* pool, void* ptr, seat_t* seat) noexcept nogil:
    cdef size_t offset = pool_offset(pool, ptr)
    cdef uint32_t tag = desk_tag(pool, offset) if offset < pool.segment.span else 0
    cdef bint missed
    if desk_give(pool, seat, NULL, tag, offset, ptr):
        seat_leave(seat)
        return STATUS_OK
    missed = tag & TAG_TIER == TIER_MID and seat.wanted == NOBODY   # no cache that it lacks would have taken it
    seat_leave(seat)
    return take_back_upper(pool, ptr) if missed else take_back_elsewhere(pool, ptr)


cdef int take_back_block(pool_t* pool, void* ptr, seat_t* seat, size_t offset, uint32_t index) noexcept nogil:
    cdef bint done = block_give(pool, seat, NULL, index, offset, ptr)
    cdef bint missed = seat.wanted == NOBODY
    seat_leave(seat)
    if done:
        return STATUS_OK
    return take_back_upper(pool, ptr) if missed else take_back_elsewhere(pool, ptr)


cdef int take_back_upper(pool_t* pool, void* ptr) noexcept nogil:
    if not is_traced(pool) and not pool.scrub and upper_give(pool, ptr):
        return finish_free(pool, ptr, STATUS_OK)
    return take_back_elsewhere(pool, ptr)


cdef int take_back(pool_t* pool, void* ptr) noexcept nogil:
    if ptr != NULL and free_with(pool, sit_down(pool, pool), ptr):
        return STATUS_OK
    return take_back_elsewhere(pool, ptr)


cdef int take_back_elsewhere(pool_t* pool, void* ptr) noexcept nogil:
    """The same where the thread is not at its seat, or that did not take it."""
    if ptr == NULL:
        return finish_free(pool, ptr, STATUS_OK)
    if is_traced(pool):
        return traced_free(pool, ptr)
    return finish_free(pool, ptr, try_take_back_without(pool, ptr))


cdef int take_back_unnoted(pool_t* pool, void* ptr) noexcept nogil:
    return finish_free(pool, ptr, try_take_back_unnoted(pool, ptr))


cdef inline int finish_free(pool_t* pool, void* ptr, int status) noexcept nogil:
    if status == STATUS_WOULD_WAIT:
        status = free_scrubbing(pool, ptr)
    if get_flag(&pool.release_due):
        pool_release(pool)
    return status


cdef int free_scrubbing(pool_t* pool, void* ptr) noexcept nogil:
    """Overwrite a block on the default stream, and wait for that: a capture forbids both."""
    cdef leaving_t block
    cdef int status = slow_enter(pool)
    if status != STATUS_OK:
        return status
    status = leaving_begin(pool, ptr, &block)
    if status == STATUS_OK:
        status = STATUS_CAPTURING if is_capturing(pool) else zero_in_order(pool, &block, LEGACY, NULL)
        lock_release(&pool.slow)
        if status == STATUS_OK:
            status = ask_stream_done(pool, NULL)
        return leaving_end(pool, &block, status, NOBODY)
    lock_release(&pool.slow)
    return status


cdef int try_take_back(pool_t* pool, void* ptr) noexcept nogil:
    if ptr == NULL or free_with(pool, sit_down(pool, pool), ptr):
        return STATUS_OK
    return traced_try_free(pool, ptr) if is_traced(pool) else try_take_back_without(pool, ptr)


cdef int try_take_back_unnoted(pool_t* pool, void* ptr) noexcept nogil:
    if ptr == NULL or free_with(pool, sit_down(pool, seat_key(pool)), ptr):
        return STATUS_OK
    return try_take_back_without(pool, ptr)


cdef int try_take_back_without(pool_t* pool, void* ptr) noexcept nogil:
    """The same where the seat does not take it: with a cache that it fits in, or with locks."""
    if pool.scrub:
        return STATUS_WOULD_WAIT
    if join_for(pool, ptr) and free_with(pool, sit_down(pool, seat_key(pool)), ptr):
        return STATUS_OK
    return STATUS_OK if upper_free(pool, ptr) else free_with_locks(pool, ptr)


cdef int free_with_locks(pool_t* pool, void* ptr) noexcept nogil:
    cdef int status = enter_for(pool, ptr)
    if status == STATUS_OK:
        status = free_locked(pool, ptr)
        if pool.releases:
            release_note(pool)
        leave_all(pool)
    return status


cdef int enter_for(pool_t* pool, const void* ptr) noexcept nogil:
    """Take the locks that a block's free needs: `lock` alone, unless it is a slot, or no block at all.

    With the last block all caches are emptied, so that where nothing is live the segment is as it was at first.
    """
    cdef int status = enter_lock(pool)
    cdef size_t offset
    if status != STATUS_OK:
        return status
    offset = pool_offset(pool, ptr)             # under the lock: without it regions may come and go meanwhile
    pool.heaps_held = 0
    if (offset >= pool.segment.span or not segment_is_upper(&pool.segment, offset)
            or segment_is_cached(&pool.segment, offset) or segment_is_last(&pool.segment, offset)):
        heaps_acquire(pool)
    return STATUS_OK


cdef int take_back_async_at(pool_t* pool, void* ptr, cudaStream_t stream, seat_t* seat) noexcept nogil:
    cdef stream_ref_t ref
    cdef cache_t* cache
    if seat == NULL:
        ref = by_handle(stream)
        return take_back_async(pool, ptr, &ref)
    cache = cache_of(pool, seat, stream)
    if cache != NULL and desk_free(pool, seat, cache, ptr):
        seat_leave(seat)
        return STATUS_OK
    seat_leave(seat)
    ref = by_handle(stream)
    return take_back_async_elsewhere(pool, ptr, &ref, False)


cdef int take_back_async(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    cdef bint missed = False
    if ptr != NULL and free_on(pool, sit_down(pool, pool), ptr, stream, &missed):
        return STATUS_OK
    return take_back_async_elsewhere(pool, ptr, stream, missed)


cdef int take_back_async_elsewhere(pool_t* pool, void* ptr, const stream_ref_t* stream, bint missed) noexcept nogil:
    """The same where the thread is not at its seat, or that did not take it; `missed` if it has a cache for it."""
    if ptr == NULL:
        return finish_free_async(pool, ptr, stream, STATUS_OK)
    if is_traced(pool):
        return traced_free_async(pool, ptr, stream)
    return finish_free_async(pool, ptr, stream, try_take_back_async_without(pool, ptr, stream, missed))


cdef int take_back_async_unnoted(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    return finish_free_async(pool, ptr, stream, try_take_back_async_unnoted(pool, ptr, stream))


cdef inline int finish_free_async(pool_t* pool, void* ptr, const stream_ref_t* stream, int status) noexcept nogil:
    if status == STATUS_WOULD_WAIT:
        status = free_async_slowly(pool, ptr, stream)
    if get_flag(&pool.release_due):
        pool_release(pool)
    return status


cdef int try_take_back_async(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    cdef bint missed = False
    if ptr == NULL or free_on(pool, sit_down(pool, pool), ptr, stream, &missed):
        return STATUS_OK
    if is_traced(pool):
        return traced_try_free_async(pool, ptr, stream)
    return try_take_back_async_without(pool, ptr, stream, missed)


cdef int try_take_back_async_unnoted(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    cdef bint missed = False
    if ptr == NULL or free_on(pool, sit_down(pool, seat_key(pool)), ptr, stream, &missed):
        return STATUS_OK
    return try_take_back_async_without(pool, ptr, stream, missed)


cdef int try_take_back_async_without(pool_t* pool, void* ptr, const stream_ref_t* stream,
                                     bint missed) noexcept nogil:
    if (not missed and may_join(pool, 1) and join_stream(pool, stream)
            and free_on(pool, sit_down(pool, seat_key(pool)), ptr, stream, &missed)):
        return STATUS_OK
    return free_async_with_locks(pool, ptr, stream)


cdef int free_async_with_locks(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    cdef owner_t owner
    cdef size_t used
    cdef int status
    status = enter_for(pool, ptr)
    if status != STATUS_OK:
        return status
    used = mid_bytes(pool, ptr) if pool.heaps_held == 0 and is_shared(pool) else 0
    owner = known_locked(pool, stream)
    if owner == NOBODY and pool.heaps_held == 0:    # a record may have to be made
        heaps_acquire(pool)
        owner = named_locked(pool, stream)
    if is_sure(pool, owner, stream):
        status = try_free_async_locked(pool, ptr, owner)
    else:
        status = STATUS_WOULD_WAIT
    if status == STATUS_OK:
        crowd_note_free(pool, owner, used)
    if pool.releases:
        release_note(pool)
    leave_all(pool)
    return status


cdef inline size_t mid_bytes(const pool_t* pool, const void* ptr) noexcept nogil:
    """Of the block of the mid tier that starts there, if one does, or 0."""
    cdef size_t offset = pool_offset(pool, ptr)
    cdef uint32_t tag = desk_tag(pool, offset) if offset < pool.segment.span else 0
    if tag & TAG_TIER != TIER_MID:
        return 0
    return <size_t>pool.segment.mid.block[tag >> TAG_INDEX_SHIFT].size * MID_UNIT


cdef int try_free_async_locked(pool_t* pool, void* ptr, owner_t owner) noexcept nogil:
    cdef const stream_t* stream = &pool.order.stream[owner]
    cdef size_t unmarked
    cdef place_t place
    if pool.scrub or owner == NOBODY:
        return STATUS_WOULD_WAIT
    if stream_can_vanish(stream) and find_locked(pool, ptr, &place) == STATUS_OK:
        unmarked = stream.unmarked + place.used
        if pool.heaps_held != 0:
            unmarked += pool.heaps[owner].unmarked
        if is_worth_an_event(pool, stream, unmarked):
            return STATUS_WOULD_WAIT
    if pool.heaps_held != 0:
        count_unmarked(pool, owner)
    return free_async_locked(pool, ptr, captured(pool, owner))


cdef void count_unmarked(pool_t* pool, owner_t owner) noexcept nogil:
    """Count what was freed on the stream at seats."""
    pool.order.stream[owner].unmarked += pool.heaps[owner].unmarked
    pool.heaps[owner].unmarked = 0


cdef bint is_worth_an_event(const pool_t* pool, const stream_t* stream, size_t unmarked) noexcept nogil:
    """Is so much without an event that others should not have to wait for the whole device to get it?"""
    if pool.order.streams <= LEGACY + 2 and not stream_is_pending(&pool.order.stream[LEGACY]):
        return False                            # there are no others
    return stream.capture == NOBODY and unmarked >= pool.mark_bytes
