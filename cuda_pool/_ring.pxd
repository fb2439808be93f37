"""A ring of notes that any thread fills, in an order that all agree on, and one thread empties.

Who will write a note takes a credit first, so that a place is sure, and then a ticket, which says which place and which
order. A ticket may lie unwritten for a while: the reader stops there.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from cuda_pool._lock cimport APART

cdef extern from "<semaphore.h>" nogil:
    ctypedef struct sem_t:
        pass
    int sem_init(sem_t*, int shared, unsigned value)
    int sem_destroy(sem_t*)
    int sem_post(sem_t*)

cdef extern from * nogil:
    """
    #define CUDA_POOL_RING_ADD(word, value) __atomic_fetch_add(word, value, __ATOMIC_SEQ_CST)
    #define CUDA_POOL_RING_GET(word) __atomic_load_n(word, __ATOMIC_SEQ_CST)
    #define CUDA_POOL_RING_SET(word, value) __atomic_store_n(word, value, __ATOMIC_SEQ_CST)
    #define CUDA_POOL_NOTE_GET(word) __atomic_load_n(word, __ATOMIC_ACQUIRE)
    #define CUDA_POOL_NOTE_SET(word, value) __atomic_store_n(word, value, __ATOMIC_RELEASE)
    """
    int64_t add_i64 "CUDA_POOL_RING_ADD"(int64_t*, int64_t)          # what it was before
    uint64_t add_u64 "CUDA_POOL_RING_ADD"(uint64_t*, uint64_t)
    int64_t see_i64 "CUDA_POOL_RING_GET"(const int64_t*)
    uint64_t see_u64 "CUDA_POOL_RING_GET"(const uint64_t*)
    uint32_t see_u32 "CUDA_POOL_RING_GET"(const uint32_t*)
    void put_u32 "CUDA_POOL_RING_SET"(uint32_t*, uint32_t)
    void put_u64 "CUDA_POOL_RING_SET"(uint64_t*, uint64_t)
    uint32_t note_state "CUDA_POOL_NOTE_GET"(const uint32_t*)
    void note_settle "CUDA_POOL_NOTE_SET"(uint32_t*, uint32_t)

cdef enum:
    RING_NOTES = 1 << 16        # 2 MiB

ctypedef uint32_t note_kind_t

cdef enum:                      # note_kind_t
    NOTE_OPEN = 0                   # not written yet
    NOTE_VOID                       # nothing happened
    NOTE_ALLOC
    NOTE_FREE

ctypedef struct note_t:
    uint64_t key                # of the block
    uint64_t size               # bytes that were asked for
    uint64_t stream
    uint32_t stack              # number of one, or 0
    note_kind_t kind            # written last

# Invariants:
#   tail <= head <= tail + RING_NOTES;  head - tail <= credits that are out <= RING_NOTES
ctypedef struct ring_t:
    note_t* note
    sem_t filled                # posted whenever half of it was filled, and by whoever finds it full
    uint64_t apart[APART]
    int64_t credits
    uint64_t apart_too[APART]
    uint64_t head               # tickets given out
    uint64_t apart_at_last[APART]
    uint64_t tail               # notes read: written by the reader only

cdef bint ring_init(ring_t* ring) noexcept nogil        # False when the host has no memory
cdef void ring_destroy(ring_t* ring) noexcept nogil
# Wait until the ring is posted, or some time has passed.
cdef void ring_wait(ring_t* ring, long milliseconds) noexcept nogil


cdef inline bint ring_take_credit(ring_t* ring) noexcept nogil:
    if add_i64(&ring.credits, -1) > 0:
        return True
    add_i64(&ring.credits, 1)
    return False


cdef inline void ring_give_credits(ring_t* ring, int64_t count) noexcept nogil:
    add_i64(&ring.credits, count)


cdef inline note_t* ring_ticket(ring_t* ring) noexcept nogil:
    """The place for the next note, for a holder of a credit."""
    cdef uint64_t ticket = add_u64(&ring.head, 1)
    if ticket % (RING_NOTES // 2) == RING_NOTES // 2 - 1:
        sem_post(&ring.filled)
    return &ring.note[ticket % RING_NOTES]
