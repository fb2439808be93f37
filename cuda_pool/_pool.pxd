"""What can be done with a pool, from any thread and without the GIL."""

from libc.stdint cimport uint32_t

from cuda_pool._driver cimport driver_t
from cuda_pool._segment cimport TIERS, settings_t
from cuda_pool._state cimport UPSTREAM_CALLS, pool_t, reuse_t
from cuda_pool._tally cimport tally_t

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
    size_t grow_count
    size_t trim_count
    size_t defrag_count
    tally_t tier[TIERS]
    size_t upstream[UPSTREAM_CALLS]

# Make a closed pool of zeroed or any other memory.
cdef void pool_init(pool_t* pool) noexcept nogil
# Every function below may be called from any thread without the GIL; those that return an int return a status.
cdef int pool_open(pool_t* pool, const driver_t* driver, int device, size_t nbytes, size_t capacity,
                   const settings_t* settings, bint scrub, reuse_t reuse) noexcept nogil
# Let an open pool keep and prepare slabs for what it learns, to begin with for `plan`: slots by stream, in the order in
# which they appear, and size class.
cdef int pool_predict(pool_t* pool, const size_t* plan, int streams, int classes) noexcept nogil
cdef int pool_close(pool_t* pool) noexcept nogil
# Give back whole regions that are free, as long as `keep` bytes are left; their bytes.
cdef int pool_trim(pool_t* pool, size_t keep, size_t* returned) noexcept nogil
# The same until so much was given back: what is free, and if that is not enough, all of it.
cdef int pool_give_back(pool_t* pool, size_t wanted, size_t* returned) noexcept nogil
# Give memory back by itself while more than so many bytes are free outside slabs.
cdef void pool_set_release(pool_t* pool, size_t threshold) noexcept nogil
cdef void pool_release(pool_t* pool) noexcept nogil         # what a free found to be due
cdef void pool_excuse(pool_t* pool) noexcept nogil          # an allocation that had failed succeeded after all
# Give back what a closed pool keeps for threads that call it nevertheless: when there can be none any more.
cdef void pool_destroy(pool_t* pool) noexcept nogil
cdef bint pool_is_closed(const pool_t* pool) noexcept nogil     # at a glance, without the lock

# Is `ptr` the address of a live block? 0 or STATUS_FORKED.
cdef int pool_owns(pool_t* pool, const void* ptr, bint* owns) noexcept nogil
cdef int pool_size_of(pool_t* pool, const void* ptr, size_t* requested, size_t* used) noexcept nogil
cdef int pool_mem_info(pool_t* pool, size_t* free, size_t* total) noexcept nogil
cdef int pool_get_stats(pool_t* pool, pool_stats_t* out) noexcept nogil
cdef void pool_stats_locked(pool_t* pool, pool_stats_t* out) noexcept nogil     # the same with all locks held
cdef size_t pool_metadata(pool_t* pool) noexcept nogil
cdef const char* pool_check(pool_t* pool) noexcept nogil
cdef const char* pool_call_name(int call) noexcept nogil
cdef void pool_skip_batches(pool_t* pool, uint32_t batch) noexcept nogil   # for tests: go on with a later batch
cdef void pool_ignore_streams(pool_t* pool) noexcept nogil      # for tests: let every asynchronous free be a plain one
