"""Blocks that are freed and held: their reuse waits for several streams, or their slab is another stream's."""

from libc.stdint cimport uint32_t

from cuda_pool._owner cimport owners_t, view_t
from cuda_pool._segment cimport place_t
from cuda_pool._slab cimport NO_HELD

# A block that waits for the work that `owners` had queued by the end of `batch`.
ctypedef struct held_t:
    place_t place
    owners_t owners
    uint32_t batch
    uint32_t next                   # neighbours on its list
    uint32_t prev
    uint32_t* head                  # of that list

# Invariants, asserted by helds_check():
#   every record in use is on the list that its head names;  bytes == sum over them
ctypedef struct helds_t:
    held_t* held                    # records; an index is stable, the array may move
    uint32_t capacity
    uint32_t made
    uint32_t spare                  # chain of returned records, along `next`
    uint32_t mixed                  # head of the list of those that no single stream may reuse at once
    size_t bytes

cdef void helds_init(helds_t* helds) noexcept nogil
cdef void helds_destroy(helds_t* helds) noexcept nogil
# Make sure that the next helds_add() has a record; 0 when the host has no memory.
cdef int helds_reserve(helds_t* helds) noexcept nogil
# Put a block at the front of a list: that of a stream's slots of one class, or `mixed`.
cdef void helds_add(helds_t* helds, const place_t* place, const owners_t* owners, uint32_t batch,
                    uint32_t* head) noexcept nogil
cdef void helds_remove(helds_t* helds, uint32_t index) noexcept nogil
# Does the view allow a block that waits for all of these?
cdef bint owners_allowed(const owners_t* owners, uint32_t batch, const view_t* view) noexcept nogil
cdef const char* helds_check(const helds_t* helds) noexcept nogil
