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
    LOCK_SPINS = 64         # pauses before the rest of the time slice is given away

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
    """Spin until the lock looks free, then try; give way to the holder when it has lost its processor."""
    cdef int spins = 0
    while True:
        while not lock_seems_free(&lock.word):
            spins += 1
            cpu_pause()
            if spins % LOCK_SPINS == 0:
                sched_yield()
        if lock_try(&lock.word):
            return
