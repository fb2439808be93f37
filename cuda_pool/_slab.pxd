"""Slabs: blocks cut into equal slots, one size class each."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from cuda_pool._heap cimport heap_t
from cuda_pool._learn cimport demand_t
from cuda_pool._owner cimport owner_t, view_t
from cuda_pool._relaxed cimport set_u32
from cuda_pool._side cimport SIDES

cdef extern from * nogil:
    """
    #define CUDA_POOL_NOT_LIVE 0x80000000u
    /* With r = 2**64 / d, rounded up, n * r >> 64 is n / d, and n is a multiple of d if n * r % 2**64 < r: exact for
       n and d below 2**32. */
    static inline int cuda_pool_divides(uint64_t number, uint64_t reciprocal, uint64_t limit, uint64_t *quotient) {
        unsigned __int128 product = (unsigned __int128)number * reciprocal;
        *quotient = (uint64_t)(product >> 64);
        return (uint64_t)product < limit;
    }
    """
    const uint32_t NOT_LIVE "CUDA_POOL_NOT_LIVE"        # bit of a slot's value
    bint divides "cuda_pool_divides"(uint64_t number, uint64_t reciprocal, uint64_t limit, uint64_t* quotient)

cdef enum:
    NO_SLAB = 0                     # end of a list: record 0 is never used
    NO_SLOT = 0x7FFFFFFF            # a slab has fewer slots
    NO_HELD = 0                     # end of a list of held blocks: record 0 is never used

cdef enum:
    SLAB_UNIT = 64                  # bytes; every slot size is a multiple
    SLAB_TABLE = 1024               # sizes up to SLAB_TABLE * SLAB_UNIT are looked up, larger ones searched
    SLAB_BYTES_MAX = 1 << 20        # growth with demand stops here
    SLAB_CLASSES_MAX = 512
    SLOT_CANDIDATES = 64
    LINE_SHIFT = 4
    LINE_SLOTS = 1 << LINE_SHIFT    # whose words share two cache lines: one fetches its neighbour, too

ctypedef int slab_list_t

cdef enum:                      # slab_list_t
    SLAB_PARTIAL = 0                # some slots free, or all
    SLAB_FULL
    SLAB_READY                      # empty, and not in use: kept or made for what is expected
    SLAB_LISTS

# One size class.
ctypedef struct size_class_t:
    size_t size                     # bytes of a slot
    uint64_t reciprocal             # see divides()

# The slabs that one owner has of one class: its allocations come from them alone.
ctypedef struct slab_lists_t:
    uint32_t head[SLAB_LISTS]       # most recently used first
    uint32_t empty                  # the list of empty slabs: the last one that became empty, used again since or not
    uint32_t slabs
    uint32_t held                   # newest slot that the owner freed in another owner's slab; a record of held_t
    size_t slots_used

# Of a slot: bytes requested while it is live; else NOT_LIVE with the next of its chain, or the mark of whoever keeps it
# in a cache. And the batch in which its slab's owner last freed it.
ctypedef struct slot_t:
    uint32_t value
    uint32_t batch

# A slot is live, or held (freed, and not to be reused yet), or free. The LINE_SLOTS whose words share lines are of one
# side, that of the thread that was given the first of them: two threads that write in one line wait for each other.
# Invariants, asserted by slabs_check():
#   used + sum(length of the free chains) + (slots - fresh) == slots;  used == number of bits set in live + held
#   a slot on the chain of a side is of that side
#   a slab is on the list of its state and owner:  FULL <=> used == slots;  READY <=> ready  =>  fresh == 0
#   used == 0  =>  the slab is ready, or `empty` of its lists: at most one is
#   slots_used of an owner's class == sum(used of its slabs)
#   demand of an owner's class: see there;  ready_bytes == sum(bytes of the ready slabs)
ctypedef struct slab_t:
    size_t offset                   # bytes from the start of the region
    uint32_t bytes
    uint16_t size_class
    owner_t owner
    slab_lists_t* lists             # those of its owner and class
    uint32_t batch                  # last one in which the owner freed something in it; 0: nothing that is not over
    uint32_t birth                  # batch of slots that were never handed out
    uint32_t slots
    uint32_t used
    uint32_t held
    uint32_t fresh                  # slots from here on were never handed out
    uint32_t next                   # neighbours on the list of its state
    uint32_t prev
    uint32_t block                  # record of the mid tier, or NO_MID: a run of the buddy tier
    uint32_t colour                 # bytes that the first slot is moved up (debug)
    bint ready
    slot_t* slot
    uint64_t* live                  # a bit per slot
    uint32_t* free                  # heads of the chains of returned slots, one per side, NO_SLOT at the end of each
    size_t start                    # of slot 0: offset + colour
    size_t size                     # of its class, as the next one
    uint64_t reciprocal
    uint64_t limit                  # the same, but 0 where offsets in the slab may lie below `start`

# A heap's lock guards the lists of its owner, the slabs on them and their slots; the owner and the number of records
# change with the pool's lock held as well. What is not an owner's is guarded by that alone.
ctypedef struct slabs_t:
    size_t max                      # largest slot size, 0: no slabs
    size_t table_max                # largest request whose class is in the table, 0: none
    int classes
    size_class_t* size_class
    int owners                      # owners from here on have nothing
    heap_t* heap                    # per owner
    slab_lists_t* lists             # of owner o and class c: lists[o * stride + c]
    demand_t* demand                # the same; guarded by all locks
    size_t passed                   # periods that the demand has been through, see slabs_pass()
    int stride
    uint32_t side                   # of the thread that holds all heaps' locks
    uint16_t* table                 # class of the smallest slot that holds n * SLAB_UNIT bytes
    slab_t* slab                    # records, that never move: they are looked at without a lock, too
    uint32_t capacity
    uint32_t made
    uint32_t spare                  # chain of returned records, along `next`
    size_t makes                    # slabs that were made so far
    size_t ready_bytes              # of ready slabs
    bint colouring
    uint32_t colour_next

# Sizes ascend, are multiples of SLAB_UNIT, and number at most SLAB_CLASSES_MAX; there will be at most `most` slabs. 0
# when the host has no memory.
cdef int slabs_init(slabs_t* slabs, const size_t* sizes, int count, size_t most, bint colouring) noexcept nogil
# Give all memory back but what is looked at without a lock, which is zeros from here on.
cdef void slabs_close(slabs_t* slabs) noexcept nogil
cdef void slabs_destroy(slabs_t* slabs) noexcept nogil
# Is there a record for one more slab?
cdef bint slabs_have_record(const slabs_t* slabs) noexcept nogil

# The class whose slots hold nbytes (1 <= nbytes <= max) at multiples of `alignment`, or -1.
cdef int slabs_class(const slabs_t* slabs, size_t nbytes, size_t alignment) noexcept nogil
# Bytes that the owner's next slab of a class should have: as many as its used slots hold, so that the class doubles; at
# least 8 slots and at most SLAB_BYTES_MAX, or 1 slot if that is larger.
cdef size_t slabs_wanted(const slabs_t* slabs, owner_t owner, int size_class) noexcept nogil
# Turn a block into a ready slab; its index, or NO_SLAB when the host has no memory.
cdef uint32_t slabs_make(slabs_t* slabs, owner_t owner, int size_class, size_t offset, size_t nbytes, uint32_t block,
                         uint32_t batch) noexcept nogil
cdef void slabs_unmake(slabs_t* slabs, uint32_t index) noexcept nogil
# Take a ready slab in use; its owner's class has no free slot.
cdef void slab_activate(slabs_t* slabs, uint32_t index) noexcept nogil
# Let an empty slab be ready.
cdef void slab_shelve(slabs_t* slabs, uint32_t index) noexcept nogil
# Let the demand go through the periods that are over by now. Takes a step for each class of each owner.
cdef void slabs_pass(slabs_t* slabs, size_t periods) noexcept nogil
# Look at the demand now.
cdef void slabs_note(slabs_t* slabs) noexcept nogil
# Forget what an owner, who has no slab left, was expected to need.
cdef void slabs_forget(slabs_t* slabs, owner_t owner) noexcept nogil
# Slots of the newest slab of an owner's class that nobody ever had.
cdef size_t slots_unused(const slabs_t* slabs, owner_t owner, int size_class) noexcept nogil
# Take a free slot that the view allows, of the first SLOT_CANDIDATES; bytes from the start of the region, or NO_SLOT.
cdef size_t slab_take_allowed(slabs_t* slabs, uint32_t index, const view_t* view, size_t nbytes) noexcept nogil
cdef bint slab_has_allowed(const slabs_t* slabs, uint32_t index, const view_t* view) noexcept nogil
# Make a slab another owner's. Not an empty one if that owner has one: False, and nothing changed.
cdef bint slabs_pass_on(slabs_t* slabs, uint32_t index, owner_t to, uint32_t batch) noexcept nogil
cdef void slab_relist(slabs_t* slabs, uint32_t index, slab_list_t old, slab_list_t new) noexcept nogil
# A slab from which a thread of a side should take slots: one of the first that are available which has some returned
# there or never handed out, or else the first; or NO_SLAB.
cdef uint32_t slabs_available_on(const slabs_t* slabs, const slab_lists_t* lists, uint32_t side) noexcept nogil
# Leave the rest of a line to the side of those that were handed out: they are returned there.
cdef void slab_leave_line(slabs_t* slabs, uint32_t index) noexcept nogil
# Let all lines be of a side.
cdef void slab_adopt(slab_t* slab, uint32_t side) noexcept nogil
cdef const char* slabs_check(const slabs_t* slabs) noexcept nogil

cdef inline bint slot_is_live(const slab_t* slab, uint32_t slot) noexcept nogil:
    return slab.live[slot >> 6] >> (slot & 63) & 1

cdef inline slab_lists_t* slabs_of(const slabs_t* slabs, owner_t owner, int size_class) noexcept nogil:
    return &slabs.lists[owner * slabs.stride + size_class]


cdef inline demand_t* demand_of(const slabs_t* slabs, owner_t owner, int size_class) noexcept nogil:
    return &slabs.demand[owner * slabs.stride + size_class]


cdef inline uint32_t slabs_ready(const slab_lists_t* lists) noexcept nogil:
    """A ready slab, or NO_SLAB."""
    return lists.head[SLAB_READY]


cdef inline uint32_t slabs_available(const slab_lists_t* lists) noexcept nogil:
    """A slab with a free slot, or NO_SLAB."""
    return lists.head[SLAB_PARTIAL]


cdef inline uint32_t slabs_empty(const slabs_t* slabs, const slab_lists_t* lists) noexcept nogil:
    """The empty slab of an owner's class, or NO_SLAB."""
    return lists.empty if lists.empty != NO_SLAB and slabs.slab[lists.empty].used == 0 else NO_SLAB


