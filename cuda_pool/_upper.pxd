"""Blocks of the two upper tiers, allocated and freed with the pool's lock alone, while the seats go on.

False, and nothing changed, where that is not enough: then all locks are taken.
"""

from cuda_pool._bins cimport BLOCK_MOST, cache_t, is_cache
from cuda_pool._order cimport stream_ref_t
from cuda_pool._state cimport pool_t

# `alignment` is a power of two.
cdef bint upper_alloc(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                      void** ptr) noexcept nogil
# A block of the mid tier, for anyone, or for whoever may have what it was cut from. Not the last one: with that all
# caches are emptied, so that where nothing is live the segment is as it was at first. The pool does not scrub.
cdef bint upper_free(pool_t* pool, void* ptr) noexcept nogil


cdef inline bint has_missed(const cache_t* cache, size_t nbytes) noexcept nogil:
    """Would a new cache not serve the request either that this one, or none, did not serve?"""
    return nbytes > <size_t>BLOCK_MOST or (cache != NULL and is_cache(cache))
