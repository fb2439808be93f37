"""What a pool is told of streams: uses, promises that they exist, captures, that they are gone."""

from libc.stdint cimport uint32_t

from cuda_pool._ask cimport ask_keep_event, ask_stream_done
from cuda_pool._driver cimport cudaEvent_t
from cuda_pool._identity cimport drop_stream, identify, identify_as
from cuda_pool._known cimport by_handle, can_be_another, is_sure, named_locked, stream_locked
from cuda_pool._lock cimport lock_acquire, lock_release
from cuda_pool._locks cimport enter, enter_all, leave, leave_all
from cuda_pool._order cimport (
    LEGACY, STREAM_CAPTURE, STREAM_HANDLE, STREAM_HELD, STREAM_VOUCHED, order_add, order_find, order_pass_mark,
    ref_is_valid, ref_to, stream_is_pending, stream_t)
from cuda_pool._owner cimport NOBODY, batch_within, owners_add
from cuda_pool._segment cimport segment_admit
from cuda_pool._shortage cimport settle_before_capture
from cuda_pool._slowly cimport record_use_slowly, slow_enter
from cuda_pool._state cimport captured, leave_locked, record_use_locked, settle_locked
from cuda_pool._status cimport STATUS_CAPTURING, STATUS_OK, STATUS_STREAMS, STATUS_WOULD_WAIT


cdef int pool_record_use(pool_t* pool, void* ptr, cudaStream_t stream) noexcept nogil:
    cdef stream_ref_t ref = by_handle(stream)
    return pool_record_use_as(pool, ptr, &ref)


