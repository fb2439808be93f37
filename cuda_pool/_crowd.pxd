"""More in a thread's caches while other threads are in its way.

For one thread it is best to keep little and to return what is more at once. Where several come to the pool's lock, the
lock and the records that it guards pass from one processor to another each time, which takes longer than the work
itself: then each of them should come less often.
"""

from cuda_pool._bins cimport BLOCK_LEAST, BLOCK_MOST
from cuda_pool._owner cimport owner_t
from cuda_pool._state cimport pool_t

# After a block of `used` bytes of the owner's, or nobody's, was freed with the pool's lock, which is still held, by a
# thread at no seat: if others came for that not long ago, let the thread's cache hold more from now on, and, where it
# is full even so, return a part of what is in it.
cdef void crowd_note(pool_t* pool, owner_t owner, size_t used) noexcept nogil


cdef inline bint is_shared(const pool_t* pool) noexcept nogil:
    """Do several threads have seats?"""
    return pool.segment.seats != NULL and pool.segment.seats.next != NULL


cdef inline void crowd_note_free(pool_t* pool, owner_t owner, size_t used) noexcept nogil:
    if is_shared(pool) and used - <size_t>BLOCK_LEAST <= <size_t>(BLOCK_MOST - BLOCK_LEAST):
        crowd_note(pool, owner, used)
