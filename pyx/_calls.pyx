"""Allocate and free: the shortest path first. What is left is in another module, so that no register is saved for it."""

from cuda_pool._front cimport (
    front_alloc, front_alloc_on, front_free, front_free_async, front_free_async_on, front_place)
from cuda_pool._pool cimport (
    serve, serve_on, serve_unnoted, take_back, take_back_async, take_back_async_on, take_back_async_unnoted, try_serve,
    try_take_back, try_take_back_async, try_take_back_async_unnoted)
from cuda_pool._status cimport STATUS_OK


cdef int pool_alloc(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream, void** ptr) noexcept nogil:
    if front_alloc_on(pool, stream, nbytes, alignment, ptr):
        return STATUS_OK
    return serve_on(pool, front_place(pool), nbytes, alignment, stream, ptr)


cdef int pool_free(pool_t* pool, void* ptr) noexcept nogil:
    return STATUS_OK if front_free(pool, ptr) else take_back(pool, front_place(pool), ptr)


cdef int pool_free_async(pool_t* pool, void* ptr, cudaStream_t stream) noexcept nogil:
    if front_free_async_on(pool, ptr, stream):
        return STATUS_OK
    return take_back_async_on(pool, front_place(pool), ptr, stream)


cdef int pool_alloc_as(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                       void** ptr) noexcept nogil:
    if front_alloc(pool, stream, nbytes, alignment, ptr):
        return STATUS_OK
    return serve(pool, front_place(pool), nbytes, alignment, stream, ptr)


cdef int pool_free_async_as(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    if front_free_async(pool, ptr, stream):
        return STATUS_OK
    return take_back_async(pool, front_place(pool), ptr, stream)


cdef int pool_try_alloc_as(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                           void** ptr) noexcept nogil:
    if front_alloc(pool, stream, nbytes, alignment, ptr):
        return STATUS_OK
    return try_serve(pool, front_place(pool), nbytes, alignment, stream, ptr)


cdef int pool_try_free(pool_t* pool, void* ptr) noexcept nogil:
    return STATUS_OK if front_free(pool, ptr) else try_take_back(pool, front_place(pool), ptr)


cdef int pool_try_free_async_as(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    if front_free_async(pool, ptr, stream):
        return STATUS_OK
    return try_take_back_async(pool, front_place(pool), ptr, stream)


# Without a note

cdef int pool_alloc_unnoted(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                            void** ptr) noexcept nogil:
    return serve_unnoted(pool, front_place(pool), nbytes, alignment, stream, ptr)


cdef int pool_free_async_unnoted(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    return take_back_async_unnoted(pool, front_place(pool), ptr, stream)


cdef int pool_try_free_async_unnoted(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    return try_take_back_async_unnoted(pool, front_place(pool), ptr, stream)
