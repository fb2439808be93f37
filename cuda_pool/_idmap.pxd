"""Indices by 64-bit keys that lie in an array elsewhere."""

from libc.stdint cimport uint32_t, uint64_t

cdef const uint32_t ID_NONE = 0xFFFFFFFF

# Where the keys are: the key of index i is the uint64_t at first + i * stride.
ctypedef struct keys_t:
    const void* first
    size_t stride

# Open addressing with linear probing. A slot holds ID_NONE or an index of a key.
#   slots in use <= slot_count / 2; slot_count is 0 or a power of two; no two slots hold indices of equal keys
ctypedef struct id_map_t:
    uint32_t* slots
    size_t slot_count
    uint64_t seed           # of the hash; unknown to whoever chose the keys
    uint64_t factor         # another one, odd

cdef int id_map_init(id_map_t* ids) except -1
cdef void id_map_clear(id_map_t* ids) noexcept nogil

# The slot of a key: the one that holds its index, or the empty one where it belongs; NULL without host memory. `count`
# is the number of keys so far, and it is valid until the next call.
cdef uint32_t* id_map_slot(id_map_t* ids, keys_t keys, size_t count, uint64_t key) noexcept nogil
