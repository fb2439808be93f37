"""A pool: one segment behind its locks, opened and closed, made larger and smaller, and asked what it has."""

from libc.string cimport memcpy, memset

from cuda_pool._ask cimport (
    ask_call_name, ask_keep_event, ask_mem_info, ask_no_events, ask_region, ask_region_back, ask_regions_back)
from cuda_pool._bits cimport round_up
from cuda_pool._cache cimport seats_close
from cuda_pool._driver cimport driver_is_shut
from cuda_pool._growth cimport growth_give_back, growth_trim, region_first, release_run
from cuda_pool._held cimport helds_destroy, helds_init
from cuda_pool._learn cimport learn_drop_plan, learn_set_plan
from cuda_pool._lock cimport lock_acquire, lock_release, sched_yield
from cuda_pool._locks cimport enter, enter_all, enter_heaps, heaps_acquire, leave, leave_all
from cuda_pool._mid cimport MID_UNIT
from cuda_pool._movables cimport movables_destroy, movables_init
from cuda_pool._order cimport LEGACY, order_destroy, order_init, stream_t
from cuda_pool._prepare cimport segment_admit_stream
from cuda_pool._region cimport regions_destroy
from cuda_pool._relaxed cimport get_flag, set_flag, set_pointer
from cuda_pool._remap cimport remap_fill, remap_release, remap_reserve
from cuda_pool._room cimport segment_largest_free
from cuda_pool._seat cimport PLACES
from cuda_pool._segment cimport (
    TIER_SLAB, is_movable, place_t, segment_admit, segment_close, segment_destroy, segment_highs, segment_init,
    segment_is_live, segment_learn, segment_metadata, segment_note, segment_pending, segment_tally, segment_total)
from cuda_pool._slowly cimport slow_enter
from cuda_pool._state cimport MARK_SHARE, find_locked, fork_counter, is_leaving, pool_offset, state_check
from cuda_pool._status cimport STATUS_CLOSED, STATUS_HOST_MEMORY, STATUS_OK
from cuda_pool._tracer cimport tracer_destroy
from cuda_pool._uses cimport uses_destroy

cdef enum:
    RANGE_SHARE = 4                 # addresses for each byte that a virtual pool may hold: see docs/internals/virtual
    RANGE_BITS = 40                 # and fewer than 2**40: the mid tier counts units of 2**8 bytes in 32 bits


cdef void pool_init(pool_t* pool) noexcept nogil:
    memset(pool, 0, sizeof(pool_t))
    pool.forks = fork_counter()
    pool.generation = pool.forks[0]
    pool.closed = True
    pool.place = next_place()


# Pools that are opened one after another have seats in different places of a thread's table.
cdef uint32_t places = 0


cdef inline uint32_t next_place() noexcept nogil:
    global places
    places += 1                     # as long as two pools that are opened at once need not differ
    return places % PLACES * <uint32_t>sizeof(void*)


cdef int pool_open(pool_t* pool, const driver_t* driver, int device, size_t nbytes, size_t capacity,
                   const settings_t* settings, bint scrub, reuse_t reuse) noexcept nogil:
    """Take the memory from the driver; when that or the host fails, nothing is held, and the pool is still closed."""
    cdef int status
    pool.generation = pool.forks[0]
    pool.driver = driver
    pool.device = device
    pool.scrub = scrub
    pool.debug = settings.colouring
    pool.reuse = reuse
    pool.reserved = nbytes
    pool.range_bytes = nbytes
    pool.capacity = capacity
    pool.grows = settings.span != 0 or settings.pages_first != settings.pages_most
    pool.releases = False
    if settings.page_shift != 0:
        pool.range_bytes = range_for(capacity, settings)
        status = remap_reserve(pool)
    else:
        status = ask_region(pool)
    if status != STATUS_OK:
        return status
    pool.base = round_up(<size_t>pool.region, MID_UNIT)
    helds_init(&pool.helds)
    movables_init(&pool.movables)
    if order_init(&pool.order):
        status = open_segment(pool, settings)
        if status != STATUS_OK:
            order_destroy(&pool.order)
    else:
        status = STATUS_HOST_MEMORY
    if status != STATUS_OK:
        region_back(pool, settings.page_shift != 0)
        segment_destroy(&pool.segment)
        regions_destroy(&pool.regions)
        return status
    pool.segment.learn = &pool.learn
    segment_admit(&pool.segment, LEGACY)
    lock_acquire(&pool.lock)                    # others may be waiting for it to open
    set_pointer(<void**>&pool.heaps, pool.segment.slabs.heap)
    heaps_acquire(pool)
    set_flag(&pool.closed, False)
    leave_all(pool)
    return STATUS_OK


