"""An allocation where the shortest path ends: at the seat, with `lock`, with all locks; and then see _slowly."""

from cuda_pool._driver cimport cudaStream_t
from cuda_pool._order cimport stream_ref_t
from cuda_pool._owner cimport owner_t
from cuda_pool._seat cimport seat_t
from cuda_pool._state cimport pool_t

# What is left of the calls in _calls when the shortest path is not enough: for a reference to a stream; for a handle,
# from where the thread has no seat; a slot or a block at the seat at which it still is; where that did not serve it; a
# block that no cache could serve; and without a driver call.
cdef int serve(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream, void** ptr) noexcept nogil
cdef int serve_on(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream, void** ptr) noexcept nogil
cdef int serve_slot(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream, void** ptr,
                    seat_t* seat) noexcept nogil
cdef int serve_block(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream, void** ptr,
                     seat_t* seat) noexcept nogil
cdef int serve_unseated(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream, void** ptr) noexcept nogil
cdef int serve_upper(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream, void** ptr) noexcept nogil
cdef int try_serve(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream, void** ptr) noexcept nogil
# The same without a note, where calls are recorded: by whoever writes one.
cdef int serve_unnoted(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                       void** ptr) noexcept nogil
cdef int try_serve_unnoted(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                           void** ptr) noexcept nogil
# With all locks held, for an owner.
cdef int alloc_locked(pool_t* pool, owner_t owner, size_t nbytes, size_t alignment, void** ptr) noexcept nogil