# The fast path of the whole pool: small enough to be part of whatever uses it.

cdef inline uint8_t* side_of(const slab_t* slab, uint32_t slot) noexcept nogil:
    """The side of a slot's line. They lie behind the heads of the chains."""
    return <uint8_t*>(slab.free + SIDES) + (slot >> LINE_SHIFT)


cdef inline uint32_t side_with_slots(const slab_t* slab) noexcept nogil:
    """A side on which there are returned slots, of a slab that has some."""
    cdef uint32_t side = 0
    while slab.free[side] == NO_SLOT:
        side += 1
    return side


cdef inline bint slab_has_on(const slab_t* slab, uint32_t side) noexcept nogil:
    """Are there returned slots on a side, or some that were never handed out?"""
    return slab.free[side] != NO_SLOT or slab.fresh != slab.slots


cdef inline void slab_begin_line(slabs_t* slabs, uint32_t index, uint32_t side) noexcept nogil:
    """Let a side begin with a line of its own, if there is nothing for it but slots that were never handed out."""
    cdef const slab_t* slab = &slabs.slab[index]
    if (slab.free[side] == NO_SLOT and slab.fresh % LINE_SLOTS != 0 and slab.fresh != slab.slots
            and side_of(slab, slab.fresh)[0] != side):
        slab_leave_line(slabs, index)


