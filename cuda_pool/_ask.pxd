"""What a pool asks the driver: never under its lock, always with its device current, and counted."""

from libc.stdint cimport uint64_t

from cuda_pool._driver cimport cudaEvent_t, cudaStream_t
from cuda_pool._state cimport leaving_t, pool_t, upstream_t

# Each returns a status.
cdef int ask_region(pool_t* pool) noexcept nogil
cdef int ask_region_back(pool_t* pool) noexcept nogil
# Enter the pool's device for several calls named cu*, each of which is then counted; device_leave() ends it.
cdef int ask_begin_context(pool_t* pool, int* previous) noexcept nogil
cdef int ask_count(pool_t* pool, int error, upstream_t call) noexcept nogil
cdef int ask_regions_back(pool_t* pool) noexcept nogil          # of a closed pool
# One more region for a pool that is open, and one less. STATUS_OVERLAP: the driver returned what is live already; so
# may ask_region().
cdef int ask_more(pool_t* pool, size_t nbytes, void** start) noexcept nogil
cdef int ask_less(pool_t* pool, void* start, size_t nbytes) noexcept nogil
cdef int ask_mem_info(pool_t* pool, size_t* free, size_t* total) noexcept nogil
cdef int ask_zero(pool_t* pool, const leaving_t* block, cudaStream_t stream) noexcept nogil
# Wait for everything queued on a stream, or for all work of the device.
cdef int ask_stream_done(pool_t* pool, cudaStream_t stream) noexcept nogil
cdef int ask_device_done(pool_t* pool) noexcept nogil
cdef int ask_stream_id(pool_t* pool, cudaStream_t stream, uint64_t* id) noexcept nogil
# Is it safe to queue something there? An error of the question counts as no: another stream's capture may forbid it.
cdef bint ask_is_open(pool_t* pool, cudaStream_t stream) noexcept nogil
# Is everything done that was queued on a stream?
cdef int ask_is_idle(pool_t* pool, cudaStream_t stream, bint* idle) noexcept nogil
# Record an event, a spare one or a new one.
cdef int ask_event(pool_t* pool, cudaStream_t stream, cudaEvent_t* event) noexcept nogil
cdef int ask_is_over(pool_t* pool, cudaEvent_t event, bint* over) noexcept nogil
cdef int ask_event_done(pool_t* pool, cudaEvent_t event) noexcept nogil
cdef int ask_wait(pool_t* pool, cudaStream_t stream, cudaEvent_t event) noexcept nogil
# Keep an event for its next use, or destroy it where there is no room; NULL does nothing.
cdef void ask_keep_event(pool_t* pool, cudaEvent_t event) noexcept nogil
cdef void ask_no_events(pool_t* pool) noexcept nogil            # destroy those that were kept
cdef const char* ask_call_name(int call) noexcept nogil
