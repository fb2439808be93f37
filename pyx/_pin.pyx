"""Handles of movable blocks: making, pinning and freeing them.

A block is moved only by a holder of `slow` (see _defrag), and only while nobody has it pinned. So whoever finds it on
the move waits for `slow`, and holds it up for one step at most.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from cuda_pool._behind cimport get_behind_or_wait
from cuda_pool._bits cimport is_power_of_two
from cuda_pool._defrag cimport defrag_if_due, defrag_is_due, defrag_note
from cuda_pool._lock cimport lock_release
from cuda_pool._locks cimport enter, enter_lock, leave, leave_lock
from cuda_pool._movables cimport (
    MOVABLE_AWAY, MOVABLE_MOVES, MOVABLE_RESTS, NO_MOVABLE, movable_t, movables_add, movables_find, movables_remove)
from cuda_pool._order cimport ref_is_valid, ref_to, stream_ref_t
from cuda_pool._owner cimport NOBODY, owner_t, owners_add, owners_any, owners_discard, owners_has, owners_t
from cuda_pool._segment cimport place_t, segment_alloc_movable, segment_find, segment_mark_movable
from cuda_pool._state cimport pool_address, pool_offset
from cuda_pool._status cimport (
    STATUS_BAD_ALIGNMENT, STATUS_CAPTURING, STATUS_CLOSED, STATUS_FREED_POINTER, STATUS_HOST_MEMORY, STATUS_OK,
    STATUS_OUT_OF_MEMORY, STATUS_PINNED, STATUS_WOULD_WAIT)
from cuda_pool._ring cimport note_t
from cuda_pool._serve cimport serve_unnoted
from cuda_pool._slowly cimport slow_enter, slow_enter_named
from cuda_pool._take_back cimport take_back_async_unnoted, try_take_back_async_unnoted
from cuda_pool._traced cimport (
    MOVABLE_KEY, traced_enter, traced_held_stack, traced_made, traced_open, traced_settle, traced_stack,
    traced_try_enter)
from cuda_pool._tracer cimport STREAM_OF_BLOCK, tracer_t
from cuda_pool._uses cimport use_t, uses_find, uses_of, uses_remove


# Making

cdef int pin_try_make(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                      uint32_t* handle) noexcept nogil:
    cdef uint32_t stack = traced_stack(pool)
    cdef tracer_t* tracer
    cdef int status
    handle[0] = NO_MOVABLE
    if not traced_try_enter(pool, &tracer):
        return STATUS_WOULD_WAIT
    status = try_make(pool, nbytes, alignment, stream, handle)
    traced_made(tracer, status, key_of(handle[0]), nbytes, stream.handle, stack)
    return status


cdef int pin_make(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                  uint32_t* handle) noexcept nogil:
    cdef tracer_t* tracer
    cdef int status
    traced_enter(pool, &tracer)
    status = make(pool, nbytes, alignment, stream, handle)
    traced_made(tracer, status, key_of(handle[0]), nbytes, stream.handle, traced_held_stack())
    return status


cdef inline uint64_t key_of(uint32_t handle) noexcept nogil:
    """What a recording knows a block by whose address may change."""
    return MOVABLE_KEY + handle if handle != NO_MOVABLE else 0


cdef int try_make(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                  uint32_t* handle) noexcept nogil:
    cdef int status
    handle[0] = NO_MOVABLE
    if not is_power_of_two(alignment):
        return STATUS_BAD_ALIGNMENT
    status = enter_lock(pool)
    if status != STATUS_OK or nbytes == 0:
        if status == STATUS_OK:
            leave_lock(pool)
        return status
    if ref_is_valid(&pool.order, stream) and pool.order.captures == 0 and not defrag_is_due(pool):
        status = make_locked(pool, stream, nbytes, alignment, handle)
    else:
        status = STATUS_WOULD_WAIT
    leave_lock(pool)
    return STATUS_WOULD_WAIT if status == STATUS_OUT_OF_MEMORY else status


cdef int make_locked(pool_t* pool, const stream_ref_t* home, size_t nbytes, size_t alignment,
                     uint32_t* handle) noexcept nogil:
    """The record first: nothing that can fail comes after the allocation."""
    cdef size_t offset = 0, used = 0
    cdef int status
    handle[0] = add_record(pool, home, nbytes, alignment)
    if handle[0] == NO_MOVABLE:
        return STATUS_HOST_MEMORY
    status = segment_alloc_movable(&pool.segment, home.owner, nbytes, alignment, &offset, &used)
    if status != STATUS_OK:
        drop_record(pool, handle[0])
        handle[0] = NO_MOVABLE
        return status
    settle_in(pool, handle[0], pool_address(pool, offset))
    defrag_note(pool)
    return STATUS_OK


cdef uint32_t add_record(pool_t* pool, const stream_ref_t* home, size_t nbytes, size_t alignment) noexcept nogil:
    cdef uint32_t handle = movables_add(&pool.movables, nbytes, alignment, home.owner, home.serial)
    if handle != NO_MOVABLE:
        pool.order.stream[home.owner].homes += 1
    return handle


cdef void drop_record(pool_t* pool, uint32_t handle) noexcept nogil:
    pool.order.stream[pool.movables.record[handle].home].homes -= 1
    movables_remove(&pool.movables, handle)


cdef void settle_in(pool_t* pool, uint32_t handle, void* ptr) noexcept nogil:
    """Let a live block, which is nobody's else, be that of a record."""
    cdef movable_t* record = &pool.movables.record[handle]
    cdef place_t place
    segment_find(&pool.segment, pool_offset(pool, ptr), &place)
    record.ptr = ptr
    record.state = MOVABLE_RESTS
    segment_mark_movable(&pool.segment, &place, handle, record.nbytes)


