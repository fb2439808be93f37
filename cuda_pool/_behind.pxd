"""Putting one stream behind another's work, and what may be queued on a stream that nobody has just named."""

from libc.stdint cimport uint32_t

from cuda_pool._owner cimport owner_t
from cuda_pool._state cimport pool_t

# Both are called with `slow` held, and ask the driver. They return a status.

# May work be queued on a stream? It is there, it is the one that the record stands for, and it is not being captured.
cdef int stream_is_open(pool_t* pool, owner_t owner, bint* is_open) noexcept nogil
# Let what the asker is given from now on run after what `owner` had queued by the end of a batch. `behind` is False,
# and nothing changed, where no event says when that is over, and none can be recorded.
cdef int get_behind(pool_t* pool, owner_t asker, owner_t owner, uint32_t batch, bint* behind) noexcept nogil
