"""Slabs: blocks cut into equal slots of one size class.

Bonwick, "The slab allocator", USENIX Summer 1994, with its bookkeeping outside the memory: a chain of returned slots
(last in, first out), a bit for each slot that is used, and the bytes that were asked for.
"""

from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from cuda_pool._bits cimport popcount64
from cuda_pool._hostmem cimport CACHE_LINE, host_align, host_clear, host_map, host_unmap
from cuda_pool._learn cimport demand_note, demand_pass
from cuda_pool._owner cimport OWNERS, view_allows
from cuda_pool._relaxed cimport set_u16, set_u32
from cuda_pool._side cimport SIDES

cdef enum:
    COLOUR_STEP = 256           # keeps every slot as aligned as the smallest class
    LISTS_COLOUR = 46           # even, like the two below: records of two lines each start at one
    HEAPS_COLOUR = 34
    LISTS_PER_LINES = 4         # of one class: owners share no two lines
    RECORDS_COLOUR = 12
    DEMAND_COLOUR = 27
    SIDE_CANDIDATES = 8
    RECORDS_MAX = 1 << 22


cdef int slabs_init(slabs_t* slabs, const size_t* sizes, int count, size_t most, bint colouring) noexcept nogil:
    cdef int index
    cdef uint32_t unit
    slabs.max = sizes[count - 1] if count else 0
    slabs.table_max = min(slabs.max, <size_t>SLAB_TABLE * SLAB_UNIT)
    slabs.classes = count
    slabs.stride = count + LISTS_PER_LINES & -LISTS_PER_LINES
    slabs.owners = 1
    slabs.side = 0
    slabs.heap = <heap_t*>host_map(OWNERS * sizeof(heap_t), HEAPS_COLOUR)
    slabs.size_class = <size_class_t*>calloc(count + 1, sizeof(size_class_t))
    slabs.lists = <slab_lists_t*>host_map(lists_bytes(slabs), LISTS_COLOUR)
    slabs.demand = <demand_t*>host_map(demand_bytes(slabs), DEMAND_COLOUR)
    slabs.passed = 0
    slabs.makes = 0
    slabs.ready_bytes = 0
    slabs.table = <uint16_t*>calloc(SLAB_TABLE + 1, sizeof(uint16_t))
    slabs.capacity = <uint32_t>min(most, <size_t>RECORDS_MAX) + 1
    slabs.slab = <slab_t*>host_map(records_bytes(slabs), RECORDS_COLOUR)
    slabs.made = 1              # record 0 is NO_SLAB
    slabs.spare = NO_SLAB
    slabs.colouring = colouring
    slabs.colour_next = 0
    if (slabs.size_class == NULL or slabs.lists == NULL or slabs.demand == NULL or slabs.table == NULL
            or slabs.heap == NULL or slabs.slab == NULL):
        slabs_destroy(slabs)
        return 0
    for index in range(count):
        class_init(&slabs.size_class[index], sizes[index])
    index = 0
    for unit in range(SLAB_TABLE + 1):
        while index < count - 1 and sizes[index] < <size_t>unit * SLAB_UNIT:
            index += 1
        slabs.table[unit] = <uint16_t>index
    return 1


cdef void slabs_close(slabs_t* slabs) noexcept nogil:
    cdef uint32_t index
    for index in range(slabs.made if slabs.slab != NULL else 0):
        if slabs.slab[index].live != NULL:
            free(slabs.slab[index].slot)
    host_clear(slabs.slab, records_bytes(slabs))
    slabs.made = 1
    host_unmap(slabs.lists, lists_bytes(slabs), LISTS_COLOUR)
    host_unmap(slabs.demand, demand_bytes(slabs), DEMAND_COLOUR)
    free(slabs.table)
    free(slabs.size_class)
    slabs.lists = NULL
    slabs.demand = NULL
    slabs.table = NULL
    slabs.size_class = NULL


