"""The nogil layer as Python classes, for the tests and the benchmarks.

Each class wraps one structure and does nothing but convert arguments and results: what the structures forbid is
forbidden here too, and is not checked. NO_BLOCK, NO_MID, NO_SLAB and NO_SLOT become None. The loops at the end run
without the GIL.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from cuda_pool._api cimport Pool
from cuda_pool._bins cimport cache_t
from cuda_pool._buddy cimport (
    BUDDY_ORDERS, NO_BLOCK, buddy_alloc, buddy_alloc_allowed, buddy_check, buddy_claim, buddy_could_join,
    buddy_destroy, buddy_free, buddy_free_above, buddy_free_below, buddy_hold, buddy_init, buddy_join, buddy_largest,
    buddy_metadata, buddy_pass_on, buddy_release, buddy_rename, buddy_t)
from cuda_pool._calls cimport pool_alloc, pool_alloc_as, pool_free, pool_free_async_as
from cuda_pool._claim cimport claim_drop, claim_make, claim_t
from cuda_pool._cut cimport mid_free
from cuda_pool._driver cimport (
    Device, cudaEventDisableTiming, cudaEvent_t, cudaStream_t, device_enter, device_leave, driver_t)
from cuda_pool._gap cimport segment_forget, segment_is_idle, segment_open, segment_reopen, segment_shut
from cuda_pool._gate cimport status_raise
from cuda_pool._held cimport (
    NO_HELD, helds_add, helds_check, helds_destroy, helds_init, helds_remove, helds_reserve, helds_t,
    owners_allowed)
from cuda_pool._learn cimport demand_pass, demand_t, learn_end_period, learn_t
from cuda_pool._ledger cimport account_t, ledger_close, ledger_destroy, ledger_find, ledger_open, ledger_t
from cuda_pool._locks cimport enter_all, leave_all
from cuda_pool._mid cimport (
    MID_BINS, MID_FREE, MID_SLAB, MID_STEPS, MID_USED, NO_MID, RECORD_GROUP, mid_adopt, mid_block_t, mid_check,
    mid_could_join, mid_destroy, mid_edge, mid_extend, mid_find, mid_find_allowed, mid_init, mid_join, mid_largest,
    mid_pass_on, mid_rename, mid_reserve, mid_shrink, mid_t, mid_take)
from cuda_pool._order cimport (
    MARKS, STREAM_CAPTURE, STREAM_GONE, STREAM_HANDLE, STREAM_HELD, STREAM_LEGACY, STREAM_SPARE, STREAM_THREAD,
    STREAM_VOUCHED, order_add, order_any_pending, order_check, order_destroy, order_drop, order_find, order_init,
    order_mark, order_pass_mark, order_search, order_t, order_view, order_waited, stream_freed, stream_is_pending,
    stream_ref_t, stream_t)
from cuda_pool._owner cimport (
    LEGACY, NOBODY, OWNERS, batch_within, later_batch, owner_t, owners_add, owners_has, owners_t, view_allows, view_t)
from cuda_pool._plan cimport (
    plan_add, plan_choose, plan_destroy, plan_init, plan_measure, plan_reserve, plan_t)
from cuda_pool._pool cimport pool_check, pool_ignore_streams, pool_size_of, pool_skip_batches
from cuda_pool._pool_stream cimport pool_record_use_as
from cuda_pool._prepare cimport segment_prepare
from cuda_pool._region cimport (
    NO_OFFSET, REGION_SHIFT, region_t, regions_add, regions_check, regions_destroy, regions_find, regions_init,
    regions_remove, regions_t)
from cuda_pool._relaxed cimport set_u32
from cuda_pool._room cimport segment_largest_free
from cuda_pool._segment cimport (
    TAG_INDEX_SHIFT, TIER_BUDDY, TIER_MID, TIER_SLAB, place_t, segment_alloc, segment_destroy, segment_find,
    segment_free, segment_highs, segment_init, segment_metadata, segment_reclaim, segment_t, segment_tally,
    segment_total, settings_t)
from cuda_pool._segment_check cimport segment_check
from cuda_pool._seat cimport seat_here, seat_t
from cuda_pool._slab cimport (
    LINE_SLOTS, NO_SLAB, NO_SLOT, SLAB_CLASSES_MAX, SLAB_FULL, SLAB_LISTS, SLAB_PARTIAL, SLAB_READY, demand_of,
    side_of, slab_activate, slab_adopt, slab_has_allowed, slab_has_on, slab_leave_line, slab_return, slab_shelve,
    slab_slot, slab_t, slab_take_allowed, slab_take_on, slabs_available, slabs_available_on, slabs_check, slabs_class,
    slabs_destroy, slabs_init, slabs_make, slabs_of, slabs_pass, slabs_pass_on, slabs_ready, slabs_t, slabs_unmake,
    slabs_wanted, slot_hold, slot_is_live, slot_release, slot_retake, slots_unused)
from cuda_pool._state cimport pool_t
from cuda_pool._status cimport (
    STATUS_FREED_POINTER, STATUS_HOST_MEMORY, STATUS_INTERIOR_POINTER, STATUS_OK, STATUS_OUT_OF_MEMORY)
from cuda_pool._tally cimport tally_t
from cuda_pool._uses cimport (
    use_t, uses_check, uses_destroy, uses_find, uses_forget, uses_of, uses_remove, uses_t)

cdef enum:
    SLABS = 1 << 20             # that a tier on its own may make
    MID_RECORDS = 1 << 20       # of a mid tier on its own

MID_STATES = {MID_FREE: "free", MID_USED: "used", MID_SLAB: "slab"}
SLAB_STATES = {SLAB_PARTIAL: "partial", SLAB_FULL: "full", SLAB_READY: "ready"}
TIERS = {TIER_SLAB: "slab", TIER_MID: "mid", TIER_BUDDY: "buddy"}
STREAM_KINDS = {STREAM_SPARE: "spare", STREAM_LEGACY: "legacy", STREAM_THREAD: "thread", STREAM_HANDLE: "handle",
                STREAM_VOUCHED: "vouched", STREAM_HELD: "held", STREAM_GONE: "gone", STREAM_CAPTURE: "capture"}
STREAM_MARKS = MARKS
FAULTS = {STATUS_INTERIOR_POINTER: "interior", STATUS_FREED_POINTER: "freed"}


cdef class Buddy:
    """A ``buddy_t`` of `size` units."""

    cdef buddy_t buddy

    def __cinit__(self, uint32_t size):
        if not buddy_init(&self.buddy, size):
            raise MemoryError

    def __dealloc__(self):
        buddy_destroy(&self.buddy)

    @property
    def size(self):
        return self.buddy.size

    @property
    def used(self):
        return self.buddy.used

    @property
    def metadata(self):
        return buddy_metadata(&self.buddy)

    @property
    def owned(self):
        return self.buddy.owned

    def alloc(self, uint32_t units, int order=0, owner_t owner=NOBODY):
        return or_none(buddy_alloc(&self.buddy, owner, units, order), NO_BLOCK)

    def alloc_allowed(self, owner_t owner, uint32_t batch, limits, uint32_t units, int order=0):
        cdef view_t view = view_of(owner, batch, limits)
        return or_none(buddy_alloc_allowed(&self.buddy, &view, units, order), NO_BLOCK)

    def free(self, uint32_t block, uint32_t units, owner_t owner=NOBODY, uint32_t batch=0):
        self.buddy.owners = max(self.buddy.owners, <int>owner + 1)
        buddy_free(&self.buddy, block, units, owner, batch)

    def pass_on(self, owner_t owner, uint32_t limit, owner_t to=NOBODY, uint32_t batch=0):
        self.buddy.owners = max(self.buddy.owners, <int>to + 1)
        buddy_pass_on(&self.buddy, owner, limit, to, batch)

    def rename(self, owner_t owner, owner_t to, uint32_t batch):
        buddy_rename(&self.buddy, owner, to, batch)

    def join(self, owner_t owner, uint32_t batch, limits):
        cdef view_t view = view_of(owner, batch, limits)
        self.buddy.owners = max(self.buddy.owners, <int>owner + 1)
        buddy_join(&self.buddy, &view)

    def could_join(self, owner_t owner, uint32_t batch, limits, uint32_t units):
        cdef view_t view = view_of(owner, batch, limits)
        return bool(buddy_could_join(&self.buddy, &view, units))

    def hold(self, uint32_t block, uint32_t units, uint32_t slack):
        buddy_hold(&self.buddy, block, units, slack)

    def release(self, uint32_t block, owner_t owner=NOBODY, uint32_t batch=0):
        self.buddy.owners = max(self.buddy.owners, <int>owner + 1)
        buddy_release(&self.buddy, block, owner, batch)

    def origin(self, uint32_t block):
        """Return (owner, batch) of what a run was cut from, or of a free block."""
        return self.buddy.entry[block].owner, self.buddy.entry[block].batch

    def held(self, uint32_t block):
        """Return (units, slack) of a held run."""
        return self.buddy.entry[block].role.live.units, self.buddy.entry[block].role.live.slack

    def claim(self, uint32_t block, uint32_t units, owner_t owner=NOBODY):
        """Return whether all of it was the owner's."""
        cdef uint32_t batch = 0
        return bool(buddy_claim(&self.buddy, owner, block, units, &batch))

    def free_below(self, uint32_t end):
        return buddy_free_below(&self.buddy, end)

    def free_above(self, uint32_t start):
        return buddy_free_above(&self.buddy, start)

    def largest(self, owner_t owner=NOBODY):
        return buddy_largest(&self.buddy, owner)

    def free_blocks(self, owner_t owner=NOBODY):
        """Return (block, order) of every free block of an owner, each list from its head on."""
        return [(block, order) for order in range(BUDDY_ORDERS) for block in self.free_list(order, owner)]

    def free_list(self, int order, owner_t owner=NOBODY):
        cdef uint32_t block = NO_BLOCK
        if self.buddy.lists[owner].nonempty >> order & 1:
            block = self.buddy.lists[owner].head[order]
        blocks = []
        while block != NO_BLOCK:
            blocks.append(block)
            block = self.buddy.entry[block].role.free.next
        return blocks

    def check(self):
        assert_valid(buddy_check(&self.buddy))


