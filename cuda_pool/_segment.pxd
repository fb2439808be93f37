"""A segment: a region from the driver, or several, served by the three tiers in offsets from a common start."""

from libc.stdint cimport uint32_t, uint64_t

from cuda_pool._bins cimport BLOCK_MOST, CACHED
from cuda_pool._buddy cimport buddy_t
from cuda_pool._gauge cimport gauge_has_room, gauge_move, gauge_note, gauge_part
from cuda_pool._learn cimport learn_leave, learn_t
from cuda_pool._lock cimport APART
from cuda_pool._mid cimport MID_UNIT, mid_block_t, mid_has_none, mid_t
from cuda_pool._owner cimport owner_t, owners_t, view_t
from cuda_pool._pages cimport pages_t
from cuda_pool._relaxed cimport get_size, get_u32, get_u64, set_u32, set_u64, swap_u64
from cuda_pool._seat cimport seat_t, system_thread
from cuda_pool._slab cimport (
    NOT_LIVE, NO_HELD, NO_SLAB, NO_SLOT, SLAB_UNIT, slab_lists_t, slab_return, slab_slot, slab_t, slab_take,
    slabs_available, slabs_of, slabs_t, slot_is_live)
from cuda_pool._status cimport STATUS_OK
from cuda_pool._tally cimport tally_leave, tally_t

# What a segment is made with; bytes. cuda_pool.settings derives it from the arguments of Pool.
ctypedef struct settings_t:
    size_t span                     # offsets for regions to come, a multiple of REGION_PAGE; 0: there are none
    size_t mid_max                  # larger requests go to the buddy tier first
    size_t min_block                # unit of the buddy tier, a power of two
    size_t growth_step              # by which the mid tier grows while it can, a power of two
    size_t granule                  # unit of the address map, a power of two <= min_block
    const size_t* size_classes      # ascending
    int classes
    bint colouring
    bint good_fit
    int page_shift                  # log2 of the bytes of a page, 0: all memory is always there
    uint32_t pages_first            # pieces of memory to begin with
    uint32_t pages_most             # that there may be

ctypedef int tier_t

cdef enum:                      # tier_t
    TIER_NONE = 0
    TIER_SLAB
    TIER_MID
    TIER_BUDDY
    TIERS
    TAG_TIER = 3                    # bits of a tag that hold the tier; the rest is an index
    TAG_INDEX_SHIFT = 2

# A live block, found by its offset, or one that is held.
ctypedef struct place_t:
    tier_t tier
    owner_t owner                   # of the slab, or of the memory that the block was cut from
    uint32_t index                  # of the slab, of the mid block, or the first unit of the buddy run
    uint32_t slot                   # slab tier only
    uint32_t batch                  # of that memory
    size_t used                     # bytes
    size_t requested                # bytes
    uint32_t movable                # number of the record of a movable block, or 0; not said of slots

