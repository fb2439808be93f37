"""Which stream a handle names: the same as before, or another one that got the same handle.

A stream that is destroyed with work queued goes on until that is done, while its handle may already name a new stream,
which is not ordered behind it. Only cudaStreamGetId tells them apart: ids are never used twice.
"""

from libc.stdint cimport uint64_t, uintptr_t

from cuda_pool._ask cimport ask_keep_event, ask_stream_id
from cuda_pool._locks cimport enter, leave
from cuda_pool._order cimport (
    LEGACY, LEGACY_HANDLE, MARKS, STREAM_GONE, STREAM_HANDLE, STREAM_THREAD, THREAD_HANDLE, mark_t, order_add,
    order_find, order_waited, stream_is_pending, stream_t, this_thread)
from cuda_pool._owner cimport NOBODY, OWNERS
from cuda_pool._prepare cimport segment_admit_stream
from cuda_pool._shortage cimport is_capturing, wait_for_all
from cuda_pool._state cimport leave_locked, rehome_locked
from cuda_pool._status cimport STATUS_OK


cdef int identify(pool_t* pool, cudaStream_t handle, owner_t* owner) noexcept nogil:
    return identify_as(pool, handle, STREAM_HANDLE, owner)


cdef int identify_as(pool_t* pool, cudaStream_t handle, stream_kind_t kind, owner_t* owner) noexcept nogil:
    cdef uint64_t id = 0
    cdef int status
    owner[0] = NOBODY
    if <uintptr_t>handle <= LEGACY_HANDLE:
        owner[0] = LEGACY
        return STATUS_OK
    if <uintptr_t>handle == THREAD_HANDLE:
        kind = STREAM_THREAD
        id = this_thread()
    else:
        status = ask_stream_id(pool, handle, &id)
        if status != STATUS_OK:
            return status
    owner[0] = record_of(pool, handle, kind, id)
    if owner[0] == NOBODY:
        drop_idle(pool)
        owner[0] = record_of(pool, handle, kind, id)
    if owner[0] == NOBODY and not is_capturing(pool) and wait_for_all(pool) == STATUS_OK:
        drop_idle(pool)
        owner[0] = record_of(pool, handle, kind, id)
    return STATUS_OK


cdef owner_t record_of(pool_t* pool, cudaStream_t handle, stream_kind_t kind, uint64_t id) noexcept nogil:
    cdef owner_t owner
    cdef stream_t* stream
    if enter(pool) != STATUS_OK:
        return NOBODY
    owner = order_find(&pool.order, handle)
    stream = &pool.order.stream[owner]
    if owner != NOBODY and stream.id != id:
        if stream_is_pending(stream) or pool.uses.count != 0 or stream.homes != 0:      # a use may be recorded on it
            stream.kind = STREAM_GONE
            owner = NOBODY
        else:
            rename_locked(pool, owner, id)
    if owner == NOBODY:
        owner = order_add(&pool.order, kind, handle, id)
        if owner != NOBODY:
            segment_admit_stream(&pool.segment, owner)
    elif kind > stream.kind:                    # from a handle to a promise, not back
        stream.kind = kind
    leave(pool)
    return owner


cdef void rename_locked(pool_t* pool, owner_t owner, uint64_t id) noexcept nogil:
    """Let a record without pending frees be another stream's, which is not behind anyone's work."""
    cdef int other
    pool.order.stream[owner].id = id
    pool.order.serials += 1
    pool.order.stream[owner].serial = pool.order.serials
    pool.order.stream[owner].kind = STREAM_HANDLE
    for other in range(OWNERS):
        order_waited(&pool.order, owner, <owner_t>other)[0] = 0


cdef void drop_idle(pool_t* pool) noexcept nogil:
    """Whether a stream is idle is decided with the lock held on to: a thread may free on its own one at any time."""
    cdef mark_t marks[MARKS]
    cdef int owner, count
    for owner in range(LEGACY + 1, OWNERS):
        if enter(pool) != STATUS_OK:
            return
        count = drop_locked(pool, <owner_t>owner, marks) if is_idle(pool, <owner_t>owner) else 0
        leave(pool)
        keep_events(pool, marks, count)


cdef bint is_idle(const pool_t* pool, owner_t owner) noexcept nogil:
    """May a use name it, or one that waits with `slow` given up be about to allocate on it?"""
    cdef const stream_t* stream = &pool.order.stream[owner]
    if pool.uses.count != 0 or pool.waits != 0 or stream.capture != NOBODY or stream_is_pending(stream):
        return False
    if stream.homes != 0:
        return False
    return stream.kind == STREAM_HANDLE or stream.kind == STREAM_THREAD or stream.kind == STREAM_GONE


cdef void drop_stream(pool_t* pool, owner_t owner) noexcept nogil:
    cdef mark_t marks[MARKS]
    cdef int count
    if enter(pool) != STATUS_OK:
        return
    count = drop_locked(pool, owner, marks)
    leave(pool)
    keep_events(pool, marks, count)


cdef int drop_locked(pool_t* pool, owner_t owner, mark_t* marks) noexcept nogil:
    """The number of its events, which are the caller's."""
    cdef stream_t* stream = &pool.order.stream[owner]
    cdef int at, count = stream.marks
    for at in range(count):
        marks[at] = stream.mark[at]
    stream.done = pool.order.batch
    rehome_locked(pool, owner)
    leave_locked(pool, owner, NOBODY)
    return count


cdef void keep_events(pool_t* pool, const mark_t* marks, int count) noexcept nogil:
    cdef int at
    for at in range(count):
        ask_keep_event(pool, marks[at].event)
