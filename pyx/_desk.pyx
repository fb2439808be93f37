"""What else a thread can do at its own seat with slots: fill and spill its bins. For blocks: see _blocks."""

from libc.stdint cimport uint32_t, uint64_t

from cuda_pool._bins cimport BIN_ALIGNMENT, BLOCK_SHIFT_MOST, FRESH, bin_t, is_cache
from cuda_pool._blocks cimport block_give, block_take
from cuda_pool._cache cimport cache_refill, cache_spill
from cuda_pool._front cimport bin_give, bin_take, slot_bin
from cuda_pool._relaxed cimport get_u32
from cuda_pool._segment cimport TAG_INDEX_SHIFT, TAG_TIER, TIER_MID, TIER_SLAB
from cuda_pool._slab cimport SLAB_UNIT, divides, slab_t, slot_t
from cuda_pool._state cimport pool_offset


cdef bint desk_alloc(pool_t* pool, seat_t* seat, cache_t* cache, size_t nbytes, size_t alignment,
                     void** ptr) noexcept nogil:
    if nbytes - 1 < cache.table_max:
        return take_any_slot(pool, seat, cache, bin_for(pool, cache, nbytes, alignment), nbytes, ptr)
    return (cache.slab_max < nbytes <= <size_t>1 << BLOCK_SHIFT_MOST
            and block_take(pool, seat, cache, nbytes, alignment, ptr))


cdef bin_t* bin_for(pool_t* pool, cache_t* cache, size_t nbytes, size_t alignment) noexcept nogil:
    """The bin whose slots serve a request, or the one that is always empty."""
    cdef int index = pool.segment.slabs.table[(nbytes + SLAB_UNIT - 1) // SLAB_UNIT]
    if alignment == BIN_ALIGNMENT:
        return slot_bin(cache, nbytes)
    if (alignment & (alignment - 1) != 0 or alignment > pool.segment.slot_alignment
            or cache.bin[index].size & (alignment - 1) != 0):
        index = cache.classes
    return &cache.bin[index]


cdef bint take_any_slot(pool_t* pool, seat_t* seat, cache_t* cache, bin_t* bin, size_t nbytes,
                        void** ptr) noexcept nogil:
    """Take a slot, whether it was handed out before or not."""
    cdef uint32_t value
    while bin.limit != bin.floor:
        if bin.top == bin.floor and not cache_refill(pool, seat, cache, <int>(bin - &cache.bin[0])):
            return False
        value = get_u32(&(<slot_t*>bin.top[-1].record).value)
        if value & ~FRESH == seat.mark:
            return bin_take(seat, bin, value, nbytes, ptr)
        bin.top -= 1                            # freed twice at one time: somebody else has it
        seat.strays = True
    return False


cdef bint desk_free(pool_t* pool, seat_t* seat, cache_t* cache, void* ptr) noexcept nogil:
    cdef size_t offset = pool_offset(pool, ptr)
    cdef uint32_t tag
    if offset >= pool.segment.span:
        return False
    tag = get_u32(&pool.segment.tag[offset >> pool.segment.granule_shift])
    if tag & TAG_TIER == TIER_SLAB:
        return give_slot(pool, seat, cache, &pool.segment.slabs.slab[tag >> TAG_INDEX_SHIFT], offset, ptr)
    return tag & TAG_TIER == TIER_MID and block_give(pool, seat, cache, tag >> TAG_INDEX_SHIFT, offset, ptr)


cdef bint give_slot(pool_t* pool, seat_t* seat, cache_t* cache, slab_t* slab, size_t offset,
                    void* ptr) noexcept nogil:
    cdef uint64_t number = 0
    cdef cache_t* own = seat.cache[slab.owner]
    cdef bin_t* bin
    if (offset < slab.start or not divides(offset - slab.start, slab.reciprocal, slab.reciprocal, &number)
            or number >= get_u32(&slab.fresh)):
        return False
    if not is_cache(own):
        seat.wanted = slab.owner
        return False
    bin = &own.bin[slab.size_class]
    if bin.top == bin.limit and not cache_spill(pool, seat, own, slab.size_class):
        return False
    return bin_give(pool, seat, cache, slab, &slab.slot[number], ptr)
