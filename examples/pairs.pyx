# cython: language_level=3
from libc.stddef cimport size_t

from cuda_pool cimport CUDA_POOL_OK, cuda_pool_alloc, cuda_pool_free, cuda_pool_t, pool_handle


def pairs(pool, size_t nbytes, int rounds):
    """Allocate and free a block `rounds` times without the GIL; return how often that worked."""
    cdef cuda_pool_t* handle = pool_handle(pool)        # valid as long as `pool`; TypeError if it is none
    cdef void* ptr = NULL
    cdef int done = 0
    with nogil:
        while done < rounds:
            if cuda_pool_alloc(handle, nbytes, NULL, &ptr) != CUDA_POOL_OK:     # on the default stream
                break
            if cuda_pool_free(handle, ptr) != CUDA_POOL_OK:
                break
            done += 1
    return done
