"""Putting one stream behind another's work."""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from cuda_pool._ask cimport ask_is_open, ask_stream_id, ask_wait
from cuda_pool._driver cimport cudaErrorInvalidResourceHandle
from cuda_pool._layout cimport is_reachable
from cuda_pool._lock cimport lock_acquire, lock_release
from cuda_pool._locks cimport enter_all, leave_all
from cuda_pool._order cimport LEGACY, MARKS, STREAM_GONE, STREAM_HANDLE, STREAM_VOUCHED, mark_t, order_waited, stream_t
from cuda_pool._owner cimport NOBODY, OWNERS, batch_within, later_batch, owners_add, owners_discard, owners_has
from cuda_pool._shortage cimport copy_marks, is_capturing, mark_stream, may_record, wait_for_all
from cuda_pool._state cimport pool_offset
from cuda_pool._status cimport STATUS_CAPTURING, STATUS_OK, status_code
from cuda_pool._uses cimport use_t, uses_find


cdef int stream_is_open(pool_t* pool, owner_t owner, bint* is_open) noexcept nogil:
    cdef const stream_t* stream = &pool.order.stream[owner]
    cdef uint64_t id = 0
    cdef bint reachable, can_be_another
    cdef int status = STATUS_OK
    is_open[0] = False
    lock_acquire(&pool.lock)
    reachable = is_reachable(stream)
    can_be_another = stream.kind == STREAM_HANDLE or stream.kind == STREAM_VOUCHED
    lock_release(&pool.lock)
    if not reachable:
        return STATUS_OK
    if can_be_another:
        status = ask_stream_id(pool, stream.handle, &id)
    if status_code(status) == cudaErrorInvalidResourceHandle or (can_be_another and status == STATUS_OK
                                                                 and id != stream.id):
        note_gone(pool, owner)
        return STATUS_OK
    if status != STATUS_OK:
        return status
    is_open[0] = ask_is_open(pool, stream.handle)
    return STATUS_OK


cdef void note_gone(pool_t* pool, owner_t owner) noexcept nogil:
    enter_all(pool)
    pool.order.stream[owner].kind = STREAM_GONE
    leave_all(pool)


cdef int get_behind(pool_t* pool, owner_t asker, owner_t owner, uint32_t batch, bint* behind) noexcept nogil:
    cdef mark_t mark
    cdef uint32_t* waited
    cdef bint is_open = False
    cdef int status
    behind[0] = is_behind_already(pool, asker, owner, batch)
    if behind[0]:
        return STATUS_OK
    if not find_mark(pool, owner, batch, &mark):
        status = stream_is_open(pool, owner, &is_open)
        if status == STATUS_OK and is_open:
            status = mark_stream(pool, owner)
        if status != STATUS_OK or not find_mark(pool, owner, batch, &mark):
            return status
    status = ask_wait(pool, pool.order.stream[asker].handle, mark.event)
    if status != STATUS_OK:
        return status
    lock_acquire(&pool.lock)
    waited = order_waited(&pool.order, asker, owner)
    waited[0] = later_batch(waited[0], mark.batch)
    lock_release(&pool.lock)
    behind[0] = True
    return STATUS_OK


cdef int get_behind_all(pool_t* pool, owner_t asker, const owners_t* owners, uint32_t batch,
                        bint* behind) noexcept nogil:
    cdef int owner, status = STATUS_OK
    behind[0] = True
    for owner in range(LEGACY, OWNERS):         # threads without `slow` may add records meanwhile, none of these
        if status == STATUS_OK and behind[0] and owners_has(owners, <owner_t>owner):
            status = get_behind(pool, asker, <owner_t>owner, batch, behind)
    return status


cdef bint all_exist(pool_t* pool, const owners_t* owners) noexcept nogil:
    cdef int owner
    cdef bint exist = True
    lock_acquire(&pool.lock)
    for owner in range(LEGACY, pool.order.streams):
        if owners_has(owners, <owner_t>owner):
            exist = exist and may_record(&pool.order.stream[owner], False)
    lock_release(&pool.lock)
    return exist


cdef int get_behind_or_wait(pool_t* pool, owner_t asker, const owners_t* owners, uint32_t batch) noexcept nogil:
    cdef bint behind = False, is_open = False
    cdef int status = stream_is_open(pool, asker, &is_open) if asker != NOBODY else STATUS_OK
    if status == STATUS_OK and is_open:
        status = get_behind_all(pool, asker, owners, batch, &behind)
    if status != STATUS_OK or behind:
        return status
    return STATUS_CAPTURING if is_capturing(pool) else wait_for_all(pool)


cdef bint behind_users(pool_t* pool, const place_t* place, const void* ptr, owner_t asker,
                       owners_t* owners) noexcept nogil:
    cdef const use_t* use = uses_find(&pool.uses, pool_offset(pool, ptr)) if pool.uses.count != 0 else NULL
    cdef int owner
    memset(owners, 0, sizeof(owners_t))
    if use != NULL:
        owners[0] = use.owners
        if use.origin != NOBODY and not is_behind(pool, asker, use.origin, use.batch):
            owners_add(owners, use.origin)
    if place.owner != NOBODY and place.batch != 0 and not is_behind(pool, asker, place.owner, place.batch):
        owners_add(owners, place.owner)
    owners_discard(owners, asker)
    for owner in range(LEGACY, pool.order.streams):
        if owners_has(owners, <owner_t>owner):
            return True
    return False


cdef bint is_behind_already(pool_t* pool, owner_t asker, owner_t owner, uint32_t batch) noexcept nogil:
    cdef bint behind
    lock_acquire(&pool.lock)
    behind = is_behind(pool, asker, owner, batch)
    lock_release(&pool.lock)
    return behind


cdef inline bint is_behind(pool_t* pool, owner_t asker, owner_t owner, uint32_t batch) noexcept nogil:
    return (asker == owner or batch_within(batch, pool.order.stream[owner].done)
            or batch_within(batch, order_waited(&pool.order, asker, owner)[0]))


cdef bint find_mark(pool_t* pool, owner_t owner, uint32_t batch, mark_t* found) noexcept nogil:
    """The first event that covers a batch."""
    cdef mark_t marks[MARKS]
    cdef int at
    for at in range(copy_marks(pool, owner, marks)):
        if batch_within(batch, marks[at].batch):
            found[0] = marks[at]
            return True
    return False
