"""Sums over a pool's memory at one moment: who has it, and where what is free lies.

Taken when an allocation fails, so it looks at slabs and not at their slots, and at a sample of the blocks where there
are many: what the sample says of sizes and streams is scaled to the totals, which are known.
"""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from cuda_pool._bins cimport CACHED
from cuda_pool._bits cimport log2_floor
from cuda_pool._buddy cimport BUDDY_LIVE, buddy_entry_t
from cuda_pool._hostmem cimport host_grow
from cuda_pool._locks cimport enter, leave
from cuda_pool._mid cimport MID_FREE, MID_UNIT, MID_USED, mid_block_t
from cuda_pool._order cimport (
    LEGACY, STREAM_CAPTURE, STREAM_GONE, STREAM_HANDLE, STREAM_HELD, STREAM_LEGACY, STREAM_THREAD, STREAM_VOUCHED)
from cuda_pool._owner cimport NOBODY
from cuda_pool._periods cimport periods_t
from cuda_pool._pool cimport pool_stats_locked
from cuda_pool._segment cimport TIER_BUDDY, TIER_MID, TIER_SLAB, segment_boundary, segment_t, segment_tally
from cuda_pool._slab cimport slab_t
from cuda_pool._state cimport REUSE_NEVER, REUSE_QUERY, REUSE_WAIT
from cuda_pool._status cimport STATUS_HOST_MEMORY, STATUS_OK
from cuda_pool._tally cimport tally_t

cdef enum:
    BINS = 512                      # sizes of a tier: log2, then three more bits

# 2**64 / golden ratio: its multiples are spread evenly, and have no short period.
cdef uint64_t GOLDEN = 0x9E3779B97F4A7C15

cdef dict TIER_NAMES = {TIER_SLAB: "slab", TIER_MID: "mid", TIER_BUDDY: "buddy"}
cdef dict REUSES = {REUSE_WAIT: "wait", REUSE_QUERY: "query", REUSE_NEVER: "never"}
cdef dict KINDS = {
    STREAM_LEGACY: "default", STREAM_THREAD: "per-thread default", STREAM_HANDLE: "handle", STREAM_VOUCHED: "object",
    STREAM_HELD: "held", STREAM_GONE: "gone", STREAM_CAPTURE: "capture",
}

# Where the holding of an owner, a tier and a size is, plus one: `width` entries for each owner.
ctypedef struct index_t:
    uint32_t* at
    size_t width

# What was seen of an upper tier.
ctypedef struct part_t:
    tier_t tier
    size_t first                    # its holdings are those from here on
    size_t pending[OWNERS]
    bint sampled


cdef void survey_destroy(survey_t* survey) noexcept nogil:
    free(survey.holding)
    survey.holding = NULL


cdef int survey_take(survey_t* survey, pool_t* pool, size_t looks) noexcept nogil:
    cdef index_t index
    cdef int status
    memset(survey, 0, sizeof(survey_t))
    status = enter(pool)
    if status != STATUS_OK:
        return status
    index.width = pool.segment.slabs.classes + 2 * BINS
    index.at = <uint32_t*>calloc(pool.order.streams * index.width, sizeof(uint32_t))
    if index.at != NULL:
        pool_stats_locked(pool, &survey.stats)
        survey_slabs(survey, &index, &pool.segment)
        survey_blocks(survey, &index, &pool.segment, looks)
        survey_runs(survey, &index, &pool.segment, looks)
        survey.pending[NOBODY] = pool.segment.held
        survey.free_blocks = pool.segment.mid.free_blocks + pool.segment.buddy.free_blocks
        survey.captures = pool.order.captures
        survey.history = pool.learn.history
        survey_streams(survey, pool)
    leave(pool)
    free(index.at)
    return STATUS_HOST_MEMORY if index.at == NULL or survey.lacks_memory else STATUS_OK


cdef void survey_streams(survey_t* survey, const pool_t* pool) noexcept nogil:
    cdef int owner
    for owner in range(LEGACY, pool.order.streams):
        survey.stream[owner].kind = pool.order.stream[owner].kind
        survey.stream[owner].handle = <uintptr_t>pool.order.stream[owner].handle


cdef void survey_slabs(survey_t* survey, index_t* index, const segment_t* segment) noexcept nogil:
    cdef const slab_t* slab
    cdef uint32_t record
    cdef size_t live
    for record in range(1, segment.slabs.made):
        slab = &segment.slabs.slab[record]
        if slab.live == NULL:
            continue
        live = slab.used - slab.held
        survey.slab_bytes += slab.bytes
        survey.slab_free += slab.bytes - <size_t>slab.used * slab.size
        if slab.batch != 0:
            survey.pending[slab.owner] += <size_t>(slab.slots - slab.used) * slab.size
        if live != 0:
            note(survey, index, TIER_SLAB, slab.owner, slab.size_class, live, live * slab.size, live * slab.size,
                 slab.size)


