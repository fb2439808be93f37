"""What a call does when the driver has to be asked: with `slow` held, and no other lock meanwhile."""

from libc.stdint cimport uint32_t

from cuda_pool._ask cimport ask_is_open, ask_stream_done, ask_zero
from cuda_pool._behind cimport all_exist, behind_users, get_behind_or_wait
from cuda_pool._defrag cimport defrag_for, defrag_if_due
from cuda_pool._identity cimport identify
from cuda_pool._lock cimport lock_acquire, lock_release
from cuda_pool._locks cimport enter, enter_all, leave, leave_all
from cuda_pool._order cimport LEGACY, STREAM_THREAD, ref_is_valid, stream_can_vanish, stream_t
from cuda_pool._owner cimport BATCH_RENEWED, NOBODY, owners_t
from cuda_pool._relaxed cimport set_pointer
from cuda_pool._segment cimport place_t, segment_find
from cuda_pool._serve cimport alloc_locked
from cuda_pool._shortage cimport is_capturing, mark_stream, may_record, shortage_alloc, wait_for_all
from cuda_pool._state cimport (
    captured, find_locked, free_async_locked, free_locked, pool_offset, record_use_locked, renew_batches_locked)
from cuda_pool._status cimport STATUS_CAPTURING, STATUS_OK, STATUS_OUT_OF_MEMORY, STATUS_STREAMS, STATUS_WOULD_WAIT
from cuda_pool._take_back cimport count_unmarked, is_worth_an_event


cdef int slow_enter(pool_t* pool) noexcept nogil:
    """Take `slow` of an open pool."""
    cdef int status = enter(pool)
    if status != STATUS_OK:
        return status
    leave(pool)
    lock_acquire(&pool.slow)
    if pool.order.batch >= BATCH_RENEWED:
        renew_batches(pool)
    status = enter(pool)
    if status == STATUS_OK:
        leave(pool)
    else:
        lock_release(&pool.slow)
    return status


cdef int slow_enter_as(pool_t* pool, const stream_ref_t* stream, owner_t* owner) noexcept nogil:
    cdef int status = slow_enter(pool)
    if status != STATUS_OK:
        return status
    status = identify_ref(pool, stream, owner)
    if status != STATUS_OK:
        lock_release(&pool.slow)
    return status


cdef int slow_enter_named(pool_t* pool, const stream_ref_t* stream, owner_t* owner) noexcept nogil:
    cdef int status = slow_enter_as(pool, stream, owner)
    if status == STATUS_OK and owner[0] == NOBODY:
        lock_release(&pool.slow)
        status = STATUS_STREAMS
    return status


cdef void renew_batches(pool_t* pool) noexcept nogil:
    """Where frees go on meanwhile, the next call tries again: there are as many batches left as were used."""
    if not is_capturing(pool) and wait_for_all(pool) == STATUS_OK:
        enter_all(pool)
        if not pool.closed and pool.waits == 0:     # one that waits has a batch in mind
            renew_batches_locked(pool)
        leave_all(pool)


cdef int alloc_slowly(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                      void** ptr) noexcept nogil:
    cdef int status
    defrag_if_due(pool)
    status = alloc_asking(pool, nbytes, alignment, stream, ptr)
    if status == STATUS_OUT_OF_MEMORY and defrag_for(pool, nbytes, alignment):
        status = alloc_asking(pool, nbytes, alignment, stream, ptr)
    if status == STATUS_OUT_OF_MEMORY:
        lock_acquire(&pool.lock)
        pool.oom_count += 1
        lock_release(&pool.lock)
    return status


cdef int alloc_asking(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                      void** ptr) noexcept nogil:
    cdef owner_t owner
    cdef int status = slow_enter_as(pool, stream, &owner)
    if status != STATUS_OK:
        return status
    status = alloc_waiting(pool, nbytes, alignment, owner, ptr)
    lock_release(&pool.slow)
    return status


