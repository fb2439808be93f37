"""The Python class Pool."""

from cuda_pool._driver cimport Device
from cuda_pool._movable cimport Movable
from cuda_pool._order cimport stream_ref_t
from cuda_pool._state cimport pool_t
from cuda_pool._stream cimport Streams


cdef const char* POOL_CAPSULE      # "cuda_pool.pool"

cdef class Pool:
    cdef pool_t* state              # never NULL; closed or open
    cdef readonly Device device
    cdef readonly object settings
    cdef readonly bint debug
    cdef Streams streams
    cdef stream_ref_t legacy        # the default stream
    cdef bint initialised           # or being initialised
    cdef tuple callbacks            # of on_pressure()
    cdef tuple watchers             # of on_event(): (callback, whether it wants phases)
    cdef object recording           # of the trace that it was made with, or None
    cdef dict __dict__
    cdef object __weakref__

    cdef int open(self, capacity, device, backing, growth, max_capacity, slab_max, mid_max, min_block, size_classes,
                  headroom, profile, debug, scrub, reuse, release_threshold) except -1
    cdef int record(self, object path, int depth) except -1
    cdef int end_recording(self) except -1
    cdef int acquire_slowly(self, int status, object nbytes, size_t size, size_t alignment, const stream_ref_t* stream,
                            void** ptr) except -1
    cdef int alloc_waiting(self, size_t size, size_t alignment, const stream_ref_t* stream, void** ptr) noexcept
    cdef int acquire(self, int status, object nbytes, size_t size, size_t alignment, const stream_ref_t* stream,
                     void** ptr) except -1
    cdef int make_slowly(self, int status, object nbytes, size_t alignment, const stream_ref_t* stream,
                         Movable movable) except -1
    cdef int refuse(self, int status, object nbytes) except -1
    cdef bint relieve(self, size_t nbytes) except -1
