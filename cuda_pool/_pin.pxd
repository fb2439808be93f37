"""Handles of movable blocks, from any thread and without the GIL: making, pinning and freeing them."""

from libc.stdint cimport uint32_t

from cuda_pool._order cimport stream_ref_t
from cuda_pool._state cimport pool_t

# A handle is the number of its record, NO_MOVABLE for one of 0 bytes. Every function returns a status. Those named
# try_* call no driver, and may be called with the GIL: STATUS_WOULD_WAIT, and nothing changed, where one is needed, or
# where the block is being moved. The others do the rest, and are called without the GIL.

cdef int pin_try_make(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                      uint32_t* handle) noexcept nogil
cdef int pin_make(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                  uint32_t* handle) noexcept nogil
# In the order of the home. STATUS_PINNED while it is pinned.
cdef int pin_try_free(pool_t* pool, uint32_t handle) noexcept nogil
cdef int pin_free(pool_t* pool, uint32_t handle) noexcept nogil

# Pin a block where it is, and tell its address.
cdef int pin_try_take(pool_t* pool, uint32_t handle, void** ptr) noexcept nogil
cdef int pin_take(pool_t* pool, uint32_t handle, void** ptr) noexcept nogil
# The same, for use on another stream too, which is put behind the last move.
cdef int pin_take_on(pool_t* pool, uint32_t handle, const stream_ref_t* stream, void** ptr) noexcept nogil
# Take a pin back.
cdef int pin_drop(pool_t* pool, uint32_t handle) noexcept nogil
# The address, and how often it is pinned; 0 if it is not.
cdef int pin_look(pool_t* pool, uint32_t handle, void** ptr, uint32_t* pins) noexcept nogil