cdef int make(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
              uint32_t* handle) noexcept nogil:
    cdef stream_ref_t home
    cdef void* ptr = NULL
    cdef int status
    defrag_if_due(pool)
    status = try_make(pool, nbytes, alignment, stream, handle)
    if status != STATUS_WOULD_WAIT:
        return status
    status = find_home(pool, stream, nbytes, alignment, handle, &home)
    if status != STATUS_OK:
        return status
    # More than a slot holds: a slot cannot be moved.
    status = serve_unnoted(pool, max(nbytes, pool.segment.slabs.max + 1), alignment, &home, &ptr)
    if enter_lock(pool) != STATUS_OK:
        handle[0] = NO_MOVABLE
        return status if status != STATUS_OK else STATUS_CLOSED
    if status == STATUS_OK:
        settle_in(pool, handle[0], ptr)
    else:
        drop_record(pool, handle[0])
        handle[0] = NO_MOVABLE
    leave_lock(pool)
    return status


cdef int find_home(pool_t* pool, const stream_ref_t* stream, size_t nbytes, size_t alignment, uint32_t* handle,
                   stream_ref_t* home) noexcept nogil:
    """Find out which stream is meant, and make the record that keeps it.

    A captured stream is refused: what it has is its graph's, and cannot move.
    """
    cdef owner_t owner
    cdef int status = slow_enter_named(pool, stream, &owner)
    if status != STATUS_OK:
        return status
    status = enter_lock(pool)
    if status == STATUS_OK:
        home[0] = ref_to(&pool.order, owner, stream.handle)
        if pool.order.stream[owner].capture != NOBODY:
            status = STATUS_CAPTURING
        else:
            handle[0] = add_record(pool, home, nbytes, alignment)
            status = STATUS_OK if handle[0] != NO_MOVABLE else STATUS_HOST_MEMORY
        leave_lock(pool)
    lock_release(&pool.slow)
    return status


# Freeing

cdef int pin_try_free(pool_t* pool, uint32_t handle) noexcept nogil:
    cdef tracer_t* tracer
    cdef note_t* note
    cdef int status
    if not traced_try_enter(pool, &tracer):
        return STATUS_WOULD_WAIT
    note = traced_open(tracer, key_of(handle), STREAM_OF_BLOCK)
    status = try_leave(pool, handle)
    traced_settle(note, status)
    return status


