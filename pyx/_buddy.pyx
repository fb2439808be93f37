"""Buddy system over a region of any size.

Knowlton, "A fast storage allocator", CACM 8(10), 1965; lists and XOR as in Knuth, TAOCP vol. 1, 2.5. A request takes
only the units that it needs: the rest of its power-of-two block goes back as smaller buddies, and free returns the
run piece by piece.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from cuda_pool._bits cimport ctz32, log2_ceil, log2_floor
from cuda_pool._hostmem cimport host_map, host_unmap
from cuda_pool._owner cimport NOBODY, OWNERS, batch_within, later_batch, view_allows
from cuda_pool._pages cimport pages_missing

cdef const uint32_t NO_BLOCK = 0xFFFFFFFF

cdef enum:
    STATE_COLOUR = 5            # three arrays, three starts: see host_map
    ENTRY_COLOUR = 22
    LISTS_COLOUR = 30


cdef int buddy_init(buddy_t* buddy, uint32_t size) noexcept nogil:
    buddy.size = size
    buddy.used = size
    buddy.owned = 0
    buddy.owners = NOBODY + 1
    buddy.pages = NULL
    buddy.unit_shift = 0
    buddy.lists = <buddy_lists_t*>host_map(OWNERS * sizeof(buddy_lists_t), LISTS_COLOUR)
    buddy.state = <uint8_t*>host_map(<size_t>size + 1, STATE_COLOUR)
    buddy.entry = <buddy_entry_t*>host_map((<size_t>size + 1) * sizeof(buddy_entry_t), ENTRY_COLOUR)
    if buddy.lists == NULL or buddy.state == NULL or buddy.entry == NULL:
        buddy_destroy(buddy)
        return 0
    buddy_free(buddy, 0, size, NOBODY, 0)
    return 1


cdef void buddy_destroy(buddy_t* buddy) noexcept nogil:
    host_unmap(buddy.lists, OWNERS * sizeof(buddy_lists_t), LISTS_COLOUR)
    host_unmap(buddy.state, <size_t>buddy.size + 1, STATE_COLOUR)
    host_unmap(buddy.entry, (<size_t>buddy.size + 1) * sizeof(buddy_entry_t), ENTRY_COLOUR)
    buddy.lists = NULL
    buddy.state = NULL
    buddy.entry = NULL


cdef uint32_t buddy_alloc(buddy_t* buddy, owner_t owner, uint32_t units, int order) noexcept nogil:
    cdef uint32_t block = find_block(buddy, owner, units, order)
    return NO_BLOCK if block == NO_BLOCK else buddy_take(buddy, block, units)


cdef uint32_t buddy_alloc_allowed(buddy_t* buddy, const view_t* view, uint32_t units, int order) noexcept nogil:
    cdef uint32_t block
    cdef int owner
    for owner in range(NOBODY + 1, buddy.owners):
        block = find_block(buddy, <owner_t>owner, units, order)
        if block != NO_BLOCK and view_allows(view, <owner_t>owner, buddy.entry[block].batch):
            buddy_take(buddy, block, units)
            buddy.entry[block].owner = view.owner
            buddy.entry[block].batch = view.batch
            return block
    return NO_BLOCK


cdef inline uint32_t find_block(const buddy_t* buddy, owner_t owner, uint32_t units, int order) noexcept nogil:
    """The first block of the lowest order that holds so many units, or NO_BLOCK."""
    cdef int wanted = max(order, log2_ceil(units))
    cdef uint32_t missing, found
    if buddy.pages != NULL:
        found = buddy_find_fewest(buddy, owner, units, order, &missing)
        return found if missing == 0 else NO_BLOCK
    cdef uint32_t candidates = buddy.lists[owner].nonempty >> wanted if wanted < BUDDY_ORDERS else 0
    return buddy.lists[owner].head[wanted + ctz32(candidates)] if candidates != 0 else NO_BLOCK


cdef uint32_t buddy_find_fewest(const buddy_t* buddy, owner_t owner, uint32_t units, int order,
                                uint32_t* missing) noexcept nogil:
    cdef const buddy_lists_t* lists = &buddy.lists[owner]
    cdef uint32_t best = NO_BLOCK, block, lacking
    cdef int looked = 0
    missing[0] = <uint32_t>-1
    for order in range(max(order, log2_ceil(units)), BUDDY_ORDERS):
        block = list_head(lists, order)
        while block != NO_BLOCK and missing[0] != 0 and looked < BUDDY_CANDIDATES:
            lacking = pages_missing(buddy.pages, <size_t>block << buddy.unit_shift, <size_t>units << buddy.unit_shift)
            if lacking < missing[0]:
                best = block
                missing[0] = lacking
            block = buddy.entry[block].role.free.next
            looked += 1
    return best


cdef uint32_t buddy_take(buddy_t* buddy, uint32_t block, uint32_t units) noexcept nogil:
    """Take the start of a free block; its entry goes on telling whose it was."""
    cdef uint32_t end = block + (<uint32_t>1 << (buddy.state[block] - 1))
    free_list_remove(buddy, block, buddy.state[block] - 1)
    buddy.used += units
    give_back(buddy, block + units, end, buddy.entry[block].owner, buddy.entry[block].batch)
    return block


cdef void buddy_free(buddy_t* buddy, uint32_t block, uint32_t units, owner_t owner, uint32_t batch) noexcept nogil:
    """Return a run: the largest aligned piece at its start, again and again."""
    cdef uint32_t end = block + units
    cdef int order
    buddy.used -= units
    while block < end:
        order = piece_order(block, end)
        free_block(buddy, block, order, owner, batch)
        block += <uint32_t>1 << order


cdef void buddy_pass_on(buddy_t* buddy, owner_t owner, uint32_t limit, owner_t to, uint32_t batch) noexcept nogil:
    """Lists of `owner` only lose blocks here: merging happens among those of `to`."""
    cdef const buddy_lists_t* lists = &buddy.lists[owner]
    cdef uint32_t block, after
    cdef int order
    for order in range(BUDDY_ORDERS):
        block = list_head(lists, order)
        while block != NO_BLOCK:
            after = buddy.entry[block].role.free.next
            if batch_within(buddy.entry[block].batch, limit):
                free_list_remove(buddy, block, order)
                free_block(buddy, block, order, to, batch)
            block = after


cdef void buddy_rename(buddy_t* buddy, owner_t owner, owner_t to, uint32_t batch) noexcept nogil:
    cdef uint32_t block
    for block in range(buddy.size):
        if buddy.state[block] >= BUDDY_LIVE and buddy.entry[block].owner == owner:
            buddy.entry[block].owner = to
            buddy.entry[block].batch = batch


cdef void buddy_join(buddy_t* buddy, const view_t* view) noexcept nogil:
    cdef int owner
    buddy_pass_on(buddy, NOBODY, 0, view.owner, view.batch)
    for owner in range(NOBODY + 1, buddy.owners):
        if owner != view.owner and buddy.lists[owner].nonempty:
            buddy_pass_on(buddy, <owner_t>owner, view.limit[owner], view.owner, view.batch)


cdef bint buddy_could_join(const buddy_t* buddy, const view_t* view, uint32_t units) noexcept nogil:
    cdef uint32_t at = 0, run = 0
    cdef int state
    if buddy.owned == 0:
        return False
    while at < buddy.size and run < units:
        state = buddy.state[at]
        if state == 0 or state >= BUDDY_LIVE:
            run = 0
            at += buddy.entry[at].role.live.units if state else 1
        else:
            if not view_allows(view, buddy.entry[at].owner, buddy.entry[at].batch):
                run = 0
            else:
                run += <uint32_t>1 << (state - 1)
            at += <uint32_t>1 << (state - 1)
    return run >= units


cdef int buddy_claim(buddy_t* buddy, owner_t owner, uint32_t block, uint32_t units, uint32_t* batch) noexcept nogil:
    cdef uint32_t end = block + units, at = block, start, latest
    cdef int order
    while at < end:                             # look first, so that a refusal changes nothing
        order = containing_order(buddy, at, owner)
        if order < 0:
            return 0
        at = first_of(at, order) + (<uint32_t>1 << order)
    at = block
    batch[0] = 0
    while at < end:
        order = containing_order(buddy, at, owner)
        start = first_of(at, order)
        latest = buddy.entry[start].batch
        batch[0] = later_batch(batch[0], latest)
        free_list_remove(buddy, start, order)
        at = start + (<uint32_t>1 << order)
        if start < block:
            give_back(buddy, start, block, owner, latest)
    give_back(buddy, end, at, owner, latest)
    buddy.used += units
    return 1


cdef uint32_t buddy_free_below(const buddy_t* buddy, uint32_t end) noexcept nogil:
    cdef uint32_t at = end
    cdef int order
    while at > 0:
        order = containing_order(buddy, at - 1, NOBODY)
        if order < 0:
            break
        at = first_of(at - 1, order)
    return end - at


cdef uint32_t buddy_allowed_below(const buddy_t* buddy, const view_t* view, uint32_t end) noexcept nogil:
    """Walk up: a block is found by its first unit."""
    cdef uint32_t at = 0, run = 0, units
    cdef int state
    while at < end:
        state = buddy.state[at]
        units = buddy.entry[at].role.live.units if state >= BUDDY_LIVE else 1
        if 0 < state < BUDDY_LIVE:
            units = <uint32_t>1 << (state - 1)
            run = run + units if view_allows(view, buddy.entry[at].owner, buddy.entry[at].batch) else 0
        else:
            run = 0
        at += units
    return run


cdef uint32_t buddy_free_above(const buddy_t* buddy, uint32_t start) noexcept nogil:
    cdef uint32_t at = start
    cdef int order
    while at < buddy.size:
        order = containing_order(buddy, at, NOBODY)
        if order < 0:
            break
        at = first_of(at, order) + (<uint32_t>1 << order)
    return at - start


cdef uint32_t buddy_largest(const buddy_t* buddy, owner_t owner) noexcept nogil:
    cdef uint32_t nonempty = buddy.lists[owner].nonempty
    return 0 if nonempty == 0 else <uint32_t>1 << log2_floor(nonempty)


cdef size_t buddy_metadata(const buddy_t* buddy) noexcept nogil:
    return (<size_t>buddy.size + 1) * (sizeof(buddy_entry_t) + 1)


cdef const char* buddy_check(const buddy_t* buddy) noexcept nogil:
    cdef uint64_t units = 0, blocks = 0, unowned = 0
    cdef const char* broken
    cdef int owner
    for owner in range(buddy.owners):
        broken = lists_check(buddy, <owner_t>owner, &units, &blocks)
        if broken != NULL:
            return broken
        if owner == NOBODY:
            unowned = units
    if buddy.used + units != buddy.size or buddy.owned != units - unowned:
        return b"buddy: used + free != size, or owned is wrong"
    return states_check(buddy, blocks)


cdef const char* states_check(const buddy_t* buddy, uint64_t members) noexcept nogil:
    """With every list checked, no more units may have the state of a free block than the lists have members."""
    cdef uint64_t states = 0
    cdef uint32_t block
    for block in range(buddy.size):
        states += 0 < buddy.state[block] <= BUDDY_ORDERS
    if states != members:
        return b"buddy: a unit has the state of a free block and is on no list"
    return NULL


cdef const char* lists_check(const buddy_t* buddy, owner_t owner, uint64_t* units, uint64_t* blocks) noexcept nogil:
    cdef const char* broken
    cdef int order
    for order in range(BUDDY_ORDERS):
        broken = free_list_check(buddy, owner, order, units, blocks)
        if broken != NULL:
            return broken
    return NULL


cdef const char* free_list_check(const buddy_t* buddy, owner_t owner, int order, uint64_t* units,
                                 uint64_t* blocks) noexcept nogil:
    cdef uint32_t block = list_head(&buddy.lists[owner], order), previous = NO_BLOCK
    cdef uint64_t length = 0
    while block != NO_BLOCK:
        if block >= buddy.size or block & ((<uint32_t>1 << order) - 1):
            return b"buddy: a free block is not aligned to its order"
        if buddy.state[block] != order + 1 or buddy.entry[block].owner != owner:
            return b"buddy: a free block is on the wrong list"
        if owner == NOBODY and buddy.entry[block].batch != 0:
            return b"buddy: a block of nobody's has a batch"
        if buddy.entry[block].role.free.prev != previous:
            return b"buddy: a free block is not on exactly one list"
        if is_mergeable(buddy, buddy_of(block, order), order, owner):
            return b"buddy: two free buddies of one owner were not merged"
        length += 1
        if length << order > buddy.size:
            return b"buddy: a free list has a cycle"
        previous = block
        block = buddy.entry[block].role.free.next
    units[0] += length << order
    blocks[0] += length
    return NULL


cdef void free_block(buddy_t* buddy, uint32_t block, int order, owner_t owner, uint32_t batch) noexcept nogil:
    """Free one aligned block, merging it with its buddy while that is free and the same owner's."""
    cdef uint32_t other = buddy_of(block, order)
    while order < BUDDY_ORDERS - 1 and is_mergeable(buddy, other, order, owner):
        batch = later_batch(batch, buddy.entry[other].batch)
        free_list_remove(buddy, other, order)
        block = block & other                   # the merged block starts at the low half
        order += 1
        other = buddy_of(block, order)
    free_list_push(buddy, block, order, owner, batch)


