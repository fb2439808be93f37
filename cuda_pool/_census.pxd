"""All live blocks of a pool at one moment."""

from libc.stdint cimport uint64_t

from cuda_pool._owner cimport owner_t
from cuda_pool._state cimport pool_t

cdef uint64_t NO_STREAM

ctypedef struct citizen_t:
    uint64_t key                # in a recording
    size_t address
    size_t nbytes               # that were asked for
    uint64_t stream             # whose memory it is, as a trace names it, or NO_STREAM

ctypedef struct census_t:
    citizen_t* citizen
    size_t count

# Note down every live block, with all locks of the pool held; False when the host has no memory.
cdef bint census_take(census_t* census, pool_t* pool) noexcept nogil
cdef void census_destroy(census_t* census) noexcept nogil
