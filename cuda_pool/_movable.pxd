"""Owning objects for blocks that may be moved."""

from libc.stdint cimport uint32_t

from cuda_pool._state cimport pool_t
from cuda_pool._stream cimport Streams


cdef class Movable:
    cdef object owner               # keeps `pool` alive
    cdef pool_t* pool
    cdef Streams streams
    cdef uint32_t record            # NO_MOVABLE for 0 bytes
    cdef readonly object stream     # as it was given: kept as long as it is needed
    cdef readonly size_t nbytes
    cdef readonly bint freed

    cdef int release(self) except -1
    cdef int finish(self, int status) noexcept
    cdef int require(self) except -1
    cdef uint32_t look(self, void** ptr) except? 0
    cdef size_t take(self, object stream) except? 0
    cdef int drop(self) except -1

# An object that owns nothing yet: `record` and `freed` are to be set.
cdef Movable movable_wrap(object owner, pool_t* pool, Streams streams, size_t nbytes, object stream)
