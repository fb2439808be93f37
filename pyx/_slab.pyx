"""Slabs: blocks cut into equal slots of one size class.

Bonwick, "The slab allocator", USENIX Summer 1994, with its bookkeeping outside the memory: a chain of returned slots
(last in, first out), a bit for each slot that is used, and the bytes that were asked for.
"""

from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from cuda_pool._bits cimport log2_ceil, popcount64
from cuda_pool._hostmem cimport host_grow

cdef enum:
    COLOUR_STEP = 256           # keeps every slot as aligned as the smallest class


cdef int slabs_init(slabs_t* slabs, const size_t* sizes, int count, bint colouring) noexcept nogil:
    cdef int index
    cdef uint32_t unit
    slabs.max = sizes[count - 1] if count else 0
    slabs.classes = count
    slabs.size_class = <size_class_t*>calloc(count + 1, sizeof(size_class_t))
    slabs.table = <uint16_t*>calloc(SLAB_TABLE + 1, sizeof(uint16_t))
    slabs.slab = NULL
    slabs.capacity = 0
    slabs.made = 1              # record 0 is NO_SLAB
    slabs.spare = NO_SLAB
    slabs.colouring = colouring
    slabs.colour_next = 0
    if slabs.size_class == NULL or slabs.table == NULL:
        slabs_destroy(slabs)
        return 0
    for index in range(count):
        slabs.size_class[index].size = sizes[index]
    index = 0
    for unit in range(SLAB_TABLE + 1):
        while index < count - 1 and sizes[index] < <size_t>unit * SLAB_UNIT:
            index += 1
        slabs.table[unit] = <uint16_t>index
    return 1


cdef void slabs_destroy(slabs_t* slabs) noexcept nogil:
    cdef uint32_t index
    if slabs.slab != NULL:
        for index in range(slabs.made):
            free(slabs.slab[index].live)
    free(slabs.slab)
    free(slabs.table)
    free(slabs.size_class)
    slabs.slab = NULL
    slabs.table = NULL
    slabs.size_class = NULL


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


cdef size_t slabs_wanted(const slabs_t* slabs, int size_class) noexcept nogil:
    cdef const size_class_t* group = &slabs.size_class[size_class]
    cdef size_t used = group.size * group.slots_used        # doubles what the class holds
    cdef size_t least = group.size * 8
    return max(min(max(used, least), <size_t>SLAB_BYTES_MAX), group.size)


cdef uint32_t slabs_make(slabs_t* slabs, int size_class, size_t offset, size_t nbytes, uint32_t block) noexcept nogil:
    cdef uint32_t index = slabs.spare if slabs.spare != NO_SLAB else slabs.made
    cdef size_class_t* group = &slabs.size_class[size_class]
    cdef slab_t* slab
    cdef size_t slots = nbytes // group.size, words = (slots + 63) // 64
    if not host_grow(<void**>&slabs.slab, sizeof(slab_t), &slabs.capacity, index + 1):
        return NO_SLAB
    slab = &slabs.slab[index]
    slab.live = <uint64_t*>calloc(1, words * sizeof(uint64_t) + slots * sizeof(uint32_t))
    if slab.live == NULL:
        return NO_SLAB
    if index == slabs.made:
        slabs.made += 1
    else:
        slabs.spare = slab.next
    slab.slot = <uint32_t*>(slab.live + words)
    slab.offset = offset
    slab.bytes = <uint32_t>nbytes
    slab.size_class = size_class
    slab.slots = <uint32_t>slots
    slab.used = 0
    slab.free = NO_SLOT
    slab.fresh = 0
    slab.block = block
    slab.colour = next_colour(slabs, nbytes - slots * group.size)
    class_cover(group, nbytes)
    group.slabs += 1
    group.empty = index         # its class had no free slot, so no empty slab either
    list_push(slabs, index, SLAB_PARTIAL)
    return index


