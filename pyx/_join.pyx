"""How a thread comes to its seat at a pool, and to caches for the streams that it uses."""

from libc.stdint cimport uintptr_t

from cuda_pool._bins cimport BLOCK_MOST, cache_t, is_cache
from cuda_pool._cache cimport cache_make, seat_add
from cuda_pool._front cimport named_cache
from cuda_pool._known cimport is_sure, known_locked
from cuda_pool._lock cimport lock_acquire, lock_release
from cuda_pool._locks cimport enter, enter_lock, leave, leave_lock, wants_locks
from cuda_pool._order cimport LEGACY, STREAM_HELD, THREAD_HANDLE, order_glance, stream_t
from cuda_pool._owner cimport NOBODY, owner_t
from cuda_pool._relaxed cimport get_flag, get_pointer
from cuda_pool._seat cimport SEAT_STAYS, SEAT_WAITS, load_u32, seat_enter, seat_find, seat_make, seat_place
from cuda_pool._segment cimport place_t, segment_is_live
from cuda_pool._state cimport pool_offset
from cuda_pool._status cimport STATUS_OK

cdef enum:
    CACHED_LEAST = 1 << 20          # bytes: smaller pools have nothing to keep in caches


cdef bint may_join(const pool_t* pool, size_t nbytes) noexcept nogil:
    return nbytes - 1 < <size_t>BLOCK_MOST and not get_flag(&pool.closed) and pool.capacity >= CACHED_LEAST


cdef bint join_stream(pool_t* pool, const stream_ref_t* stream) noexcept nogil:
    """Let the calling thread have a cache for a stream; False where it has one, or the stream is not known for sure."""
    cdef seat_t* seat = seat_of(pool)
    cdef owner_t owner
    cdef bint joined = False
    if seat != NULL and is_cached(pool, seat, stream):
        return False
    if enter(pool) != STATUS_OK:
        return False
    if not wants_locks(pool):
        owner = known_locked(pool, stream)
        joined = is_sure(pool, owner, stream) and join_locked(pool, seat, owner)
    leave(pool)
    return joined


cdef bint is_cached(pool_t* pool, const seat_t* seat, const stream_ref_t* stream) noexcept nogil:
    """Is the seat stopped, or does it have what it can have for the stream? Others change caches with the lock."""
    cdef const cache_t* cache
    cdef bint cached
    if load_u32(&seat.stopped) == SEAT_STAYS:
        return True
    if enter_lock(pool) != STATUS_OK:
        return False
    cache = named_cache(pool, seat, stream)
    cached = ((cache != NULL and is_cache(cache))
              or (stream.owner == NOBODY and <uintptr_t>stream.handle > THREAD_HANDLE
                  and not is_promised(pool, stream)))
    leave_lock(pool)
    return cached


cdef bint is_promised(const pool_t* pool, const stream_ref_t* stream) noexcept nogil:
    cdef const stream_t* record = &pool.order.stream[order_glance(&pool.order, stream.handle)]
    return record.handle == stream.handle and record.kind == STREAM_HELD


cdef bint join_for(pool_t* pool, const void* ptr) noexcept nogil:
    """The same for whoever's a slot is that is freed; where it is a block of nobody's, for the default stream."""
    cdef seat_t* seat = seat_of(pool)
    cdef size_t offset = pool_offset(pool, ptr)
    cdef place_t place
    cdef owner_t owner
    cdef bint joined = False
    if not may_join(pool, 1) or (seat != NULL and (load_u32(&seat.stopped) == SEAT_STAYS or seat.wanted == NOBODY)):
        return False
    if enter(pool) != STATUS_OK:
        return False
    if not wants_locks(pool) and offset < pool.segment.span and segment_is_live(&pool.segment, offset, &place):
        owner = place.owner if place.owner != NOBODY else <owner_t>LEGACY
        joined = (seat == NULL or not is_cache(seat.cache[owner])) and join_locked(pool, seat, owner)
    if seat != NULL:
        seat.wanted = NOBODY
    leave(pool)
    return joined


cdef seat_t* seat_of(pool_t* pool) noexcept nogil:
    cdef seat_t** place = seat_place(pool.place)
    cdef seat_t* seat = place[0]
    if seat == NULL or get_pointer(<void* const*>&seat.pool) != pool:
        seat = seat_find(pool, place)
    return seat


cdef bint join_locked(pool_t* pool, seat_t* seat, owner_t owner) noexcept nogil:
    if seat == NULL:
        seat = seat_make(pool, seat_place(pool.place))
        if seat == NULL:
            return False
        seat_add(pool, seat)
    seat.recent = owner
    return cache_make(pool, seat, owner) != NULL


cdef seat_t* sit_down(pool_t* pool, const void* key) noexcept nogil:
    """Wait for whoever has stopped the seat, if that will not be long: two threads that each went on with all locks
    instead would stop each other for ever. Once, for a thread that is stopped again has to get on as well.

    The key is the pool for a call that leaves no note: while calls are recorded it does not open the gate.
    """
    cdef seat_t** place = seat_place(pool.place)
    cdef seat_t* seat = seat_enter(place[0], key)
    if seat == NULL and is_waiting(pool, place[0]):
        lock_acquire(&pool.lock)
        lock_release(&pool.lock)
        seat = seat_enter(place[0], key)
    return seat


cdef inline bint is_waiting(const pool_t* pool, seat_t* seat) noexcept nogil:
    return (seat != NULL and get_pointer(<void* const*>&seat.pool) == pool and load_u32(&seat.stopped) == SEAT_WAITS)
