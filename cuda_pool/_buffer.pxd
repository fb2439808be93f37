"""Owning objects."""

from cuda_pool._driver cimport Device
from cuda_pool._order cimport stream_ref_t
from cuda_pool._state cimport pool_t


cdef class Buffer:
    cdef object owner               # keeps `pool` alive
    cdef pool_t* pool
    cdef Device device
    cdef void* address              # NULL when empty or freed
    cdef object stream_object       # as it was given: kept as long as its stream is needed
    cdef stream_ref_t stream
    cdef readonly size_t nbytes
    cdef readonly bint freed

    cdef int release(self) except -1
    cdef int finish(self, int status) noexcept
    cdef int require(self) except -1
    cdef int order_before(self, object stream) except -1

# An owning object for an address that pool_alloc() returned.
cdef Buffer buffer_wrap(object owner, pool_t* pool, Device device, void* address, size_t nbytes, object stream,
                        const stream_ref_t* ref)
