"""What a call does when the driver has to be asked: with `slow` held, and no other lock meanwhile."""

from cuda_pool._driver cimport cudaStream_t
from cuda_pool._order cimport stream_ref_t
from cuda_pool._owner cimport owner_t
from cuda_pool._state cimport leaving_t, pool_t

# Take `slow` of an open pool; a status: on any other than STATUS_OK it is not held.
cdef int slow_enter(pool_t* pool) noexcept nogil
# The same, and look who a reference names: asks the driver where it is not valid any more. NOBODY is a stream for which
# there is no record left; the second says STATUS_STREAMS of it.
cdef int slow_enter_as(pool_t* pool, const stream_ref_t* stream, owner_t* owner) noexcept nogil
cdef int slow_enter_named(pool_t* pool, const stream_ref_t* stream, owner_t* owner) noexcept nogil
# A call that returned STATUS_WOULD_WAIT, to its end.
cdef int alloc_slowly(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                      void** ptr) noexcept nogil
cdef int free_async_slowly(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil
cdef int record_use_slowly(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil
# A block that is freed after a driver call stands on the list `leaving` meanwhile, between these two; and is
# overwritten with zeros in a stream's order, without that call.
cdef int zero_in_order(pool_t* pool, const leaving_t* block, owner_t owner, cudaStream_t stream) noexcept nogil
cdef int leaving_begin(pool_t* pool, void* ptr, leaving_t* block) noexcept nogil
cdef int leaving_end(pool_t* pool, leaving_t* block, int status, owner_t owner) noexcept nogil
