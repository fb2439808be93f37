"""The struct of a pool, its locks, and what is done under them."""

from libc.stdint cimport uint32_t, uint64_t

from cuda_pool._claim cimport claim_t
from cuda_pool._driver cimport cudaEvent_t, driver_t
from cuda_pool._happenings cimport happenings_t
from cuda_pool._heap cimport heap_t
from cuda_pool._held cimport helds_t
from cuda_pool._learn cimport learn_t
from cuda_pool._lock cimport APART, lock_t
from cuda_pool._movables cimport movables_t
from cuda_pool._order cimport order_t, stream_freed
from cuda_pool._owner cimport LEGACY, NOBODY, owner_t, view_t
from cuda_pool._region cimport REGION_SHIFT, regions_find, regions_t
from cuda_pool._relaxed cimport get_size
from cuda_pool._seat cimport seat_t
from cuda_pool._segment cimport (
    TIER_SLAB, is_movable, place_t, segment_alloc, segment_claim_place, segment_find, segment_free, segment_t,
    segment_unclaim_place)
from cuda_pool._status cimport (
    STATUS_FOREIGN_POINTER, STATUS_FREED_POINTER, STATUS_MOVABLE, STATUS_OK, STATUS_OUT_OF_MEMORY)
from cuda_pool._tracer cimport tracer_t
from cuda_pool._uses cimport uses_t

# Driver calls that are counted; pool_call_name() names them.
ctypedef int upstream_t

cdef enum:                      # upstream_t
    UPSTREAM_SET_DEVICE = 0
    UPSTREAM_MALLOC
    UPSTREAM_FREE
    UPSTREAM_MEM_GET_INFO
    UPSTREAM_MEMSET
    UPSTREAM_SYNCHRONIZE
    UPSTREAM_DEVICE_SYNCHRONIZE
    UPSTREAM_EVENT_CREATE
    UPSTREAM_EVENT_RECORD
    UPSTREAM_EVENT_QUERY
    UPSTREAM_EVENT_SYNCHRONIZE
    UPSTREAM_EVENT_DESTROY
    UPSTREAM_WAIT_EVENT
    UPSTREAM_GET_ID
    UPSTREAM_IS_CAPTURING
    UPSTREAM_MEM_ADDRESS_RESERVE
    UPSTREAM_MEM_ADDRESS_FREE
    UPSTREAM_MEM_CREATE
    UPSTREAM_MEM_RELEASE
    UPSTREAM_MEM_MAP
    UPSTREAM_MEM_UNMAP
    UPSTREAM_MEM_SET_ACCESS
    UPSTREAM_STREAM_QUERY
    UPSTREAM_MEMCPY
    UPSTREAM_CALLS

cdef enum:
    BIN_BYTES_MAX = 256 << 10
    BIN_SHARE = 4096                # of the capacity
    BLOCKS_BYTES_MAX = 64 << 20
    BLOCKS_SHARE = 128

# When memory that was freed on one stream goes to another one.
ctypedef int reuse_t

cdef enum:
    WAIT_SHARE = 2                  # of the peak of used bytes: up to there a pool grows rather than waits
    MARK_SHARE = 64                 # of the regions: so much freed on a stream that can vanish is worth an event

# Who was the last to free a block with the lock, how many more times in a row others are reckoned with, and how much
# the caches may hold that hold more meanwhile.
ctypedef struct crowd_t:
    const seat_t* last
    uint32_t calls
    size_t bytes

cdef enum:                      # reuse_t
    REUSE_WAIT = 0                  # behind a wait that is put on the other stream
    REUSE_QUERY                     # once its work is seen to be over
    REUSE_NEVER                     # only when nothing else is left

# A block that a free has found and that is still waited for or overwritten: on the stack of that call, and no longer
# live for any other. The pool stays open until there is none.
ctypedef struct leaving_t:
    void* ptr
    size_t used                     # bytes
    leaving_t* next

# When a pool gives memory back by itself.
ctypedef struct release_t:
    size_t threshold                # free bytes outside slabs
    uint32_t pause                  # frees to let pass before it is tried again
    uint32_t next_pause             # after a try in vain

# When movable blocks are moved together without anyone asking for it, and what was done so far.
ctypedef struct defrag_t:
    lock_t running                  # is only tried, or waited for with sleeps: a pass may wait
    size_t threshold                # free blocks above which a pass is due, or 0
    size_t interval                 # allocations after which one is due, or 0
    size_t limit                    # `threshold`, or more: the last pass left so many
    size_t allocs                   # had been made at the last pass
    bint due
    size_t count                    # passes
    size_t moves                    # blocks allocated and freed for moves

