"""Which addresses the pools of this process have: each region is claimed while its pool has it."""

from cuda_pool._driver cimport driver_t

ctypedef struct claim_t:
    const driver_t* driver
    int device
    size_t start
    size_t end

# Each may be called from any thread without the GIL, and takes no other lock.
# Note a region; False, and the claim that it overlaps in `other`, where a driver returned what was live already.
# Where the host has no memory for the note nothing is claimed.
cdef bint claim_make(const claim_t* claim, claim_t* other) noexcept nogil
# Take it back, before the driver has the region again.
cdef void claim_drop(const claim_t* claim) noexcept nogil
