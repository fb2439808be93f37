"""Do the invariants of a segment hold, and those of its tiers?"""

from libc.stdint cimport uint32_t
from libc.string cimport memcmp, memset

from cuda_pool._buddy cimport BUDDY_HELD, BUDDY_LIVE, buddy_check
from cuda_pool._mid cimport MID_HELD, MID_UNIT, MID_USED, NO_MID, mid_check
from cuda_pool._segment cimport (
    TAG_INDEX_SHIFT, TAG_TIER, TIERS, TIER_BUDDY, TIER_MID, TIER_SLAB, place_t, segment_boundary, segment_start_of,
    segment_t, tier_stats_t)
from cuda_pool._slab cimport slab_t, slabs_check, slot_is_live


# What the tags of a segment add up to.
ctypedef struct totals_t:
    tier_stats_t tier[TIERS]
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
        broken = slabs_check(&segment.slabs)
    if broken != NULL:
        return broken
    memset(&total, 0, sizeof(total))
    sum_held(segment, &total)
    broken = sum_tags(segment, &total)
    return broken if broken != NULL else sums_check(segment, &total)


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
    cdef const char* broken = NULL
    cdef size_t at
    for at in range(segment.granules):
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
    total.tier[tier].blocks += 1
    total.tier[tier].used += place.used
    total.tier[tier].requested += place.requested
    return NULL


cdef const char* slab_tag_check(const segment_t* segment, size_t granule, totals_t* total) noexcept nogil:
    """At a slab's first granule, add up its used slots and its memory, and look at the tags of the others."""
    cdef const slab_t* slab = &segment.slabs.slab[segment.tag[granule] >> TAG_INDEX_SHIFT]
    cdef tier_stats_t* slots = &total.tier[TIER_SLAB]
    cdef size_t offset = granule << segment.granule_shift, at
    cdef uint32_t slot
    if slab.live == NULL or not slab.offset <= offset < slab.offset + slab.bytes:
        return b"segment: a tag names a slab that is not there"
    if slab.offset != offset:
        return NULL
    for at in range(granule, granule + (slab.bytes >> segment.granule_shift)):
        if segment.tag[at] != segment.tag[granule]:
            return b"segment: a granule of a slab does not name it"
    slots.blocks += slab.used - slab.held
    slots.used += (slab.used - slab.held) * segment.slabs.size_class[slab.size_class].size
    total.held_slots += slab.held * segment.slabs.size_class[slab.size_class].size
    for slot in range(slab.fresh):
        if slot_is_live(slab, slot):
            slots.requested += slab.slot[slot].value
    if slab.block != NO_MID:
        total.slabs_in_mid += slab.bytes
    else:
        total.slabs_in_buddy += slab.bytes
    return NULL


cdef const char* sums_check(const segment_t* segment, const totals_t* total) noexcept nogil:
    cdef int tier
    cdef size_t lent = (<size_t>segment.buddy.size - segment_boundary(segment)) << segment.min_block_shift
    for tier in range(TIER_SLAB, TIERS):
        if memcmp(&segment.tier[tier], &total.tier[tier], sizeof(tier_stats_t)) != 0:
            return b"segment: a tier's counters differ from its live blocks"
        if segment.tier[tier].requested > segment.tier[tier].used:
            return b"segment: requested > used"
    if <size_t>segment.mid.used * MID_UNIT != total.tier[TIER_MID].used + total.slabs_in_mid + total.held_in_mid:
        return b"segment: mid.used != live and held mid blocks + slabs"
    if (<size_t>segment.buddy.used << segment.min_block_shift
            != total.tier[TIER_BUDDY].used + total.slabs_in_buddy + total.held_in_buddy + lent):
        return b"segment: buddy.used != live and held runs + slabs + units of the mid tier"
    if segment.held != total.held_in_mid + total.held_in_buddy + total.held_slots:
        return b"segment: held differs from the sum of what is held"
    return NULL
