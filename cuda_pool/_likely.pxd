"""Which way a branch mostly goes, so that the compiler lets that way fall through."""

cdef extern from * nogil:
    """
    #define CUDA_POOL_LIKELY(x) __builtin_expect(!!(x), 1)
    """
    bint likely "CUDA_POOL_LIKELY"(bint)
