"""Which stream a handle names: the same as before, or another one that got the same handle."""

from cuda_pool._driver cimport cudaStream_t
from cuda_pool._order cimport stream_kind_t
from cuda_pool._owner cimport owner_t
from cuda_pool._state cimport pool_t

# All of these are called with `slow` held, and ask the driver. They return a status.

# Find out who a handle names now; NOBODY when no record is free for it.
cdef int identify(pool_t* pool, cudaStream_t handle, owner_t* owner) noexcept nogil
# The same for one that is promised to exist, or whose object was asked (STREAM_HELD, STREAM_VOUCHED).
cdef int identify_as(pool_t* pool, cudaStream_t handle, stream_kind_t kind, owner_t* owner) noexcept nogil
# Give the records back of streams that have nothing pending and may be gone.
cdef void drop_idle(pool_t* pool) noexcept nogil
# Give all that a stream has to nobody, and its record back: its work is done.
cdef void drop_stream(pool_t* pool, owner_t owner) noexcept nogil
