"""How a pool's locks are taken, in the order that is said at pool_t."""

from cuda_pool._cache cimport seats_empty
from cuda_pool._lock cimport lock_acquire, lock_release
from cuda_pool._owner cimport LEGACY
from cuda_pool._relaxed cimport get_pointer
from cuda_pool._seat cimport seat_side, seats_go, seats_stop
from cuda_pool._state cimport pool_t
from cuda_pool._status cimport STATUS_CLOSED, STATUS_FORKED, STATUS_OK


cdef inline int enter(pool_t* pool) noexcept nogil:
    """Take `lock` and those of all heaps of an open pool; on any other status none is held."""
    cdef int status = enter_lock(pool)
    if status == STATUS_OK:
        heaps_acquire(pool)
    return status


cdef inline void leave(pool_t* pool) noexcept nogil:
    leave_all(pool)


cdef inline void enter_all(pool_t* pool) noexcept nogil:
    """The same, whether the pool is open or not."""
    lock_acquire(&pool.lock)
    heaps_acquire(pool)


cdef inline void leave_all(pool_t* pool) noexcept nogil:
    cdef int owner
    if pool.seats_held:
        pool.seats_held = False
        seats_go(pool.segment.seats, NULL if wants_locks(pool) else seat_key(pool))
    for owner in range(LEGACY, pool.heaps_held):
        lock_release(&pool.heaps[owner].lock)
    lock_release(&pool.lock)


cdef inline bint wants_locks(const pool_t* pool) noexcept nogil:
    """Is there something that only those look at who take the locks? Then nothing is served from caches."""
    return (pool.closed or pool.order.captures != 0 or pool.uses.count != 0 or pool.leaving != NULL or pool.scrub
            or pool.unordered)


cdef inline void* seat_key(const pool_t* pool) noexcept nogil:
    """What opens the gates of seats. While calls are recorded it is not the pool, which the shortest paths try."""
    cdef void* tracer = get_pointer(<void* const*>&pool.tracer)
    return tracer if tracer != NULL else <void*>pool


cdef inline void heaps_acquire(pool_t* pool) noexcept nogil:
    """Stop the seats, take the heaps' locks, and empty the caches."""
    seats_stop(pool.segment.seats)
    heaps_lock(pool)
    pool.seats_held = True
    seats_empty(pool)


cdef inline void heaps_lock(pool_t* pool) noexcept nogil:
    """Records that are made meanwhile have no slabs, and nobody else can name them."""
    cdef int owner
    for owner in range(LEGACY, pool.order.streams):
        lock_acquire(&pool.heaps[owner].lock)
    pool.heaps_held = pool.order.streams
    pool.segment.slabs.side = seat_side(pool, pool.place)
    pool.segment.mid.side = pool.segment.slabs.side


cdef inline int enter_heaps(pool_t* pool) noexcept nogil:
    """Take `lock` and those of all heaps, and let the seats go on: enough to make a slab, not to unmake one."""
    cdef int status = enter_lock(pool)
    if status == STATUS_OK:
        heaps_lock(pool)
    return status


cdef inline int enter_lock(pool_t* pool) noexcept nogil:
    """Take `lock` alone: enough for blocks of the mid and the buddy tier, for events, and to look at streams."""
    if pool.generation != pool.forks[0]:        # first: another thread of the parent may have held the lock at the fork
        return STATUS_FORKED
    lock_acquire(&pool.lock)
    if not pool.closed:
        return STATUS_OK
    lock_release(&pool.lock)
    return STATUS_CLOSED


cdef inline void leave_lock(pool_t* pool) noexcept nogil:
    lock_release(&pool.lock)
