"""What is to be known of a few live blocks: a hash table from a block's offset to the streams that it waits for."""

from libc.stdint cimport uint32_t

from cuda_pool._owner cimport owner_t, owners_t

ctypedef struct use_t:
    size_t offset                   # bytes from the start of the region, + 1: 0 is an empty place
    owners_t owners                 # streams on which it was said to be used, too
    # Of a slot in another stream's slab that this stream freed and took again: what was queued by the end of `batch`.
    owner_t origin
    uint32_t batch

# Open addressing, linear probing (Knuth, TAOCP vol. 3, 6.4, algorithms L and R).
# Invariants, asserted by uses_check():
#   count == places that are not empty;  count <= 3/4 of the places
#   between a use's home and its place no place is empty
ctypedef struct uses_t:
    use_t* use                      # an entry moves when another is added or removed
    uint32_t places                 # a power of two, or 0
    uint32_t count                  # is looked at without the lock, too

cdef void uses_destroy(uses_t* uses) noexcept nogil
cdef use_t* uses_find(const uses_t* uses, size_t offset) noexcept nogil            # NULL if there is none
# The use of a block, a new one if there is none; NULL when the host has no memory.
cdef use_t* uses_of(uses_t* uses, size_t offset) noexcept nogil
cdef void uses_remove(uses_t* uses, size_t offset) noexcept nogil
# Take a stream out of every use, and put another one into its place, unless that is nobody.
cdef void uses_forget(uses_t* uses, owner_t owner, owner_t to) noexcept nogil
cdef void uses_settle(uses_t* uses, owner_t owner) noexcept nogil                  # its work up to now is done
cdef const char* uses_check(const uses_t* uses) noexcept nogil