cdef void slabs_destroy(slabs_t* slabs) noexcept nogil:
    slabs_close(slabs)
    host_unmap(slabs.slab, records_bytes(slabs), RECORDS_COLOUR)
    host_unmap(slabs.heap, OWNERS * sizeof(heap_t), HEAPS_COLOUR)
    slabs.slab = NULL
    slabs.heap = NULL


cdef inline size_t lists_bytes(const slabs_t* slabs) noexcept nogil:
    return <size_t>OWNERS * slabs.stride * sizeof(slab_lists_t)


cdef inline size_t demand_bytes(const slabs_t* slabs) noexcept nogil:
    return <size_t>OWNERS * slabs.stride * sizeof(demand_t)


cdef inline size_t records_bytes(const slabs_t* slabs) noexcept nogil:
    return <size_t>slabs.capacity * sizeof(slab_t)


cdef bint slabs_have_record(const slabs_t* slabs) noexcept nogil:
    return slabs.spare != NO_SLAB or slabs.made < slabs.capacity


cdef int slabs_class(const slabs_t* slabs, size_t nbytes, size_t alignment) noexcept nogil:
    cdef size_t units = (nbytes + SLAB_UNIT - 1) // SLAB_UNIT
    cdef int index = slabs.table[units] if units <= SLAB_TABLE else search_class(slabs, nbytes)
    while slabs.size_class[index].size & (alignment - 1):
        index += 1
        if index == slabs.classes:
            return -1
    return index


cdef int search_class(const slabs_t* slabs, size_t nbytes) noexcept nogil:
    cdef int low = 0, high = slabs.classes - 1, middle
    while low < high:
        middle = (low + high) // 2
        if slabs.size_class[middle].size < nbytes:
            low = middle + 1
        else:
            high = middle
    return low


cdef size_t slabs_wanted(const slabs_t* slabs, owner_t owner, int size_class) noexcept nogil:
    cdef size_t size = slabs.size_class[size_class].size
    cdef size_t used = size * slabs_of(slabs, owner, size_class).slots_used         # doubles what the class holds
    return max(min(max(used, size * 8), <size_t>SLAB_BYTES_MAX), size)


