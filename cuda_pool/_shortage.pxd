"""The order of last resort: what is done for an allocation that finds no memory that is free for it."""

from cuda_pool._order cimport stream_t
from cuda_pool._owner cimport owner_t
from cuda_pool._state cimport pool_t

# Called with `slow` held, which may be given up and taken again meanwhile. They return a status.
cdef int shortage_alloc(pool_t* pool, owner_t owner, size_t nbytes, size_t alignment, void** ptr) noexcept nogil
# Is the stream sure to exist, so that an event may be recorded on it? A caller has just named it. Under `lock`.
cdef bint may_record(const stream_t* stream, bint is_caller) noexcept nogil
# Is any stream being captured? That may end at any time.
cdef bint is_capturing(pool_t* pool) noexcept nogil
# A capture can only use what nobody waits for, and no driver call can be made during it: see what is over before.
cdef void settle_before_capture(pool_t* pool, owner_t owner) noexcept nogil
# See what is over of everything that is pending, and give it back to nobody; waits for nothing.
cdef int see_what_is_done(pool_t* pool) noexcept nogil
# Record an event behind what was freed on a stream so far.
cdef int mark_stream(pool_t* pool, owner_t owner) noexcept nogil
# Wait until all work of the device is done, and so all that is pending.
cdef int wait_for_all(pool_t* pool) noexcept nogil
