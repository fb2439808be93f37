"""The shortest paths: a slot from a thread's own cache, or back into it.

Each function says False, and has changed nothing, where that is not enough: at another pool's or a stopped seat, for
another stream, a size without a class, another alignment than the usual one, a slot that was never handed out, an empty
or a full bin. They call nothing, so that they need no stack. Whoever calls them goes on with _desk, at the seat that is
named then, or takes the locks.

To be used in one module only: each has a table of seats of its own.
"""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from cuda_pool._bins cimport BIN_ALIGNMENT, bin_t, cache_t, entry_t
from cuda_pool._driver cimport cudaStream_t
from cuda_pool._likely cimport likely
from cuda_pool._order cimport LEGACY, LEGACY_HANDLE, order_glance, stream_ref_t
from cuda_pool._owner cimport NOBODY
from cuda_pool._relaxed cimport get_u32, is_u32, set_u32
from cuda_pool._seat cimport seat_enter, seat_fall, seat_leave, seat_rise, seat_t
from cuda_pool._segment cimport TAG_TIER, TIER_SLAB
from cuda_pool._slab cimport NOT_LIVE, SLAB_UNIT, divides, slab_t, slot_t
from cuda_pool._state cimport pool_t

cdef extern from * nogil:
    """
    static __thread void *cuda_pool_table[CUDA_POOL_PLACES] __attribute__((tls_model("initial-exec")));
    static inline void **cuda_pool_seat_place(uint32_t place) { return (void **)((char *)cuda_pool_table + place); }
    """
    void** place_in_table "cuda_pool_seat_place"(uint32_t)

cdef enum:
    TAG_SLABS_SHIFT = 5             # a slab's record is 1 << this times its tag, less the tier, from the first


cdef inline seat_t** front_place(uint32_t place) noexcept nogil:
    """Where the calling thread finds its seat, or that of another pool."""
    return <seat_t**>place_in_table(place)


cdef inline seat_t* front_enter(const pool_t* pool) noexcept nogil:
    return seat_enter(front_place(pool.place)[0], pool)


cdef inline bint front_alloc(pool_t* pool, const stream_ref_t* stream, size_t nbytes, size_t alignment,
                             void** ptr) noexcept nogil:
    cdef seat_t* seat = front_enter(pool)
    cdef cache_t* cache
    cdef bint done
    if not likely(seat != NULL):
        return False
    cache = named_cache(pool, seat, stream)
    done = likely(cache != NULL) and take_slot(seat, cache, nbytes, alignment, ptr)
    seat_leave(seat)
    return done


cdef inline bint front_alloc_legacy(pool_t* pool, size_t nbytes, size_t alignment, void** ptr,
                                    seat_t** at) noexcept nogil:
    """The same for the legacy default stream."""
    cdef seat_t* seat = front_enter(pool)
    at[0] = seat
    if not likely(seat != NULL) or not likely(take_slot(seat, seat.cache[LEGACY], nbytes, alignment, ptr)):
        return False
    seat_leave(seat)
    return True


cdef inline bint front_alloc_on(pool_t* pool, cudaStream_t stream, size_t nbytes, size_t alignment, void** ptr,
                                seat_t** at) noexcept nogil:
    """The same for a handle."""
    cdef seat_t* seat = front_enter(pool)
    cdef cache_t* cache
    at[0] = seat
    if not likely(seat != NULL):
        return False
    cache = cache_of(pool, seat, stream)
    if not likely(cache != NULL and take_slot(seat, cache, nbytes, alignment, ptr)):
        return False
    seat_leave(seat)
    return True


cdef inline bint take_slot(seat_t* seat, cache_t* cache, size_t nbytes, size_t alignment, void** ptr) noexcept nogil:
    return likely(nbytes - 1 < cache.table_max and alignment == BIN_ALIGNMENT) and bin_take(
        seat, slot_bin(cache, nbytes), seat.mark, nbytes, ptr)


cdef inline bint front_free(pool_t* pool, void* ptr, seat_t** at) noexcept nogil:
    """Free a slot for anyone, or for whoever may have what it was cut from."""
    cdef seat_t* seat = front_enter(pool)
    at[0] = seat
    if not likely(seat != NULL) or not likely(free_slot(pool, seat, NULL, ptr)):
        return False
    seat_leave(seat)
    return True


