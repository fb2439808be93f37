"""What is to be known of a few live blocks."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from cuda_pool._owner cimport NOBODY, owners_add, owners_discard, owners_has
from cuda_pool._relaxed cimport set_u32

cdef enum:
    PLACES_MIN = 64


cdef void uses_destroy(uses_t* uses) noexcept nogil:
    free(uses.use)
    uses.use = NULL
    uses.places = 0
    uses.count = 0


cdef use_t* uses_find(const uses_t* uses, size_t offset) noexcept nogil:
    cdef uint32_t at
    if uses.count == 0:
        return NULL
    at = place_of(uses, offset)
    return &uses.use[at] if uses.use[at].offset != 0 else NULL


cdef use_t* uses_of(uses_t* uses, size_t offset) noexcept nogil:
    cdef uint32_t at
    if <uint64_t>(uses.count + 1) * 4 > <uint64_t>uses.places * 3 and not enlarge(uses):
        return NULL
    at = place_of(uses, offset)
    if uses.use[at].offset == 0:
        uses.use[at].offset = offset + 1
        set_u32(&uses.count, uses.count + 1)
    return &uses.use[at]


cdef void uses_remove(uses_t* uses, size_t offset) noexcept nogil:
    """Empty a place, and fill it from behind with what could not be found beyond an empty one."""
    cdef uint32_t mask = uses.places - 1, hole = place_of(uses, offset), at = hole
    while True:
        at = (at + 1) & mask
        if uses.use[at].offset == 0:
            break
        if (at - home_of(uses, uses.use[at].offset - 1) & mask) >= (at - hole & mask):
            uses.use[hole] = uses.use[at]
            hole = at
    memset(&uses.use[hole], 0, sizeof(use_t))
    set_u32(&uses.count, uses.count - 1)


cdef void uses_forget(uses_t* uses, owner_t owner, owner_t to) noexcept nogil:
    cdef uint32_t at
    for at in range(uses.places):
        if owners_has(&uses.use[at].owners, owner):
            owners_discard(&uses.use[at].owners, owner)
            if to != NOBODY:
                owners_add(&uses.use[at].owners, to)
    uses_settle(uses, owner)


cdef void uses_settle(uses_t* uses, owner_t owner) noexcept nogil:
    cdef uint32_t at
    for at in range(uses.places):
        if uses.use[at].origin == owner:
            uses.use[at].origin = NOBODY


cdef inline uint32_t home_of(const uses_t* uses, size_t offset) noexcept nogil:
    return <uint32_t>((<uint64_t>offset >> 6) * 0x9E3779B97F4A7C15u >> 32) & (uses.places - 1)


cdef uint32_t place_of(const uses_t* uses, size_t offset) noexcept nogil:
    """Where a block is, or where it would be put."""
    cdef uint32_t at = home_of(uses, offset)
    while uses.use[at].offset != 0 and uses.use[at].offset != offset + 1:
        at = (at + 1) & (uses.places - 1)
    return at


cdef bint enlarge(uses_t* uses) noexcept nogil:
    cdef uses_t larger
    cdef uint32_t at
    larger.places = max(2 * uses.places, <uint32_t>PLACES_MIN)
    larger.count = uses.count
    larger.use = <use_t*>calloc(larger.places, sizeof(use_t))
    if larger.use == NULL:
        return False
    for at in range(uses.places):
        if uses.use[at].offset != 0:
            larger.use[place_of(&larger, uses.use[at].offset - 1)] = uses.use[at]
    free(uses.use)
    uses.use = larger.use
    uses.places = larger.places
    return True


cdef const char* uses_check(const uses_t* uses) noexcept nogil:
    cdef uint32_t at, count = 0
    for at in range(uses.places):
        if uses.use[at].offset == 0:
            continue
        count += 1
        if place_of(uses, uses.use[at].offset - 1) != at:
            return b"uses: a use is not where a search ends"
    if count != uses.count or <uint64_t>count * 4 > <uint64_t>uses.places * 3:
        return b"uses: count differs from the places in use"
    return NULL
