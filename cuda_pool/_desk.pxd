"""What else a thread can do at its own seat than the shortest paths: fill and spill its bins, and ask for blocks.

As in _front: False, and nothing changed for anyone, where that is not enough.
"""

from cuda_pool._bins cimport cache_t
from cuda_pool._seat cimport seat_t
from cuda_pool._state cimport pool_t

# At the seat, for a stream's cache or NULL.
cdef bint desk_alloc(pool_t* pool, seat_t* seat, cache_t* cache, size_t nbytes, size_t alignment,
                     void** ptr) noexcept nogil
cdef bint desk_free(pool_t* pool, seat_t* seat, cache_t* cache, void* ptr) noexcept nogil
