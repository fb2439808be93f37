"""Streams as Python names them."""

from cuda_pool._driver cimport cudaStream_t
from cuda_pool._order cimport stream_ref_t
from cuda_pool._state cimport pool_t

# The handle of an int or an object with __cuda_stream__; TypeError or ValueError says what is accepted.
cdef int stream_handle(object stream, cudaStream_t* handle) except -1


# The objects that stand for streams of one pool. An object is kept while frees are pending on its stream, so that its
# stream is not destroyed by the last reference going away, and so that it can be asked whether it still has that stream.
cdef class Streams:
    cdef pool_t* pool               # that of the owner of this object
    cdef void* last                 # the object of `last_ref`: one of `vouchers`, or NULL
    cdef stream_ref_t last_ref
    cdef dict vouchers              # id of an object -> (object, owner, serial, handle)

    cdef int find(self, object stream, stream_ref_t* ref) except -1
    cdef bint recall(self, object stream, stream_ref_t* ref) except -1
    cdef int prune(self) except -1
    cdef int drop(self, key) except -1
    cdef int ask(self) except -1
    cdef int distrust(self) except -1
    cdef int forget(self, cudaStream_t handle) except -1
