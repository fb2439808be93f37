"""One move of one block."""

from cuda_pool._plan cimport move_t
from cuda_pool._state cimport pool_t

# Copy a block to another place on its home, and let its handle name that place; without any lock. `nbytes` is 0, and
# nothing changed, where the block or the target is not as it was planned, or the streams cannot be put in order: then
# the pass leaves the block alone from there on. A status: STATUS_WOULD_WAIT where pending work has to be over first,
# STATUS_CAPTURING while anything is captured, and that of a driver call, after which all is as before.
cdef int step_make(pool_t* pool, const move_t* move, size_t* nbytes) noexcept nogil
