"""What a pool learns about its demand: peaks of each period, and what is expected of the next one.

What is expected is an exponentially weighted mean of the peaks, with weight 1/2, that is never below the latest peak.
"""

from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from cuda_pool._periods cimport periods_add

cdef enum:
    HALVINGS = 64               # of any number: then nothing is left of it


cdef void learn_end_period(learn_t* learn, size_t used, size_t allocs) noexcept nogil:
    cdef int index
    cdef bin_t* bin
    learn.expected = weighted(learn.expected, learn.peak)
    periods_add(&learn.history, allocs, learn.peak, learn.trough if learn.fallen else min(used, learn.peak))
    learn.periods += 1
    learn.started = allocs
    learn.peak = used
    learn.fallen = False
    for index in range(BINS):
        bin = &learn.bin[index]
        bin.bytes_expected = weighted(bin.bytes_expected, bin.bytes_high)
        bin.bytes_highest = max(bin.bytes_highest, bin.bytes_high)
        bin.bytes_high = bin.bytes


cdef void demand_pass(demand_t* demand, size_t unused, size_t periods) noexcept nogil:
    cdef size_t left = min(periods, <size_t>HALVINGS)
    demand_note(demand, unused)
    while left != 0:
        demand.expected = weighted(demand.expected, demand.high)
        demand.high = demand.active - unused
        left -= 1


cdef int learn_set_plan(learn_t* learn, const size_t* plan, int streams, int classes) noexcept nogil:
    cdef size_t nbytes = <size_t>streams * classes * sizeof(size_t)
    learn.plan = <size_t*>malloc(nbytes + 1)
    if learn.plan == NULL:
        return 0
    memcpy(learn.plan, plan, nbytes)
    learn.plan_streams = streams
    learn.plan_classes = classes
    return 1


cdef void learn_drop_plan(learn_t* learn) noexcept nogil:
    free(learn.plan)
    learn.plan = NULL
    learn.plan_streams = 0


cdef const char* learn_check(const learn_t* learn, size_t used, size_t blocks) noexcept nogil:
    cdef int index
    for index in range(BINS):
        used -= learn.bin[index].bytes
        blocks -= learn.bin[index].blocks
    if used != 0 or blocks != 0:
        return b"learn: the bins do not add up to the live blocks"
    return NULL
