"""Handles of simulated streams, events, graphs and memory: unique in the process while they live, reused afterwards."""

from libc.stdint cimport uint64_t

cdef enum:
    HANDLE_STREAM = 0
    HANDLE_EVENT = 1
    HANDLE_GRAPH = 2
    HANDLE_MEMORY = 3               # the low bits of one
    HANDLE_KINDS = 4

# Guarded by the simulator's lock. The handle that was given back last is given out first, as drivers do.
cdef uint64_t handle_add(int kind, void* item) noexcept nogil           # 0 without host memory for it
cdef void* handle_get(int kind, uint64_t handle) noexcept nogil         # NULL if nothing alive has it
cdef void handle_remove(int kind, uint64_t handle) noexcept nogil
cdef bint handle_was_used(int kind, uint64_t handle) noexcept nogil     # by something that is alive or gone
