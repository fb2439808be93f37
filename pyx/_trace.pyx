"""The events of a trace, and what is known of its blocks: taken over one by one, then settled. No file format here."""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport UINT64_MAX, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

import operator

import numpy as np

from cuda_pool._idmap cimport ID_NONE, id_map_clear, id_map_init, id_map_slot, keys_t

from cuda_pool.errors import TraceError
from cuda_pool.sizes import is_index, shown as shown_value

EVENTS_MAX = 20_000_000     # 1.5 GB if every event is about a block of its own
ALLOC = EVENT_ALLOC         # what TraceBuilder.add() takes
FREE = EVENT_FREE
LIVE = EVENT_LIVE


cdef class TraceBuilder:
    """Take the events of a trace over one by one; `TraceTable` makes the trace of them. It belongs to one thread.

    Parameters
    ----------
    max_events : int
        From 0 to 2**63 - 1; one event more is refused.

    Raises
    ------
    ValueError, TypeError
        `max_events` is no such integer.
    """

    def __cinit__(self, max_events=EVENTS_MAX):
        self.culprit = b""
        self.builder.event_max = event_limit(max_events)
        id_map_init(&self.builder.ids)

    def __dealloc__(self):
        trace_release(&self.builder.trace)
        id_map_clear(&self.builder.ids)

    def add(self, int kind, uint64_t ident, uint64_t size, uint64_t stream, uint64_t row):
        """Take an event over.

        Parameters
        ----------
        kind : int
            `ALLOC`, `FREE`, or `LIVE`: the block was live before the first event.
        ident : int
            Of the block, which is allocated once.
        size, stream : int
            Bytes, at most 2**63 - 1, and the number of the stream.
        row : int
            Where the event is in its file.

        Raises
        ------
        TraceError
            The block was allocated before, or there are too many events. The same is raised ever after.
        MemoryError
            The host has no memory for the events.
        """
        cdef event_t event
        self.refuse_fault()
        event.kind, event.size, event.stream, event.row = kind, size, stream, row
        self.culprit = str(ident).encode()
        self.builder.row = row
        self.builder.fault = builder_find(&self.builder, ident, &event.block)
        if self.builder.fault == FAULT_NONE:
            self.builder.fault = builder_take(&self.builder, &event, ident)
        self.refuse_fault()

    cdef int finish(self) except -1:
        with nogil:
            trace_settle(&self.builder)
        return self.refuse_fault()

    cdef int refuse_fault(self) except -1:
        return fault_raise(&self.builder, self.culprit, {}) if self.builder.fault != FAULT_NONE else 0

    cdef trace_t give(self) noexcept:
        """Hand the trace over and be as new."""
        cdef trace_t trace = self.builder.trace
        id_map_clear(&self.builder.ids)
        memset(&self.builder.trace, 0, sizeof(trace_t))
        self.builder.row = 0
        self.culprit = b""
        return trace


