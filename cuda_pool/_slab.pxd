"""Slabs: blocks cut into equal slots, one size class each."""

from libc.stdint cimport uint16_t, uint32_t, uint64_t

cdef enum:
    NO_SLAB = 0                     # end of a list: record 0 is never used
    NO_SLOT = 0x7FFFFFFF            # a slab has fewer slots

cdef enum:
    SLAB_UNIT = 64                  # bytes; every slot size is a multiple
    SLAB_TABLE = 1024               # sizes up to SLAB_TABLE * SLAB_UNIT are looked up, larger ones searched
    SLAB_BYTES_MAX = 1 << 20        # growth with demand stops here
    SLAB_CLASSES_MAX = 512

ctypedef int slab_list_t

cdef enum:                      # slab_list_t
    SLAB_PARTIAL = 0                # some slots free, or all
    SLAB_FULL
    SLAB_LISTS

# One size class.
ctypedef struct size_class_t:
    size_t size                     # bytes of a slot
    uint64_t reciprocal             # slot = delta * reciprocal >> shift, exact for every delta in a slab
    int shift
    uint32_t head[SLAB_LISTS]       # most recently used first
    uint32_t empty                  # the list of empty slabs: the last one that became empty, used again since or not
    uint32_t slabs
    size_t slots_used

# Invariants, asserted by slabs_check():
#   used + length of the free chain + (slots - fresh) == slots;  used == number of bits set in live
#   a slab is on the list of its state:  FULL <=> used == slots
#   used == 0  =>  the slab is `empty` of its class: at most one is
#   slots_used of a class == sum(used of its slabs)
ctypedef struct slab_t:
    size_t offset                   # bytes from the start of the region
    uint32_t bytes
    uint32_t size_class
    uint32_t slots
    uint32_t used
    uint32_t free                   # head of the chain of returned slots, NO_SLOT at its end
    uint32_t fresh                  # slots from here on were never handed out
    uint32_t next                   # neighbours on the list of its state
    uint32_t prev
    uint32_t block                  # record of the mid tier, or NO_MID: a run of the buddy tier
    uint32_t colour                 # bytes that the first slot is moved up (debug)
    uint32_t* slot                  # bytes requested while the slot is used, else the next of the chain
    uint64_t* live                  # a bit per slot

ctypedef struct slabs_t:
    size_t max                      # largest slot size, 0: no slabs
    int classes
    size_class_t* size_class
    uint16_t* table                 # class of the smallest slot that holds n * SLAB_UNIT bytes
    slab_t* slab                    # records; an index is stable, the array may move
    uint32_t capacity
    uint32_t made
    uint32_t spare                  # chain of returned records, along `next`
    bint colouring
    uint32_t colour_next

# Sizes ascend, are multiples of SLAB_UNIT, and number at most SLAB_CLASSES_MAX. 0 when the host has no memory.
cdef int slabs_init(slabs_t* slabs, const size_t* sizes, int count, bint colouring) noexcept nogil
cdef void slabs_destroy(slabs_t* slabs) noexcept nogil

# The class whose slots hold nbytes (1 <= nbytes <= max) at multiples of `alignment`, or -1.
cdef int slabs_class(const slabs_t* slabs, size_t nbytes, size_t alignment) noexcept nogil
# Bytes that the next slab of a class should have: as many as its used slots hold, so that the class doubles; at least
# 8 slots and at most SLAB_BYTES_MAX, or 1 slot if that is larger.
cdef size_t slabs_wanted(const slabs_t* slabs, int size_class) noexcept nogil
# Turn a block into a slab; its index, or NO_SLAB when the host has no memory.
cdef uint32_t slabs_make(slabs_t* slabs, int size_class, size_t offset, size_t nbytes, uint32_t block) noexcept nogil
cdef void slabs_unmake(slabs_t* slabs, uint32_t index) noexcept nogil
cdef void slab_relist(slabs_t* slabs, uint32_t index, slab_list_t old, slab_list_t new) noexcept nogil
cdef const char* slabs_check(const slabs_t* slabs) noexcept nogil

cdef inline bint slot_is_live(const slab_t* slab, uint32_t slot) noexcept nogil:
    return slab.live[slot >> 6] >> (slot & 63) & 1

cdef inline uint32_t slabs_available(const size_class_t* group) noexcept nogil:
    """A slab with a free slot, or NO_SLAB."""
    return group.head[SLAB_PARTIAL]


cdef inline uint32_t slabs_empty(const slabs_t* slabs, const size_class_t* group) noexcept nogil:
    """The empty slab of a class, or NO_SLAB."""
    return group.empty if group.empty != NO_SLAB and slabs.slab[group.empty].used == 0 else NO_SLAB


# The fast path of the whole pool: small enough to be part of whatever uses it.

cdef inline size_t slab_take(slabs_t* slabs, uint32_t index, size_t nbytes) noexcept nogil:
    """Take a slot of a slab that is not full; bytes from the start of the region."""
    cdef slab_t* slab = &slabs.slab[index]
    cdef size_class_t* group = &slabs.size_class[slab.size_class]
    cdef uint32_t slot = slab.free
    if slot != NO_SLOT:
        slab.free = slab.slot[slot]
    else:
        slot = slab.fresh
        slab.fresh += 1
    slab.slot[slot] = <uint32_t>nbytes
    slab.live[slot >> 6] |= <uint64_t>1 << (slot & 63)
    slab.used += 1
    group.slots_used += 1
    if slab.used == slab.slots:
        slab_relist(slabs, index, SLAB_PARTIAL, SLAB_FULL)
    return slab.offset + slab.colour + slot * group.size


cdef inline uint32_t slab_slot(const slabs_t* slabs, uint32_t index, size_t offset) noexcept nogil:
    """The slot that starts at an offset, used or not, or NO_SLOT when none does."""
    cdef const slab_t* slab = &slabs.slab[index]
    cdef const size_class_t* group = &slabs.size_class[slab.size_class]
    cdef size_t delta = offset - slab.offset - slab.colour          # wraps below the first slot: out of range
    cdef uint64_t slot
    if delta >= slab.slots * group.size:
        return NO_SLOT
    slot = delta * group.reciprocal >> group.shift
    return <uint32_t>slot if slot * group.size == delta else NO_SLOT


cdef inline bint slab_return(slabs_t* slabs, uint32_t index, uint32_t slot) noexcept nogil:
    """Return a used slot. True when the slab is now a second empty one of its class, and has to be unmade."""
    cdef slab_t* slab = &slabs.slab[index]
    cdef size_class_t* group = &slabs.size_class[slab.size_class]
    if slab.used == slab.slots:
        slab_relist(slabs, index, SLAB_FULL, SLAB_PARTIAL)
    slab.live[slot >> 6] &= ~(<uint64_t>1 << (slot & 63))
    slab.slot[slot] = slab.free
    slab.free = slot
    slab.used -= 1
    group.slots_used -= 1
    if slab.used != 0:
        return False
    if group.empty != index and slabs_empty(slabs, group) != NO_SLAB:
        return True
    group.empty = index
    return False
