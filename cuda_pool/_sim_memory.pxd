"""The allocations of one simulated device: real host memory, found by address."""

from libc.stdint cimport uint64_t

ctypedef struct live_t:
    char* address
    size_t size
    void* mapping                   # what mmap gave: a guard page, the memory, a guard page
    size_t mapped
    uint64_t serial                 # of the device's allocations, from 1: tells it from others at the same address
    bint leaving                    # a cudaFreeAsync is queued

# entries[0 .. count) rise by address and do not overlap; sum(size) == allocated <= memory.
# Guarded by the simulator's lock.
ctypedef struct memory_t:
    size_t memory
    size_t allocated
    size_t base_alignment           # 0: page-aligned addresses; else multiples of this and of no larger power of 2
    uint64_t serial                 # allocations made
    uint64_t random                 # state of the generator that spreads addresses; 0: they are not spread
    live_t* entries
    size_t count
    size_t room

cdef enum:
    PAGE = 4096                     # base_alignment is below it

# 0, or -1 when there is no room; *address is only set on success.
cdef int memory_allocate(memory_t* self, size_t nbytes, char** address) noexcept nogil
cdef void memory_release(memory_t* self, live_t* entry) noexcept nogil
cdef void memory_clear(memory_t* self) noexcept nogil

# False without host memory for it; the copy's entries are the caller's to free().
cdef bint memory_copy(const memory_t* self, memory_t* copy) noexcept nogil

# The allocation that contains `address`, or NULL.
cdef live_t* memory_find(const memory_t* self, const char* address) noexcept nogil
cdef live_t* memory_largest(const memory_t* self) noexcept nogil
