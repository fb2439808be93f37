"""The order of last resort: what is done for an allocation that finds no memory that is free for it.

First what has completed is reclaimed. Then, if the pool may, the allocating stream is put behind the work of as few
other streams as will do, the least waiting first; a pool that grows does so before that, as long as it stays within a
share of its peak, or else after it. Then the host waits for one event after another, in the order in which they were
recorded, and at last for the whole device. After each step the request is tried again.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from cuda_pool._ask cimport (
    ask_device_done, ask_event, ask_event_done, ask_is_idle, ask_is_open, ask_is_over, ask_keep_event, ask_stream_id,
    ask_wait)
from cuda_pool._driver cimport cudaErrorInvalidResourceHandle, cudaEvent_t
from cuda_pool._growth cimport growth_alloc, growth_could_help, growth_is_due
from cuda_pool._lock cimport lock_acquire, lock_release
from cuda_pool._locks cimport enter, enter_all, leave, leave_all
from cuda_pool._order cimport (
    LEGACY, MARKS, STREAM_CAPTURE, STREAM_GONE, STREAM_HELD, STREAM_LEGACY, STREAM_SPARE, STREAM_THREAD,
    STREAM_VOUCHED, mark_t, order_any_pending, order_mark, order_pass_mark, order_view, order_waited,
    stream_is_pending, stream_kind_t, stream_t, this_thread)
from cuda_pool._owner cimport NOBODY, OWNERS, batch_within, later_batch, view_t
from cuda_pool._relaxed cimport get_u32
from cuda_pool._remap cimport remap_alloc
from cuda_pool._segment cimport segment_could_share, segment_has_owned
from cuda_pool._state cimport REUSE_NEVER, REUSE_WAIT, serve_locked, settle_locked, unhold_locked
from cuda_pool._status cimport STATUS_OK, STATUS_OUT_OF_MEMORY, status_code

cdef enum:
    ROUNDS = 4

# An event that an allocation could wait for.
ctypedef struct option_t:
    owner_t owner
    mark_t mark


cdef int shortage_alloc(pool_t* pool, owner_t owner, size_t nbytes, size_t alignment, void** ptr) noexcept nogil:
    cdef int status = attempt_with_held(pool, owner, nbytes, alignment, ptr), fault = STATUS_OK
    cdef bint any = False
    if status != STATUS_OUT_OF_MEMORY or kind_of(pool, owner) == STREAM_CAPTURE:
        return status
    if pool.reuse != REUSE_NEVER:
        fault = see_what_is_over(pool, owner, pool.order.batch, &any)
        status = attempt_with_held(pool, owner, nbytes, alignment, ptr)
    if status == STATUS_OUT_OF_MEMORY and pool.segment.pages.shift != 0 and owner != NOBODY:
        fault = see_own(pool, owner) or fault
    fault = remap(pool, owner, nbytes, alignment, False, ptr, &status) or fault
    if status == STATUS_OUT_OF_MEMORY and growth_is_due(pool, nbytes, alignment):
        fault = growth_alloc(pool, owner, nbytes, alignment, ptr, &status) or fault
    if status == STATUS_OUT_OF_MEMORY and pool.reuse == REUSE_WAIT and owner != NOBODY:
        fault = wait_on_device(pool, owner, nbytes, alignment, ptr, &status) or fault
    if status == STATUS_OUT_OF_MEMORY:
        fault = growth_alloc(pool, owner, nbytes, alignment, ptr, &status) or fault
    if pool.grows:
        fault = remap(pool, owner, nbytes, alignment, True, ptr, &status) or fault
    if status == STATUS_OUT_OF_MEMORY:
        fault = wait_on_host(pool, owner, nbytes, alignment, ptr, &status) or fault
    if status == STATUS_OUT_OF_MEMORY and fault == STATUS_OK and growth_could_help(pool, owner, nbytes, alignment):
        fault = free_regions(pool)
        if fault == STATUS_OK:
            fault = growth_alloc(pool, owner, nbytes, alignment, ptr, &status)
    return fault if status == STATUS_OUT_OF_MEMORY and fault != STATUS_OK else status


cdef int remap(pool_t* pool, owner_t owner, size_t nbytes, size_t alignment, bint may_grow, void** ptr,
               int* status) noexcept nogil:
    """Move pages under a place for the request; `status` is that of the request, the result a fault's."""
    cdef int fault
    if status[0] != STATUS_OUT_OF_MEMORY or pool.segment.pages.shift == 0 or is_capturing(pool):
        return STATUS_OK
    if not ask_is_open(pool, pool.order.stream[owner].handle if owner != NOBODY else NULL):
        return STATUS_OK
    fault = remap_alloc(pool, owner, nbytes, alignment, may_grow, ptr)
    if fault == STATUS_OK or fault == STATUS_OUT_OF_MEMORY:
        status[0] = fault
        return STATUS_OK
    return fault