cdef inline size_t slab_take(slabs_t* slabs, uint32_t index, size_t nbytes) noexcept nogil:
    """The same as slab_take_on(), for the thread that holds all heaps' locks."""
    return slab_take_on(slabs, index, slabs.side, nbytes)


cdef inline size_t slab_take_on(slabs_t* slabs, uint32_t index, uint32_t side, size_t nbytes) noexcept nogil:
    """Take a slot of a slab that is not full, of a side as far as it has any; bytes from the start of the region."""
    cdef slab_t* slab = &slabs.slab[index]
    cdef uint32_t slot
    if not slab_has_on(slab, side):
        side = side_with_slots(slab)
    slot = slab.free[side]
    if slot != NO_SLOT:
        slab.free[side] = slab.slot[slot].value & NO_SLOT
    else:
        slot = slab.fresh
        slab.slot[slot].batch = slab.birth
        if slot % LINE_SLOTS == 0:
            side_of(slab, slot)[0] = <uint8_t>side
    set_u32(&slab.slot[slot].value, <uint32_t>nbytes)
    if slot == slab.fresh:
        set_u32(&slab.fresh, slot + 1)
    slab.live[slot >> 6] |= <uint64_t>1 << (slot & 63)
    slab.used += 1
    slab.lists.slots_used += 1
    if slab.used == slab.slots:
        slab_relist(slabs, index, SLAB_PARTIAL, SLAB_FULL)
    return slab.start + <size_t>slot * slab.size


