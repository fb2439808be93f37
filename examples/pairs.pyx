# cython: language_level=3
from libc.stddef cimport size_t

from cuda_pool._api cimport Pool
from cuda_pool._calls cimport pool_alloc, pool_free


def pairs(Pool pool not None, size_t nbytes, int rounds):
    """Allocate and free a block `rounds` times without the GIL; return how often that worked."""
    cdef void* ptr = NULL
    cdef int done = 0
    with nogil:
        while done < rounds:
            if pool_alloc(pool.handle, nbytes, 256, NULL, &ptr) != 0:       # alignment 256, default stream
                break
            if pool_free(pool.handle, ptr) != 0:
                break
            done += 1
    return done
