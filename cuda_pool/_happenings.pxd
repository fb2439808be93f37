"""What happened to a pool that somebody wants to hear of: kept until a thread with the GIL comes for it."""

from libc.stdint cimport uint32_t, uint64_t

from cuda_pool._lock cimport lock_t

ctypedef int happening_kind_t

cdef enum:                      # happening_kind_t
    HAPPENING_GROW = 0              # bytes that came
    HAPPENING_TRIM                  # bytes that went back
    HAPPENING_OOM                   # bytes that were asked for in vain
    HAPPENING_DEFRAGMENT            # bytes that were moved
    HAPPENINGS_KEPT = 64

ctypedef struct happening_t:
    happening_kind_t kind
    size_t nbytes
    uint64_t thread             # that will come for it, or 0: whoever does

# Invariant:  count <= HAPPENINGS_KEPT
ctypedef struct happenings_t:
    lock_t guard                # under which no other lock is taken
    bint watched                # nothing is kept otherwise
    uint32_t count
    uint64_t missed             # for lack of room
    happening_t item[HAPPENINGS_KEPT]

# Keep one, with any lock of the pool or none.
cdef void happenings_note(happenings_t* happenings, happening_kind_t kind, size_t nbytes) noexcept nogil
# An allocation failed: for a thread that comes for it, whoever has made it come says so once it is sure.
cdef void happenings_refuse(happenings_t* happenings, size_t nbytes) noexcept nogil
# Take the oldest one that is the calling thread's or nobody's; False if there is none.
cdef bint happenings_take(happenings_t* happenings, happening_t* taken) noexcept nogil
# Let the calling thread come for what it does from now on (1), or not (0), or let that not be kept (-1); what was
# before.
cdef int happenings_attend(int attends) noexcept nogil
# Wait until something was kept for whoever comes; and let a thread that waits look.
cdef void happenings_wait() noexcept nogil
cdef void happenings_wake() noexcept nogil
