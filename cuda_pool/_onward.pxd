"""Where a call goes on whose shortest path has ended, from the seat at which the thread still is, if any."""

from cuda_pool._driver cimport cudaStream_t
from cuda_pool._seat cimport seat_t
from cuda_pool._state cimport pool_t

# `seat` is NULL where the thread is at none. What no cache could serve, or would take, goes to the lock at once.
cdef int serve_at(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream, void** ptr,
                  seat_t* seat) noexcept nogil
cdef int take_back_at(pool_t* pool, void* ptr, seat_t* seat) noexcept nogil
