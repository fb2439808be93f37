"""Where blocks lie in a pool's segment, and how one gets a second place."""

from libc.stdint cimport uint32_t
from libc.string cimport memset

from cuda_pool._bits cimport log2_floor, round_up
from cuda_pool._buddy cimport BUDDY_LIVE
from cuda_pool._locks cimport enter_lock, leave_lock
from cuda_pool._mid cimport (
    MID_FREE, MID_SPARE, MID_UNIT, MID_USED, NO_MID, mid_block_t, mid_reserve, mid_take_exact)
from cuda_pool._movables cimport MOVABLE_RESTS, NO_MOVABLE, movable_t, movables_find
from cuda_pool._order cimport (
    STREAM_HANDLE, STREAM_HELD, STREAM_LEGACY, STREAM_THREAD, STREAM_VOUCHED, this_thread)
from cuda_pool._owner cimport LEGACY, later_batch, owner_t, owners_add, owners_has, view_allows
from cuda_pool._plan cimport plan_add, plan_init, plan_measure, plan_reserve
from cuda_pool._region cimport REGION_PAGE
from cuda_pool._segment cimport (
    TAG_INDEX_SHIFT, TAG_TIER, TIER_MID, TIER_SLAB, segment_boundary, segment_is_live, segment_t, segment_use_block)
from cuda_pool._state cimport pool_offset
from cuda_pool._status cimport STATUS_HOST_MEMORY, STATUS_OK
from cuda_pool._uses cimport use_t, uses_find

cdef enum:
    SLICE = 1024                # blocks that are looked at while the lock is held


# How far the reading has come.
ctypedef struct cursor_t:
    bint in_mid                     # past the buddy tier
    uint32_t unit                   # of the buddy tier, up to the boundary
    uint32_t low                    # where the range begins: above the last block that stays, in units of the mid tier
    uint32_t floor                  # where the mid tier began
    uint32_t block                  # of the mid tier, which begins at:
    uint32_t offset


