"""The seats of a thread: found, made, stopped, and given back by whoever lets go last."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from cuda_pool._hostmem cimport CACHE_LINE, host_align
from cuda_pool._lock cimport cpu_pause, lock_acquire, lock_clear, lock_t, sched_yield
from cuda_pool._order cimport this_thread
from cuda_pool._relaxed cimport get_pointer, set_pointer, set_size, set_u32

# The list of the calling thread's seats is in this module only. A thread that ends, or the only one of a forked child,
# forgets its seats: in the child every other thread is gone, and no pool may be used.
cdef extern from * nogil:
    """
    #include <pthread.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    #ifdef __linux__
    #include <linux/membarrier.h>
    #endif
    static __thread void *cuda_pool_seats;
    static __thread int cuda_pool_ended;
    static pthread_key_t cuda_pool_seats_key;
    static void (*cuda_pool_forget)(void *);
    /* The thread sanitizer does not see how the C library hands the memory of these variables to the next thread. */
    __attribute__((no_sanitize_thread)) static void cuda_pool_thread_ends(void *seats) {
        (void)seats;
        cuda_pool_ended = 1;
        cuda_pool_forget(cuda_pool_seats);
        cuda_pool_seats = 0;
    }
    static void cuda_pool_child_starts(void) {
        cuda_pool_forget(cuda_pool_seats);
        cuda_pool_seats = 0;
    }
    static int cuda_pool_seats_begin(void (*forget)(void *)) {
        cuda_pool_forget = forget;
    #ifndef __SANITIZE_THREAD__
    #ifdef __linux__
        if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) != 0)
            return 0;
    #else
        return 0;
    #endif
    #endif
        return pthread_key_create(&cuda_pool_seats_key, cuda_pool_thread_ends) == 0
               && pthread_atfork(0, 0, cuda_pool_child_starts) == 0;
    }
    static void cuda_pool_barriers(void) {
    #ifdef __linux__
        syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
    #endif
    }
    static int cuda_pool_seats_set(void *seats) {
        if (cuda_pool_ended || pthread_setspecific(cuda_pool_seats_key, seats) != 0)
            return 0;
        cuda_pool_seats = seats;
        return 1;
    }
    static inline void *cuda_pool_seats_get(void) { return cuda_pool_seats; }
    #ifdef __SANITIZE_THREAD__
    #define CUDA_POOL_BUSY_IS_A_LOCK 1
    #else
    #define CUDA_POOL_BUSY_IS_A_LOCK 0
    #endif
    #define CUDA_POOL_LET_GO(word) __atomic_sub_fetch(word, 1, __ATOMIC_ACQ_REL)
    """
    bint seats_begin "cuda_pool_seats_begin"(void (*)(void*) noexcept nogil)
    const bint BUSY_IS_A_LOCK "CUDA_POOL_BUSY_IS_A_LOCK"
    void barriers "cuda_pool_barriers"()
    void* seats_get "cuda_pool_seats_get"()
    bint seats_set "cuda_pool_seats_set"(void*)
    uint32_t let_go "CUDA_POOL_LET_GO"(uint32_t*)

cdef enum:
    STOP_PAUSES = 64

cdef seat_t** (*find_place)(uint32_t) noexcept nogil


cdef seat_t* seat_make(void* pool, seat_t** place) noexcept nogil:
    cdef seat_t* seat
    if not can_sit:
        return NULL
    purge()
    seat = <seat_t*>host_align(2 * CACHE_LINE, seat_bytes())
    if seat == NULL:
        return NULL
    memset(seat, 0, seat_bytes())
    seat.pool = pool
    seat.gate = NULL                # opened by seats_go()
    seat.stopped = SEAT_STAYS
    seat.thread = this_thread()
    seat.system_thread = system_thread()
    seat.place = place
    seat.holders = 2
    seat.also = <seat_t*>seats_get()
    if not seats_set(seat):
        free(seat)
        return NULL
    place[0] = seat
    return seat


cdef inline size_t seat_bytes() noexcept nogil:
    """Whole lines: what lies behind it is another thread's."""
    return sizeof(seat_t) + 2 * CACHE_LINE - 1 & -2 * CACHE_LINE


cdef seat_t* seat_find(void* pool, seat_t** place) noexcept nogil:
    cdef seat_t* seat = <seat_t*>seats_get()
    while seat != NULL and get_pointer(<void* const*>&seat.pool) != pool:
        seat = seat.also
    if seat != NULL:
        place[0] = seat
    return seat


cdef seat_t** seat_place(uint32_t place) noexcept nogil:
    return find_place(place)


cdef void seats_are_found_by(seat_t** (*find)(uint32_t) noexcept nogil) noexcept nogil:
    global find_place
    find_place = find


cdef void purge() noexcept nogil:
    """Forget the seats whose pools let go of them."""
    cdef seat_t* seat = <seat_t*>seats_get()
    cdef seat_t* kept = NULL
    cdef seat_t* also
    while seat != NULL:
        also = seat.also
        if get_pointer(<void* const*>&seat.pool) != NULL:
            seat.also = kept
            kept = seat
        else:
            seat_forget(seat)
        seat = also
    seats_set(kept)


cdef void seats_forget(void* seats) noexcept nogil:
    """The thread ends: what its seats have is for whoever takes the pools' locks next."""
    cdef seat_t* seat = <seat_t*>seats
    cdef seat_t* also
    while seat != NULL:
        also = seat.also
        seat_forget(seat)
        seat = also


cdef void seat_forget(seat_t* seat) noexcept nogil:
    if seat.place[0] == seat:
        seat.place[0] = NULL
    set_size(&seat.system_thread, 0)         # a thread to come may have its number
    store_u32(&seat.left, 1)
    seat_release(seat)


cdef void seat_drop(seat_t* seat) noexcept nogil:
    set_pointer(&seat.gate, NULL)
    set_pointer(&seat.pool, NULL)
    seat_release(seat)


cdef inline void seat_release(seat_t* seat) noexcept nogil:
    if let_go(&seat.holders) == 0:
        free(seat)


cdef void seats_stop(seat_t* seats) noexcept nogil:
    cdef seat_t* seat = seats
    cdef uint64_t thread = this_thread()
    cdef bint others = False
    while seat != NULL:
        set_u32(&seat.stopped, SEAT_WAITS)
        set_pointer(&seat.gate, NULL)
        others = others or seat.thread != thread
        seat = seat.next
    if BUSY_IS_A_LOCK:
        lock_all(seats)
        return
    if others:
        barriers()
    while seats != NULL:
        seat_wait(seats)
        seats = seats.next


cdef void lock_all(seat_t* seat) noexcept nogil:
    while seat != NULL:
        lock_acquire(<lock_t*>&seat.busy)
        seat = seat.next


cdef inline void seat_wait(seat_t* seat) noexcept nogil:
    cdef int pauses = 0
    while load_u32(&seat.busy) != 0:
        pauses += 1
        cpu_pause()
        if pauses % STOP_PAUSES == 0:
            sched_yield()


cdef void seats_go(seat_t* seat, void* key) noexcept nogil:
    while seat != NULL:
        store_u32(&seat.stopped, SEAT_STAYS if key == NULL else SEAT_GOES)
        set_pointer(&seat.gate, key)
        if BUSY_IS_A_LOCK:
            lock_clear(&seat.busy)
        seat = seat.next


cdef bint can_sit = seats_begin(seats_forget)
