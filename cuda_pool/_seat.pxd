"""A seat: what one thread has of one pool, so that its calls meet other threads nowhere.

The thread says `busy`, looks whether it is `stopped`, and works on its caches if not. Whoever takes the pool's locks
says `stopped` first, and waits until the seat is not busy. Both write one word and then read the other, which needs a
barrier in between; the thread is spared its half: the other side makes the kernel run barriers on all processors of
the process (the asymmetric barrier of membarrier(2); Dice, Huang and Yang, "Asymmetric Dekker synchronization", 2001).
Where the kernel has none there are no seats. The thread sanitizer does not know it: in its build `busy` is a lock.
"""

from libc.stdint cimport uint32_t, uint64_t

from cuda_pool._bins cimport cache_t
from cuda_pool._gauge cimport gauge_fall, gauge_part, gauge_rise, gauge_t
from cuda_pool._likely cimport likely
from cuda_pool._lock cimport lock_clear
from cuda_pool._owner cimport OWNERS, owner_t
from cuda_pool._relaxed cimport add_size, get_pointer, get_size
from cuda_pool._tally cimport tally_t

cdef extern from * nogil:
    """
    #define CUDA_POOL_LOAD_U32(word) __atomic_load_n(word, __ATOMIC_ACQUIRE)
    #define CUDA_POOL_STORE_U32(word, value) __atomic_store_n(word, value, __ATOMIC_RELEASE)
    /* The compiler's half of the barrier; the relaxed store may still wait in the processor's store buffer. */
    static inline int cuda_pool_sit(unsigned *busy) {
    #ifdef __SANITIZE_THREAD__
        return __atomic_exchange_n(busy, 1u, __ATOMIC_ACQUIRE) == 0;
    #else
        __atomic_store_n(busy, 1u, __ATOMIC_RELAXED);
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        return 1;
    #endif
    }
    /* x86 keeps loads in order: there the comparison is one instruction. */
    static inline int cuda_pool_is_open(void *const *gate, const void *pool) {
    #if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
        if (*gate != pool)
            return 0;
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        return 1;
    #else
        return __atomic_load_n(gate, __ATOMIC_ACQUIRE) == pool;
    #endif
    }
    #include <pthread.h>
    /* glibc's and musl's pthread_self(), without the call. */
    static inline size_t cuda_pool_system_thread(void) {
    #if defined(__x86_64__)
        size_t self;
        __asm__("movq %%fs:0, %0" : "=r"(self));
        return self;
    #else
        return (size_t)pthread_self();
    #endif
    }
    #define CUDA_POOL_PLACES 8
    """
    const uint32_t PLACES "CUDA_POOL_PLACES"        # in a thread's table of seats
    uint32_t load_u32 "CUDA_POOL_LOAD_U32"(const uint32_t*)
    void store_u32 "CUDA_POOL_STORE_U32"(uint32_t*, uint32_t)
    bint sit "cuda_pool_sit"(unsigned*)
    bint is_open "cuda_pool_is_open"(void* const* gate, const void* pool)
    size_t system_thread "cuda_pool_system_thread"()

cdef enum:                      # seat_stop_t
    SEAT_GOES = 0
    SEAT_WAITS                      # until whoever holds all locks lets go of them
    SEAT_STAYS                      # while there is something that only those look at who take the locks

# Invariant, asserted by pool_check():  the seats' totals and the segment's add up to what is live
ctypedef struct seat_t:
    unsigned busy                   # 1 while the thread is at work on it
    void* gate                      # what opens it: `pool`, or its tracer; NULL while it is stopped
    void* pool                      # the pool_t, NULL once that let go
    uint32_t stopped                # a seat_stop_t, for whoever looks; the thread sees it at `gate`
    uint32_t mark                   # of what lies in its caches: never used twice in a pool
    uint32_t side                   # of the slots that it takes first, see slab_t
    owner_t recent                  # whose cache served last
    owner_t wanted                  # whose cache was missed last, or NOBODY
    size_t allocs                   # what its calls changed since the caches were emptied last
    size_t frees
    gauge_t used                    # bytes
    gauge_t requested
    tally_t blocks                  # of that, blocks of the mid tier
    cache_t* cache[OWNERS]          # of each stream on which it has allocated or freed; for the others one without room
    uint64_t thread
    size_t system_thread            # the system's number of it, 0 once it ends
    seat_t* next                    # of the pool
    seat_t* also                    # of the thread
    seat_t** place                  # where the thread finds it
    uint32_t holders                # the thread and the pool: who lets go last gives it back
    uint32_t left                   # the thread has ended
    bint strays                     # a slot in its caches was freed twice at one time, and so counted twice

# A new seat of the calling thread, which will be found at `place`; NULL when the host has no memory or the thread ends.
cdef seat_t* seat_make(void* pool, seat_t** place) noexcept nogil
# The calling thread's seat at a pool, if it has one that is not found at once; it is found from now on.
cdef seat_t* seat_find(void* pool, seat_t** place) noexcept nogil
# Where the calling thread finds its seat at a pool with that place, or another one. _calls says how: the table has to
# be in the module where most look at it.
cdef seat_t** seat_place(uint32_t place) noexcept nogil
cdef void seats_are_found_by(seat_t** (*find)(uint32_t) noexcept nogil) noexcept nogil
# The pool lets go of a seat.
cdef void seat_drop(seat_t* seat) noexcept nogil
# Stop all seats of a list, and wait until none is busy; then let them go on for whoever has the key, or, where that is
# NULL, stay stopped.
cdef void seats_stop(seat_t* seats) noexcept nogil
cdef void seats_go(seat_t* seats, void* key) noexcept nogil


cdef inline seat_t* seat_enter(seat_t* seat, const void* key) noexcept nogil:
    """Sit down at a seat if its gate opens to the key, as that of a stopped one does not; NULL otherwise."""
    if not likely(seat != NULL) or not sit(&seat.busy):
        return NULL
    if likely(is_open(&seat.gate, key)):
        return seat
    lock_clear(&seat.busy)
    return NULL


cdef inline seat_t* seat_here(const void* pool, uint32_t place) noexcept nogil:
    """The calling thread's seat at a pool, if it is found at once; or NULL."""
    cdef seat_t* seat = seat_place(place)[0]
    return seat if seat != NULL and get_pointer(<void* const*>&seat.pool) == pool else NULL


cdef inline uint32_t seat_side(const void* pool, uint32_t place) noexcept nogil:
    cdef const seat_t* seat = seat_here(pool, place)
    return seat.side if seat != NULL else 0


cdef inline void seat_leave(seat_t* seat) noexcept nogil:
    lock_clear(&seat.busy)


cdef inline void seat_rise(seat_t* seat, size_t used, size_t requested) noexcept nogil:
    """Count what was allocated at a seat."""
    add_size(&seat.allocs, 1)
    gauge_rise(&seat.used, used)
    gauge_rise(&seat.requested, requested)


cdef inline void seat_fall(seat_t* seat, size_t used, size_t requested) noexcept nogil:
    """Count what was freed at a seat."""
    add_size(&seat.frees, 1)
    gauge_fall(&seat.used, used)
    gauge_fall(&seat.requested, requested)


cdef inline tally_t seat_total(const seat_t* seat) noexcept nogil:
    cdef tally_t total
    total.allocs = get_size(&seat.allocs)
    total.frees = get_size(&seat.frees)
    total.used = gauge_part(&seat.used)
    total.requested = gauge_part(&seat.requested)
    return total
