"""How much room there is in a segment: the largest requests that would be served."""

from cuda_pool._owner cimport owner_t
from cuda_pool._segment cimport segment_t

# Bytes of the largest request that would succeed at alignment MID_UNIT once all pending work is done, without growing.
# Takes a walk over the blocks where free memory is anyone's.
cdef size_t segment_largest_free(const segment_t* segment) noexcept nogil
# Bytes of the largest request that the mid or the buddy tier would serve from the owner's and nobody's memory.
cdef size_t segment_largest_run(const segment_t* segment, owner_t owner) noexcept nogil
# The same where pages move, slots aside: with all pages that no block touches where they are needed; and with those,
# too, by which the segment may grow.
cdef size_t segment_largest_there(const segment_t* segment) noexcept nogil
cdef size_t segment_largest_paged(const segment_t* segment) noexcept nogil
