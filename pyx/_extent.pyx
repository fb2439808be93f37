"""Extents: what a segment's memory is divided into at one moment, from its lowest offset to its highest."""

from libc.stdint cimport uint32_t
from libc.stdlib cimport free

from cuda_pool._bins cimport CACHED
from cuda_pool._buddy cimport BUDDY_HELD, BUDDY_LIVE, buddy_entry_t
from cuda_pool._hostmem cimport host_grow
from cuda_pool._mid cimport (
    MID_FREE, MID_GAP, MID_HELD, MID_SLAB, MID_UNIT, MID_USED, NO_MID, mid_block_t)
from cuda_pool._owner cimport NOBODY
from cuda_pool._pages cimport pages_first, pages_has, pages_next, pages_t
from cuda_pool._segment cimport (
    TAG_INDEX_SHIFT, TAG_TIER, TIER_BUDDY, TIER_MID, TIER_SLAB, segment_boundary)
from cuda_pool._side cimport SIDES
from cuda_pool._slab cimport NO_SLOT, slab_t, slot_is_live


cdef void extents_destroy(extents_t* extents) noexcept nogil:
    free(extents.extent)
    extents.extent = NULL
    extents.count = 0
    extents.capacity = 0


cdef int extents_survey(extents_t* extents, const segment_t* segment) noexcept nogil:
    cdef uint32_t unit = 0, block = segment.mid.first
    while unit < segment_boundary(segment):
        unit += survey_units(extents, segment, unit)
    while block != NO_MID:
        survey_block(extents, segment, block)
        block = segment.mid.block[block].after
    return not extents.lacks_memory


cdef uint32_t survey_units(extents_t* extents, const segment_t* segment, uint32_t unit) noexcept nogil:
    """Note down what starts at a unit of the buddy tier; how many units that is."""
    cdef int state = segment.buddy.state[unit]
    cdef const buddy_entry_t* entry = &segment.buddy.entry[unit]
    cdef extent_t extent
    extent.tier = TIER_BUDDY
    extent.offset = <size_t>unit << segment.min_block_shift
    extent.owner = entry.owner
    extent.requested = 0
    extent.movable = False
    if state == 0:
        return survey_slab_at(extents, segment, extent.offset)
    if state < BUDDY_LIVE:
        extent.size = segment.min_block << (state - 1)
        add_free(extents, segment, &extent)
        return <uint32_t>1 << (state - 1)
    extent.size = <size_t>entry.role.live.units << segment.min_block_shift
    extent.state = EXTENT_PENDING if state == BUDDY_HELD else EXTENT_BUSY
    if state == BUDDY_LIVE:
        extent.state = EXTENT_LIVE
        extent.requested = extent.size - entry.role.live.slack
        extent.movable = segment.tag[extent.offset >> segment.granule_shift] >> TAG_INDEX_SHIFT != 0
    add(extents, &extent)
    return entry.role.live.units


cdef uint32_t survey_slab_at(extents_t* extents, const segment_t* segment, size_t offset) noexcept nogil:
    """The same where a unit is inside a larger block: that is a slab."""
    cdef uint32_t tag = segment.tag[offset >> segment.granule_shift]
    cdef const slab_t* slab
    if tag & TAG_TIER != TIER_SLAB:
        return 1
    slab = &segment.slabs.slab[tag >> TAG_INDEX_SHIFT]
    survey_slab(extents, slab)
    return <uint32_t>(slab.bytes >> segment.min_block_shift)


cdef void survey_block(extents_t* extents, const segment_t* segment, uint32_t index) noexcept nogil:
    cdef const mid_block_t* block = &segment.mid.block[index]
    cdef extent_t extent
    if block.state == MID_GAP:
        return
    if block.state == MID_SLAB:
        survey_slab(extents, &segment.slabs.slab[block.role.slab])
        return
    extent.tier = TIER_MID
    extent.offset = <size_t>block.offset * MID_UNIT
    extent.size = <size_t>block.size * MID_UNIT
    extent.owner = block.owner
    extent.requested = 0
    extent.movable = False
    if block.state == MID_FREE:
        add_free(extents, segment, &extent)
        return
    extent.state = EXTENT_PENDING if block.state == MID_HELD else EXTENT_BUSY
    if block.state == MID_USED:
        extent.state = EXTENT_LIVE
        extent.requested = block.role.live.requested & ~CACHED
        extent.movable = block.role.live.movable != 0
    add(extents, &extent)


