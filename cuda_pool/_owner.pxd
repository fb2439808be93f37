"""Who may reuse free memory at once: nobody in particular, hence anyone, or the stream in whose order it was freed.

A stream that frees asynchronously is known by a small number, its owner index. What it frees carries that number and
the batch of the free: the number of events that the pool had recorded by then. The block is anyone's once an event that
was recorded on the owner later, and so covers the batch, is over.
"""

from libc.stdint cimport int32_t, uint16_t, uint32_t, uint64_t

ctypedef uint16_t owner_t

cdef enum:
    NOBODY = 0
    LEGACY = 1                      # the legacy default stream
    OWNERS = 256                    # indices below; one stream or capture each
    OWNER_WORDS = OWNERS >> 6       # a shift: of // Cython makes a function call, which is no constant in C
    BATCH_LAST = 0x7FFFFFFF         # no batch is later
    BATCH_RENEWED = 1 << 30         # from here on they are numbered anew as soon as all work is done

# What may be used by one that asks: memory of owner x if its batch is at most limit[x]. Batches count from 1.
ctypedef struct view_t:
    owner_t owner                   # who asks: all of its own memory may be used
    uint32_t batch                  # of what becomes its own
    uint32_t limit[OWNERS]

# A set of streams, a bit for each owner index.
ctypedef struct owners_t:
    uint64_t word[OWNER_WORDS]


cdef inline bint batch_within(uint32_t batch, uint32_t limit) noexcept nogil:
    """Is batch <= limit? They are less than 2**31 apart."""
    return <int32_t>(limit - batch) >= 0


cdef inline uint32_t later_batch(uint32_t one, uint32_t other) noexcept nogil:
    return one if batch_within(other, one) else other


cdef inline bint view_allows(const view_t* view, owner_t owner, uint32_t batch) noexcept nogil:
    return owner == NOBODY or owner == view.owner or batch_within(batch, view.limit[owner])


cdef inline void owners_add(owners_t* owners, owner_t owner) noexcept nogil:
    owners.word[owner >> 6] |= <uint64_t>1 << (owner & 63)


cdef inline void owners_discard(owners_t* owners, owner_t owner) noexcept nogil:
    owners.word[owner >> 6] &= ~(<uint64_t>1 << (owner & 63))


cdef inline bint owners_has(const owners_t* owners, owner_t owner) noexcept nogil:
    return owners.word[owner >> 6] >> (owner & 63) & 1


cdef inline bint owners_any(const owners_t* owners) noexcept nogil:
    cdef int at
    for at in range(OWNER_WORDS):
        if owners.word[at] != 0:
            return True
    return False
