"""Read a trace from the CSV log of RMM's logging_resource_adaptor.

The log names blocks by address, and addresses come back: an allocation is a new block, and a free is about the latest
block at its address.
"""

from libc.stdint cimport UINT64_MAX, uint32_t, uint64_t
from libc.stdlib cimport free

from cuda_pool._idmap cimport ID_NONE, id_map_clear, id_map_init, id_map_slot, id_map_t, keys_t
from cuda_pool._text cimport span_hex, span_is, span_number, span_split, span_t
from cuda_pool._trace cimport (
    BLOCK_LIVE, BYTES_MAX, EVENT_ALLOC, EVENT_FREE, FAULT_EVENT, FAULT_FIELDS, FAULT_HOST_MEMORY, FAULT_NONE,
    FAULT_POINTER, FAULT_SIZE, FAULT_STREAM, FAULT_TIME, builder_t, builder_take, event_t, fault_t, room_for, trace_t,
)
from cuda_pool._trace_text cimport TextParser, text_t

from cuda_pool._trace_text import words_of

HEADER = "Thread,Time,Action,Pointer,Size,Stream"
cdef const char* HEADER_TEXT = b"Thread,Time,Action,Pointer,Size,Stream"

# addresses[i] is that of block i; an address leads to the latest block there.
ctypedef struct rmm_t:
    id_map_t latest
    uint64_t* addresses
    size_t address_room
    uint64_t failures
    uint64_t lost_frees


cdef class RmmParser(TextParser):
    """Turn pieces of an RMM log into a trace; see `TextParser`. Blocks are numbered in the order of appearance."""

    cdef rmm_t rmm

    def __cinit__(self, *args, **kwargs):
        id_map_init(&self.rmm.latest)
        self.text.header = HEADER_TEXT
        self.text.line_take = rmm_take
        self.text.format = &self.rmm
        self.words = WORDS

    def __dealloc__(self):
        id_map_clear(&self.rmm.latest)
        free(self.rmm.addresses)

    cdef trace_t give(self) noexcept:
        id_map_clear(&self.rmm.latest)
        self.rmm.failures = self.rmm.lost_frees = 0
        return TextParser.give(self)

    @property
    def failures(self):
        """Rows of allocations that failed, which are no events."""
        return self.rmm.failures

    @property
    def lost_frees(self):
        """Frees that the log lacks: an address was handed out again, so that its block was taken for freed."""
        return self.rmm.lost_frees


WORDS = {**words_of("an RMM log", HEADER), "events": "allocate, allocate failure or free",
         "streams": f"an integer from 0 to {UINT64_MAX}, or 0x and hexadecimal digits"}


cdef fault_t rmm_take(text_t* text, span_t line, span_t* culprit) noexcept nogil:
    cdef span_t[6] fields
    cdef event_t event
    cdef uint64_t address
    cdef rmm_t* rmm = <rmm_t*>text.format
    if not span_split(line, fields, 6):
        return FAULT_FIELDS
    culprit[0] = fields[1]
    if not is_time(fields[1]):
        return FAULT_TIME
    culprit[0] = fields[2]
    if span_is(fields[2], b"allocate failure", 16):
        rmm.failures += 1
        return FAULT_NONE
    event.kind = EVENT_ALLOC if span_is(fields[2], b"allocate", 8) else EVENT_FREE
    if event.kind == EVENT_FREE and not span_is(fields[2], b"free", 4):
        return FAULT_EVENT
    culprit[0] = fields[3]
    if not is_null(fields[3], &address) and not span_hex(fields[3], &address):
        return FAULT_POINTER
    culprit[0] = fields[4]
    if not span_number(fields[4], BYTES_MAX, &event.size):
        return FAULT_SIZE
    culprit[0] = fields[5]
    if not stream_read(fields[5], &event.stream):
        return FAULT_STREAM
    event.row = text.builder.row
    return event_place(rmm, text.builder, &event, address)


cdef fault_t event_place(rmm_t* rmm, builder_t* builder, event_t* event, uint64_t address) noexcept nogil:
    """Find the block of an event, and take it over."""
    cdef trace_t* trace = &builder.trace
    cdef uint32_t* slot
    cdef fault_t fault = FAULT_NONE
    if not room_for(<void**>&rmm.addresses, trace.block_count, &rmm.address_room, sizeof(uint64_t)):
        return FAULT_HOST_MEMORY
    slot = id_map_slot(&rmm.latest, keys_t(rmm.addresses, sizeof(uint64_t)), trace.block_count, address)
    if slot == NULL:
        return FAULT_HOST_MEMORY
    if event.kind == EVENT_ALLOC and slot[0] != ID_NONE:
        if address != 0 and trace.blocks[slot[0]].state == BLOCK_LIVE:
            rmm.lost_frees += 1
            fault = implied_free(builder, event, slot[0])
        slot[0] = ID_NONE
    if slot[0] == ID_NONE:
        slot[0] = <uint32_t>trace.block_count
        rmm.addresses[trace.block_count] = address
    event.block = slot[0]
    return fault if fault != FAULT_NONE else builder_take(builder, event, event.block)


cdef fault_t implied_free(builder_t* builder, const event_t* event, uint32_t block) noexcept nogil:
    """Free a block whose address was handed out again."""
    cdef event_t missing = event[0]
    missing.kind = EVENT_FREE
    missing.block = block
    missing.size = builder.trace.blocks[block].size
    return builder_take(builder, &missing, block)


cdef bint is_time(span_t field) noexcept nogil:
    cdef size_t i
    cdef char letter
    for i in range(field.length):
        letter = field.text[i]
        if not (c"0" <= letter <= c"9" or letter == c":" or letter == c"."):
            return False
    return field.length > 0


cdef bint is_null(span_t field, uint64_t* address) noexcept nogil:
    """Is it how C writes a pointer to nothing?"""
    address[0] = 0
    return span_is(field, b"(nil)", 5)


cdef bint stream_read(span_t field, uint64_t* stream) noexcept nogil:
    if is_null(field, stream):
        return True
    if field.length > 2 and field.text[0] == c"0" and field.text[1] == c"x":
        return span_hex(field, stream)
    return span_number(field, UINT64_MAX, stream)
