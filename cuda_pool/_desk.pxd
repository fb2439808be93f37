"""What else a thread can do at its own seat than the shortest paths: fill and spill its bins, and ask for blocks.

As in _front: False, and nothing changed for anyone, where that is not enough.
"""

from libc.stdint cimport uint32_t

from cuda_pool._bins cimport BLOCK_MOST, cache_t
from cuda_pool._blocks cimport block_give, block_take
from cuda_pool._relaxed cimport get_u32
from cuda_pool._seat cimport seat_t
from cuda_pool._segment cimport TAG_INDEX_SHIFT, TAG_TIER, TIER_MID, TIER_SLAB
from cuda_pool._state cimport pool_offset, pool_t

# The parts of the two at the end of this file that are about slots.
cdef bint desk_take_slot(pool_t* pool, seat_t* seat, cache_t* cache, size_t nbytes, size_t alignment,
                         void** ptr) noexcept nogil
cdef bint desk_give_slot(pool_t* pool, seat_t* seat, cache_t* cache, uint32_t slab, size_t offset,
                         void* ptr) noexcept nogil


cdef inline bint desk_alloc(pool_t* pool, seat_t* seat, cache_t* cache, size_t nbytes, size_t alignment,
                            void** ptr) noexcept nogil:
    """Serve a request from a stream's cache."""
    if nbytes > cache.slab_max:
        return nbytes <= <size_t>BLOCK_MOST and block_take(seat, cache, nbytes, alignment, ptr)
    return desk_take_slot(pool, seat, cache, nbytes, alignment, ptr)


cdef inline bint desk_free(pool_t* pool, seat_t* seat, cache_t* cache, void* ptr) noexcept nogil:
    """Free into a stream's cache, or, where that is NULL, into whichever it belongs."""
    cdef size_t offset = pool_offset(pool, ptr)
    return offset < pool.segment.span and desk_give(pool, seat, cache, desk_tag(pool, offset), offset, ptr)


cdef inline uint32_t desk_tag(const pool_t* pool, size_t offset) noexcept nogil:
    return get_u32(&pool.segment.tag[offset >> pool.segment.granule_shift])


cdef inline bint desk_give(pool_t* pool, seat_t* seat, cache_t* cache, uint32_t tag, size_t offset,
                           void* ptr) noexcept nogil:
    """The same by the tag of its place, inside the segment."""
    if tag & TAG_TIER == TIER_MID:
        return block_give(pool, seat, cache, tag >> TAG_INDEX_SHIFT, offset, ptr)
    return tag & TAG_TIER == TIER_SLAB and desk_give_slot(pool, seat, cache, tag >> TAG_INDEX_SHIFT, offset, ptr)
