"""Owning objects."""

from cuda_pool._driver cimport Device, cudaStream_t
from cuda_pool._pool cimport pool_t


cdef class Buffer:
    cdef object owner               # keeps `pool` alive
    cdef pool_t* pool
    cdef Device device
    cdef void* address              # NULL when empty or freed
    cdef cudaStream_t stream
    cdef readonly size_t nbytes
    cdef readonly bint freed

    cdef int release(self) except -1
    cdef int require(self) except -1
    cdef int order_before(self, object stream) except -1

# An owning object for an address that pool_alloc() returned.
cdef Buffer buffer_wrap(object owner, pool_t* pool, Device device, void* address, size_t nbytes, cudaStream_t stream)
