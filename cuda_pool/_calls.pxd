"""Allocate and free, from any thread and without the GIL; each call returns a status."""

from cuda_pool._driver cimport cudaStream_t
from cuda_pool._order cimport stream_ref_t
from cuda_pool._state cimport pool_t

cdef int pool_alloc(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream, void** ptr) noexcept nogil
cdef int pool_free(pool_t* pool, void* ptr) noexcept nogil
cdef int pool_free_async(pool_t* pool, void* ptr, cudaStream_t stream) noexcept nogil
# For any handle but that of the legacy default stream, for which the shortest paths alone are compiled.
cdef int pool_alloc_on(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream, void** ptr) noexcept nogil
cdef int pool_free_async_on(pool_t* pool, void* ptr, cudaStream_t stream) noexcept nogil
# The same for a stream that was looked up before, and of which the caller knows that it is still the same; or, where
# the owner is NOBODY, for its handle.
cdef int pool_alloc_as(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                       void** ptr) noexcept nogil
cdef int pool_free_async_as(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil
# The same without a driver call: STATUS_WOULD_WAIT, and no live block changed, where one is needed. For callers with
# the GIL.
cdef int pool_try_alloc_as(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                           void** ptr) noexcept nogil
cdef int pool_try_free(pool_t* pool, void* ptr) noexcept nogil
cdef int pool_try_free_async_as(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil
