"""The shortest paths: what can be done with a slot while its owner's heap is locked, and nothing else.

Threads on different streams meet nowhere here. Each function says False, and has changed nothing, where that is not
enough; whoever calls it then takes the pool's lock as well, and looks again.
"""

from libc.stdint cimport uint32_t, uintptr_t

from cuda_pool._heap cimport heap_t
from cuda_pool._lock cimport lock_acquire, lock_release
from cuda_pool._order cimport (
    LEGACY, LEGACY_HANDLE, STREAM_HELD, STREAM_THREAD, order_glance, ref_is_valid, stream_can_vanish, stream_ref_t,
    stream_t, this_thread)
from cuda_pool._owner cimport NOBODY, owner_t
from cuda_pool._relaxed cimport get_flag, get_pointer, get_u16, get_u32, set_u32
from cuda_pool._segment cimport (
    TAG_INDEX_SHIFT, TAG_TIER, TIER_SLAB, place_t, segment_free, segment_slot_is_live, segment_take_slot)
from cuda_pool._slab cimport slab_would_be_spare
from cuda_pool._state cimport pool_address, pool_offset, pool_t


cdef inline bint front_alloc(pool_t* pool, const stream_ref_t* stream, size_t nbytes, size_t alignment,
                             void** ptr) noexcept nogil:
    cdef owner_t owner = glance(pool, stream)
    cdef heap_t* heap = front_enter(pool, owner)
    cdef size_t offset = 0, used = 0
    cdef bint done
    if heap == NULL:
        return False
    done = (is_named(pool, owner, stream) and nbytes != 0
            and segment_take_slot(&pool.segment, owner, nbytes, alignment, &offset, &used))
    if done:
        ptr[0] = pool_address(pool, offset)
    lock_release(&heap.lock)
    return done


cdef inline bint front_free(pool_t* pool, void* ptr) noexcept nogil:
    """Free a slot for anyone. Whose it is is looked up without a lock, and again with it."""
    cdef size_t offset = pool_offset(pool, ptr)
    cdef uint32_t tag
    cdef owner_t owner
    cdef heap_t* heap
    cdef bint done
    if get_pointer(<void**>&pool.heaps) == NULL or offset >= pool.segment.span or pool.scrub:
        return False
    tag = get_u32(&pool.segment.tag[offset >> pool.segment.granule_shift])
    if tag & TAG_TIER != TIER_SLAB:
        return False
    owner = get_u16(&pool.segment.slabs.slab[tag >> TAG_INDEX_SHIFT].owner)
    heap = front_enter(pool, owner)
    if heap == NULL:
        return False
    # In a pool that grows another region may be there by now; in any other the place is as sure as before.
    done = (not pool.grows or pool_offset(pool, ptr) == offset) and free_slot(pool, owner, offset, 0)
    lock_release(&heap.lock)
    return done


cdef inline bint front_free_async(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    """Free a slot of the stream's own slabs in its order."""
    cdef owner_t owner = glance(pool, stream)
    cdef heap_t* heap = front_enter(pool, owner)
    cdef size_t offset
    cdef bint done
    if heap == NULL:
        return False
    offset = pool_offset(pool, ptr)
    done = (offset < pool.segment.span and not pool.scrub and not pool.unordered and is_named(pool, owner, stream)
            and not is_mark_due(pool, owner) and free_slot(pool, owner, offset, pool.order.batch))
    if done and pool.order.stream[owner].freed != pool.order.batch:
        set_u32(&pool.order.stream[owner].freed, pool.order.batch)
    lock_release(&heap.lock)
    return done


cdef inline owner_t glance(const pool_t* pool, const stream_ref_t* stream) noexcept nogil:
    """Whose heap is to be locked, most likely."""
    if stream.owner != NOBODY:
        return stream.owner
    if <uintptr_t>stream.handle <= LEGACY_HANDLE:
        return LEGACY
    return order_glance(&pool.order, stream.handle)


cdef inline heap_t* front_enter(pool_t* pool, owner_t owner) noexcept nogil:
    """Lock an owner's heap; NULL, and nothing is locked, where that alone is not enough to do anything."""
    cdef heap_t* heap
    if owner == NOBODY or pool.generation != pool.forks[0] or get_pointer(<void**>&pool.heaps) == NULL:
        return NULL
    heap = &pool.heaps[owner]
    lock_acquire(&heap.lock)
    if not get_flag(&pool.closed) and pool.order.captures == 0:
        return heap
    lock_release(&heap.lock)
    return NULL


cdef inline bint is_named(const pool_t* pool, owner_t owner, const stream_ref_t* stream) noexcept nogil:
    """Is the owner the stream that was named, for sure?"""
    cdef const stream_t* record = &pool.order.stream[owner]
    if stream.owner != NOBODY:
        return ref_is_valid(&pool.order, stream)
    if owner == LEGACY:
        return True
    return record.handle == stream.handle and (
        record.kind == STREAM_HELD or (record.kind == STREAM_THREAD and record.id == this_thread()))


cdef inline bint is_mark_due(const pool_t* pool, owner_t owner) noexcept nogil:
    """Is there so much without an event that one should be recorded before the stream can vanish?"""
    return pool.heaps[owner].unmarked >= pool.mark_bytes and stream_can_vanish(&pool.order.stream[owner])


cdef inline bint free_slot(pool_t* pool, owner_t owner, size_t offset, uint32_t batch) noexcept nogil:
    """Free a live slot of the owner's, of which nothing else is known and whose slab is not to be given back."""
    cdef uint32_t tag = get_u32(&pool.segment.tag[offset >> pool.segment.granule_shift])
    cdef uint32_t slab = tag >> TAG_INDEX_SHIFT
    cdef place_t place
    if tag & TAG_TIER != TIER_SLAB or get_u16(&pool.segment.slabs.slab[slab].owner) != owner:
        return False
    if get_u32(&pool.uses.count) != 0 or get_pointer(<void**>&pool.leaving) != NULL:
        return False
    if not segment_slot_is_live(&pool.segment, slab, offset, &place) or slab_would_be_spare(&pool.segment.slabs, slab):
        return False
    segment_free(&pool.segment, &place, owner, batch)
    if batch != 0:
        pool.heaps[owner].unmarked += place.used
    return True
