"""A trace in play against an allocator."""

from libc.stdint cimport uint64_t

from cuda_pool._trace cimport TraceTable, trace_t

ctypedef struct replay_t:
    const trace_t* trace
    void** address          # of every block of the trace; NULL while it is not live
    size_t position         # next event
    uint64_t ns             # spent in the events so far

cdef class Replay:
    cdef TraceTable table       # keeps replay.trace alive
    cdef replay_t replay
    cdef object failure     # (row, size, status) of the allocation that could not be served, or None

    cdef int acquire(self, uint64_t size, void** address) noexcept nogil
    cdef int release(self, void* address) noexcept nogil
    cdef int advance(self, size_t stop) noexcept nogil
