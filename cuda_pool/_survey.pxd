"""Sums over a pool's memory at one moment: who has it, and where what is free lies."""

from libc.stdint cimport uint32_t, uintptr_t

from cuda_pool._owner cimport OWNERS, owner_t
from cuda_pool._periods cimport periods_t
from cuda_pool._pool cimport pool_stats_t
from cuda_pool._segment cimport tier_t
from cuda_pool._state cimport pool_t

# Live blocks of one tier, and of sizes at most an eighth apart. A slot is its slab owner's; a block of the upper tiers
# has an owner only where it was cut from memory of one.
ctypedef struct holding_t:
    tier_t tier
    owner_t owner
    size_t blocks
    size_t used                     # bytes
    size_t requested                # bytes; in the slab tier the same as `used`, as slots are not looked at one by one
    size_t smallest                 # bytes of one block, as requested; in the slab tier bytes of a slot
    size_t largest

# A stream, as the pool knew it.
ctypedef struct surveyed_t:
    int kind                        # stream_kind_t
    uintptr_t handle

# Invariants, asserted by tests/test_survey.py; of a sample nearly so:
#   sum(used of the holdings) == stats.used;  sum(pending) == stats.pending
#   slab_free + slots that are live or held == slab_bytes, all in bytes
ctypedef struct survey_t:
    pool_stats_t stats
    holding_t* holding
    size_t holdings
    uint32_t room                   # for holdings
    bint sampled                    # not all blocks were looked at: holdings and `pending` are estimates
    bint lacks_memory               # a holding is missing: the host had no memory for it
    size_t pending[OWNERS]          # bytes that each owner freed, not known to be anybody's yet; of NOBODY: held blocks
    size_t slab_bytes               # of all slabs
    size_t slab_free                # bytes in slabs that no slot in use covers
    size_t mid_free                 # bytes of free blocks, with or without an owner; with pages also addresses
    size_t buddy_free
    size_t free_blocks              # outside slabs
    surveyed_t stream[OWNERS]
    int captures                    # under way
    periods_t history

cdef enum:
    LOOKS = 1024                    # for an error: so that it takes no longer in a pool of a million blocks

cdef void survey_destroy(survey_t* survey) noexcept nogil
# Look at an open pool, with all its locks for the while: at its slabs, and at no more than `looks` blocks of each upper
# tier, or at all where that is 0. A status.
cdef int survey_take(survey_t* survey, pool_t* pool, size_t looks) noexcept nogil
# The survey and the settings as plain values: what cuda_pool.diagnosis.Moment is made of, but for the request.
cdef dict survey_values(const survey_t* survey, pool_t* pool)
