"""Indices by 64-bit keys: an open-addressing hash table, whose seeded hash no chosen keys can fill badly."""

from libc.stdlib cimport free, malloc
from libc.string cimport memset

import os

cdef enum:
    SLOTS_MIN = 2048


cdef int id_map_init(id_map_t* ids) except -1:
    ids.slots = NULL
    ids.slot_count = 0
    ids.seed = int.from_bytes(os.urandom(8), "little")
    ids.factor = int.from_bytes(os.urandom(8), "little") | 1
    return 0


cdef void id_map_clear(id_map_t* ids) noexcept nogil:
    free(ids.slots)
    ids.slots = NULL
    ids.slot_count = 0


cdef uint32_t* id_map_slot(id_map_t* ids, keys_t keys, size_t count, uint64_t key) noexcept nogil:
    if 2 * (count + 1) > ids.slot_count and not grow(ids, keys, count):
        return NULL
    return find(ids, keys, key)


cdef bint grow(id_map_t* ids, keys_t keys, size_t count) noexcept nogil:
    """Double the table; of equal keys the last index stays, as it is the one that a slot was given last."""
    cdef size_t slot_count = ids.slot_count * 2 if ids.slot_count else SLOTS_MIN
    cdef uint32_t* slots = <uint32_t*>malloc(slot_count * sizeof(uint32_t))
    cdef uint32_t index
    if slots == NULL:
        return False
    memset(slots, 0xFF, slot_count * sizeof(uint32_t))
    free(ids.slots)
    ids.slots = slots
    ids.slot_count = slot_count
    for index in range(<uint32_t>count):
        find(ids, keys, key_at(keys, index))[0] = index
    return True


cdef uint32_t* find(const id_map_t* ids, keys_t keys, uint64_t key) noexcept nogil:
    cdef size_t mask = ids.slot_count - 1
    cdef size_t position = hashed(ids, key) & mask
    while ids.slots[position] != ID_NONE and key_at(keys, ids.slots[position]) != key:
        position = (position + 1) & mask
    return &ids.slots[position]


cdef inline uint64_t key_at(keys_t keys, uint32_t index) noexcept nogil:
    return (<const uint64_t*>(<const char*>keys.first + index * keys.stride))[0]


cdef inline uint64_t hashed(const id_map_t* ids, uint64_t key) noexcept nogil:
    # Addresses share their low bits and counters their high ones: every bit has to reach every other.
    # Without a secret, ids could be chosen to share a slot, and reading would take the square of their number.
    key ^= ids.seed
    key = (key ^ (key >> 32)) * ids.factor
    key = (key ^ (key >> 32)) * <uint64_t>0xD6E8FEB86659FD93
    return key ^ (key >> 32)
