"""Segments of several regions: what lies between them is a gap, a range of the mid tier without memory.

A gap is a block that is never free, so free blocks do not merge over it, and no request is cut across it. The last one
reaches to the end of the segment. A region is carved out of a gap, and becomes one when it is given back.
"""

from libc.stdint cimport uint32_t

from cuda_pool._bits cimport ctz64, log2_floor, round_down, round_up
from cuda_pool._cut cimport mid_absorb_next, mid_free, mid_split
from cuda_pool._mid cimport (
    MID_FREE, MID_GAP, MID_SHUT, MID_UNIT, NO_MID, mid_block_t, mid_edge, mid_extend, mid_find_exact,
    mid_reserve, mid_shrink, mid_take, run_fits)
from cuda_pool._owner cimport NOBODY, view_allows
from cuda_pool._region cimport REGION_PAGE
from cuda_pool._segment cimport segment_boundary, segment_claim_below
from cuda_pool._status cimport STATUS_HOST_MEMORY, STATUS_OK, STATUS_OUT_OF_MEMORY


cdef int gap_init(mid_t* mid, uint32_t end) noexcept nogil:
    """The gap is made below the tier, then moved: there is at most one block yet."""
    cdef uint32_t size = end - mid.end, below
    cdef mid_block_t* gap
    if not mid_reserve(mid, 2):
        return 0
    below = mid_edge(mid, NOBODY)
    if below != 0:
        mid_shrink(mid, below)
    mid.start = end
    mid.end = end
    mid.offset_spare = 31 - log2_floor(end - 1)
    mid_extend(mid, size, NOBODY, 0)
    mid.gap = mid_take(mid, mid.first, size, 0, 0, MID_GAP)
    gap = &mid.block[mid.gap]
    gap.role.gap.next = NO_MID
    gap.role.gap.bias = 0
    if below != 0:
        mid_extend(mid, below, NOBODY, 0)
    return 1


cdef uint32_t gap_find_far(const mid_t* mid, owner_t owner, const view_t* view, uint32_t size, int align,
                           uint32_t* bias) noexcept nogil:
    cdef uint32_t at = mid.first, here = bias[0], best = NO_MID
    cdef const mid_block_t* block
    while at != NO_MID:
        block = &mid.block[at]
        if block.state == MID_GAP:
            here = block.role.gap.bias
        elif block.state == MID_FREE and block.size >= size and is_for(block, owner, view):
            if run_fits(block.offset, block.size, size, align, here):
                if best == NO_MID or block.size < mid.block[best].size:
                    best = at
                    bias[0] = here
        at = block.after
    return best


cdef inline bint is_for(const mid_block_t* block, owner_t owner, const view_t* view) noexcept nogil:
    if view != NULL:
        return view_allows(view, block.owner, block.batch)
    return block.owner == NOBODY or block.owner == owner


cdef size_t gap_bytes(const mid_t* mid) noexcept nogil:
    cdef uint32_t at = mid.first
    cdef size_t units = 0
    while at != NO_MID:
        if mid.block[at].state == MID_GAP or mid.block[at].state == MID_SHUT:
            units += mid.block[at].size
        at = mid.block[at].after
    return units * MID_UNIT


cdef const char* gaps_check(const mid_t* mid) noexcept nogil:
    cdef uint32_t at = mid.first, gap = mid.gap
    cdef const mid_block_t* block
    while at != NO_MID:
        block = &mid.block[at]
        if block.state == MID_GAP:
            if at != gap:
                return b"gaps: one is not where the list of gaps says"
            if mid.block[block.after].state == MID_GAP:
                return b"gaps: two neighbours were not merged"
            gap = block.role.gap.next
        at = block.after
    if gap != NO_MID:
        return b"gaps: the list goes on after the last one"
    return NULL


# Regions