cdef int free_regions(pool_t* pool) noexcept nogil:
    """Let no region be kept by pending work, that of the stream itself included."""
    cdef bint pending
    cdef int status = see_what_is_done(pool)
    lock_acquire(&pool.lock)
    pending = pool.order.captures == 0 and order_any_pending(&pool.order, NOBODY)
    lock_release(&pool.lock)
    return wait_for_all(pool) if status == STATUS_OK and pending else status


cdef int wait_on_host(pool_t* pool, owner_t owner, size_t nbytes, size_t alignment, void** ptr,
                      int* status) noexcept nogil:
    """Wait for what is pending now, one event after another; `status` is that of the request, the result a fault's."""
    cdef uint32_t until
    cdef int round, fault = STATUS_OK
    for round in range(ROUNDS):
        until = pool.order.batch                    # what is freed from now on is not waited for
        while status[0] == STATUS_OUT_OF_MEMORY and fault == STATUS_OK and is_work_left(pool, owner, until):
            fault = wait_for_next(pool, owner, until)
            if fault == STATUS_OK:
                status[0] = attempt(pool, owner, nbytes, alignment, ptr)
                fault = remap(pool, owner, nbytes, alignment, True, ptr, status)
        # Blocks that were waited for may have merged meanwhile with what other threads freed.
        if status[0] != STATUS_OUT_OF_MEMORY or fault != STATUS_OK or pool.order.batch == until:
            break
    return fault


cdef int wait_for_pending(pool_t* pool) noexcept nogil:
    cdef uint32_t until = pool.order.batch
    cdef int status = STATUS_OK
    while status == STATUS_OK and is_work_left(pool, NOBODY, until):
        status = wait_for_next(pool, NOBODY, until)
    return status


cdef bint is_work_left(pool_t* pool, owner_t owner, uint32_t until) noexcept nogil:
    """Is there pending work whose end could help, and no capture that forbids to wait for it?

    The stream's own need not end, as it may use that memory already; but its pages can be moved only then.
    """
    cdef bint left = False
    cdef int other
    lock_acquire(&pool.lock)
    if pool.order.captures == 0:
        for other in range(LEGACY, pool.order.streams):
            left = left or is_left(pool, <owner_t>other, owner, until, pool.segment.pages.shift != 0)
    lock_release(&pool.lock)
    return left


cdef inline bint is_left(const pool_t* pool, owner_t other, owner_t owner, uint32_t until, bint own) noexcept nogil:
    cdef const stream_t* stream = &pool.order.stream[other]
    if stream.kind == STREAM_SPARE or stream.kind == STREAM_CAPTURE:
        return False
    if other == owner and pool.helds.bytes == 0 and not own:
        return False
    return stream_is_pending(stream) and not batch_within(until, stream.done)


cdef int attempt(pool_t* pool, owner_t owner, size_t nbytes, size_t alignment, void** ptr) noexcept nogil:
    cdef int status = enter(pool)
    if status == STATUS_OK:
        status = serve_locked(pool, owner, nbytes, alignment, ptr)
        leave(pool)
    return status