cdef int layout_read(pool_t* pool, plan_t* plan, size_t* kept) noexcept nogil:
    cdef cursor_t cursor
    cdef bint more = True
    cdef int status
    memset(&cursor, 0, sizeof(cursor))
    kept[0] = 0
    plan_init(plan, 0, <uint32_t>(pool.segment.min_block // MID_UNIT))
    while more:
        if not plan_reserve(plan, SLICE):
            return STATUS_HOST_MEMORY
        status = enter_lock(pool)
        if status != STATUS_OK:
            return status
        plan.bias = pool.segment.bias           # regions may have come since the last slice
        if not cursor.in_mid:
            more = read_runs(pool, plan, &cursor, kept)
        else:
            more = read_blocks(pool, plan, &cursor, kept)
        leave_lock(pool)
    return STATUS_OK if plan_measure(plan, cursor.low, cursor.floor, pool.segment.mid.end) else STATUS_HOST_MEMORY


cdef bint read_runs(pool_t* pool, plan_t* plan, cursor_t* cursor, size_t* kept) noexcept nogil:
    """Note the movable runs above the last one that stays; what is below cannot become part of one free run."""
    cdef const segment_t* segment = &pool.segment
    cdef uint32_t boundary = segment_boundary(segment), shift = segment.min_block_shift - log2_floor(MID_UNIT)
    cdef uint32_t at, units, movable
    cdef int looked = 0
    while cursor.unit < boundary and looked < SLICE:
        at = cursor.unit
        units = units_at(segment, at)
        movable = segment.tag[(<size_t>at << segment.min_block_shift) >> segment.granule_shift] >> TAG_INDEX_SHIFT
        cursor.unit = at + units
        looked += 1
        if (0 < segment.buddy.state[at] < BUDDY_LIVE
                and not owners_has(&segment.captures, segment.buddy.entry[at].owner)):
            continue
        if segment.buddy.state[at] != BUDDY_LIVE or not note_movable(pool, plan, movable, at << shift, units << shift,
                                                                     kept):
            plan.pieces = 0
            cursor.low = cursor.unit << shift
    if cursor.unit >= boundary:
        cursor.in_mid = True
        cursor.floor = segment.mid.start
        cursor.offset = segment.mid.start
        cursor.low = min(cursor.low, cursor.floor)
        while plan.pieces != 0 and plan.piece[plan.pieces].offset + plan.piece[plan.pieces].size > cursor.floor:
            plan.pieces -= 1        # the boundary has moved meanwhile
    return True


cdef uint32_t units_at(const segment_t* segment, uint32_t unit) noexcept nogil:
    """Units of the block, run or slab of the buddy tier that starts at a unit; 1 where none does any more."""
    cdef int state = segment.buddy.state[unit]
    cdef uint32_t tag
    if 0 < state < BUDDY_LIVE:
        return <uint32_t>1 << (state - 1)
    if state >= BUDDY_LIVE:
        return segment.buddy.entry[unit].role.live.units
    tag = segment.tag[(<size_t>unit << segment.min_block_shift) >> segment.granule_shift]
    if tag & TAG_TIER != TIER_SLAB:
        return 1
    return <uint32_t>max(segment.slabs.slab[tag >> TAG_INDEX_SHIFT].bytes >> segment.min_block_shift, <size_t>1)


cdef bint read_blocks(pool_t* pool, plan_t* plan, cursor_t* cursor, size_t* kept) noexcept nogil:
    cdef const segment_t* segment = &pool.segment
    cdef uint32_t at = find_again(segment, cursor), movable
    cdef const mid_block_t* block
    cdef int looked = 0
    while at != NO_MID and looked < SLICE:
        block = &segment.mid.block[at]
        movable = block.role.live.movable if block.state == MID_USED else <uint32_t>NO_MOVABLE
        if is_in_the_way(pool, block) and not note_movable(pool, plan, movable, block.offset, block.size, kept):
            note_fixed(plan, block.offset, block.size)
        cursor.offset = block.offset + block.size
        at = block.after
        cursor.block = at
        looked += 1
    return at != NO_MID


cdef inline bint is_in_the_way(const pool_t* pool, const mid_block_t* block) noexcept nogil:
    """Is it not free, or a capture's?"""
    return block.state != MID_FREE or owners_has(&pool.segment.captures, block.owner)


cdef uint32_t find_again(const segment_t* segment, const cursor_t* cursor) noexcept nogil:
    """The block where the reading goes on: blocks may have been cut and merged meanwhile."""
    cdef const mid_block_t* block
    cdef uint32_t at
    if 0 < cursor.block < segment.mid.made:
        block = &segment.mid.block[cursor.block]
        if block.state != MID_SPARE and block.offset == cursor.offset:
            return cursor.block
    at = block_near(segment, cursor.offset) if cursor.offset > segment.mid.start else segment.mid.first
    while at != NO_MID and segment.mid.block[at].offset < cursor.offset:
        at = segment.mid.block[at].after
    return at


cdef bint note_movable(pool_t* pool, plan_t* plan, uint32_t movable, uint32_t offset, uint32_t size,
                       size_t* kept) noexcept nogil:
    """Note a movable block, or count it where it cannot be moved now."""
    cdef const movable_t* record = movables_find(&pool.movables, movable)
    if record == NULL:
        return False
    if not can_move(pool, record):
        kept[0] += 1
        return False
    plan_add(plan, offset, size, movable, units_needed(pool, record.nbytes),
             log2_floor(record.alignment // MID_UNIT) if record.alignment > MID_UNIT else 0)
    return True


cdef bint can_move(const pool_t* pool, const movable_t* record) noexcept nogil:
    cdef const use_t* use = uses_find(&pool.uses, pool_offset(pool, record.ptr))
    cdef int owner
    if record.state != MOVABLE_RESTS or record.pins != 0 or record.refused == <uint32_t>pool.defrag.count:
        return False
    if record.alignment > REGION_PAGE and pool.segment.far_regions != 0:    # it is not that of offsets in all regions
        return False
    for owner in range(LEGACY, pool.order.streams if use != NULL else LEGACY):
        if owners_has(&use.owners, <owner_t>owner) and not is_reachable(&pool.order.stream[owner]):
            return False
    return is_reachable(&pool.order.stream[record.home])


cdef inline uint32_t units_needed(const pool_t* pool, size_t nbytes) noexcept nogil:
    return <uint32_t>(max(round_up(nbytes, MID_UNIT), pool.segment.granule) // MID_UNIT)


cdef void note_fixed(plan_t* plan, uint32_t offset, uint32_t size) noexcept nogil:
    """Neighbours that stay are one piece."""
    if plan.pieces != 0 and plan.piece[plan.pieces].movable == NO_MOVABLE:
        if plan.piece[plan.pieces].offset + plan.piece[plan.pieces].size == offset:
            plan.piece[plan.pieces].size += size
            return
    plan_add(plan, offset, size, NO_MOVABLE, 0, 0)


cdef bint is_reachable(const stream_t* stream) noexcept nogil:
    if stream.kind == STREAM_THREAD:
        return stream.id == this_thread()
    if stream.kind == STREAM_VOUCHED:
        return stream.fresh
    return stream.kind == STREAM_LEGACY or stream.kind == STREAM_HELD or stream.kind == STREAM_HANDLE


# Places

cdef bint layout_is_free(const pool_t* pool, uint32_t start, uint32_t units, const view_t* view,
                         wanting_t* wanting) noexcept nogil:
    cdef const segment_t* segment = &pool.segment
    cdef const mid_block_t* block
    cdef uint32_t at
    memset(wanting, 0, sizeof(wanting_t))
    if start < segment.mid.start or start + units > segment.mid.end:
        return False
    at = block_over(segment, start, units)
    while at != NO_MID and segment.mid.block[at].offset < start + units:
        block = &segment.mid.block[at]
        if is_in_the_way(pool, block):
            return False
        if not view_allows(view, block.owner, block.batch):
            wanting.batch = later_batch(wanting.batch, block.batch) if wanting.count != 0 else block.batch
            wanting.count += not owners_has(&wanting.owners, block.owner)
            owners_add(&wanting.owners, block.owner)
        at = block.after
    return True


cdef bint layout_take(pool_t* pool, uint32_t start, uint32_t units, const view_t* view, place_t* place) noexcept nogil:
    cdef segment_t* segment = &pool.segment
    cdef size_t offset = 0, used = 0
    cdef uint32_t at
    if start < segment.mid.start or start + units > segment.mid.end or not mid_reserve(&segment.mid, 2):
        return False
    at = mid_take_exact(&segment.mid, view, block_over(segment, start, units), start, units, MID_USED)
    if at == NO_MID:
        return False
    segment_use_block(segment, at, 0, &offset, &used)
    return segment_is_live(segment, offset, place)


cdef uint32_t block_over(const segment_t* segment, uint32_t start, uint32_t units) noexcept nogil:
    """The block of the mid tier in which a place begins.

    A place that is taken for a move mostly ends where a live block begins, whose tag is there to be looked at.
    """
    cdef uint32_t end = start + units, at = block_from(segment, end)
    if at != NO_MID:
        at = segment.mid.block[at].before
        while segment.mid.block[at].offset > start:
            at = segment.mid.block[at].before
        return at
    at = block_near(segment, start)
    while segment.mid.block[at].offset + segment.mid.block[at].size <= start:
        at = segment.mid.block[at].after
    return at


cdef uint32_t block_from(const segment_t* segment, uint32_t offset) noexcept nogil:
    """The live block, or the gap between two regions, that begins at an offset; NO_MID if there is none."""
    cdef uint32_t tag = segment.tag[(<size_t>offset * MID_UNIT) >> segment.granule_shift], at = segment.mid.gap
    if tag & TAG_TIER == TIER_MID and segment.mid.block[tag >> TAG_INDEX_SHIFT].offset == offset:
        return tag >> TAG_INDEX_SHIFT
    while at != NO_MID and segment.mid.block[at].offset < offset:
        at = segment.mid.block[at].role.gap.next
    return at if at != NO_MID and segment.mid.block[at].offset == offset else NO_MID


cdef uint32_t block_near(const segment_t* segment, uint32_t offset) noexcept nogil:
    """A block of the mid tier at or below an offset, by the tags: the next live one or slab, or else the first."""
    cdef size_t at = (<size_t>offset * MID_UNIT) >> segment.granule_shift
    cdef size_t low = (<size_t>segment.mid.start * MID_UNIT) >> segment.granule_shift
    cdef uint32_t block
    while at > low:
        block = named_by(segment, segment.tag[at])
        if block != NO_MID and segment.mid.block[block].offset <= offset:
            return block
        at -= 1
    return segment.mid.first


cdef inline uint32_t named_by(const segment_t* segment, uint32_t tag) noexcept nogil:
    if tag & TAG_TIER == TIER_MID:
        return tag >> TAG_INDEX_SHIFT
    return segment.slabs.slab[tag >> TAG_INDEX_SHIFT].block if tag & TAG_TIER == TIER_SLAB else <uint32_t>NO_MID
