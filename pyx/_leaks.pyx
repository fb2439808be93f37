"""The live blocks of a pool, with what a recording knows of each."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from cuda_pool._api cimport Pool
from cuda_pool._census cimport NO_STREAM, census_destroy, census_t, census_take
from cuda_pool._gate cimport status_raise
from cuda_pool._ledger cimport account_t, ledger_find
from cuda_pool._lock cimport lock_acquire, lock_release
from cuda_pool._locks cimport enter, leave
from cuda_pool._state cimport pool_t
from cuda_pool._status cimport STATUS_HOST_MEMORY, STATUS_OK
from cuda_pool._tracer cimport tracer_flush, tracer_t
from cuda_pool._tracing cimport Tracing, tracing_at

from cuda_pool.leaks import Frame, LiveBlock, grouped

# Copies, of which Python objects are made without any lock.
ctypedef struct picture_t:
    census_t census
    account_t* account          # of each; the key is 0 where the recording knows nothing
    uint64_t events


def leaks_of(Pool pool not None):
    """Return the Leaks of a pool, or raise as ``Pool.leaks`` says."""
    cdef Tracing tracing = tracing_at(pool.state)
    cdef tracer_t* tracer = NULL if tracing is None or tracing.is_inherited() else tracing.tracer
    cdef picture_t picture
    cdef int status
    memset(&picture, 0, sizeof(picture))
    try:
        with nogil:
            status = picture_take(pool.state, tracer, &picture)
        status_raise(pool.state, status, 0, 0)
        stacks = [()] if tracing is None else tracing.stacks
        return grouped([block_of(&picture, at, stacks, tracer != NULL) for at in range(picture.census.count)])
    finally:
        census_destroy(&picture.census)
        free(picture.account)


cdef int picture_take(pool_t* pool, tracer_t* tracer, picture_t* picture) noexcept nogil:
    cdef int status = enter(pool)
    if status != STATUS_OK:
        return status
    if not census_take(&picture.census, pool):
        status = STATUS_HOST_MEMORY
    leave(pool)
    if status == STATUS_OK:
        picture.account = <account_t*>calloc(picture.census.count + 1, sizeof(account_t))
        if picture.account == NULL:
            status = STATUS_HOST_MEMORY
    if status == STATUS_OK and tracer != NULL:
        tracer_flush(tracer)                    # the notes of what is live are in the ledger then
        look_up(tracer, picture)
    return status


cdef void look_up(tracer_t* tracer, picture_t* picture) noexcept nogil:
    cdef const account_t* found
    cdef size_t at
    for at in range(picture.census.count):
        lock_acquire(&tracer.guard)
        found = ledger_find(&tracer.ledger, picture.census.citizen[at].key)
        if found != NULL:
            picture.account[at] = found[0]
        picture.events = tracer.events
        lock_release(&tracer.guard)


cdef object block_of(const picture_t* picture, size_t at, list stacks, bint is_recorded):
    cdef const account_t* account = &picture.account[at]
    cdef uint64_t stream = picture.census.citizen[at].stream
    address, nbytes = picture.census.citizen[at].address, picture.census.citizen[at].nbytes
    if account.key == 0:                        # not recorded, or freed meanwhile
        return LiveBlock(address, nbytes, None if stream == NO_STREAM else stream, 0 if is_recorded else None, ())
    stack = stacks[account.stack] if account.stack < len(stacks) else ()
    return LiveBlock(address, nbytes, account.stream, picture.events - account.born,
                     tuple([Frame(code.co_filename, line, code.co_qualname if hasattr(code, "co_qualname")
                                  else code.co_name) for code, line in stack]))
