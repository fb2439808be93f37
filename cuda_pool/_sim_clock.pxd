"""Vector clocks (Fidge 1988, Mattern 1989): for each lane, how many of its operations come before.

A lane is the line in which the operations of one stream stand; `lanes` is how many entries both clocks have.
"""

from libc.stdint cimport uint32_t, uint64_t


cdef inline void clock_join(uint64_t* clock, const uint64_t* other, uint32_t lanes) noexcept nogil:
    """Let `clock` also come after all that `other` names."""
    cdef uint32_t lane
    for lane in range(lanes):
        clock[lane] = max(clock[lane], other[lane])


cdef inline bint clock_covers(const uint64_t* clock, const uint64_t* other, uint32_t lanes) noexcept nogil:
    """Tell whether all that `other` names is in `clock` too."""
    cdef uint32_t lane
    for lane in range(lanes):
        if clock[lane] < other[lane]:
            return False
    return True
