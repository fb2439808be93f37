"""One move of one block.

The copy is queued on the home of the block, whose earlier work it follows; work of other streams that the block was
recorded for is waited for first. The old place is freed in the order of the home. Whoever pins the block afterwards
for the home is behind the copy as well, and another stream is put behind it (_pin). So no queued work ever sees a block
in two states.
"""

from libc.stdint cimport uint32_t
from libc.string cimport memset

from cuda_pool._ask cimport ask_copy, ask_zero
from cuda_pool._behind cimport get_behind_all, stream_is_open
from cuda_pool._driver cimport cudaStream_t
from cuda_pool._layout cimport layout_is_free, layout_take, wanting_t
from cuda_pool._lock cimport lock_release
from cuda_pool._locks cimport enter_lock, leave_lock
from cuda_pool._mid cimport MID_UNIT
from cuda_pool._movables cimport MOVABLE_MOVES, MOVABLE_RESTS, NO_MOVABLE, movable_t, movables_find
from cuda_pool._order cimport order_view
from cuda_pool._owner cimport owner_t, owners_t, view_t
from cuda_pool._segment cimport place_t, segment_find, segment_mark_movable
from cuda_pool._shortage cimport is_capturing
from cuda_pool._slowly cimport slow_enter
from cuda_pool._state cimport REUSE_WAIT, free_async_found_locked, leaving_t, pool_address, pool_offset
from cuda_pool._status cimport STATUS_CAPTURING, STATUS_OK, STATUS_WOULD_WAIT
from cuda_pool._uses cimport use_t, uses_find, uses_of, uses_remove


# A block on its way: where it lies and where it goes.
ctypedef struct step_t:
    uint32_t record
    owner_t home
    cudaStream_t stream
    void* source
    void* target
    size_t nbytes
    place_t place                   # of the target


cdef int step_make(pool_t* pool, const move_t* move, size_t* nbytes) noexcept nogil:
    cdef step_t step
    cdef bint ready = False
    cdef int status = slow_enter(pool)
    if status != STATUS_OK:
        return status
    if is_capturing(pool):
        status = STATUS_CAPTURING
    elif step_plan(pool, move, &step):
        status = step_order(pool, move, &step, &ready)
        if ready and step_begin(pool, move, &step):
            status = step_carry(pool, &step)
            status = step_end(pool, &step, status)
            nbytes[0] = step.nbytes if status == STATUS_OK else 0
    lock_release(&pool.slow)
    return status


cdef bint step_plan(pool_t* pool, const move_t* move, step_t* step) noexcept nogil:
    """Is the block where it was, and nobody's for the moment?"""
    cdef const movable_t* record
    cdef bint rests
    if enter_lock(pool) != STATUS_OK:
        return False
    memset(step, 0, sizeof(step_t))
    record = movables_find(&pool.movables, move.movable)
    step.record = move.movable
    step.source = pool_address(pool, <size_t>move.source * MID_UNIT)
    step.target = pool_address(pool, <size_t>move.target * MID_UNIT)
    rests = record != NULL and record.state == MOVABLE_RESTS and record.pins == 0 and record.ptr == step.source
    if rests:
        step.home = record.home
        step.stream = pool.order.stream[record.home].handle
        step.nbytes = record.nbytes
        # The number may be another block's by now, and a region may have come that is aligned in another way.
        rests = step.nbytes <= <size_t>move.needs * MID_UNIT and <size_t>step.target & (record.alignment - 1) == 0
    leave_lock(pool)
    return rests


# Order

cdef int step_order(pool_t* pool, const move_t* move, const step_t* step, bint* ready) noexcept nogil:
    """Put the home behind what the target waits for, and behind all that uses the block, if that can be done."""
    cdef owners_t users
    cdef wanting_t wanting
    cdef const use_t* use
    cdef view_t view
    cdef uint32_t batch
    cdef bint is_free
    cdef int status = home_is_open(pool, step, ready)
    if status != STATUS_OK or not ready[0]:
        return status
    status = enter_lock(pool)
    if status != STATUS_OK:
        return status
    order_view(&pool.order, step.home, &view)
    is_free = layout_is_free(pool, move.target, move.needs, &view, &wanting)
    use = uses_find(&pool.uses, <size_t>move.source * MID_UNIT)
    memset(&users, 0, sizeof(users))
    if use != NULL:
        users = use.owners
    batch = pool.order.batch
    leave_lock(pool)
    ready[0] = is_free
    if is_free and wanting.count != 0:
        status = follow_owners(pool, step.home, &wanting, ready)
    if status == STATUS_OK and ready[0]:
        status = follow_users(pool, step, &users, batch, ready)
    return status