# The buddy tier grows from the low end and owns [0, mid.start); the mid tier owns [mid.start, span) and takes units
# from the buddy tier's upper end; on virtual memory the boundary stays where it was at first. Slabs are blocks of the
# mid tier; when that cannot grow, of the buddy tier.
# Invariants, asserted by segment_check():
#   buddy.used units == live and held runs + slabs in runs + units above mid.start + buddy_paging
#   mid.used == live and held mid blocks + slabs in mid blocks + gaps + mid_paging;  size + gaps == span
#   all pages under what is used are ready, but of what is being given pages
#   held == sum over the blocks, runs and slots that are held
#   tag[offset / granule] of a live block's start, and of every granule of a slab, names it; all others are 0. That of a
#   run of the buddy tier has the number of its movable record as the index
#   total + sum(total of the seats) is the tally of all live blocks;  mid_tally + sum(blocks of the seats) of those in
#   the mid tier;  buddy_tally of those in the buddy tier;  requested <= used
# One lock, the pool's, guards all but what the heaps' locks guard, see slab_t. With all of them held everything stands
# still; a slab is unmade only then.
ctypedef struct segment_t:
    size_t span                     # no offset is as large
    size_t size                     # bytes of memory, a multiple of MID_UNIT
    size_t size_high                # bytes: the most so far
    size_t shut                     # bytes of the region that is being given back
    int far_regions                 # those that do not start at offset 0
    size_t mid_max
    size_t min_block
    size_t growth_step
    size_t granule
    int granule_shift
    int min_block_shift
    uint32_t bias                   # the region's address in MID_UNITs, so that alignment is that of addresses
    size_t slot_alignment           # largest alignment that slots can have
    size_t slot_alignment_max       # the same for a region that is aligned enough
    uint32_t* tag                   # per granule: index << 2 | tier_t, or 0
    size_t granules
    pages_t pages                   # its shift is 0 where all memory is always there
    buddy_t buddy
    mid_t mid
    slabs_t slabs
    uint64_t above[APART]           # the three that follow are written with the pool's lock, and the others are not
    tally_t total                   # live blocks, and of these those of the two upper tiers, but for what the seats say
    tally_t mid_tally
    tally_t buddy_tally
    uint64_t below[APART]
    seat_t* seats                   # of the threads that have one
    const seat_t* noted             # whose thread was the last to change the totals with the pool's lock held
    size_t used_high                # bytes: as far as it was seen with the pool's lock held
    size_t requested_high
    size_t held                     # bytes
    owners_t captures               # owners that are captures: what is theirs stays so until their graph is gone
    size_t mid_paging               # bytes of blocks and runs that are being given pages
    size_t buddy_paging
    learn_t* learn                  # what is learned, or NULL: nothing is

cdef int segment_init(segment_t* segment, size_t address, size_t size, const settings_t* settings) noexcept nogil
# Give all memory back but what is looked at without a lock, which is zeros from here on.
cdef void segment_close(segment_t* segment) noexcept nogil
cdef void segment_destroy(segment_t* segment) noexcept nogil
# What is live, and was, in one tier and in all of them: a snapshot if all locks are held.
cdef tally_t segment_tally(const segment_t* segment, tier_t tier) noexcept nogil
cdef tally_t segment_total(const segment_t* segment) noexcept nogil
# What is live in a slab.
cdef void segment_tally_slab(const slab_t* slab, tally_t* live) noexcept nogil
# Count anew what is live in slabs, with all locks held, and the seats' sums added.
cdef void segment_recount(segment_t* segment) noexcept nogil
cdef size_t segment_free_bytes(const segment_t* segment) noexcept nogil        # of all that there may be
# See how high the totals are, and let the calling thread's seat know by how much they may rise until they are higher
# than ever; with the pool's lock held.
cdef void segment_note(segment_t* segment) noexcept nogil
# Let what is learned see them.
cdef void segment_learn(segment_t* segment) noexcept nogil
cdef void segment_count_slot(segment_t* segment, size_t used, size_t requested) noexcept nogil     # that was taken
# The highest totals that were seen. They are exact while only one thread calls; with several what others have changed
# in their caches is seen when a block that comes from none is allocated.
cdef void segment_highs(const segment_t* segment, size_t* used, size_t* requested) noexcept nogil
# Serve a request that no slot can hold, or say STATUS_OUT_OF_MEMORY without having looked at the slabs: with the pool's
# lock alone.
cdef int segment_alloc_large(segment_t* segment, owner_t owner, size_t nbytes, size_t alignment, size_t* offset,
                             size_t* used) noexcept nogil
# Serve a request from a slab of the owner's, or a new one, without unmaking any. Where there are slots of other sides
# only, a new one is made if it has at most `own_most` bytes.
cdef int segment_alloc_slot(segment_t* segment, owner_t owner, size_t nbytes, size_t alignment, size_t own_most,
                            size_t* offset, size_t* used) noexcept nogil
