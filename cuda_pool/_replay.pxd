"""A trace in play against an allocator."""

from libc.stdint cimport uint32_t, uint64_t

from cuda_pool._api cimport Pool
from cuda_pool._trace cimport TraceTable, trace_t

cdef enum:
    ALIGNMENT = 256         # what Pool.alloc() gives when it is not asked for more

ctypedef struct replay_t:
    const trace_t* trace
    void** address          # of every block of the trace; NULL while it is not live
    size_t position         # next event
    uint64_t ns             # spent in the events so far

cdef class Replay:
    cdef TraceTable table       # keeps replay.trace alive
    cdef replay_t replay
    cdef Pool pool              # None for libc's malloc
    cdef object failure         # (row, size, status) of the allocation that could not be served, or None

    # Allocate the block with an index; release an address; play the events before `stop`.
    cdef int acquire(self, uint32_t index, void** address) noexcept nogil
    cdef int release(self, void* address) noexcept nogil
    cdef int advance(self, size_t stop) noexcept nogil
