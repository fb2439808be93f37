"""What else a thread can do at its own seat: fill and spill its bins, and use again blocks of the mid tier."""

from libc.stdint cimport uint32_t, uint64_t

from cuda_pool._bins cimport (
    BLOCK_BINS, BLOCK_SHIFT_LEAST, BLOCK_SHIFT_MOST, CACHED, bin_holds, bin_t, block_bin)
from cuda_pool._cache cimport cache_refill, cache_spill
from cuda_pool._front cimport bin_give, bin_take, note_freed, slot_bin
from cuda_pool._mid cimport MID_UNIT, mid_block_t
from cuda_pool._owner cimport NOBODY, owner_t
from cuda_pool._relaxed cimport get_size, get_u32, get_u64, set_u16, set_u32, set_u64, swap_u64
from cuda_pool._segment cimport TAG_INDEX_SHIFT, TAG_TIER, TIER_MID, TIER_SLAB, seat_note
from cuda_pool._slab cimport slab_guess, slab_t
from cuda_pool._state cimport pool_offset
from cuda_pool._tally cimport tally_enter, tally_leave


cdef bint desk_alloc(pool_t* pool, seat_t* seat, cache_t* cache, size_t nbytes, size_t alignment,
                     void** ptr) noexcept nogil:
    cdef bin_t* bin
    if nbytes - 1 < cache.table_max:
        bin = slot_bin(cache, nbytes)
        return ((bin.count != 0 or cache_refill(pool, seat, cache, <int>(bin - &cache.bin[0])))
                and bin_take(pool, seat, bin, nbytes, alignment, ptr))
    return (cache.slab_max < nbytes <= <size_t>1 << BLOCK_SHIFT_MOST
            and take_block(pool, seat, cache, nbytes, alignment, ptr))


cdef bint desk_free(pool_t* pool, seat_t* seat, cache_t* cache, void* ptr) noexcept nogil:
    cdef size_t offset = pool_offset(pool, ptr)
    cdef uint32_t tag
    if offset >= pool.segment.span:
        return False
    tag = get_u32(&pool.segment.tag[offset >> pool.segment.granule_shift])
    if tag & TAG_TIER == TIER_SLAB:
        return give_slot(pool, seat, cache, &pool.segment.slabs.slab[tag >> TAG_INDEX_SHIFT], offset, ptr)
    return tag & TAG_TIER == TIER_MID and give_block(pool, seat, cache, tag >> TAG_INDEX_SHIFT, offset, ptr)


cdef bint give_slot(pool_t* pool, seat_t* seat, cache_t* cache, slab_t* slab, size_t offset,
                    void* ptr) noexcept nogil:
    cdef uint64_t number = slab_guess(slab, offset)
    cdef cache_t* own = seat.cache[slab.owner]
    cdef bin_t* bin
    if number >= get_u32(&slab.fresh) or slab.start + number * slab.size != offset:
        return False
    if own == NULL:
        seat.wanted = slab.owner
        return False
    bin = &own.bin[slab.size_class]
    if bin.count == bin.most and not cache_spill(pool, seat, own, slab.size_class):
        return False
    return bin_give(pool, seat, cache, slab, &slab.slot[number], ptr)


cdef bint take_block(pool_t* pool, seat_t* seat, cache_t* cache, size_t nbytes, size_t alignment,
                     void** ptr) noexcept nogil:
    """Take a block that has what is wanted and little more."""
    cdef int at = block_bin(nbytes) if nbytes >= <size_t>1 << BLOCK_SHIFT_LEAST else 0
    cdef bin_t* bin = &cache.block[at]
    cdef mid_block_t* block
    cdef size_t used
    if alignment > MID_UNIT or alignment & (alignment - 1):
        return False
    if not bin_holds(bin, nbytes):
        if at + 1 == BLOCK_BINS or not bin_holds(bin + 1, nbytes):
            return False
        bin += 1
    bin.count -= 1
    block = <mid_block_t*>bin.entry[bin.count].record
    used = <size_t>block.size * MID_UNIT
    cache.blocks_bytes -= used
    set_u64(&block.role.live.requested, nbytes)
    ptr[0] = bin.entry[bin.count].ptr
    tally_enter(&seat.total, used, nbytes)
    tally_enter(&seat.blocks, used, nbytes)
    seat_note(seat, &pool.segment)
    seat.recent = cache.owner
    return True


cdef bint give_block(pool_t* pool, seat_t* seat, cache_t* cache, uint32_t index, size_t offset,
                     void* ptr) noexcept nogil:
    """Free a live block: of a stream's memory or nobody's, or in the order of a cache's stream."""
    cdef mid_block_t* block = &pool.segment.mid.block[index]
    cdef owner_t owner = block.owner
    cdef size_t used = <size_t>get_u32(&block.size) * MID_UNIT
    cdef uint64_t requested = get_u64(&block.role.live.requested)
    cdef cache_t* own = cache
    cdef bin_t* bin
    if (<size_t>get_u32(&block.offset) * MID_UNIT != offset or requested & CACHED or block.role.live.movable != 0
            or used < <size_t>1 << BLOCK_SHIFT_LEAST or used > <size_t>1 << BLOCK_SHIFT_MOST):
        return False
    if own == NULL:
        own = seat.cache[owner if owner != NOBODY else seat.recent]
    if own == NULL or (owner != NOBODY and owner != own.owner):
        seat.wanted = owner
        return False
    if seat.total.used + get_size(&pool.segment.total.used) == used:
        return False                            # the last one: then nothing stays in caches, see is_last()
    bin = &own.block[block_bin(used)]
    if bin.count == bin.most or own.blocks_bytes + used > own.blocks_most or own.unmarked >= own.unmarked_most:
        return False
    if not swap_u64(&block.role.live.requested, requested, CACHED | seat.mark):
        return False                            # freed twice at one time
    if cache != NULL:
        own.unmarked += used
        set_u16(&block.owner, own.owner)
        set_u32(&block.batch, pool.order.batch)
        note_freed(pool, own)
    bin.entry[bin.count].ptr = ptr
    bin.entry[bin.count].record = block
    bin.count += 1
    own.blocks_bytes += used
    tally_leave(&seat.total, used, requested)
    tally_leave(&seat.blocks, used, requested)
    return True
