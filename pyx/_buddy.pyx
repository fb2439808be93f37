"""Buddy system over a region of any size.

Knowlton, "A fast storage allocator", CACM 8(10), 1965; lists and XOR as in Knuth, TAOCP vol. 1, 2.5. A request takes
only the units that it needs: the rest of its power-of-two block goes back as smaller buddies, and free returns the
run piece by piece.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from cuda_pool._bits cimport ctz32, log2_ceil, log2_floor
from cuda_pool._hostmem cimport host_map, host_unmap

cdef const uint32_t NO_BLOCK = 0xFFFFFFFF

cdef enum:
    STATE_COLOUR = 5            # two arrays, two starts: see host_map
    ENTRY_COLOUR = 22


cdef int buddy_init(buddy_t* buddy, uint32_t size) noexcept nogil:
    cdef int order
    buddy.size = size
    buddy.used = size
    buddy.nonempty = 0
    for order in range(BUDDY_ORDERS):
        buddy.free_list[order] = NO_BLOCK
    buddy.state = <uint8_t*>host_map(<size_t>size + 1, STATE_COLOUR)
    buddy.entry = <buddy_entry_t*>host_map((<size_t>size + 1) * sizeof(buddy_entry_t), ENTRY_COLOUR)
    if buddy.state == NULL or buddy.entry == NULL:
        buddy_destroy(buddy)
        return 0
    buddy_free(buddy, 0, size)
    return 1


cdef void buddy_destroy(buddy_t* buddy) noexcept nogil:
    host_unmap(buddy.state, <size_t>buddy.size + 1, STATE_COLOUR)
    host_unmap(buddy.entry, (<size_t>buddy.size + 1) * sizeof(buddy_entry_t), ENTRY_COLOUR)
    buddy.state = NULL
    buddy.entry = NULL


cdef uint32_t buddy_alloc(buddy_t* buddy, uint32_t units, int order) noexcept nogil:
    cdef int wanted = max(order, log2_ceil(units))
    cdef uint32_t candidates, block
    if wanted >= BUDDY_ORDERS:
        return NO_BLOCK
    candidates = buddy.nonempty >> wanted
    if candidates == 0:
        return NO_BLOCK
    wanted += ctz32(candidates)
    block = buddy.free_list[wanted]
    free_list_remove(buddy, block, wanted)
    buddy.used += units
    give_back(buddy, block + units, block + (<uint32_t>1 << wanted))
    return block


cdef void buddy_free(buddy_t* buddy, uint32_t block, uint32_t units) noexcept nogil:
    """Return a run: the largest aligned piece at its start, again and again."""
    cdef uint32_t end = block + units
    cdef int order
    buddy.used -= units
    while block < end:
        order = piece_order(block, end)
        free_block(buddy, block, order)
        block += <uint32_t>1 << order


cdef int buddy_claim(buddy_t* buddy, uint32_t block, uint32_t units) noexcept nogil:
    cdef uint32_t end = block + units, at = block, start
    cdef int order
    while at < end:                             # look first, so that a refusal changes nothing
        order = containing_order(buddy, at)
        if order < 0:
            return 0
        at = first_of(at, order) + (<uint32_t>1 << order)
    at = block
    while at < end:
        order = containing_order(buddy, at)
        start = first_of(at, order)
        free_list_remove(buddy, start, order)
        at = start + (<uint32_t>1 << order)
        if start < block:
            give_back(buddy, start, block)
    give_back(buddy, end, at)
    buddy.used += units
    return 1


cdef uint32_t buddy_free_below(const buddy_t* buddy, uint32_t end) noexcept nogil:
    cdef uint32_t at = end
    cdef int order
    while at > 0:
        order = containing_order(buddy, at - 1)
        if order < 0:
            break
        at = first_of(at - 1, order)
    return end - at


cdef uint32_t buddy_free_above(const buddy_t* buddy, uint32_t start) noexcept nogil:
    cdef uint32_t at = start
    cdef int order
    while at < buddy.size:
        order = containing_order(buddy, at)
        if order < 0:
            break
        at = first_of(at, order) + (<uint32_t>1 << order)
    return at - start


cdef uint32_t buddy_largest(const buddy_t* buddy) noexcept nogil:
    return 0 if buddy.nonempty == 0 else <uint32_t>1 << log2_floor(buddy.nonempty)


cdef size_t buddy_metadata(const buddy_t* buddy) noexcept nogil:
    return (<size_t>buddy.size + 1) * (sizeof(buddy_entry_t) + 1)


cdef const char* buddy_check(const buddy_t* buddy) noexcept nogil:
    cdef uint64_t free_units = 0
    cdef const char* broken
    cdef int order
    for order in range(BUDDY_ORDERS):
        if (buddy.nonempty >> order & 1) != (buddy.free_list[order] != NO_BLOCK):
            return b"buddy: bit of nonempty disagrees with its free list"
        broken = free_list_check(buddy, order, &free_units)
        if broken != NULL:
            return broken
    if buddy.used + free_units != buddy.size:
        return b"buddy: used + free != size"
    return states_check(buddy)


cdef const char* states_check(const buddy_t* buddy) noexcept nogil:
    """With every list checked, no more units may have the state of a free block than the lists have members."""
    cdef uint64_t members = 0, states = 0
    cdef uint32_t block
    cdef int order
    for order in range(BUDDY_ORDERS):
        block = buddy.free_list[order]
        while block != NO_BLOCK:
            members += 1
            block = buddy.entry[block].free.next
    for block in range(buddy.size):
        states += 0 < buddy.state[block] <= BUDDY_ORDERS
    if states != members:
        return b"buddy: a unit has the state of a free block and is on no list"
    return NULL


cdef const char* free_list_check(const buddy_t* buddy, int order, uint64_t* free_units) noexcept nogil:
    cdef uint32_t block = buddy.free_list[order], previous = NO_BLOCK, buddy_block
    cdef uint64_t length = 0
    while block != NO_BLOCK:
        if block >= buddy.size or block & ((<uint32_t>1 << order) - 1):
            return b"buddy: a free block is not aligned to its order"
        if buddy.state[block] != order + 1 or buddy.entry[block].free.prev != previous:
            return b"buddy: a free block is not on exactly one list"
        buddy_block = buddy_of(block, order)
        if buddy_block < buddy.size and buddy.state[buddy_block] == order + 1:
            return b"buddy: two free buddies were not merged"
        length += 1
        if length << order > buddy.size:
            return b"buddy: a free list has a cycle"
        previous = block
        block = buddy.entry[block].free.next
    free_units[0] += length << order
    return NULL


cdef void free_block(buddy_t* buddy, uint32_t block, int order) noexcept nogil:
    """Free one aligned block, merging it with its buddy while that is free."""
    cdef uint32_t other = buddy_of(block, order)
    while order < BUDDY_ORDERS - 1 and other < buddy.size and buddy.state[other] == order + 1:
        free_list_remove(buddy, other, order)
        block = block & other                   # the merged block starts at the low half
        order += 1
        other = buddy_of(block, order)
    free_list_push(buddy, block, order)


cdef void give_back(buddy_t* buddy, uint32_t block, uint32_t end) noexcept nogil:
    """Free the unused part of a block that was just taken; its pieces have no free buddy to merge with."""
    cdef int order
    while block < end:
        order = piece_order(block, end)
        free_list_push(buddy, block, order)
        block += <uint32_t>1 << order


cdef inline int piece_order(uint32_t block, uint32_t end) noexcept nogil:
    """Order of the largest aligned block that starts at `block` and does not pass `end`."""
    cdef int order = log2_floor(end - block)
    return min(order, ctz32(block)) if block else order


cdef inline uint32_t first_of(uint32_t unit, int order) noexcept nogil:
    return unit & ~((<uint32_t>1 << order) - 1)


cdef int containing_order(const buddy_t* buddy, uint32_t unit) noexcept nogil:
    """Order of the free block that holds `unit`, or -1."""
    cdef int order
    for order in range(BUDDY_ORDERS):
        if buddy.state[first_of(unit, order)] == order + 1:
            return order
    return -1


cdef void free_list_push(buddy_t* buddy, uint32_t block, int order) noexcept nogil:
    cdef uint32_t head = buddy.free_list[order]
    buddy.entry[block].free.next = head
    buddy.entry[block].free.prev = NO_BLOCK
    if head != NO_BLOCK:
        buddy.entry[head].free.prev = block
    buddy.free_list[order] = block
    buddy.nonempty |= <uint32_t>1 << order
    buddy.state[block] = <uint8_t>(order + 1)


cdef void free_list_remove(buddy_t* buddy, uint32_t block, int order) noexcept nogil:
    cdef uint32_t after = buddy.entry[block].free.next, before = buddy.entry[block].free.prev
    buddy.state[block] = 0
    if after != NO_BLOCK:
        buddy.entry[after].free.prev = before
    if before != NO_BLOCK:
        buddy.entry[before].free.next = after
        return
    buddy.free_list[order] = after
    if after == NO_BLOCK:
        buddy.nonempty &= ~(<uint32_t>1 << order)