cdef int attempt_with_held(pool_t* pool, owner_t owner, size_t nbytes, size_t alignment, void** ptr) noexcept nogil:
    """Give the stream the held blocks that it need not wait for, first."""
    cdef view_t view
    cdef int status = enter(pool)
    if status != STATUS_OK:
        return status
    if pool.helds.bytes != 0 and pool.order.stream[owner].kind != STREAM_CAPTURE:
        order_view(&pool.order, owner, &view)
        unhold_locked(pool, &view)
    leave(pool)
    return attempt(pool, owner, nbytes, alignment, ptr)


# See what is over

cdef int see_what_is_over(pool_t* pool, owner_t caller, uint32_t until, bint* any) noexcept nogil:
    """Query the oldest event of every stream until one is not over, and give back what is.

    While a capture is under way nothing is queried: that may be forbidden, and spoil the capture.
    """
    cdef int owner, status, fault = STATUS_OK
    for owner in range(LEGACY, streams_made(pool)):
        if is_worth_marking(pool, <owner_t>owner, caller, until):
            status = mark_stream(pool, <owner_t>owner)
            fault = fault or status
        if not is_capturing(pool):
            status = pass_marks(pool, <owner_t>owner, any)
            fault = fault or status
    if any[0] and enter(pool) == STATUS_OK:
        settle_locked(pool)
        leave(pool)
    return fault


cdef int see_own(pool_t* pool, owner_t owner) noexcept nogil:
    """See what is over of the stream's own work: it can use that memory anyhow, but pages move only once it is over."""
    cdef const stream_t* stream = &pool.order.stream[owner]
    cdef bint any = False, unmarked, has_memory
    cdef int status, fault = STATUS_OK
    lock_acquire(&pool.lock)
    unmarked = stream_is_pending(stream) and is_unmarked(stream) and may_record(stream, True)
    has_memory = segment_has_owned(&pool.segment, owner)
    lock_release(&pool.lock)
    if not has_memory or is_capturing(pool):
        return STATUS_OK
    if unmarked:
        fault = mark_stream(pool, owner)
    status = pass_marks(pool, owner, &any)
    if any and enter(pool) == STATUS_OK:
        settle_locked(pool)
        leave(pool)
    return fault or status


cdef int see_what_is_done(pool_t* pool) noexcept nogil:
    """An idle stream is seen to be idle without an event, which would not be over at once."""
    cdef bint any = False
    cdef uint32_t batch
    cdef int owner, status, fault = STATUS_OK
    enter_all(pool)
    batch = pool.order.batch
    pool.order.batch += 1
    leave_all(pool)
    for owner in range(LEGACY, streams_made(pool)):
        if is_worth_asking(pool, <owner_t>owner):
            status = ask_whether_idle(pool, <owner_t>owner, batch, &any)
            fault = fault or status
    status = see_what_is_over(pool, NOBODY, batch, &any)
    if any:
        enter_all(pool)
        settle_locked(pool)
        leave_all(pool)
    return fault or status


cdef bint is_worth_asking(pool_t* pool, owner_t owner) noexcept nogil:
    cdef const stream_t* stream = &pool.order.stream[owner]
    cdef bint worth
    lock_acquire(&pool.lock)
    worth = (pool.order.captures == 0 and is_left(pool, owner, NOBODY, pool.order.batch, True)
             and may_record(stream, False))
    lock_release(&pool.lock)
    return worth


cdef int ask_whether_idle(pool_t* pool, owner_t owner, uint32_t batch, bint* any) noexcept nogil:
    cdef bint idle = False
    cdef int status = STATUS_OK
    if is_the_same(pool, owner) and ask_is_open(pool, pool.order.stream[owner].handle):
        status = ask_is_idle(pool, pool.order.stream[owner].handle, &idle)
    if idle:
        stream_done(pool, owner, batch)
        any[0] = True
    return status