# Locks, in the order in which they are taken; none but the first is held while the driver is called.
#   slow    by calls that ask the driver about streams: keeps events and the identity of streams as they are meanwhile
#   lock    guards every field from `closed` down, and the two upper tiers
#   seats   of the threads: stopped, and then their caches are emptied
#   heaps   one per owner, by rising index: guards the slabs of that owner, see slab_t
# A new slab is made with `lock` and the heaps' locks, while the seats go on; none is unmade then.
# The shortest paths are at a thread's own seat (_front.pxd), where it takes one heap's lock to fill or spill a cache;
# or they hold `lock` alone (blocks of the two upper tiers). Whatever those read without `lock` or without their heap's
# lock changes only while all of them are held, by enter(): that is who is which stream, captures, recorded uses,
# batches and `closed`. Words that may be read without any are written as in _relaxed.
# Fields above `closed` are set once, by pool_open(), but for those of the regions, which come and go with all locks
# held, and the number of marks.
# Invariants, asserted by pool_check():
#   requested <= used <= reserved <= capacity;  each is at most its high-water mark
#   helds.bytes == segment.held
#   the region at offset 0, if any, begins at base and has `first` bytes;  regions.size == segment.size + segment.shut
ctypedef struct pool_t:
    lock_t lock
    uint64_t apart[APART]           # what follows is read by threads that do not take it
    const unsigned* forks           # forks between the first process and this one
    unsigned generation             # forks before it was opened
    bint scrub                      # overwrite freed memory with zeros
    bint debug                      # refuse what any pool has already
    bint grows
    bint releases                   # gives memory back by itself
    reuse_t reuse
    const driver_t* driver
    int device                      # what cudaSetDevice takes
    lock_t slow
    size_t base                     # address of offset 0
    size_t first                    # bytes of the region that is there
    uint32_t place                  # where threads find their seats: bytes from the start of a table of theirs
    uint32_t marks                  # of seats, given out
    size_t mark_bytes               # freed on a stream that can vanish: then an event is recorded at once
    heap_t* heaps                   # those of the segment; NULL while the pool was never open
    bint closed
    bint release_due                # to be done by whoever sees it, without the locks
    int heaps_held                  # by enter()
    bint seats_held                 # stopped by enter()
    segment_t segment
    learn_t learn
    void* region                    # the one that it opened with, as cudaMalloc or cuMemAddressReserve returned it
    size_t range_bytes              # of that one; with virtual backing these are addresses
    regions_t regions               # of none where pages move
    size_t capacity                 # bytes that it may hold
    size_t reserved                 # bytes that it holds from the device
    size_t reserved_high
    size_t grow_count
    size_t trim_count
    size_t oom_count
    release_t release
    claim_t refused                 # what the driver returned when STATUS_OVERLAP was, and what that is part of
    claim_t taken
    leaving_t* leaving
    crowd_t crowd
    order_t order
    helds_t helds
    uses_t uses
    movables_t movables
    defrag_t defrag
    cudaEvent_t* spare_event        # events that are recorded nowhere
    uint32_t spare_capacity
    uint32_t spares
    uint32_t waits                  # calls that wait for the driver with `slow` given up for the while
    bint unordered                  # treat free_async as free: for tests of the race detector
    size_t upstream[UPSTREAM_CALLS]
    tracer_t* tracer                # while the pool's calls are recorded, else NULL: written with all locks held
    tracer_t* tracer_kept           # that of the last recording: a call that is late may look at it
    happenings_t happenings

cdef const unsigned* fork_counter() noexcept nogil

# Serve a request from a slot that the stream freed in another stream's slab.
cdef bint retake_locked(pool_t* pool, owner_t owner, size_t nbytes, size_t alignment, void** ptr) noexcept nogil
# Serve a request from other owners' memory too, as far as the work behind it is done or waited for.
cdef int alloc_shared_locked(pool_t* pool, owner_t owner, size_t nbytes, size_t alignment, void** ptr) noexcept nogil
# Let a block just allocated be the capture's, freed or not.
cdef void claim_locked(pool_t* pool, owner_t owner, size_t offset) noexcept nogil
# The rest of the two frees at the end of this file, once the block is found.
cdef int free_found_locked(pool_t* pool, const void* ptr, const place_t* place) noexcept nogil
cdef int free_async_found_locked(pool_t* pool, const void* ptr, const place_t* place, owner_t owner) noexcept nogil
# The batch with which memory goes back to the stream that it was cut from, and had when it was: 0 if that is over.
cdef uint32_t batch_of_origin(pool_t* pool, owner_t owner, uint32_t batch) noexcept nogil
cdef int record_use_locked(pool_t* pool, void* ptr, owner_t owner) noexcept nogil
cdef bint is_leaving(const pool_t* pool, const void* ptr) noexcept nogil
# Give back what is done: to nobody.
cdef void settle_locked(pool_t* pool) noexcept nogil
# Give held blocks that the view allows to the asker.
cdef void unhold_locked(pool_t* pool, const view_t* view) noexcept nogil
# Number the batches from 1 again; False, and nothing changed, while something is pending.
cdef bint renew_batches_locked(pool_t* pool) noexcept nogil
# Let nothing of an owner's be left, so that its record can be given back: to another stream, or to nobody.
cdef void leave_locked(pool_t* pool, owner_t owner, owner_t to) noexcept nogil
# Let the default stream be the home of the movable blocks of a stream whose work is done.
cdef void rehome_locked(pool_t* pool, owner_t owner) noexcept nogil
cdef const char* state_check(const pool_t* pool) noexcept nogil