cdef int free_async_slowly(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    cdef owner_t owner
    cdef int status = slow_enter_as(pool, stream, &owner)
    if status != STATUS_OK:
        return status
    status = free_async_marking(pool, ptr, owner, stream.handle)
    lock_release(&pool.slow)
    return status


cdef int identify_ref(pool_t* pool, const stream_ref_t* stream, owner_t* owner) noexcept nogil:
    """The record that was looked up before, if it is still that stream's: with `slow` held it stays so."""
    cdef bint valid
    lock_acquire(&pool.lock)
    valid = ref_is_valid(&pool.order, stream)
    lock_release(&pool.lock)
    if not valid:
        return identify(pool, stream.handle, owner)
    owner[0] = stream.owner
    return STATUS_OK


cdef int record_use_slowly(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    cdef owner_t owner
    cdef int status = slow_enter_named(pool, stream, &owner)
    if status != STATUS_OK:
        return status
    status = enter(pool)
    if status == STATUS_OK:
        status = record_use_locked(pool, ptr, captured(pool, owner))
        leave(pool)
    lock_release(&pool.slow)
    return status


cdef int alloc_waiting(pool_t* pool, size_t nbytes, size_t alignment, owner_t owner, void** ptr) noexcept nogil:
    cdef int status = enter(pool)
    if status != STATUS_OK:
        return status
    status = alloc_locked(pool, owner, nbytes, alignment, ptr)
    owner = captured(pool, owner)
    leave(pool)
    return shortage_alloc(pool, owner, nbytes, alignment, ptr) if status == STATUS_WOULD_WAIT else status


cdef int free_async_marking(pool_t* pool, void* ptr, owner_t owner, cudaStream_t stream) noexcept nogil:
    cdef int status
    cdef bint worth_marking
    if pool.scrub or owner == NOBODY:
        if is_of_another_thread(pool, owner):
            status = wait_for_all(pool)         # another thread's stream, which has no name here
            return free_in_order(pool, ptr, LEGACY, NULL) if status == STATUS_OK else status
        return free_in_order(pool, ptr, owner, stream)
    status = enter(pool)
    if status != STATUS_OK:
        return status
    status = free_async_locked(pool, ptr, captured(pool, owner))
    count_unmarked(pool, owner)
    worth_marking = status == STATUS_OK and is_worth_marking(pool, &pool.order.stream[owner])
    leave(pool)
    if worth_marking:
        mark_stream(pool, owner)                # if it fails, a later event will do
    return status


cdef bint is_of_another_thread(pool_t* pool, owner_t owner) noexcept nogil:
    cdef const stream_t* stream = &pool.order.stream[owner]
    cdef bint is_thread
    lock_acquire(&pool.lock)
    is_thread = stream.kind == STREAM_THREAD and not may_record(stream, True)
    lock_release(&pool.lock)
    return is_thread


cdef bint is_worth_marking(const pool_t* pool, const stream_t* stream) noexcept nogil:
    return (stream_can_vanish(stream) and is_worth_an_event(pool, stream, stream.unmarked)
            and may_record(stream, True))


cdef int free_in_order(pool_t* pool, void* ptr, owner_t owner, cudaStream_t stream) noexcept nogil:
    """Overwrite a block on the stream before it is freed there; wait for the stream where it cannot be noted."""
    cdef leaving_t block
    cdef int status = leaving_begin(pool, ptr, &block)
    if status != STATUS_OK:
        return status
    if pool.scrub:
        status = zero_in_order(pool, &block, owner, stream)
    if status == STATUS_OK and owner == NOBODY:
        status = ask_stream_done(pool, stream)
    return leaving_end(pool, &block, status, owner)


cdef int zero_in_order(pool_t* pool, const leaving_t* block, owner_t owner, cudaStream_t stream) noexcept nogil:
    """Overwrite a block on a stream behind the work of all others that may use it."""
    cdef place_t place
    cdef owners_t users
    cdef owner_t asker
    cdef uint32_t batch
    cdef bint any
    cdef int status = enter(pool)
    if status != STATUS_OK:
        return status
    segment_find(&pool.segment, pool_offset(pool, block.ptr), &place)
    any = behind_users(pool, &place, block.ptr, captured(pool, owner), &users)
    batch = pool.order.batch
    leave(pool)
    if any:
        asker = owner if all_exist(pool, &users) else <owner_t>NOBODY       # then it is the host that waits
        status = get_behind_or_wait(pool, asker, &users, batch)
    if status == STATUS_OK and not may_queue(pool, owner, stream):
        status = STATUS_CAPTURING
    return ask_zero(pool, block, stream) if status == STATUS_OK else status


cdef bint may_queue(pool_t* pool, owner_t owner, cudaStream_t stream) noexcept nogil:
    """Does no capture forbid it, such as one that the default stream would have to wait for?"""
    cdef bint is_captured
    if not is_capturing(pool):
        return True
    lock_acquire(&pool.lock)
    is_captured = pool.order.stream[owner].capture != NOBODY
    lock_release(&pool.lock)
    return is_captured or ask_is_open(pool, stream)


cdef int leaving_begin(pool_t* pool, void* ptr, leaving_t* block) noexcept nogil:
    cdef place_t place
    cdef int status = enter(pool)
    if status != STATUS_OK:
        return status
    status = find_locked(pool, ptr, &place)
    if status == STATUS_OK:
        block.ptr = ptr
        block.used = place.used
        block.next = pool.leaving
        set_pointer(<void**>&pool.leaving, block)
    leave(pool)
    return status


cdef int leaving_end(pool_t* pool, leaving_t* block, int status, owner_t owner) noexcept nogil:
    """Free the block for anyone, or in the order of a stream; on an error it stays live."""
    cdef leaving_t** link = &pool.leaving
    enter_all(pool)
    while link[0] != block:
        link = &link[0].next
    set_pointer(<void**>link, block.next)
    if status == STATUS_OK and owner == NOBODY:
        status = free_locked(pool, block.ptr)
    elif status == STATUS_OK:
        status = free_async_locked(pool, block.ptr, captured(pool, owner))
    leave_all(pool)
    return status
