"""The pool: one segment behind a lock, its statistics, and the calls it makes to the driver."""

from libc.stdint cimport uint64_t

from cuda_pool._driver cimport cudaStream_t, driver_t
from cuda_pool._lock cimport lock_t
from cuda_pool._segment cimport TIERS, segment_t, settings_t, tier_stats_t

# Driver calls that are counted; pool_call_name() names them.
ctypedef int upstream_t

cdef enum:                      # upstream_t
    UPSTREAM_SET_DEVICE = 0
    UPSTREAM_MALLOC
    UPSTREAM_FREE
    UPSTREAM_MEM_GET_INFO
    UPSTREAM_MEMSET
    UPSTREAM_SYNCHRONIZE
    UPSTREAM_DEVICE_SYNCHRONIZE
    UPSTREAM_CALLS

# Bytes, or counts where the name says so.
ctypedef struct pool_stats_t:
    size_t capacity
    size_t reserved
    size_t reserved_high
    size_t used
    size_t used_high
    size_t requested
    size_t requested_high
    size_t pending
    size_t free
    size_t largest_free
    size_t alloc_count
    size_t free_count
    size_t oom_count
    tier_stats_t tier[TIERS]
    size_t upstream[UPSTREAM_CALLS]

# A block that a free has found and that is still waited for or overwritten: on the stack of that call, and no longer
# live for any other. The pool stays open until there is none.
ctypedef struct leaving_t:
    void* ptr
    size_t used                     # bytes
    leaving_t* next

# `lock` guards every field from `closed` down; those above are set once, by pool_open().
# Invariants, asserted by pool_check():
#   requested <= used <= reserved <= capacity;  each is at most its high-water mark
#   used, requested == sums over the tiers;  alloc_count - free_count == live blocks
ctypedef struct pool_t:
    lock_t lock
    unsigned generation             # number of forks before it was opened
    const driver_t* driver
    int device                      # what cudaSetDevice takes
    bint scrub                      # overwrite freed memory with zeros
    void* region                    # as cudaMalloc returned it
    size_t reserved                 # bytes of the region
    size_t base                     # its first address that is a multiple of MID_UNIT
    bint closed
    segment_t segment
    size_t used
    size_t used_high
    size_t requested
    size_t requested_high
    size_t alloc_count
    size_t free_count
    size_t oom_count
    leaving_t* leaving
    # Blocks freed with free_async are reusable at once on `async_stream`; any other stream waits for it first.
    bint async_pending
    cudaStream_t async_stream
    uint64_t async_epoch            # number of asynchronous frees
    unsigned settling               # allocations that wait for it; meanwhile a free waits for its own stream instead
    size_t upstream[UPSTREAM_CALLS]

# Every function below may be called from any thread without the GIL; those that return an int return a status.
cdef int pool_open(pool_t* pool, const driver_t* driver, int device, size_t nbytes, const settings_t* settings,
                   bint scrub) noexcept nogil
cdef int pool_close(pool_t* pool) noexcept nogil
cdef void pool_abandon(pool_t* pool) noexcept nogil     # close it, and leave its region to whom it belongs

cdef int pool_alloc(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream, void** ptr) noexcept nogil
cdef int pool_free(pool_t* pool, void* ptr) noexcept nogil
cdef int pool_free_async(pool_t* pool, void* ptr, cudaStream_t stream) noexcept nogil

# The same without a driver call: STATUS_WOULD_WAIT, and nothing changed, where one is needed. For callers with the GIL.
cdef int pool_try_alloc(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream, void** ptr) noexcept nogil
cdef int pool_try_free(pool_t* pool, void* ptr) noexcept nogil
cdef int pool_try_free_async(pool_t* pool, void* ptr, cudaStream_t stream) noexcept nogil

# Wait for everything queued on a stream.
cdef int pool_stream_wait(pool_t* pool, cudaStream_t stream) noexcept nogil
# Settle what was freed on a stream that is about to be destroyed.
cdef int pool_forget_stream(pool_t* pool, cudaStream_t stream) noexcept nogil
# Is `ptr` the address of a live block? 0 or STATUS_FORKED.
cdef int pool_owns(pool_t* pool, const void* ptr, bint* owns) noexcept nogil
cdef int pool_size_of(pool_t* pool, const void* ptr, size_t* requested, size_t* used) noexcept nogil
cdef int pool_mem_info(pool_t* pool, size_t* free, size_t* total) noexcept nogil
cdef int pool_get_stats(pool_t* pool, pool_stats_t* out) noexcept nogil
cdef size_t pool_metadata(pool_t* pool) noexcept nogil
cdef const char* pool_check(pool_t* pool) noexcept nogil
cdef const char* pool_call_name(int call) noexcept nogil