cdef size_t range_for(size_t capacity, const settings_t* settings) noexcept nogil:
    """Bytes of addresses: RANGE_SHARE for each of the tiers that place blocks."""
    cdef size_t tiers = 1 if settings.mid_max >= capacity else 2
    return min(tiers * RANGE_SHARE * capacity, (<size_t>1 << RANGE_BITS) - (<size_t>1 << settings.page_shift))


cdef int open_segment(pool_t* pool, const settings_t* settings) noexcept nogil:
    cdef size_t nbytes = pool.range_bytes - (pool.base - <size_t>pool.region)
    if not segment_init(&pool.segment, pool.base, nbytes, settings):
        return STATUS_HOST_MEMORY
    if settings.page_shift == 0:
        return STATUS_OK if region_first(pool) else STATUS_HOST_MEMORY
    pool.first = pool.segment.size
    pool.reserved = 0
    pool.mark_bytes = pool.capacity // MARK_SHARE
    return remap_fill(pool, settings.pages_first)


cdef int region_back(pool_t* pool, bint is_virtual) noexcept nogil:
    return remap_release(pool) if is_virtual else ask_region_back(pool)


cdef int pool_predict(pool_t* pool, const size_t* plan, int streams, int classes) noexcept nogil:
    cdef int status = enter(pool)
    if status != STATUS_OK:
        return status
    if learn_set_plan(&pool.learn, plan, streams, classes):
        pool.learn.predicts = True
        segment_admit_stream(&pool.segment, LEGACY)
    else:
        status = STATUS_HOST_MEMORY
    leave(pool)
    return status


cdef int pool_close(pool_t* pool) noexcept nogil:
    """Return the region to the driver, live blocks included. Closing twice does nothing the second time."""
    if not shut_down(pool) or driver_is_shut():         # at exit the region is the driver's to take back
        return STATUS_OK
    ask_no_events(pool)
    return remap_release(pool) if pool.segment.pages.shift != 0 else ask_regions_back(pool)


cdef void pool_destroy(pool_t* pool) noexcept nogil:
    seats_close(pool)
    segment_destroy(&pool.segment)
    regions_destroy(&pool.regions)
    tracer_destroy(pool.tracer_kept)
    pool.tracer_kept = NULL
    pool.heaps = NULL


cdef bint pool_is_closed(const pool_t* pool) noexcept nogil:
    return get_flag(&pool.closed)


cdef bint shut_down(pool_t* pool) noexcept nogil:
    """Close the pool and drop its bookkeeping; False where that is done, or the parent process's to do."""
    while True:
        if enter(pool) != STATUS_OK:
            return False
        leave(pool)
        lock_acquire(&pool.slow)
        enter_all(pool)
        if pool.closed:
            leave_all(pool)
            lock_release(&pool.slow)
            return False
        if pool.leaving == NULL and pool.waits == 0:
            break
        leave_all(pool)             # a call is in the middle of a driver call on the region
        lock_release(&pool.slow)
        sched_yield()
    set_flag(&pool.closed, True)
    leave_all(pool)
    spare_all_events(pool)
    lock_release(&pool.slow)
    segment_close(&pool.segment)    # others may be about to look whose slot an address is: pool_destroy() does the rest
    order_destroy(&pool.order)
    helds_destroy(&pool.helds)
    uses_destroy(&pool.uses)
    movables_destroy(&pool.movables)
    learn_drop_plan(&pool.learn)
    return True


# Growth and return

cdef int pool_trim(pool_t* pool, size_t keep, size_t* returned) noexcept nogil:
    cdef int status = slow_enter(pool)
    returned[0] = 0
    if status == STATUS_OK:
        status = growth_trim(pool, keep, returned)
        lock_release(&pool.slow)
    return status


cdef int pool_give_back(pool_t* pool, size_t wanted, size_t* returned) noexcept nogil:
    cdef int status = slow_enter(pool)
    returned[0] = 0
    if status == STATUS_OK:
        status = growth_give_back(pool, wanted, returned)
        lock_release(&pool.slow)
    return status


cdef void pool_set_release(pool_t* pool, size_t threshold) noexcept nogil:
    if enter(pool) == STATUS_OK:
        pool.release.threshold = threshold
        pool.releases = True
        leave(pool)


cdef void pool_release(pool_t* pool) noexcept nogil:
    """A fault does not matter: the block is freed, and the memory is there for a later try."""
    if slow_enter(pool) == STATUS_OK:
        release_run(pool)
        lock_release(&pool.slow)


