"""The segments of a snapshot, and their blocks, as C arrays."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from cuda_pool._rows cimport rows_at, rows_t

cdef enum:                  # index into torch_format.STATES
    STATE_ALLOCATED = 0
    STATE_PENDING = 1
    STATE_INACTIVE = 2
    STATE_COUNT = 3

ctypedef struct torch_block_t:
    uint64_t size
    uint64_t requested
    uint8_t state           # one of the above

# Its blocks lie side by side: the first one begins at `address`, and each other one where that before it ends.
#   total == sum of their sizes <= BYTES_MAX
#   address + total - size of the last block <= UINT64_MAX
ctypedef struct torch_segment_t:
    uint64_t address
    uint64_t total
    uint64_t stream
    uint64_t[2] pool
    uint32_t device
    uint8_t kind            # index into torch_format.SEGMENT_TYPES
    uint8_t is_expandable
    size_t first            # of its blocks, among those of all segments
    size_t count

# Blocks side by side, before it is known of which segment.
#   held[state] == sum of the sizes of blocks in that state; all of them <= BYTES_MAX
#   address is that of the first one, if the file has it
cdef class Blocks:
    cdef rows_t rows        # of torch_block_t
    cdef uint64_t[STATE_COUNT] held
    cdef uint64_t address
    cdef bint has_address

    # Take a block out of a dict over; False, with nothing changed, if it is none, or none that comes next.
    cdef bint take(self, dict fields) except -1
    cdef bint follows(self, dict fields, const torch_block_t* block) except -1
    cdef uint64_t total(self) noexcept

# The blocks of a segment lie behind those of the one before: segments[i + 1].first == segments[i].first + its count.
cdef class Segments:
    cdef rows_t rows        # of torch_segment_t
    cdef rows_t blocks      # of torch_block_t

    # Take a segment and its blocks out of a dict over; False, with nothing changed, if it is none, or one that does
    # not agree with its blocks, or has blocks that others may ask for too.
    cdef bint take(self, dict fields) except -1
    cdef int add(self, const torch_segment_t* segment) except -1
    cdef size_t number(self, const torch_segment_t* segment) noexcept
    cdef object segment(self, size_t index)


cdef inline torch_segment_t* segment_at(const rows_t* segments, size_t index) noexcept nogil:
    return <torch_segment_t*>rows_at(segments, index)


cdef inline torch_block_t* block_at(const rows_t* blocks, size_t index) noexcept nogil:
    return <torch_block_t*>rows_at(blocks, index)
