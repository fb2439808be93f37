"""Extents: what a segment's memory is divided into at one moment, from its lowest offset to its highest."""

from libc.stdint cimport uint32_t

from cuda_pool._owner cimport owner_t
from cuda_pool._segment cimport segment_t, tier_t

ctypedef int extent_state_t

cdef enum:                      # extent_state_t
    EXTENT_LIVE = 0
    EXTENT_PENDING                  # freed, and for one stream only, or held
    EXTENT_FREE
    EXTENT_READY                    # slots of an empty slab that is kept for what is expected
    EXTENT_TAIL                     # of a slab, where no slot has room
    EXTENT_UNMAPPED                 # free addresses without memory
    EXTENT_BUSY                     # is being given pages, or given back
    EXTENT_STATES

ctypedef struct extent_t:
    size_t offset                   # bytes
    size_t size                     # bytes
    size_t requested                # bytes; 0 unless it is live
    tier_t tier
    extent_state_t state
    owner_t owner
    bint movable

# Invariant, asserted by tests/test_snapshot.py:  the extents of a segment tile all of it that is no gap
ctypedef struct extents_t:
    extent_t* extent
    size_t count
    uint32_t capacity
    bint lacks_memory               # an extent is missing: the host had none for it

cdef void extents_destroy(extents_t* extents) noexcept nogil
# Note down all extents of a segment, with all locks of its pool held; 0 when the host has no memory.
cdef int extents_survey(extents_t* extents, const segment_t* segment) noexcept nogil
