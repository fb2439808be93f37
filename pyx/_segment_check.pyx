"""Do the invariants of a segment hold, and those of its tiers?"""

from libc.stdint cimport uint32_t
from libc.string cimport memset

from cuda_pool._bits cimport round_up
from cuda_pool._buddy cimport BUDDY_HELD, BUDDY_LIVE, buddy_check
from cuda_pool._gap cimport gap_bytes, gaps_check
from cuda_pool._learn cimport learn_check
from cuda_pool._mid cimport (
    MID_FREE, MID_HELD, MID_PAGING, MID_UNIT, MID_USED, NO_MID, mid_block_t, mid_check, mid_t, units_missing)
from cuda_pool._pages cimport pages_check, pages_missing
from cuda_pool._segment cimport (
    TAG_INDEX_SHIFT, TAG_TIER, TIERS, TIER_BUDDY, TIER_MID, TIER_SLAB, place_t, segment_boundary, segment_start_of,
    segment_t, segment_tally, segment_tally_slab)
from cuda_pool._slab cimport slab_t, slabs_check
from cuda_pool._tally cimport tally_t


# What the tags of a segment add up to.
ctypedef struct totals_t:
    tally_t tier[TIERS]             # allocs are the live blocks
    size_t slabs_in_mid             # bytes
    size_t slabs_in_buddy           # bytes
    size_t held_in_mid              # bytes
    size_t held_in_buddy            # bytes
    size_t held_slots               # bytes


cdef const char* segment_check(const segment_t* segment) noexcept nogil:
    cdef const char* broken = buddy_check(&segment.buddy)
    cdef totals_t total
    if broken == NULL:
        broken = mid_check(&segment.mid)
    if broken == NULL:
        broken = gaps_check(&segment.mid)
    if broken == NULL:
        broken = slabs_check(&segment.slabs)
    if broken != NULL:
        return broken
    memset(&total, 0, sizeof(total))
    sum_held(segment, &total)
    if segment.pages.shift != 0:
        broken = pages_check(&segment.pages)
        if broken == NULL:
            broken = ready_check(segment)
        if broken != NULL:
            return broken
    broken = sum_tags(segment, &total)
    if broken == NULL and segment.learn != NULL:
        broken = learn_check(segment.learn, segment.mid_tally.used + segment.buddy_tally.used, upper_blocks(segment))
    return broken if broken != NULL else sums_check(segment, &total)


cdef inline size_t upper_blocks(const segment_t* segment) noexcept nogil:
    """Live blocks outside the slabs."""
    return (segment.mid_tally.allocs - segment.mid_tally.frees
            + segment.buddy_tally.allocs - segment.buddy_tally.frees)


cdef inline bint tally_equals(const tally_t* tally, const tally_t* live) noexcept nogil:
    return (tally.allocs - tally.frees == live.allocs and tally.used == live.used
            and tally.requested == live.requested)


cdef const char* ready_check(const segment_t* segment) noexcept nogil:
    """Are all pages there under what is used?"""
    cdef uint32_t at = segment.mid.first
    cdef const mid_block_t* block
    while at != NO_MID:
        block = &segment.mid.block[at]
        if block.state not in (MID_FREE, MID_PAGING) and units_missing(&segment.mid, block.offset, block.size) != 0:
            return b"segment: a page under a block is not ready"
        at = block.after
    for at in range(segment.buddy.size if segment.buddy.used != 0 else 0):
        if segment.buddy.state[at] in (BUDDY_LIVE, BUDDY_HELD):
            if pages_missing(&segment.pages, <size_t>at << segment.min_block_shift,
                             <size_t>segment.buddy.entry[at].role.live.units << segment.min_block_shift) != 0:
                return b"segment: a page under a run is not ready"
    return NULL


cdef void sum_held(const segment_t* segment, totals_t* total) noexcept nogil:
    cdef uint32_t at = segment.mid.first
    while at != NO_MID:
        if segment.mid.block[at].state == MID_HELD:
            total.held_in_mid += <size_t>segment.mid.block[at].size * MID_UNIT
        at = segment.mid.block[at].after
    for at in range(segment.buddy.size):
        if segment.buddy.state[at] == BUDDY_HELD:
            total.held_in_buddy += <size_t>segment.buddy.entry[at].role.live.units << segment.min_block_shift