cdef void survey_blocks(survey_t* survey, index_t* index, const segment_t* segment, size_t looks) noexcept nogil:
    cdef part_t part
    cdef uint64_t count = segment.mid.made - 1 if segment.mid.made != 0 else 0, at
    part_begin(&part, survey, TIER_MID)
    part.sampled = looks != 0 and count > looks
    for at in range(looks if part.sampled else count):
        survey_block(survey, index, segment, &part,
                     1 + <uint32_t>((at * GOLDEN >> 32) * count >> 32 if part.sampled else at))
    part_end(&part, survey, segment, <size_t>segment.mid.owned * MID_UNIT)
    survey.mid_free = <size_t>(segment.mid.end - segment.mid.start - segment.mid.used) * MID_UNIT


cdef void survey_block(survey_t* survey, index_t* index, const segment_t* segment, part_t* part,
                       uint32_t record) noexcept nogil:
    cdef const mid_block_t* block = &segment.mid.block[record]
    cdef size_t requested
    if block.state == MID_FREE and block.owner != NOBODY:
        part.pending[block.owner] += <size_t>block.size * MID_UNIT
    elif block.state == MID_USED:
        requested = block.role.live.requested & ~CACHED
        note(survey, index, TIER_MID, block.owner, segment.slabs.classes + bin_of(requested), 1,
             <size_t>block.size * MID_UNIT, requested, requested)


cdef void survey_runs(survey_t* survey, index_t* index, const segment_t* segment, size_t looks) noexcept nogil:
    """A sample are those at the low end: where a run starts is known only from the one before."""
    cdef part_t part
    cdef uint32_t unit = 0
    cdef size_t steps = 0
    part_begin(&part, survey, TIER_BUDDY)
    while unit < segment_boundary(segment) and not part.sampled:
        unit += survey_run(survey, index, segment, &part, unit)
        steps += 1
        part.sampled = steps == looks
    part_end(&part, survey, segment, <size_t>segment.buddy.owned << segment.min_block_shift)
    survey.buddy_free = <size_t>(segment.buddy.size - segment.buddy.used) << segment.min_block_shift


cdef uint32_t survey_run(survey_t* survey, index_t* index, const segment_t* segment, part_t* part,
                         uint32_t unit) noexcept nogil:
    """Look at what starts at a unit of the buddy tier; how many units that is."""
    cdef int state = segment.buddy.state[unit]
    cdef const buddy_entry_t* entry = &segment.buddy.entry[unit]
    cdef size_t used, requested
    if state == 0:                  # inside a slab
        return 1
    if state < BUDDY_LIVE:
        part.pending[entry.owner] += segment.min_block << (state - 1)
        return <uint32_t>1 << (state - 1)
    if state == BUDDY_LIVE:
        used = <size_t>entry.role.live.units << segment.min_block_shift
        requested = used - entry.role.live.slack
        note(survey, index, TIER_BUDDY, entry.owner, segment.slabs.classes + BINS + bin_of(requested), 1, used,
             requested, requested)
    return entry.role.live.units


cdef void part_begin(part_t* part, const survey_t* survey, tier_t tier) noexcept nogil:
    memset(part, 0, sizeof(part_t))
    part.tier = tier
    part.first = survey.holdings


cdef void part_end(part_t* part, survey_t* survey, const segment_t* segment, size_t owned) noexcept nogil:
    """Add what is pending; where only a sample was looked at, let it stand for the whole tier."""
    cdef size_t seen = 0
    cdef int owner
    part.pending[NOBODY] = 0                    # what anyone may have is not pending
    for owner in range(OWNERS):
        seen += part.pending[owner]
    for owner in range(OWNERS):
        survey.pending[owner] += scaled(part.pending[owner], owned, seen) if part.sampled else part.pending[owner]
    if part.sampled:
        survey.sampled = True
        holdings_scale(survey, part.first, segment_tally(segment, part.tier))


