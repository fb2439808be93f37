"""Live blocks that were said to be used on further streams: a hash table from the block's offset to the streams."""

from libc.stdint cimport uint32_t

from cuda_pool._held cimport owners_t
from cuda_pool._owner cimport owner_t

ctypedef struct use_t:
    size_t offset                   # bytes from the start of the region, + 1: 0 is an empty place
    owners_t owners

# Open addressing, linear probing (Knuth, TAOCP vol. 3, 6.4, algorithms L and R).
# Invariants, asserted by uses_check():
#   count == places that are not empty;  count <= 3/4 of the places
#   between a use's home and its place no place is empty
ctypedef struct uses_t:
    use_t* use
    uint32_t places                 # a power of two, or 0
    uint32_t count

cdef void uses_destroy(uses_t* uses) noexcept nogil
# The streams of a block, or NULL.
cdef owners_t* uses_find(const uses_t* uses, size_t offset) noexcept nogil
cdef int uses_add(uses_t* uses, size_t offset, owner_t owner) noexcept nogil       # 0 when the host has no memory
cdef void uses_remove(uses_t* uses, size_t offset) noexcept nogil
cdef void uses_forget(uses_t* uses, owner_t owner) noexcept nogil                  # take a stream out of every use
cdef const char* uses_check(const uses_t* uses) noexcept nogil
