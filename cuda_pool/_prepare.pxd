"""Ready slabs: those that a segment makes ahead of need, and those that it has too many of."""

from cuda_pool._owner cimport owner_t
from cuda_pool._segment cimport segment_t

# All locks of the pool are held, but perhaps that of the heap of a stream that nobody can name yet.

# Make room in the tables for a stream, which is expected to need what the plan says of the next one, if there is a
# plan.
cdef void segment_admit_stream(segment_t* segment, owner_t owner) noexcept nogil
# Make slabs ready until the owner's class has `slots` of them, as far as there is room, and half of the segment is not
# ready slabs; False where that ended it.
cdef bint segment_prepare(segment_t* segment, owner_t owner, int size_class, size_t slots) noexcept nogil
# Look at what is expected if a period is over since that was done last.
cdef void segment_follow(segment_t* segment) noexcept nogil
# Bytes of a slab that leaves the owner's class with what is expected, or 0.
cdef size_t segment_bytes_ahead(const segment_t* segment, owner_t owner, int size_class) noexcept nogil
# Return the ready slabs of a class for want of memory; whether there were any.
cdef bint segment_drop_ready(segment_t* segment, owner_t owner, int size_class) noexcept nogil


cdef inline bint segment_predicts(const segment_t* segment) noexcept nogil:
    return segment.learn != NULL and segment.learn.predicts
