"""Blocks of the two upper tiers, allocated and freed with the pool's lock alone, while the seats go on.

False, and nothing changed, where that is not enough: then all locks are taken. The inline parts are for the shortest
way to here, where all that a call does is one function.
"""

from libc.stdint cimport uint32_t

from cuda_pool._crowd cimport crowd_note_free, is_shared
from cuda_pool._defrag cimport defrag_note
from cuda_pool._growth cimport release_note
from cuda_pool._known cimport known_locked, may_reuse
from cuda_pool._locks cimport enter_lock, leave_lock
from cuda_pool._order cimport stream_ref_t
from cuda_pool._owner cimport NOBODY, owner_t
from cuda_pool._plain cimport plain_alloc, plain_free
from cuda_pool._seat cimport seat_side
from cuda_pool._segment cimport (
    is_movable, place_leave, place_t, segment_alloc_large, segment_claim_place, segment_mid_is_live, segment_used)
from cuda_pool._state cimport batch_of_origin, pool_address, pool_offset, pool_t
from cuda_pool._status cimport STATUS_OK


# `alignment` is a power of two.
cdef bint upper_alloc(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                      void** ptr) noexcept nogil
# A block of the mid tier, for anyone, or for whoever may have what it was cut from. Not the last one: with that all
# caches are emptied, so that where nothing is live the segment is as it was at first. The pool does not scrub.
cdef bint upper_free(pool_t* pool, void* ptr) noexcept nogil


cdef inline bint upper_take(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                            void** ptr) noexcept nogil:
    """The same as upper_alloc()."""
    cdef owner_t owner
    cdef size_t offset = 0, used = 0
    cdef bint done = False
    if nbytes <= pool.segment.slabs.max or enter_lock(pool) != STATUS_OK:
        return False
    if is_shared(pool):
        pool.segment.mid.side = seat_side(pool, pool.place)
    owner = known_locked(pool, stream)
    if pool.order.captures == 0 and may_reuse(pool, owner, stream) and not pool.defrag.due:
        done = (plain_alloc(&pool.segment, owner, nbytes, alignment, &offset, &used)
                or segment_alloc_large(&pool.segment, owner, nbytes, alignment, &offset, &used) == STATUS_OK)
        defrag_note(pool)
    if done:
        ptr[0] = pool_address(pool, offset)
    leave_lock(pool)
    return done


cdef inline bint upper_give(pool_t* pool, void* ptr) noexcept nogil:
    """The same as upper_free(), where it seems to be such a block: else the lock is taken in vain."""
    cdef bint done
    if enter_lock(pool) != STATUS_OK:
        return False
    done = pool.leaving == NULL and pool.uses.count == 0 and free_mid_locked(pool, pool_offset(pool, ptr))
    if done and pool.releases:
        release_note(pool)
    leave_lock(pool)
    return done


cdef inline bint free_mid_locked(pool_t* pool, size_t offset) noexcept nogil:
    """Free a block of which nothing is known but what its record says."""
    cdef uint32_t batch = 0
    cdef place_t place
    if offset >= pool.segment.span or not segment_mid_is_live(&pool.segment, offset, &place):
        return False
    if (is_movable(&place) or segment_used(&pool.segment) == place.used
            or not segment_claim_place(&pool.segment, &place)):
        return False
    if place.owner != NOBODY:
        batch = batch_of_origin(pool, place.owner, place.batch)
    place_leave(&pool.segment, &place)
    plain_free(&pool.segment, place.index, place.owner if batch != 0 else <owner_t>NOBODY, batch)
    crowd_note_free(pool, place.owner, place.used)
    return True
