"""Putting one stream behind another's work, and what may be queued on a stream that nobody has just named."""

from libc.stdint cimport uint32_t

from cuda_pool._owner cimport owner_t, owners_t
from cuda_pool._segment cimport place_t
from cuda_pool._state cimport pool_t

# All but the last are called with `slow` held, and ask the driver. They return a status.

# May work be queued on a stream? It is there, it is the one that the record stands for, and it is not being captured.
cdef int stream_is_open(pool_t* pool, owner_t owner, bint* is_open) noexcept nogil
# Let what the asker is given from now on run after what `owner` had queued by the end of a batch. `behind` is False,
# and nothing changed, where no event says when that is over, and none can be recorded.
cdef int get_behind(pool_t* pool, owner_t asker, owner_t owner, uint32_t batch, bint* behind) noexcept nogil
# The same for a set of streams, until one of them cannot be waited for so.
cdef int get_behind_all(pool_t* pool, owner_t asker, const owners_t* owners, uint32_t batch,
                        bint* behind) noexcept nogil
# The same, and where the asker is not open or one cannot be waited for so, the host waits for the device, unless a
# capture is under way: STATUS_CAPTURING.
cdef int get_behind_or_wait(pool_t* pool, owner_t asker, const owners_t* owners, uint32_t batch) noexcept nogil
# Are all of them sure to exist? A plain handle may have been destroyed, and is not to be called then.
cdef bint all_exist(pool_t* pool, const owners_t* owners) noexcept nogil
# Under `lock`: the streams whose work may still use a live block, other than the asker and those that it is behind.
# False: there are none.
cdef bint behind_users(pool_t* pool, const place_t* place, const void* ptr, owner_t asker,
                       owners_t* owners) noexcept nogil
