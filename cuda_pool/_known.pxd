"""Which record a call means by the stream that it names, with the pool's lock held."""

from libc.stdint cimport uintptr_t

from cuda_pool._driver cimport cudaStream_t
from cuda_pool._order cimport (
    STREAM_HANDLE, STREAM_THREAD, STREAM_VOUCHED, THREAD_HANDLE, order_add, order_find, ref_is_valid,
    stream_is_pending, stream_ref_t, stream_t, this_thread)
from cuda_pool._owner cimport LEGACY, NOBODY, owner_t
from cuda_pool._prepare cimport segment_admit_stream
from cuda_pool._state cimport pool_t


cdef inline bint can_be_another(const stream_t* stream) noexcept nogil:
    """May its handle name another stream by now?"""
    return stream.kind == STREAM_HANDLE or stream.kind == STREAM_VOUCHED


cdef inline stream_ref_t by_handle(cudaStream_t handle) noexcept nogil:
    cdef stream_ref_t ref
    ref.owner, ref.serial, ref.handle = NOBODY, 0, handle
    return ref


cdef inline owner_t named_locked(pool_t* pool, const stream_ref_t* stream) noexcept nogil:
    """The record of a stream, or NOBODY if it has none any more."""
    if stream.owner == NOBODY:
        return stream_locked(pool, stream.handle)
    return stream.owner if ref_is_valid(&pool.order, stream) else <owner_t>NOBODY


cdef inline owner_t known_locked(pool_t* pool, const stream_ref_t* stream) noexcept nogil:
    """The same with `lock` alone, under which no record is made."""
    if stream.owner == NOBODY:
        return order_find(&pool.order, stream.handle)
    return stream.owner if ref_is_valid(&pool.order, stream) else <owner_t>NOBODY


cdef inline bint is_sure(const pool_t* pool, owner_t owner, const stream_ref_t* stream) noexcept nogil:
    """Is the record that of the stream that was named, and not of an earlier one with the same handle?"""
    if owner == LEGACY:
        return True
    return owner != NOBODY and (stream.owner != NOBODY or not can_be_another(&pool.order.stream[owner]))


cdef inline bint may_reuse(const pool_t* pool, owner_t owner, const stream_ref_t* stream) noexcept nogil:
    """May it have what the record's stream freed: is it that stream, or is nothing pending there?"""
    return is_sure(pool, owner, stream) or (owner != NOBODY and not stream_is_pending(&pool.order.stream[owner]))


cdef inline owner_t stream_locked(pool_t* pool, cudaStream_t stream) noexcept nogil:
    """The record of a handle; that of a thread's default stream is made where there is none."""
    cdef owner_t owner = order_find(&pool.order, stream)
    if owner == NOBODY and <uintptr_t>stream == THREAD_HANDLE:
        owner = order_add(&pool.order, STREAM_THREAD, stream, this_thread())
        if owner != NOBODY:
            segment_admit_stream(&pool.segment, owner)
    return owner