# Serve a movable block's request: from the mid tier, whatever its size, and from the buddy tier only where that fails.
cdef int segment_alloc_movable(segment_t* segment, owner_t owner, size_t nbytes, size_t alignment, size_t* offset,
                               size_t* used) noexcept nogil
# Say of a live block of the two upper tiers whose record it belongs to, and how much was asked for: for a movable one.
cdef void segment_mark_movable(segment_t* segment, const place_t* place, uint32_t movable,
                               size_t requested) noexcept nogil
# Make room in the tables for an owner.
cdef void segment_admit(segment_t* segment, owner_t owner) noexcept nogil
# Serve what segment_alloc() could not, from other owners' memory where the view allows it. Nothing else is empty then:
# slabs without a used slot are returned first.
cdef int segment_alloc_shared(segment_t* segment, const view_t* view, size_t nbytes, size_t alignment, size_t* offset,
                              size_t* used) noexcept nogil
# Give what the view allows to nobody. A slab stays its owner's.
cdef void segment_settle(segment_t* segment, const view_t* done) noexcept nogil
# Let others have all that `owner` has, live blocks included; `limit` is the last batch that there is. `slabs_to` gets
# the slabs, which cannot be nobody's.
cdef void segment_bequeath(segment_t* segment, owner_t owner, uint32_t limit, owner_t to, uint32_t batch,
                           owner_t slabs_to) noexcept nogil
# Note that a block just allocated is cut from memory of `owner`, whatever it was before.
cdef void segment_claim(segment_t* segment, size_t offset, owner_t owner, uint32_t batch) noexcept nogil
# Would segment_alloc_shared() succeed? False is only said to be sure for slabs and the mid tier.
cdef bint segment_could_share(const segment_t* segment, const view_t* view, size_t nbytes,
                              size_t alignment) noexcept nogil
# Let what was cut from memory of `owner`, whose work is all done, be as if it had been nobody's.
cdef void segment_renew(segment_t* segment, owner_t owner) noexcept nogil
# Bytes that are free, and not anyone's.
cdef size_t segment_pending(const segment_t* segment) noexcept nogil
cdef size_t segment_offset(const segment_t* segment, const place_t* place) noexcept nogil
# Turn a block of the mid tier, or a run of the buddy tier, that was taken for it into a slab, or a live block. What is
# not made into a slab, since the host has no memory, is given back.
cdef int segment_make_slab(segment_t* segment, owner_t owner, int size_class, uint32_t block, uint32_t run,
                           size_t nbytes, uint32_t* slab) noexcept nogil
cdef void segment_use_block(segment_t* segment, uint32_t block, size_t nbytes, size_t* offset,
                            size_t* used) noexcept nogil
cdef void segment_use_run(segment_t* segment, uint32_t run, uint32_t units, size_t nbytes, size_t* offset,
                          size_t* used) noexcept nogil
cdef void segment_use_slot(segment_t* segment, int size_class, uint32_t slab, size_t nbytes, size_t* offset,
                           size_t* used) noexcept nogil
cdef int segment_run_order(const segment_t* segment, size_t alignment) noexcept nogil
# Let the owner's free edge of the mid tier hold a block, by taking units of its own below it.
cdef bint segment_grow_mid(segment_t* segment, owner_t owner, uint32_t size, int align, uint32_t bias) noexcept nogil
# Let a block that segment_find() found be held: freed, and not to be reused until one of the next two is called. If
# it waits for a capture's graph, of the two upper tiers it is that owner's meanwhile.
cdef void segment_hold(segment_t* segment, const place_t* place, owner_t capture) noexcept nogil
cdef void segment_unhold(segment_t* segment, const place_t* place, owner_t owner, uint32_t batch) noexcept nogil
cdef size_t segment_retake(segment_t* segment, const place_t* place, size_t nbytes) noexcept nogil      # slots only
# The generic paths behind the three functions at the end of this file.
cdef int segment_alloc_any(segment_t* segment, owner_t owner, size_t nbytes, size_t alignment, size_t* offset,
                           size_t* used) noexcept nogil
