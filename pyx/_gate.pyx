"""The one place where a status of the nogil layer becomes an exception."""

from cuda_pool._driver cimport driver_check
from cuda_pool._pool cimport pool_call_name
from cuda_pool._state cimport pool_t
from cuda_pool._status cimport (
    STATUS_BAD_ALIGNMENT, STATUS_CAPTURING, STATUS_CLOSED, STATUS_FOREIGN_POINTER, STATUS_FORKED,
    STATUS_FREED_POINTER, STATUS_HOST_MEMORY, STATUS_INTERIOR_POINTER, STATUS_MOVABLE, STATUS_OK, STATUS_OUT_OF_MEMORY,
    STATUS_OVERLAP, STATUS_PINNED, STATUS_STREAMS, status_call, status_code)
from cuda_pool._survey cimport LOOKS, survey_destroy, survey_t, survey_take, survey_values

from cuda_pool.errors import InvalidPointerError, OutOfMemoryError

POINTER_FAULTS = {
    STATUS_FOREIGN_POINTER: "is not an address of this pool",
    STATUS_INTERIOR_POINTER: "lies inside a live block: only the address that alloc returned is accepted",
    STATUS_MOVABLE: "is a movable block: free its handle, and name streams to the handle",
    STATUS_FREED_POINTER: "is in no live block of this pool: already freed, or never allocated",
}


cdef int status_raise(pool_t* pool, int status, object nbytes, size_t address) except -1:
    if status == STATUS_OK:
        return 0
    if status == STATUS_OUT_OF_MEMORY:
        raise out_of_memory(pool, nbytes)
    if status in POINTER_FAULTS:
        raise InvalidPointerError(f"0x{address:x} {POINTER_FAULTS[status]}")
    if status == STATUS_CLOSED:
        if address:
            raise InvalidPointerError(f"0x{address:x}: the pool is closed")
        raise ValueError("the pool is closed")
    if status == STATUS_FORKED:
        raise RuntimeError("this pool was made before the process forked and belongs to the parent: "
                           "make a new one in the child, or start it with the 'spawn' method")
    if status == STATUS_HOST_MEMORY:
        raise MemoryError("the host has no memory left for the pool's bookkeeping")
    if status == STATUS_PINNED:
        raise ValueError("the movable block is pinned: leave the with block of every pin() first")
    if status == STATUS_BAD_ALIGNMENT:
        raise ValueError("alignment is a power of two of at least 1 byte")
    if status == STATUS_CAPTURING:
        raise ValueError("a stream is being captured, which forbids this: release or leave that capture first")
    if status == STATUS_STREAMS:
        raise RuntimeError("a pool keeps 254 streams apart, those that are held and captures included: "
                           "forget those that are no longer used")
    if status == STATUS_OVERLAP:
        raise RuntimeError(f"the driver returned 0x{pool.refused.start:x}, which overlaps a live region from "
                           f"0x{pool.taken.start:x} to 0x{pool.taken.end:x}")
    driver_check(pool.driver, status_code(status), pool_call_name(status_call(status)).decode())
    raise SystemError(f"unexpected status {status}")


cdef object out_of_memory(pool_t* pool, object nbytes):
    """Return the error with what the pool was like, which is looked at here: by the time of a report it has changed."""
    cdef survey_t survey
    cdef int status
    with nogil:
        status = survey_take(&survey, pool, LOOKS)
    try:
        error = OutOfMemoryError(nbytes, survey.stats.free, survey.stats.largest_free, survey.stats.reserved,
                                 survey.stats.capacity)
        if status == STATUS_OK:
            error.moment = survey_values(&survey, pool)
        return error
    finally:
        survey_destroy(&survey)
