"""The entries of a snapshot's trace as a C array."""

from libc.stdint cimport uint8_t, uint64_t

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

cdef enum:
    ENTRIES_ROOM = 4        # entries, at first: a pickle may have any number of lists with one

cdef class Entries:
    cdef entry_t* items
    cdef size_t count, room

    cdef int add(self, const entry_t* entry) except -1
    cdef int grow(self) except -1
    cdef object entry(self, size_t index)

# Take the numbers of an entry out of a dict; False if it lacks one that an entry needs, or has one out of range.
cdef bint entry_read(dict fields, entry_t* entry) except -1
