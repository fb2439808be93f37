"""Blocks of the mid tier that a thread has freed and uses again, at its seat.

As in _front: False, and nothing changed for anyone, where that is not possible. The cache of a free may be NULL: that
is in nobody's order.
"""

from libc.stdint cimport uint32_t, uint64_t

from cuda_pool._bins cimport (
    BLOCK_LEAST, BLOCK_MOST, CACHED, bin_holds, bin_t, block_bin, cache_t, is_cache)
from cuda_pool._front cimport note_freed
from cuda_pool._gauge cimport gauge_part
from cuda_pool._learn cimport learn_leave
from cuda_pool._mid cimport MID_UNIT, mid_block_t
from cuda_pool._owner cimport NOBODY, owner_t
from cuda_pool._plain cimport plain_free
from cuda_pool._relaxed cimport get_size, get_u32, get_u64, set_u16, set_u32, set_u64, swap_u64
from cuda_pool._seat cimport seat_fall, seat_rise, seat_t
from cuda_pool._state cimport batch_of_origin, pool_t
from cuda_pool._tally cimport tally_enter, tally_leave


cdef inline bint block_take(seat_t* seat, cache_t* cache, size_t nbytes, size_t alignment, void** ptr) noexcept nogil:
    """Take a block that has what is wanted and little more, for a cache's stream."""
    cdef bin_t* bin = &cache.block[block_bin(max(nbytes, <size_t>BLOCK_LEAST))]
    cdef mid_block_t* block
    cdef size_t used
    if not is_cache(cache) or alignment - 1 >= MID_UNIT or alignment & (alignment - 1):     # 0 is no alignment, either
        return False
    bin += not bin_holds(bin, nbytes)           # an addition: which of the two it is cannot be foreseen
    if not bin_holds(bin, nbytes):
        return False
    bin.top -= 1
    block = <mid_block_t*>bin.top.record
    used = <size_t>block.size * MID_UNIT
    cache.blocks_bytes -= used
    set_u64(&block.role.live.requested, nbytes)
    ptr[0] = bin.top.ptr
    tally_enter(&seat.blocks, used, nbytes)
    seat_rise(seat, used, nbytes)
    seat.recent = cache.owner
    return True


cdef inline bint block_give(pool_t* pool, seat_t* seat, cache_t* cache, uint32_t index, size_t offset,
                            void* ptr) noexcept nogil:
    """Free a live block by its record: of a stream's memory or nobody's, or in the order of a cache's stream."""
    cdef mid_block_t* block = &pool.segment.mid.block[index]
    cdef owner_t owner = block.owner
    cdef size_t used = <size_t>get_u32(&block.size) * MID_UNIT
    cdef uint64_t requested = get_u64(&block.role.live.requested)
    cdef cache_t* own = cache
    cdef bin_t* bin
    if (used - <size_t>BLOCK_LEAST > <size_t>(BLOCK_MOST - BLOCK_LEAST)
            or <size_t>get_u32(&block.offset) * MID_UNIT != offset or requested & CACHED
            or block.role.live.movable != 0):
        return False
    if own == NULL:
        own = seat.cache[owner if owner != NOBODY else seat.recent]
    if not is_cache(own) or (owner != NOBODY and owner != own.owner):
        seat.wanted = owner
        return False
    if gauge_part(&seat.used) + get_size(&pool.segment.total.used) == used:
        return False                            # the last one: then nothing stays in caches, see is_last()
    bin = &own.block[block_bin(used)]
    if bin.top == bin.limit or own.blocks_bytes + used > own.blocks_most or own.unmarked >= own.unmarked_most:
        return False
    if not swap_u64(&block.role.live.requested, requested, CACHED | seat.mark):
        return False                            # freed twice at one time
    if cache != NULL:
        own.unmarked += used
        set_u16(&block.owner, own.owner)
        set_u32(&block.batch, pool.order.batch)
        note_freed(own, pool.order.batch)
    bin.top.ptr = ptr
    bin.top.record = block
    bin.top += 1
    own.blocks_bytes += used
    tally_leave(&seat.blocks, used, requested)
    seat_fall(seat, used, requested)
    return True


cdef inline size_t block_return(pool_t* pool, mid_block_t* block) noexcept nogil:
    """Return a block out of a cache to the tier, with the pool's lock held; its bytes.

    As a live one is freed, but for what is counted: that was done at the seat.
    """
    cdef size_t used = <size_t>block.size * MID_UNIT
    cdef owner_t owner = block.owner
    cdef uint32_t batch = batch_of_origin(pool, owner, block.batch) if owner != NOBODY else 0
    if pool.segment.learn != NULL:
        learn_leave(pool.segment.learn, used)
    plain_free(&pool.segment, <uint32_t>(block - pool.segment.mid.block), owner if batch != 0 else <owner_t>NOBODY,
               batch)
    return used
