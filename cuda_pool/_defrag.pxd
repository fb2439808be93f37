"""Passes that bring free memory together, by hand and by themselves."""

from cuda_pool._state cimport pool_t

# Free memory at one moment: bytes, and a number of blocks.
ctypedef struct room_t:
    size_t free
    size_t largest_free
    size_t free_blocks

ctypedef struct defrag_report_t:
    room_t before
    room_t after
    size_t moved_bytes
    size_t moved_blocks
    size_t moved_pages
    size_t kept_blocks              # movable ones that could not be moved when the pass ended
    bint completed                  # nothing was left to be done

# All of these are called without any lock and without the GIL, and ask the driver.

# Do everything, waiting for what is pending: a status. On an error every block is where its handle says.
cdef int defrag_by_hand(pool_t* pool, defrag_report_t* report) noexcept nogil
# Do what needs no wait, if a pass is due and none is under way.
cdef void defrag_if_due(pool_t* pool) noexcept nogil
# Make room for a request that found none: whether anything was moved.
cdef bint defrag_for(pool_t* pool, size_t nbytes, size_t alignment) noexcept nogil
# Let passes start by themselves: above so many free blocks, and every so many allocations; 0 is never.
cdef void defrag_set(pool_t* pool, size_t threshold, size_t interval) noexcept nogil

# The rest with `lock` held.

# Look whether a pass is due, after an allocation.
cdef void defrag_look(pool_t* pool) noexcept nogil


cdef inline void defrag_note(pool_t* pool) noexcept nogil:
    if pool.defrag.threshold != 0 or pool.defrag.interval != 0:
        defrag_look(pool)


cdef inline bint defrag_is_due(const pool_t* pool) noexcept nogil:
    """Should the next call that may ask the driver begin a pass? Not while anything is captured."""
    return pool.defrag.due and pool.order.captures == 0
