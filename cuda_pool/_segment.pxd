"""A segment: one region from the driver, served by the three tiers in offsets from its start."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from cuda_pool._buddy cimport buddy_t
from cuda_pool._mid cimport mid_t
from cuda_pool._slab cimport slabs_t

# What a segment is made with; bytes. cuda_pool.settings derives it from the arguments of Pool.
ctypedef struct settings_t:
    size_t mid_max                  # larger requests go to the buddy tier first
    size_t min_block                # unit of the buddy tier, a power of two
    size_t growth_step              # by which the mid tier grows while it can, a power of two
    size_t granule                  # unit of the address map, a power of two <= min_block
    const size_t* size_classes      # ascending
    int classes
    bint colouring
    bint good_fit

ctypedef int tier_t

cdef enum:                      # tier_t
    TIER_NONE = 0
    TIER_SLAB
    TIER_MID
    TIER_BUDDY
    TIERS

# Live blocks of one tier; bytes.
ctypedef struct tier_stats_t:
    size_t blocks
    size_t used
    size_t requested

# A live block, found by its offset.
ctypedef struct place_t:
    tier_t tier
    uint32_t index                  # of the slab, of the mid block, or the first unit of the buddy run
    uint32_t slot                   # slab tier only
    size_t used                     # bytes
    size_t requested                # bytes

# The buddy tier grows from the low end and owns [0, mid.start); the mid tier owns [mid.start, size) and takes units
# from the buddy tier's upper end. Slabs are blocks of the mid tier; when that cannot grow, of the buddy tier.
# Invariants, asserted by segment_check():
#   buddy.used units == live runs + slabs in runs + units above mid.start
#   mid.used == live mid blocks + slabs in mid blocks
#   tag[offset / granule] of a live block's start, and of every granule of a slab, names it; all others are 0
#   per tier: requested <= used, and used == sum over the tier's live blocks
ctypedef struct segment_t:
    size_t size                     # bytes, a multiple of MID_UNIT
    size_t mid_max
    size_t min_block
    size_t growth_step
    size_t granule
    int granule_shift
    int min_block_shift
    uint32_t bias                   # the region's address in MID_UNITs, so that alignment is that of addresses
    size_t slot_alignment           # largest alignment that slots can have
    uint32_t* tag                   # per granule: index << 2 | tier_t, or 0
    size_t granules
    buddy_t buddy
    mid_t mid
    slabs_t slabs
    tier_stats_t tier[TIERS]

cdef int segment_init(segment_t* segment, size_t address, size_t size, const settings_t* settings) noexcept nogil
cdef void segment_destroy(segment_t* segment) noexcept nogil
# 0, STATUS_OUT_OF_MEMORY or STATUS_HOST_MEMORY. `alignment` is a power of two.
cdef int segment_alloc(segment_t* segment, size_t nbytes, size_t alignment, size_t* offset, size_t* used) noexcept nogil
# 0, STATUS_INTERIOR_POINTER or STATUS_FREED_POINTER, for an offset inside the segment.
cdef int segment_find(const segment_t* segment, size_t offset, place_t* place) noexcept nogil
cdef void segment_free(segment_t* segment, const place_t* place) noexcept nogil
cdef size_t segment_largest_free(const segment_t* segment) noexcept nogil
cdef size_t segment_metadata(const segment_t* segment) noexcept nogil
cdef const char* segment_check(const segment_t* segment) noexcept nogil
