"""Where blocks lie in a pool's segment, and how one gets a second place: bookkeeping only, no driver call."""

from libc.stdint cimport uint32_t

from cuda_pool._order cimport stream_t
from cuda_pool._owner cimport owners_t, view_t
from cuda_pool._plan cimport plan_t
from cuda_pool._segment cimport place_t
from cuda_pool._state cimport pool_t

# Whose work a place waits for that the view does not allow, up to which batch.
ctypedef struct wanting_t:
    owners_t owners
    uint32_t batch
    int count                       # of the owners

# Note what lies in the regions, taking `lock` for some blocks at a time, and find out what can be reached. `kept` are
# the movable blocks that cannot be moved now. A status.
cdef int layout_read(pool_t* pool, plan_t* plan, size_t* kept) noexcept nogil

# The rest with `lock` held. Places are in units of the mid tier.

# Can a copy be queued on the home of a movable block by this thread, as far as that is known without asking?
cdef bint is_reachable(const stream_t* stream) noexcept nogil
# Is a place free, whoever has to be waited for?
cdef bint layout_is_free(const pool_t* pool, uint32_t start, uint32_t units, const view_t* view,
                         wanting_t* wanting) noexcept nogil
# Take exactly that place for the owner of the view: a live block for which nothing was asked. False, and nothing
# changed, unless all of it is free and allowed.
cdef bint layout_take(pool_t* pool, uint32_t start, uint32_t units, const view_t* view, place_t* place) noexcept nogil
