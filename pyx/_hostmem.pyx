"""Host memory for the bookkeeping: zeroed, and paged in only where it is touched."""

from libc.stdint cimport uint32_t
from libc.stdlib cimport realloc
from posix.stdlib cimport posix_memalign
from libc.string cimport memset

cdef extern from "<sys/mman.h>" nogil:
    enum: PROT_READ
    enum: PROT_WRITE
    enum: MAP_PRIVATE
    enum: MAP_ANONYMOUS
    enum: MAP_NORESERVE
    void* MAP_FAILED
    void* mmap(void*, size_t, int, int, int, long)
    enum: MADV_DONTNEED
    int munmap(void*, size_t)
    int madvise(void*, size_t, int)

cdef enum:
    HOST_PAGE = 4096


cdef void* host_map(size_t nbytes, int colour) noexcept nogil:
    cdef void* start = mmap(NULL, nbytes + colour * CACHE_LINE, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    return NULL if start == MAP_FAILED else <char*>start + colour * CACHE_LINE


cdef void host_unmap(void* start, size_t nbytes, int colour) noexcept nogil:
    if start != NULL:
        munmap(<char*>start - colour * CACHE_LINE, nbytes + colour * CACHE_LINE)


cdef void host_clear(void* start, size_t nbytes) noexcept nogil:
    cdef size_t low = <size_t>start, end = low + nbytes, first = low + HOST_PAGE - 1 & -HOST_PAGE
    if start == NULL:
        return
    if first >= end or madvise(<void*>first, end - first, MADV_DONTNEED) != 0:
        first = end
    memset(start, 0, first - low)


cdef void* host_align(size_t alignment, size_t nbytes) noexcept nogil:
    cdef void* start = NULL
    return start if posix_memalign(&start, alignment, nbytes) == 0 else NULL


cdef int host_grow(void** items, size_t size, uint32_t* capacity, uint32_t wanted) noexcept nogil:
    cdef size_t grown = max(<size_t>64, 2 * <size_t>capacity[0])
    cdef void* moved
    if wanted <= capacity[0]:
        return 1
    grown = max(grown, <size_t>wanted)
    moved = realloc(items[0], grown * size)
    if moved == NULL:
        return 0
    memset(<char*>moved + capacity[0] * size, 0, (grown - capacity[0]) * size)
    items[0] = moved
    capacity[0] = <uint32_t>grown
    return 1
