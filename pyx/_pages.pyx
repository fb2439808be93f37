"""The physical pages under a range of virtual addresses.

Bookkeeping only: what to map where is chosen in _remap, and the driver is called there.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from cuda_pool._bits cimport ctz64, popcount64
from cuda_pool._hostmem cimport host_map, host_unmap

cdef enum:
    PLACED_COLOUR = 3
    READY_COLOUR = 9
    HANDLE_COLOUR = 17
    SPARE_COLOUR = 25


cdef int pages_init(pages_t* pages, int shift, uint32_t count, uint32_t most) noexcept nogil:
    memset(pages, 0, sizeof(pages_t))
    pages.shift = shift
    pages.count = count
    pages.most = most
    pages.limit = most
    pages.placed = <uint64_t*>host_map(bitmap_bytes(pages), PLACED_COLOUR)
    pages.ready = <uint64_t*>host_map(bitmap_bytes(pages), READY_COLOUR)
    pages.handle = <uint64_t*>host_map(<size_t>count * sizeof(uint64_t), HANDLE_COLOUR)
    pages.spare = <uint64_t*>host_map(<size_t>most * sizeof(uint64_t), SPARE_COLOUR)
    if pages.placed == NULL or pages.ready == NULL or pages.handle == NULL or pages.spare == NULL:
        pages_destroy(pages)
        return 0
    return 1


cdef void pages_destroy(pages_t* pages) noexcept nogil:
    host_unmap(pages.placed, bitmap_bytes(pages), PLACED_COLOUR)
    host_unmap(pages.ready, bitmap_bytes(pages), READY_COLOUR)
    host_unmap(pages.handle, <size_t>pages.count * sizeof(uint64_t), HANDLE_COLOUR)
    host_unmap(pages.spare, <size_t>pages.most * sizeof(uint64_t), SPARE_COLOUR)
    memset(pages, 0, sizeof(pages_t))


cdef inline size_t bitmap_bytes(const pages_t* pages) noexcept nogil:
    return (<size_t>pages.count // 64 + 1) * sizeof(uint64_t)


cdef uint32_t pages_counted(const uint64_t* bits, uint32_t first, uint32_t end) noexcept nogil:
    cdef uint32_t word, last, total
    if first >= end:
        return 0
    word, last = first >> 6, (end - 1) >> 6
    if word == last:
        return popcount64(bits[word] & mask_from(first) & mask_below(end))
    total = popcount64(bits[word] & mask_from(first)) + popcount64(bits[last] & mask_below(end))
    for word in range(word + 1, last):
        total += popcount64(bits[word])
    return total


cdef uint32_t pages_next(const uint64_t* bits, uint32_t at, uint32_t end, bint set) noexcept nogil:
    cdef uint64_t word
    while at < end:
        word = (bits[at >> 6] if set else ~bits[at >> 6]) & mask_from(at)
        if word != 0:
            return min((at & ~<uint32_t>63) + ctz64(word), end)
        at = (at | 63) + 1
    return end


cdef inline uint64_t mask_from(uint32_t page) noexcept nogil:
    return ~<uint64_t>0 << (page & 63)


cdef inline uint64_t mask_below(uint32_t end) noexcept nogil:
    """The bits below `end` in the word of the page before it."""
    return ~<uint64_t>0 >> (-end & 63)


cdef inline void bit_set(uint64_t* bits, uint32_t page) noexcept nogil:
    bits[page >> 6] |= <uint64_t>1 << (page & 63)


cdef inline void bit_clear(uint64_t* bits, uint32_t page) noexcept nogil:
    bits[page >> 6] &= ~(<uint64_t>1 << (page & 63))


cdef void pages_created(pages_t* pages, uint64_t handle) noexcept nogil:
    pages.created += 1
    pages.spare[pages.spares] = handle
    pages.spares += 1


cdef uint64_t pages_spare(const pages_t* pages) noexcept nogil:
    return pages.spare[pages.spares - 1]


cdef void pages_placed(pages_t* pages, uint32_t page) noexcept nogil:
    pages.spares -= 1
    pages.handle[page] = pages.spare[pages.spares]
    bit_set(pages.placed, page)
    pages.placed_count += 1


cdef void pages_opened(pages_t* pages, uint32_t page) noexcept nogil:
    bit_set(pages.ready, page)
    pages.ready_count += 1


cdef void pages_suspended(pages_t* pages, uint32_t page) noexcept nogil:
    bit_clear(pages.ready, page)
    pages.ready_count -= 1


cdef void pages_taken(pages_t* pages, uint32_t page) noexcept nogil:
    bit_clear(pages.placed, page)
    pages.placed_count -= 1
    pages.spare[pages.spares] = pages.handle[page]
    pages.spares += 1


cdef void pages_released(pages_t* pages) noexcept nogil:
    pages.spares -= 1
    pages.created -= 1


cdef const char* pages_check(const pages_t* pages) noexcept nogil:
    cdef uint32_t word
    for word in range(pages.count // 64 + 1):
        if pages.ready[word] & ~pages.placed[word]:
            return b"pages: a page is ready that has no memory"
    if (pages_counted(pages.placed, 0, pages.count) != pages.placed_count
            or pages_counted(pages.ready, 0, pages.count) != pages.ready_count):
        return b"pages: a count differs from the bits that are set"
    if pages.created != pages.placed_count + pages.spares or pages.created > pages.most:
        return b"pages: created != placed + spare, or > most"
    return NULL