cdef int pool_record_use_as(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    cdef owner_t owner
    cdef int status
    if ptr == NULL:
        return STATUS_OK
    status = enter(pool)
    if status != STATUS_OK:
        return status
    owner = named_locked(pool, stream)
    if is_sure(pool, owner, stream):
        status = record_use_locked(pool, ptr, captured(pool, owner))
    else:
        status = STATUS_WOULD_WAIT
    leave(pool)
    return record_use_slowly(pool, ptr, stream) if status == STATUS_WOULD_WAIT else status


cdef int pool_stream_wait(pool_t* pool, cudaStream_t stream) noexcept nogil:
    return ask_stream_done(pool, stream)


cdef int pool_forget_stream(pool_t* pool, cudaStream_t stream) noexcept nogil:
    """Its work is waited for only if something is pending on it, or some block's free would have to wait for it."""
    cdef owner_t owner
    cdef uint32_t batch = 0
    cdef bint another
    cdef int status = slow_enter(pool)
    if status != STATUS_OK:
        return status
    owner = find_again(pool, stream, &batch, &another)
    if another:                                 # what an old stream with this handle freed is not done yet
        status = identify(pool, stream, &owner)
    if status == STATUS_OK and owner != NOBODY:
        status = await_stream(pool, stream, owner)
    if status == STATUS_OK and owner != NOBODY:
        if owner == LEGACY:
            legacy_done(pool, batch)
        else:
            drop_stream(pool, owner)
    lock_release(&pool.slow)
    return status


cdef owner_t find_again(pool_t* pool, cudaStream_t stream, uint32_t* batch, bint* another) noexcept nogil:
    """Find the record of a stream, which may be another stream's, and end the batch that is being freed."""
    cdef owner_t owner
    enter_all(pool)
    owner = order_find(&pool.order, stream)
    another[0] = can_be_another(&pool.order.stream[owner])
    batch[0] = pool.order.batch
    pool.order.batch += 1
    leave_all(pool)
    return owner


cdef int await_stream(pool_t* pool, cudaStream_t stream, owner_t owner) noexcept nogil:
    """Wait for a stream that is not captured, if something is or may be pending on it."""
    cdef bint is_captured, pending
    lock_acquire(&pool.lock)
    is_captured = pool.order.stream[owner].capture != NOBODY
    pending = (stream_is_pending(&pool.order.stream[owner]) or pool.order.stream[owner].homes != 0
               or pool.uses.count != 0)
    lock_release(&pool.lock)
    if is_captured:
        return STATUS_CAPTURING
    return ask_stream_done(pool, stream) if pending else STATUS_OK


cdef void legacy_done(pool_t* pool, uint32_t batch) noexcept nogil:
    """The default stream is there for ever: only its frees are settled."""
    cdef stream_t* stream = &pool.order.stream[LEGACY]
    cdef cudaEvent_t event
    while stream.marks != 0 and batch_within(stream.mark[0].batch, batch):
        lock_acquire(&pool.lock)
        event = order_pass_mark(&pool.order, LEGACY)
        lock_release(&pool.lock)
        ask_keep_event(pool, event)
    enter_all(pool)
    stream.done = batch
    settle_locked(pool)
    leave_all(pool)


cdef int pool_hold_stream(pool_t* pool, cudaStream_t stream) noexcept nogil:
    cdef owner_t owner
    cdef int status = slow_enter(pool)
    if status != STATUS_OK:
        return status
    status = identify_as(pool, stream, STREAM_HELD, &owner)
    lock_release(&pool.slow)
    return STATUS_STREAMS if status == STATUS_OK and owner == NOBODY else status


cdef int pool_vouch_stream(pool_t* pool, cudaStream_t stream, stream_ref_t* ref) noexcept nogil:
    cdef owner_t owner = NOBODY
    cdef int status = slow_enter(pool)
    if status != STATUS_OK:
        return status
    status = identify_as(pool, stream, STREAM_VOUCHED, &owner)
    ref[0] = ref_to(&pool.order, owner, stream)
    lock_release(&pool.slow)
    return status


cdef stream_ref_t pool_find_stream(pool_t* pool, cudaStream_t stream) noexcept nogil:
    cdef stream_ref_t ref
    cdef owner_t owner
    ref.owner, ref.serial, ref.handle = NOBODY, 0, stream
    if enter(pool) == STATUS_OK:
        owner = stream_locked(pool, stream)
        ref = ref_to(&pool.order, owner, stream)
        leave(pool)
    return ref


cdef void pool_stream_exists(pool_t* pool, const stream_ref_t* stream, bint exists) noexcept nogil:
    if enter(pool) != STATUS_OK:
        return
    if ref_is_valid(&pool.order, stream):
        pool.order.stream[stream.owner].fresh = exists
    leave(pool)


cdef void pool_unvouch_stream(pool_t* pool, const stream_ref_t* stream) noexcept nogil:
    if enter(pool) != STATUS_OK:
        return
    if ref_is_valid(&pool.order, stream) and pool.order.stream[stream.owner].kind == STREAM_VOUCHED:
        pool.order.stream[stream.owner].kind = STREAM_HANDLE
    leave(pool)


cdef bint pool_stream_is_pending(pool_t* pool, const stream_ref_t* stream) noexcept nogil:
    cdef bint pending
    if enter(pool) != STATUS_OK:
        return False
    pending = ref_is_valid(&pool.order, stream) and (stream_is_pending(&pool.order.stream[stream.owner])
                                                     or pool.order.stream[stream.owner].homes != 0)
    leave(pool)
    return pending


cdef int pool_begin_capture(pool_t* pool, cudaStream_t stream, owner_t* capture) noexcept nogil:
    cdef owner_t owner
    cdef int status = slow_enter(pool)
    if status != STATUS_OK:
        return status
    status = identify(pool, stream, &owner)
    if status == STATUS_OK:
        settle_before_capture(pool, owner)
        status = begin_capture(pool, owner, capture)
    lock_release(&pool.slow)
    return status


cdef int begin_capture(pool_t* pool, owner_t owner, owner_t* capture) noexcept nogil:
    cdef int status
    if owner == NOBODY:
        return STATUS_STREAMS
    status = enter(pool)
    if status != STATUS_OK:
        return status
    if pool.order.stream[owner].capture != NOBODY:
        status = STATUS_CAPTURING
    else:
        capture[0] = order_add(&pool.order, STREAM_CAPTURE, pool.order.stream[owner].handle, 0)
        status = STATUS_OK if capture[0] != NOBODY else STATUS_STREAMS
    if status == STATUS_OK:
        segment_admit(&pool.segment, capture[0])
        owners_add(&pool.segment.captures, capture[0])
        pool.order.stream[owner].capture = capture[0]
        pool.order.captures += 1
    leave(pool)
    return status


cdef int pool_end_capture(pool_t* pool, owner_t capture) noexcept nogil:
    cdef int owner
    cdef int status = enter(pool)
    if status != STATUS_OK:
        return status
    for owner in range(LEGACY, pool.order.streams):
        if pool.order.stream[owner].capture == capture:
            pool.order.stream[owner].capture = NOBODY
            pool.order.captures -= 1
    leave(pool)
    return status


cdef int pool_release_capture(pool_t* pool, owner_t capture, const cudaStream_t* last) noexcept nogil:
    cdef owner_t owner = NOBODY
    cdef int status = slow_enter(pool)
    if status != STATUS_OK:
        return status
    if last != NULL:
        status = identify(pool, last[0], &owner)
        if status == STATUS_OK and owner == NOBODY:     # no record for it: its work is waited for instead
            status = ask_stream_done(pool, last[0])
    if status == STATUS_OK:
        enter_all(pool)
        leave_locked(pool, capture, owner)
        leave_all(pool)
    lock_release(&pool.slow)
    return status