cdef inline bint is_mergeable(const buddy_t* buddy, uint32_t block, int order, owner_t owner) noexcept nogil:
    return block < buddy.size and buddy.state[block] == order + 1 and buddy.entry[block].owner == owner


cdef void give_back(buddy_t* buddy, uint32_t block, uint32_t end, owner_t owner, uint32_t batch) noexcept nogil:
    """Free the unused part of a block that was just taken; its pieces have no free buddy to merge with."""
    cdef int order
    while block < end:
        order = piece_order(block, end)
        free_list_push(buddy, block, order, owner, batch)
        block += <uint32_t>1 << order


cdef inline int piece_order(uint32_t block, uint32_t end) noexcept nogil:
    """Order of the largest aligned block that starts at `block` and does not pass `end`."""
    cdef int order = log2_floor(end - block)
    return min(order, ctz32(block)) if block else order


cdef inline uint32_t first_of(uint32_t unit, int order) noexcept nogil:
    return unit & ~((<uint32_t>1 << order) - 1)


cdef int containing_order(const buddy_t* buddy, uint32_t unit, owner_t owner) noexcept nogil:
    """Order of the owner's free block that holds `unit`, or -1."""
    cdef int order
    for order in range(BUDDY_ORDERS):
        if buddy.state[first_of(unit, order)] == order + 1:
            return order if buddy.entry[first_of(unit, order)].owner == owner else -1
    return -1


