"""How much room there is in a segment: the largest requests that would be served.

Empty slabs count as free, as they are returned before a request fails.
"""

from libc.stdint cimport uint32_t

from cuda_pool._bits cimport log2_floor, round_down, round_up
from cuda_pool._buddy cimport BUDDY_HELD, BUDDY_LIVE, buddy_free_above, buddy_free_below, buddy_largest
from cuda_pool._mid cimport MID_FREE, MID_HELD, MID_SLAB, MID_UNIT, NO_MID, mid_block_t, mid_edge, mid_largest
from cuda_pool._owner cimport LEGACY, NOBODY, owners_has
from cuda_pool._pages cimport pages_counted, pages_first, pages_next, pages_t
from cuda_pool._segment cimport (
    TAG_INDEX_SHIFT, TAG_TIER, TIER_SLAB, segment_boundary, segment_boundary_moves, segment_t)
from cuda_pool._slab cimport NO_SLAB, slab_t, slabs_available, slabs_empty, slabs_of, slabs_ready

cdef const uint32_t BEHIND = <uint32_t>-1       # behind the last block


cdef size_t segment_largest_free(const segment_t* segment) noexcept nogil:
    """Return the largest request that would succeed at alignment MID_UNIT once all pending work is done."""
    cdef size_t largest = largest_of_all(segment) if segment.pages.shift == 0 else segment_largest_there(segment), size
    cdef int owner, index
    for owner in range(segment.slabs.owners):
        if owners_has(&segment.captures, <owner_t>owner):
            continue
        for index in range(segment.slabs.classes):
            size = segment.slabs.size_class[index].size
            if slabs_available(slabs_of(&segment.slabs, <owner_t>owner, index)) != NO_SLAB and size % MID_UNIT == 0:
                largest = max(largest, size)
    return largest


cdef size_t largest_of_all(const segment_t* segment) noexcept nogil:
    """Look at what merges only when nobody owns it any more, if there is such memory: that takes a walk."""
    cdef size_t run
    if segment.slabs.owners <= LEGACY + 1 and segment.held + segment.mid.owned + segment.buddy.owned == 0:
        return max(segment_largest_run(segment, NOBODY), segment_largest_run(segment, LEGACY))
    run = max(longest_in_mid(segment), longest_in_buddy(segment))
    return run if run >= segment.granule else 0


cdef size_t longest_in_mid(const segment_t* segment) noexcept nogil:
    cdef size_t longest = 0, start, run
    cdef uint32_t at = NO_MID
    while next_run(segment, &at, &start, &run):
        longest = max(longest, run)
    return longest


cdef bint next_run(const segment_t* segment, uint32_t* at, size_t* start, size_t* run) noexcept nogil:
    """Find the next run of bytes that are free, held or in empty slabs, in the mid tier; the first with what is below.

    `at` is the block behind the one before, NO_MID at first; False where there is none.
    """
    cdef const mid_block_t* block
    cdef bint is_first = at[0] == NO_MID
    start[0] = <size_t>segment.mid.start * MID_UNIT
    run[0] = 0
    if is_first:
        if segment_boundary_moves(segment):
            run[0] = <size_t>free_below(segment, segment_boundary(segment)) << segment.min_block_shift
            start[0] -= run[0]
        at[0] = segment.mid.first
    elif at[0] == BEHIND:
        return False
    while at[0] != NO_MID:
        block = &segment.mid.block[at[0]]
        if is_to_be_free(segment, at[0]):
            start[0] = start[0] if run[0] != 0 else <size_t>block.offset * MID_UNIT
            run[0] += <size_t>block.size * MID_UNIT
        elif run[0] != 0:
            return True
        at[0] = block.after
    at[0] = BEHIND
    return run[0] != 0


cdef size_t segment_largest_there(const segment_t* segment) noexcept nogil:
    """Return what can be served once all pages that no block touches are where they are needed."""
    return largest_with(segment, pages_there(segment))


cdef size_t segment_largest_paged(const segment_t* segment) noexcept nogil:
    return largest_with(segment, pages_there(segment) + segment.pages.most - segment.pages.created)


cdef size_t largest_with(const segment_t* segment, size_t available) noexcept nogil:
    cdef size_t largest = 0, start, run
    cdef uint32_t at = NO_MID
    while next_run(segment, &at, &start, &run):
        largest = max(largest, paged_part(segment, start, run, available))
    largest = max(largest, min(longest_in_buddy(segment),
                               round_down(available << segment.pages.shift, segment.min_block)))
    return largest if largest >= segment.granule else 0