cdef int home_is_open(pool_t* pool, const step_t* step, bint* is_open) noexcept nogil:
    cdef int status = stream_is_open(pool, step.home, is_open)
    if status == STATUS_OK and not is_open[0]:
        refuse(pool, step.record)
    return status


cdef int follow_owners(pool_t* pool, owner_t home, const wanting_t* wanting, bint* ready) noexcept nogil:
    """Put the home behind those who freed the target, if the pool may; else their work has to be over."""
    cdef int status = STATUS_OK
    if pool.reuse == REUSE_WAIT:
        status = get_behind_all(pool, home, &wanting.owners, wanting.batch, ready)
    else:
        ready[0] = False
    return STATUS_WOULD_WAIT if status == STATUS_OK and not ready[0] else status


cdef int follow_users(pool_t* pool, const step_t* step, const owners_t* users, uint32_t batch,
                      bint* ready) noexcept nogil:
    cdef int status = get_behind_all(pool, step.home, users, batch, ready)
    if status == STATUS_OK and not ready[0]:
        refuse(pool, step.record)
    return status


cdef void refuse(pool_t* pool, uint32_t record) noexcept nogil:
    """Leave a block alone for the rest of the pass."""
    cdef movable_t* found
    if enter_lock(pool) == STATUS_OK:
        found = movables_find(&pool.movables, record)
        if found != NULL:
            found.refused = <uint32_t>pool.defrag.count
        leave_lock(pool)


# The move

cdef bint step_begin(pool_t* pool, const move_t* move, step_t* step) noexcept nogil:
    """Take the target, unless somebody came first."""
    cdef movable_t* record
    cdef view_t view
    cdef bint begun = False
    if enter_lock(pool) != STATUS_OK:
        return False
    record = movables_find(&pool.movables, step.record)
    if record != NULL and record.state == MOVABLE_RESTS and record.pins == 0 and record.ptr == step.source:
        order_view(&pool.order, step.home, &view)
        begun = layout_take(pool, move.target, move.needs, &view, &step.place)
        if begun:
            record.state = MOVABLE_MOVES
    leave_lock(pool)
    return begun


cdef int step_carry(pool_t* pool, const step_t* step) noexcept nogil:
    cdef leaving_t old
    cdef int status = ask_copy(pool, step.target, step.source, step.nbytes, step.stream)
    if status == STATUS_OK and pool.scrub:
        old.ptr = step.source
        old.used = step.nbytes
        status = ask_zero(pool, &old, step.stream)
    return status


cdef int step_end(pool_t* pool, const step_t* step, int status) noexcept nogil:
    """Let the block be at the target, and the old place free; or the other way round, if anything failed."""
    cdef movable_t* record
    cdef int entered = enter_lock(pool)
    if entered != STATUS_OK:
        return entered
    record = &pool.movables.record[step.record]
    if status == STATUS_OK:
        status = leave_source(pool, step)
    if status == STATUS_OK:
        segment_mark_movable(&pool.segment, &step.place, step.record, step.nbytes)
        record.ptr = step.target
        record.batch = pool.order.batch
    else:
        free_async_found_locked(pool, step.target, &step.place, step.home)
    record.state = MOVABLE_RESTS
    pool.defrag.moves += 1
    leave_lock(pool)
    return status


cdef int leave_source(pool_t* pool, const step_t* step) noexcept nogil:
    """Free the old place on the home, which is behind all recorded uses; those go on for the new one.

    The entry of the uses is taken out before another is added, so that needs no host memory.
    """
    cdef size_t from_ = pool_offset(pool, step.source), to = pool_offset(pool, step.target)
    cdef const use_t* found = uses_find(&pool.uses, from_)
    cdef use_t use
    cdef place_t place
    cdef bint used = found != NULL
    cdef int status
    memset(&use, 0, sizeof(use))
    if used:
        use = found[0]
        uses_remove(&pool.uses, from_)
    segment_find(&pool.segment, from_, &place)
    segment_mark_movable(&pool.segment, &place, NO_MOVABLE, step.nbytes)
    status = free_async_found_locked(pool, step.source, &place, step.home)
    if status != STATUS_OK:
        segment_mark_movable(&pool.segment, &place, step.record, step.nbytes)
    if used:
        uses_of(&pool.uses, from_ if status != STATUS_OK else to).owners = use.owners
    return status
