"""The events of a trace as a C array, and the blocks that they are about."""

from libc.stdint cimport uint32_t, uint64_t

from cuda_pool._idmap cimport id_map_t

cdef const uint64_t BYTES_MAX = 0x7FFFFFFFFFFFFFFF      # of a block, and of all that is live at once

cdef enum event_kind_t:
    EVENT_ALLOC = 0
    EVENT_FREE = 1
    EVENT_ORPHAN = 2        # a free of a block that is not live: counted, otherwise skipped
    EVENT_LIVE = 3          # no event: a block that was live before the first one; in trace_t.live only

cdef enum block_state_t:
    BLOCK_LIVE = 0          # allocated so far and not freed
    BLOCK_FREED = 1
    BLOCK_STRAY = 2         # freed, but not allocated so far
    BLOCK_PREEXISTING = 3   # live before the first event, never allocated in the trace
    BLOCK_NAMED = 4         # the same, as trace_t.live says, in a trace that is not settled yet

ctypedef struct event_t:
    uint64_t size           # bytes, as the row states them
    uint64_t stream
    uint64_t row            # line of the file, the header being 1
    uint32_t block          # index into trace_t.blocks
    uint32_t kind           # event_kind_t

ctypedef struct block_t:
    uint64_t id
    uint64_t size           # bytes of its allocation; of its first free while it is stray or preexisting
    uint32_t state          # block_state_t

# In a settled trace:
#   an EVENT_FREE is the first free of a block after its EVENT_ALLOC, or of a preexisting one
#   orphan_frees == number of frees with no EVENT_ALLOC of the same block since the last free of it
#   a block is preexisting if it is in `live`, or is freed with a size above 0 and never allocated
#   peak_live == highest sum of the sizes of live blocks, which starts with the preexisting ones
ctypedef struct trace_t:
    event_t* events
    size_t event_count, event_room
    event_t* live               # EVENT_LIVE: preexisting blocks that the file names as such
    size_t live_count, live_room
    block_t* blocks
    size_t block_count, block_room
    uint64_t orphan_frees
    uint64_t preexisting        # blocks
    uint64_t preexisting_bytes
    uint64_t peak_live          # bytes

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
    FAULT_LATE
    FAULT_LIVE_SIZE
    FAULT_TOO_LIVE
    FAULT_BLOCKS
    FAULT_EVENTS
    FAULT_HOST_MEMORY
    FAULT_TIME
    FAULT_POINTER

# A trace that is being read. row is that of the event at fault once there is a fault.
ctypedef struct builder_t:
    trace_t trace
    id_map_t ids                # blocks by id
    size_t event_max
    uint64_t row
    fault_t fault

# Take an event over. Its block is the index of a block, or block_count: a new one, which gets the id.
cdef fault_t builder_take(builder_t* builder, event_t* event, uint64_t ident) noexcept nogil

# The index of the block with an id; block_count if there is none so far.
cdef fault_t builder_find(builder_t* builder, uint64_t ident, uint32_t* block) noexcept nogil

# Let an array hold one more item; False when there is no host memory for it.
cdef bint room_for(void** items, size_t count, size_t* room, size_t width) noexcept nogil

# Raise what is wrong with the row. `words` are the format's own in the reasons.
cdef int fault_raise(const builder_t* builder, bytes culprit, dict words) except -1

cdef class TraceBuilder:
    cdef builder_t builder
    cdef bytes culprit          # the text at fault

    # Settle what depends on the whole trace; raise what is wrong.
    cdef int finish(self) except -1
    cdef int refuse_fault(self) except -1
    cdef trace_t give(self) noexcept

cdef class TraceTable:
    cdef trace_t trace
