"""Moving physical pages under a pool's virtual addresses: the driver calls of `backing="virtual"`."""

from libc.stdint cimport uint32_t

from cuda_pool._owner cimport owner_t
from cuda_pool._state cimport pool_t

# Reserve the addresses of a pool that is not open yet: pool.range_bytes of them, pool.region is where they start.
cdef int remap_reserve(pool_t* pool) noexcept nogil
# Get the first pieces of memory and map them where blocks are placed first.
cdef int remap_fill(pool_t* pool, uint32_t count) noexcept nogil
# Serve a request that nothing ready serves by giving some place its pages; where those that are there are too few, by
# getting more, but while others are waited for rather (`may_grow` is False) only up to a share of the peak. Called with
# `slow` held, and never while the stream is captured. STATUS_OUT_OF_MEMORY, and nothing changed, where there are not
# enough; on an error of the driver pages may have moved, and nothing is lost.
cdef int remap_alloc(pool_t* pool, owner_t owner, size_t nbytes, size_t alignment, bint may_grow,
                     void** ptr) noexcept nogil
# Move at most so many pages of free memory to where the largest request would be placed; how many. Called with `slow`
# held, and never during a capture. On an error of the driver some may have moved, and nothing is lost.
cdef int remap_gather(pool_t* pool, uint32_t most, size_t* moved) noexcept nogil
# Give pieces of memory back to the driver until `keep` are left, as far as no block touches them and no work is pending
# in them; how many went. Called with `slow` held.
cdef int remap_trim(pool_t* pool, uint32_t keep, uint32_t* gone) noexcept nogil
# Give everything back; the pool is closed.
cdef int remap_release(pool_t* pool) noexcept nogil
