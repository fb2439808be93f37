"""Where the regions of a pool lie: their addresses, and their places in the segment.

An address is searched among the regions, by halves; a place leads to its region in one step, through a table with an
entry for each 2 MiB.
"""

from libc.stdint cimport uint32_t

from cuda_pool._hostmem cimport host_map, host_unmap
from cuda_pool._relaxed cimport get_size, get_u32, set_size, set_u32

cdef const size_t NO_OFFSET = <size_t>-1

cdef enum:
    REGIONS_COLOUR = 17
    SHIFT_COLOUR = 26


cdef int regions_init(regions_t* regions, size_t span) noexcept nogil:
    regions.count = 0
    regions.nbytes = 0
    regions.size = 0
    regions.pages = (span >> REGION_SHIFT) + 1
    regions.region = <region_t*>host_map((REGIONS_MAX + 1) * sizeof(region_t), REGIONS_COLOUR)
    regions.shift = <size_t*>host_map(regions.pages * sizeof(size_t), SHIFT_COLOUR)
    if regions.region == NULL or regions.shift == NULL:
        regions_destroy(regions)
        return 0
    return 1


cdef void regions_destroy(regions_t* regions) noexcept nogil:
    host_unmap(regions.region, (REGIONS_MAX + 1) * sizeof(region_t), REGIONS_COLOUR)
    host_unmap(regions.shift, regions.pages * sizeof(size_t), SHIFT_COLOUR)
    regions.region = NULL
    regions.shift = NULL
    regions.count = 0


cdef void regions_add(regions_t* regions, const region_t* region) noexcept nogil:
    cdef uint32_t at = regions.count
    cdef size_t page
    while at > 0 and regions.region[at - 1].address > region.address:
        region_copy(&regions.region[at], &regions.region[at - 1])
        at -= 1
    region_copy(&regions.region[at], region)
    set_u32(&regions.count, regions.count + 1)
    for page in range(region.offset >> REGION_SHIFT, (region.offset + region.size - 1 >> REGION_SHIFT) + 1):
        regions.shift[page] = region.address - region.offset
    regions.nbytes += region.nbytes
    regions.size += region.size


cdef void regions_remove(regions_t* regions, uint32_t index) noexcept nogil:
    cdef uint32_t at
    regions.nbytes -= regions.region[index].nbytes
    regions.size -= regions.region[index].size
    for at in range(index, regions.count - 1):
        region_copy(&regions.region[at], &regions.region[at + 1])
    set_u32(&regions.count, regions.count - 1)


cdef inline void region_copy(region_t* region, const region_t* source) noexcept nogil:
    """Word by word: what regions_find() looks at may be looked at meanwhile."""
    region.start = source.start
    region.nbytes = source.nbytes
    set_size(&region.address, source.address)
    set_size(&region.size, source.size)
    set_size(&region.offset, source.offset)


cdef size_t regions_find(const regions_t* regions, size_t address) noexcept nogil:
    cdef uint32_t low = 0, high = get_u32(&regions.count), middle
    cdef const region_t* region
    cdef size_t distance
    while low < high:
        middle = (low + high) // 2
        region = &regions.region[middle]
        distance = address - get_size(&region.address)
        if distance < get_size(&region.size):           # below the region it wraps round to a large number
            return get_size(&region.offset) + distance
        if address < get_size(&region.address):
            high = middle
        else:
            low = middle + 1
    return NO_OFFSET


cdef const char* regions_check(const regions_t* regions) noexcept nogil:
    cdef const region_t* region
    cdef size_t nbytes = 0, size = 0
    cdef uint32_t at
    for at in range(regions.count):
        region = &regions.region[at]
        nbytes += region.nbytes
        size += region.size
        if at > 0 and regions.region[at - 1].address + regions.region[at - 1].size > region.address:
            return b"regions: the addresses do not ascend, or two regions overlap"
        if not pages_check(regions, region):
            return b"regions: a page of the segment does not lead to the region that is there"
    if nbytes != regions.nbytes or size != regions.size:
        return b"regions: nbytes or size differs from the sum over the regions"
    return NULL


cdef bint pages_check(const regions_t* regions, const region_t* region) noexcept nogil:
    """Two regions in one page would need two different entries, since they do not overlap."""
    cdef size_t page
    for page in range(region.offset >> REGION_SHIFT, (region.offset + region.size - 1 >> REGION_SHIFT) + 1):
        if page >= regions.pages or regions.shift[page] != region.address - region.offset:
            return False
    return True
