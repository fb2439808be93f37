"""The entries of a snapshot's trace as a C array."""

from libc.stdint cimport uint8_t, uint64_t

from cuda_pool._rows cimport rows_at, rows_t

ctypedef struct entry_t:
    uint64_t addr           # of an oom: what the device had left
    uint64_t size
    uint64_t stream
    uint8_t action          # index into torch_format.ACTIONS

cdef enum action_t:         # those that are about a block, and one that is counted
    ACTION_ALLOC = 0
    ACTION_FREE_REQUESTED = 1
    ACTION_FREE_COMPLETED = 2
    ACTION_OOM = 8

cdef class Entries:
    cdef rows_t rows        # of entry_t

    cdef int add(self, const entry_t* entry) except -1
    cdef object entry(self, size_t index)


cdef inline entry_t* entry_at(const rows_t* entries, size_t index) noexcept nogil:
    return <entry_t*>rows_at(entries, index)


# Take the numbers of an entry out of a dict; False if it lacks one that an entry needs, or has one out of range.
cdef bint entry_read(dict fields, entry_t* entry) except -1
