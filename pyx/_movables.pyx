"""Records of blocks that may be moved."""

from libc.stdint cimport uint32_t
from libc.stdlib cimport free
from libc.string cimport memset

from cuda_pool._hostmem cimport host_grow


cdef void movables_init(movables_t* movables) noexcept nogil:
    memset(movables, 0, sizeof(movables_t))
    movables.made = 1               # record 0 is NO_MOVABLE


cdef void movables_destroy(movables_t* movables) noexcept nogil:
    free(movables.record)
    movables_init(movables)


cdef uint32_t movables_add(movables_t* movables, size_t nbytes, size_t alignment, owner_t home,
                           uint64_t serial) noexcept nogil:
    cdef uint32_t index = movables.spare
    cdef movable_t* record
    if index == NO_MOVABLE:
        if not host_grow(<void**>&movables.record, sizeof(movable_t), &movables.capacity, movables.made + 1):
            return NO_MOVABLE
        index = movables.made
        movables.made += 1
    else:
        movables.spare = movables.record[index].next
    record = &movables.record[index]
    memset(record, 0, sizeof(movable_t))
    record.nbytes = nbytes
    record.alignment = alignment
    record.state = MOVABLE_AWAY
    record.home = home
    record.serial = serial
    movables.count += 1
    return index


cdef void movables_remove(movables_t* movables, uint32_t index) noexcept nogil:
    movables.record[index].state = MOVABLE_SPARE
    movables.record[index].next = movables.spare
    movables.spare = index
    movables.count -= 1


cdef uint32_t movables_rehome(movables_t* movables, owner_t owner, owner_t to, uint64_t serial) noexcept nogil:
    """The number of records that changed."""
    cdef uint32_t at, changed = 0
    cdef movable_t* record
    for at in range(1, movables.made if movables.count != 0 else 1):
        record = &movables.record[at]
        if record.state != MOVABLE_SPARE and record.home == owner:
            record.home = to
            record.serial = serial
            record.batch = 0
            changed += 1
    return changed


cdef void movables_settle(movables_t* movables) noexcept nogil:
    cdef uint32_t at
    for at in range(1, movables.made):
        movables.record[at].batch = 0


cdef const char* movables_check(const movables_t* movables) noexcept nogil:
    cdef uint32_t at, count = 0
    for at in range(1, movables.made):
        count += movables.record[at].state != MOVABLE_SPARE
    if count != movables.count:
        return b"movables: count differs from the records in use"
    return NULL