cdef int segment_open(segment_t* segment, size_t address, size_t size, size_t* offset) noexcept nogil:
    cdef mid_t* mid = &segment.mid
    cdef uint32_t gap
    if not mid_reserve(mid, 2):
        return STATUS_HOST_MEMORY
    if segment.size == 0:                       # nothing depends on where the last regions were
        segment.bias = <uint32_t>(address // MID_UNIT)
        segment.slot_alignment = <size_t>1 << ctz64(address | segment.slot_alignment_max)
    gap = find_gap(segment, address, size, offset)
    if gap == NO_MID:
        return STATUS_OUT_OF_MEMORY
    carve(mid, gap, <uint32_t>(offset[0] // MID_UNIT), <uint32_t>(size // MID_UNIT),
          <uint32_t>(address // MID_UNIT) - <uint32_t>(offset[0] // MID_UNIT))
    if offset[0] == 0:
        segment.bias = <uint32_t>(address // MID_UNIT)
    else:
        segment.far_regions += 1
    segment.size += size
    segment.size_high = max(segment.size_high, segment.size)
    return STATUS_OK


cdef uint32_t find_gap(const segment_t* segment, size_t address, size_t size, size_t* offset) noexcept nogil:
    """Find the lowest gap in which a region has pages of its own, and a place that agrees with its address in them."""
    cdef uint32_t gap = segment.mid.gap
    cdef const mid_block_t* block
    cdef size_t start, end
    cdef size_t residue = address - <size_t>segment.bias * MID_UNIT & (REGION_PAGE - 1)
    while gap != NO_MID:
        block = &segment.mid.block[gap]
        start = <size_t>block.offset * MID_UNIT
        end = start + <size_t>block.size * MID_UNIT
        offset[0] = round_up(start, REGION_PAGE) + residue
        if offset[0] == start and start != 0:
            offset[0] += REGION_PAGE            # what is left of the gap below it tells the region's bias
        end = round_down(end - 1, REGION_PAGE)
        if round_up(offset[0] + size, REGION_PAGE) <= end:
            return gap
        gap = block.role.gap.next
    return NO_MID


cdef void carve(mid_t* mid, uint32_t gap, uint32_t offset, uint32_t size, uint32_t bias) noexcept nogil:
    """Let the middle of a gap be free memory: of two reserved records one is its own, one for the gap above it."""
    cdef uint32_t region = gap, above
    cdef mid_block_t* block = &mid.block[gap]
    cdef uint32_t next = block.role.gap.next, bias_above = block.role.gap.bias
    if offset > block.offset:
        region = mid_split(mid, gap, offset)
    above = mid_split(mid, region, offset + size)
    mid.block[above].state = MID_GAP
    mid.block[above].role.gap.next = next
    mid.block[above].role.gap.bias = bias_above
    if region == gap:
        mid.gap = above
    else:
        block.role.gap.next = above
        block.role.gap.bias = bias
    mid_free(mid, region, NOBODY, 0)


cdef bint segment_is_idle(segment_t* segment, size_t offset, size_t size) noexcept nogil:
    cdef size_t below = <size_t>segment_boundary(segment) << segment.min_block_shift
    if offset != 0:
        return mid_find_exact(&segment.mid, NOBODY, <uint32_t>(size // MID_UNIT),
                              <uint32_t>(offset // MID_UNIT)) != NO_MID
    if segment.buddy.owned != 0 or segment.buddy.used != segment.buddy.size - segment_boundary(segment):
        return False
    return below + <size_t>mid_edge(&segment.mid, NOBODY) * MID_UNIT == size


cdef uint32_t segment_shut(segment_t* segment, size_t offset, size_t size) noexcept nogil:
    cdef mid_t* mid = &segment.mid
    cdef size_t below = <size_t>segment_boundary(segment) << segment.min_block_shift
    cdef uint32_t found
    if offset == 0 and below != 0:
        if not mid_reserve(mid, 1) or not segment_claim_below(segment, NOBODY, below):
            return NO_MID
    found = mid_find_exact(mid, NOBODY, <uint32_t>(size // MID_UNIT), <uint32_t>(offset // MID_UNIT))
    if found == NO_MID:
        return NO_MID
    segment.size -= size
    segment.shut += size
    segment.far_regions -= offset != 0
    return mid_take(mid, found, <uint32_t>(size // MID_UNIT), 0, 0, MID_SHUT)


cdef void segment_reopen(segment_t* segment, uint32_t shut) noexcept nogil:
    cdef size_t size = <size_t>segment.mid.block[shut].size * MID_UNIT
    segment.size += size
    segment.shut -= size
    segment.far_regions += segment.mid.block[shut].offset != 0
    mid_free(&segment.mid, shut, NOBODY, 0)


cdef void segment_forget(segment_t* segment, uint32_t shut) noexcept nogil:
    """Merge it with the gaps on both sides; above there is always one."""
    cdef mid_t* mid = &segment.mid
    cdef mid_block_t* block = &mid.block[shut]
    cdef uint32_t above = block.after, gap = shut
    cdef uint32_t next = mid.block[above].role.gap.next, bias = mid.block[above].role.gap.bias
    segment.shut -= <size_t>block.size * MID_UNIT
    mid_absorb_next(mid, shut)
    if block.before != NO_MID:
        gap = block.before
        mid_absorb_next(mid, gap)
    else:
        mid.gap = gap
    mid.block[gap].state = MID_GAP
    mid.block[gap].role.gap.next = next
    mid.block[gap].role.gap.bias = bias
