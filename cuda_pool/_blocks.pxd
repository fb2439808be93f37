"""Blocks of the mid tier that a thread has freed and uses again, at its seat.

As in _front: False, and nothing changed for anyone, where that is not possible.
"""

from libc.stdint cimport uint32_t

from cuda_pool._bins cimport cache_t
from cuda_pool._seat cimport seat_t
from cuda_pool._state cimport pool_t

# For a stream's cache; `cache` may be NULL for a free: in nobody's order.
cdef bint block_take(pool_t* pool, seat_t* seat, cache_t* cache, size_t nbytes, size_t alignment,
                     void** ptr) noexcept nogil
# A block by the index of its record.
cdef bint block_give(pool_t* pool, seat_t* seat, cache_t* cache, uint32_t index, size_t offset, void* ptr) noexcept nogil
