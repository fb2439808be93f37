"""The Python class Pool."""

from cuda_pool._driver cimport Device, cudaStream_t
from cuda_pool._pool cimport pool_t


cdef class Pool:
    cdef pool_t* handle             # never NULL; closed or open
    cdef readonly Device device
    cdef readonly object settings
    cdef readonly bint debug
    cdef bint initialised           # or being initialised
    cdef dict __dict__
    cdef object __weakref__

    cdef int open(self, capacity, device, backing, growth, max_capacity, slab_max, mid_max, min_block, size_classes,
                  headroom, profile, debug, scrub, trace) except -1
    cdef int acquire_slowly(self, int status, object nbytes, size_t size, size_t alignment, cudaStream_t stream,
                            void** ptr) except -1