cdef const char* sum_tags(const segment_t* segment, totals_t* total) noexcept nogil:
    """Granules of gaps alone are left out: there may be very many, and nothing was ever there."""
    cdef const mid_t* mid = &segment.mid
    cdef const char* broken = NULL
    cdef size_t low = 0
    cdef uint32_t gap = mid.gap
    while gap != NO_MID and broken == NULL:
        broken = sum_tags_between(segment, low, granule_above(segment, mid.block[gap].offset), total)
        low = max(low, granule_above(segment, mid.block[gap].offset),
                  (<size_t>mid.block[gap].offset + mid.block[gap].size) * MID_UNIT >> segment.granule_shift)
        gap = mid.block[gap].role.gap.next
    return broken if broken != NULL else sum_tags_between(segment, low, segment.granules, total)


cdef inline size_t granule_above(const segment_t* segment, uint32_t offset) noexcept nogil:
    return round_up(<size_t>offset * MID_UNIT, segment.granule) >> segment.granule_shift


cdef const char* sum_tags_between(const segment_t* segment, size_t low, size_t high,
                                  totals_t* total) noexcept nogil:
    cdef const char* broken = NULL
    cdef size_t at
    for at in range(low, high):
        if segment.tag[at] == 0:
            continue
        if segment.tag[at] & TAG_TIER == TIER_SLAB:
            broken = slab_tag_check(segment, at, total)
        else:
            broken = block_tag_check(segment, at, total)
        if broken != NULL:
            break
    return broken


cdef const char* block_tag_check(const segment_t* segment, size_t granule, totals_t* total) noexcept nogil:
    """Add up the live block of the mid or the buddy tier that a tag names."""
    cdef int tier = segment.tag[granule] & TAG_TIER
    cdef size_t start
    cdef place_t place
    if not segment_start_of(segment, granule, 0, &start, &place) or start >> segment.granule_shift != granule:
        return b"segment: a tag names a block that does not start there"
    if tier == TIER_BUDDY and segment.buddy.state[place.index] != BUDDY_LIVE:
        return b"segment: a tag names a run that is not live"
    if tier == TIER_MID and segment.mid.block[place.index].state != MID_USED:
        return b"segment: a tag names a block that is not live"
    total.tier[tier].allocs += 1
    total.tier[tier].used += place.used
    total.tier[tier].requested += place.requested
    return NULL


cdef const char* slab_tag_check(const segment_t* segment, size_t granule, totals_t* total) noexcept nogil:
    """At a slab's first granule, add up its used slots and its memory, and look at the tags of the others."""
    cdef const slab_t* slab = &segment.slabs.slab[segment.tag[granule] >> TAG_INDEX_SHIFT]
    cdef tally_t* slots = &total.tier[TIER_SLAB]
    cdef size_t offset = granule << segment.granule_shift, at
    if slab.live == NULL or not slab.offset <= offset < slab.offset + slab.bytes:
        return b"segment: a tag names a slab that is not there"
    if slab.offset != offset:
        return NULL
    for at in range(granule, granule + (slab.bytes >> segment.granule_shift)):
        if segment.tag[at] != segment.tag[granule]:
            return b"segment: a granule of a slab does not name it"
    segment_tally_slab(slab, slots)
    total.held_slots += slab.held * segment.slabs.size_class[slab.size_class].size
    if slab.block != NO_MID:
        total.slabs_in_mid += slab.bytes
    else:
        total.slabs_in_buddy += slab.bytes
    return NULL


cdef const char* sums_check(const segment_t* segment, const totals_t* total) noexcept nogil:
    cdef int tier
    cdef tally_t tally
    cdef size_t lent = (<size_t>segment.buddy.size - segment_boundary(segment)) << segment.min_block_shift
    for tier in range(TIER_SLAB, TIERS):
        tally = segment_tally(segment, tier)
        if not tally_equals(&tally, &total.tier[tier]):
            return b"segment: a tier's counters differ from its live blocks"
        if tally.requested > tally.used:
            return b"segment: requested > used"
    if (<size_t>segment.mid.used * MID_UNIT
            != total.tier[TIER_MID].used + total.slabs_in_mid + total.held_in_mid + gap_bytes(&segment.mid)
            + segment.mid_paging):
        return b"segment: mid.used != live and held mid blocks + slabs + gaps"
    if segment.size + gap_bytes(&segment.mid) != segment.span:
        return b"segment: size + gaps != span"
    if (<size_t>segment.buddy.used << segment.min_block_shift
            != total.tier[TIER_BUDDY].used + total.slabs_in_buddy + total.held_in_buddy + lent + segment.buddy_paging):
        return b"segment: buddy.used != live and held runs + slabs + units of the mid tier"
    if segment.held != total.held_in_mid + total.held_in_buddy + total.held_slots:
        return b"segment: held differs from the sum of what is held"
    return NULL
