"""Passes that bring free memory together.

A pass has three parts: to complete pending frees, return empty slabs and merge; where pages can be moved, to move those
of free memory to one place, some at a time (_remap); and elsewhere to move blocks. The last goes in rounds: what lies
where is read, moves are chosen from that without a lock (_plan), and made one by one (_step), each only if its block is
still there and its target still free.
"""

from libc.stdint cimport uint32_t
from libc.string cimport memset

from cuda_pool._bits cimport round_up
from cuda_pool._growth cimport may_call
from cuda_pool._happenings cimport HAPPENING_DEFRAGMENT, happenings_note
from cuda_pool._layout cimport layout_read
from cuda_pool._lock cimport LOCK_SPINS, cpu_pause, lock_acquire, lock_release, lock_try, sched_yield
from cuda_pool._locks cimport enter, enter_lock, leave, leave_lock
from cuda_pool._mid cimport MID_UNIT
from cuda_pool._order cimport LEGACY, STREAM_GONE
from cuda_pool._owner cimport NOBODY, owner_t
from cuda_pool._plan cimport plan_choose, plan_destroy, plan_t
from cuda_pool._remap cimport remap_gather
from cuda_pool._room cimport segment_largest_free
from cuda_pool._segment cimport segment_free_bytes, segment_reclaim, segment_total
from cuda_pool._shortage cimport is_capturing, see_what_is_done, wait_for_all, wait_for_pending
from cuda_pool._slowly cimport slow_enter
from cuda_pool._state cimport rehome_locked, settle_locked
from cuda_pool._status cimport STATUS_CAPTURING, STATUS_OK, STATUS_WOULD_WAIT
from cuda_pool._step cimport step_make

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned)

cdef enum:
    ROUNDS = 16
    STEP_PAGES = 64             # that are moved while others who need a driver call wait
    NAP = 50                    # microseconds between two looks at a pass that is under way
    REGROWTH = 4                # a quarter more free blocks than the last pass left make another one due


cdef int defrag_by_hand(pool_t* pool, defrag_report_t* report) noexcept nogil:
    cdef int status = enter_lock(pool), round
    if status != STATUS_OK:
        return status
    leave_lock(pool)
    memset(report, 0, sizeof(defrag_report_t))
    pass_begin(pool)
    status = survey(pool, &report.before)
    if status == STATUS_OK:
        status = settle_waiting(pool)
    if status == STATUS_OK and pool.segment.pages.shift != 0:
        status = gather_pages(pool, report)
    for round in range(ROUNDS if pool.segment.pages.shift == 0 else 0):
        if status != STATUS_OK:
            break
        status = move_blocks(pool, 0, True, report)
        if status == STATUS_OK or status == STATUS_WOULD_WAIT:
            status = settle_waiting(pool)
        if report.completed:
            break
    if status == STATUS_CAPTURING:
        status = STATUS_OK
    report.completed = report.completed and status == STATUS_OK and not is_capturing(pool)
    if status == STATUS_OK:
        status = survey(pool, &report.after)
    pass_end(pool, report)
    return status


cdef void defrag_if_due(pool_t* pool) noexcept nogil:
    """What fails here does not matter to the allocation that was made to do it."""
    cdef defrag_report_t report
    cdef bint due
    cdef int round
    if enter_lock(pool) != STATUS_OK:
        return
    due = defrag_is_due(pool) and lock_try(&pool.defrag.running.word)
    leave_lock(pool)
    if not due:
        return
    pass_count(pool)
    memset(&report, 0, sizeof(report))
    if settle_at_once(pool) == STATUS_OK:
        for round in range(ROUNDS):
            if move_blocks(pool, 0, False, &report) != STATUS_OK or report.completed:
                break
    pass_end(pool, &report)


