"""Find the blocks that are live all the time: they are live in the end, and no entry of the trace is about them."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from cuda_pool._idmap cimport ID_NONE, id_map_clear, id_map_init, id_map_slot, id_map_t, keys_t
from cuda_pool._rows cimport rows_pass, rows_release, rows_t
from cuda_pool._torch_entries cimport ACTION_FREE_COMPLETED, Entries, entry_at, entry_t
from cuda_pool._torch_segments cimport STATE_INACTIVE, Segments, block_at, segment_at, torch_block_t, torch_segment_t
from cuda_pool._trace cimport (
    EVENT_LIVE, FAULT_HOST_MEMORY, FAULT_NONE, TraceBuilder, builder_t, builder_take, event_t, fault_t, room_for)

# The blocks of a device that are live in the end, in the order of the file; addresses[i] is that of block i, and leads
# to i by `numbers`. They are not needed if there is no entry.
#   is_touched[i]: an entry is about block i
ctypedef struct standing_t:
    size_t count
    uint64_t* addresses
    size_t address_room
    uint8_t* is_touched
    size_t touched_room
    id_map_t numbers


def take_standing(Segments segments not None, int device, Entries entries not None, TraceBuilder builder not None):
    """Hand the blocks of a device that are live all the time over to a `TraceBuilder`, which has nothing so far.

    They are in row 0, and numbered in the order of the file. There are no segments in `segments` afterwards, so that no
    memory has both.

    Raises
    ------
    TraceError
        There are too many of them.
    MemoryError
        The host has no memory for them.
    """
    cdef standing_t standing
    cdef builder_t* filled = &builder.builder
    memset(&standing, 0, sizeof(standing))
    id_map_init(&standing.numbers)
    with nogil:
        filled.row = 0
        if entries.rows.count:
            filled.fault = standing_find(&standing, &segments.rows, &segments.blocks, device)
        if filled.fault == FAULT_NONE:
            filled.fault = standing_touch(&standing, &entries.rows)
        free(standing.addresses)
        id_map_clear(&standing.numbers)
        if filled.fault == FAULT_NONE:
            standing_take(&standing, &segments.rows, &segments.blocks, device, filled)
        rows_release(&segments.rows)
        rows_release(&segments.blocks)
        free(standing.is_touched)
    builder.refuse_fault()


cdef fault_t standing_find(standing_t* standing, const rows_t* segments, const rows_t* blocks,
                           uint32_t device) noexcept nogil:
    cdef fault_t fault = FAULT_NONE
    cdef size_t i
    for i in range(segments.count):
        if segment_at(segments, i).device == device and fault == FAULT_NONE:
            fault = segment_find(standing, segment_at(segments, i), blocks)
    return fault


cdef fault_t segment_find(standing_t* standing, const torch_segment_t* segment, const rows_t* blocks) noexcept nogil:
    cdef uint64_t address = segment.address
    cdef size_t i
    for i in range(segment.first, segment.first + segment.count):
        if block_at(blocks, i).state != STATE_INACTIVE and not block_find(standing, address):
            return FAULT_HOST_MEMORY
        address += block_at(blocks, i).size
    return FAULT_NONE


cdef bint block_find(standing_t* standing, uint64_t address) noexcept nogil:
    cdef uint32_t* slot
    if not (room_for(<void**>&standing.addresses, standing.count, &standing.address_room, sizeof(uint64_t))
            and room_for(<void**>&standing.is_touched, standing.count, &standing.touched_room, sizeof(uint8_t))):
        return False
    slot = id_map_slot(&standing.numbers, keys_t(standing.addresses, sizeof(uint64_t)), standing.count, address)
    if slot == NULL:
        return False
    slot[0] = <uint32_t>standing.count
    standing.addresses[standing.count] = address
    standing.is_touched[standing.count] = False
    standing.count += 1
    return True


cdef fault_t standing_touch(standing_t* standing, const rows_t* entries) noexcept nogil:
    cdef keys_t keys = keys_t(standing.addresses, sizeof(uint64_t))
    cdef const entry_t* entry
    cdef uint32_t* slot
    cdef size_t i
    for i in range(entries.count if standing.count else 0):
        entry = entry_at(entries, i)
        if entry.action <= ACTION_FREE_COMPLETED:
            slot = id_map_slot(&standing.numbers, keys, standing.count, entry.addr)
            if slot == NULL:
                return FAULT_HOST_MEMORY
            if slot[0] != ID_NONE:
                standing.is_touched[slot[0]] = True
    return FAULT_NONE


cdef void standing_take(const standing_t* standing, rows_t* segments, rows_t* blocks, uint32_t device,
                        builder_t* builder) noexcept nogil:
    """Take blocks over until there is a fault, which the builder has then."""
    cdef const torch_segment_t* segment
    cdef size_t i, number = 0
    for i in range(segments.count):
        rows_pass(segments, i)
        segment = segment_at(segments, i)
        if segment.device == device and builder.fault == FAULT_NONE:
            number = segment_take(standing, segment, blocks, number, builder)


cdef size_t segment_take(const standing_t* standing, const torch_segment_t* segment, rows_t* blocks, size_t number,
                         builder_t* builder) noexcept nogil:
    """Take the blocks of one segment over; return the number of the first one of the next."""
    cdef bint is_touched
    cdef size_t i
    for i in range(segment.first, segment.first + segment.count):
        rows_pass(blocks, i)
        if block_at(blocks, i).state == STATE_INACTIVE:
            continue
        is_touched = standing.is_touched != NULL and standing.is_touched[number]
        if not is_touched and builder.fault == FAULT_NONE:
            builder.fault = block_take(block_at(blocks, i), segment.stream, builder)
        number += 1
    return number


cdef fault_t block_take(const torch_block_t* block, uint64_t stream, builder_t* builder) noexcept nogil:
    cdef event_t event
    event.kind, event.row, event.stream = EVENT_LIVE, 0, stream
    event.size = block.requested if block.requested else block.size
    event.block = <uint32_t>builder.trace.block_count
    return builder_take(builder, &event, event.block)
