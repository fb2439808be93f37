"""How a thread comes to its seat at a pool, and to caches for the streams that it uses."""

from cuda_pool._order cimport stream_ref_t
from cuda_pool._seat cimport seat_t
from cuda_pool._state cimport pool_t

# Are there caches for such a size?
cdef bint may_join(const pool_t* pool, size_t nbytes) noexcept nogil
# Let the calling thread have a cache for a stream, or for whoever's a block is that it frees. False where it has one,
# or can have none.
cdef bint join_stream(pool_t* pool, const stream_ref_t* stream) noexcept nogil
cdef bint join_for(pool_t* pool, const void* ptr) noexcept nogil
# The calling thread's seat, entered, or NULL. `key` opens its gate: the pool, or while calls are recorded the tracer.
cdef seat_t* sit_down(pool_t* pool, const void* key) noexcept nogil
