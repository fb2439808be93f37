"""A heap: what guards the slabs of one owner, so that threads on different streams do not wait for each other."""

from libc.stdint cimport uint64_t

from cuda_pool._lock cimport lock_t
from cuda_pool._relaxed cimport get_size, set_size

cdef enum:
    HEAP_PADDING = 7                # words that make a heap two cache lines: one fetches its neighbour, too

# Blocks that were allocated and freed, and what those that are live have in bytes. Written under one lock, read by
# anyone for sums.
ctypedef struct tally_t:
    size_t allocs
    size_t frees
    size_t used
    size_t requested

# Invariant, asserted by segment_check():  tally == that of the live slots in the owner's slabs
ctypedef struct heap_t:
    lock_t lock
    tally_t tally
    size_t used_high                # bytes: of the whole segment, as far as it was seen from here
    size_t requested_high
    size_t unmarked                 # bytes freed asynchronously, and not counted in the stream's record yet
    uint64_t padding[HEAP_PADDING]


cdef inline void tally_enter(tally_t* tally, size_t used, size_t requested) noexcept nogil:
    set_size(&tally.allocs, tally.allocs + 1)
    set_size(&tally.used, tally.used + used)
    set_size(&tally.requested, tally.requested + requested)


cdef inline void tally_leave(tally_t* tally, size_t used, size_t requested) noexcept nogil:
    set_size(&tally.frees, tally.frees + 1)
    set_size(&tally.used, tally.used - used)
    set_size(&tally.requested, tally.requested - requested)


cdef inline void tally_add(tally_t* total, const tally_t* tally) noexcept nogil:
    total.allocs += get_size(&tally.allocs)
    total.frees += get_size(&tally.frees)
    total.used += get_size(&tally.used)
    total.requested += get_size(&tally.requested)
