"""What a pool learns about its demand, period after period: peaks, and what is expected of the next one."""

from libc.stdint cimport uint32_t

from cuda_pool._bits cimport log2_floor
from cuda_pool._periods cimport periods_t

cdef enum:
    BINS = 48                       # of blocks outside the slabs, by the power of two below their size
    PERIOD_MIN = 256                # allocations that a period has at least
    PERIOD_MAX = 8192               # and at most

# What the slabs of one owner and class come to, in slots. It changes only where a slab is taken in use or given up.
# Invariant, asserted by slabs_check() (whose slabs they are):
#   active == sum(slots of its partial and full slabs);  ready == sum(slots of its ready ones)
ctypedef struct demand_t:
    size_t active
    size_t ready
    size_t high                     # highest number in use in this period; see demand_note()
    size_t expected                 # weighted highest number of the periods before
    size_t highest                  # of all periods
    uint32_t newest                 # slab that was taken in use last: those before it were all full then

# Blocks of one power of two that are live.
ctypedef struct bin_t:
    size_t bytes
    size_t blocks
    size_t bytes_high               # of this period
    size_t bytes_expected
    size_t bytes_highest            # of all periods
    size_t blocks_highest

# A period ends where the used bytes, after a fall below half of the period's peak, have risen again by half of it: an
# iteration of a loop. It has from PERIOD_MIN to PERIOD_MAX allocations. The pool's lock guards this.
# Invariant, asserted by learn_check():  the bins add up to the live blocks outside the slabs
ctypedef struct learn_t:
    bint predicts                   # keep and prepare slabs for what is expected
    size_t periods                  # that are over
    size_t started                  # allocations when the period began
    size_t peak                     # of used bytes in it
    size_t trough                   # lowest since they fell below half of the peak
    bint fallen
    size_t expected                 # weighted peak of the periods before
    size_t shortage                 # periods that were over when ready slabs were last given back for want of memory
    bint short_of                   # whether there was such a moment
    periods_t history               # of the periods that are over
    bin_t bin[BINS]
    # From a profile: slots by stream, in the order in which streams appear, and class.
    size_t* plan
    int plan_streams
    int plan_classes
    int planned                     # streams that got theirs

cdef void learn_end_period(learn_t* learn, size_t used, size_t allocs) noexcept nogil
cdef const char* learn_check(const learn_t* learn, size_t used, size_t blocks) noexcept nogil
# Take a copy of a plan; 0 when the host has no memory.
cdef int learn_set_plan(learn_t* learn, const size_t* plan, int streams, int classes) noexcept nogil
cdef void learn_drop_plan(learn_t* learn) noexcept nogil
# Let periods go by, none of which changed the number of slots.
cdef void demand_pass(demand_t* demand, size_t unused, size_t periods) noexcept nogil


cdef inline size_t weighted(size_t expected, size_t peak) noexcept nogil:
    """What is expected next: the latest peak or, when it is lower than expected, the mean of the two."""
    return peak if peak >= expected else (expected + peak) // 2


cdef inline void demand_note(demand_t* demand, size_t unused) noexcept nogil:
    """Look at the slots, `unused` of which, in the newest slab, nobody ever had.

    A slab is taken in use when all others are full. So there never were more slots in use since, and there were as many
    unless some of the older slabs' were free when the newest slab's last one was handed out.
    """
    demand.high = max(demand.high, demand.active - unused)
    demand.highest = max(demand.highest, demand.high)


cdef inline size_t demand_target(const demand_t* demand) noexcept nogil:
    """Slots that the owner is likely to use at the same time before the next period is over."""
    return max(demand.expected, demand.high)


cdef inline void learn_note(learn_t* learn, size_t used, size_t allocs) noexcept nogil:
    cdef size_t length = allocs - learn.started
    if used > learn.peak:
        learn.peak = used
        learn.fallen = False
    elif not learn.fallen and used < learn.peak // 2:
        learn.fallen = True
        learn.trough = used
    elif learn.fallen and used < learn.trough:
        learn.trough = used
    if length >= PERIOD_MIN and (length >= PERIOD_MAX or (learn.fallen and used > learn.trough + learn.peak // 2)):
        learn_end_period(learn, used, allocs)


cdef inline void learn_enter(learn_t* learn, size_t nbytes) noexcept nogil:
    """Count a block outside the slabs."""
    cdef bin_t* bin = &learn.bin[log2_floor(nbytes)]
    bin.bytes += nbytes
    bin.blocks += 1
    bin.bytes_high = max(bin.bytes_high, bin.bytes)
    bin.blocks_highest = max(bin.blocks_highest, bin.blocks)


cdef inline void learn_leave(learn_t* learn, size_t nbytes) noexcept nogil:
    cdef bin_t* bin = &learn.bin[log2_floor(nbytes)]
    bin.bytes -= nbytes
    bin.blocks -= 1
