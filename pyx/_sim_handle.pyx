"""Handles of simulated streams, events, graphs and memory: unique in the process while they live, reused afterwards."""

from libc.stdint cimport uint32_t
from libc.stdlib cimport realloc
from libc.string cimport memset

cdef enum:
    STEP = 64                       # between two handles of a kind; they look like addresses

# items[0 .. count) of `room`: NULL is a free slot; unused[0 .. free) are the free slots, the latest last.
#   free == number of NULL among items[0 .. count)
ctypedef struct table_t:
    uint64_t base
    void** items
    uint32_t* unused
    uint32_t count
    uint32_t free
    uint32_t room

cdef table_t tables[HANDLE_KINDS]
memset(tables, 0, sizeof(tables))
tables[HANDLE_STREAM].base = 0x5700000000
tables[HANDLE_EVENT].base = 0xE700000000
tables[HANDLE_GRAPH].base = 0x6700000000
tables[HANDLE_MEMORY].base = 0xAE00000000


cdef uint64_t handle_add(int kind, void* item) noexcept nogil:
    """Give `item` a handle."""
    cdef table_t* table = &tables[kind]
    cdef uint32_t slot = table.count
    if table.free > 0:
        table.free -= 1
        slot = table.unused[table.free]
    elif not table_reserve(table):
        return 0
    else:
        table.count += 1
    table.items[slot] = item
    return table.base + <uint64_t>slot * STEP


cdef void* handle_get(int kind, uint64_t handle) noexcept nogil:
    return tables[kind].items[slot_of(kind, handle)] if handle_was_used(kind, handle) else NULL


cdef void handle_remove(int kind, uint64_t handle) noexcept nogil:
    """Take back the handle of something alive."""
    cdef table_t* table = &tables[kind]
    cdef uint32_t slot = slot_of(kind, handle)
    table.items[slot] = NULL
    table.unused[table.free] = slot
    table.free += 1


cdef bint handle_was_used(int kind, uint64_t handle) noexcept nogil:
    cdef uint64_t distance = handle - tables[kind].base
    return distance % STEP == 0 and distance // STEP < tables[kind].count


cdef uint32_t slot_of(int kind, uint64_t handle) noexcept nogil:
    return <uint32_t>((handle - tables[kind].base) // STEP)


cdef bint table_reserve(table_t* table) noexcept nogil:
    """Make room for one more item."""
    cdef uint32_t room = 2 * table.room if table.room > 0 else 64
    cdef void* moved
    if table.count < table.room:
        return True
    moved = realloc(table.items, room * sizeof(void*))
    if moved is NULL:
        return False
    table.items = <void**>moved
    moved = realloc(table.unused, room * sizeof(uint32_t))
    if moved is NULL:
        return False
    table.unused = <uint32_t*>moved
    table.room = room
    return True
