"""The physical pages under a range of virtual addresses: which of its pages have memory, and what memory is spare."""

from libc.stdint cimport uint32_t, uint64_t

# A page is the granularity in which the driver maps memory; it is in one of three states:
#   empty    an address without memory
#   placed   memory is mapped there, and is not to be used: not accessible yet, or about to be taken away
#   ready    placed, and used like any memory
# Each piece of memory is one page large and has one handle, so that any of it can go anywhere.
# Invariants, asserted by pages_check(); the second holds while no page is on its way:
#   ready is a subset of placed;  ready_count, placed_count == bits set
#   created == placed_count + spares <= most
ctypedef struct pages_t:
    int shift                       # log2 of the bytes of a page
    uint32_t count                  # of the range
    uint32_t most                   # pieces of memory that there may be
    uint32_t limit                  # and that there may be after the call that is under way
    uint32_t created                # pieces that the driver gave and has not got back
    uint32_t placed_count
    uint32_t ready_count
    uint64_t* placed                # a bit per page
    uint64_t* ready
    uint64_t* handle                # per page: of the memory that is placed there
    uint64_t* spare                 # stack of the handles of memory that is placed nowhere
    uint32_t spares

cdef int pages_init(pages_t* pages, int shift, uint32_t count, uint32_t most) noexcept nogil    # 0: no host memory
cdef void pages_destroy(pages_t* pages) noexcept nogil
# How many pages from `first` to before `end` are set in a bitmap.
cdef uint32_t pages_counted(const uint64_t* bits, uint32_t first, uint32_t end) noexcept nogil
# The first page from `at` on, but before `end`, that is set, or not set, in a bitmap; `end` if there is none.
cdef uint32_t pages_next(const uint64_t* bits, uint32_t at, uint32_t end, bint set) noexcept nogil

# The ways of a page. Each step is taken after the driver call that it stands for has succeeded, but pages_suspended(),
# which comes before.
cdef void pages_created(pages_t* pages, uint64_t handle) noexcept nogil         # it is spare
cdef uint64_t pages_spare(const pages_t* pages) noexcept nogil                  # the next one to be used; there is one
cdef void pages_placed(pages_t* pages, uint32_t page) noexcept nogil            # that one is there now
cdef void pages_opened(pages_t* pages, uint32_t page) noexcept nogil            # it can be used
cdef void pages_suspended(pages_t* pages, uint32_t page) noexcept nogil         # it must not be used any more
cdef void pages_taken(pages_t* pages, uint32_t page) noexcept nogil             # its memory is spare
cdef void pages_released(pages_t* pages) noexcept nogil                         # the spare one is the driver's again
cdef const char* pages_check(const pages_t* pages) noexcept nogil


cdef inline bint pages_has(const uint64_t* bits, uint32_t page) noexcept nogil:
    return bits[page >> 6] >> (page & 63) & 1


cdef inline uint32_t pages_first(const pages_t* pages, size_t offset) noexcept nogil:
    """The page of an offset."""
    return <uint32_t>(offset >> pages.shift)


cdef inline uint32_t pages_end(const pages_t* pages, size_t end) noexcept nogil:
    """The page behind the last one of a range that ends at an offset."""
    return <uint32_t>((end - 1 >> pages.shift) + 1)


cdef inline uint32_t pages_missing(const pages_t* pages, size_t offset, size_t nbytes) noexcept nogil:
    """How many pages under a range are not ready."""
    cdef uint32_t first = pages_first(pages, offset), end = pages_end(pages, offset + nbytes)
    if end - first == 1:
        return 1 - pages_has(pages.ready, first)
    return end - first - pages_counted(pages.ready, first, end)