cdef void settle_before_capture(pool_t* pool, owner_t owner) noexcept nogil:
    """What fails here does not matter, and what comes too late, the capture having begun already, is left alone."""
    cdef const stream_t* stream = &pool.order.stream[owner]
    cdef bint any = False, pending, unmarked
    lock_acquire(&pool.lock)
    pending = pool.order.captures == 0 and order_any_pending(&pool.order, NOBODY)
    unmarked = stream_is_pending(stream) and is_unmarked(stream)
    lock_release(&pool.lock)
    if owner == NOBODY or not pending or not ask_is_open(pool, stream.handle):
        return
    if unmarked:
        mark_stream(pool, owner)
    see_what_is_over(pool, owner, pool.order.batch, &any)


# Frees, new default streams of threads, ends of captures and dropped vouchers come without `slow`: what they change is
# read under `lock`.

cdef int streams_made(pool_t* pool) noexcept nogil:
    cdef int streams
    lock_acquire(&pool.lock)
    streams = pool.order.streams
    lock_release(&pool.lock)
    return streams


cdef stream_kind_t kind_of(pool_t* pool, owner_t owner) noexcept nogil:
    cdef stream_kind_t kind
    lock_acquire(&pool.lock)
    kind = pool.order.stream[owner].kind
    lock_release(&pool.lock)
    return kind


cdef bint is_capturing(pool_t* pool) noexcept nogil:
    cdef int captures
    lock_acquire(&pool.lock)
    captures = pool.order.captures
    lock_release(&pool.lock)
    return captures != 0


cdef bint is_worth_marking(pool_t* pool, owner_t owner, owner_t caller, uint32_t until) noexcept nogil:
    cdef const stream_t* stream = &pool.order.stream[owner]
    cdef bint worth
    lock_acquire(&pool.lock)
    worth = is_left(pool, owner, caller, until, False) and is_unmarked(stream) and may_record(stream, owner == caller)
    lock_release(&pool.lock)
    return worth


cdef int copy_marks(pool_t* pool, owner_t owner, mark_t* marks) noexcept nogil:
    """The number of events that are recorded on a stream, and the events."""
    cdef const stream_t* stream = &pool.order.stream[owner]
    cdef int at, count
    lock_acquire(&pool.lock)
    count = stream.marks
    for at in range(count):
        marks[at] = stream.mark[at]
    lock_release(&pool.lock)
    return count


cdef inline bint is_unmarked(const stream_t* stream) noexcept nogil:
    """Was something freed on it that no event covers yet?"""
    return stream.marks == 0 or not batch_within(get_u32(&stream.freed), stream.mark[stream.marks - 1].batch)


cdef bint may_record(const stream_t* stream, bint is_caller) noexcept nogil:
    """Is the stream sure to exist?"""
    if stream.kind == STREAM_LEGACY or stream.kind == STREAM_HELD:
        return True
    if stream.kind == STREAM_VOUCHED and stream.fresh:
        return True
    if stream.kind == STREAM_THREAD:
        return stream.id == this_thread()
    return is_caller and stream.kind != STREAM_GONE


cdef int mark_stream(pool_t* pool, owner_t owner) noexcept nogil:
    """An event recorded now covers every batch that began before; what is freed from here on is in the next one."""
    cdef cudaEvent_t event = NULL, replaced = NULL
    cdef uint32_t batch
    cdef int status
    if not is_the_same(pool, owner) or not ask_is_open(pool, pool.order.stream[owner].handle):
        return STATUS_OK
    status = enter(pool)
    if status != STATUS_OK:
        return status
    batch = pool.order.batch
    pool.order.batch += 1
    leave(pool)
    status = ask_event(pool, pool.order.stream[owner].handle, &event)
    if status != STATUS_OK:
        return status
    lock_acquire(&pool.lock)
    replaced = order_mark(&pool.order, owner, event, batch)
    lock_release(&pool.lock)
    ask_keep_event(pool, replaced)
    return STATUS_OK


cdef bint is_the_same(pool_t* pool, owner_t owner) noexcept nogil:
    """An object may go on to name a stream that was destroyed, and whose handle is another one's now."""
    cdef stream_t* stream = &pool.order.stream[owner]
    cdef uint64_t id = 0
    cdef int status
    if kind_of(pool, owner) != STREAM_VOUCHED:
        return True
    status = ask_stream_id(pool, stream.handle, &id)
    if status == STATUS_OK and id == stream.id:
        return True
    if status == STATUS_OK or status_code(status) == cudaErrorInvalidResourceHandle:    # any other fault may pass
        enter_all(pool)
        stream.kind = STREAM_GONE
        leave_all(pool)
    return False


