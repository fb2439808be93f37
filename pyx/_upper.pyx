"""Blocks of the two upper tiers, allocated and freed with the pool's lock alone, while the seats go on."""

from libc.stdint cimport uint32_t

from cuda_pool._defrag cimport defrag_note
from cuda_pool._growth cimport release_note
from cuda_pool._known cimport known_locked, may_reuse
from cuda_pool._locks cimport enter_lock, leave_lock
from cuda_pool._owner cimport NOBODY, owner_t
from cuda_pool._relaxed cimport get_u32
from cuda_pool._segment cimport (
    TAG_TIER, TIER_MID, is_movable, place_leave, place_t, segment_alloc_large, segment_claim_place, segment_free_mid,
    segment_mid_is_live, segment_used)
from cuda_pool._state cimport batch_of_origin, pool_address, pool_offset
from cuda_pool._status cimport STATUS_OK


cdef bint upper_alloc(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                      void** ptr) noexcept nogil:
    cdef owner_t owner
    cdef size_t offset = 0, used = 0
    cdef bint done = False
    if nbytes <= pool.segment.slabs.max or enter_lock(pool) != STATUS_OK:
        return False
    owner = known_locked(pool, stream)
    if pool.order.captures == 0 and may_reuse(pool, owner, stream) and not pool.defrag.due:
        done = segment_alloc_large(&pool.segment, owner, nbytes, alignment, &offset, &used) == STATUS_OK
        defrag_note(pool)
    if done:
        ptr[0] = pool_address(pool, offset)
    leave_lock(pool)
    return done


cdef bint upper_free(pool_t* pool, void* ptr) noexcept nogil:
    cdef bint done
    if not seems_mid(pool, pool_offset(pool, ptr)) or enter_lock(pool) != STATUS_OK:
        return False
    done = pool.leaving == NULL and pool.uses.count == 0 and free_mid_locked(pool, pool_offset(pool, ptr))
    if done and pool.releases:
        release_note(pool)
    leave_lock(pool)
    return done


cdef inline bint seems_mid(const pool_t* pool, size_t offset) noexcept nogil:
    """Spare the lock where it would be taken in vain: without it this is a guess."""
    return (offset < pool.segment.span
            and get_u32(&pool.segment.tag[offset >> pool.segment.granule_shift]) & TAG_TIER == TIER_MID)


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
    segment_free_mid(&pool.segment, place.index, place.owner if batch != 0 else <owner_t>NOBODY, batch)
    return True
