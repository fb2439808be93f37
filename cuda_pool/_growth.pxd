"""Regions that come and go: how a pool grows, and gives memory back."""

from cuda_pool._owner cimport owner_t
from cuda_pool._state cimport pool_t

cdef enum:
    GROWTH_STEP = 2 << 20           # bytes: no region that the pool chooses the size of is smaller, or no multiple
    GROWTH_STEP_MAX = 1 << 30       # a larger region is for one request alone
    GROWTH_SHARE = 8                # of what is reserved: the usual step

# Note the region that the pool is opened with; 0 when the host has no memory. The pool is not open yet.
cdef int region_first(pool_t* pool) noexcept nogil
# Could it grow for a request, as far as that is known without the driver? Under `lock`.
cdef bint could_grow(const pool_t* pool, owner_t owner, size_t nbytes) noexcept nogil

# All that follow are called with `slow` held.
# May memory be got and given back now? The driver forbids it while anything is captured.
cdef bint may_call(pool_t* pool, owner_t owner) noexcept nogil
# Would it rather grow than wait for pending work?
cdef bint growth_is_due(pool_t* pool, size_t nbytes, size_t alignment) noexcept nogil
# Could it, if nothing were pending any more: is there so much, and may the driver be called?
cdef bint growth_could_help(pool_t* pool, owner_t owner, size_t nbytes, size_t alignment) noexcept nogil
# Grow and serve a request. The status of the request, other than STATUS_OUT_OF_MEMORY, goes to `status`; the result is
# that of a fault, after which nothing has changed.
cdef int growth_alloc(pool_t* pool, owner_t owner, size_t nbytes, size_t alignment, void** ptr,
                      int* status) noexcept nogil
# Give idle regions back; `keep` bytes stay, or `wanted` are enough. What has been given back is added to `returned`.
cdef int growth_trim(pool_t* pool, size_t keep, size_t* returned) noexcept nogil
cdef int growth_give_back(pool_t* pool, size_t wanted, size_t* returned) noexcept nogil

# Note a free of a block outside slabs in a pool that releases: is it time to give memory back? Under `lock`.
cdef void release_note(pool_t* pool) noexcept nogil
# Give back what the threshold asks for.
cdef int release_run(pool_t* pool) noexcept nogil
