"""A segment: a region from the driver, or several, served by the three tiers in offsets from a common start."""

from libc.stdint cimport uint32_t
from libc.string cimport memset

from cuda_pool._bits cimport ctz64, log2_ceil, log2_floor, round_down, round_up
from cuda_pool._buddy cimport (
    BUDDY_HELD, NO_BLOCK, buddy_alloc, buddy_alloc_allowed, buddy_allowed_below, buddy_claim, buddy_could_join,
    buddy_destroy, buddy_free, buddy_free_below, buddy_hold, buddy_init, buddy_join, buddy_metadata, buddy_pass_on,
    buddy_release, buddy_rename)
from cuda_pool._cut cimport mid_free
from cuda_pool._gap cimport gap_find_far, gap_init
from cuda_pool._gauge cimport gauge_higher, gauge_part
from cuda_pool._hostmem cimport host_clear, host_map, host_unmap
from cuda_pool._learn cimport demand_t, demand_target
from cuda_pool._mid cimport (
    MID_HELD, MID_SLAB, MID_UNIT, MID_USED, NO_MID, aligned_start, mid_adopt, mid_allowed_edge, mid_better, mid_block_t,
    mid_could_join, mid_cut_start, mid_destroy, mid_edge, mid_extend, mid_find, mid_find_allowed, mid_init,
    mid_join, mid_pass_on, mid_rename, mid_reserve, mid_shrink, mid_state_t, mid_take, run_fits,
    units_missing)
from cuda_pool._owner cimport NOBODY, batch_within, view_allows
from cuda_pool._pages cimport pages_destroy, pages_init
from cuda_pool._plain cimport block_bytes, block_enter, block_use, learn_total, plain_free, set_tag
from cuda_pool._prepare cimport segment_bytes_ahead, segment_drop_ready, segment_follow, segment_predicts
from cuda_pool._region cimport REGION_PAGE
from cuda_pool._relaxed cimport add_size, get_size, set_size, set_u32
from cuda_pool._room cimport segment_largest_run
from cuda_pool._seat cimport seat_t, seat_total, system_thread
from cuda_pool._slab cimport (
    NO_SLAB, demand_of, slab_activate, slab_adopt, slab_begin_line, slab_has_allowed, slab_has_on, slab_lists_t,
    slab_shelve, slab_slot, slab_t, slab_take, slab_take_allowed, slabs_available, slabs_available_on, slabs_class,
    slabs_close, slabs_destroy, slabs_empty, slabs_forget, slabs_have_record, slabs_init, slabs_make, slabs_of,
    slabs_pass_on, slabs_ready, slabs_unmake, slabs_wanted, slot_hold, slot_is_live, slot_release, slot_retake)
from cuda_pool._status cimport (
    STATUS_FREED_POINTER, STATUS_HOST_MEMORY, STATUS_INTERIOR_POINTER, STATUS_OK, STATUS_OUT_OF_MEMORY)
from cuda_pool._tally cimport tally_add, tally_enter, tally_subtract, tally_t

cdef enum:
    TAG_COLOUR = 39
    GAP_SHARE = 64                  # of the capacity: gaps below pages that a block starts with
    PAGE_ALIGN = 13                 # log2(REGION_PAGE / MID_UNIT)
    BLOCKS_PER_GRANULE = 8          # live ones start in different granules, free ones of several owners between
    TAKEOVER_CANDIDATES = 16        # slabs of another owner that are looked at


