"""Simulated streams, events and graphs as Python sees them."""

from libc.stdint cimport uint64_t

from cuda_pool._driver cimport cudaError_t
from cuda_pool._sim_op cimport result_t


# Each names what it stands for by device, handle and id, and finds it anew in every call: it may be gone by then.

cdef class Stream:
    cdef readonly object device
    cdef int number                 # of the device
    cdef readonly uint64_t handle
    cdef uint64_t made_id           # 0 for a default stream
    cdef readonly bint blocking
    cdef bint destroyed
    cdef object __weakref__


cdef class Event:
    cdef readonly object device
    cdef int number
    cdef readonly uint64_t handle
    cdef uint64_t id
    cdef object __weakref__


cdef class Graph:
    cdef readonly object device
    cdef int number
    cdef readonly uint64_t handle
    cdef readonly uint64_t nodes
    cdef uint64_t id
    cdef object __weakref__


cdef class Read:
    cdef result_t* result

cdef Stream stream_new(object device, int number, bint blocking)
cdef Stream stream_default(object device, int number, bint per_thread)
cdef Event event_new(object device, int number)
