"""Read the events of a trace from CSV text, piece by piece, without the GIL.

A trace has the header ``event,id,size,stream`` and one event a row. Blanks around a field, carriage returns and empty
lines are tolerated. Ids are looked up in an open-addressing hash table, so they may be any 64-bit numbers in any order;
its hash is seeded, so that no trace can be made to fill it badly.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport UINT64_MAX, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memset

import operator
import os

import numpy as np

from cuda_pool._trace cimport (
    BLOCK_FREED, BLOCK_LIVE, BLOCK_PREEXISTING, BLOCK_STRAY, EVENT_ALLOC, EVENT_FREE, EVENT_ORPHAN,
    block_t, event_t, trace_t,
)

from cuda_pool.errors import TraceError
from cuda_pool.sizes import is_index, shown as shown_value

EVENTS_MAX = 20_000_000     # 1.5 GB if every event is about a block of its own

cdef enum:
    FIELDS = 4
    LINE_MAX = 4096         # bytes; bounds what is carried from one piece to the next

cdef const uint32_t NIL = 0xFFFFFFFF
cdef const uint64_t SIZE_MAX = 0x7FFFFFFFFFFFFFFF

cdef enum fault_t:
    FAULT_NONE = 0
    FAULT_HEADER
    FAULT_FIELDS
    FAULT_EVENT
    FAULT_ID
    FAULT_SIZE
    FAULT_STREAM
    FAULT_TWICE
    FAULT_LINE
    FAULT_LIVE
    FAULT_BLOCKS
    FAULT_EVENTS
    FAULT_HOST_MEMORY

ctypedef struct span_t:
    const char* text
    size_t length

# Block indices by id, with linear probing. A slot holds NIL or an index into the trace's blocks.
#   slots in use == blocks of the trace <= slot_count / 2; slot_count is 0 or a power of two
ctypedef struct id_map_t:
    uint32_t* slots
    size_t slot_count
    uint64_t seed           # of the hash; unknown to whoever wrote the trace
    uint64_t factor         # another one, odd

ctypedef struct parser_t:
    trace_t trace
    id_map_t ids
    size_t event_max
    uint64_t row            # rows taken so far; of the row at fault once there is a fault
    fault_t fault
    span_t culprit          # the text at fault, inside the piece that was being read then


cdef class TraceParser:
    """Turn pieces of CSV text into a trace.

    Feed it every piece in order, then give it to `TraceTable`, which takes the events over. It belongs to one thread.

    Parameters
    ----------
    max_events : int
        From 0 to 2**63 - 1; the row of one event more is refused.

    Raises
    ------
    ValueError, TypeError
        `max_events` is no such integer.
    """

    cdef parser_t parser
    cdef bytes carry        # the beginning of a line that the pieces so far do not end
    cdef bytes culprit      # a copy of parser.culprit, once there is a fault: the piece does not stay

    def __cinit__(self, max_events=EVENTS_MAX):
        self.carry = b""
        self.parser.event_max = event_limit(max_events)
        self.parser.ids.seed = int.from_bytes(os.urandom(8), "little")
        self.parser.ids.factor = int.from_bytes(os.urandom(8), "little") | 1

    def __dealloc__(self):
        trace_release(&self.parser.trace)
        free(self.parser.ids.slots)

    @property
    def row(self):
        """Number of the row that is read next, counted from 1."""
        return self.parser.row + 1

    def feed(self, bytes piece not None):
        """Read the next piece of text.

        Parameters
        ----------
        piece : bytes
            Any length; its last line may go on in the next piece.

        Raises
        ------
        TraceError
            A row is malformed, or allocates an id for the second time. The parser is of no further use: whatever is
            asked of it raises the same error again.
        MemoryError
            The host has no memory for the events; the same holds then.
        """
        cdef bytes text = self.carry + piece
        cdef const char* start = text
        cdef size_t length = len(text), taken
        with nogil:
            taken = lines_take(&self.parser, start, length)
        self.refuse_fault()
        self.carry = text[taken:]
        if len(self.carry) > LINE_MAX:
            self.parser.row += 1
            fault_set(&self.parser, FAULT_LINE, span_t(NULL, 0))
            self.refuse_fault()

    cdef int finish(self) except -1:
        """Read the last line, ended or not, and settle what depends on the whole trace."""
        if self.parser.row == 0 and not self.carry:
            raise TraceError(1, f"the file is empty: {HEADER_REASON}")
        self.feed(b"\n")
        with nogil:
            trace_settle(&self.parser)
        return self.refuse_fault()

    cdef int refuse_fault(self) except -1:
        """Raise what is wrong, if anything is."""
        if self.parser.fault == FAULT_NONE:
            return 0
        if self.culprit is None:
            self.culprit = self.parser.culprit.text[:self.parser.culprit.length]
        return fault_raise(&self.parser, self.culprit)

    cdef trace_t give(self) noexcept:
        """Hand the trace over and be a new parser."""
        cdef trace_t trace = self.parser.trace
        parser_renew(&self.parser)
        self.carry = b""
        return trace


cdef class TraceTable:
    """The events of a trace, in program order. Immutable, and safe to read from several threads.

    Parameters
    ----------
    parser : TraceParser
        What has read every piece; it is as new afterwards.

    Raises
    ------
    TraceError
        The text ends too early, or more than 2**63 - 1 bytes are live at once.
    """

    def __cinit__(self, TraceParser parser not None):
        parser.finish()
        self.trace = parser.give()

    def __dealloc__(self):
        trace_release(&self.trace)

    def __getbuffer__(self, Py_buffer* view, int flags):
        # The events as read-only bytes; numpy's view of them keeps this object alive.
        PyBuffer_FillInfo(view, self, self.trace.events, self.trace.event_count * sizeof(event_t), True, flags)

    def __len__(self):
        return self.trace.event_count

    @property
    def events(self):
        """Number of events."""
        return self.trace.event_count

    @property
    def blocks(self):
        """Number of different ids."""
        return self.trace.block_count

    @property
    def orphan_frees(self):
        """Frees without a preceding allocation in the trace, a second free of one allocation included."""
        return self.trace.orphan_frees

    @property
    def preexisting(self):
        """Blocks that are live before the first event: freed in the trace, with a size above 0, and never allocated.

        The first free of such a block counts as an orphan free too, but a replay allocates the block beforehand
        and frees it there, so that it takes its place as it did when the trace was recorded.
        """
        return self.trace.preexisting

    @property
    def preexisting_bytes(self):
        """Sizes of the preexisting blocks, summed, in bytes."""
        return self.trace.preexisting_bytes

    @property
    def peak_live(self):
        """Highest sum of the requested sizes of live blocks, in bytes; preexisting blocks count."""
        return self.trace.peak_live

    @property
    def is_free(self):
        """True for every event that is a free; a numpy array."""
        return self._events()["kind"] != EVENT_ALLOC

    @property
    def is_orphan(self):
        """True for every free that a replay skips because its block is not live; a numpy array."""
        return self._events()["kind"] == EVENT_ORPHAN

    @property
    def block(self):
        """Index of the block of every event, in order of first appearance; a read-only uint32 array."""
        return self._events()["block"]

    @property
    def size(self):
        """Size of every event as its row states it, in bytes; a read-only uint64 array."""
        return self._events()["size"]

    @property
    def stream(self):
        """Stream of every event; a read-only uint64 array."""
        return self._events()["stream"]

    @property
    def row(self):
        """Row of every event in the file, the header being row 1; a read-only uint64 array."""
        return self._events()["row"]

    @property
    def id(self):
        """Id of the block of every event; a uint64 array."""
        ids = np.empty(self.trace.block_count, np.uint64)
        cdef uint64_t[::1] each = ids
        cdef size_t index
        for index in range(self.trace.block_count):
            each[index] = self.trace.blocks[index].id
        return ids[self.block]

    def _events(self):
        return np.frombuffer(self, EVENT) if self.trace.event_count else np.empty(0, EVENT)


EVENT = np.dtype([("size", "u8"), ("stream", "u8"), ("row", "u8"), ("block", "u4"), ("kind", "u4")])


def event_limit(max_events):
    """Return the limit as an int, or raise what is wrong with it."""
    if not is_index(max_events):
        raise TypeError(f"max_events is an integer from 0 to {SIZE_MAX}, got {shown_value(max_events)}")
    if not 0 <= max_events <= SIZE_MAX:
        raise ValueError(f"max_events is from 0 to {SIZE_MAX}, got {shown_value(max_events)}")
    return operator.index(max_events)


cdef void parser_renew(parser_t* parser) noexcept nogil:
    """Forget what was read; the trace belongs to someone else now."""
    free(parser.ids.slots)
    parser.ids.slots = NULL
    parser.ids.slot_count = 0
    memset(&parser.trace, 0, sizeof(trace_t))
    parser.row = 0
    parser.fault = FAULT_NONE
    parser.culprit = span_t(NULL, 0)


cdef size_t lines_take(parser_t* parser, const char* text, size_t length) noexcept nogil:
    """Read every line that ends in `text`; return the bytes they take. Stops at the first fault."""
    cdef size_t taken = 0
    cdef const char* end
    while parser.fault == FAULT_NONE:
        end = <const char*>memchr(text + taken, b"\n", length - taken)
        if end == NULL:
            break
        parser.row += 1
        line_take(parser, span_t(text + taken, end - (text + taken)))
        taken = end + 1 - text
    return taken


cdef void line_take(parser_t* parser, span_t line) noexcept nogil:
    cdef span_t[FIELDS] fields
    if line.length > LINE_MAX:
        fault_set(parser, FAULT_LINE, line)
        return
    span_trim(&line)
    if parser.row > 1 and line.length == 0:
        return
    cdef bint complete = line_split(line, fields)
    if parser.row == 1:
        if not complete or not header_is_right(fields):
            fault_set(parser, FAULT_HEADER, line)
    elif not complete:
        fault_set(parser, FAULT_FIELDS, line)
    else:
        fields_take(parser, fields)


cdef void fields_take(parser_t* parser, span_t* fields) noexcept nogil:
    cdef event_t event
    cdef uint64_t ident
    cdef bint is_free = span_is(fields[0], b"free", 4)
    if not is_free and not span_is(fields[0], b"alloc", 5):
        fault_set(parser, FAULT_EVENT, fields[0])
    elif not span_number(fields[1], UINT64_MAX, &ident):
        fault_set(parser, FAULT_ID, fields[1])
    elif not size_read(fields[2], is_free, &event.size):
        fault_set(parser, FAULT_SIZE, fields[2])
    elif not span_number(fields[3], UINT64_MAX, &event.stream):
        fault_set(parser, FAULT_STREAM, fields[3])
    else:
        event.row = parser.row
        event.kind = EVENT_FREE if is_free else EVENT_ALLOC
        event_take(parser, &event, ident, fields[1])


cdef void event_take(parser_t* parser, event_t* event, uint64_t ident, span_t culprit) noexcept nogil:
    cdef trace_t* trace = &parser.trace
    cdef uint32_t known = <uint32_t>trace.block_count
    cdef fault_t fault = FAULT_EVENTS if trace.event_count >= parser.event_max else trace_reserve(trace)
    if fault == FAULT_NONE:
        fault = id_map_find(&parser.ids, trace, ident, &event.block)
    if fault == FAULT_NONE and event.block == known:
        trace.blocks[known] = block_t(ident, event.size, BLOCK_STRAY)
        trace.block_count += 1
    if fault == FAULT_NONE:
        fault = block_turn(trace, &trace.blocks[event.block], event, event.block == known)
    if fault != FAULT_NONE:
        fault_set(parser, fault, culprit)
        return
    trace.events[trace.event_count] = event[0]
    trace.event_count += 1


cdef fault_t block_turn(trace_t* trace, block_t* block, event_t* event, bint is_new) noexcept nogil:
    """Carry the block over into the state after the event."""
    if event.kind == EVENT_ALLOC:
        if block.state != BLOCK_STRAY:
            return FAULT_TWICE
        block.state = BLOCK_LIVE
        block.size = event.size
    elif block.state == BLOCK_LIVE:
        block.state = BLOCK_FREED
    else:
        event.kind = EVENT_ORPHAN
        trace.orphan_frees += 1
    return FAULT_NONE


cdef void trace_settle(parser_t* parser) noexcept nogil:
    """Find the preexisting blocks, which shows only at the end, and then the peak."""
    cdef trace_t* trace = &parser.trace
    cdef block_t* block
    cdef event_t* event
    cdef size_t i
    for i in range(trace.event_count):
        event = &trace.events[i]
        block = &trace.blocks[event.block]
        if block.state == BLOCK_STRAY and block.size > 0:
            block.state = BLOCK_PREEXISTING
            event.kind = EVENT_FREE
            trace.preexisting += 1
            trace.preexisting_bytes += block.size
            if trace.preexisting_bytes > SIZE_MAX:
                live_fault(parser, event)
                return
    trace_measure(parser)


cdef void trace_measure(parser_t* parser) noexcept nogil:
    cdef trace_t* trace = &parser.trace
    cdef uint64_t live = trace.preexisting_bytes
    cdef event_t* event
    cdef size_t i
    trace.peak_live = live
    for i in range(trace.event_count):
        event = &trace.events[i]
        if event.kind == EVENT_ALLOC:
            live += event.size
            if live > SIZE_MAX:
                live_fault(parser, event)
                return
            trace.peak_live = max(trace.peak_live, live)
        elif event.kind == EVENT_FREE:
            live -= trace.blocks[event.block].size


cdef fault_t trace_reserve(trace_t* trace) noexcept nogil:
    """Make room for one more event and one more block."""
    if trace.block_count >= NIL:
        return FAULT_BLOCKS
    if not room_for(<void**>&trace.events, trace.event_count, &trace.event_room, sizeof(event_t)):
        return FAULT_HOST_MEMORY
    if not room_for(<void**>&trace.blocks, trace.block_count, &trace.block_room, sizeof(block_t)):
        return FAULT_HOST_MEMORY
    return FAULT_NONE


cdef bint room_for(void** items, size_t count, size_t* room, size_t width) noexcept nogil:
    """Let an array hold one more item; False when there is no host memory for it."""
    if count < room[0]:
        return True
    cdef size_t wanted = room[0] * 2 if room[0] else 1024
    cdef void* moved = realloc(items[0], wanted * width)
    if moved == NULL:
        return False
    items[0] = moved
    room[0] = wanted
    return True


cdef void trace_release(trace_t* trace) noexcept nogil:
    free(trace.events)
    free(trace.blocks)


cdef fault_t id_map_find(id_map_t* ids, const trace_t* trace, uint64_t ident, uint32_t* block) noexcept nogil:
    """Give the block of an id; a new id gets the next free index."""
    if 2 * (trace.block_count + 1) > ids.slot_count and not id_map_grow(ids, trace):
        return FAULT_HOST_MEMORY
    cdef uint32_t* slot = id_map_slot(ids, trace, ident)
    if slot[0] == NIL:
        slot[0] = <uint32_t>trace.block_count
    block[0] = slot[0]
    return FAULT_NONE


cdef bint id_map_grow(id_map_t* ids, const trace_t* trace) noexcept nogil:
    cdef size_t count = ids.slot_count * 2 if ids.slot_count else 2048
    cdef uint32_t* slots = <uint32_t*>malloc(count * sizeof(uint32_t))
    cdef uint32_t index
    if slots == NULL:
        return False
    memset(slots, 0xFF, count * sizeof(uint32_t))
    free(ids.slots)
    ids.slots = slots
    ids.slot_count = count
    for index in range(<uint32_t>trace.block_count):
        id_map_slot(ids, trace, trace.blocks[index].id)[0] = index
    return True


cdef uint32_t* id_map_slot(const id_map_t* ids, const trace_t* trace, uint64_t ident) noexcept nogil:
    """Return the slot of an id: the one that holds it, or the empty one where it belongs."""
    cdef size_t mask = ids.slot_count - 1
    cdef size_t position = hashed(ids, ident) & mask
    while ids.slots[position] != NIL and trace.blocks[ids.slots[position]].id != ident:
        position = (position + 1) & mask
    return &ids.slots[position]


cdef inline uint64_t hashed(const id_map_t* ids, uint64_t key) noexcept nogil:
    # Addresses share their low bits and counters their high ones: every bit has to reach every other.
    # Without a secret, ids could be chosen to share a slot, and reading would take the square of their number.
    key ^= ids.seed
    key = (key ^ (key >> 32)) * ids.factor
    key = (key ^ (key >> 32)) * <uint64_t>0xD6E8FEB86659FD93
    return key ^ (key >> 32)


cdef bint line_split(span_t line, span_t* fields) noexcept nogil:
    """Cut a line at its commas and trim the fields; False unless there are exactly four."""
    cdef const char* end = line.text + line.length
    cdef const char* comma
    cdef int i
    for i in range(FIELDS):
        comma = <const char*>memchr(line.text, b",", end - line.text)
        if (comma == NULL) != (i == FIELDS - 1):
            return False
        if comma == NULL:
            comma = end
        fields[i] = span_t(line.text, comma - line.text)
        span_trim(&fields[i])
        line.text = comma + 1
    return True


cdef bint header_is_right(span_t* fields) noexcept nogil:
    return (span_is(fields[0], b"event", 5) and span_is(fields[1], b"id", 2)
            and span_is(fields[2], b"size", 4) and span_is(fields[3], b"stream", 6))


cdef bint size_read(span_t field, bint is_free, uint64_t* size) noexcept nogil:
    """Read a size; a free may leave it out, as the pool knows it."""
    if is_free and field.length == 0:
        size[0] = 0
        return True
    return span_number(field, SIZE_MAX, size)


cdef bint span_number(span_t span, uint64_t limit, uint64_t* number) noexcept nogil:
    """Read a span of decimal digits; False when it holds anything else or exceeds the limit."""
    cdef uint64_t value = 0
    cdef unsigned int digit
    cdef size_t i
    for i in range(span.length):
        digit = <unsigned int>(<unsigned char>span.text[i]) - c"0"
        if digit > 9 or value > (limit - digit) // 10:
            return False
        value = value * 10 + digit
    number[0] = value
    return span.length > 0


cdef bint span_is(span_t span, const char* word, size_t length) noexcept nogil:
    return span.length == length and memcmp(span.text, word, length) == 0


cdef void span_trim(span_t* span) noexcept nogil:
    while span.length and is_blank(span.text[0]):
        span.text += 1
        span.length -= 1
    while span.length and is_blank(span.text[span.length - 1]):
        span.length -= 1


cdef inline bint is_blank(char letter) noexcept nogil:
    return letter == b" " or letter == b"\t" or letter == b"\r"


cdef void fault_set(parser_t* parser, fault_t fault, span_t culprit) noexcept nogil:
    parser.fault = fault
    parser.culprit = culprit


cdef void live_fault(parser_t* parser, const event_t* event) noexcept nogil:
    parser.row = event.row
    fault_set(parser, FAULT_LIVE, span_t(NULL, 0))


HEADER_REASON = "the first line must be event,id,size,stream"
LINE_REASON = f"the line is longer than {LINE_MAX} bytes: expected event,id,size,stream"
REASONS = {
    FAULT_HEADER: "{text} is not the header: " + HEADER_REASON,
    FAULT_FIELDS: "{text} has {fields} fields: expected the four of event,id,size,stream",
    FAULT_EVENT: "{text} is no event: expected alloc or free",
    FAULT_ID: f"{{text}} is no id: expected an integer from 0 to {UINT64_MAX}",
    FAULT_SIZE: f"{{text}} is no size: expected an integer from 0 to {SIZE_MAX} (bytes)",
    FAULT_STREAM: f"{{text}} is no stream: expected an integer from 0 to {UINT64_MAX}",
    FAULT_TWICE: "id {text} is allocated a second time: every allocation needs an id of its own",
    FAULT_LINE: LINE_REASON,
    FAULT_LIVE: f"more than {SIZE_MAX} bytes are live at once",
    FAULT_BLOCKS: f"more than {NIL} different ids",
    FAULT_EVENTS: "more than {limit} events: a longer trace has to be read with a larger max_events",
}


cdef int fault_raise(const parser_t* parser, bytes culprit) except -1:
    if parser.fault == FAULT_HOST_MEMORY:
        raise MemoryError(f"row {parser.row}: no host memory for the events of the trace")
    if any(byte < 32 and byte != 9 or byte > 126 for byte in culprit):
        raise TraceError(parser.row, f"{shown(culprit)} is not text: expected the ASCII lines of a trace CSV")
    raise TraceError(parser.row, REASONS[parser.fault].format(
        text=shown(culprit), fields=culprit.count(b",") + 1, limit=parser.event_max))


def shown(bytes text):
    """Return `text` quoted, cut to a length that a message can bear."""
    cdef str quoted = repr(text[:40])[1:]
    return quoted + "..." if len(text) > 40 else quoted
