"""How much was in use in each period of a pool's life.

When the history is full, neighbours become one entry, so that it covers all of a life of any length in even steps.
"""


cdef void periods_add(periods_t* periods, size_t allocs, size_t peak, size_t trough) noexcept nogil:
    cdef period_t* last
    if periods.count == 0 or periods.filled == periods.stride:
        open_entry(periods)
    last = &periods.period[periods.count - 1]
    last.allocs = allocs
    last.peak = max(last.peak, peak)
    last.trough = min(last.trough, trough)
    periods.filled += 1


cdef void open_entry(periods_t* periods) noexcept nogil:
    cdef period_t* entry
    if periods.count == PERIODS:
        join_neighbours(periods)
    if periods.count == 0:
        periods.stride = 1
    entry = &periods.period[periods.count]
    entry.peak = 0
    entry.trough = <size_t>-1
    periods.count += 1
    periods.filled = 0


cdef void join_neighbours(periods_t* periods) noexcept nogil:
    cdef int at
    cdef const period_t* first
    cdef const period_t* second
    for at in range(PERIODS // 2):
        first = &periods.period[2 * at]
        second = &periods.period[2 * at + 1]
        periods.period[at].peak = max(first.peak, second.peak)
        periods.period[at].trough = min(first.trough, second.trough)
        periods.period[at].allocs = second.allocs
    periods.count = PERIODS // 2
    periods.stride *= 2
