"""Mid tier: one range of coalescing blocks, best fit in O(log n) through a two-level bitmap of tries."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef const uint32_t NO_MID          # no block: record 0 is never used

cdef enum:
    MID_UNIT = 256                  # bytes
    MID_ROWS = 32                   # bins: log2(size), then three more bits of it
    MID_COLUMNS = 8
    MID_CANDIDATES = 16

ctypedef int mid_state_t

cdef enum:                      # mid_state_t
    MID_SPARE = 0
    MID_FREE
    MID_USED                        # serves a request
    MID_SLAB                        # is cut into slots

# A free block is a node of its bin's trie; one that serves a request knows what was asked for.
ctypedef struct mid_node_t:
    uint32_t parent
    uint32_t child[2]

ctypedef union mid_role_t:
    mid_node_t node
    uint64_t requested              # bytes
    uint32_t slab                   # index of the slab

ctypedef struct mid_block_t:
    uint32_t offset                 # units from the start of the region
    uint32_t size                   # units
    uint32_t before                 # physical neighbours
    uint32_t after
    uint32_t state
    mid_role_t role

# The tier owns [start, end) of the region, in units; start moves down as it grows.
# Invariants, asserted by mid_check():
#   the blocks from `first` along `after` tile [start, end);  no two free ones are neighbours
#   used + sum(size of the free blocks) == end - start
#   a free block is in the trie of bin_of(size), and agrees with its ancestor at depth d in the first d key bits
#   bit c of columns[r] is set  <=>  root[r][c] is not empty;  bit r of rows is set  <=>  columns[r] != 0
ctypedef struct mid_t:
    uint32_t start
    uint32_t end
    uint32_t used
    uint32_t first                  # block at `start`, NO_MID while the tier is empty
    uint32_t rows
    uint8_t columns[MID_ROWS]
    uint32_t root[MID_ROWS][MID_COLUMNS]
    mid_block_t* block              # records; an index is stable, the array may move
    uint32_t capacity               # records that the array holds
    uint32_t made                   # records ever used
    uint32_t spare                  # chain of returned records, along `after`
    uint32_t spares
    int offset_spare                # leading bits that are 0 in every offset, left out of the keys
    bint good_fit                   # take the first block of the next bin instead of the best: for comparison

cdef int mid_init(mid_t* mid, uint32_t start, uint32_t end) noexcept nogil      # 0 when the host has no memory
cdef void mid_destroy(mid_t* mid) noexcept nogil
cdef int mid_reserve(mid_t* mid, uint32_t records) noexcept nogil               # 0 when the host has no memory

# A free block that holds `size` units from a multiple of 1 << `align` on (units, counted from -bias), or NO_MID. With
# align > 0 only the first MID_CANDIDATES that are large enough are looked at, then those that hold it anyhow.
cdef uint32_t mid_find(const mid_t* mid, uint32_t size, int align, uint32_t bias) noexcept nogil
# Cut `size` units out of a found block, at its high end, and mark them. Needs two reserved records.
cdef uint32_t mid_take(mid_t* mid, uint32_t found, uint32_t size, int align, uint32_t bias,
                       mid_state_t state) noexcept nogil
cdef void mid_free(mid_t* mid, uint32_t index) noexcept nogil

# Grow by `size` units below start. Needs one reserved record.
cdef void mid_extend(mid_t* mid, uint32_t size) noexcept nogil
cdef uint32_t mid_edge(const mid_t* mid) noexcept nogil             # free units at start
cdef void mid_shrink(mid_t* mid, uint32_t size) noexcept nogil      # give up `size` units of the edge
cdef uint32_t mid_largest(const mid_t* mid) noexcept nogil
cdef const char* mid_check(const mid_t* mid) noexcept nogil         # NULL, or the broken invariant

cdef inline uint32_t aligned_start(uint32_t start, int align, uint32_t bias) noexcept nogil:
    """Largest start' <= start with (start' + bias) % (1 << align) == 0; below 0 it wraps round."""
    return start - ((start + bias) & ((<uint32_t>1 << align) - 1))