cdef inline size_t bin_bytes(const pool_t* pool) noexcept nogil:
    """Bytes of one size class that a thread may have for itself, in a cache or as a new slab."""
    return min(pool.capacity // BIN_SHARE, <size_t>BIN_BYTES_MAX)


cdef inline size_t blocks_bytes(const pool_t* pool) noexcept nogil:
    """Bytes of blocks that a cache may hold while no other thread is in the way, see _crowd."""
    return min(pool.capacity // BLOCKS_SHARE, <size_t>BLOCKS_BYTES_MAX)


cdef inline size_t pool_offset(const pool_t* pool, const void* ptr) noexcept nogil:
    """The place of an address in the segment; of one that is not the pool's, something outside it.

    Without a lock that keeps the regions as they are, it may be any other place, too.
    """
    cdef size_t offset = <size_t>ptr - get_size(&pool.base)     # below the base it wraps round to a large number
    return offset if offset < get_size(&pool.first) else regions_find(&pool.regions, <size_t>ptr)


cdef inline void* pool_address(const pool_t* pool, size_t offset) noexcept nogil:
    if offset < pool.first:
        return <void*>(pool.base + offset)
    return <void*>(pool.regions.shift[offset >> REGION_SHIFT] + offset)


cdef inline owner_t captured(const pool_t* pool, owner_t owner) noexcept nogil:
    """The owner that stands in for a stream while it is captured."""
    cdef owner_t capture = pool.order.stream[owner].capture
    return capture if capture != NOBODY else owner


cdef inline int serve_locked(pool_t* pool, owner_t owner, size_t nbytes, size_t alignment, void** ptr) noexcept nogil:
    """Serve a request of at least 1 byte without the driver: from what the stream has, then from what others have."""
    cdef size_t offset = 0, used = 0
    cdef int status
    if pool.helds.bytes != 0 and retake_locked(pool, owner, nbytes, alignment, ptr):
        return STATUS_OK
    status = segment_alloc(&pool.segment, owner, nbytes, alignment, &offset, &used)
    if status != STATUS_OK:
        if status == STATUS_OUT_OF_MEMORY and is_shared(pool):
            status = alloc_shared_locked(pool, owner, nbytes, alignment, ptr)
        return status
    ptr[0] = pool_address(pool, offset)
    if pool.order.captures != 0:
        claim_locked(pool, owner, offset)
    return STATUS_OK


cdef inline bint is_shared(const pool_t* pool) noexcept nogil:
    """Is there memory that one stream has and another may get?"""
    return pool.order.streams > LEGACY + 1 or pool.segment.mid.owned != 0 or pool.segment.buddy.owned != 0


cdef inline int find_locked(pool_t* pool, const void* ptr, place_t* place) noexcept nogil:
    cdef size_t offset = pool_offset(pool, ptr)
    cdef int status
    if offset >= pool.segment.span:
        return STATUS_FOREIGN_POINTER
    if pool.leaving != NULL and is_leaving(pool, ptr):
        return STATUS_FREED_POINTER
    status = segment_find(&pool.segment, offset, place)
    if status == STATUS_OK and is_movable(place):
        return STATUS_MOVABLE
    return status


cdef inline int free_locked(pool_t* pool, void* ptr) noexcept nogil:
    """Free a block for anyone, or for whoever may have what it was cut from. Here only a slot of which nothing else
    is known.
    """
    cdef place_t place
    cdef int status = find_locked(pool, ptr, &place)
    if status != STATUS_OK:
        return status
    if not segment_claim_place(&pool.segment, &place):
        return STATUS_FREED_POINTER
    if place.tier == TIER_SLAB and pool.uses.count == 0:
        segment_free(&pool.segment, &place, place.owner, 0)
        return STATUS_OK
    status = free_found_locked(pool, ptr, &place)
    if status != STATUS_OK:
        segment_unclaim_place(&pool.segment, &place)
    return status


cdef inline int free_async_locked(pool_t* pool, void* ptr, owner_t owner) noexcept nogil:
    """Free a block in the order of a stream. Here only a slot of the stream's own slabs."""
    cdef place_t place
    cdef int status = find_locked(pool, ptr, &place)
    if status != STATUS_OK:
        return status
    if not segment_claim_place(&pool.segment, &place):
        return STATUS_FREED_POINTER
    if place.tier == TIER_SLAB and place.owner == owner and pool.uses.count == 0 and not pool.unordered:
        segment_free(&pool.segment, &place, owner, pool.order.batch)
        stream_freed(&pool.order, owner, place.used)
        return STATUS_OK
    status = free_async_found_locked(pool, ptr, &place, owner)
    if status != STATUS_OK:
        segment_unclaim_place(&pool.segment, &place)
    return status
