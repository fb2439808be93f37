"""Buddy system: power-of-two runs of min blocks, found by XOR, merged on free."""

from libc.stdint cimport uint8_t, uint32_t

from cuda_pool._owner cimport owner_t, view_t
from cuda_pool._pages cimport pages_t

cdef const uint32_t NO_BLOCK        # end of a free list

cdef enum:
    BUDDY_ORDERS = 32               # a region has fewer than 2**32 units
    BUDDY_CANDIDATES = 16

# Of a free block: its neighbours on the free list. Of a live run, at its first unit: what it holds.
ctypedef struct free_link_t:
    uint32_t next
    uint32_t prev

ctypedef struct live_run_t:
    uint32_t units
    uint32_t slack                  # bytes of the last unit that were not asked for

ctypedef union buddy_role_t:
    free_link_t free
    live_run_t live

ctypedef struct buddy_entry_t:
    buddy_role_t role
    uint32_t batch                  # of the last free in a free block, unless it is nobody's
    owner_t owner                   # of a free block; a live run keeps the owner and the batch of what it was cut from

# The free blocks of one owner.
ctypedef struct buddy_lists_t:
    uint32_t nonempty               # orders with a free block
    uint32_t head[BUDDY_ORDERS]     # has a meaning where the bit of nonempty is set

# A unit is one min block; every number below counts units.
# Invariants, asserted by buddy_check():
#   used + sum(len(head[k]) << k for every order k and owner) == size;  owned is the part of it that has an owner
#   state[b] == k + 1  <=>  b is on its owner's head[k];  then b % (1 << k) == 0 and its buddy is not there too
#   bit k of nonempty is set  <=>  there is a free block of order k
# A live run (the block of one request) has state BUDDY_LIVE at its first unit, BUDDY_HELD once it is freed and not to
# be reused yet, BUDDY_PAGING while it is given pages; memory lent to the mid tier has none.
ctypedef struct buddy_t:
    uint32_t size
    uint32_t used
    uint32_t owned
    int owners                      # owners from here on have nothing
    buddy_lists_t* lists            # per owner
    const pages_t* pages            # under the tier, NULL: all memory is always there
    int unit_shift                  # log2 of the bytes of a unit, for pages
    uint8_t* state                  # per unit: 0 inside a block, order + 1 of a free block, or that of a run
    buddy_entry_t* entry            # per unit

cdef enum:
    BUDDY_LIVE = 0x80
    BUDDY_HELD = 0x81
    BUDDY_PAGING = 0x82

cdef int buddy_init(buddy_t* buddy, uint32_t size) noexcept nogil       # 0 when the host has no memory
cdef void buddy_destroy(buddy_t* buddy) noexcept nogil

# A run of `units` whose start is a multiple of 1 << order out of the owner's free blocks, or NO_BLOCK. With pages: of
# the first BUDDY_CANDIDATES that are large enough, one whose place is ready.
cdef uint32_t buddy_alloc(buddy_t* buddy, owner_t owner, uint32_t units, int order) noexcept nogil
# The block among those candidates with the fewest pages missing, for buddy_take().
cdef uint32_t buddy_find_fewest(const buddy_t* buddy, owner_t owner, uint32_t units, int order,
                                uint32_t* missing) noexcept nogil
cdef uint32_t buddy_take(buddy_t* buddy, uint32_t block, uint32_t units) noexcept nogil
# The same out of another owner's block that the view allows; it counts as cut from the asker's memory.
cdef uint32_t buddy_alloc_allowed(buddy_t* buddy, const view_t* view, uint32_t units, int order) noexcept nogil
cdef void buddy_free(buddy_t* buddy, uint32_t block, uint32_t units, owner_t owner, uint32_t batch) noexcept nogil
# Give what `owner` has freed in batches up to `limit` to another owner, or to nobody.
cdef void buddy_pass_on(buddy_t* buddy, owner_t owner, uint32_t limit, owner_t to, uint32_t batch) noexcept nogil
# Let the runs that were cut from memory of `owner` be another's.
cdef void buddy_rename(buddy_t* buddy, owner_t owner, owner_t to, uint32_t batch) noexcept nogil
# Make every free block that the view allows the asker's, so that they merge.
cdef void buddy_join(buddy_t* buddy, const view_t* view) noexcept nogil
# Is there a run of that many units among what buddy_join() would merge? It need not start where buddy_alloc() wants it.
cdef bint buddy_could_join(const buddy_t* buddy, const view_t* view, uint32_t units) noexcept nogil

# Take exactly [block, block + units) out of the free blocks; 0, and nothing changed, unless all of it is the owner's.
# `batch` is the latest of theirs.
cdef int buddy_claim(buddy_t* buddy, owner_t owner, uint32_t block, uint32_t units, uint32_t* batch) noexcept nogil
cdef uint32_t buddy_free_below(const buddy_t* buddy, uint32_t end) noexcept nogil   # nobody's units that end at `end`
cdef uint32_t buddy_allowed_below(const buddy_t* buddy, const view_t* view, uint32_t end) noexcept nogil # allowed ones
cdef uint32_t buddy_free_above(const buddy_t* buddy, uint32_t start) noexcept nogil # nobody's units from `start` on
cdef uint32_t buddy_largest(const buddy_t* buddy, owner_t owner) noexcept nogil
cdef const char* buddy_check(const buddy_t* buddy) noexcept nogil       # NULL, or the broken invariant
cdef size_t buddy_metadata(const buddy_t* buddy) noexcept nogil         # bytes of host address space

cdef inline void buddy_hold(buddy_t* buddy, uint32_t block, uint32_t units, uint32_t slack) noexcept nogil:
    """Note down a run that serves a request."""
    buddy.state[block] = BUDDY_LIVE
    buddy.entry[block].role.live.units = units
    buddy.entry[block].role.live.slack = slack


cdef inline void buddy_release(buddy_t* buddy, uint32_t block, owner_t owner, uint32_t batch) noexcept nogil:
    """Free a run that was noted down."""
    buddy.state[block] = 0
    buddy_free(buddy, block, buddy.entry[block].role.live.units, owner, batch)


cdef inline uint32_t buddy_of(uint32_t block, int order) noexcept nogil:
    return block ^ (<uint32_t>1 << order)
