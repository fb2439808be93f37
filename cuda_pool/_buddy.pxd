"""Buddy system: power-of-two runs of min blocks, found by XOR, merged on free."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef const uint32_t NO_BLOCK        # end of a free list

cdef enum:
    BUDDY_ORDERS = 32               # a region has fewer than 2**32 units

# Of a free block: its neighbours on the free list. Of a live run, at its first unit: what it holds.
ctypedef struct free_link_t:
    uint32_t next
    uint32_t prev

ctypedef struct live_run_t:
    uint32_t units
    uint32_t slack                  # bytes of the last unit that were not asked for

ctypedef union buddy_entry_t:
    free_link_t free
    live_run_t live

# A unit is one min block; every number below counts units.
# Invariants, asserted by buddy_check():
#   used + sum(len(free_list[k]) << k for every order k) == size
#   state[b] == k + 1  <=>  b is on free_list[k];  then b % (1 << k) == 0 and its buddy is not on free_list[k]
#   bit k of nonempty is set  <=>  free_list[k] is not empty
# A live run (the block of one request) has state BUDDY_LIVE at its first unit; memory lent to the mid tier has none.
ctypedef struct buddy_t:
    uint32_t size
    uint32_t used
    uint32_t nonempty               # orders with a free block
    uint32_t free_list[BUDDY_ORDERS]
    uint8_t* state                  # per unit: 0 inside a block, order + 1 of a free block, BUDDY_LIVE of a run
    buddy_entry_t* entry            # per unit

cdef enum:
    BUDDY_LIVE = 0x80

cdef int buddy_init(buddy_t* buddy, uint32_t size) noexcept nogil       # 0 when the host has no memory
cdef void buddy_destroy(buddy_t* buddy) noexcept nogil

# A run of `units` whose start is a multiple of 1 << order, or NO_BLOCK.
cdef uint32_t buddy_alloc(buddy_t* buddy, uint32_t units, int order) noexcept nogil
cdef void buddy_free(buddy_t* buddy, uint32_t block, uint32_t units) noexcept nogil

# Take exactly [block, block + units) out of the free blocks; 0, and nothing changed, unless all of it is free.
cdef int buddy_claim(buddy_t* buddy, uint32_t block, uint32_t units) noexcept nogil
cdef uint32_t buddy_free_below(const buddy_t* buddy, uint32_t end) noexcept nogil   # free units that end at `end`
cdef uint32_t buddy_free_above(const buddy_t* buddy, uint32_t start) noexcept nogil # free units from `start` on
cdef uint32_t buddy_largest(const buddy_t* buddy) noexcept nogil
cdef const char* buddy_check(const buddy_t* buddy) noexcept nogil       # NULL, or the broken invariant
cdef size_t buddy_metadata(const buddy_t* buddy) noexcept nogil         # bytes of host address space

cdef inline void buddy_hold(buddy_t* buddy, uint32_t block, uint32_t units, uint32_t slack) noexcept nogil:
    """Note down a run that serves a request."""
    buddy.state[block] = BUDDY_LIVE
    buddy.entry[block].live.units = units
    buddy.entry[block].live.slack = slack


cdef inline void buddy_release(buddy_t* buddy, uint32_t block) noexcept nogil:
    """Free a held run."""
    buddy.state[block] = 0
    buddy_free(buddy, block, buddy.entry[block].live.units)


cdef inline uint32_t buddy_of(uint32_t block, int order) noexcept nogil:
    return block ^ (<uint32_t>1 << order)
