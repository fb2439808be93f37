"""A block of the mid tier where nothing but the best fit has to be looked at: all of it inline.

What a block that is live counts for, in whichever tier it is, is here as well.
"""

from libc.stdint cimport uint32_t

from cuda_pool._bits cimport round_up
from cuda_pool._cut cimport mid_free, mid_take_best
from cuda_pool._gauge cimport gauge_part
from cuda_pool._learn cimport learn_enter, learn_note
from cuda_pool._mid cimport MID_UNIT, MID_USED, NO_MID, mid_block_t, mid_reserve
from cuda_pool._owner cimport owner_t
from cuda_pool._relaxed cimport get_size, set_u32, set_u64
from cuda_pool._seat cimport seat_t
from cuda_pool._segment cimport TAG_INDEX_SHIFT, TIER_MID, segment_note_alloc, segment_t
from cuda_pool._tally cimport tally_enter, tally_t


cdef inline bint plain_alloc(segment_t* segment, owner_t owner, size_t nbytes, size_t alignment, size_t* offset,
                             size_t* used) noexcept nogil:
    """Take the best fit; False, and nothing changed, where there is none, or something else has to be looked at."""
    cdef uint32_t block
    if (nbytes > segment.mid_max or alignment > MID_UNIT or segment.mid.pages != NULL or nbytes > segment.size
            or not mid_reserve(&segment.mid, 1)):
        return False
    block = mid_take_best(&segment.mid, owner, <uint32_t>(block_bytes(segment, nbytes) // MID_UNIT), MID_USED)
    if block == NO_MID:
        return False
    block_use(segment, block, nbytes, offset, used)
    return True


cdef inline void plain_free(segment_t* segment, uint32_t block, owner_t owner, uint32_t batch) noexcept nogil:
    """Return a block that is no longer live to an owner, or to nobody: batch 0."""
    set_tag(segment, <size_t>segment.mid.block[block].offset * MID_UNIT, 0)
    mid_free(&segment.mid, block, owner, batch)


cdef inline size_t block_bytes(const segment_t* segment, size_t nbytes) noexcept nogil:
    """No two live blocks may start in one granule of the address map."""
    return max(round_up(nbytes, MID_UNIT), segment.granule)


cdef inline void block_use(segment_t* segment, uint32_t index, size_t nbytes, size_t* offset,
                           size_t* used) noexcept nogil:
    """Turn a block of the mid tier that was taken for it into a live one."""
    cdef mid_block_t* block = &segment.mid.block[index]
    set_u64(&block.role.live.requested, nbytes)
    block.role.live.movable = 0
    offset[0] = <size_t>block.offset * MID_UNIT
    used[0] = <size_t>block.size * MID_UNIT
    set_tag(segment, offset[0], index << TAG_INDEX_SHIFT | TIER_MID)
    block_enter(segment, &segment.mid_tally, used[0], nbytes)


cdef inline void block_enter(segment_t* segment, tally_t* tally, size_t used, size_t requested) noexcept nogil:
    tally_enter(tally, used, requested)
    tally_enter(&segment.total, used, requested)
    if segment.learn != NULL:
        learn_enter(segment.learn, used)
    segment_note_alloc(segment, used, requested)
    learn_total(segment)


cdef inline void learn_total(segment_t* segment) noexcept nogil:
    cdef size_t used = segment.total.used, allocs = segment.total.allocs
    cdef const seat_t* seat = segment.seats
    if segment.learn == NULL:
        return
    while seat != NULL:
        used += gauge_part(&seat.used)
        allocs += get_size(&seat.allocs)
        seat = seat.next
    learn_note(segment.learn, used if <ptrdiff_t>used > 0 else 0, allocs)


cdef inline void set_tag(segment_t* segment, size_t offset, uint32_t tag) noexcept nogil:
    set_u32(&segment.tag[offset >> segment.granule_shift], tag)
