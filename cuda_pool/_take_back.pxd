"""A free where the shortest path ends: at the seat, with `lock`, with all locks; and then see _slowly."""

from libc.stdint cimport uint32_t

from cuda_pool._driver cimport cudaStream_t
from cuda_pool._order cimport stream_ref_t, stream_t
from cuda_pool._owner cimport owner_t
from cuda_pool._seat cimport seat_t
from cuda_pool._state cimport pool_t

# What is left of the calls in _calls when the shortest path is not enough; *_seated at the seat at which the thread
# still is, *_at as well, if it is; *_block there for one of the mid tier, by its record; *_upper for one that no cache
# takes; try_* without a driver call; *_unnoted without a note, where calls are recorded: by whoever writes one.
cdef int take_back(pool_t* pool, void* ptr) noexcept nogil
cdef int take_back_seated(pool_t* pool, void* ptr, seat_t* seat) noexcept nogil
cdef int take_back_block(pool_t* pool, void* ptr, seat_t* seat, size_t offset, uint32_t index) noexcept nogil
cdef int take_back_upper(pool_t* pool, void* ptr) noexcept nogil
cdef int take_back_unnoted(pool_t* pool, void* ptr) noexcept nogil
cdef int try_take_back(pool_t* pool, void* ptr) noexcept nogil
cdef int try_take_back_unnoted(pool_t* pool, void* ptr) noexcept nogil
cdef int take_back_async(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil
cdef int take_back_async_at(pool_t* pool, void* ptr, cudaStream_t stream, seat_t* seat) noexcept nogil
cdef int take_back_async_unnoted(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil
cdef int try_take_back_async(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil
cdef int try_take_back_async_unnoted(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil
# What was freed on a stream at seats is counted with the rest; with all locks held.
cdef void count_unmarked(pool_t* pool, owner_t owner) noexcept nogil
cdef bint is_worth_an_event(const pool_t* pool, const stream_t* stream, size_t unmarked) noexcept nogil