cdef void slabs_unmake(slabs_t* slabs, uint32_t index) noexcept nogil:
    cdef slab_t* slab = &slabs.slab[index]
    cdef size_class_t* group = &slabs.size_class[slab.size_class]
    list_remove(slabs, index, slab_state(slab))
    group.slabs -= 1
    if group.empty == index:
        group.empty = NO_SLAB
    free(slab.live)
    slab.live = NULL
    slab.slots = 0
    slab.next = slabs.spare
    slabs.spare = index


cdef void slab_relist(slabs_t* slabs, uint32_t index, slab_list_t old, slab_list_t new) noexcept nogil:
    list_remove(slabs, index, old)
    list_push(slabs, index, new)


cdef inline slab_list_t slab_state(const slab_t* slab) noexcept nogil:
    return SLAB_FULL if slab.used == slab.slots else SLAB_PARTIAL


cdef void class_cover(size_class_t* group, size_t nbytes) noexcept nogil:
    """Make the reciprocal exact for offsets below `nbytes`.

    With r = ceil(2**shift / size), delta * r >> shift == delta // size for delta < D when D * size <= 2**shift
    (Granlund and Montgomery, PLDI 1994).
    """
    cdef int shift = log2_ceil(nbytes) + log2_ceil(group.size)
    if shift > group.shift:
        group.shift = shift
        group.reciprocal = ((<uint64_t>1 << shift) + group.size - 1) // group.size


cdef uint32_t next_colour(slabs_t* slabs, size_t slack) noexcept nogil:
    """Spread the first slots of successive slabs over the slack behind the last one."""
    cdef uint32_t colours = <uint32_t>(slack // COLOUR_STEP) + 1
    if not slabs.colouring:
        return 0
    slabs.colour_next += 1
    return slabs.colour_next % colours * COLOUR_STEP


cdef void list_push(slabs_t* slabs, uint32_t index, slab_list_t state) noexcept nogil:
    cdef slab_t* slab = &slabs.slab[index]
    cdef uint32_t* head = &slabs.size_class[slab.size_class].head[state]
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
        slabs.size_class[slab.size_class].head[state] = slab.next


cdef const char* slabs_check(const slabs_t* slabs) noexcept nogil:
    cdef int index
    cdef const char* broken
    for index in range(slabs.classes):
        broken = class_check(slabs, &slabs.size_class[index], index)
        if broken != NULL:
            return broken
    return NULL


cdef const char* class_check(const slabs_t* slabs, const size_class_t* group, uint32_t number) noexcept nogil:
    cdef size_t used = 0
    cdef uint32_t count = 0, at, prev
    cdef int state
    cdef const char* broken
    for state in range(SLAB_LISTS):
        at, prev = group.head[state], NO_SLAB
        while at != NO_SLAB:
            broken = slab_check(&slabs.slab[at], group, number, state, prev)
            if broken != NULL:
                return broken
            if slabs.slab[at].used == 0 and at != group.empty:
                return b"slab: an empty slab is not the one that its class names"
            used += slabs.slab[at].used
            count += 1
            if count > group.slabs:
                return b"slab: a list holds more slabs than its class"
            at, prev = slabs.slab[at].next, at
    if count != group.slabs or used != group.slots_used:
        return b"slab: the lists do not add up to the class"
    return NULL


cdef const char* slab_check(const slab_t* slab, const size_class_t* group, uint32_t number, int state,
                            uint32_t prev) noexcept nogil:
    cdef uint32_t live = 0, chain = 0, word, slot = slab.free
    if slab.size_class != number or slab_state(slab) != state or slab.prev != prev:
        return b"slab: on the wrong list"
    if slab.colour + slab.slots * group.size > slab.bytes:
        return b"slab: the slots do not fit"
    for word in range((slab.slots + 63) // 64):
        live += popcount64(slab.live[word])
    while slot != NO_SLOT:
        if slot >= slab.fresh or slot_is_live(slab, slot):
            return b"slab: a used slot is on the chain of free ones"
        chain += 1
        if chain > slab.slots:
            return b"slab: the chain of free slots has a cycle"
        slot = slab.slot[slot]
    if live != slab.used or live + chain != slab.fresh or slab.fresh > slab.slots:
        return b"slab: slots used + slots free != slots"
    return NULL
