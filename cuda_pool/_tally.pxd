"""Sums over blocks: what was allocated and freed, and what those that are live have in bytes."""

from cuda_pool._relaxed cimport add_size, get_size

# Written under one lock, or by one thread, and read by anyone. In parts of a sum the bytes may be below 0: they wrap.
ctypedef struct tally_t:
    size_t allocs
    size_t frees
    size_t used
    size_t requested


cdef inline void tally_enter(tally_t* tally, size_t used, size_t requested) noexcept nogil:
    add_size(&tally.allocs, 1)
    add_size(&tally.used, used)
    add_size(&tally.requested, requested)


cdef inline void tally_leave(tally_t* tally, size_t used, size_t requested) noexcept nogil:
    add_size(&tally.frees, 1)
    add_size(&tally.used, 0 - used)
    add_size(&tally.requested, 0 - requested)


cdef inline void tally_add(tally_t* total, const tally_t* tally) noexcept nogil:
    add_size(&total.allocs, get_size(&tally.allocs))
    add_size(&total.frees, get_size(&tally.frees))
    add_size(&total.used, get_size(&tally.used))
    add_size(&total.requested, get_size(&tally.requested))


cdef inline void tally_subtract(tally_t* total, const tally_t* tally) noexcept nogil:
    add_size(&total.allocs, 0 - get_size(&tally.allocs))
    add_size(&total.frees, 0 - get_size(&tally.frees))
    add_size(&total.used, 0 - get_size(&tally.used))
    add_size(&total.requested, 0 - get_size(&tally.requested))