cdef void survey_slab(extents_t* extents, const slab_t* slab) noexcept nogil:
    """Note down the slots of a slab, neighbours that are free in one, and what no slot covers."""
    cdef extent_t extent
    cdef size_t first, slot
    extent.tier = TIER_SLAB
    extent.owner = slab.owner
    extent.movable = False
    add_tail(extents, &extent, slab.offset, slab.start)
    if not reserve(extents, slab.slots):
        return
    first = extents.count
    for slot in range(slab.slots):
        extent.offset = slab.start + slot * slab.size
        extent.size = slab.size
        extent.state = slot_state(slab, <uint32_t>slot)
        extent.requested = slab.slot[slot].value if extent.state == EXTENT_LIVE else 0
        add(extents, &extent)
    mark_chains(slab, &extents.extent[first])
    extents.count = merge_free(extents.extent, first, extents.count)
    add_tail(extents, &extent, slab.start + <size_t>slab.slots * slab.size, slab.offset + slab.bytes)


cdef extent_state_t slot_state(const slab_t* slab, uint32_t slot) noexcept nogil:
    """The state of a slot, as long as it is not on a chain of those that were returned."""
    if slot >= slab.fresh:
        return free_state(slab)
    return EXTENT_LIVE if slot_is_live(slab, slot) else EXTENT_PENDING


cdef inline extent_state_t free_state(const slab_t* slab) noexcept nogil:
    if slab.batch != 0:
        return EXTENT_PENDING
    return EXTENT_READY if slab.ready else EXTENT_FREE


cdef void mark_chains(const slab_t* slab, extent_t* slots) noexcept nogil:
    cdef uint32_t slot
    cdef int side
    for side in range(SIDES):
        slot = slab.free[side]
        while slot != NO_SLOT:
            slots[slot].state = free_state(slab)
            slot = slab.slot[slot].value & NO_SLOT


cdef size_t merge_free(extent_t* extent, size_t first, size_t end) noexcept nogil:
    """Make one of neighbours of the same state, unless they are live; where the last one ends now."""
    cdef size_t kept = first, at
    for at in range(first + 1, end):
        if extent[at].state != EXTENT_LIVE and extent[at].state == extent[kept].state:
            extent[kept].size += extent[at].size
        else:
            kept += 1
            extent[kept] = extent[at]
    return min(kept + 1, end)


cdef void add_tail(extents_t* extents, extent_t* extent, size_t start, size_t end) noexcept nogil:
    if start < end:
        extent.offset = start
        extent.size = end - start
        extent.requested = 0
        extent.state = EXTENT_TAIL
        add(extents, extent)


cdef void add_free(extents_t* extents, const segment_t* segment, extent_t* extent) noexcept nogil:
    """Note down free memory of an owner or of nobody: with pages, what has memory and what has none apart."""
    cdef const pages_t* pages = &segment.pages
    cdef size_t end = extent.offset + extent.size, next
    cdef extent_state_t state = EXTENT_FREE if extent.owner == NOBODY else EXTENT_PENDING
    cdef uint32_t page
    cdef bint ready
    extent.state = state
    if pages.shift == 0:
        add(extents, extent)
        return
    while extent.offset < end:
        page = pages_first(pages, extent.offset)
        ready = pages_has(pages.ready, page)
        next = <size_t>pages_next(pages.ready, page, pages.count, not ready) << pages.shift
        extent.size = min(next, end) - extent.offset
        extent.state = state if ready else EXTENT_UNMAPPED
        add(extents, extent)
        extent.offset += extent.size


cdef void add(extents_t* extents, const extent_t* extent) noexcept nogil:
    if reserve(extents, 1):
        extents.extent[extents.count] = extent[0]
        extents.count += 1


cdef bint reserve(extents_t* extents, size_t more) noexcept nogil:
    if host_grow(<void**>&extents.extent, sizeof(extent_t), &extents.capacity, <uint32_t>(extents.count + more)):
        return True
    extents.lacks_memory = True
    return False