cdef inline bint front_free_async(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    """Free a slot of the stream's own slabs in its order."""
    cdef seat_t* seat = front_enter(pool)
    cdef cache_t* cache
    cdef bint done
    if not likely(seat != NULL):
        return False
    cache = named_cache(pool, seat, stream)
    done = likely(cache != NULL) and free_slot(pool, seat, cache, ptr)
    seat_leave(seat)
    return done


cdef inline bint front_free_async_legacy(pool_t* pool, void* ptr, seat_t** at) noexcept nogil:
    """The same for the legacy default stream."""
    cdef seat_t* seat = front_enter(pool)
    at[0] = seat
    if not likely(seat != NULL) or not likely(free_slot(pool, seat, seat.cache[LEGACY], ptr)):
        return False
    seat_leave(seat)
    return True


cdef inline bint front_free_async_on(pool_t* pool, void* ptr, cudaStream_t stream, seat_t** at) noexcept nogil:
    """The same for a handle."""
    cdef seat_t* seat = front_enter(pool)
    cdef cache_t* cache
    at[0] = seat
    if not likely(seat != NULL):
        return False
    cache = cache_of(pool, seat, stream)
    if not likely(cache != NULL and free_slot(pool, seat, cache, ptr)):
        return False
    seat_leave(seat)
    return True


cdef inline cache_t* named_cache(const pool_t* pool, const seat_t* seat, const stream_ref_t* stream) noexcept nogil:
    """The cache of the stream that was named for sure, or NULL; for the legacy default stream see is_cache()."""
    cdef cache_t* cache
    if stream.owner == NOBODY:
        return cache_of(pool, seat, stream.handle)
    cache = seat.cache[stream.owner]
    return cache if cache.serial == stream.serial else NULL


cdef inline cache_t* cache_of(const pool_t* pool, const seat_t* seat, cudaStream_t stream) noexcept nogil:
    """The same for a handle."""
    cdef cache_t* cache
    if likely(<uintptr_t>stream <= LEGACY_HANDLE):
        return seat.cache[LEGACY]
    cache = seat.cache[order_glance(&pool.order, stream)]
    return cache if cache.by_handle and cache.handle == stream else NULL


cdef inline bin_t* slot_bin(cache_t* cache, size_t nbytes) noexcept nogil:
    return <bin_t*>(<char*>cache.bin + cache.table[(nbytes + SLAB_UNIT - 1) // SLAB_UNIT])


cdef inline bint bin_take(seat_t* seat, bin_t* bin, uint32_t mark, size_t nbytes, void** ptr) noexcept nogil:
    """Take the slot that was put in last, if it has that mark."""
    cdef entry_t* top = bin.top
    cdef slot_t* slot
    if not likely(top != bin.floor):
        return False
    slot = <slot_t*>top[-1].record
    if not likely(is_u32(&slot.value, mark)):
        return False
    set_u32(&slot.value, <uint32_t>nbytes)
    ptr[0] = top[-1].ptr
    bin.top = top - 1
    seat_rise(seat, bin.size, nbytes)
    return True


cdef inline bint free_slot(pool_t* pool, seat_t* seat, const cache_t* cache, void* ptr) noexcept nogil:
    """Free a live slot of the first region: of whoever, or of the stream of a cache in its order."""
    cdef size_t offset = <size_t>ptr - pool.base
    cdef uint32_t tag
    cdef slab_t* slab
    cdef uint64_t number = 0
    if not likely(offset < pool.first):
        return False
    tag = get_u32(&pool.segment.tag[offset >> pool.segment.granule_shift]) - TIER_SLAB
    if not likely(tag & TAG_TIER == 0):
        return False
    slab = <slab_t*>(<char*>pool.segment.slabs.slab + (<size_t>tag << TAG_SLABS_SHIFT))
    # Behind the last slot there is one that is never live.
    if not likely(divides(offset - slab.start, slab.reciprocal, slab.limit, &number)):
        return False
    return bin_give(pool, seat, cache, slab, &slab.slot[number], ptr)


cdef inline bint bin_give(pool_t* pool, seat_t* seat, const cache_t* cache, slab_t* slab, slot_t* slot,
                          void* ptr) noexcept nogil:
    cdef cache_t* own = seat.cache[slab.owner]
    cdef uint32_t value = get_u32(&slot.value), batch
    cdef bin_t* bin
    cdef entry_t* top
    if not likely(value & NOT_LIVE == 0):
        return False
    bin = &own.bin[slab.size_class]
    top = bin.top
    if not likely(top != bin.limit):
        return False
    if cache != NULL:
        if not likely(cache == own and own.unmarked < own.unmarked_most):
            return False
        own.unmarked += bin.size
        batch = pool.order.batch
        set_u32(&slot.batch, batch)
        if not likely(is_u32(&slab.batch, batch)):      # threads that write its line wait for each other
            set_u32(&slab.batch, batch)
        note_freed(own, batch)
    set_u32(&slot.value, seat.mark)
    top.ptr = ptr
    top.record = slot
    bin.top = top + 1
    seat_fall(seat, bin.size, value)
    return True


cdef inline void note_freed(const cache_t* cache, uint32_t batch) noexcept nogil:
    if not likely(is_u32(cache.freed, batch)):
        set_u32(cache.freed, batch)
