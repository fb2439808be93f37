"""Mid tier: one range of coalescing blocks, best fit in O(log n) through a bitmap of tries."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from cuda_pool._owner cimport owner_t, view_t
from cuda_pool._pages cimport pages_missing, pages_t
from cuda_pool._side cimport SIDES

cdef extern from * nogil:
    """
    #define CUDA_POOL_NO_MID 0u
    #define CUDA_POOL_FREE_NODE 0x80000000u
    """
    const uint32_t NO_MID "CUDA_POOL_NO_MID"            # no block: record 0 is never used
    const uint32_t FREE_NODE "CUDA_POOL_FREE_NODE"      # bit of a node's bin, in the place of CACHED in a live block

cdef enum:
    MID_UNIT = 256                  # bytes
    MID_STEPS = 32                  # bins between a power of two and the next
    MID_BINS = 32 * MID_STEPS       # sizes have 32 bits
    MID_WORDS = 16                  # MID_BINS / 64
    MID_CANDIDATES = 16
    RECORD_GROUP = 16

ctypedef int mid_state_t

cdef enum:                      # mid_state_t
    MID_SPARE = 0
    MID_FREE
    MID_USED                        # serves a request
    MID_HELD                        # freed, and not to be reused yet
    MID_SLAB                        # is cut into slots
    MID_PAGING                      # is being given pages, for a request
    MID_GAP                         # no memory: what lies between two regions, see _gap
    MID_SHUT                        # a whole region that is about to become a gap

# A free block is a node of its bin's trie; one that serves a request knows what was asked for. A thread that frees one
# without the lock looks at that only, and must not take a node for it when another thread frees the block just then.
ctypedef struct mid_node_t:
    uint32_t parent
    uint32_t bin                    # and FREE_NODE
    uint32_t child[2]

ctypedef struct mid_live_t:
    uint64_t requested              # bytes
    uint32_t gap                    # units that were skipped above it so that it starts with a page
    uint32_t movable                # number of the record of a movable one, or 0

ctypedef struct mid_gap_t:
    uint32_t next                   # gap above
    uint32_t bias                   # of the region right above it: its address less its offset, in units

ctypedef union mid_role_t:
    mid_node_t node
    mid_live_t live
    mid_gap_t gap
    uint32_t slab                   # index of the slab, beside the same `live.gap`

ctypedef struct mid_block_t:
    uint32_t offset                 # units from the start of the region
    uint32_t size                   # units
    uint32_t before                 # physical neighbours
    uint32_t after
    uint8_t state
    uint8_t side                    # of the threads for whose blocks the record is used
    owner_t owner                   # of a free block; a live one keeps the owner and the batch of what it was cut from
    uint32_t batch                  # of the last free in it, unless it is nobody's
    mid_role_t role

# The bins of one owner's free blocks.
ctypedef struct mid_bins_t:
    uint64_t words                  # a bit for each word of `filled` that is not 0
    uint64_t filled[MID_WORDS]      # a bit for each bin
    uint32_t root[MID_BINS]

# The tier owns [start, end) of the region, in units; start moves down as it grows.
# Invariants, asserted by mid_check():
#   the blocks from `first` along `after` tile [start, end);  no two free neighbours have the same owner
#   used + sum(size of the free blocks) == end - start;  owned == sum(size of the free blocks that have an owner)
#   free_blocks == number of them
#   a free block says so (FREE_NODE), is in its owner's trie of bin_of(size), and agrees with its ancestor at depth d in
#   the first d key bits
#   gaps == sum(gap of the blocks that are not free) <= gaps_max
#   bit b of filled is set  <=>  root[b] is not NO_MID;  bit w of words is set  <=>  filled[w] != 0
#   bin == bin_of(size) in every node;  spares == sum(length of the chains of unused records)
# Records come in groups of RECORD_GROUP, which fill whole pairs of cache lines, and a group is of one side: to take or
# return a cached block a thread writes in its record, and should not find there what another one wrote.
ctypedef struct mid_t:
    uint32_t start
    uint32_t end
    uint32_t used
    uint32_t owned
    uint32_t free_blocks
    uint32_t first                  # block at `start`, NO_MID while the tier is empty
    uint32_t gap                    # lowest gap, NO_MID where there is none
    int owners                      # owners from here on have nothing
    mid_bins_t* bins                # per owner
    mid_block_t* block              # records, that never move: they are looked at without a lock, too
    uint32_t capacity               # records that there may be
    uint32_t made                   # records ever used
    uint32_t side                   # of the thread that is at work
    uint32_t spare[SIDES]           # chains of records that are not used, along `after`
    uint32_t spares                 # in all of them
    const pages_t* pages            # under the tier, NULL: all memory is always there
    uint32_t gaps
    uint32_t gaps_max
    int offset_spare                # leading bits that are 0 in every offset, left out of the keys
    bint good_fit                   # take the first block of the next bin instead of the best: for comparison

# At most `most` blocks, free or not. 0 when the host has no memory.
cdef int mid_init(mid_t* mid, uint32_t start, uint32_t end, size_t most) noexcept nogil
cdef void mid_destroy(mid_t* mid) noexcept nogil

# A free block of `owner` that holds `size` units from a multiple of 1 << `align` on (units, counted from -bias), or
# NO_MID. With align > 0 only the first MID_CANDIDATES that are large enough are looked at, then those that hold it
# anyhow. With pages, only those are looked at, and all of the place has to be ready.
cdef uint32_t mid_find(const mid_t* mid, owner_t owner, uint32_t size, int align, uint32_t bias) noexcept nogil
# The owner's free block with the smallest key of at least (size, offset), or NO_MID.
cdef uint32_t mid_find_key(const mid_t* mid, owner_t owner, uint32_t size, uint32_t offset) noexcept nogil
# The owner's free block that is [offset, offset + size), or NO_MID.
cdef uint32_t mid_find_exact(const mid_t* mid, owner_t owner, uint32_t size, uint32_t offset) noexcept nogil
# The same among the other owners' blocks that the view allows.
cdef uint32_t mid_find_allowed(const mid_t* mid, const view_t* view, uint32_t size, int align,
                               uint32_t bias) noexcept nogil
# The same among the runs of allowed neighbours, whoever owns them. What the request needs of the smallest that holds it
# is made one block of the asker's, to be taken at once. Takes time in proportion to the number of blocks; needs a
# record.
cdef uint32_t mid_join(mid_t* mid, const view_t* view, uint32_t size, int align, uint32_t bias) noexcept nogil
# With pages: the one of those with the fewest pages missing; or, of all blocks that are large enough, the one of whose
# own pages the fewest are needed. `owner` may have nobody's, too.
cdef uint32_t mid_find_fewest(const mid_t* mid, owner_t owner, uint32_t size, int align, uint32_t bias,
                              uint32_t* missing) noexcept nogil
cdef uint32_t mid_find_any(const mid_t* mid, owner_t owner, uint32_t size, int align, uint32_t bias,
                           uint32_t* needed) noexcept nogil
# Cut `size` units out of a found block, at its high end, and mark them. Needs two reserved records.
cdef uint32_t mid_take(mid_t* mid, uint32_t found, uint32_t size, int align, uint32_t bias,
                       mid_state_t state) noexcept nogil
# Take exactly `size` units from `start` on out of free blocks that the view allows: the block, as one of the asker's,
# or NO_MID. `near` is any block that starts at or below `start`. Needs two reserved records.
cdef uint32_t mid_take_exact(mid_t* mid, const view_t* view, uint32_t near, uint32_t start, uint32_t size,
                             mid_state_t state) noexcept nogil
# Make every free block that the view allows the asker's, who may be nobody.
cdef void mid_adopt(mid_t* mid, const view_t* view) noexcept nogil
# Give what `owner` has freed in batches up to `limit` to another owner, or to nobody.
cdef void mid_pass_on(mid_t* mid, owner_t owner, uint32_t limit, owner_t to, uint32_t batch) noexcept nogil
# Let the blocks that are not free, and were cut from memory of `owner`, be another's.
cdef void mid_rename(mid_t* mid, owner_t owner, owner_t to, uint32_t batch) noexcept nogil
# Would mid_join() find something?
cdef bint mid_could_join(const mid_t* mid, const view_t* view, uint32_t size, int align, uint32_t bias) noexcept nogil

# Grow by `size` units below start. Needs one reserved record.
cdef void mid_extend(mid_t* mid, uint32_t size, owner_t owner, uint32_t batch) noexcept nogil
cdef uint32_t mid_edge(const mid_t* mid, owner_t owner) noexcept nogil      # the owner's free units at start
cdef uint32_t mid_allowed_edge(const mid_t* mid, const view_t* view) noexcept nogil        # those that are allowed
cdef void mid_shrink(mid_t* mid, uint32_t size) noexcept nogil      # give up `size` units of the edge
cdef uint32_t mid_largest(const mid_t* mid, owner_t owner) noexcept nogil
cdef const char* mid_check(const mid_t* mid) noexcept nogil         # NULL, or the broken invariant

# Let there be unused records on `side`: a group that was never used, or, where there is none left, another side's.
cdef void mid_more_records(mid_t* mid) noexcept nogil


cdef inline bint mid_reserve(const mid_t* mid, uint32_t records) noexcept nogil:
    """Are there so many records for new blocks?"""
    return records <= mid.spares or records - mid.spares <= mid.capacity - mid.made


cdef inline bint mid_has_none(const mid_t* mid, owner_t owner) noexcept nogil:
    """Has the owner no free block?"""
    return mid.bins[owner].words == 0


cdef inline uint32_t mid_better(const mid_t* mid, uint32_t own, uint32_t other) noexcept nogil:
    """The smaller one of two blocks; the stream's own if they are equal."""
    if own == NO_MID or (other != NO_MID and mid.block[other].size < mid.block[own].size):
        return other
    return own


