"""Captures: what is allocated and freed while a stream is captured into a graph."""

from cuda_pool._owner cimport owner_t
from cuda_pool._state cimport pool_t


cdef class Capture:
    cdef object pool                # keeps `handle` alive
    cdef pool_t* handle
    cdef object stream
    cdef owner_t owner              # NOBODY before it is entered and after it is released
    cdef bint under_way

cdef Capture capture_make(object pool, pool_t* handle, object stream)