cdef int segment_init(segment_t* segment, size_t address, size_t size, const settings_t* settings) noexcept nogil:
    cdef size_t units = size // settings.min_block
    memset(segment, 0, sizeof(segment_t))
    segment.size = round_down(size, MID_UNIT)
    segment.size_high = segment.size
    segment.span = max(segment.size, settings.span)
    segment.mid_max = settings.mid_max
    segment.min_block = settings.min_block
    segment.growth_step = max(settings.growth_step, settings.min_block)
    segment.granule = settings.granule
    segment.granule_shift = log2_floor(settings.granule)
    segment.min_block_shift = log2_floor(settings.min_block)
    segment.bias = <uint32_t>(address // MID_UNIT)
    # Slots start at odd multiples of MID_UNIT where they are coloured.
    segment.slot_alignment_max = <size_t>MID_UNIT if settings.colouring else settings.granule
    if settings.span != 0:
        segment.slot_alignment_max = min(segment.slot_alignment_max, <size_t>REGION_PAGE)
    segment.slot_alignment = <size_t>1 << ctz64(address | segment.slot_alignment_max)
    segment.granules = (segment.span >> segment.granule_shift) + 1
    segment.tag = <uint32_t*>host_map(segment.granules * sizeof(uint32_t), TAG_COLOUR)
    if (segment.tag == NULL or not buddy_init(&segment.buddy, <uint32_t>units)
            or not mid_init(&segment.mid, <uint32_t>(units * (settings.min_block // MID_UNIT)),
                            <uint32_t>(segment.size // MID_UNIT),
                            min(segment.span // MID_UNIT, BLOCKS_PER_GRANULE * segment.granules))
            or not slabs_init(&segment.slabs, settings.size_classes, settings.classes, segment.granules,
                              settings.colouring)
            or (settings.span != 0 and not gap_init(&segment.mid, <uint32_t>(segment.span // MID_UNIT)))):
        segment_destroy(segment)
        return 0
    segment.mid.good_fit = settings.good_fit
    if settings.page_shift != 0 and not init_pages(segment, settings):
        segment_destroy(segment)
        return 0
    return 1


cdef bint init_pages(segment_t* segment, const settings_t* settings) noexcept nogil:
    """Put pages under the tiers, and the boundary where it stays: a mid tier that serves every request has all
    addresses, any other the upper half.
    """
    cdef size_t nbytes = <size_t>settings.pages_most << settings.page_shift
    cdef size_t units = segment.buddy.size if settings.mid_max >= nbytes else segment.buddy.size // 2
    if not pages_init(&segment.pages, settings.page_shift, <uint32_t>(segment.size >> settings.page_shift),
                      settings.pages_most):
        return False
    segment.mid.pages = &segment.pages
    segment.mid.gaps_max = <uint32_t>(nbytes // MID_UNIT // GAP_SHARE)
    segment.buddy.pages = &segment.pages
    segment.buddy.unit_shift = segment.min_block_shift
    return segment_claim_below(segment, NOBODY, units << segment.min_block_shift)


cdef void segment_close(segment_t* segment) noexcept nogil:
    slabs_close(&segment.slabs)
    mid_destroy(&segment.mid)
    buddy_destroy(&segment.buddy)
    host_clear(segment.tag, segment.granules * sizeof(uint32_t))


cdef void segment_destroy(segment_t* segment) noexcept nogil:
    segment_close(segment)
    slabs_destroy(&segment.slabs)
    pages_destroy(&segment.pages)
    host_unmap(segment.tag, segment.granules * sizeof(uint32_t), TAG_COLOUR)
    segment.tag = NULL


cdef tally_t segment_tally(const segment_t* segment, tier_t tier) noexcept nogil:
    cdef tally_t tally, mid = mid_total(segment)
    if tier == TIER_MID:
        return mid
    if tier == TIER_BUDDY:
        return segment.buddy_tally
    tally = segment_total(segment)
    tally_subtract(&tally, &mid)
    tally_subtract(&tally, &segment.buddy_tally)
    return tally


cdef tally_t mid_total(const segment_t* segment) noexcept nogil:
    cdef tally_t total = segment.mid_tally
    cdef const seat_t* seat = segment.seats
    while seat != NULL:
        tally_add(&total, &seat.blocks)
        seat = seat.next
    return total


cdef tally_t segment_total(const segment_t* segment) noexcept nogil:
    cdef tally_t total = segment.total, tally
    cdef const seat_t* seat = segment.seats
    while seat != NULL:
        tally = seat_total(seat)
        tally_add(&total, &tally)
        seat = seat.next
    return total


cdef void segment_tally_slab(const slab_t* slab, tally_t* live) noexcept nogil:
    cdef uint32_t slot
    live.allocs += slab.used - slab.held
    live.used += (slab.used - slab.held) * slab.size
    for slot in range(slab.fresh):
        if slot_is_live(slab, slot):
            live.requested += slab.slot[slot].value


cdef void segment_recount(segment_t* segment) noexcept nogil:
    cdef tally_t counted = segment_tally(segment, TIER_SLAB), live
    cdef uint32_t index
    memset(&live, 0, sizeof(live))
    for index in range(1, segment.slabs.made):
        if segment.slabs.slab[index].live != NULL:
            segment_tally_slab(&segment.slabs.slab[index], &live)
    add_size(&segment.total.frees, counted.allocs - counted.frees - live.allocs)
    add_size(&segment.total.used, live.used - counted.used)
    add_size(&segment.total.requested, live.requested - counted.requested)


cdef size_t segment_free_bytes(const segment_t* segment) noexcept nogil:
    cdef size_t nbytes = segment.size
    if segment.pages.shift != 0:
        nbytes = <size_t>segment.pages.most << segment.pages.shift
    return nbytes - segment_total(segment).used


cdef void segment_highs(const segment_t* segment, size_t* used, size_t* requested) noexcept nogil:
    cdef const seat_t* seat = segment.seats
    used[0] = segment.used_high
    requested[0] = segment.requested_high
    while seat != NULL:
        used[0] = max(used[0], get_size(&seat.used.high))
        requested[0] = max(requested[0], get_size(&seat.requested.high))
        seat = seat.next
    used[0] = min(used[0], segment.size_high)       # a thread may not have seen yet what another one has freed
    requested[0] = min(requested[0], used[0])


cdef void segment_count_slot(segment_t* segment, size_t used, size_t requested) noexcept nogil:
    tally_enter(&segment.total, used, requested)
    segment_note_alloc(segment, used, requested)
    learn_total(segment)


cdef void segment_note(segment_t* segment) noexcept nogil:
    cdef size_t used = segment.total.used, requested = segment.total.requested, thread = system_thread()
    cdef seat_t* seat = segment.seats
    cdef seat_t* mine = NULL
    while seat != NULL:
        used += gauge_part(&seat.used)
        requested += gauge_part(&seat.requested)
        if get_size(&seat.system_thread) == thread:
            mine = seat
        seat = seat.next
    set_size(&segment.used_high, gauge_higher(segment.used_high, used))
    set_size(&segment.requested_high, gauge_higher(segment.requested_high, requested))
    segment.noted = mine
    if mine != NULL:
        seat_note(mine, segment, used, requested)


cdef void segment_learn(segment_t* segment) noexcept nogil:
    learn_total(segment)


cdef void segment_admit(segment_t* segment, owner_t owner) noexcept nogil:
    cdef int owners = max(segment.mid.owners, <int>owner + 1)
    segment.mid.owners = owners
    segment.buddy.owners = owners
    segment.slabs.owners = owners


cdef int segment_alloc_any(segment_t* segment, owner_t owner, size_t nbytes, size_t alignment, size_t* offset,
                           size_t* used) noexcept nogil:
    cdef int status
    if nbytes > segment.size or alignment > segment.size:
        return STATUS_OUT_OF_MEMORY
    status = alloc_any(segment, owner, NULL, nbytes, alignment, offset, used)
    # Empty slabs that would not help stay, so that a request which fails leaves largest_free as it was. (That is exact
    # up to alignment MID_UNIT; for a larger one they may go in vain.)
    if (status == STATUS_OUT_OF_MEMORY and nbytes <= segment_largest_run(segment, owner)
            and reclaim(segment, owner)):
        status = alloc_any(segment, owner, NULL, nbytes, alignment, offset, used)
    if status == STATUS_OUT_OF_MEMORY and nbytes <= segment.slabs.max and alignment <= segment.slot_alignment:
        status = borrow_slot(segment, owner, nbytes, alignment, offset, used)
    return status


cdef int segment_alloc_shared(segment_t* segment, const view_t* view, size_t nbytes, size_t alignment, size_t* offset,
                              size_t* used) noexcept nogil:
    cdef int status = STATUS_OUT_OF_MEMORY
    if nbytes > segment.size or alignment > segment.size:
        return STATUS_OUT_OF_MEMORY
    segment_reclaim(segment)
    if nbytes <= segment.slabs.max and alignment <= segment.slot_alignment:
        status = alloc_slot_elsewhere(segment, view, nbytes, alignment, offset, used)
    if status == STATUS_OUT_OF_MEMORY:
        status = alloc_any(segment, view.owner, view, nbytes, alignment, offset, used)
    if status == STATUS_OUT_OF_MEMORY and is_worth_adopting(segment, view, nbytes, alignment):
        adopt(segment, view)
        status = alloc_any(segment, view.owner, NULL, nbytes, alignment, offset, used)
    return status


cdef bint is_worth_adopting(const segment_t* segment, const view_t* view, size_t nbytes,
                            size_t alignment) noexcept nogil:
    """Would what is allowed hold the request once it has one owner: on both sides of the boundary, or as buddies?"""
    cdef size_t size = max(round_up(nbytes, MID_UNIT), segment.granule) // MID_UNIT, below, start
    cdef size_t units = round_up(nbytes, segment.min_block) >> segment.min_block_shift
    cdef int align = log2_floor(alignment // MID_UNIT) if alignment > MID_UNIT else 0
    if segment.mid.owned == 0 and segment.buddy.owned == 0:
        return False
    if segment.pages.shift != 0:            # the addresses that nobody uses would all become the asker's
        return False
    below = <size_t>buddy_allowed_below(&segment.buddy, view, segment_boundary(segment)) << segment.min_block_shift
    start = segment.mid.start - below // MID_UNIT
    below = below // MID_UNIT + mid_allowed_edge(&segment.mid, view)
    if size <= below and run_fits(<uint32_t>start, <uint32_t>below, <uint32_t>size, align, segment.bias):
        return True
    return segment_run_order(segment, alignment) >= 0 and buddy_could_join(&segment.buddy, view, <uint32_t>units)


cdef void adopt(segment_t* segment, const view_t* view) noexcept nogil:
    """Make all free blocks that the view allows the asker's, so that they merge across the tiers, too."""
    mid_adopt(&segment.mid, view)
    buddy_join(&segment.buddy, view)


cdef int alloc_any(segment_t* segment, owner_t owner, const view_t* view, size_t nbytes, size_t alignment,
                   size_t* offset, size_t* used) noexcept nogil:
    """Route a request: its own tier first, then whatever else could hold it.

    Without a view only the owner's and nobody's memory is looked at.
    """
    cdef int status = STATUS_OUT_OF_MEMORY
    if nbytes <= segment.slabs.max and alignment <= segment.slot_alignment:
        status = alloc_slot(segment, owner, view, nbytes, alignment, offset, used)
        if status != STATUS_OUT_OF_MEMORY:
            return status
    return alloc_block_or_run(segment, owner, view, nbytes, alignment, offset, used)


cdef int segment_alloc_slot(segment_t* segment, owner_t owner, size_t nbytes, size_t alignment, size_t own_most,
                            size_t* offset, size_t* used) noexcept nogil:
    cdef const slab_lists_t* lists
    cdef int size_class
    cdef uint32_t slab
    if segment_predicts(segment) or nbytes > segment.slabs.max or alignment > segment.slot_alignment:
        return STATUS_OUT_OF_MEMORY
    size_class = slabs_class(&segment.slabs, nbytes, alignment)
    if size_class < 0:
        return STATUS_OUT_OF_MEMORY
    lists = slabs_of(&segment.slabs, owner, size_class)
    slab = slabs_available_on(&segment.slabs, lists, segment.slabs.side)
    if slab == NO_SLAB:
        return alloc_slot(segment, owner, NULL, nbytes, alignment, offset, used)
    if segment.seats != NULL and segment.seats.next != NULL:
        slab_begin_line(&segment.slabs, slab, segment.slabs.side)
    if (not slab_has_on(&segment.slabs.slab[slab], segment.slabs.side)
            and slabs_wanted(&segment.slabs, owner, size_class) <= own_most):
        slab = own_slab(segment, owner, size_class, slab)
    segment_use_slot(segment, size_class, slab, nbytes, offset, used)
    return STATUS_OK


cdef uint32_t own_slab(segment_t* segment, owner_t owner, int size_class, uint32_t others) noexcept nogil:
    """A new slab for the calling thread's side, or an empty one, or else all that is free in another side's."""
    cdef uint32_t slab = slabs_empty(&segment.slabs, slabs_of(&segment.slabs, owner, size_class))
    if slab == NO_SLAB:
        if next_slab(segment, owner, NULL, size_class, &slab) == STATUS_OK:
            return slab
        slab = others
    slab_adopt(&segment.slabs.slab[slab], segment.slabs.side)
    return slab


cdef int segment_alloc_large(segment_t* segment, owner_t owner, size_t nbytes, size_t alignment, size_t* offset,
                             size_t* used) noexcept nogil:
    if nbytes > segment.size or alignment > segment.size:
        return STATUS_OUT_OF_MEMORY
    return alloc_block_or_run(segment, owner, NULL, nbytes, alignment, offset, used)


cdef int segment_alloc_movable(segment_t* segment, owner_t owner, size_t nbytes, size_t alignment, size_t* offset,
                               size_t* used) noexcept nogil:
    cdef int status
    if segment.pages.shift != 0:                    # there blocks stay, and pages move
        return segment_alloc_large(segment, owner, nbytes, alignment, offset, used)
    if nbytes > segment.size or alignment > segment.size:
        return STATUS_OUT_OF_MEMORY
    status = alloc_block(segment, owner, NULL, nbytes, alignment, offset, used)
    if status == STATUS_OUT_OF_MEMORY:
        status = alloc_run(segment, owner, NULL, nbytes, alignment, offset, used)
    return status


cdef void segment_mark_movable(segment_t* segment, const place_t* place, uint32_t movable,
                               size_t requested) noexcept nogil:
    cdef tally_t* tally = &segment.mid_tally if place.tier == TIER_MID else &segment.buddy_tally
    set_size(&tally.requested, tally.requested - place.requested + requested)
    set_size(&segment.total.requested, segment.total.requested - place.requested + requested)
    segment.noted = NULL
    if place.tier == TIER_MID:
        segment.mid.block[place.index].role.live.requested = requested
        segment.mid.block[place.index].role.live.movable = movable
    else:
        segment.buddy.entry[place.index].role.live.slack = <uint32_t>(place.used - requested)
        set_tag(segment, segment_offset(segment, place), movable << TAG_INDEX_SHIFT | TIER_BUDDY)


cdef int alloc_block_or_run(segment_t* segment, owner_t owner, const view_t* view, size_t nbytes, size_t alignment,
                            size_t* offset, size_t* used) noexcept nogil:
    cdef int status = STATUS_OUT_OF_MEMORY
    if nbytes > segment.mid_max:
        status = alloc_run(segment, owner, view, nbytes, alignment, offset, used)
        if status == STATUS_OUT_OF_MEMORY and shed_edge(segment):
            status = alloc_run(segment, owner, view, nbytes, alignment, offset, used)
    if status == STATUS_OUT_OF_MEMORY:
        status = alloc_block(segment, owner, view, nbytes, alignment, offset, used)
    if status == STATUS_OUT_OF_MEMORY:
        status = alloc_run(segment, owner, view, nbytes, alignment, offset, used)
    return status


cdef void segment_settle(segment_t* segment, const view_t* done) noexcept nogil:
    cdef uint32_t index
    cdef slab_t* slab
    adopt(segment, done)
    for index in range(1, segment.slabs.made):
        slab = &segment.slabs.slab[index]
        if slab.live != NULL and batch_within(slab.batch, done.limit[slab.owner]):
            slab.batch = 0


cdef void segment_bequeath(segment_t* segment, owner_t owner, uint32_t limit, owner_t to, uint32_t batch,
                           owner_t slabs_to) noexcept nogil:
    cdef uint32_t index
    reclaim(segment, owner)
    slabs_forget(&segment.slabs, owner)
    mid_pass_on(&segment.mid, owner, limit, to, batch)
    buddy_pass_on(&segment.buddy, owner, limit, to, batch)
    mid_rename(&segment.mid, owner, to, batch)
    buddy_rename(&segment.buddy, owner, to, batch)
    for index in range(1, segment.slabs.made):
        if segment.slabs.slab[index].live != NULL and segment.slabs.slab[index].owner == owner:
            slabs_pass_on(&segment.slabs, index, slabs_to, batch)


cdef void segment_renew(segment_t* segment, owner_t owner) noexcept nogil:
    cdef uint32_t index, slot
    cdef slab_t* slab
    mid_rename(&segment.mid, owner, NOBODY, 0)
    buddy_rename(&segment.buddy, owner, NOBODY, 0)
    for index in range(1, segment.slabs.made):
        slab = &segment.slabs.slab[index]
        if slab.live == NULL or slab.owner != owner:
            continue
        slab.batch = 0
        slab.birth = 0
        for slot in range(slab.fresh):
            slab.slot[slot].batch = 0


cdef void segment_claim(segment_t* segment, size_t offset, owner_t owner, uint32_t batch) noexcept nogil:
    cdef uint32_t tag = segment.tag[offset >> segment.granule_shift]
    cdef uint32_t index = tag >> TAG_INDEX_SHIFT
    cdef slab_t* slab
    if tag & TAG_TIER == TIER_SLAB:
        slab = &segment.slabs.slab[index]
        slab.batch = batch
        slab.birth = batch
        slab.slot[slab_slot(&segment.slabs, index, offset)].batch = batch
    elif tag & TAG_TIER == TIER_MID:
        segment.mid.block[index].owner = owner
        segment.mid.block[index].batch = batch
    else:
        index = <uint32_t>(offset >> segment.min_block_shift)
        segment.buddy.entry[index].owner = owner
        segment.buddy.entry[index].batch = batch


cdef bint segment_could_share(const segment_t* segment, const view_t* view, size_t nbytes,
                              size_t alignment) noexcept nogil:
    cdef size_t size = max(round_up(nbytes, MID_UNIT), segment.granule)
    cdef int align = log2_floor(alignment // MID_UNIT) if alignment > MID_UNIT else 0
    cdef int size_class
    if nbytes > segment.size or alignment > segment.size:
        return False
    if nbytes <= segment.slabs.max and alignment <= segment.slot_alignment:
        size_class = slabs_class(&segment.slabs, nbytes, alignment)
        if size_class >= 0:
            size = round_up(segment.slabs.size_class[size_class].size, segment.granule)
        if could_take_over(segment, view, size_class, alignment):
            return True
    if mid_find_allowed(&segment.mid, view, <uint32_t>(size // MID_UNIT), align, segment.bias) != NO_MID:
        return True
    if mid_could_join(&segment.mid, view, <uint32_t>(size // MID_UNIT), align, segment.bias):
        return True
    size = round_up(nbytes, segment.min_block)
    return buddy_could_join(&segment.buddy, view, <uint32_t>(size >> segment.min_block_shift))


cdef size_t segment_pending(const segment_t* segment) noexcept nogil:
    cdef size_t pending = <size_t>segment.mid.owned * MID_UNIT + segment.held
    cdef const slab_t* slab
    cdef uint32_t index
    for index in range(1, segment.slabs.made):
        slab = &segment.slabs.slab[index]
        if slab.live != NULL and slab.batch != 0:
            pending += (slab.slots - slab.used) * segment.slabs.size_class[slab.size_class].size
    return pending + (<size_t>segment.buddy.owned << segment.min_block_shift)


cdef bint segment_block_is_live(const segment_t* segment, size_t offset, place_t* place) noexcept nogil:
    cdef uint32_t tag = segment.tag[offset >> segment.granule_shift]
    if tag & TAG_TIER == TIER_MID:
        return segment_mid_is_live(segment, offset, place)
    place.tier = TIER_BUDDY
    return tag & TAG_TIER == TIER_BUDDY and find_run(segment, offset, place)


cdef void segment_free_block(segment_t* segment, const place_t* place, owner_t owner, uint32_t batch) noexcept nogil:
    if batch == 0:
        owner = NOBODY
    if place.tier == TIER_MID:
        plain_free(segment, place.index, owner, batch)
    else:
        set_tag(segment, segment_offset(segment, place), 0)
        buddy_release(&segment.buddy, place.index, owner, batch)


cdef size_t segment_offset(const segment_t* segment, const place_t* place) noexcept nogil:
    cdef const slab_t* slab
    if place.tier == TIER_MID:
        return <size_t>segment.mid.block[place.index].offset * MID_UNIT
    if place.tier == TIER_BUDDY:
        return <size_t>place.index << segment.min_block_shift
    slab = &segment.slabs.slab[place.index]
    return slab.offset + slab.colour + place.slot * segment.slabs.size_class[slab.size_class].size


cdef void segment_hold(segment_t* segment, const place_t* place, owner_t capture) noexcept nogil:
    place_leave(segment, place)
    segment.held += place.used
    if place.tier == TIER_SLAB:
        slot_hold(&segment.slabs, place.index, place.slot)
        return
    set_tag(segment, segment_offset(segment, place), 0)
    if place.tier == TIER_MID:
        segment.mid.block[place.index].state = MID_HELD
        if capture != NOBODY:
            segment.mid.block[place.index].owner = capture
    else:
        segment.buddy.state[place.index] = BUDDY_HELD
        if capture != NOBODY:
            segment.buddy.entry[place.index].owner = capture


cdef void segment_unhold(segment_t* segment, const place_t* place, owner_t owner, uint32_t batch) noexcept nogil:
    segment.held -= place.used
    if place.tier != TIER_SLAB:
        segment_free_block(segment, place, owner, batch)
        return
    if batch != 0:
        note_batch(segment, place, batch)
    if slot_release(&segment.slabs, place.index, place.slot):
        segment_shed_slab(segment, place.index)


cdef size_t segment_retake(segment_t* segment, const place_t* place, size_t nbytes) noexcept nogil:
    segment.held -= place.used
    slot_retake(&segment.slabs, place.index, place.slot, nbytes)
    segment_count_slot(segment, place.used, nbytes)
    return segment_offset(segment, place)


cdef void segment_reclaim(segment_t* segment) noexcept nogil:
    cdef int owner
    for owner in range(segment.slabs.owners):
        reclaim(segment, <owner_t>owner)


cdef size_t segment_metadata(const segment_t* segment) noexcept nogil:
    """Return the bytes of host address space that grow with the region (paged in where touched)."""
    return segment.granules * sizeof(uint32_t) + buddy_metadata(&segment.buddy)


# Slab tier

cdef int alloc_slot(segment_t* segment, owner_t owner, const view_t* view, size_t nbytes, size_t alignment,
                    size_t* offset, size_t* used) noexcept nogil:
    cdef int size_class = slabs_class(&segment.slabs, nbytes, alignment)
    cdef uint32_t slab
    cdef int status
    if size_class < 0:
        return STATUS_OUT_OF_MEMORY
    slab = slabs_available(slabs_of(&segment.slabs, owner, size_class))
    if slab == NO_SLAB:
        status = next_slab(segment, owner, view, size_class, &slab)
        if status != STATUS_OK:
            return status
    segment_use_slot(segment, size_class, slab, nbytes, offset, used)
    return STATUS_OK


cdef int next_slab(segment_t* segment, owner_t owner, const view_t* view, int size_class,
                   uint32_t* slab) noexcept nogil:
    """Take a ready slab in use, or else a new one."""
    cdef int status = STATUS_OK
    segment_follow(segment)
    slab[0] = slabs_ready(slabs_of(&segment.slabs, owner, size_class))
    if slab[0] == NO_SLAB:
        status = grow_class(segment, owner, view, size_class, slab)
    if status == STATUS_OK:
        slab_activate(&segment.slabs, slab[0])
    return status


cdef int borrow_slot(segment_t* segment, owner_t owner, size_t nbytes, size_t alignment, size_t* offset,
                     size_t* used) noexcept nogil:
    """Serve a request for which its own class has no room from a free slot of a larger one."""
    cdef int size_class = slabs_class(&segment.slabs, nbytes, alignment)
    cdef uint32_t slab
    while 0 <= size_class < segment.slabs.classes:
        slab = slabs_available(slabs_of(&segment.slabs, owner, size_class))
        if slab != NO_SLAB and segment.slabs.size_class[size_class].size & (alignment - 1) == 0:
            segment_use_slot(segment, size_class, slab, nbytes, offset, used)
            return STATUS_OK
        size_class += 1
    return STATUS_OUT_OF_MEMORY


cdef int alloc_slot_elsewhere(segment_t* segment, const view_t* view, size_t nbytes, size_t alignment, size_t* offset,
                              size_t* used) noexcept nogil:
    """Take over another owner's slab, or a slot of it, of the right class or a larger one."""
    cdef int size_class = slabs_class(&segment.slabs, nbytes, alignment), owner
    while 0 <= size_class < segment.slabs.classes:
        for owner in range(segment.slabs.owners if slots_align(segment, size_class, alignment) else 0):
            if take_elsewhere(segment, view, <owner_t>owner, size_class, nbytes, offset):
                used[0] = segment.slabs.size_class[size_class].size
                return STATUS_OK
        size_class += 1
    return STATUS_OUT_OF_MEMORY


cdef inline bint slots_align(const segment_t* segment, int size_class, size_t alignment) noexcept nogil:
    return segment.slabs.size_class[size_class].size & (alignment - 1) == 0


cdef bint take_elsewhere(segment_t* segment, const view_t* view, owner_t owner, int size_class, size_t nbytes,
                         size_t* offset) noexcept nogil:
    cdef uint32_t slab = slab_allowed(segment, owner, size_class, view)
    if slab == NO_SLAB:
        return False
    if view_allows(view, owner, segment.slabs.slab[slab].batch) and take_over(segment, slab, view):
        offset[0] = slab_take(&segment.slabs, slab, nbytes)
    else:
        offset[0] = slab_take_allowed(&segment.slabs, slab, view, nbytes)
    segment_count_slot(segment, segment.slabs.size_class[size_class].size, nbytes)
    return True


cdef inline bint take_over(segment_t* segment, uint32_t slab, const view_t* view) noexcept nogil:
    cdef uint32_t batch = view.batch if segment.slabs.slab[slab].batch != 0 else 0
    return slabs_pass_on(&segment.slabs, slab, view.owner, batch)


cdef bint could_take_over(const segment_t* segment, const view_t* view, int size_class,
                          size_t alignment) noexcept nogil:
    cdef int owner
    while 0 <= size_class < segment.slabs.classes:
        for owner in range(segment.slabs.owners if slots_align(segment, size_class, alignment) else 0):
            if slab_allowed(segment, <owner_t>owner, size_class, view) != NO_SLAB:
                return True
        size_class += 1
    return False


cdef uint32_t slab_allowed(const segment_t* segment, owner_t owner, int size_class, const view_t* view) noexcept nogil:
    """A slab of the owner with a free slot that the view allows, or NO_SLAB."""
    cdef uint32_t slab = slabs_available(slabs_of(&segment.slabs, owner, size_class))
    cdef int looked = 0
    while slab != NO_SLAB and looked < TAKEOVER_CANDIDATES:
        if slab_has_allowed(&segment.slabs, slab, view):
            return slab
        slab = segment.slabs.slab[slab].next
        looked += 1
    return NO_SLAB


cdef void segment_use_slot(segment_t* segment, int size_class, uint32_t slab, size_t nbytes, size_t* offset,
                           size_t* used) noexcept nogil:
    offset[0] = slab_take(&segment.slabs, slab, nbytes)
    used[0] = segment.slabs.size_class[size_class].size
    segment_count_slot(segment, used[0], nbytes)


cdef int grow_class(segment_t* segment, owner_t owner, const view_t* view, int size_class,
                    uint32_t* slab) noexcept nogil:
    """Make a slab of the size that demand asks for or, where there is no room, of half that, and so on."""
    cdef size_t size = segment.slabs.size_class[size_class].size
    cdef size_t wanted = max(slabs_wanted(&segment.slabs, owner, size_class),
                             segment_bytes_ahead(segment, owner, size_class))
    cdef int status = STATUS_OUT_OF_MEMORY
    while status == STATUS_OUT_OF_MEMORY and wanted >= size:
        status = segment_add_slab(segment, owner, view, size_class, round_up(wanted, segment.granule), slab)
        if wanted <= segment.granule:
            break
        wanted = max(wanted // 2, size) if wanted > size else 0
    return status


cdef int segment_add_slab(segment_t* segment, owner_t owner, const view_t* view, int size_class, size_t nbytes,
                          uint32_t* slab) noexcept nogil:
    cdef uint32_t block, run = NO_BLOCK
    cdef int status
    if not slabs_have_record(&segment.slabs):
        return STATUS_OUT_OF_MEMORY
    status = mid_place(segment, owner, view, nbytes, segment.granule, 0, MID_SLAB, &block)
    if status != STATUS_OK:
        if status != STATUS_OUT_OF_MEMORY:
            return status
        block = NO_MID
        nbytes = round_up(nbytes, segment.min_block)
        run = buddy_place(segment, owner, view, <uint32_t>(nbytes >> segment.min_block_shift), 0)
        if run == NO_BLOCK:
            return STATUS_OUT_OF_MEMORY
    return segment_make_slab(segment, owner, size_class, block, run, nbytes, slab)


cdef int segment_make_slab(segment_t* segment, owner_t owner, int size_class, uint32_t block, uint32_t run,
                           size_t nbytes, uint32_t* slab) noexcept nogil:
    cdef size_t offset
    cdef uint32_t batch
    if block != NO_MID:
        offset = <size_t>segment.mid.block[block].offset * MID_UNIT
        batch = segment.mid.block[block].batch if segment.mid.block[block].owner != NOBODY else 0
    else:
        offset = <size_t>run << segment.min_block_shift
        batch = segment.buddy.entry[run].batch if segment.buddy.entry[run].owner != NOBODY else 0
    slab[0] = slabs_make(&segment.slabs, owner, size_class, offset, nbytes, block, batch)
    if slab[0] == NO_SLAB:
        return_slab_memory(segment, offset, nbytes, block, owner, batch)
        return STATUS_HOST_MEMORY
    if block != NO_MID:
        segment.mid.block[block].role.slab = slab[0]
    tag_slab(segment, offset, nbytes, slab[0] << TAG_INDEX_SHIFT | TIER_SLAB)
    return STATUS_OK


cdef void segment_shed_slab(segment_t* segment, uint32_t index) noexcept nogil:
    cdef const slab_t* slab = &segment.slabs.slab[index]
    cdef const demand_t* demand = demand_of(&segment.slabs, slab.owner, slab.size_class)
    segment_follow(segment)
    if (segment_predicts(segment) and not segment.learn.short_of
            and demand.active - slab.slots + demand.ready < demand_target(demand)):
        slab_shelve(&segment.slabs, index)
    else:
        segment_drop_slab(segment, index)


cdef void segment_drop_slab(segment_t* segment, uint32_t index) noexcept nogil:
    cdef slab_t slab = segment.slabs.slab[index]
    slabs_unmake(&segment.slabs, index)
    tag_slab(segment, slab.offset, slab.bytes, 0)
    return_slab_memory(segment, slab.offset, slab.bytes, slab.block, slab.owner, slab.batch)


cdef void return_slab_memory(segment_t* segment, size_t offset, size_t nbytes, uint32_t block, owner_t owner,
                             uint32_t batch) noexcept nogil:
    if batch == 0:
        owner = NOBODY
    if block != NO_MID:
        mid_free(&segment.mid, block, owner, batch)
    else:
        buddy_free(&segment.buddy, <uint32_t>(offset >> segment.min_block_shift),
                   <uint32_t>(nbytes >> segment.min_block_shift), owner, batch)


cdef void tag_slab(segment_t* segment, size_t offset, size_t nbytes, uint32_t tag) noexcept nogil:
    cdef size_t at
    for at in range(offset >> segment.granule_shift, (offset + nbytes) >> segment.granule_shift):
        set_u32(&segment.tag[at], tag)


# Mid tier

cdef int alloc_block(segment_t* segment, owner_t owner, const view_t* view, size_t nbytes, size_t alignment,
                     size_t* offset, size_t* used) noexcept nogil:
    cdef uint32_t block
    cdef int status = mid_place(segment, owner, view, block_bytes(segment, nbytes), alignment, segment.bias, MID_USED,
                                &block)
    if status != STATUS_OK:
        return status
    block_use(segment, block, nbytes, offset, used)
    return STATUS_OK


cdef void segment_use_block(segment_t* segment, uint32_t block, size_t nbytes, size_t* offset,
                            size_t* used) noexcept nogil:
    block_use(segment, block, nbytes, offset, used)


cdef int mid_place(segment_t* segment, owner_t owner, const view_t* view, size_t nbytes, size_t alignment,
                   uint32_t bias, mid_state_t state, uint32_t* block) noexcept nogil:
    """Find a block of the mid tier, let the tier grow if there is none, and cut it to size."""
    cdef uint32_t size = <uint32_t>(nbytes // MID_UNIT), found
    cdef int align = log2_floor(alignment // MID_UNIT) if alignment > MID_UNIT else 0
    if nbytes > segment.size:
        return STATUS_OUT_OF_MEMORY
    if not mid_reserve(&segment.mid, 3):
        return STATUS_HOST_MEMORY
    if segment.far_regions != 0 and align > PAGE_ALIGN and state == MID_USED:
        return far_place(segment, owner, view, size, align, bias, state, block)
    found = mid_find(&segment.mid, owner, size, align, bias)
    if owner != NOBODY:
        found = mid_better(&segment.mid, found, mid_find(&segment.mid, NOBODY, size, align, bias))
    if found == NO_MID and segment_grow_mid(segment, NOBODY, size, align, bias):
        found = edge_if_ready(segment, size, align, bias)
    if found == NO_MID and owner != NOBODY and segment_grow_mid(segment, owner, size, align, bias):
        found = edge_if_ready(segment, size, align, bias)
    if found == NO_MID and view != NULL:
        found = mid_find_allowed(&segment.mid, view, size, align, bias)
    if found == NO_MID and view != NULL:
        found = join_mid(segment, view, size, align, bias)
    if found == NO_MID:
        return STATUS_OUT_OF_MEMORY
    block[0] = take_for(segment, owner, view, found, size, align, bias, state)
    return STATUS_OK


cdef inline uint32_t edge_if_ready(const segment_t* segment, uint32_t size, int align, uint32_t bias) noexcept nogil:
    """The block at the edge of the mid tier, which has grown until it holds the request."""
    cdef uint32_t edge = segment.mid.first
    if segment.mid.pages == NULL:
        return edge
    return edge if units_missing(&segment.mid, mid_cut_start(&segment.mid, &segment.mid.block[edge], size, align, bias),
                                 size) == 0 else <uint32_t>NO_MID


cdef int far_place(segment_t* segment, owner_t owner, const view_t* view, uint32_t size, int align, uint32_t bias,
                   mid_state_t state, uint32_t* block) noexcept nogil:
    """The same where alignment in the segment is not that of addresses in every region."""
    cdef uint32_t found = gap_find_far(&segment.mid, owner, view, size, align, &bias)
    if found == NO_MID and segment_grow_mid(segment, NOBODY, size, align, segment.bias):
        found = segment.mid.first
        bias = segment.bias
    if found == NO_MID and owner != NOBODY and segment_grow_mid(segment, owner, size, align, segment.bias):
        found = segment.mid.first
        bias = segment.bias
    if found == NO_MID:
        return STATUS_OUT_OF_MEMORY
    block[0] = take_for(segment, owner, view, found, size, align, bias, state)
    return STATUS_OK


cdef inline uint32_t take_for(segment_t* segment, owner_t owner, const view_t* view, uint32_t found, uint32_t size,
                              int align, uint32_t bias, mid_state_t state) noexcept nogil:
    cdef uint32_t taken = mid_take(&segment.mid, found, size, align, bias, state)
    cdef mid_block_t* block = &segment.mid.block[taken]
    if block.owner not in (NOBODY, owner):
        block.owner = owner                     # it is behind the work of the one before, by the view
        block.batch = view.batch
    return taken


cdef uint32_t join_mid(segment_t* segment, const view_t* view, uint32_t size, int align, uint32_t bias) noexcept nogil:
    """Join neighbours of different owners, with what is free below the mid tier among them."""
    cdef uint32_t boundary = segment_boundary(segment), found
    cdef size_t below = 0
    if segment_boundary_moves(segment):
        below = <size_t>buddy_free_below(&segment.buddy, boundary) << segment.min_block_shift
    if below != 0:
        segment_claim_below(segment, NOBODY, below)
    found = mid_join(&segment.mid, view, size, align, bias)
    if found == NO_MID and below != 0:
        shed_edge(segment)
    return found


cdef bint segment_grow_mid(segment_t* segment, owner_t owner, uint32_t size, int align, uint32_t bias) noexcept nogil:
    """Let the owner's free edge of the mid tier hold a block: take whole steps below it or, if refused, what lacks.

    What lies on both sides of the boundary has to be the owner's.
    """
    cdef uint32_t start = segment.mid.start, end = start + mid_edge(&segment.mid, owner)
    cdef uint32_t wanted = aligned_start(end - size, align, bias)
    cdef size_t lacking
    if size > end or wanted > end - size:
        return False
    if wanted >= start:
        return True
    if not segment_boundary_moves(segment):
        return False
    lacking = <size_t>(start - wanted) * MID_UNIT
    return (segment_claim_below(segment, owner, round_up(lacking, segment.growth_step))
            or segment_claim_below(segment, owner, round_up(lacking, segment.min_block)))


cdef bint segment_claim_below(segment_t* segment, owner_t owner, size_t nbytes) noexcept nogil:
    cdef size_t units = nbytes >> segment.min_block_shift
    cdef uint32_t boundary = segment_boundary(segment), batch = 0
    if units > boundary or not buddy_claim(&segment.buddy, owner, boundary - <uint32_t>units, <uint32_t>units, &batch):
        return False
    mid_extend(&segment.mid, <uint32_t>(nbytes // MID_UNIT), owner, batch)
    return True


cdef bint shed_edge(segment_t* segment) noexcept nogil:
    """Give the whole units at the free edge of the mid tier back to the buddy tier, whosever they are."""
    cdef const mid_block_t* first = &segment.mid.block[segment.mid.first]
    cdef owner_t owner = first.owner
    cdef uint32_t boundary = segment_boundary(segment), batch = first.batch
    cdef size_t edge = <size_t>mid_edge(&segment.mid, owner) * MID_UNIT
    cdef size_t units = min(edge >> segment.min_block_shift, <size_t>segment.buddy.size - boundary)
    if units == 0 or not segment_boundary_moves(segment):
        return False
    mid_shrink(&segment.mid, <uint32_t>((units << segment.min_block_shift) // MID_UNIT))
    buddy_free(&segment.buddy, boundary, <uint32_t>units, owner, batch)
    return True


# Buddy tier

cdef int alloc_run(segment_t* segment, owner_t owner, const view_t* view, size_t nbytes, size_t alignment,
                   size_t* offset, size_t* used) noexcept nogil:
    cdef size_t size = round_up(nbytes, segment.min_block)
    cdef uint32_t units = <uint32_t>(size >> segment.min_block_shift), run
    cdef int order = segment_run_order(segment, alignment)
    if order < 0:
        return STATUS_OUT_OF_MEMORY
    run = buddy_place(segment, owner, view, units, order)
    if run == NO_BLOCK:
        return STATUS_OUT_OF_MEMORY
    segment_use_run(segment, run, units, nbytes, offset, used)
    return STATUS_OK


cdef void segment_use_run(segment_t* segment, uint32_t run, uint32_t units, size_t nbytes, size_t* offset,
                          size_t* used) noexcept nogil:
    offset[0] = <size_t>run << segment.min_block_shift
    used[0] = <size_t>units << segment.min_block_shift
    buddy_hold(&segment.buddy, run, units, <uint32_t>(used[0] - nbytes))
    set_tag(segment, offset[0], TIER_BUDDY)
    block_enter(segment, &segment.buddy_tally, used[0], nbytes)


cdef uint32_t buddy_place(segment_t* segment, owner_t owner, const view_t* view, uint32_t units,
                          int order) noexcept nogil:
    cdef uint32_t run = buddy_alloc(&segment.buddy, owner, units, order)
    if run == NO_BLOCK and owner != NOBODY:
        run = buddy_alloc(&segment.buddy, NOBODY, units, order)
    if run == NO_BLOCK and view != NULL:
        run = buddy_alloc_allowed(&segment.buddy, view, units, order)
    return run


cdef int segment_run_order(const segment_t* segment, size_t alignment) noexcept nogil:
    """Order whose blocks start at multiples of `alignment`, or -1: the region itself is not that aligned."""
    if <size_t>segment.bias * MID_UNIT & (alignment - 1):
        return -1
    return max(log2_ceil(alignment) - segment.min_block_shift, 0)


cdef bint find_run(const segment_t* segment, size_t offset, place_t* place) noexcept nogil:
    if offset & (segment.min_block - 1):
        return False
    place.index = <uint32_t>(offset >> segment.min_block_shift)
    place.owner = segment.buddy.entry[place.index].owner
    place.batch = segment.buddy.entry[place.index].batch
    place.used = <size_t>segment.buddy.entry[place.index].role.live.units << segment.min_block_shift
    place.requested = place.used - segment.buddy.entry[place.index].role.live.slack
    place.movable = segment.tag[offset >> segment.granule_shift] >> TAG_INDEX_SHIFT
    return True


# All tiers

cdef bint reclaim(segment_t* segment, owner_t owner) noexcept nogil:
    """Return the owner's empty slabs; whether anything came back."""
    cdef bint any = False
    cdef uint32_t slab
    cdef int index
    for index in range(segment.slabs.classes):
        any = segment_drop_ready(segment, owner, index) or any
        slab = slabs_empty(&segment.slabs, slabs_of(&segment.slabs, owner, index))
        if slab != NO_SLAB:
            segment_drop_slab(segment, slab)
            any = True
    return any


cdef int segment_blame(const segment_t* segment, size_t offset) noexcept nogil:
    """Tell an address inside a live block from one inside free memory: look for the next start below it."""
    cdef size_t at = (offset >> segment.granule_shift) + 1, start
    cdef place_t place
    while at > 0:
        at -= 1
        if segment.tag[at] == 0:
            continue
        if segment_start_of(segment, at, offset, &start, &place) and start <= offset:
            return STATUS_INTERIOR_POINTER if offset < start + place.used else STATUS_FREED_POINTER
    return STATUS_FREED_POINTER


cdef bint segment_start_of(const segment_t* segment, size_t granule, size_t offset, size_t* start,
                   place_t* place) noexcept nogil:
    """Find the live block that a granule's tag names; of a slab, the slot at `offset`. False when it is not live."""
    cdef uint32_t tag = segment.tag[granule]
    cdef const slab_t* slab
    cdef size_t size
    place.index = tag >> TAG_INDEX_SHIFT
    if tag & TAG_TIER == TIER_MID:
        start[0] = <size_t>segment.mid.block[place.index].offset * MID_UNIT
        return segment_mid_is_live(segment, start[0], place)
    if tag & TAG_TIER == TIER_BUDDY:
        start[0] = round_up(granule << segment.granule_shift, segment.min_block)
        return find_run(segment, start[0], place)
    slab = &segment.slabs.slab[place.index]
    size = segment.slabs.size_class[slab.size_class].size
    start[0] = slab.offset
    place.used = 0
    place.requested = 0
    if slab.offset + slab.colour <= offset < slab.offset + slab.colour + slab.slots * size:
        start[0] = offset - (offset - slab.offset - slab.colour) % size
        place.used = size if slot_is_live(slab, <uint32_t>((start[0] - slab.offset - slab.colour) // size)) else 0
    return True