cdef class Mid:
    """A ``mid_t`` that owns [start, end); blocks are named by the index of their record."""

    cdef mid_t mid

    def __cinit__(self, uint32_t start, uint32_t end, bint good_fit=False):
        if not mid_init(&self.mid, start, end, min(end, <uint32_t>MID_RECORDS)):
            raise MemoryError
        self.mid.good_fit = good_fit

    def __dealloc__(self):
        mid_destroy(&self.mid)

    @property
    def start(self):
        return self.mid.start

    @property
    def end(self):
        return self.mid.end

    @property
    def used(self):
        return self.mid.used

    @property
    def records(self):
        """Records of all groups that were ever used, record 0 included."""
        return self.mid.made

    @property
    def side(self):
        return self.mid.side

    @side.setter
    def side(self, uint32_t side):
        self.mid.side = side

    def record_side(self, uint32_t index):
        return self.mid.block[index].side

    def reserve(self, uint32_t records):
        if not mid_reserve(&self.mid, records):
            raise MemoryError

    @property
    def owned(self):
        return self.mid.owned

    def find(self, uint32_t size, int align=0, uint32_t bias=0, owner_t owner=NOBODY):
        return or_none(mid_find(&self.mid, owner, size, align, bias), NO_MID)

    def find_allowed(self, owner_t owner, uint32_t batch, limits, uint32_t size, int align=0, uint32_t bias=0):
        cdef view_t view = view_of(owner, batch, limits)
        return or_none(mid_find_allowed(&self.mid, &view, size, align, bias), NO_MID)

    def join(self, owner_t owner, uint32_t batch, limits, uint32_t size, int align=0, uint32_t bias=0):
        cdef view_t view = view_of(owner, batch, limits)
        self.mid.owners = max(self.mid.owners, <int>owner + 1)
        could = bool(mid_could_join(&self.mid, &view, size, align, bias))
        found = or_none(mid_join(&self.mid, &view, size, align, bias), NO_MID)
        assert could == (found is not None)
        return found

    def adopt(self, owner_t owner, uint32_t batch, limits):
        cdef view_t view = view_of(owner, batch, limits)
        self.mid.owners = max(self.mid.owners, <int>owner + 1)
        mid_adopt(&self.mid, &view)

    def pass_on(self, owner_t owner, uint32_t limit, owner_t to=NOBODY, uint32_t batch=0):
        self.mid.owners = max(self.mid.owners, <int>to + 1)
        mid_pass_on(&self.mid, owner, limit, to, batch)

    def rename(self, owner_t owner, owner_t to, uint32_t batch):
        mid_rename(&self.mid, owner, to, batch)

    def origin(self, uint32_t index):
        """Return (owner, batch) of a free block, or of what a live one was cut from."""
        return self.mid.block[index].owner, self.mid.block[index].batch

    def take(self, uint32_t found, uint32_t size, int align=0, uint32_t bias=0, state="used"):
        """Reserve two records, then ``mid_take``."""
        self.reserve(2)
        return mid_take(&self.mid, found, size, align, bias, key_of(MID_STATES, state))

    def free(self, uint32_t index, owner_t owner=NOBODY, uint32_t batch=0):
        self.mid.owners = max(self.mid.owners, <int>owner + 1)
        mid_free(&self.mid, index, owner, batch)

    def extend(self, uint32_t size, owner_t owner=NOBODY, uint32_t batch=0):
        """Reserve one record, then ``mid_extend``."""
        self.reserve(1)
        self.mid.owners = max(self.mid.owners, <int>owner + 1)
        mid_extend(&self.mid, size, owner, batch)

    def edge(self, owner_t owner=NOBODY):
        return mid_edge(&self.mid, owner)

    def shrink(self, uint32_t size):
        mid_shrink(&self.mid, size)

    def largest(self, owner_t owner=NOBODY):
        return mid_largest(&self.mid, owner)

    def block(self, uint32_t index):
        """Return (offset, size, state) of a block."""
        cdef const mid_block_t* block = &self.mid.block[index]
        return block.offset, block.size, MID_STATES[block.state]

    def blocks(self):
        """Return the index of every block, from `start` up."""
        cdef uint32_t index = self.mid.first
        found = []
        while index != NO_MID:
            found.append(index)
            index = self.mid.block[index].after
        return found

    def tries(self):
        """Return, for every trie of nobody's that is not empty, the number of its blocks and its greatest depth."""
        found = {}
        for bin in range(MID_BINS):
            if self.mid.bins[NOBODY].root[bin] != NO_MID:
                found[bin // MID_STEPS, bin % MID_STEPS] = self.trie(self.mid.bins[NOBODY].root[bin])
        return found

    def trie(self, uint32_t root):
        cdef const mid_block_t* block
        blocks, deepest, todo = 0, 0, [(root, 1)]
        while todo:
            index, depth = todo.pop()
            block = &self.mid.block[<uint32_t>index]
            blocks, deepest = blocks + 1, max(deepest, depth)
            todo += [(child, depth + 1) for child in (block.role.node.child[0], block.role.node.child[1])
                     if child != NO_MID]
        return blocks, deepest

    def check(self):
        assert_valid(mid_check(&self.mid))


cdef class Slabs:
    """A ``slabs_t`` with the slot sizes `sizes`; slabs are named by the index of their record."""

    cdef slabs_t slabs

    def __cinit__(self, sizes, bint colouring=False):
        cdef size_t* plain = plain_sizes(sizes)
        cdef int made = slabs_init(&self.slabs, plain, len(sizes), SLABS, colouring)
        free(plain)
        if not made:
            raise MemoryError

    def __dealloc__(self):
        slabs_destroy(&self.slabs)

    @property
    def max(self):
        return self.slabs.max

    def size_class(self, size_t nbytes, size_t alignment=1):
        return or_none(slabs_class(&self.slabs, nbytes, alignment), -1)

    def wanted(self, int size_class, owner_t owner=NOBODY):
        return slabs_wanted(&self.slabs, owner, size_class)

    def available(self, int size_class, owner_t owner=NOBODY):
        return or_none(slabs_available(slabs_of(&self.slabs, owner, size_class)), NO_SLAB)

    def make(self, int size_class, size_t offset, size_t nbytes, uint32_t block=0, owner_t owner=NOBODY,
             uint32_t batch=0):
        cdef uint32_t index
        self.slabs.owners = max(self.slabs.owners, <int>owner + 1)
        index = slabs_make(&self.slabs, owner, size_class, offset, nbytes, block, batch)
        if index == NO_SLAB:
            raise MemoryError
        slab_activate(&self.slabs, index)
        return index

    def unmake(self, uint32_t index):
        slabs_unmake(&self.slabs, index)

    def shelve(self, uint32_t index):
        """Let an empty slab be ready."""
        slab_shelve(&self.slabs, index)

    def ready(self, int size_class, owner_t owner=NOBODY):
        return or_none(slabs_ready(slabs_of(&self.slabs, owner, size_class)), NO_SLAB)

    def activate(self, uint32_t index):
        slab_activate(&self.slabs, index)

    def pass_periods(self, size_t periods):
        """Let `periods` be over in all."""
        slabs_pass(&self.slabs, periods)

    def demand(self, int size_class, owner_t owner=NOBODY):
        return demand_as_dict(demand_of(&self.slabs, owner, size_class))

    def take(self, uint32_t index, size_t nbytes, uint32_t side=0):
        return slab_take_on(&self.slabs, index, side, nbytes)

    def available_on(self, int size_class, uint32_t side, owner_t owner=NOBODY):
        return or_none(slabs_available_on(&self.slabs, slabs_of(&self.slabs, owner, size_class), side), NO_SLAB)

    def side(self, uint32_t index, uint32_t slot):
        return side_of(&self.slabs.slab[index], slot)[0]

    def has_on(self, uint32_t index, uint32_t side):
        return bool(slab_has_on(&self.slabs.slab[index], side))

    def leave_line(self, uint32_t index):
        slab_leave_line(&self.slabs, index)

    def adopt(self, uint32_t index, uint32_t side):
        slab_adopt(&self.slabs.slab[index], side)

    def take_allowed(self, uint32_t index, owner_t owner, uint32_t batch, limits, size_t nbytes):
        """Return the offset of the slot, or None where the view allows none; what was looked for first agrees."""
        cdef view_t view = view_of(owner, batch, limits)
        could = slab_has_allowed(&self.slabs, index, &view)
        offset = or_none(slab_take_allowed(&self.slabs, index, &view, nbytes), NO_SLOT)
        assert could == (offset is not None)
        return offset

    def note_batch(self, uint32_t index, uint32_t slot, uint32_t batch):
        """Note down with which batch the owner of the slab frees a slot."""
        self.slabs.slab[index].batch = batch
        self.slabs.slab[index].slot[slot].batch = batch

    def slot_batch(self, uint32_t index, uint32_t slot):
        return self.slabs.slab[index].slot[slot].batch

    def slot(self, uint32_t index, size_t offset):
        return or_none(slab_slot(&self.slabs, index, offset), NO_SLOT)

    def is_live(self, uint32_t index, uint32_t slot):
        return bool(slot_is_live(&self.slabs.slab[index], slot))

    def requested(self, uint32_t index, uint32_t slot):
        return self.slabs.slab[index].slot[slot].value

    def give_back(self, uint32_t index, uint32_t slot):
        return bool(slab_return(&self.slabs, index, slot))

    def pass_on(self, uint32_t index, owner_t to, uint32_t batch=0):
        self.slabs.owners = max(self.slabs.owners, <int>to + 1)
        return bool(slabs_pass_on(&self.slabs, index, to, batch))

    def hold(self, uint32_t index, uint32_t slot):
        slot_hold(&self.slabs, index, slot)

    def retake(self, uint32_t index, uint32_t slot, size_t nbytes):
        slot_retake(&self.slabs, index, slot, nbytes)

    def release(self, uint32_t index, uint32_t slot):
        return bool(slot_release(&self.slabs, index, slot))

    def slab(self, uint32_t index):
        """Return the fields of a slab as a dict."""
        cdef const slab_t* slab = &self.slabs.slab[index]
        return {"offset": slab.offset, "bytes": slab.bytes, "size_class": slab.size_class, "slots": slab.slots,
                "used": slab.used, "held": slab.held, "fresh": slab.fresh, "block": slab.block, "colour": slab.colour,
                "owner": slab.owner, "batch": slab.batch, "birth": slab.birth}

    def lists(self, int size_class, owner_t owner=NOBODY):
        """Return an owner's slabs of a class, by the list that they are on, from its head on; the empty one apart."""
        cdef uint32_t index
        found = {"partial": [], "full": [], "empty": []}
        for state in range(SLAB_LISTS):
            index = slabs_of(&self.slabs, owner, size_class).head[state]
            while index != NO_SLAB:
                name = SLAB_STATES[state] if self.slabs.slab[index].used else "empty"
                found[name].append(index)
                index = self.slabs.slab[index].next
        return found

    def slots_used(self, int size_class, owner_t owner=NOBODY):
        return slabs_of(&self.slabs, owner, size_class).slots_used

    def check(self):
        assert_valid(slabs_check(&self.slabs))


cdef class Segment:
    """A ``segment_t`` over [address, address + size) that is never touched, with the given ``Settings``.

    With a `span` further regions can be opened.
    """

    cdef segment_t segment
    cdef learn_t learn

    def __cinit__(self, size_t address, size_t size, settings, bint colouring=False, bint good_fit=False,
                  size_t span=0, bint predicts=False):
        cdef settings_t plain
        cdef size_t* sizes = plain_sizes(settings.size_classes)
        plain.span = span
        plain.mid_max = settings.mid_max
        plain.min_block = settings.min_block
        plain.growth_step = settings.growth_step
        plain.granule = settings.granule
        plain.size_classes = sizes
        plain.classes = len(settings.size_classes)
        plain.colouring = colouring
        plain.good_fit = good_fit
        plain.page_shift = 0
        cdef int made = segment_init(&self.segment, address, size, &plain)
        free(sizes)
        if not made:
            raise MemoryError
        self.learn.predicts = predicts
        self.segment.learn = &self.learn

    def __dealloc__(self):
        segment_destroy(&self.segment)

    @property
    def size(self):
        return self.segment.size

    @property
    def metadata(self):
        return segment_metadata(&self.segment)

    @property
    def boundary(self):
        """First byte of the mid tier."""
        return <size_t>self.segment.mid.start * 256

    def alloc(self, size_t nbytes, size_t alignment=256):
        """Return (offset, used bytes), or None."""
        cdef size_t offset = 0, used = 0
        cdef int status = segment_alloc(&self.segment, NOBODY, nbytes, alignment, &offset, &used)
        if status == STATUS_HOST_MEMORY:
            raise MemoryError
        return (offset, used) if status == STATUS_OK else None

    def find(self, size_t offset):
        """Return (tier, used, requested) of the live block at an offset, or "interior" or "freed"."""
        cdef place_t place
        cdef int status = segment_find(&self.segment, offset, &place)
        return FAULTS[status] if status != STATUS_OK else (TIERS[place.tier], place.used, place.requested)

    def free(self, size_t offset):
        cdef place_t place
        if segment_find(&self.segment, offset, &place) != STATUS_OK:
            raise KeyError(offset)
        segment_free(&self.segment, &place, NOBODY, 0)

    def largest_free(self):
        return segment_largest_free(&self.segment)

    def prepare(self, int size_class, size_t slots):
        return bool(segment_prepare(&self.segment, NOBODY, size_class, slots))

    def end_period(self):
        learn_end_period(&self.learn, segment_total(&self.segment).used, segment_total(&self.segment).allocs)

    def demand(self, int size_class):
        """Return the slots of a class: in use and ready, the highest number of this period, and what is expected."""
        return demand_as_dict(demand_of(&self.segment.slabs, NOBODY, size_class))

    def open(self, size_t address, size_t size):
        """Add a region; return its offset, or None where no gap has room."""
        cdef size_t offset = 0
        cdef int status = segment_open(&self.segment, address, size, &offset)
        if status == STATUS_HOST_MEMORY:
            raise MemoryError
        return offset if status == STATUS_OK else None

    def is_idle(self, size_t offset, size_t size):
        return segment_is_idle(&self.segment, offset, size)

    def shut(self, size_t offset, size_t size):
        """Take an idle region out; return its record, or None if it is not idle."""
        cdef uint32_t shut = segment_shut(&self.segment, offset, size)
        return shut if shut != NO_MID else None

    def reopen(self, uint32_t shut):
        segment_reopen(&self.segment, shut)

    def forget(self, uint32_t shut):
        segment_forget(&self.segment, shut)

    def reclaim(self):
        segment_reclaim(&self.segment)

    def tier(self, str name):
        """Return (blocks, used, requested) of a tier."""
        tier = key_of(TIERS, name)
        cdef tally_t tally = segment_tally(&self.segment, tier)
        return tally.allocs - tally.frees, tally.used, tally.requested

    def check(self):
        assert_valid(segment_check(&self.segment))


cdef object demand_as_dict(const demand_t* demand):
    return {"active": demand.active, "ready": demand.ready, "high": demand.high, "expected": demand.expected,
            "highest": demand.highest}


cdef class Regions:
    """A ``regions_t`` for `span` bytes of offsets."""

    cdef regions_t regions

    def __cinit__(self, size_t span):
        if not regions_init(&self.regions, span):
            raise MemoryError

    def __dealloc__(self):
        regions_destroy(&self.regions)

    @property
    def sums(self):
        """The regions, and the sums of their nbytes and sizes."""
        return self.regions.count, self.regions.nbytes, self.regions.size

    def add(self, size_t address, size_t size, size_t offset, size_t nbytes):
        cdef region_t region
        region.start = <void*>address
        region.nbytes = nbytes
        region.address = address
        region.size = size
        region.offset = offset
        regions_add(&self.regions, &region)

    def remove(self, size_t address):
        cdef uint32_t at = 0
        while self.regions.region[at].address != address:
            at += 1
        regions_remove(&self.regions, at)

    def find(self, size_t address):
        """Return the offset of an address, or None."""
        cdef size_t offset = regions_find(&self.regions, address)
        return offset if offset != NO_OFFSET else None

    def address(self, size_t offset):
        """Return the address of an offset that is in a region."""
        return self.regions.shift[offset >> REGION_SHIFT] + offset & 0xFFFFFFFFFFFFFFFF

    def check(self):
        assert_valid(regions_check(&self.regions))


def claim(Device device not None, size_t start, size_t end):
    """Note addresses as live; return None, or the (start, end) of those that they overlap."""
    cdef claim_t mine = claim_on(device, start, end), other
    return None if claim_make(&mine, &other) else (other.start, other.end)


def unclaim(Device device not None, size_t start, size_t end):
    cdef claim_t mine = claim_on(device, start, end)
    claim_drop(&mine)


cdef claim_t claim_on(Device device, size_t start, size_t end):
    cdef claim_t claim
    claim.driver = device.driver
    claim.device = device.number
    claim.start = start
    claim.end = end
    return claim


cdef class Uses:
    """A ``uses_t``: which streams use which block."""

    cdef uses_t uses

    def __dealloc__(self):
        uses_destroy(&self.uses)

    @property
    def count(self):
        return self.uses.count

    @property
    def places(self):
        return self.uses.places

    def add(self, size_t offset, owner_t owner):
        """Note down one more stream that uses a block."""
        owners_add(&self.of(offset).owners, owner)

    def came_from(self, size_t offset, owner_t origin, uint32_t batch):
        """Note down whose slot a block was."""
        cdef use_t* use = self.of(offset)
        use.origin = origin
        use.batch = batch

    cdef use_t* of(self, size_t offset) except NULL:
        cdef use_t* use = uses_of(&self.uses, offset)
        if use == NULL:
            raise MemoryError
        return use

    def find(self, size_t offset):
        """Return (set of owners, origin, batch), or None."""
        cdef const use_t* use = uses_find(&self.uses, offset)
        return None if use == NULL else (set_of(&use.owners), use.origin, use.batch)

    def remove(self, size_t offset):
        uses_remove(&self.uses, offset)

    def forget(self, owner_t owner, owner_t to=NOBODY):
        uses_forget(&self.uses, owner, to)

    def check(self):
        assert_valid(uses_check(&self.uses))


cdef class Helds:
    """A ``helds_t``, and the heads of `LISTS` lists that its records are on."""

    LISTS = 4
    cdef helds_t helds
    cdef uint32_t head[4]

    def __cinit__(self):
        helds_init(&self.helds)

    def __dealloc__(self):
        helds_destroy(&self.helds)

    @property
    def bytes(self):
        return self.helds.bytes

    @property
    def records(self):
        """Records ever used, record 0 included."""
        return self.helds.made

    def add(self, size_t used, owners, uint32_t batch, int at):
        """Reserve a record, then ``helds_add`` to list `at`; return its index."""
        cdef place_t place
        cdef owners_t plain
        memset(&place, 0, sizeof(place))
        memset(&plain, 0, sizeof(plain))
        place.used = used
        for owner in owners:
            owners_add(&plain, owner)
        if not helds_reserve(&self.helds):
            raise MemoryError
        helds_add(&self.helds, &place, &plain, batch, &self.head[at])
        return self.head[at]

    def remove(self, uint32_t index):
        helds_remove(&self.helds, index)

    def is_allowed(self, uint32_t index, owner_t owner, limits):
        cdef view_t view = view_of(owner, 0, limits)
        return bool(owners_allowed(&self.helds.held[index].owners, self.helds.held[index].batch, &view))

    def list(self, int at):
        """Return the records of a list, from its head on."""
        cdef uint32_t index = self.head[at]
        found = []
        while index != NO_HELD:
            found.append(index)
            index = self.helds.held[index].next
        return found

    def check(self):
        assert_valid(helds_check(&self.helds))


cdef class Ledger:

    cdef ledger_t ledger

    def __dealloc__(self):
        ledger_destroy(&self.ledger)

    def open(self, uint64_t key, uint64_t ident):
        ledger_open(&self.ledger, key).id = ident

    def find(self, uint64_t key):
        cdef const account_t* account = ledger_find(&self.ledger, key)
        return None if account == NULL else account.id

    def close(self, uint64_t key):
        ledger_close(&self.ledger, ledger_find(&self.ledger, key))

    @property
    def room(self):
        return self.ledger.room

    @property
    def keys(self):
        """The key at each place, or 0."""
        return [self.ledger.account[at].key for at in range(self.ledger.room)]

    @property
    def count(self):
        return self.ledger.count


cdef class Order:
    """An ``order_t`` that has come to `batch`; events and handles are numbers."""

    cdef order_t order

    def __cinit__(self, uint32_t batch=1):
        if not order_init(&self.order):
            raise MemoryError
        self.order.batch = batch
        self.order.stream[<int>LEGACY].done = batch - 1
        self.order.stream[<int>LEGACY].freed = batch - 1

    def __dealloc__(self):
        order_destroy(&self.order)

    @property
    def batch(self):
        return self.order.batch

    def add(self, kind, size_t handle, uint64_t id=0):
        """Return the owner, or None when every record is in use."""
        return or_none(order_add(&self.order, key_of(STREAM_KINDS, kind), <cudaStream_t>handle, id), NOBODY)

    def drop(self, owner_t owner):
        order_drop(&self.order, owner)

    def search(self, size_t handle):
        return or_none(order_search(&self.order, <cudaStream_t>handle), NOBODY)

    def find(self, size_t handle):
        return or_none(order_find(&self.order, <cudaStream_t>handle), NOBODY)

    def freed(self, owner_t owner, size_t nbytes):
        stream_freed(&self.order, owner, nbytes)

    def mark(self, owner_t owner, size_t event):
        """End the batch, and note down an event behind it; return the one that this takes the place of, or None."""
        cdef uint32_t batch = self.order.batch
        self.order.batch += 1
        return or_none(<long long><size_t>order_mark(&self.order, owner, <cudaEvent_t>event, batch), 0)

    def pass_mark(self, owner_t owner):
        return <size_t>order_pass_mark(&self.order, owner)

    def wait(self, owner_t asker, owner_t owner, uint32_t batch):
        """Note down that the asker's work is behind what `owner` had queued by the end of `batch`."""
        cdef uint32_t* waited = order_waited(&self.order, asker, owner)
        waited[0] = later_batch(waited[0], batch)

    def view(self, owner_t asker):
        """Return (batch of what becomes the asker's, limit of every owner)."""
        cdef view_t view
        order_view(&self.order, asker, &view)
        return view.batch, [view.limit[at] for at in range(OWNERS)]

    def allows(self, owner_t asker, owner_t owner, uint32_t batch):
        cdef view_t view
        order_view(&self.order, asker, &view)
        return bool(view_allows(&view, owner, batch))

    def is_pending(self, owner_t owner):
        return bool(stream_is_pending(&self.order.stream[owner]))

    def any_pending(self, owner_t but=NOBODY):
        return bool(order_any_pending(&self.order, but))

    def stream(self, owner_t owner):
        """Return the fields of a record as a dict; its marks as (event, batch), oldest first."""
        cdef const stream_t* stream = &self.order.stream[owner]
        return {"kind": STREAM_KINDS[stream.kind], "handle": <size_t>stream.handle, "serial": stream.serial,
                "id": stream.id, "freed": stream.freed, "done": stream.done, "unmarked": stream.unmarked,
                "marks": [(<size_t>stream.mark[at].event, stream.mark[at].batch) for at in range(stream.marks)]}

    def check(self):
        assert_valid(order_check(&self.order))


def is_within(uint32_t batch, uint32_t limit):
    return bool(batch_within(batch, limit))


def later(uint32_t one, uint32_t other):
    return later_batch(one, other)


cdef object set_of(const owners_t* owners):
    return {owner for owner in range(OWNERS) if owners_has(owners, owner)}


cdef object or_none(long long value, long long none):
    return None if value == none else value


cdef object key_of(dict names, object name):
    for key, value in names.items():
        if value == name:
            return key
    raise KeyError(name)


cdef int assert_valid(const char* broken) except -1:
    if broken != NULL:
        raise AssertionError(broken.decode())
    return 0


cdef size_t* plain_sizes(object sizes) except NULL:
    cdef size_t* plain = <size_t*>malloc((len(sizes) + 1) * sizeof(size_t))
    cdef int index
    if plain == NULL:
        raise MemoryError
    for index, size in enumerate(sizes):
        plain[index] = size
    return plain


# Random load without the GIL

ctypedef struct slot_t:
    unsigned char* ptr
    size_t nbytes
    unsigned char value
    size_t stream                   # of a load on streams: which one the block was allocated on

# requested == sum of nbytes over the table.
ctypedef struct load_t:
    pool_t* pool
    slot_t* table
    size_t slots
    uint64_t random
    stream_ref_t* streams
    size_t stream_count
    size_t smallest
    int doublings                   # sizes go from `smallest` to smallest << doublings, log-uniform
    bint fill                       # write and verify each block: simulated memory only
    bint alone                      # no one else uses the pool
    size_t requested
    size_t requested_high
    size_t allocs
    size_t frees
    size_t refused                  # allocations for which there was no memory
    const char* broken
    int status                      # the first that is neither 0 nor out of memory


def churn(Pool pool not None, size_t operations, size_t slots, size_t smallest, int doublings, uint64_t seed,
          size_t check_every=10_000, bint fill=False, bint alone=True, bint drain=True):
    """Allocate and free at random, and compare the pool's counters with a sum of its own; the GIL is released.

    Parameters
    ----------
    operations : int
        Allocations and frees together.
    slots : int
        Table of live blocks. A random slot is freed if it is taken, else filled.
    smallest, doublings : int
        Sizes go from `smallest` to ``smallest << doublings`` bytes, log-uniform.
    seed : int
        Start of the random sequence; the same seed gives the same one.
    check_every : int
        Operations from one ``pool_check`` to the next.
    fill : bool
        Write a pattern into every block and verify it at its free. The memory must be the host's.
    alone : bool
        Nobody else uses the pool, so that its counters must be equal to the load's.
    drain : bool
        Free what is live at the end.

    Returns
    -------
    dict
        allocs, frees, refused; requested and requested_high in bytes.

    Raises
    ------
    AssertionError
        An invariant does not hold, or memory was overwritten.
    """
    cdef load_t load
    memset(&load, 0, sizeof(load))
    load.pool = pool.state
    load.slots = slots
    load.random = seed * 2 + 1
    load.smallest = smallest
    load.doublings = doublings
    load.fill = fill
    load.alone = alone
    load.table = <slot_t*>calloc(slots, sizeof(slot_t))
    if load.table == NULL:
        raise MemoryError
    with nogil:
        load_run(&load, operations, check_every)
        if drain:
            load_drain(&load)
    free(load.table)
    assert_valid(load.broken)
    status_raise(pool.state, load.status, 0, 0)
    return {"allocs": load.allocs, "frees": load.frees, "refused": load.refused, "requested": load.requested,
            "requested_high": load.requested_high}


cdef void load_run(load_t* load, size_t operations, size_t check_every) noexcept nogil:
    cdef size_t done
    for done in range(1, operations + 1):
        load_step(load, &load.table[random_next(load) % load.slots])
        if load.broken == NULL and done % check_every == 0:
            load.broken = pool_check(load.pool)
        if load.broken != NULL or load.status != STATUS_OK:
            return


cdef void load_drain(load_t* load) noexcept nogil:
    cdef size_t slot
    for slot in range(load.slots):
        if load.table[slot].ptr != NULL:
            load_free(load, &load.table[slot])
    if load.broken == NULL:
        load.broken = pool_check(load.pool)


cdef void load_step(load_t* load, slot_t* slot) noexcept nogil:
    if slot.ptr != NULL:
        load_free(load, slot)
    else:
        load_alloc(load, slot)
    if load.broken == NULL:
        load.broken = load_check(load)


cdef void load_alloc(load_t* load, slot_t* slot) noexcept nogil:
    cdef void* ptr = NULL
    cdef uint64_t random = random_next(load)
    cdef size_t nbytes = load.smallest << (random % <uint64_t>load.doublings if load.doublings else 0)
    if load.doublings:
        nbytes += (random >> 8) % nbytes
    cdef int status = pool_alloc(load.pool, nbytes, 256, NULL, &ptr)
    if status == STATUS_OUT_OF_MEMORY:
        load.refused += 1
        return
    if status != STATUS_OK:
        load.status = status
        return
    slot.ptr = <unsigned char*>ptr
    slot.nbytes = nbytes
    slot.value = <unsigned char>(random >> 56)
    load.allocs += 1
    load.requested += nbytes
    load.requested_high = max(load.requested_high, load.requested)
    if load.fill:
        memset(ptr, slot.value, nbytes)


cdef void load_free(load_t* load, slot_t* slot) noexcept nogil:
    cdef size_t requested = 0, used = 0
    cdef int status = pool_size_of(load.pool, slot.ptr, &requested, &used)
    if load.fill and not is_filled(slot):
        load.broken = b"load: a block was overwritten"
    if status == STATUS_OK and (requested != slot.nbytes or used < requested):
        load.broken = b"load: size_of differs from what was asked for"
    if status == STATUS_OK:
        status = pool_free(load.pool, slot.ptr)
    if status != STATUS_OK:
        load.status = status
    slot.ptr = NULL
    load.frees += 1
    load.requested -= slot.nbytes


cdef bint is_filled(const slot_t* slot) noexcept nogil:
    cdef size_t at
    cdef unsigned char differs = 0
    for at in range(slot.nbytes):
        differs |= slot.ptr[at] ^ slot.value
    return differs == 0


cdef const char* load_check(const load_t* load) noexcept nogil:
    """Compare the pool's counters with the load's; read without the lock, so for a load that is alone."""
    cdef const segment_t* segment = &load.pool.segment
    cdef tally_t total
    cdef size_t used_high = 0, requested_high = 0
    if not load.alone:
        return NULL
    total = segment_total(segment)
    segment_highs(segment, &used_high, &requested_high)
    if total.requested != load.requested or total.allocs - total.frees != load.allocs - load.frees:
        return b"load: the pool's counters differ from the sum of the live blocks"
    if not total.requested <= total.used <= used_high <= load.pool.reserved_high:
        return b"load: not requested <= used <= used_high <= reserved"
    return NULL


def churn_streams(Pool pool not None, streams, size_t operations, uint64_t seed, size_t slots=32,
                  size_t smallest=100, int doublings=7):
    """Allocate, write, hand on and free at random in the order of several streams; the GIL is released.

    Each block is written on its stream and freed there, now and then after another stream has written it too, behind
    the first one. So a simulated device finds no race as long as the pool keeps to the order of the streams.

    Parameters
    ----------
    streams : iterable of int or object with __cuda_stream__
        They exist until this returns; other threads may use them too.
    operations : int
        Allocations and frees together.
    seed : int
        Start of the random sequence.
    slots, smallest, doublings : int
        As for ``churn``.

    Returns
    -------
    dict
        allocs, frees and refused.

    Raises
    ------
    AssertionError
        A driver call failed that is not the pool's own.
    """
    cdef load_t load
    cdef size_t at
    named = list(streams)
    memset(&load, 0, sizeof(load))
    load.pool = pool.state
    load.slots = slots
    load.random = seed * 2 + 1
    load.smallest = smallest
    load.doublings = doublings
    load.stream_count = len(named)
    load.streams = <stream_ref_t*>calloc(load.stream_count, sizeof(stream_ref_t))
    load.table = <slot_t*>calloc(slots, sizeof(slot_t))
    try:
        if load.streams == NULL or load.table == NULL:
            raise MemoryError
        for at in range(load.stream_count):
            pool.streams.find(named[at], &load.streams[at])
        with nogil:
            queue_run(&load, operations)
    finally:
        free(load.table)
        free(load.streams)
    assert_valid(load.broken)
    status_raise(pool.state, load.status, 0, 0)
    return {"allocs": load.allocs, "frees": load.frees, "refused": load.refused}


cdef void queue_run(load_t* load, size_t operations) noexcept nogil:
    """The pool's device is current meanwhile, as the caller of a driver has to see to."""
    cdef int previous = 0
    cdef size_t done, slot
    if device_enter(load.pool.driver, load.pool.device, &previous) != 0:
        load.broken = b"load: the device cannot be made current"
        return
    for done in range(operations):
        slot = random_next(load) % load.slots
        if load.table[slot].ptr == NULL:
            queue_alloc(load, &load.table[slot])
        else:
            queue_free(load, &load.table[slot])
        if load.broken != NULL or load.status != STATUS_OK:
            break
    for slot in range(load.slots):
        if load.table[slot].ptr != NULL:
            queue_free(load, &load.table[slot])
    device_leave(load.pool.driver, load.pool.device, previous)


cdef void queue_alloc(load_t* load, slot_t* slot) noexcept nogil:
    cdef void* ptr = NULL
    cdef int status
    slot.stream = random_next(load) % load.stream_count
    slot.nbytes = load.smallest << random_next(load) % <uint64_t>load.doublings
    status = pool_alloc_as(load.pool, slot.nbytes, 256, &load.streams[slot.stream], &ptr)
    if status == STATUS_OUT_OF_MEMORY:
        load.refused += 1
        return
    if status != STATUS_OK:
        load.status = status
        return
    slot.ptr = <unsigned char*>ptr
    load.allocs += 1
    queue_write(load, slot, slot.stream)


cdef void queue_free(load_t* load, slot_t* slot) noexcept nogil:
    cdef stream_ref_t* stream = &load.streams[slot.stream]
    cdef uint64_t random = random_next(load) >> 60
    cdef int status = STATUS_OK
    if random < 4:
        status = queue_hand_on(load, slot, random_next(load) % load.stream_count)
    if status == STATUS_OK:
        status = pool_free_async_as(load.pool, slot.ptr, stream)
    if status != STATUS_OK:
        load.status = status
    slot.ptr = NULL
    load.frees += 1


cdef int queue_hand_on(load_t* load, slot_t* slot, size_t other) noexcept nogil:
    """Write the block on another stream, behind its own, and tell the pool."""
    cdef const driver_t* driver = load.pool.driver
    cdef cudaEvent_t event = NULL
    if driver.cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != 0:
        load.broken = b"load: an event cannot be made"
        return STATUS_OK
    if (driver.cudaEventRecord(event, load.streams[slot.stream].handle) != 0
            or driver.cudaStreamWaitEvent(load.streams[other].handle, event, 0) != 0
            or driver.cudaEventDestroy(event) != 0):
        load.broken = b"load: one stream cannot be put behind another"
    queue_write(load, slot, other)
    return pool_record_use_as(load.pool, slot.ptr, &load.streams[other])


cdef void queue_write(load_t* load, slot_t* slot, size_t stream) noexcept nogil:
    if load.pool.driver.cudaMemsetAsync(slot.ptr, 0, slot.nbytes, load.streams[stream].handle) != 0:
        load.broken = b"load: a block cannot be written"


cdef inline uint64_t random_next(load_t* load) noexcept nogil:
    """Vigna, "An experimental exploration of Marsaglia's xorshift generators", 2016: xorshift64*."""
    load.random ^= load.random >> 12
    load.random ^= load.random << 25
    load.random ^= load.random >> 27
    return load.random * <uint64_t>0x2545F4914F6CDD1D


def plan(pieces, uint32_t low, uint32_t floor, uint32_t high, uint32_t bias=0, uint32_t run=1):
    """Return (largest, reach, moves) for pieces (offset, size, number of a movable one or 0, needs, align).

    A move is (number, source, target, needs).
    """
    cdef plan_t made
    plan_init(&made, bias, run)
    try:
        for offset, size, movable, needs, align in pieces:
            if not plan_reserve(&made, 1):
                raise MemoryError("the host has no memory left for a plan")
            plan_add(&made, offset, size, movable, needs, align)
        if not plan_measure(&made, low, floor, high):
            raise MemoryError("the host has no memory left for a plan")
        plan_choose(&made)
        return made.largest, made.reach, [
            (made.move[at].movable, made.move[at].source, made.move[at].target, made.move[at].needs)
            for at in range(made.moves)]
    finally:
        plan_destroy(&made)


def ignore_streams(Pool pool not None):
    """Let the pool treat every asynchronous free as a plain one from now on: what a pool without ordering would do."""
    pool_ignore_streams(pool.state)


def learned(Pool pool not None, int size_class, owner_t owner=LEGACY):
    """Return what a pool knows of the slots of a stream's class, as ``Segment.demand``, and the periods so far."""
    cdef demand_t demand
    cdef size_t periods
    enter_all(pool.state)
    demand = demand_of(&pool.state.segment.slabs, owner, size_class)[0]
    periods = pool.state.learn.periods
    leave_all(pool.state)
    return {**demand_as_dict(&demand), "periods": periods}


def forecast(Pool pool not None):
    """Return what a pool expects of the period under way, and what it has seen of that.

    Returns
    -------
    dict
        periods: those that are over. used: (expected, seen) peak of bytes. slots: the same of each class of the default
        stream. slabs: made so far.
    """
    cdef slabs_t* slabs = &pool.state.segment.slabs
    cdef int index, classes = len(pool.settings.size_classes)
    cdef demand_t demand[SLAB_CLASSES_MAX]
    cdef size_t makes
    cdef learn_t learn
    enter_all(pool.state)
    learn = pool.state.learn
    makes = slabs.makes
    for index in range(classes):        # a copy: the pool passes the period itself when a slab comes or goes
        demand[index] = demand_of(slabs, LEGACY, index)[0]
        demand_pass(&demand[index], slots_unused(slabs, LEGACY, index), learn.periods - slabs.passed)
    leave_all(pool.state)
    return {"periods": learn.periods, "used": (learn.expected, learn.peak), "slabs": makes,
            "slots": [(demand[index].expected, demand[index].high) for index in range(classes)]}


def end_period(Pool pool not None):
    """Let a period of the pool's predictor be over."""
    enter_all(pool.state)
    learn_end_period(&pool.state.learn, segment_total(&pool.state.segment).used,
                     segment_total(&pool.state.segment).allocs)
    leave_all(pool.state)


def uses_count(Pool pool not None):
    """Return the number of blocks of which something is to be known."""
    return pool.state.uses.count


def revive(Pool pool not None, size_t ptr, uint32_t nbytes):
    """Let a slot in a thread's cache look live, as it does to another thread that frees it at the same time."""
    cdef segment_t* segment = &pool.state.segment
    cdef size_t offset = ptr - pool.state.base
    cdef uint32_t index = segment.tag[offset >> segment.granule_shift] >> TAG_INDEX_SHIFT
    set_u32(&segment.slabs.slab[index].slot[slab_slot(&segment.slabs, index, offset)].value, nbytes)


def seat(Pool pool not None, owner_t owner=LEGACY):
    """Return what the calling thread's seat has, if it has one: its side, and of its cache for a stream how much blocks
    may be, how much they are, and how many may be in a bin.
    """
    cdef const seat_t* here = seat_here(pool.state, pool.state.place)
    cdef const cache_t* cache
    if here == NULL:
        return None
    cache = here.cache[owner]
    return {"side": here.side, "blocks_most": cache.blocks_most, "blocks_bytes": cache.blocks_bytes,
            "entries": cache.block[0].limit - cache.block[0].floor}


def slot_line(Pool pool not None, size_t ptr):
    """Return the slab of a slot, the line of words in which its own is, and whose side that is."""
    cdef segment_t* segment = &pool.state.segment
    cdef size_t offset = ptr - pool.state.base
    cdef uint32_t index = segment.tag[offset >> segment.granule_shift] >> TAG_INDEX_SHIFT
    cdef uint32_t slot = slab_slot(&segment.slabs, index, offset)
    return index, slot // LINE_SLOTS, side_of(&segment.slabs.slab[index], slot)[0]


def block_line(Pool pool not None, size_t ptr):
    """Return the group of the record of a block of the mid tier, and whose side that is."""
    cdef segment_t* segment = &pool.state.segment
    cdef uint32_t index = segment.tag[ptr - pool.state.base >> segment.granule_shift] >> TAG_INDEX_SHIFT
    return index // RECORD_GROUP, segment.mid.block[index].side


def skip_batches(Pool pool not None, uint32_t batch):
    """Let the next free be in a later batch, as if so many events had been recorded."""
    pool_skip_batches(pool.state, batch)


cdef view_t view_of(owner_t owner, uint32_t batch, limits):
    """What `owner` may use: {owner: last batch}, and what is nobody's or its own."""
    cdef view_t view
    memset(&view, 0, sizeof(view))
    view.owner = owner
    view.batch = batch
    for other, limit in limits.items():
        view.limit[<int>other] = limit
    return view