cdef int pin_free(pool_t* pool, uint32_t handle) noexcept nogil:
    """It may wait for the driver, so its note is written beforehand, like that of any such free."""
    cdef tracer_t* tracer
    cdef int status
    traced_enter(pool, &tracer)
    traced_settle(traced_open(tracer, key_of(handle), STREAM_OF_BLOCK), STATUS_OK)
    status = leave_waiting(pool, handle)
    if status != STATUS_OK and tracer != NULL:
        note_kept(pool, handle)
    return status


cdef void note_kept(pool_t* pool, uint32_t handle) noexcept nogil:
    cdef const movable_t* record
    cdef tracer_t* tracer
    cdef size_t nbytes = 0
    if enter_lock(pool) != STATUS_OK:
        return
    record = movables_find(&pool.movables, handle)
    if record != NULL:
        nbytes = record.nbytes
    leave_lock(pool)
    traced_enter(pool, &tracer)
    traced_made(tracer, STATUS_OK, key_of(handle) if record != NULL else 0, nbytes, NULL, 0)


cdef int try_leave(pool_t* pool, uint32_t handle) noexcept nogil:
    cdef stream_ref_t home
    cdef void* ptr = NULL
    cdef int status = begin_leaving(pool, handle, &ptr, &home)
    if status != STATUS_OK or ptr == NULL:
        return status
    return end_leaving(pool, handle, try_take_back_async_unnoted(pool, ptr, &home))


cdef int leave_waiting(pool_t* pool, uint32_t handle) noexcept nogil:
    cdef stream_ref_t home
    cdef void* ptr = NULL
    cdef int status = begin_leaving(pool, handle, &ptr, &home)
    if status == STATUS_WOULD_WAIT:
        status = slow_enter(pool)
        if status == STATUS_OK:
            status = begin_leaving(pool, handle, &ptr, &home)
            lock_release(&pool.slow)
    if status != STATUS_OK or ptr == NULL:
        return status
    return end_leaving(pool, handle, take_back_async_unnoted(pool, ptr, &home))


cdef int begin_leaving(pool_t* pool, uint32_t handle, void** ptr, stream_ref_t* home) noexcept nogil:
    """Make the block an ordinary one, which its record no longer names; `ptr` stays NULL for an empty handle."""
    cdef movable_t* record
    cdef place_t place
    cdef int status
    if handle == NO_MOVABLE:
        return STATUS_OK
    status = find_record(pool, handle, &record)
    if status != STATUS_OK:
        return status
    if record.pins != 0:
        status = STATUS_PINNED
    else:
        segment_find(&pool.segment, pool_offset(pool, record.ptr), &place)
        segment_mark_movable(&pool.segment, &place, NO_MOVABLE, record.nbytes)
        record.state = MOVABLE_AWAY
        ptr[0] = record.ptr
        home.owner, home.serial = record.home, record.serial
        home.handle = pool.order.stream[record.home].handle
    leave_lock(pool)
    return status


cdef int end_leaving(pool_t* pool, uint32_t handle, int status) noexcept nogil:
    """Give the record back; where the free failed, the block is the handle's again."""
    cdef movable_t* record
    cdef int entered = enter_lock(pool)
    if entered != STATUS_OK:
        return entered
    record = &pool.movables.record[handle]
    if status == STATUS_OK:
        drop_record(pool, handle)
    else:
        settle_in(pool, handle, record.ptr)
    leave_lock(pool)
    return status


cdef int find_record(pool_t* pool, uint32_t handle, movable_t** record) noexcept nogil:
    """Find a block at rest, and hold `lock` on return; on any other status it is not held."""
    cdef int status = enter_lock(pool)
    if status != STATUS_OK:
        return status
    record[0] = movables_find(&pool.movables, handle)
    if record[0] == NULL or record[0].state == MOVABLE_AWAY:
        status = STATUS_FREED_POINTER
    elif record[0].state == MOVABLE_MOVES:
        status = STATUS_WOULD_WAIT
    if status != STATUS_OK:
        leave_lock(pool)
    return status


# Pinning

