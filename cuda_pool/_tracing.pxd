"""Recordings of pools, as Python objects."""

from libc.stdint cimport uint32_t

from cuda_pool._state cimport pool_t
from cuda_pool._tracer cimport tracer_t

cdef class Tracing:
    cdef pool_t* pool           # NULL once it has ended
    cdef tracer_t* tracer       # that of the pool, until then
    cdef object owner           # weak reference to the Pool
    cdef object kept            # the Pool itself, where nobody else keeps this object
    cdef object lock            # one thread ends it
    cdef object file            # of the rows, open as long as they are read there
    cdef readonly str path
    cdef str draft              # path of `file` until the trace is whole, or None where it has no name
    cdef readonly int depth
    cdef dict numbers           # of stacks, 1 and up
    cdef list stacks            # by number
    cdef dict counts            # at the end, with `error`
    cdef object __weakref__

    cdef bint is_inherited(self) noexcept
    cdef int open_file(self) except -1
    cdef int drop_file(self) except -1
    cdef int begin(self, object pool, pool_t* state) except -1
    cdef int end(self) except -1
    cdef int publish(self) except -1
    cdef int require_whole(self) except -1
    cdef object count(self, str name)
    cdef uint32_t stack_number(self) except? 0xFFFFFFFF

# The recording of a pool that is under way, or None.
cdef Tracing tracing_at(const pool_t* pool)
