"""Where a request gets its pages: a place for it, and the pages that can be taken for that from free memory."""

from libc.stdint cimport uint32_t

from cuda_pool._owner cimport owner_t
from cuda_pool._segment cimport segment_t, tier_t

# A place that is being given pages, for one request: a block of the mid tier or a run of the buddy tier that is set
# aside meanwhile. Pages to be taken are not ready from paging_begin() on.
ctypedef struct paging_t:
    tier_t tier                     # TIER_MID or TIER_BUDDY
    int size_class                  # of the slab that the place is to become; -1: it serves the request itself
    uint32_t index                  # of the block, or the first unit of the run
    uint32_t units                  # of the run
    size_t bytes                    # of the place
    uint32_t first                  # its pages: first to before end
    uint32_t end
    uint32_t* take                  # pages to be taken from elsewhere
    uint32_t takes
    uint32_t creates                # pieces of memory to be got from the driver
    uint32_t most                   # pages that may be taken at once

# Choose and set aside a place for a request that nothing ready serves. STATUS_OUT_OF_MEMORY, and nothing changed, where
# no place can have all its pages; STATUS_HOST_MEMORY.
cdef int paging_begin(segment_t* segment, owner_t owner, size_t nbytes, size_t alignment,
                      paging_t* paging) noexcept nogil
# Serve the request from the place, whose pages are all ready; or give the place back.
cdef int paging_end(segment_t* segment, owner_t owner, const paging_t* paging, size_t nbytes, size_t* offset,
                    size_t* used) noexcept nogil
cdef void paging_undo(segment_t* segment, const paging_t* paging) noexcept nogil
# Choose at most `most` pages of free memory, and the addresses where they go: the end of the place that the largest
# request would get that needs no more than there is, where `units` pages are lacking. Nothing is set aside but the
# pages that are taken. No units are lacking once all of that place has its pages, or nothing can be moved.
cdef int paging_gather(segment_t* segment, uint32_t most, paging_t* paging) noexcept nogil
cdef void paging_destroy(paging_t* paging) noexcept nogil
# Pages that no block touches and nobody may use at once, but for those from `first` to before `end`: at most `limit` of
# them are put into `pages` unless that is NULL, the farthest from where blocks are placed first. How many there are, or
# the limit.
cdef uint32_t paging_free_pages(const segment_t* segment, uint32_t first, uint32_t end, uint32_t limit,
                                uint32_t* pages) noexcept nogil
