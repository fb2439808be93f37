"""Where the regions of a pool lie: their addresses, and their places in the segment."""

from libc.stdint cimport uint32_t

cdef enum:
    REGION_SHIFT = 21
    REGION_PAGE = 1 << REGION_SHIFT     # bytes of the segment; alignment in the segment is that of addresses up to this
    REGIONS_MAX = 4096

cdef const size_t NO_OFFSET             # larger than any segment

# One allocation of the driver.
ctypedef struct region_t:
    void* start                     # as cudaMalloc returned it
    size_t nbytes                   # as it was asked for
    size_t address                  # its first byte that is a multiple of MID_UNIT
    size_t size                     # bytes from there on, a multiple of MID_UNIT
    size_t offset                   # its place in the segment

# Invariants, asserted by regions_check():
#   addresses ascend, and no two regions overlap;  no two have bytes in the same REGION_PAGE of the segment
#   shift[offset >> REGION_SHIFT] == address - offset in every page of a region
#   nbytes == sum of the regions' nbytes;  size == sum of their sizes
# Changed with all locks of the pool held. Neither array moves: regions_find() may be called without any, and then gives
# what has to be looked up again.
ctypedef struct regions_t:
    region_t* region
    uint32_t count
    size_t* shift                   # per page
    size_t pages
    size_t nbytes
    size_t size

cdef int regions_init(regions_t* regions, size_t span) noexcept nogil       # 0 when the host has no memory
cdef void regions_destroy(regions_t* regions) noexcept nogil
cdef void regions_add(regions_t* regions, const region_t* region) noexcept nogil
cdef void regions_remove(regions_t* regions, uint32_t index) noexcept nogil
# The offset of an address, or NO_OFFSET.
cdef size_t regions_find(const regions_t* regions, size_t address) noexcept nogil
cdef const char* regions_check(const regions_t* regions) noexcept nogil
