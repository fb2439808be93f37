"""More in a thread's caches while other threads are in its way."""

from libc.stdint cimport uint32_t
from libc.string cimport memmove

from cuda_pool._bins cimport (
    BLOCK_BINS, BLOCK_ENTRIES_MOST, bin_count, bin_t, block_bin, cache_limit_blocks, cache_t, entry_t, is_cache)
from cuda_pool._blocks cimport block_return
from cuda_pool._mid cimport mid_block_t
from cuda_pool._owner cimport NOBODY
from cuda_pool._relaxed cimport get_pointer
from cuda_pool._seat cimport load_u32, seat_here, seat_t
from cuda_pool._state cimport blocks_bytes

cdef enum:
    CROWD_CALLS = 64                # of one thread in a row: then the others are not in its way
    CROWD_SHARE = 8                 # of the capacity: what the caches that hold more may hold together
    CROWD_BYTES_MAX = 256 << 20     # of one cache
    RETURN_BINS = 4                 # out of which blocks are returned at one time: that of the size, and larger ones


cdef void crowd_note(pool_t* pool, owner_t owner, size_t used) noexcept nogil:
    cdef seat_t* seat = crowded_seat(pool)
    cdef cache_t* cache
    cdef bin_t* bin
    cdef int index
    if seat == NULL:
        return
    cache = seat.cache[owner if owner != NOBODY else seat.recent]
    if not is_cache(cache) or cache.blocks_most == 0:
        return
    if cache.blocks_most <= blocks_bytes(pool):
        raise_limits(pool, cache)
    bin = &cache.block[block_bin(used)]
    if bin.top == bin.limit:
        return_half(pool, cache, bin)
    elif cache.blocks_bytes + used > cache.blocks_most:
        for index in range(block_bin(used), min(block_bin(used) + RETURN_BINS, <int>BLOCK_BINS)):
            return_half(pool, cache, &cache.block[index])


cdef inline seat_t* crowded_seat(pool_t* pool) noexcept nogil:
    """The calling thread's seat, if another thread was here not long ago, and it is not stopped; or NULL.

    Seats are stopped, and other threads' caches looked at, with the pool's lock held.
    """
    cdef seat_t* seat = seat_here(pool, pool.place)
    if seat == NULL or get_pointer(<void* const*>&seat.gate) == NULL:
        return NULL
    if pool.crowd.last != seat:
        pool.crowd.calls = CROWD_CALLS if pool.crowd.last != NULL else 0
        pool.crowd.last = seat
    if pool.crowd.calls == 0:
        return NULL
    pool.crowd.calls -= 1
    return seat


cdef void raise_limits(pool_t* pool, cache_t* cache) noexcept nogil:
    """Let a cache have its thread's part of the share, as far as other caches have left of it."""
    cdef const seat_t* seat = pool.segment.seats
    cdef size_t seats = 0, share = pool.capacity // CROWD_SHARE, most
    while seat != NULL:
        seats += load_u32(&seat.left) == 0
        seat = seat.next
    most = min(min(share // seats, share - pool.crowd.bytes), <size_t>CROWD_BYTES_MAX)
    if most > cache.blocks_most:
        pool.crowd.bytes += most
        cache_limit_blocks(cache, most, BLOCK_ENTRIES_MOST)


cdef void return_half(pool_t* pool, cache_t* cache, bin_t* bin) noexcept nogil:
    """Return the older half of a bin."""
    cdef uint32_t count = bin_count(bin), half = count // 2, at
    for at in range(half):
        cache.blocks_bytes -= block_return(pool, <mid_block_t*>bin.floor[at].record)
    memmove(bin.floor, bin.floor + half, (count - half) * sizeof(entry_t))
    bin.top -= half