cdef int pass_marks(pool_t* pool, owner_t owner, bint* any) noexcept nogil:
    cdef mark_t marks[MARKS]
    cdef bint over = True
    cdef int at, status
    for at in range(copy_marks(pool, owner, marks)):
        status = ask_is_over(pool, marks[at].event, &over)
        if status != STATUS_OK or not over:
            return status
        lock_acquire(&pool.lock)
        order_pass_mark(&pool.order, owner)
        lock_release(&pool.lock)
        ask_keep_event(pool, marks[at].event)
        any[0] = True
    return STATUS_OK


# Let the device wait

cdef int wait_on_device(pool_t* pool, owner_t owner, size_t nbytes, size_t alignment, void** ptr,
                        int* status) noexcept nogil:
    """Put the stream behind events that make the request fit; `status` is the request's, the result a fault's."""
    cdef option_t* options = <option_t*>malloc(sizeof(option_t) * OWNERS * MARKS)
    cdef int count, first, fault = STATUS_OK
    if options == NULL:
        return STATUS_OK                        # there is still the host to wait
    count = list_options(pool, owner, options)
    if count != 0 and ask_is_open(pool, pool.order.stream[owner].handle):
        while status[0] == STATUS_OUT_OF_MEMORY and count != 0 and fault == STATUS_OK:
            count = choose(pool, owner, nbytes, alignment, options, count, &first)
            if count == 0:
                break
            fault = wait_for(pool, owner, options, first, count)
            status[0] = attempt_with_held(pool, owner, nbytes, alignment, ptr)
            count = list_options(pool, owner, options)
    free(options)
    return fault


cdef int list_options(pool_t* pool, owner_t owner, option_t* options) noexcept nogil:
    """List the events that the stream is not behind yet, in the order in which they were recorded."""
    cdef mark_t marks[MARKS]
    cdef uint32_t waited
    cdef int other, mark, at, count = 0
    for other in range(LEGACY, streams_made(pool)):
        waited = order_waited(&pool.order, owner, <owner_t>other)[0]
        for mark in range(copy_marks(pool, <owner_t>other, marks) if other != owner else 0):
            if batch_within(marks[mark].batch, waited):
                continue
            at = count
            while at > 0 and not batch_within(options[at - 1].mark.batch, marks[mark].batch):
                options[at] = options[at - 1]
                at -= 1
            options[at].owner = <owner_t>other
            options[at].mark = marks[mark]
            count += 1
    return count


cdef int choose(pool_t* pool, owner_t owner, size_t nbytes, size_t alignment, const option_t* options, int count,
                int* first) noexcept nogil:
    """Find the first event that is enough by itself, else how many from the oldest on are.

    The end of [first, result), or 0 if all of them are not enough.
    """
    cdef view_t view, one
    cdef int at, chosen = 0
    if enter(pool) != STATUS_OK:
        return 0
    order_view(&pool.order, owner, &view)
    for at in range(count):
        one = view
        one.limit[options[at].owner] = options[at].mark.batch
        if segment_could_share(&pool.segment, &one, nbytes, alignment):
            first[0] = at
            leave(pool)
            return at + 1
    first[0] = 0
    for at in range(count):
        view.limit[options[at].owner] = later_batch(view.limit[options[at].owner], options[at].mark.batch)
        if segment_could_share(&pool.segment, &view, nbytes, alignment):
            chosen = at + 1
            break
    if chosen == 0 and pool.helds.bytes != 0:   # what is held was not looked at
        chosen = count
    leave(pool)
    return chosen


