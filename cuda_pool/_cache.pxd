"""What is done to the caches of a pool's threads, see _bins and _seat."""

from cuda_pool._bins cimport cache_t
from cuda_pool._owner cimport owner_t
from cuda_pool._seat cimport seat_t
from cuda_pool._state cimport pool_t

# Fill an empty bin from the owner's slabs, or spill a full one: at the seat. False where that did not help.
cdef bint cache_refill(pool_t* pool, seat_t* seat, cache_t* cache, int size_class) noexcept nogil
cdef bint cache_spill(pool_t* pool, seat_t* seat, cache_t* cache, int size_class) noexcept nogil

# The others want all locks.
# Let the calling thread's seat have a cache for an owner, that is named as its stream is by now; NULL when the host has
# no memory.
cdef cache_t* cache_make(pool_t* pool, seat_t* seat, owner_t owner) noexcept nogil
cdef void seat_add(pool_t* pool, seat_t* seat) noexcept nogil
# Empty all caches, count what was done at the seats, and give back those of threads that have ended.
cdef void seats_empty(pool_t* pool) noexcept nogil
# An owner's record is about to be another stream's.
cdef void caches_forget(pool_t* pool, owner_t owner) noexcept nogil
cdef const char* caches_check(const pool_t* pool) noexcept nogil
# Give back all seats, without locks: nobody calls the pool any more.
cdef void seats_close(pool_t* pool) noexcept nogil
