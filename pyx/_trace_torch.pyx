"""Make the events of a trace out of a snapshot's entries.

Entries name blocks by address, and addresses come back: an allocation is a new block, and a free is about the latest
block at its address.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free

from cuda_pool._idmap cimport ID_NONE, id_map_clear, id_map_init, id_map_slot, id_map_t, keys_t
from cuda_pool._rows cimport rows_pass, rows_release, rows_t
from cuda_pool._torch_entries cimport (
    ACTION_ALLOC, ACTION_FREE_COMPLETED, ACTION_FREE_REQUESTED, Entries, entry_at, entry_t)
from cuda_pool._trace cimport (
    BLOCK_LIVE, EVENT_ALLOC, EVENT_FREE, FAULT_HOST_MEMORY, FAULT_NONE, TraceBuilder, builder_t, builder_take, event_t,
    fault_t, room_for)

# Blocks are counted from `first`, which is the number of those that the entries do not tell of. addresses[i] is that of
# block i; an address leads to the latest block there.
#   is_pending[i]: the free of block i was requested and is not completed
ctypedef struct places_t:
    size_t first
    id_map_t latest
    uint64_t* addresses
    size_t address_room
    uint8_t* is_pending
    size_t pending_room
    uint64_t lost_frees


cdef class EntryTaker:
    """Hand the entries of a trace over to a `TraceBuilder`; it belongs to one thread.

    A block is freed when the program says so (``free_requested``), or when the memory is free again if only that
    (``free_completed``) is in the trace. The row of an event is the number of its entry, from 1.

    Parameters
    ----------
    builder : TraceBuilder
        What it has so far stays in front; from then on only this object adds to it.
    """

    cdef TraceBuilder builder
    cdef places_t places

    def __cinit__(self, TraceBuilder builder not None):
        self.builder = builder
        self.places.first = builder.builder.trace.block_count
        id_map_init(&self.places.latest)

    def __dealloc__(self):
        id_map_clear(&self.places.latest)
        free(self.places.addresses)
        free(self.places.is_pending)

    @property
    def lost_frees(self):
        """Frees that the trace lacks: an address was handed out again, so that its block was taken for freed."""
        return self.places.lost_frees

    def take(self, Entries entries not None):
        """Take the entries of a whole trace; there are none in `entries` afterwards, so that no memory has both.

        Raises
        ------
        TraceError
            There are too many events; `row` is that of the entry.
        MemoryError
            The host has no memory for the events.
        """
        cdef builder_t* builder = &self.builder.builder
        with nogil:
            places_take(&self.places, builder, &entries.rows)
            rows_release(&entries.rows)
        self.builder.refuse_fault()


cdef void places_take(places_t* places, builder_t* builder, rows_t* entries) noexcept nogil:
    """Take entries over until there is a fault, which the builder has then."""
    cdef const entry_t* entry
    cdef size_t i
    for i in range(entries.count):
        rows_pass(entries, i)
        entry = entry_at(entries, i)
        if entry.action > ACTION_FREE_COMPLETED:
            continue
        builder.row = i + 1
        builder.fault = entry_take(places, builder, entry)
        if builder.fault != FAULT_NONE:
            return


cdef fault_t entry_take(places_t* places, builder_t* builder, const entry_t* entry) noexcept nogil:
    cdef uint32_t* slot = place_find(places, builder, entry.addr)
    if slot == NULL:
        return FAULT_HOST_MEMORY
    if entry.action == ACTION_ALLOC:
        return alloc_take(places, builder, entry, slot)
    if entry.action == ACTION_FREE_COMPLETED and slot[0] != ID_NONE and places.is_pending[slot[0]]:
        places.is_pending[slot[0]] = False
        return FAULT_NONE
    if slot[0] == ID_NONE:              # it was there before the first entry
        block_begin(places, builder, entry, slot)
    places.is_pending[slot[0]] = entry.action == ACTION_FREE_REQUESTED
    return event_take(builder, EVENT_FREE, places.first + slot[0], entry.size, entry.stream)


cdef fault_t alloc_take(places_t* places, builder_t* builder, const entry_t* entry, uint32_t* slot) noexcept nogil:
    """Put a new block at an address. If there is a live one, the memory was handed out again: its free is missing."""
    cdef size_t last = places.first + slot[0]
    cdef fault_t fault = FAULT_NONE
    if slot[0] != ID_NONE and builder.trace.blocks[last].state == BLOCK_LIVE:
        places.lost_frees += 1
        fault = event_take(builder, EVENT_FREE, last, builder.trace.blocks[last].size, entry.stream)
    block_begin(places, builder, entry, slot)
    if fault == FAULT_NONE:
        fault = event_take(builder, EVENT_ALLOC, places.first + slot[0], entry.size, entry.stream)
    return fault


cdef uint32_t* place_find(places_t* places, builder_t* builder, uint64_t address) noexcept nogil:
    """The slot of the latest block at an address, or an empty one; NULL without host memory for one block more."""
    cdef size_t count = builder.trace.block_count - places.first
    if not (room_for(<void**>&places.addresses, count, &places.address_room, sizeof(uint64_t))
            and room_for(<void**>&places.is_pending, count, &places.pending_room, sizeof(uint8_t))):
        return NULL
    return id_map_slot(&places.latest, keys_t(places.addresses, sizeof(uint64_t)), count, address)


cdef void block_begin(places_t* places, builder_t* builder, const entry_t* entry, uint32_t* slot) noexcept nogil:
    slot[0] = <uint32_t>(builder.trace.block_count - places.first)
    places.addresses[slot[0]] = entry.addr
    places.is_pending[slot[0]] = False


cdef fault_t event_take(builder_t* builder, int kind, size_t block, uint64_t size, uint64_t stream) noexcept nogil:
    cdef event_t event
    event.kind, event.block, event.size, event.stream, event.row = kind, <uint32_t>block, size, stream, builder.row
    return builder_take(builder, &event, block)