cdef inline uint32_t list_head(const buddy_lists_t* lists, int order) noexcept nogil:
    return lists.head[order] if lists.nonempty >> order & 1 else NO_BLOCK


cdef void free_list_push(buddy_t* buddy, uint32_t block, int order, owner_t owner, uint32_t batch) noexcept nogil:
    cdef buddy_lists_t* lists = &buddy.lists[owner]
    cdef buddy_entry_t* entry = &buddy.entry[block]
    cdef uint32_t head = list_head(lists, order)
    entry.role.free.next = head
    entry.role.free.prev = NO_BLOCK
    entry.owner = owner
    entry.batch = batch
    if head != NO_BLOCK:
        buddy.entry[head].role.free.prev = block
    lists.head[order] = block
    lists.nonempty |= <uint32_t>1 << order
    buddy.state[block] = <uint8_t>(order + 1)
    if owner != NOBODY:
        buddy.owned += <uint32_t>1 << order


cdef void free_list_remove(buddy_t* buddy, uint32_t block, int order) noexcept nogil:
    cdef owner_t owner = buddy.entry[block].owner
    cdef buddy_lists_t* lists = &buddy.lists[owner]
    cdef uint32_t after = buddy.entry[block].role.free.next, before = buddy.entry[block].role.free.prev
    buddy.state[block] = 0
    if owner != NOBODY:
        buddy.owned -= <uint32_t>1 << order
    if after != NO_BLOCK:
        buddy.entry[after].role.free.prev = before
    if before != NO_BLOCK:
        buddy.entry[before].role.free.next = after
        return
    lists.head[order] = after
    if after == NO_BLOCK:
        lists.nonempty &= ~(<uint32_t>1 << order)
