"""Where a call goes on whose shortest path has ended, from the seat at which the thread still is, if any.

Each way is a jump: neither side of it saves a register for it. So each has to be in another module than this one.
"""

from libc.stdint cimport uint32_t

from cuda_pool._bins cimport BLOCK_MOST
from cuda_pool._desk cimport desk_tag
from cuda_pool._mid cimport MID_UNIT
from cuda_pool._relaxed cimport get_u32
from cuda_pool._seat cimport seat_leave
from cuda_pool._segment cimport TAG_INDEX_SHIFT, TAG_TIER, TIER_MID
from cuda_pool._serve cimport serve_block, serve_on, serve_slot, serve_upper
from cuda_pool._take_back cimport take_back, take_back_block, take_back_seated, take_back_upper


cdef int serve_at(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream, void** ptr,
                  seat_t* seat) noexcept nogil:
    if seat == NULL:
        return serve_on(pool, nbytes, alignment, stream, ptr)
    if nbytes <= pool.segment.slabs.max:
        return serve_slot(pool, nbytes, alignment, stream, ptr, seat)
    if nbytes <= <size_t>BLOCK_MOST:
        return serve_block(pool, nbytes, alignment, stream, ptr, seat)
    seat_leave(seat)
    return serve_upper(pool, nbytes, alignment, stream, ptr)


cdef int take_back_at(pool_t* pool, void* ptr, seat_t* seat) noexcept nogil:
    cdef size_t offset
    cdef uint32_t tag
    if seat == NULL:
        return take_back(pool, ptr)
    offset = <size_t>ptr - pool.base
    if offset >= pool.first:
        return take_back_seated(pool, ptr, seat)
    tag = desk_tag(pool, offset)
    if tag & TAG_TIER != TIER_MID:
        return take_back_seated(pool, ptr, seat)
    if get_u32(&pool.segment.mid.block[tag >> TAG_INDEX_SHIFT].size) <= BLOCK_MOST // MID_UNIT:
        return take_back_block(pool, ptr, seat, offset, tag >> TAG_INDEX_SHIFT)
    seat_leave(seat)
    return take_back_upper(pool, ptr)
