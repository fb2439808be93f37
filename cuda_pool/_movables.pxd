"""Blocks that may be moved while nobody has them pinned: a record for each handle."""

from libc.stdint cimport uint32_t, uint64_t

from cuda_pool._owner cimport owner_t

cdef enum:
    NO_MOVABLE = 0                  # record 0 is never used

ctypedef int movable_state_t

cdef enum:                      # movable_state_t
    MOVABLE_SPARE = 0
    MOVABLE_RESTS                   # has its place, and may be pinned
    MOVABLE_MOVES                   # a step is under way: `slow` is held
    MOVABLE_AWAY                    # has no block: that is being made or freed

# Its work is in the order of its home, the stream that it was made for; other streams that use it are recorded uses of
# the block.
ctypedef struct movable_t:
    void* ptr
    size_t nbytes                   # asked for
    size_t alignment                # bytes
    movable_state_t state
    uint32_t pins
    owner_t home
    uint64_t serial                 # of that record, which is kept while it is anyone's home
    uint32_t batch                  # in which it was moved last, 0 if that is over
    uint32_t refused                # number of the pass that could not move it
    uint32_t next                   # of a spare record

# Invariants, asserted by movables_check() and pool_check():
#   count == records that are not spare;  a movable block names its record, whose address is that of the block
#   homes of a stream == records whose home it is
ctypedef struct movables_t:
    movable_t* record               # an index is stable, the array may move
    uint32_t capacity
    uint32_t made
    uint32_t spare                  # chain of returned records
    uint32_t count

cdef void movables_init(movables_t* movables) noexcept nogil
cdef void movables_destroy(movables_t* movables) noexcept nogil
# A record without a block, or NO_MOVABLE when the host has no memory.
cdef uint32_t movables_add(movables_t* movables, size_t nbytes, size_t alignment, owner_t home,
                           uint64_t serial) noexcept nogil
cdef void movables_remove(movables_t* movables, uint32_t index) noexcept nogil
# Let another stream be the home of all whose home is `owner`, whose work is done.
cdef uint32_t movables_rehome(movables_t* movables, owner_t owner, owner_t to, uint64_t serial) noexcept nogil
# All moves are over.
cdef void movables_settle(movables_t* movables) noexcept nogil
cdef const char* movables_check(const movables_t* movables) noexcept nogil


cdef inline movable_t* movables_find(const movables_t* movables, uint32_t index) noexcept nogil:
    """The record of a number, or NULL where that is none: of an empty handle, or one that is gone."""
    if index == NO_MOVABLE or index >= movables.made or movables.record[index].state == MOVABLE_SPARE:
        return NULL
    return &movables.record[index]
