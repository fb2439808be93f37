"""Host memory for the bookkeeping: zeroed, and paged in only where it is touched."""

from libc.stdint cimport uint32_t

cdef enum:
    CACHE_LINE = 64

# NULL when the host refuses. The start is staggered by `colour` cache lines: arrays that all start on a page
# boundary compete for the same sets of the first-level cache.
cdef void* host_map(size_t nbytes, int colour) noexcept nogil
cdef void host_unmap(void* start, size_t nbytes, int colour) noexcept nogil
# Let the memory of host_map() be zeros again that cost nothing.
cdef void host_clear(void* start, size_t nbytes) noexcept nogil
# Memory for free(), not zeroed; NULL when the host refuses.
cdef void* host_align(size_t alignment, size_t nbytes) noexcept nogil

# Grow a malloc'ed array of `size`-byte items to hold at least `wanted`; 0 when the host refuses, array unchanged.
cdef int host_grow(void** items, size_t size, uint32_t* capacity, uint32_t wanted) noexcept nogil
