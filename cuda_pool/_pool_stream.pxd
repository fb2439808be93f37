"""What a pool is told of streams: uses, promises that they exist, captures, that they are gone."""

from cuda_pool._driver cimport cudaStream_t
from cuda_pool._order cimport stream_ref_t
from cuda_pool._owner cimport owner_t
from cuda_pool._state cimport pool_t

cdef int pool_record_use(pool_t* pool, void* ptr, cudaStream_t stream) noexcept nogil
# The same for a stream that was looked up before, and of which the caller knows that it is still the same; or, where
# the owner is NOBODY, for its handle.
cdef int pool_record_use_as(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil
# Wait for everything queued on a stream.
cdef int pool_stream_wait(pool_t* pool, cudaStream_t stream) noexcept nogil
# Settle what was freed on a stream that is about to be destroyed.
cdef int pool_forget_stream(pool_t* pool, cudaStream_t stream) noexcept nogil
# Promise that a stream exists until it is forgotten.
cdef int pool_hold_stream(pool_t* pool, cudaStream_t stream) noexcept nogil
# Look up a stream whose object can be asked whether it still exists. The owner is NOBODY when there is no room for it.
cdef int pool_vouch_stream(pool_t* pool, cudaStream_t stream, stream_ref_t* ref) noexcept nogil
# Look a stream up without the driver: of a handle that was seen before, or of a default stream.
cdef stream_ref_t pool_find_stream(pool_t* pool, cudaStream_t stream) noexcept nogil
# The object was asked, and stands for that stream now; once this is taken back nothing is called on it.
cdef void pool_stream_exists(pool_t* pool, const stream_ref_t* stream, bint exists) noexcept nogil
cdef void pool_unvouch_stream(pool_t* pool, const stream_ref_t* stream) noexcept nogil     # the object is let go of
cdef bint pool_stream_is_pending(pool_t* pool, const stream_ref_t* stream) noexcept nogil
# What is allocated and freed on the stream between these two is `capture`'s until the third gives it to a stream
# (whose record this is), or to nobody.
cdef int pool_begin_capture(pool_t* pool, cudaStream_t stream, owner_t* capture) noexcept nogil
cdef int pool_end_capture(pool_t* pool, owner_t capture) noexcept nogil
cdef int pool_release_capture(pool_t* pool, owner_t capture, const cudaStream_t* last) noexcept nogil