cdef void holdings_scale(survey_t* survey, size_t first, tally_t total) noexcept nogil:
    cdef holding_t seen
    cdef holding_t* holding
    cdef size_t at
    memset(&seen, 0, sizeof(holding_t))
    for at in range(first, survey.holdings):
        seen.blocks += survey.holding[at].blocks
        seen.used += survey.holding[at].used
        seen.requested += survey.holding[at].requested
    for at in range(first, survey.holdings):
        holding = &survey.holding[at]
        holding.blocks = scaled(holding.blocks, total.allocs - total.frees, seen.blocks)
        holding.used = scaled(holding.used, total.used, seen.used)
        holding.requested = scaled(holding.requested, total.requested, seen.requested)


cdef inline size_t scaled(size_t part, size_t total, size_t seen) noexcept nogil:
    return <size_t>(<double>part * <double>total / <double>seen + 0.5) if seen != 0 else 0


cdef inline size_t bin_of(size_t nbytes) noexcept nogil:
    cdef int row = log2_floor(nbytes | 1)
    return row * 8 + ((nbytes >> (row - 3) if row >= 3 else nbytes << (3 - row)) & 7)


cdef void note(survey_t* survey, index_t* index, tier_t tier, owner_t owner, size_t column, size_t blocks, size_t used,
               size_t requested, size_t each) noexcept nogil:
    """Count blocks of the same size, `each` bytes."""
    cdef uint32_t* at = &index.at[owner * index.width + column]
    cdef holding_t* holding
    if at[0] == 0:
        if not make_room(survey):
            return
        survey.holdings += 1
        at[0] = <uint32_t>survey.holdings
        holding = &survey.holding[at[0] - 1]
        memset(holding, 0, sizeof(holding_t))
        holding.tier, holding.owner, holding.smallest = tier, owner, each
    holding = &survey.holding[at[0] - 1]
    holding.blocks += blocks
    holding.used += used
    holding.requested += requested
    holding.smallest = min(holding.smallest, each)
    holding.largest = max(holding.largest, each)


cdef bint make_room(survey_t* survey) noexcept nogil:
    if host_grow(<void**>&survey.holding, sizeof(holding_t), &survey.room, <uint32_t>survey.holdings + 1):
        return True
    survey.lacks_memory = True
    return False


# As values of Python

cdef dict survey_values(const survey_t* survey, pool_t* pool):
    cdef const segment_t* segment = &pool.segment
    cdef const pool_stats_t* stats = &survey.stats
    return {
        "capacity": stats.capacity, "reserved": stats.reserved, "used": stats.used, "live": stats.requested,
        "used_high": stats.used_high, "pending": stats.pending, "free": stats.free, "largest_free": stats.largest_free,
        "free_blocks": survey.free_blocks, "slab_bytes": survey.slab_bytes, "slab_free": survey.slab_free,
        "tier_free": {"slab": survey.slab_free, "mid": survey.mid_free, "buddy": survey.buddy_free},
        "alloc_count": stats.alloc_count, "free_count": stats.free_count, "captures": survey.captures,
        "sampled": bool(survey.sampled),
        "backing": "malloc" if segment.pages.shift == 0 else "virtual", "grows": bool(pool.grows),
        "reuse": REUSES[pool.reuse],
        "settings": {"slab_max": segment.slabs.max, "mid_max": segment.mid_max, "min_block": segment.min_block},
        "tiers": {name: tally_values(&stats.tier[tier]) for tier, name in TIER_NAMES.items()},
        "holders": holders_of(survey), "pending_on": pending_of(survey),
        "periods": periods_of(&survey.history),
    }


cdef dict tally_values(const tally_t* tally):
    return {"blocks": tally.allocs - tally.frees, "used": tally.used, "requested": tally.requested}


cdef list holders_of(const survey_t* survey):
    holders = []
    cdef const holding_t* holding
    cdef size_t at
    for at in range(survey.holdings):
        holding = &survey.holding[at]
        holders.append({"tier": TIER_NAMES[holding.tier], "stream": stream_name(survey, holding.owner),
                        "blocks": holding.blocks, "used": holding.used, "requested": holding.requested,
                        "smallest": holding.smallest, "largest": holding.largest})
    return holders


cdef list periods_of(const periods_t* history):
    cdef int at
    return [(history.period[at].allocs, history.period[at].peak, history.period[at].trough)
            for at in range(history.count)]


cdef list pending_of(const survey_t* survey):
    cdef int owner
    return [{"stream": stream_name(survey, <owner_t>owner), "used": survey.pending[owner]}
            for owner in range(OWNERS) if survey.pending[owner] != 0]


cdef object stream_name(const survey_t* survey, owner_t owner):
    if owner == NOBODY:
        return None
    kind = KINDS.get(survey.stream[owner].kind, "gone")
    if kind in ("default", "per-thread default"):
        return kind
    return f"{kind} 0x{survey.stream[owner].handle:x}"
