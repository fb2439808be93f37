# cython: language_level=3
"""Blocks of a pool, filled and verified without the GIL."""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t
from libc.string cimport memset

from cuda_pool cimport (
    CUDA_POOL_OK, alloc_or_raise, cuda_pool_alloc, cuda_pool_free, cuda_pool_stats_t, cuda_pool_get_stats, cuda_pool_t,
    free_or_raise, pool_handle, raise_status, size_of_or_raise)

cdef enum:
    BLOCKS = 64


cdef class Workspace:
    """A block of bytes. The capsule keeps the pool for as long as the block needs it."""

    cdef object capsule
    cdef cuda_pool_t* pool
    cdef unsigned char* data

    def __cinit__(self, pool, size_t nbytes):
        self.pool = pool_handle(pool)           # TypeError if it is no pool
        self.capsule = pool.capsule
        self.data = <unsigned char*>alloc_or_raise(self.pool, nbytes, NULL)

    def __dealloc__(self):
        cuda_pool_free(self.pool, self.data)    # not the one that raises: nobody could catch it here

    def __len__(self):
        return size_of_or_raise(self.pool, self.data) if self.data != NULL else 0


def work(pool, uint32_t seed, int rounds):
    """Replace one of 64 blocks so many times; return the number of blocks whose bytes were not what they should be."""
    cdef cuda_pool_t* handle = pool_handle(pool)
    cdef int damaged
    with nogil:
        damaged = replace(handle, seed, rounds)
    return damaged


def used(pool):
    """Return the bytes that live blocks of the pool occupy."""
    cdef cuda_pool_t* handle = pool_handle(pool)
    cdef cuda_pool_stats_t stats
    stats.size = sizeof(stats)
    raise_status(handle, cuda_pool_get_stats(handle, &stats), 0, NULL)
    return stats.used


cdef int replace(cuda_pool_t* pool, uint32_t seed, int rounds) except -1 nogil:
    cdef void* block[BLOCKS]
    cdef uint32_t nbytes[BLOCKS]
    cdef uint32_t random = seed
    cdef int damaged = 0, at
    memset(block, 0, sizeof(block))
    memset(nbytes, 0, sizeof(nbytes))
    try:
        for _ in range(rounds):
            random = random * 1664525 + 1013904223
            at = random >> 26
            damaged += is_damaged(block[at], nbytes[at], <unsigned char>(seed + at))
            free_or_raise(pool, block[at])                          # NULL is accepted
            block[at] = NULL
            nbytes[at] = 1 + (random >> 8) % 20000
            block[at] = alloc_or_raise(pool, nbytes[at], NULL)      # takes the GIL to raise OutOfMemoryError, only then
            memset(block[at], <unsigned char>(seed + at), nbytes[at])
    finally:
        for at in range(BLOCKS):
            damaged += block[at] != NULL and is_damaged(block[at], nbytes[at], <unsigned char>(seed + at))
            cuda_pool_free(pool, block[at])
    return damaged


cdef bint is_damaged(const void* block, uint32_t nbytes, unsigned char value) noexcept nogil:
    cdef const unsigned char* data = <const unsigned char*>block
    cdef uint32_t at
    if block == NULL:
        return False
    for at in range(nbytes):
        if data[at] != value:
            return True
    return False


def fill_up(pool, size_t nbytes):
    """Return how many blocks of a size the pool has, by statuses alone."""
    cdef cuda_pool_t* handle = pool_handle(pool)
    cdef void* block[4096]
    cdef int count = 0, at
    with nogil:
        while count < 4096 and cuda_pool_alloc(handle, nbytes, NULL, &block[count]) == CUDA_POOL_OK:
            count += 1
        for at in range(count):
            cuda_pool_free(handle, block[at])
    return count