cdef uint32_t slabs_make(slabs_t* slabs, owner_t owner, int size_class, size_t offset, size_t nbytes, uint32_t block,
                         uint32_t batch) noexcept nogil:
    cdef uint32_t index = slabs.spare if slabs.spare != NO_SLAB else slabs.made
    cdef size_class_t* group = &slabs.size_class[size_class]
    cdef slab_t* slab = &slabs.slab[index]
    cdef size_t slots = nbytes // group.size, words = (slots + 63) // 64
    cdef size_t sides = SIDES * sizeof(uint32_t) + (slots // LINE_SLOTS + sizeof(uint64_t) & -sizeof(uint64_t))
    cdef size_t values = (slots + 1) * sizeof(slot_t)
    cdef slot_t* slot = NULL
    # Whole lines: another slab in the same one may be another thread's.
    if slabs_have_record(slabs):
        slot = <slot_t*>host_align(2 * CACHE_LINE, whole_lines(values + sides + words * sizeof(uint64_t)))
    if slot == NULL:
        return NO_SLAB
    memset(slot, 0xFF, values)                  # no slot is live, nor the one behind them
    memset(slot + slots + 1, 0, sides + words * sizeof(uint64_t))
    slabs.makes += 1
    if index == slabs.made:
        slabs.made += 1
    else:
        slabs.spare = slab.next
    slab.slot = slot
    slab.free = <uint32_t*>(slot + slots + 1)
    slab.live = <uint64_t*>(<char*>slab.free + sides)
    slab.offset = offset
    slab.bytes = <uint32_t>nbytes
    slab.size_class = <uint16_t>size_class
    set_u16(&slab.owner, owner)
    slab.lists = slabs_of(slabs, owner, size_class)
    slab.batch = batch
    slab.birth = batch
    slab.slots = <uint32_t>slots
    slab.used = 0
    slab.held = 0
    forget_slots(slab)
    slab.block = block
    slab.colour = next_colour(slabs, nbytes - slots * group.size)
    slab.start = offset + slab.colour
    slab.size = group.size
    slab.reciprocal = group.reciprocal
    slab.limit = 0 if slabs.colouring else group.reciprocal
    ready_enter(slabs, index)
    return index


cdef inline size_t whole_lines(size_t nbytes) noexcept nogil:
    return nbytes + 2 * CACHE_LINE - 1 & -2 * CACHE_LINE


cdef void forget_slots(slab_t* slab) noexcept nogil:
    """Let no slot have been handed out."""
    cdef int side
    for side in range(SIDES):
        slab.free[side] = NO_SLOT
    set_u32(&slab.fresh, 0)


cdef void slabs_unmake(slabs_t* slabs, uint32_t index) noexcept nogil:
    cdef slab_t* slab = &slabs.slab[index]
    if slab.ready:
        ready_leave(slabs, index)
    else:
        lists_leave(slabs, index)
    free(slab.slot)
    slab.live = NULL
    slab.slots = 0
    slab.next = slabs.spare
    slabs.spare = index


cdef void slab_activate(slabs_t* slabs, uint32_t index) noexcept nogil:
    cdef slab_t* slab = &slabs.slab[index]
    ready_leave(slabs, index)
    slab.lists.empty = index         # its owner's class had no free slot, so no empty slab either
    lists_enter(slabs, index)


cdef void slab_shelve(slabs_t* slabs, uint32_t index) noexcept nogil:
    """Whoever takes its slots is behind the owner's last free in it, as if they had never been handed out."""
    cdef slab_t* slab = &slabs.slab[index]
    lists_leave(slabs, index)
    forget_slots(slab)
    slab.birth = slab.batch
    ready_enter(slabs, index)


cdef void slabs_pass(slabs_t* slabs, size_t periods) noexcept nogil:
    cdef size_t over = periods - slabs.passed
    cdef int owner, index
    for owner in range(slabs.owners if over != 0 else 0):
        for index in range(slabs.classes):
            demand_pass(demand_of(slabs, <owner_t>owner, index), slots_unused(slabs, <owner_t>owner, index), over)
    slabs.passed = periods


cdef void slabs_note(slabs_t* slabs) noexcept nogil:
    cdef int owner, index
    for owner in range(slabs.owners):
        for index in range(slabs.classes):
            demand_note(demand_of(slabs, <owner_t>owner, index), slots_unused(slabs, <owner_t>owner, index))


cdef void slabs_forget(slabs_t* slabs, owner_t owner) noexcept nogil:
    cdef int index
    cdef demand_t* demand
    for index in range(slabs.classes):
        demand = demand_of(slabs, owner, index)
        demand.high = 0
        demand.expected = 0


cdef size_t slots_unused(const slabs_t* slabs, owner_t owner, int size_class) noexcept nogil:
    cdef uint32_t newest = demand_of(slabs, owner, size_class).newest
    return slabs.slab[newest].slots - slabs.slab[newest].fresh if newest != NO_SLAB else 0


cdef size_t slab_take_allowed(slabs_t* slabs, uint32_t index, const view_t* view, size_t nbytes) noexcept nogil:
    """Bring the slot to the front of the chain, unless it is one that was never handed out."""
    cdef slab_t* slab = &slabs.slab[index]
    cdef uint32_t before = NO_SLOT, side = 0, chain
    cdef uint32_t slot = find_allowed(slab, view, &before)
    cdef size_t offset
    if slot == NO_SLOT:
        return NO_SLOT
    if slot == slab.fresh:
        chain = slab.free[side]
        slab.free[side] = NO_SLOT
        offset = slab_take_on(slabs, index, side, nbytes)
        slab.free[side] = chain
        return offset
    side = side_of(slab, slot)[0]
    if before != NO_SLOT:
        slab.slot[before].value = slab.slot[slot].value
        slab.slot[slot].value = NOT_LIVE | slab.free[side]
        slab.free[side] = slot
    return slab_take_on(slabs, index, side, nbytes)


cdef bint slab_has_allowed(const slabs_t* slabs, uint32_t index, const view_t* view) noexcept nogil:
    cdef uint32_t before
    return find_allowed(&slabs.slab[index], view, &before) != NO_SLOT


cdef uint32_t find_allowed(const slab_t* slab, const view_t* view, uint32_t* before) noexcept nogil:
    """Find a slot of a chain, with the one before it, else one that was never handed out."""
    cdef uint32_t slot
    cdef int looked = 0, side
    for side in range(SIDES):
        before[0] = NO_SLOT
        slot = slab.free[side]
        while slot != NO_SLOT and looked < SLOT_CANDIDATES:
            if view_allows(view, slab.owner, slab.slot[slot].batch):
                return slot
            before[0] = slot
            slot = slab.slot[slot].value & NO_SLOT
            looked += 1
    if slab.fresh < slab.slots and view_allows(view, slab.owner, slab.birth):
        return slab.fresh
    return NO_SLOT


cdef uint32_t slabs_available_on(const slabs_t* slabs, const slab_lists_t* lists, uint32_t side) noexcept nogil:
    cdef uint32_t first = slabs_available(lists), index = first
    cdef int looked = 0
    while index != NO_SLAB and looked < SIDE_CANDIDATES:
        if slab_has_on(&slabs.slab[index], side):
            return index
        index = slabs.slab[index].next
        looked += 1
    return first


cdef void slab_leave_line(slabs_t* slabs, uint32_t index) noexcept nogil:
    """The first of them is the first to be taken, as it would be."""
    cdef slab_t* slab = &slabs.slab[index]
    cdef uint32_t end = min((slab.fresh | LINE_SLOTS - 1) + 1, slab.slots), slot = end
    cdef uint32_t* chain = &slab.free[side_of(slab, slab.fresh)[0]]
    while slot != slab.fresh:
        slot -= 1
        slab.slot[slot].batch = slab.birth
        set_u32(&slab.slot[slot].value, NOT_LIVE | chain[0])
        chain[0] = slot
    set_u32(&slab.fresh, end)


cdef void slab_adopt(slab_t* slab, uint32_t side) noexcept nogil:
    cdef uint32_t slot, after
    cdef uint32_t other
    for other in range(SIDES):
        slot = slab.free[other] if other != side else <uint32_t>NO_SLOT
        while slot != NO_SLOT:
            after = slab.slot[slot].value & NO_SLOT
            set_u32(&slab.slot[slot].value, NOT_LIVE | slab.free[side])
            slab.free[side] = slot
            slot = after
        if other != side:
            slab.free[other] = NO_SLOT
    memset(side_of(slab, 0), side, slab.slots // LINE_SLOTS + 1)


cdef bint slabs_pass_on(slabs_t* slabs, uint32_t index, owner_t to, uint32_t batch) noexcept nogil:
    cdef slab_t* slab = &slabs.slab[index]
    cdef slab_lists_t* lists = slabs_of(slabs, to, slab.size_class)
    cdef uint32_t slot
    if slab.used == 0 and slabs_empty(slabs, lists) != NO_SLAB:
        return False
    lists_leave(slabs, index)
    set_u16(&slab.owner, to)
    slab.lists = lists
    slab.batch = batch
    slab.birth = batch
    for slot in range(slab.fresh):
        slab.slot[slot].batch = batch
    lists_enter(slabs, index)
    if slab.used == 0:
        lists.empty = index
    return True


cdef void ready_enter(slabs_t* slabs, uint32_t index) noexcept nogil:
    cdef slab_t* slab = &slabs.slab[index]
    slab.ready = True
    slabs.ready_bytes += slab.bytes
    slab.lists.slabs += 1
    demand_of(slabs, slab.owner, slab.size_class).ready += slab.slots
    list_push(slabs, index, SLAB_READY)


cdef void ready_leave(slabs_t* slabs, uint32_t index) noexcept nogil:
    cdef slab_t* slab = &slabs.slab[index]
    slab.ready = False
    slabs.ready_bytes -= slab.bytes
    slab.lists.slabs -= 1
    demand_of(slabs, slab.owner, slab.size_class).ready -= slab.slots
    list_remove(slabs, index, SLAB_READY)


cdef void lists_enter(slabs_t* slabs, uint32_t index) noexcept nogil:
    cdef const slab_t* slab = &slabs.slab[index]
    cdef slab_lists_t* lists = slab.lists
    cdef demand_t* demand = demand_of(slabs, slab.owner, slab.size_class)
    demand_note(demand, slots_unused(slabs, slab.owner, slab.size_class))
    demand.active += slab.slots
    demand.newest = index
    lists.slabs += 1
    lists.slots_used += slab.used
    list_push(slabs, index, slab_state(slab))


cdef void lists_leave(slabs_t* slabs, uint32_t index) noexcept nogil:
    cdef const slab_t* slab = &slabs.slab[index]
    cdef slab_lists_t* lists = slab.lists
    cdef demand_t* demand = demand_of(slabs, slab.owner, slab.size_class)
    demand_note(demand, slots_unused(slabs, slab.owner, slab.size_class))
    demand.active -= slab.slots
    if demand.newest == index:
        demand.newest = NO_SLAB
    lists.slabs -= 1
    lists.slots_used -= slab.used
    if lists.empty == index:
        lists.empty = NO_SLAB
    list_remove(slabs, index, slab_state(slab))


cdef void slab_relist(slabs_t* slabs, uint32_t index, slab_list_t old, slab_list_t new) noexcept nogil:
    list_remove(slabs, index, old)
    list_push(slabs, index, new)


cdef inline slab_list_t slab_state(const slab_t* slab) noexcept nogil:
    if slab.ready:
        return SLAB_READY
    return SLAB_FULL if slab.used == slab.slots else SLAB_PARTIAL


cdef void class_init(size_class_t* group, size_t size) noexcept nogil:
    """A slab has less than 2**32 bytes.

    Lemire, Kaser and Kurz, "Faster remainder by direct computation", Software: Practice and Experience 49 (2019).
    """
    group.size = size
    group.reciprocal = <uint64_t>-1 // size + 1


cdef uint32_t next_colour(slabs_t* slabs, size_t slack) noexcept nogil:
    """Spread the first slots of successive slabs over the slack behind the last one."""
    cdef uint32_t colours = <uint32_t>(slack // COLOUR_STEP) + 1
    if not slabs.colouring:
        return 0
    slabs.colour_next += 1
    return slabs.colour_next % colours * COLOUR_STEP


cdef void list_push(slabs_t* slabs, uint32_t index, slab_list_t state) noexcept nogil:
    cdef slab_t* slab = &slabs.slab[index]
    cdef uint32_t* head = &slab.lists.head[state]
    slab.next = head[0]
    slab.prev = NO_SLAB
    if head[0] != NO_SLAB:
        slabs.slab[head[0]].prev = index
    head[0] = index


cdef void list_remove(slabs_t* slabs, uint32_t index, slab_list_t state) noexcept nogil:
    cdef slab_t* slab = &slabs.slab[index]
    if slab.next != NO_SLAB:
        slabs.slab[slab.next].prev = slab.prev
    if slab.prev != NO_SLAB:
        slabs.slab[slab.prev].next = slab.next
    else:
        slab.lists.head[state] = slab.next


cdef const char* slabs_check(const slabs_t* slabs) noexcept nogil:
    cdef int owner, index
    cdef const char* broken
    cdef size_t ready_bytes = 0
    for owner in range(slabs.owners):
        for index in range(slabs.classes):
            broken = lists_check(slabs, <owner_t>owner, index)
            if broken != NULL:
                return broken
            ready_bytes += bytes_ready(slabs, slabs_of(slabs, <owner_t>owner, index))
    if ready_bytes != slabs.ready_bytes:
        return b"slab: ready_bytes is not that of the ready slabs"
    return NULL


cdef size_t bytes_ready(const slabs_t* slabs, const slab_lists_t* lists) noexcept nogil:
    cdef size_t nbytes = 0
    cdef uint32_t slab = slabs_ready(lists)
    while slab != NO_SLAB:
        nbytes += slabs.slab[slab].bytes
        slab = slabs.slab[slab].next
    return nbytes


cdef const char* lists_check(const slabs_t* slabs, owner_t owner, int size_class) noexcept nogil:
    cdef const slab_lists_t* lists = slabs_of(slabs, owner, size_class)
    cdef const demand_t* demand = demand_of(slabs, owner, size_class)
    cdef size_t used = 0
    cdef size_t slots[SLAB_LISTS]
    cdef uint32_t count = 0, at, prev
    cdef int state
    cdef const char* broken
    memset(slots, 0, sizeof(slots))
    for state in range(SLAB_LISTS):
        at, prev = lists.head[state], NO_SLAB
        while at != NO_SLAB:
            if (slabs.slab[at].owner != owner or slabs.slab[at].size_class != size_class
                    or slabs.slab[at].lists != lists):
                return b"slab: on the list of another owner or class"
            broken = slab_check(&slabs.slab[at], slabs.size_class[size_class].size, state, prev)
            if broken != NULL:
                return broken
            if slabs.slab[at].used == 0 and state != SLAB_READY and at != lists.empty:
                return b"slab: an empty slab is not the one that its lists name"
            used += slabs.slab[at].used
            slots[state] += slabs.slab[at].slots
            count += 1
            if count > lists.slabs:
                return b"slab: a list holds more slabs than its class"
            at, prev = slabs.slab[at].next, at
    if count != lists.slabs or used != lists.slots_used:
        return b"slab: the lists do not add up to the class"
    if demand.active != slots[SLAB_PARTIAL] + slots[SLAB_FULL] or demand.ready != slots[SLAB_READY]:
        return b"slab: the slots of the lists are not those of the demand"
    return NULL


cdef const char* slab_check(const slab_t* slab, size_t size, int state, uint32_t prev) noexcept nogil:
    cdef uint32_t live = 0, chain = 0, word, slot
    cdef uint32_t side
    if slab_state(slab) != state or slab.prev != prev:
        return b"slab: on the wrong list"
    if slab.ready and (slab.used != 0 or slab.fresh != 0):
        return b"slab: a ready slab is in use"
    if slab.colour + slab.slots * size > slab.bytes:
        return b"slab: the slots do not fit"
    for word in range((slab.slots + 63) // 64):
        live += popcount64(slab.live[word])
    for side in range(SIDES):
        slot = slab.free[side]
        while slot != NO_SLOT:
            if slot >= slab.fresh or slot_is_live(slab, slot):
                return b"slab: a used slot is on the chain of free ones"
            chain += 1
            if chain > slab.slots:
                return b"slab: the chain of free slots has a cycle"
            if not slab.slot[slot].value & NOT_LIVE:
                return b"slab: a free slot looks live"
            if side_of(slab, slot)[0] != side:
                return b"slab: a free slot is on the chain of another side"
            slot = slab.slot[slot].value & NO_SLOT
    if live + slab.held != slab.used or slab.used + chain != slab.fresh or slab.fresh > slab.slots:
        return b"slab: slots used + slots free != slots"
    return NULL