cdef inline bint run_fits(uint32_t offset, uint32_t length, uint32_t size, int align, uint32_t bias) noexcept nogil:
    """Do `length` units from `offset` on hold `size` of them at an aligned start?"""
    cdef uint32_t last = offset + length - size
    return last - offset >= ((last + bias) & ((<uint32_t>1 << align) - 1))


cdef inline uint32_t aligned_start(uint32_t start, int align, uint32_t bias) noexcept nogil:
    """Largest start' <= start with (start' + bias) % (1 << align) == 0; below 0 it wraps round."""
    return start - ((start + bias) & ((<uint32_t>1 << align) - 1))


cdef inline uint32_t mid_cut_start(const mid_t* mid, const mid_block_t* block, uint32_t size, int align,
                                   uint32_t bias) noexcept nogil:
    """Where mid_take() cuts: at the high end, but whole pages from the start of a page while there are few gaps, and at
    the low end if pages are there only.
    """
    cdef uint32_t start = aligned_start(block.offset + block.size - size, align, bias), low
    if mid.pages == NULL:
        return start
    start = whole_start(mid, block, size, start)
    if units_missing(mid, start, size) == 0:
        return start
    low = block.offset + (-(block.offset + bias) & ((<uint32_t>1 << align) - 1))
    return low if low < start and units_missing(mid, low, size) == 0 else start


cdef inline uint32_t whole_start(const mid_t* mid, const mid_block_t* block, uint32_t size,
                                 uint32_t start) noexcept nogil:
    """The start of the page below, for whole pages that have room there."""
    cdef uint32_t whole = start & ~(page_units(mid.pages) - 1)
    if size & (page_units(mid.pages) - 1) or whole < block.offset or mid.gaps + (start - whole) > mid.gaps_max:
        return start
    return whole


cdef inline uint32_t page_units(const pages_t* pages) noexcept nogil:
    return <uint32_t>((<size_t>1 << pages.shift) // MID_UNIT)


cdef inline uint32_t units_missing(const mid_t* mid, uint32_t start, uint32_t size) noexcept nogil:
    """How many pages under a range of units are not ready."""
    return pages_missing(mid.pages, <size_t>start * MID_UNIT, <size_t>size * MID_UNIT)