cdef inline uint32_t slab_slot(const slabs_t* slabs, uint32_t index, size_t offset) noexcept nogil:
    """The slot that starts at an offset, used or not, or NO_SLOT when none does."""
    cdef const slab_t* slab = &slabs.slab[index]
    cdef uint64_t slot = 0
    if offset < slab.start or not divides(offset - slab.start, slab.reciprocal, slab.reciprocal, &slot):
        return NO_SLOT
    return <uint32_t>slot if slot < slab.slots else NO_SLOT


cdef inline bint slab_return(slabs_t* slabs, uint32_t index, uint32_t slot) noexcept nogil:
    """Return a live slot. True when the slab is now a second empty one of its lists, and has to be unmade."""
    cdef slab_t* slab = &slabs.slab[index]
    slab.live[slot >> 6] &= ~(<uint64_t>1 << (slot & 63))
    return slot_push(slabs, index, slot)


cdef inline bint slab_unfresh(slabs_t* slabs, uint32_t index, uint32_t slot) noexcept nogil:
    """Return the slot that was taken last of those that were never handed out, as if it had not been taken.

    False, and nothing changed, if it is another one, or the last in use.
    """
    cdef slab_t* slab = &slabs.slab[index]
    if slot + 1 != slab.fresh or slab.used == 1:
        return False
    if slab.used == slab.slots:
        slab_relist(slabs, index, SLAB_FULL, SLAB_PARTIAL)
    slab.live[slot >> 6] &= ~(<uint64_t>1 << (slot & 63))
    set_u32(&slab.fresh, slot)
    slab.used -= 1
    slab.lists.slots_used -= 1
    return True


cdef inline bint slot_push(slabs_t* slabs, uint32_t index, uint32_t slot) noexcept nogil:
    """Put a slot that is live no more on the chain of its side; the same result."""
    cdef slab_t* slab = &slabs.slab[index]
    cdef slab_lists_t* lists = slab.lists
    cdef uint32_t* chain = &slab.free[side_of(slab, slot)[0]]
    if slab.used == slab.slots:
        slab_relist(slabs, index, SLAB_FULL, SLAB_PARTIAL)
    set_u32(&slab.slot[slot].value, NOT_LIVE | chain[0])
    chain[0] = slot
    slab.used -= 1
    lists.slots_used -= 1
    if slab.used != 0:
        return False
    if lists.empty != index and slabs_empty(slabs, lists) != NO_SLAB:
        return True
    lists.empty = index
    return False


# Slots whose reuse has to wait.

cdef inline void slot_hold(slabs_t* slabs, uint32_t index, uint32_t slot) noexcept nogil:
    """Let a live slot be held."""
    cdef slab_t* slab = &slabs.slab[index]
    slab.live[slot >> 6] &= ~(<uint64_t>1 << (slot & 63))
    set_u32(&slab.slot[slot].value, NOT_LIVE)
    slab.held += 1


cdef inline void slot_retake(slabs_t* slabs, uint32_t index, uint32_t slot, size_t nbytes) noexcept nogil:
    """Let a held slot serve a request."""
    cdef slab_t* slab = &slabs.slab[index]
    slab.live[slot >> 6] |= <uint64_t>1 << (slot & 63)
    set_u32(&slab.slot[slot].value, <uint32_t>nbytes)
    slab.held -= 1


cdef inline bint slot_release(slabs_t* slabs, uint32_t index, uint32_t slot) noexcept nogil:
    """Return a held slot; as slab_return()."""
    slabs.slab[index].held -= 1
    return slot_push(slabs, index, slot)
