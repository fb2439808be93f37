"""Segments of several regions: what lies between them is a gap, a range of the mid tier without memory."""

from libc.stdint cimport uint32_t

from cuda_pool._mid cimport mid_t
from cuda_pool._owner cimport owner_t, view_t
from cuda_pool._segment cimport segment_t

# Invariants, asserted by gaps_check(), the last one by segment_check():
#   the gaps from mid.gap along `next` are the blocks in state MID_GAP, ascending;  no two are neighbours
#   mid.used == live and held blocks + slabs + gaps + what is shut
# The region at offset 0 has the buddy tier at its low end; all others belong to the mid tier alone.

# Make [mid.end, end) a gap, both in units; 0 when the host has no memory.
cdef int gap_init(mid_t* mid, uint32_t end) noexcept nogil
# Find a free block that is aligned by its address, further than a page of the segment is: whose it is says the owner,
# or the view where it is not NULL. The bias is that of the region at offset 0, and becomes that of the block found.
cdef uint32_t gap_find_far(const mid_t* mid, owner_t owner, const view_t* view, uint32_t size, int align,
                           uint32_t* bias) noexcept nogil
cdef size_t gap_bytes(const mid_t* mid) noexcept nogil          # of all gaps, and of what is shut
cdef const char* gaps_check(const mid_t* mid) noexcept nogil

# Let `size` bytes at an address be the segment's: STATUS_OUT_OF_MEMORY where no gap has room, or STATUS_HOST_MEMORY.
cdef int segment_open(segment_t* segment, size_t address, size_t size, size_t* offset) noexcept nogil
# Is a region free, whole, and nobody's?
cdef bint segment_is_idle(segment_t* segment, size_t offset, size_t size) noexcept nogil
# Take an idle region out; until one of the next two is called its place stays. A record, or NO_MID.
cdef uint32_t segment_shut(segment_t* segment, size_t offset, size_t size) noexcept nogil
cdef void segment_reopen(segment_t* segment, uint32_t shut) noexcept nogil
cdef void segment_forget(segment_t* segment, uint32_t shut) noexcept nogil
