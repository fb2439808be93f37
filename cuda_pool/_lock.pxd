"""A spinlock that yields. Its critical sections are shorter than a system call, but for check() and pool_t.slow."""

cdef extern from * nogil:
    """
    #include <sched.h>
    #if defined(__x86_64__) || defined(__i386__)
    #define CUDA_POOL_PAUSE() __builtin_ia32_pause()
    #elif defined(__aarch64__)
    #define CUDA_POOL_PAUSE() __asm__ volatile("yield")
    #else
    #define CUDA_POOL_PAUSE() ((void)0)
    #endif
    static inline int cuda_pool_lock_try(volatile unsigned *word) {
        return __atomic_exchange_n(word, 1u, __ATOMIC_ACQUIRE) == 0;
    }
    static inline int cuda_pool_lock_seems_free(volatile unsigned *word) {
        return __atomic_load_n(word, __ATOMIC_RELAXED) == 0;
    }
    static inline void cuda_pool_lock_clear(volatile unsigned *word) {
        __atomic_store_n(word, 0u, __ATOMIC_RELEASE);
    }
    static inline void cuda_pool_pause(void) { CUDA_POOL_PAUSE(); }
    """
    bint lock_try "cuda_pool_lock_try"(unsigned*)
    bint lock_seems_free "cuda_pool_lock_seems_free"(unsigned*)
    void lock_clear "cuda_pool_lock_clear"(unsigned*)
    void cpu_pause "cuda_pool_pause"()
    int sched_yield()

cdef enum:
    APART = 16              # words between what one thread writes and another reads: two cache lines
    LOCK_SPINS = 256        # pauses before the rest of the time slice is given away
    LOCK_PAUSES = 64        # from one try to the next at most

# A holder never takes the GIL. One that also calls no driver may be waited for with the GIL held: that goes for every
# lock of this type but pool_t.slow, which is taken without the GIL.
ctypedef struct lock_t:
    unsigned word           # 0 free, 1 held


cdef inline void lock_acquire(lock_t* lock) noexcept nogil:
    if not lock_try(&lock.word):
        lock_wait(lock)


cdef inline void lock_release(lock_t* lock) noexcept nogil:
    lock_clear(&lock.word)


cdef inline void lock_wait(lock_t* lock) noexcept nogil:
    """Try at ever longer intervals, and give way to the holder when it has lost its processor.

    Whoever has the lock has what it guards in its own cache, and mostly comes again at once. So it is better for all to
    let it come some times than to take the lock, and all that, from it each time (Anderson, "The performance of spin
    lock alternatives", IEEE TPDS 1(1), 1990).
    """
    cdef int spins = 0, pauses = 1, at
    while not lock_seems_free(&lock.word) or not lock_try(&lock.word):
        for at in range(pauses):
            cpu_pause()
        spins += pauses
        if spins >= LOCK_SPINS:
            spins = 0
            sched_yield()
        pauses = min(2 * pauses, <int>LOCK_PAUSES)
