"""Blocks of the two upper tiers, allocated and freed with the pool's lock alone, while the seats go on."""

from cuda_pool._relaxed cimport get_u32
from cuda_pool._segment cimport TAG_TIER, TIER_MID
from cuda_pool._state cimport pool_offset


cdef bint upper_alloc(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                      void** ptr) noexcept nogil:
    return upper_take(pool, nbytes, alignment, stream, ptr)


cdef bint upper_free(pool_t* pool, void* ptr) noexcept nogil:
    return seems_mid(pool, pool_offset(pool, ptr)) and upper_give(pool, ptr)


cdef inline bint seems_mid(const pool_t* pool, size_t offset) noexcept nogil:
    """Spare the lock where it would be taken in vain: without it this is a guess."""
    return (offset < pool.segment.span
            and get_u32(&pool.segment.tag[offset >> pool.segment.granule_shift]) & TAG_TIER == TIER_MID)