cdef size_t pages_there(const segment_t* segment) noexcept nogil:
    """Pages with memory in runs that no block touches, and spare memory."""
    cdef size_t available = segment.pages.spares, start, run
    cdef uint32_t at = NO_MID, unit = 0, units
    while next_run(segment, &at, &start, &run):
        available += pages_within(segment, start, run)
    while unit < segment_boundary(segment):
        units = 0
        while unit + units < segment_boundary(segment) and free_units(segment, unit + units) != 0:
            units += free_units(segment, unit + units)
        available += pages_within(segment, <size_t>unit << segment.min_block_shift,
                                  <size_t>units << segment.min_block_shift)
        unit += max(units, <uint32_t>1)
    return available


cdef size_t pages_within(const segment_t* segment, size_t start, size_t run) noexcept nogil:
    cdef const pages_t* pages = &segment.pages
    return pages_counted(pages.placed, pages_first(pages, round_up(start, <size_t>1 << pages.shift)),
                         pages_first(pages, start + run))


cdef size_t paged_part(const segment_t* segment, size_t start, size_t run, size_t available) noexcept nogil:
    """Bytes at the high end of a run that its shared page there and the available pages hold; or those at the low end
    whose pages are there.
    """
    cdef size_t page = <size_t>1 << segment.pages.shift
    cdef size_t low = round_up(start, page), high = round_down(start + run, page)
    if low >= high or high - low <= available << segment.pages.shift:
        return run
    return max(start + run - high + (available << segment.pages.shift), ready_part(&segment.pages, start, high))


cdef inline size_t ready_part(const pages_t* pages, size_t start, size_t end) noexcept nogil:
    """Bytes from `start` on that can be used as they are."""
    cdef size_t ready = <size_t>pages_next(pages.ready, pages_first(pages, start), pages_first(pages, end), False)
    return max(ready << pages.shift, start) - start


cdef size_t longest_in_buddy(const segment_t* segment) noexcept nogil:
    """Bytes of the largest aligned block among the runs of units that are free, held, or in empty slabs."""
    cdef uint32_t boundary = segment_boundary(segment), at = 0, low = 0, units
    cdef size_t longest = 0
    while at <= boundary:
        units = free_units(segment, at) if at < boundary else 0
        if units == 0:
            if at > low:
                longest = max(longest, aligned_block(segment, low, at))
            low = at + 1
        at += max(units, <uint32_t>1)
    return longest


cdef size_t segment_largest_run(const segment_t* segment, owner_t owner) noexcept nogil:
    """Return the largest request that the mid or the buddy tier would serve once the owner's empty slabs are back."""
    cdef size_t run = max(largest_block(segment, NOBODY), edge_reach(segment))
    cdef uint32_t slab
    cdef int index
    if owner != NOBODY:
        run = max(run, largest_block(segment, owner))
    for index in range(segment.slabs.classes):
        slab = slabs_empty(&segment.slabs, slabs_of(&segment.slabs, owner, index))
        if slab != NO_SLAB:
            run = max(run, run_around(segment, &segment.slabs.slab[slab]))
        slab = slabs_ready(slabs_of(&segment.slabs, owner, index))
        while slab != NO_SLAB:
            run = max(run, run_around(segment, &segment.slabs.slab[slab]))
            slab = segment.slabs.slab[slab].next
    return run if run >= segment.granule else 0


cdef size_t largest_block(const segment_t* segment, owner_t owner) noexcept nogil:
    return max(<size_t>mid_largest(&segment.mid, owner) * MID_UNIT,
               <size_t>buddy_largest(&segment.buddy, owner) << segment.min_block_shift)


cdef size_t edge_reach(const segment_t* segment) noexcept nogil:
    """Free bytes around the boundary of the two tiers: what the mid tier could make one block of."""
    return <size_t>mid_edge(&segment.mid, NOBODY) * MID_UNIT + below_the_edge(segment)


cdef size_t below_the_edge(const segment_t* segment) noexcept nogil:
    """Bytes of the buddy tier that the mid tier could have, if it may have any."""
    if not segment_boundary_moves(segment):
        return 0
    return <size_t>returned_below(segment, segment_boundary(segment)) << segment.min_block_shift


cdef size_t run_around(const segment_t* segment, const slab_t* slab) noexcept nogil:
    """Bytes of the free block that an empty slab would be part of once all empty slabs are returned."""
    cdef uint32_t block = slab.block
    cdef size_t run = slab.bytes
    if block == NO_MID:
        return block_around(segment, <uint32_t>(slab.offset >> segment.min_block_shift))
    run += empties_below(segment, segment.mid.block[block].before)
    run += empties_above(segment, segment.mid.block[block].after)
    return run


cdef size_t empties_below(const segment_t* segment, uint32_t block) noexcept nogil:
    """Bytes of the free blocks and empty slabs from a block of the mid tier down, past its edge if it is reached."""
    cdef size_t run = 0
    while block != NO_MID:
        if not is_free_or_empty(segment, block):
            return run
        run += <size_t>segment.mid.block[block].size * MID_UNIT
        block = segment.mid.block[block].before
    return run + below_the_edge(segment)


