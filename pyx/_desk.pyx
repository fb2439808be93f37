"""What else a thread can do at its own seat with slots: fill and spill its bins."""

from libc.stdint cimport uint32_t, uint64_t

from cuda_pool._bins cimport BIN_ALIGNMENT, FRESH, bin_t, is_cache
from cuda_pool._cache cimport cache_refill, cache_spill
from cuda_pool._front cimport bin_give, bin_take, slot_bin
from cuda_pool._relaxed cimport get_u32
from cuda_pool._slab cimport SLAB_UNIT, divides, slab_t, slot_t


cdef bint desk_take_slot(pool_t* pool, seat_t* seat, cache_t* cache, size_t nbytes, size_t alignment,
                         void** ptr) noexcept nogil:
    if nbytes - 1 >= cache.table_max:
        return False
    return take_any_slot(pool, seat, cache, bin_for(pool, cache, nbytes, alignment), nbytes, ptr)


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


cdef bint desk_give_slot(pool_t* pool, seat_t* seat, cache_t* cache, uint32_t index, size_t offset,
                         void* ptr) noexcept nogil:
    cdef slab_t* slab = &pool.segment.slabs.slab[index]
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