cdef bint segment_block_is_live(const segment_t* segment, size_t offset, place_t* place) noexcept nogil
# STATUS_INTERIOR_POINTER or STATUS_FREED_POINTER; takes time in proportion to the distance to the next block below.
cdef int segment_blame(const segment_t* segment, size_t offset) noexcept nogil
cdef void segment_free_block(segment_t* segment, const place_t* place, owner_t owner, uint32_t batch) noexcept nogil
cdef void segment_drop_slab(segment_t* segment, uint32_t slab) noexcept nogil
# Make a ready slab of a block, or else of a run.
cdef int segment_add_slab(segment_t* segment, owner_t owner, const view_t* view, int size_class, size_t nbytes,
                          uint32_t* slab) noexcept nogil
# Let an empty slab that its owner has no use for now be ready, if it is expected to be needed again; else return it.
cdef void segment_shed_slab(segment_t* segment, uint32_t slab) noexcept nogil
# Return every owner's empty slabs.
cdef void segment_reclaim(segment_t* segment) noexcept nogil
# Move the boundary of the two tiers down by `nbytes`, a multiple of min_block, if all of that is free and the owner's.
cdef bint segment_claim_below(segment_t* segment, owner_t owner, size_t nbytes) noexcept nogil
cdef size_t segment_metadata(const segment_t* segment) noexcept nogil
# Find the live block that a granule's tag names; of a slab, the slot at `offset`. False when it is not live.
cdef bint segment_start_of(const segment_t* segment, size_t granule, size_t offset, size_t* start,
                           place_t* place) noexcept nogil


cdef inline bint segment_is_upper(const segment_t* segment, size_t offset) noexcept nogil:
    """May a block of the mid or the buddy tier start at an offset inside the segment?"""
    cdef uint32_t tier = segment.tag[offset >> segment.granule_shift] & TAG_TIER
    return tier == TIER_MID or tier == TIER_BUDDY


cdef inline bint segment_is_cached(const segment_t* segment, size_t offset) noexcept nogil:
    """May a block that starts at an offset be in some thread's cache?"""
    cdef uint32_t tag = segment.tag[offset >> segment.granule_shift]
    return (tag & TAG_TIER == TIER_MID
            and get_u64(&segment.mid.block[tag >> TAG_INDEX_SHIFT].role.live.requested) & CACHED != 0)


cdef inline bint segment_is_last(const segment_t* segment, size_t offset) noexcept nogil:
    """Is a block of the mid tier that starts at an offset all that is live?"""
    cdef uint32_t tag = segment.tag[offset >> segment.granule_shift]
    return (tag & TAG_TIER == TIER_MID
            and segment_used(segment) == <size_t>segment.mid.block[tag >> TAG_INDEX_SHIFT].size * MID_UNIT)


cdef inline size_t segment_used(const segment_t* segment) noexcept nogil:
    """The same as segment_total(segment).used."""
    cdef size_t used = segment.total.used
    cdef const seat_t* seat = segment.seats
    while seat != NULL:
        used += gauge_part(&seat.used)
        seat = seat.next
    return used


cdef inline bint segment_claim_place(segment_t* segment, const place_t* place) noexcept nogil:
    """Let no thread put a live block that was found into its cache any more; False where one just did. Large ones are
    in no cache.
    """
    cdef uint64_t* requested = &segment.mid.block[place.index].role.live.requested
    return (place.tier != TIER_MID or place.used > <size_t>BLOCK_MOST
            or swap_u64(requested, place.requested, place.requested | CACHED))


cdef inline void segment_unclaim_place(segment_t* segment, const place_t* place) noexcept nogil:
    if place.tier == TIER_MID:
        set_u64(&segment.mid.block[place.index].role.live.requested, place.requested)