cdef bint defrag_for(pool_t* pool, size_t nbytes, size_t alignment) noexcept nogil:
    cdef defrag_report_t report
    cdef size_t needed = max(nbytes, <size_t>1) + (alignment if alignment > MID_UNIT else 0)
    cdef bint hopeless
    cdef int round
    if enter_lock(pool) != STATUS_OK:
        return False
    hopeless = (pool.movables.count == 0 or pool.order.captures != 0 or pool.segment.pages.shift != 0
                or alignment > pool.segment.size or nbytes > segment_free_bytes(&pool.segment))
    leave_lock(pool)
    if hopeless:
        return False
    pass_begin(pool)
    memset(&report, 0, sizeof(report))
    for round in range(ROUNDS):
        if move_blocks(pool, needed, True, &report) != STATUS_OK or report.completed:
            break
    pass_end(pool, &report)
    return report.moved_blocks != 0


cdef void defrag_set(pool_t* pool, size_t threshold, size_t interval) noexcept nogil:
    if enter_lock(pool) == STATUS_OK:
        pool.defrag.threshold = threshold
        pool.defrag.limit = threshold
        pool.defrag.interval = interval
        leave_lock(pool)


cdef void defrag_look(pool_t* pool) noexcept nogil:
    cdef size_t blocks = free_blocks(pool)
    if pool.defrag.threshold != 0 and blocks > pool.defrag.limit:
        pool.defrag.due = True
    elif pool.defrag.interval != 0 and allocs_made(pool) - pool.defrag.allocs >= pool.defrag.interval:
        pool.defrag.due = True


# A pass

cdef void pass_begin(pool_t* pool) noexcept nogil:
    """One at a time; a pass that is under way is waited for."""
    while not lock_try(&pool.defrag.running.word):
        usleep(NAP)
    pass_count(pool)


cdef void pass_count(pool_t* pool) noexcept nogil:
    """From here on none is due, so nobody else who allocates is made to ask."""
    lock_acquire(&pool.lock)
    pool.defrag.count += 1
    pool.defrag.due = False
    pool.defrag.allocs = allocs_made(pool)
    lock_release(&pool.lock)