cdef size_t empties_above(const segment_t* segment, uint32_t block) noexcept nogil:
    """Bytes of the free blocks and empty slabs from a block of the mid tier up."""
    cdef size_t run = 0
    while block != NO_MID and is_free_or_empty(segment, block):
        run += <size_t>segment.mid.block[block].size * MID_UNIT
        block = segment.mid.block[block].after
    return run


cdef inline bint is_to_be_free(const segment_t* segment, uint32_t block) noexcept nogil:
    """Is it free, or held, or an empty slab? A capture's memory does not become anyone's by work that is done."""
    cdef const mid_block_t* at = &segment.mid.block[block]
    if at.state == MID_SLAB:
        return is_free_or_empty(segment, block) and not owners_has(&segment.captures,
                                                                   segment.slabs.slab[at.role.slab].owner)
    return (at.state == MID_FREE or at.state == MID_HELD) and not owners_has(&segment.captures, at.owner)


cdef inline bint is_free_or_empty(const segment_t* segment, uint32_t block) noexcept nogil:
    cdef const mid_block_t* at = &segment.mid.block[block]
    return at.state == MID_FREE or (at.state == MID_SLAB and segment.slabs.slab[at.role.slab].used == 0)


cdef size_t block_around(const segment_t* segment, uint32_t unit) noexcept nogil:
    """The same for a run of the buddy tier: the largest aligned block among the free units on both sides of `unit`."""
    return aligned_block(segment, unit - returned_below(segment, unit), unit + returned_above(segment, unit))


cdef uint32_t returned_below(const segment_t* segment, uint32_t end) noexcept nogil:
    """Units of the buddy tier that end at `end` and are free, or in an empty slab."""
    cdef uint32_t at = end - buddy_free_below(&segment.buddy, end)
    cdef const slab_t* slab
    while at > 0:
        slab = empty_run(segment, at - 1)
        if slab == NULL:
            break
        at = <uint32_t>(slab.offset >> segment.min_block_shift)
        at -= buddy_free_below(&segment.buddy, at)
    return end - at


cdef uint32_t returned_above(const segment_t* segment, uint32_t start) noexcept nogil:
    """Units of the buddy tier from `start` on that are free, or in an empty slab."""
    cdef uint32_t at = start + buddy_free_above(&segment.buddy, start)
    cdef const slab_t* slab
    while at < segment.buddy.size:
        slab = empty_run(segment, at)
        if slab == NULL:
            break
        at = <uint32_t>((slab.offset + slab.bytes) >> segment.min_block_shift)
        at += buddy_free_above(&segment.buddy, at)
    return at - start


cdef uint32_t free_below(const segment_t* segment, uint32_t end) noexcept nogil:
    """Units right below `end` that are free, held, or in empty slabs."""
    cdef uint32_t at = 0, run = 0, units
    while at < end:
        units = free_units(segment, at)
        run = run + units if units else 0
        at += max(units, <uint32_t>1)
    return run


cdef uint32_t free_units(const segment_t* segment, uint32_t unit) noexcept nogil:
    """Units of the free block, held run or empty slab that starts at a unit; 0 for any other, and for a capture's."""
    cdef int state = segment.buddy.state[unit]
    cdef const slab_t* slab
    if state != 0 and owners_has(&segment.captures, segment.buddy.entry[unit].owner):
        return 0
    if 0 < state < BUDDY_LIVE:
        return <uint32_t>1 << (state - 1)
    if state == BUDDY_HELD:
        return segment.buddy.entry[unit].role.live.units
    slab = empty_run(segment, unit) if state == 0 else NULL
    if slab == NULL or owners_has(&segment.captures, slab.owner):
        return 0
    return <uint32_t>(slab.bytes >> segment.min_block_shift)


cdef size_t aligned_block(const segment_t* segment, uint32_t low, uint32_t high) noexcept nogil:
    """Bytes of the largest aligned block of units in [low, high)."""
    cdef int order = log2_floor(high - low)
    while round_up(low, <size_t>1 << order) + (<size_t>1 << order) > high:
        order -= 1
    return <size_t>segment.min_block << order


cdef const slab_t* empty_run(const segment_t* segment, uint32_t unit) noexcept nogil:
    """The empty slab that lies in a run of the buddy tier and covers `unit`, or NULL."""
    cdef uint32_t tag = segment.tag[(<size_t>unit << segment.min_block_shift) >> segment.granule_shift]
    cdef const slab_t* slab
    if tag & TAG_TIER != TIER_SLAB:
        return NULL
    slab = &segment.slabs.slab[tag >> TAG_INDEX_SHIFT]
    return slab if slab.used == 0 and slab.block == NO_MID else NULL