cdef class TraceTable:
    """The events of a trace, in program order. Immutable, and safe to read from several threads.

    Parameters
    ----------
    builder : TraceBuilder
        What took every event over, such as a parser; it is as new afterwards.

    Raises
    ------
    TraceError
        The text ends too early, or more than 2**63 - 1 bytes are live at once.
    """

    def __cinit__(self, TraceBuilder builder not None):
        builder.finish()
        self.trace = builder.give()

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
        """Blocks that are live before the first event: named as such, or freed with a size above 0 and never allocated.

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
    def live(self):
        """The preexisting blocks that the file names as such, in its order; a read-only array.

        Its fields are ``size``, ``stream``, ``row``, ``block`` (as in `block`) and ``kind``.
        """
        cdef bytes rows = (<const char*>self.trace.live)[:self.trace.live_count * sizeof(event_t)]
        return np.frombuffer(rows, EVENT)

    @property
    def live_id(self):
        """Ids of the blocks in `live`; a uint64 array."""
        return self._ids()[self.live["block"]]

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
        return self._ids()[self.block]

    @property
    def block_size(self):
        """Bytes of every block: of its allocation, or of its first free; a uint64 array."""
        sizes = np.empty(self.trace.block_count, np.uint64)
        cdef uint64_t[::1] each = sizes
        cdef size_t index
        for index in range(self.trace.block_count):
            each[index] = self.trace.blocks[index].size
        return sizes

    @property
    def is_preexisting(self):
        """True for every block that is live before the first event; a numpy array."""
        found = np.empty(self.trace.block_count, np.bool_)
        cdef uint8_t[::1] each = found.view(np.uint8)
        cdef size_t index
        for index in range(self.trace.block_count):
            each[index] = self.trace.blocks[index].state == BLOCK_PREEXISTING
        return found

    def _ids(self):
        ids = np.empty(self.trace.block_count, np.uint64)
        cdef uint64_t[::1] each = ids
        cdef size_t index
        for index in range(self.trace.block_count):
            each[index] = self.trace.blocks[index].id
        return ids

    def _events(self):
        return np.frombuffer(self, EVENT) if self.trace.event_count else np.empty(0, EVENT)


EVENT = np.dtype([("size", "u8"), ("stream", "u8"), ("row", "u8"), ("block", "u4"), ("kind", "u4")])


def event_limit(max_events):
    """Return the limit as an int, or raise what is wrong with it."""
    if not is_index(max_events):
        raise TypeError(f"max_events is an integer from 0 to {BYTES_MAX}, got {shown_value(max_events)}")
    if not 0 <= max_events <= BYTES_MAX:
        raise ValueError(f"max_events is from 0 to {BYTES_MAX}, got {shown_value(max_events)}")
    return operator.index(max_events)


cdef fault_t builder_find(builder_t* builder, uint64_t ident, uint32_t* block) noexcept nogil:
    cdef trace_t* trace = &builder.trace
    cdef uint32_t* slot
    if not trace_reserve(trace):
        return FAULT_HOST_MEMORY
    slot = id_map_slot(&builder.ids, keys_t(&trace.blocks[0].id, sizeof(block_t)), trace.block_count, ident)
    if slot == NULL:
        return FAULT_HOST_MEMORY
    if slot[0] == ID_NONE:
        slot[0] = <uint32_t>trace.block_count
    block[0] = slot[0]
    return FAULT_NONE


cdef fault_t builder_take(builder_t* builder, event_t* event, uint64_t ident) noexcept nogil:
    cdef trace_t* trace = &builder.trace
    cdef fault_t fault
    if trace.event_count + trace.live_count >= builder.event_max:
        return FAULT_EVENTS
    if trace.block_count >= ID_NONE:
        return FAULT_BLOCKS
    if not trace_reserve(trace):
        return FAULT_HOST_MEMORY
    if event.block == trace.block_count:
        trace.blocks[event.block] = block_t(ident, event.size, BLOCK_STRAY)
        trace.block_count += 1
    elif event.kind == EVENT_LIVE:
        return FAULT_TWICE
    fault = block_turn(trace, &trace.blocks[event.block], event)
    if fault == FAULT_NONE:
        event_store(trace, event)
    return fault


cdef void event_store(trace_t* trace, const event_t* event) noexcept nogil:
    if event.kind == EVENT_LIVE:
        trace.live[trace.live_count] = event[0]
        trace.live_count += 1
    else:
        trace.events[trace.event_count] = event[0]
        trace.event_count += 1


cdef fault_t block_turn(trace_t* trace, block_t* block, event_t* event) noexcept nogil:
    """Carry the block over into the state after the event."""
    if event.kind == EVENT_ALLOC:
        if block.state != BLOCK_STRAY:
            return FAULT_TWICE
        block.state = BLOCK_LIVE
        block.size = event.size
    elif event.kind == EVENT_LIVE:
        if trace.event_count:
            return FAULT_LATE
        if event.size == 0:
            return FAULT_LIVE_SIZE
        block.state = BLOCK_NAMED
    elif block.state == BLOCK_LIVE:
        block.state = BLOCK_FREED
    else:
        event.kind = EVENT_ORPHAN
        trace.orphan_frees += 1
    return FAULT_NONE


cdef void trace_settle(builder_t* builder) noexcept nogil:
    """Find the preexisting blocks, which shows only at the end, and then the peak."""
    cdef trace_t* trace = &builder.trace
    cdef block_t* block
    cdef event_t* event
    cdef size_t i
    for i in range(trace.event_count):
        event = &trace.events[i]
        block = &trace.blocks[event.block]
        if block.state == BLOCK_NAMED or block.state == BLOCK_STRAY and block.size > 0:
            event.kind = EVENT_FREE
            if not preexisting_count(builder, block, event):
                return
    for i in range(trace.live_count):
        event = &trace.live[i]
        block = &trace.blocks[event.block]
        if block.state == BLOCK_NAMED and not preexisting_count(builder, block, event):
            return
    trace_measure(builder)


cdef bint preexisting_count(builder_t* builder, block_t* block, const event_t* event) noexcept nogil:
    cdef trace_t* trace = &builder.trace
    block.state = BLOCK_PREEXISTING
    trace.preexisting += 1
    trace.preexisting_bytes += block.size
    if trace.preexisting_bytes > BYTES_MAX:
        builder.row = event.row
        builder.fault = FAULT_TOO_LIVE
        return False
    return True


cdef void trace_measure(builder_t* builder) noexcept nogil:
    cdef trace_t* trace = &builder.trace
    cdef uint64_t live = trace.preexisting_bytes
    cdef event_t* event
    cdef size_t i
    trace.peak_live = live
    for i in range(trace.event_count):
        event = &trace.events[i]
        if event.kind == EVENT_ALLOC:
            live += event.size
            if live > BYTES_MAX:
                builder.row = event.row
                builder.fault = FAULT_TOO_LIVE
                return
            trace.peak_live = max(trace.peak_live, live)
        elif event.kind == EVENT_FREE:
            live -= trace.blocks[event.block].size


cdef bint trace_reserve(trace_t* trace) noexcept nogil:
    """Make room for one more event, or live block, and one more block."""
    return (room_for(<void**>&trace.events, trace.event_count, &trace.event_room, sizeof(event_t))
            and room_for(<void**>&trace.live, trace.live_count, &trace.live_room, sizeof(event_t))
            and room_for(<void**>&trace.blocks, trace.block_count, &trace.block_room, sizeof(block_t)))


cdef bint room_for(void** items, size_t count, size_t* room, size_t width) noexcept nogil:
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
    free(trace.live)
    free(trace.blocks)


REASONS = {
    FAULT_HEADER: "{text} is not the header: {header}",
    FAULT_FIELDS: "{text} has {fields} fields: expected the {count} of {names}",
    FAULT_EVENT: "{text} is no event: expected {events}",
    FAULT_ID: f"{{text}} is no id: expected an integer from 0 to {UINT64_MAX}",
    FAULT_SIZE: f"{{text}} is no size: expected an integer from 0 to {BYTES_MAX} (bytes)",
    FAULT_STREAM: f"{{text}} is no stream: expected {{streams}}",
    FAULT_TWICE: "id {text} is allocated a second time: every allocation needs an id of its own",
    FAULT_LINE: "the line is longer than {line} bytes: expected {names}",
    FAULT_LATE: "a live block comes after an event: expected all of them before the first event",
    FAULT_LIVE_SIZE: "a live block has no bytes: expected a size of at least 1",
    FAULT_TOO_LIVE: f"more than {BYTES_MAX} bytes are live at once",
    FAULT_BLOCKS: f"more than {ID_NONE} different ids",
    FAULT_EVENTS: "more than {limit} events: a longer trace has to be read with a larger max_events",
    FAULT_TIME: "{text} is no time: expected one such as 12:34:56.789012, or a number",
    FAULT_POINTER: "{text} is no pointer: expected up to 16 hexadecimal digits, such as 0x7f0000000000",
}


cdef int fault_raise(const builder_t* builder, bytes culprit, dict words) except -1:
    """Raise what is wrong with the row; `words` are the format's own in the reasons."""
    if builder.fault == FAULT_HOST_MEMORY:
        raise MemoryError(f"row {builder.row}: no host memory for the events of the trace")
    if any(byte < 32 and byte != 9 or byte > 126 for byte in culprit):
        raise TraceError(builder.row, f"{quoted(culprit)} is not text: expected {words['lines']}")
    raise TraceError(builder.row, REASONS[builder.fault].format(
        text=quoted(culprit), fields=culprit.count(b",") + 1, limit=builder.event_max, **words))


def quoted(bytes text):
    """Return `text` quoted, cut to a length that a message can bear."""
    cdef str whole = repr(text[:40])[1:]
    return whole + "..." if len(text) > 40 else whole
