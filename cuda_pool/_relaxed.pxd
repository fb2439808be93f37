"""Words that are read without the lock under which they are written: loads and stores that are not torn.

They order nothing: who reads one that way takes a lock and looks again before he relies on it, or wants a figure only.
"""

from libc.stdint cimport uint16_t, uint32_t, uint64_t

cdef extern from * nogil:
    """
    #define CUDA_POOL_GET(word) __atomic_load_n(word, __ATOMIC_RELAXED)
    #define CUDA_POOL_SET(word, value) __atomic_store_n(word, value, __ATOMIC_RELAXED)
    #define CUDA_POOL_FOLLOW(word) __atomic_load_n(word, __ATOMIC_ACQUIRE)
    #define CUDA_POOL_PUBLISH(word, value) __atomic_store_n(word, value, __ATOMIC_RELEASE)
    /* One instruction where a load, an addition and a store would be three; what is stored is never torn either. */
    #ifdef __SANITIZE_THREAD__
    #define CUDA_POOL_ADD(word, value) CUDA_POOL_SET(word, *(word) + (value))
    #define CUDA_POOL_IS(word, value) (CUDA_POOL_GET(word) == (value))
    #else
    #define CUDA_POOL_ADD(word, value) ((void)(*(word) += (value)))
    #define CUDA_POOL_IS(word, value) (*(word) == (value))
    #endif
    static inline int cuda_pool_swap_u32(uint32_t *word, uint32_t old, uint32_t value) {
        return __atomic_compare_exchange_n(word, &old, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
    static inline int cuda_pool_swap_u64(uint64_t *word, uint64_t old, uint64_t value) {
        return __atomic_compare_exchange_n(word, &old, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
    """
    bint get_flag "CUDA_POOL_GET"(const bint*)
    void set_flag "CUDA_POOL_SET"(bint*, bint)
    uint16_t get_u16 "CUDA_POOL_GET"(const uint16_t*)
    void set_u16 "CUDA_POOL_SET"(uint16_t*, uint16_t)
    uint32_t get_u32 "CUDA_POOL_GET"(const uint32_t*)
    void set_u32 "CUDA_POOL_SET"(uint32_t*, uint32_t)
    bint swap_u32 "cuda_pool_swap_u32"(uint32_t*, uint32_t old, uint32_t new)      # False where it is not `old`
    uint64_t get_u64 "CUDA_POOL_GET"(const uint64_t*)
    void set_u64 "CUDA_POOL_SET"(uint64_t*, uint64_t)
    bint swap_u64 "cuda_pool_swap_u64"(uint64_t*, uint64_t old, uint64_t new)
    size_t get_size "CUDA_POOL_GET"(const size_t*)
    void set_size "CUDA_POOL_SET"(size_t*, size_t)
    bint is_u32 "CUDA_POOL_IS"(const uint32_t*, uint32_t)    # one instruction as well
    void add_size "CUDA_POOL_ADD"(size_t*, size_t)            # by whoever alone writes it
    # These do: what was written before a pointer is seen by who follows it.
    void* get_pointer "CUDA_POOL_FOLLOW"(void* const*)
    void set_pointer "CUDA_POOL_PUBLISH"(void**, void*)
