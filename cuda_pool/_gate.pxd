"""The one place where a status of the nogil layer becomes an exception."""

from cuda_pool._state cimport pool_t

# 0 for STATUS_OK, else raises. `nbytes` is the size that was asked for, `address` the pointer that was passed.
cdef int status_raise(pool_t* pool, int status, object nbytes, size_t address) except -1