cdef inline bint is_movable(const place_t* place) noexcept nogil:
    return place.tier != TIER_SLAB and place.movable != 0


cdef inline bint segment_has_owned(const segment_t* segment, owner_t owner) noexcept nogil:
    """Does the owner have free memory in the upper tiers?"""
    return not mid_has_none(&segment.mid, owner) or segment.buddy.lists[owner].nonempty != 0


cdef inline uint32_t segment_boundary(const segment_t* segment) noexcept nogil:
    """First unit that belongs to the mid tier."""
    return <uint32_t>(<size_t>segment.mid.start * MID_UNIT >> segment.min_block_shift)


cdef inline bint segment_boundary_moves(const segment_t* segment) noexcept nogil:
    """Addresses without pages cost nothing: there each of the two tiers has as many as it could need."""
    return segment.pages.shift == 0


cdef inline seat_t* seat_alone(const segment_t* segment) noexcept nogil:
    """The only seat, if it is the calling thread's and nobody else has changed the totals since it saw them; or NULL.

    Then its room is exact: what is changed at the seat is counted there, and what is changed with the lock here.
    """
    cdef seat_t* seat = segment.seats
    if (seat == NULL or seat != segment.noted or seat.next != NULL
            or get_size(&seat.system_thread) != system_thread()):
        return NULL
    return seat


cdef inline void segment_note_alloc(segment_t* segment, size_t used, size_t requested) noexcept nogil:
    """See how high the totals are after an allocation with the pool's lock held."""
    cdef seat_t* seat = seat_alone(segment)
    if seat != NULL and gauge_has_room(&seat.used, used) and gauge_has_room(&seat.requested, requested):
        gauge_move(&seat.used, used)
        gauge_move(&seat.requested, requested)
    else:
        segment_note(segment)


cdef inline void segment_note_free(segment_t* segment, size_t used, size_t requested) noexcept nogil:
    cdef seat_t* seat = seat_alone(segment)
    if seat != NULL:
        gauge_move(&seat.used, 0 - used)
        gauge_move(&seat.requested, 0 - requested)
    else:
        segment_note(segment)


cdef inline void seat_note(seat_t* seat, const segment_t* segment, size_t used, size_t requested) noexcept nogil:
    """Look at totals from a seat: by its thread with the pool's lock held, or by whoever holds all locks."""
    gauge_note(&seat.used, used, segment.used_high)
    gauge_note(&seat.requested, requested, segment.requested_high)


cdef inline void place_leave(segment_t* segment, const place_t* place) noexcept nogil:
    """Count a live block that is one no longer."""
    tally_leave(&segment.total, place.used, place.requested)
    segment_note_free(segment, place.used, place.requested)
    if place.tier == TIER_SLAB:
        return
    tally_leave(&segment.mid_tally if place.tier == TIER_MID else &segment.buddy_tally, place.used, place.requested)
    if segment.learn != NULL:
        learn_leave(segment.learn, place.used)


