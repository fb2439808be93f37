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
    STATUS_BAD_ALIGNMENT        # not a power of two, or larger than the pool can give
    STATUS_CUDA                 # a driver call failed
