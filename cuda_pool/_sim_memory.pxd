"""The allocations of one simulated device: real host memory, found by address."""

from libc.stdint cimport uint64_t

from cuda_pool._sim_virtual cimport virtual_t

ctypedef struct live_t:
    char* address
    size_t size
    void* mapping                   # what mmap gave: a guard page, the memory, a guard page
    size_t mapped
    uint64_t serial                 # of the device's allocations, from 1: tells it from others at the same address
    bint leaving                    # a cudaFreeAsync is queued

# entries[0 .. count) rise by address and do not overlap; sum(size) == allocated, allocated + space.physical <= memory.
# Guarded by the simulator's lock.
ctypedef struct memory_t:
    size_t memory
    size_t allocated
    size_t base_alignment           # 0: page-aligned addresses; else multiples of this and of no larger power of 2
    uint64_t serial                 # allocations and mappings made
    uint64_t random                 # state of the generator that spreads addresses; 0: they are not spread
    live_t* entries
    size_t count
    size_t room
    virtual_t space

# What is at an address.
ctypedef struct place_t:
    uint64_t base                   # of the allocation or the reservation; 0 if there is none
    size_t size
    uint64_t serial                 # another one once there is other memory; 0: none, or not everywhere in the range

cdef enum:
    PAGE = 4096                     # base_alignment is below it

# 0, or -1 when there is no room; *address is only set on success.
cdef int memory_allocate(memory_t* self, size_t nbytes, char** address) noexcept nogil
cdef void memory_release(memory_t* self, live_t* entry) noexcept nogil
cdef void memory_clear(memory_t* self) noexcept nogil

cdef size_t memory_free(const memory_t* self) noexcept nogil           # bytes

# Whether a range may be read, or written; else what is wrong, one of misuse_e.
cdef int memory_place(const memory_t* self, const void* address, size_t nbytes, bint write,
                      place_t* place) noexcept nogil
cdef bint memory_owns(const memory_t* self, const void* address) noexcept nogil

# False without host memory for it; the copy's entries are the caller's to free().
cdef bint memory_copy(const memory_t* self, memory_t* copy) noexcept nogil

# The allocation that contains `address`, or NULL.
cdef live_t* memory_find(const memory_t* self, const char* address) noexcept nogil
cdef live_t* memory_largest(const memory_t* self) noexcept nogil