cdef int pin_try_take(pool_t* pool, uint32_t handle, void** ptr) noexcept nogil:
    cdef movable_t* record
    cdef int status
    ptr[0] = NULL
    if handle == NO_MOVABLE:
        return STATUS_OK
    status = find_record(pool, handle, &record)
    if status == STATUS_OK:
        record.pins += 1
        ptr[0] = record.ptr
        leave_lock(pool)
    return status


cdef int pin_take(pool_t* pool, uint32_t handle, void** ptr) noexcept nogil:
    cdef int status = pin_try_take(pool, handle, ptr)
    if status != STATUS_WOULD_WAIT:
        return status
    status = slow_enter(pool)
    if status == STATUS_OK:
        status = pin_try_take(pool, handle, ptr)
        lock_release(&pool.slow)
    return status


cdef int pin_take_on(pool_t* pool, uint32_t handle, const stream_ref_t* stream, void** ptr) noexcept nogil:
    cdef owner_t owner
    cdef int status
    ptr[0] = NULL
    if handle == NO_MOVABLE:
        return STATUS_OK
    status = slow_enter_named(pool, stream, &owner)
    if status != STATUS_OK:
        return status
    status = pin_try_take(pool, handle, ptr)
    if status == STATUS_OK:
        status = use_on(pool, handle, owner)
        if status != STATUS_OK:
            pin_drop(pool, handle)
    lock_release(&pool.slow)
    return status


cdef int use_on(pool_t* pool, uint32_t handle, owner_t owner) noexcept nogil:
    """Record that another stream uses a pinned block, and put that stream behind the last move."""
    cdef const movable_t* record
    cdef use_t* use
    cdef owners_t homes
    cdef owner_t home
    cdef uint32_t batch
    cdef bint known = False
    cdef int status = enter(pool)
    if status != STATUS_OK:
        return status
    record = &pool.movables.record[handle]
    home, batch = record.home, record.batch
    use = uses_of(&pool.uses, pool_offset(pool, record.ptr)) if owner != home else NULL
    if use != NULL:
        known = owners_has(&use.owners, owner)
        owners_add(&use.owners, owner)
    leave(pool)
    if owner == home:
        return STATUS_OK
    if use == NULL:
        return STATUS_HOST_MEMORY
    if batch == 0:
        return STATUS_OK
    memset(&homes, 0, sizeof(homes))
    owners_add(&homes, home)
    status = get_behind_or_wait(pool, owner, &homes, batch)
    if status != STATUS_OK and not known:
        take_use_back(pool, handle, owner)
    return status


cdef void take_use_back(pool_t* pool, uint32_t handle, owner_t owner) noexcept nogil:
    """The caller has `slow` and a pin on the block: it has not moved since."""
    cdef size_t offset
    cdef use_t* use
    if enter(pool) != STATUS_OK:
        return
    offset = pool_offset(pool, pool.movables.record[handle].ptr)
    use = uses_find(&pool.uses, offset)
    if use != NULL:
        owners_discard(&use.owners, owner)
        if not owners_any(&use.owners) and use.origin == NOBODY:
            uses_remove(&pool.uses, offset)
    leave(pool)


cdef int pin_drop(pool_t* pool, uint32_t handle) noexcept nogil:
    cdef movable_t* record
    cdef int status
    if handle == NO_MOVABLE:
        return STATUS_OK
    status = find_record(pool, handle, &record)
    if status == STATUS_OK:
        record.pins -= 1
        leave_lock(pool)
    return status


cdef int pin_look(pool_t* pool, uint32_t handle, void** ptr, uint32_t* pins) noexcept nogil:
    cdef const movable_t* record
    cdef int status
    ptr[0] = NULL
    pins[0] = 0
    if handle == NO_MOVABLE:
        return STATUS_OK
    status = enter_lock(pool)
    if status != STATUS_OK:
        return status
    record = movables_find(&pool.movables, handle)
    if record == NULL:
        status = STATUS_FREED_POINTER
    else:
        pins[0] = record.pins
        ptr[0] = record.ptr if record.pins != 0 else NULL
    leave_lock(pool)
    return status
