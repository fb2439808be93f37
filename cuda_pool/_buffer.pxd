"""Owning objects."""

from cuda_pool._order cimport stream_ref_t
from cuda_pool._state cimport pool_t


cdef class Buffer:
    cdef object owner               # the Pool of `pool`
    cdef pool_t* pool
    cdef void* address              # NULL when empty or freed
    cdef object stream_object       # as it was given, if it was: kept as long as its stream is needed
    cdef stream_ref_t stream
    cdef readonly size_t nbytes
    cdef readonly bint freed

    cdef int release(self) except -1
    cdef int finish(self, int status) noexcept
    cdef int require(self) except -1
    cdef int order_before(self, object stream) except -1

# An owning object that is still empty: whoever made it sets the address, the bytes and the stream's object.
cdef Buffer buffer_wrap(object owner, pool_t* pool, const stream_ref_t* stream)
