"""What a nogil function of the pool returns: 0, or the reason for which it changed nothing."""

cdef enum status_t:
    STATUS_OK = 0
    STATUS_OUT_OF_MEMORY        # no block of that size
    STATUS_FOREIGN_POINTER      # not an address of this pool
    STATUS_INTERIOR_POINTER     # inside a live block, not its start
    STATUS_FREED_POINTER        # in the pool, but in no live block
    STATUS_CLOSED               # the pool is closed
    STATUS_FORKED               # the pool belongs to the parent process
    STATUS_HOST_MEMORY          # no host memory for the bookkeeping
    STATUS_BAD_ALIGNMENT        # not a power of two
    STATUS_CAPTURING            # a stream is being captured, which forbids this
    STATUS_STREAMS              # as many streams as a pool can keep apart are pending
    STATUS_WOULD_WAIT           # the driver would have to be asked; pool_try_* never does
    STATUS_OVERLAP              # the driver returned memory that is live already
    STATUS_MOVABLE              # a movable block's address: its handle is to be used
    STATUS_PINNED               # a movable block is pinned
    STATUS_CUDA                 # a driver call failed; status_code() and status_call() tell which and how

cdef enum:
    STATUS_CODE_SHIFT = 8
    STATUS_CALL_SHIFT = 24


cdef inline int status_cuda(int code, int call) noexcept nogil:
    """The status for a driver call's result; `call` is one of upstream_t."""
    return STATUS_OK if code == 0 else STATUS_CUDA | (code & 0xFFFF) << STATUS_CODE_SHIFT | call << STATUS_CALL_SHIFT


cdef inline int status_code(int status) noexcept nogil:
    return status >> STATUS_CODE_SHIFT & 0xFFFF


cdef inline int status_call(int status) noexcept nogil:
    return status >> STATUS_CALL_SHIFT
