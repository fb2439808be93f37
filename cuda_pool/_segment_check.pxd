"""Do the invariants of a segment hold, and those of its tiers?"""

from cuda_pool._segment cimport segment_t

# NULL, or the broken invariant. Takes time in proportion to the segment's granules and units.
cdef const char* segment_check(const segment_t* segment) noexcept nogil