cdef void pass_end(pool_t* pool, const defrag_report_t* report) noexcept nogil:
    cdef size_t blocks
    lock_acquire(&pool.lock)
    blocks = free_blocks(pool)
    pool.defrag.limit = max(pool.defrag.threshold, blocks + blocks // REGROWTH)
    pool.defrag.due = False
    lock_release(&pool.lock)
    lock_release(&pool.defrag.running)
    happenings_note(&pool.happenings, HAPPENING_DEFRAGMENT, report.moved_bytes)


cdef inline size_t free_blocks(const pool_t* pool) noexcept nogil:
    return <size_t>pool.segment.mid.free_blocks + pool.segment.buddy.free_blocks


cdef inline size_t allocs_made(const pool_t* pool) noexcept nogil:
    return segment_total(&pool.segment).allocs - pool.defrag.moves


cdef int survey(pool_t* pool, room_t* room) noexcept nogil:
    cdef int status = enter(pool)
    if status != STATUS_OK:
        return status
    room.free = pool.segment.size if pool.segment.pages.shift == 0 else pool.reserved
    room.free -= segment_total(&pool.segment).used
    room.largest_free = segment_largest_free(&pool.segment)
    room.free_blocks = free_blocks(pool)
    leave(pool)
    return STATUS_OK


# Part 1: what is free already

cdef int settle_waiting(pool_t* pool) noexcept nogil:
    """Wait for pending frees, and for streams that are gone, whose movable blocks become the default stream's."""
    cdef int status = slow_enter(pool)
    if status != STATUS_OK:
        return status
    status = wait_for_pending(pool)
    if status == STATUS_OK and find_gone_home(pool) != NOBODY and not is_capturing(pool):
        status = wait_for_all(pool)
        if status == STATUS_OK:
            rehome_gone(pool)
    lock_release(&pool.slow)
    return merge(pool) if status == STATUS_OK else status


cdef int settle_at_once(pool_t* pool) noexcept nogil:
    cdef int status = slow_enter(pool)
    if status != STATUS_OK:
        return status
    status = see_what_is_done(pool)
    lock_release(&pool.slow)
    return merge(pool) if status == STATUS_OK else status


cdef int merge(pool_t* pool) noexcept nogil:
    cdef int status = enter(pool)
    if status != STATUS_OK:
        return status
    segment_reclaim(&pool.segment)
    settle_locked(pool)
    leave(pool)
    return STATUS_OK


cdef owner_t find_gone_home(pool_t* pool) noexcept nogil:
    """A stream that was destroyed and is the home of movable blocks, or nobody."""
    cdef owner_t found = NOBODY
    cdef int owner
    lock_acquire(&pool.lock)
    for owner in range(LEGACY, pool.order.streams):
        if pool.order.stream[owner].kind == STREAM_GONE and pool.order.stream[owner].homes != 0:
            found = <owner_t>owner
    lock_release(&pool.lock)
    return found


cdef void rehome_gone(pool_t* pool) noexcept nogil:
    cdef owner_t gone = find_gone_home(pool)
    while gone != NOBODY:
        lock_acquire(&pool.lock)
        rehome_locked(pool, gone)
        lock_release(&pool.lock)
        gone = find_gone_home(pool)


# Part 2: pages of free memory are moved

cdef int gather_pages(pool_t* pool, defrag_report_t* report) noexcept nogil:
    """Step by step, until one has nothing to move. An allocation would move what it needs, and wait for that.

    Others may scatter again what was gathered: so a pass ends after more moves than there can be pages.
    """
    cdef size_t moved = 1
    cdef bint allowed = True
    cdef int status = STATUS_OK
    while status == STATUS_OK and moved != 0 and report.moved_pages <= pool.segment.pages.most:
        status = gather_step(pool, &moved, &allowed)
        report.moved_pages += moved
        give_way()
    report.completed = allowed and moved == 0
    return status


cdef int gather_step(pool_t* pool, size_t* moved, bint* allowed) noexcept nogil:
    cdef int status = slow_enter(pool)
    moved[0] = 0
    if status != STATUS_OK:
        return status
    allowed[0] = may_call(pool, NOBODY)
    if allowed[0]:
        status = remap_gather(pool, STEP_PAGES, moved)
    lock_release(&pool.slow)
    return status


# Part 3: blocks are moved

cdef int move_blocks(pool_t* pool, size_t needed, bint may_wait, defrag_report_t* report) noexcept nogil:
    """One round: make the moves that seem worth it, if they can make `needed` bytes free in one piece.

    It was the last one if there are none, or none that can be made.
    """
    cdef plan_t plan
    cdef int status
    report.completed = True
    if pool.segment.pages.shift != 0:               # pages are moved instead
        return STATUS_OK
    status = layout_read(pool, &plan, &report.kept_blocks)
    if status == STATUS_OK and plan.reach > plan.largest and plan.reach >= round_up(needed, MID_UNIT) // MID_UNIT:
        plan_choose(&plan)
        status = make_moves(pool, &plan, may_wait, report)
    report.completed = plan.moves == 0
    plan_destroy(&plan)
    return status


cdef int make_moves(pool_t* pool, const plan_t* plan, bint may_wait, defrag_report_t* report) noexcept nogil:
    """Up to the first that cannot be made: those that follow may rely on it."""
    cdef size_t nbytes
    cdef uint32_t at
    cdef int status = STATUS_OK
    for at in range(plan.moves):
        nbytes = 0
        status = step_make(pool, &plan.move[at], &nbytes)
        if status == STATUS_WOULD_WAIT and may_wait:
            status = settle_waiting(pool)
            if status == STATUS_OK:
                status = step_make(pool, &plan.move[at], &nbytes)
        if status != STATUS_OK or nbytes == 0:
            break
        report.moved_bytes += nbytes
        report.moved_blocks += 1
        give_way()
    return status


cdef void give_way() noexcept nogil:
    """Let those who wait for `slow` have it between two steps."""
    cdef int spins
    for spins in range(LOCK_SPINS):
        cpu_pause()
    sched_yield()
