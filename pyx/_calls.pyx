"""Allocate and free: the shortest path first. What is left is in another module, so that no register is saved for it.

Where the shortest path ends the thread may still be at its seat.
"""

from libc.stdint cimport uintptr_t

from cuda_pool._front cimport (
    front_alloc, front_alloc_legacy, front_alloc_on, front_free, front_free_async, front_free_async_legacy,
    front_free_async_on, front_place)
from cuda_pool._likely cimport likely
from cuda_pool._onward cimport serve_at, take_back_at
from cuda_pool._order cimport LEGACY_HANDLE
from cuda_pool._seat cimport seat_leave, seat_t, seats_are_found_by
from cuda_pool._serve cimport serve, try_serve
from cuda_pool._status cimport STATUS_OK
from cuda_pool._take_back cimport take_back_async, take_back_async_at, try_take_back, try_take_back_async


cdef int pool_alloc(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream, void** ptr) noexcept nogil:
    cdef seat_t* seat
    if not likely(<uintptr_t>stream <= LEGACY_HANDLE):
        return pool_alloc_on(pool, nbytes, alignment, stream, ptr)
    if front_alloc_legacy(pool, nbytes, alignment, ptr, &seat):
        return STATUS_OK
    return serve_at(pool, nbytes, alignment, NULL, ptr, seat)       # either handle of it; so its register is free


cdef int pool_alloc_on(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream, void** ptr) noexcept nogil:
    cdef seat_t* seat
    if front_alloc_on(pool, stream, nbytes, alignment, ptr, &seat):
        return STATUS_OK
    return serve_at(pool, nbytes, alignment, stream, ptr, seat)


cdef int pool_free(pool_t* pool, void* ptr) noexcept nogil:
    cdef seat_t* seat
    return STATUS_OK if front_free(pool, ptr, &seat) else take_back_at(pool, ptr, seat)


cdef int pool_free_async(pool_t* pool, void* ptr, cudaStream_t stream) noexcept nogil:
    cdef seat_t* seat
    if not likely(<uintptr_t>stream <= LEGACY_HANDLE):
        return pool_free_async_on(pool, ptr, stream)
    if front_free_async_legacy(pool, ptr, &seat):
        return STATUS_OK
    return take_back_async_at(pool, ptr, stream, seat)


cdef int pool_free_async_on(pool_t* pool, void* ptr, cudaStream_t stream) noexcept nogil:
    cdef seat_t* seat
    if front_free_async_on(pool, ptr, stream, &seat):
        return STATUS_OK
    return take_back_async_at(pool, ptr, stream, seat)


cdef int pool_alloc_as(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                       void** ptr) noexcept nogil:
    if front_alloc(pool, stream, nbytes, alignment, ptr):
        return STATUS_OK
    return serve(pool, nbytes, alignment, stream, ptr)


cdef int pool_free_async_as(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    return STATUS_OK if front_free_async(pool, ptr, stream) else take_back_async(pool, ptr, stream)


cdef int pool_try_alloc_as(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                           void** ptr) noexcept nogil:
    if front_alloc(pool, stream, nbytes, alignment, ptr):
        return STATUS_OK
    return try_serve(pool, nbytes, alignment, stream, ptr)


cdef int pool_try_free(pool_t* pool, void* ptr) noexcept nogil:
    cdef seat_t* seat
    if front_free(pool, ptr, &seat):
        return STATUS_OK
    if seat != NULL:
        seat_leave(seat)
    return try_take_back(pool, ptr)


cdef int pool_try_free_async_as(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    return STATUS_OK if front_free_async(pool, ptr, stream) else try_take_back_async(pool, ptr, stream)


seats_are_found_by(front_place)