cdef inline bint segment_take_slot(segment_t* segment, owner_t owner, size_t nbytes, size_t alignment,
                                   size_t* offset, size_t* used) noexcept nogil:
    """Serve a request from a slab of the owner's; False, and nothing changed, where none has a slot that is free for
    anything but to be taken again.
    """
    cdef const slab_lists_t* lists
    cdef int group
    cdef uint32_t slab
    cdef size_t size
    if nbytes > segment.slabs.table_max or alignment > segment.slot_alignment:
        return False
    group = segment.slabs.table[(nbytes + SLAB_UNIT - 1) // SLAB_UNIT]
    lists = slabs_of(&segment.slabs, owner, group)
    slab = slabs_available(lists)
    size = segment.slabs.size_class[group].size
    if slab == NO_SLAB or size & (alignment - 1) or lists.held != NO_HELD:
        return False
    offset[0] = slab_take(&segment.slabs, slab, nbytes)
    used[0] = size
    segment_count_slot(segment, size, nbytes)
    return True


cdef inline int segment_alloc(segment_t* segment, owner_t owner, size_t nbytes, size_t alignment, size_t* offset,
                              size_t* used) noexcept nogil:
    """Serve a request of at least 1 byte from what the owner may use; `alignment` is a power of two.

    0, STATUS_OUT_OF_MEMORY or STATUS_HOST_MEMORY. Here only a slab that has a free slot: all else is generic.
    """
    if segment_take_slot(segment, owner, nbytes, alignment, offset, used):
        return STATUS_OK
    return segment_alloc_any(segment, owner, nbytes, alignment, offset, used)


cdef inline bint segment_is_live(const segment_t* segment, size_t offset, place_t* place) noexcept nogil:
    """Find the live block that starts at an offset inside the segment."""
    cdef uint32_t tag = segment.tag[offset >> segment.granule_shift]
    if tag & TAG_TIER != TIER_SLAB:
        return segment_block_is_live(segment, offset, place)
    return segment_slot_is_live(segment, tag >> TAG_INDEX_SHIFT, offset, place)


cdef inline bint segment_mid_is_live(const segment_t* segment, size_t offset, place_t* place) noexcept nogil:
    """Find the live block of the mid tier that starts at an offset inside the segment."""
    cdef uint32_t tag = segment.tag[offset >> segment.granule_shift]
    cdef const mid_block_t* block = &segment.mid.block[tag >> TAG_INDEX_SHIFT]
    if (tag & TAG_TIER != TIER_MID or <size_t>block.offset * MID_UNIT != offset
            or get_u64(&block.role.live.requested) & CACHED):
        return False
    place.tier = TIER_MID
    place.index = tag >> TAG_INDEX_SHIFT
    place.owner = block.owner
    place.batch = block.batch
    place.used = <size_t>block.size * MID_UNIT
    place.requested = block.role.live.requested
    place.movable = block.role.live.movable
    return True


cdef inline bint segment_slot_is_live(const segment_t* segment, uint32_t index, size_t offset,
                                      place_t* place) noexcept nogil:
    """Find the live slot that starts at an offset inside a slab."""
    cdef const slab_t* slab = &segment.slabs.slab[index]
    cdef uint32_t slot = slab_slot(&segment.slabs, index, offset)
    if slot == NO_SLOT or not slot_is_live(slab, slot) or get_u32(&slab.slot[slot].value) & NOT_LIVE:
        return False                            # not live, or in some thread's cache
    place.tier = TIER_SLAB
    place.owner = slab.owner
    place.index = index
    place.slot = slot
    place.batch = slab.slot[slot].batch
    place.used = segment.slabs.size_class[slab.size_class].size
    place.requested = get_u32(&slab.slot[slot].value)
    return True


cdef inline int segment_find(const segment_t* segment, size_t offset, place_t* place) noexcept nogil:
    """The same as a status: 0, STATUS_INTERIOR_POINTER or STATUS_FREED_POINTER."""
    return STATUS_OK if segment_is_live(segment, offset, place) else segment_blame(segment, offset)


cdef inline void note_batch(segment_t* segment, const place_t* place, uint32_t batch) noexcept nogil:
    set_u32(&segment.slabs.slab[place.index].batch, batch)
    set_u32(&segment.slabs.slab[place.index].slot[place.slot].batch, batch)


cdef inline void segment_free(segment_t* segment, const place_t* place, owner_t owner, uint32_t batch) noexcept nogil:
    """Return a block that segment_find() found to an owner, or to nobody: batch 0.

    A slot goes back to its slab, so `owner` is the slab's or nobody.
    """
    place_leave(segment, place)
    if place.tier != TIER_SLAB:
        segment_free_block(segment, place, owner, batch)
        return
    if batch != 0:
        note_batch(segment, place, batch)
    if slab_return(&segment.slabs, place.index, place.slot):
        segment_shed_slab(segment, place.index)