cdef int wait_for(pool_t* pool, owner_t owner, const option_t* options, int first, int end) noexcept nogil:
    cdef uint32_t* waited
    cdef int at, later, status
    cdef bint is_last
    for at in range(first, end):
        is_last = True
        for later in range(at + 1, end):
            is_last = is_last and options[later].owner != options[at].owner
        if not is_last:
            continue
        status = ask_wait(pool, pool.order.stream[owner].handle, options[at].mark.event)
        if status != STATUS_OK:
            return status
        lock_acquire(&pool.lock)
        waited = order_waited(&pool.order, owner, options[at].owner)
        waited[0] = later_batch(waited[0], options[at].mark.batch)
        lock_release(&pool.lock)
    return STATUS_OK


# Let the host wait

cdef int wait_for_next(pool_t* pool, owner_t caller, uint32_t until) noexcept nogil:
    """Wait for the event that was recorded first, unless one is over; without any, for the device."""
    cdef mark_t marks[MARKS]
    cdef uint32_t first = 0
    cdef owner_t owner = NOBODY
    cdef bint any = False
    cdef int other
    cdef int status = see_what_is_over(pool, caller, until, &any)
    if status != STATUS_OK or any:
        return status
    for other in range(LEGACY, streams_made(pool)):
        if copy_marks(pool, <owner_t>other, marks) == 0:
            continue
        if owner == NOBODY or not batch_within(first, marks[0].batch):
            owner = <owner_t>other
            first = marks[0].batch
    return wait_for_all(pool) if owner == NOBODY else wait_for_first(pool, owner)


cdef int wait_for_first(pool_t* pool, owner_t owner) noexcept nogil:
    """The event is taken out while `slow` is given up, so that nobody else takes it for another batch."""
    cdef stream_t* stream = &pool.order.stream[owner]
    cdef mark_t mark = stream.mark[0]
    cdef uint32_t done = stream.done
    cdef uint64_t id = stream.id
    cdef int status
    lock_acquire(&pool.lock)
    order_pass_mark(&pool.order, owner)
    stream.done = done
    pool.waits += 1
    lock_release(&pool.lock)
    lock_release(&pool.slow)
    status = ask_event_done(pool, mark.event)
    lock_acquire(&pool.slow)
    enter_all(pool)
    if status == STATUS_OK and stream.kind != STREAM_SPARE and stream.id == id:
        stream.done = later_batch(stream.done, mark.batch)
        settle_locked(pool)
    leave_all(pool)
    ask_keep_event(pool, mark.event)
    lock_acquire(&pool.lock)
    pool.waits -= 1
    lock_release(&pool.lock)
    return status


cdef int wait_for_all(pool_t* pool) noexcept nogil:
    cdef uint32_t batch
    cdef int status
    enter_all(pool)
    batch = pool.order.batch
    pool.order.batch += 1
    pool.waits += 1
    leave_all(pool)
    lock_release(&pool.slow)
    status = ask_device_done(pool)
    lock_acquire(&pool.slow)
    if status == STATUS_OK:
        all_done(pool, batch)
    lock_acquire(&pool.lock)
    pool.waits -= 1
    lock_release(&pool.lock)
    return status


cdef void all_done(pool_t* pool, uint32_t batch) noexcept nogil:
    """Everything that was freed by the end of a batch is done, whoever freed it."""
    cdef int owner
    for owner in range(LEGACY, streams_made(pool)):
        stream_done(pool, <owner_t>owner, batch)
    enter_all(pool)
    settle_locked(pool)
    leave_all(pool)


cdef void stream_done(pool_t* pool, owner_t owner, uint32_t batch) noexcept nogil:
    cdef stream_t* stream = &pool.order.stream[owner]
    cdef mark_t marks[MARKS]
    cdef int at
    for at in range(copy_marks(pool, owner, marks)):
        if not batch_within(marks[at].batch, batch):
            break
        lock_acquire(&pool.lock)
        order_pass_mark(&pool.order, owner)
        lock_release(&pool.lock)
        ask_keep_event(pool, marks[at].event)
    lock_acquire(&pool.lock)
    if stream.kind != STREAM_CAPTURE and stream.kind != STREAM_SPARE:
        stream.done = later_batch(stream.done, batch)
    lock_release(&pool.lock)
