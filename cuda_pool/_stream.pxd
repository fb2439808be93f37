"""Streams as Python names them."""

from libc.stdint cimport uintptr_t

from cuda_pool._driver cimport cudaStream_t
from cuda_pool._order cimport stream_ref_t
from cuda_pool._state cimport pool_t

# The handle of an int or an object with __cuda_stream__; TypeError or ValueError says what is accepted.
cdef int stream_handle(object stream, cudaStream_t* handle) except -1


cdef enum:
    STREAMS_SEEN = 64

# An object that was looked up, one of `vouchers`, or NULL.
ctypedef struct seen_t:
    void* object
    stream_ref_t ref

# The objects that stand for streams of one pool. An object is kept while frees are pending on its stream, so that its
# stream is not destroyed by the last reference going away, and so that it can be asked whether it still has that
# stream.
cdef class Streams:
    cdef pool_t* pool               # that of the owner of this object
    cdef seen_t seen[STREAMS_SEEN]  # by address
    cdef dict vouchers              # id of an object -> (object, owner, serial, handle)

    cdef int look_up(self, object stream, stream_ref_t* ref) except -1
    cdef int prune(self) except -1
    cdef int drop(self, key) except -1
    cdef int ask(self) except -1
    cdef int distrust(self) except -1
    cdef int forget(self, cudaStream_t handle) except -1

    cdef inline int find(self, object stream, stream_ref_t* ref) except -1:
        """Look up a stream: an object by its identity, which needs no question except the first time."""
        cdef const seen_t* seen = &self.seen[seen_slot(<void*>stream)]
        if seen.object == <void*>stream:
            ref[0] = seen.ref
            return 0
        return self.look_up(stream, ref)


cdef inline int seen_slot(void* object) noexcept nogil:
    return <int>(<uintptr_t>object >> 5 ^ <uintptr_t>object >> 11) & (STREAMS_SEEN - 1)
