"""The events of a trace as a C array, and the blocks that they are about."""

from libc.stdint cimport uint32_t, uint64_t

cdef enum event_kind_t:
    EVENT_ALLOC = 0
    EVENT_FREE = 1
    EVENT_ORPHAN = 2        # a free of a block that is not live: counted, otherwise skipped

cdef enum block_state_t:
    BLOCK_LIVE = 0          # allocated so far and not freed
    BLOCK_FREED = 1
    BLOCK_STRAY = 2         # freed, but not allocated so far
    BLOCK_PREEXISTING = 3   # freed, never allocated in the trace: live before its first event

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
#   peak_live == highest sum of the sizes of live blocks, which starts with the preexisting ones
ctypedef struct trace_t:
    event_t* events
    size_t event_count, event_room
    block_t* blocks
    size_t block_count, block_room
    uint64_t orphan_frees
    uint64_t preexisting        # blocks
    uint64_t preexisting_bytes
    uint64_t peak_live          # bytes

cdef class TraceTable:
    cdef trace_t trace
