"""Blocks that are freed and held: their reuse waits for several streams, or their slab is another stream's."""

from libc.stdint cimport uint32_t
from libc.stdlib cimport free
from libc.string cimport memset

from cuda_pool._hostmem cimport host_grow
from cuda_pool._owner cimport OWNERS, owner_t, owners_has, view_allows
from cuda_pool._relaxed cimport set_size


cdef void helds_init(helds_t* helds) noexcept nogil:
    memset(helds, 0, sizeof(helds_t))
    helds.made = 1              # record 0 is NO_HELD


cdef void helds_destroy(helds_t* helds) noexcept nogil:
    free(helds.held)
    helds.held = NULL


cdef int helds_reserve(helds_t* helds) noexcept nogil:
    if helds.spare != NO_HELD:
        return 1
    return host_grow(<void**>&helds.held, sizeof(held_t), &helds.capacity, helds.made + 1)


cdef void helds_add(helds_t* helds, const place_t* place, const owners_t* owners, uint32_t batch,
                    uint32_t* head) noexcept nogil:
    cdef uint32_t index = helds.spare
    cdef held_t* held
    if index == NO_HELD:
        index = helds.made
        helds.made += 1
    else:
        helds.spare = helds.held[index].next
    held = &helds.held[index]
    held.place = place[0]
    held.owners = owners[0]
    held.batch = batch
    held.head = head
    held.prev = NO_HELD
    held.next = head[0]
    if head[0] != NO_HELD:
        helds.held[head[0]].prev = index
    head[0] = index
    set_size(&helds.bytes, helds.bytes + place.used)


cdef void helds_remove(helds_t* helds, uint32_t index) noexcept nogil:
    cdef held_t* held = &helds.held[index]
    if held.next != NO_HELD:
        helds.held[held.next].prev = held.prev
    if held.prev != NO_HELD:
        helds.held[held.prev].next = held.next
    else:
        held.head[0] = held.next
    set_size(&helds.bytes, helds.bytes - held.place.used)
    held.head = NULL
    held.next = helds.spare
    helds.spare = index


cdef bint owners_allowed(const owners_t* owners, uint32_t batch, const view_t* view) noexcept nogil:
    cdef int owner
    for owner in range(OWNERS):
        if owners_has(owners, <owner_t>owner) and not view_allows(view, <owner_t>owner, batch):
            return False
    return True


cdef const char* helds_check(const helds_t* helds) noexcept nogil:
    cdef size_t total = 0
    cdef const held_t* held
    cdef uint32_t index
    for index in range(1, helds.made):
        held = &helds.held[index]
        if held.head == NULL:
            continue
        total += held.place.used
        if held.prev == NO_HELD and held.head[0] != index:
            return b"held: a record is not at the head of its list"
        if held.prev != NO_HELD and helds.held[held.prev].next != index:
            return b"held: a list is broken"
    if total != helds.bytes:
        return b"held: bytes differ from the sum of the records"
    return NULL