cdef void pool_excuse(pool_t* pool) noexcept nogil:
    if enter(pool) == STATUS_OK:
        pool.oom_count -= 1
        leave(pool)


# Questions

cdef int pool_owns(pool_t* pool, const void* ptr, bint* owns) noexcept nogil:
    cdef place_t place
    cdef int status = enter_heaps(pool)
    owns[0] = False
    if status != STATUS_OK:
        return STATUS_OK if status == STATUS_CLOSED else status
    owns[0] = is_live(pool, ptr, &place)
    leave_all(pool)
    return STATUS_OK


cdef inline bint is_live(const pool_t* pool, const void* ptr, place_t* place) noexcept nogil:
    """Does a live block start there that is no movable one?"""
    cdef size_t offset = pool_offset(pool, ptr)
    return (offset < pool.segment.span and not is_leaving(pool, ptr)
            and segment_is_live(&pool.segment, offset, place) and not is_movable(place))


cdef int pool_size_of(pool_t* pool, const void* ptr, size_t* requested, size_t* used) noexcept nogil:
    """A live block is found while the seats go on; to say of another address what it is takes all locks."""
    cdef place_t place
    cdef bint found
    cdef int status = enter_heaps(pool)
    if status != STATUS_OK:
        return status
    found = is_live(pool, ptr, &place)
    leave_all(pool)
    if not found:
        status = enter(pool)
        if status != STATUS_OK:
            return status
        status = find_locked(pool, ptr, &place)
        leave(pool)
    if status == STATUS_OK:
        requested[0] = place.requested
        used[0] = place.used
    return status


cdef int pool_mem_info(pool_t* pool, size_t* free, size_t* total) noexcept nogil:
    return ask_mem_info(pool, free, total)


cdef int pool_get_stats(pool_t* pool, pool_stats_t* out) noexcept nogil:
    cdef int status = enter(pool)
    memset(out, 0, sizeof(pool_stats_t))
    if status == STATUS_OK:
        pool_stats_locked(pool, out)
        leave(pool)
    return status


cdef void pool_stats_locked(pool_t* pool, pool_stats_t* out) noexcept nogil:
    cdef tally_t total = segment_total(&pool.segment)
    cdef int tier
    out.capacity = pool.capacity
    out.reserved = pool.reserved
    out.reserved_high = pool.reserved_high
    out.grow_count = pool.grow_count
    out.trim_count = pool.trim_count
    out.used = total.used
    out.requested = total.requested
    segment_note(&pool.segment)
    segment_learn(&pool.segment)
    segment_highs(&pool.segment, &out.used_high, &out.requested_high)
    out.pending = segment_pending(&pool.segment)
    out.alloc_count = total.allocs - pool.defrag.moves
    out.free_count = total.frees - pool.defrag.moves
    out.oom_count = pool.oom_count
    out.defrag_count = pool.defrag.count
    out.free = (pool.segment.size if pool.segment.pages.shift == 0 else out.reserved) - total.used
    out.largest_free = segment_largest_free(&pool.segment)
    for tier in range(TIER_SLAB, TIERS):
        out.tier[tier] = segment_tally(&pool.segment, tier)
    memcpy(out.upstream, pool.upstream, sizeof(out.upstream))


cdef size_t pool_metadata(pool_t* pool) noexcept nogil:
    cdef size_t nbytes
    if enter(pool) != STATUS_OK:
        return 0
    nbytes = segment_metadata(&pool.segment)
    leave(pool)
    return nbytes


cdef const char* pool_check(pool_t* pool) noexcept nogil:
    cdef const char* broken
    if enter(pool) != STATUS_OK:
        return NULL
    broken = state_check(pool)
    leave(pool)
    return broken


cdef const char* pool_call_name(int call) noexcept nogil:
    return ask_call_name(call)


cdef void pool_skip_batches(pool_t* pool, uint32_t batch) noexcept nogil:
    if enter(pool) == STATUS_OK:
        pool.order.batch = batch
        leave(pool)


cdef void pool_ignore_streams(pool_t* pool) noexcept nogil:
    if enter(pool) == STATUS_OK:
        pool.unordered = True
        leave(pool)


cdef void spare_all_events(pool_t* pool) noexcept nogil:
    """Collect the events of all streams where they are destroyed; the pool is closed."""
    cdef int owner, at
    cdef stream_t* stream
    for owner in range(LEGACY, pool.order.streams):
        stream = &pool.order.stream[owner]
        for at in range(stream.marks):
            ask_keep_event(pool, stream.mark[at].event)
        stream.marks = 0
