"""How much was in use in each period of a pool's life: a history of fixed size, coarser the longer it is."""

cdef enum:
    PERIODS = 64

# One period, or several in a row.
ctypedef struct period_t:
    size_t allocs                   # that there had been when it was over
    size_t peak                     # highest bytes in use
    size_t trough                   # lowest bytes in use that were seen

# Invariant:  count <= PERIODS;  every entry but the last stands for `stride` periods, the last one for `filled` of them
ctypedef struct periods_t:
    period_t period[PERIODS]
    int count
    size_t stride
    size_t filled

cdef void periods_add(periods_t* periods, size_t allocs, size_t peak, size_t trough) noexcept nogil
