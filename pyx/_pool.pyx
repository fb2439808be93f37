"""A pool: one segment behind its locks, the streams that its blocks are freed on, and the calls it makes to the driver.

Each call tries the shortest path first: with one heap's lock, then with `lock`, then with all of them. Where the driver
has to be asked, the slow paths here take `slow`, and let go of the others first.
"""

from libc.stdint cimport uint32_t, uintptr_t
from libc.string cimport memcpy, memset

from cuda_pool._ask cimport (
    ask_call_name, ask_is_open, ask_keep_event, ask_mem_info, ask_no_events, ask_region, ask_region_back,
    ask_regions_back, ask_stream_done, ask_zero)
from cuda_pool._behind cimport all_exist, behind_users, get_behind_or_wait
from cuda_pool._bins cimport BLOCK_SHIFT_MOST, cache_t, is_cache
from cuda_pool._bits cimport is_power_of_two, round_up
from cuda_pool._cache cimport cache_make, seat_add, seats_close
from cuda_pool._defrag cimport defrag_for, defrag_if_due, defrag_is_due, defrag_note
from cuda_pool._desk cimport desk_alloc, desk_free
from cuda_pool._driver cimport cudaEvent_t, cudaStream_t, driver_is_shut, driver_t
from cuda_pool._front cimport cache_of, named_cache
from cuda_pool._growth cimport (
    could_grow, growth_give_back, growth_trim, region_first, release_note, release_run)
from cuda_pool._happenings cimport happenings_refuse
from cuda_pool._held cimport helds_destroy, helds_init
from cuda_pool._identity cimport drop_stream, identify, identify_as
from cuda_pool._learn cimport learn_drop_plan, learn_set_plan
from cuda_pool._lock cimport lock_acquire, lock_release, sched_yield
from cuda_pool._locks cimport (
    enter, enter_all, enter_heaps, enter_lock, heaps_acquire, leave, leave_all, leave_lock, seat_key, wants_locks)
from cuda_pool._mid cimport MID_UNIT
from cuda_pool._movables cimport movables_destroy, movables_init
from cuda_pool._order cimport (
    LEGACY, STREAM_CAPTURE, STREAM_HANDLE, STREAM_HELD, STREAM_THREAD, STREAM_VOUCHED, THREAD_HANDLE,
    order_add, order_any_pending, order_destroy, order_find, order_glance, order_init, order_pass_mark, ref_is_valid,
    ref_to, stream_can_vanish, stream_is_pending, stream_t, this_thread)
from cuda_pool._owner cimport BATCH_RENEWED, NOBODY, batch_within, owners_add, owners_t
from cuda_pool._prepare cimport segment_admit_stream
from cuda_pool._region cimport regions_destroy
from cuda_pool._relaxed cimport get_flag, get_pointer, set_flag, set_pointer
from cuda_pool._remap cimport remap_fill, remap_release, remap_reserve
from cuda_pool._room cimport segment_largest_free
from cuda_pool._seat cimport (
    PLACES, SEAT_STAYS, SEAT_WAITS, load_u32, seat_enter, seat_find, seat_leave, seat_make, seat_place,
    seat_t)
from cuda_pool._segment cimport (
    TIERS, TIER_SLAB, is_movable, place_t, segment_admit, segment_alloc_large, segment_alloc_slot, segment_close, segment_destroy,
    segment_find, segment_free_bytes, segment_highs, segment_init, segment_is_cached, segment_is_last,
    segment_is_live, segment_is_upper, segment_metadata, segment_note_highs, segment_pending, segment_tally,
    segment_total)
from cuda_pool._shortage cimport (
    is_capturing, mark_stream, may_record, settle_before_capture, shortage_alloc, wait_for_all)
from cuda_pool._state cimport (
    MARK_SHARE, captured, find_locked, fork_counter, free_async_locked, free_locked, is_leaving, leave_locked,
    leaving_t, pool_address, pool_offset, record_use_locked, renew_batches_locked, serve_locked, settle_locked,
    state_check)
from cuda_pool._status cimport (
    STATUS_BAD_ALIGNMENT, STATUS_CAPTURING, STATUS_CLOSED, STATUS_HOST_MEMORY, STATUS_OK, STATUS_OUT_OF_MEMORY,
    STATUS_STREAMS, STATUS_WOULD_WAIT)
from cuda_pool._tally cimport tally_t
from cuda_pool._traced cimport (
    is_traced, traced_alloc, traced_free, traced_free_async, traced_try_alloc, traced_try_free, traced_try_free_async)
from cuda_pool._tracer cimport tracer_destroy
from cuda_pool._uses cimport uses_destroy

cdef enum:
    RANGE_SHARE = 4                 # addresses for each byte that a virtual pool may hold: see docs/internals/virtual
    CACHED_LEAST = 1 << 20          # bytes: smaller pools have nothing to keep in caches
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
        pool.range_bytes = min(RANGE_SHARE * capacity, (<size_t>1 << RANGE_BITS) - (<size_t>1 << settings.page_shift))
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


# Seats

cdef inline bint may_join(const pool_t* pool, size_t nbytes) noexcept nogil:
    return nbytes - 1 < <size_t>1 << BLOCK_SHIFT_MOST and not get_flag(&pool.closed) and pool.capacity >= CACHED_LEAST


cdef bint join_stream(pool_t* pool, const stream_ref_t* stream) noexcept nogil:
    """Let the calling thread have a cache for a stream; False where it has one, or the stream is not known for sure."""
    cdef seat_t* seat = seat_of(pool)
    cdef owner_t owner
    cdef bint joined = False
    if seat != NULL and is_cached(pool, seat, stream):
        return False
    if enter(pool) != STATUS_OK:
        return False
    if not wants_locks(pool):
        owner = known_locked(pool, stream)
        joined = is_sure(pool, owner, stream) and join_locked(pool, seat, owner)
    leave(pool)
    return joined


cdef bint is_cached(pool_t* pool, const seat_t* seat, const stream_ref_t* stream) noexcept nogil:
    """Is the seat stopped, or does it have what it can have for the stream? Others change caches with the pool's lock."""
    cdef const cache_t* cache
    cdef bint cached
    if load_u32(&seat.stopped) == SEAT_STAYS:
        return True
    if enter_lock(pool) != STATUS_OK:
        return False
    cache = named_cache(pool, seat, stream)
    cached = ((cache != NULL and is_cache(cache))
              or (stream.owner == NOBODY and <uintptr_t>stream.handle > THREAD_HANDLE
                  and not is_promised(pool, stream)))
    leave_lock(pool)
    return cached


cdef bint is_promised(const pool_t* pool, const stream_ref_t* stream) noexcept nogil:
    cdef const stream_t* record = &pool.order.stream[order_glance(&pool.order, stream.handle)]
    return record.handle == stream.handle and record.kind == STREAM_HELD


cdef bint join_for(pool_t* pool, const void* ptr) noexcept nogil:
    """The same for whoever's a slot is that is freed; where it is a block of nobody's, for the default stream."""
    cdef seat_t* seat = seat_of(pool)
    cdef size_t offset = pool_offset(pool, ptr)
    cdef place_t place
    cdef owner_t owner
    cdef bint joined = False
    if not may_join(pool, 1) or (seat != NULL and (load_u32(&seat.stopped) == SEAT_STAYS or seat.wanted == NOBODY)):
        return False
    if enter(pool) != STATUS_OK:
        return False
    if not wants_locks(pool) and offset < pool.segment.span and segment_is_live(&pool.segment, offset, &place):
        owner = place.owner if place.owner != NOBODY else <owner_t>LEGACY
        joined = (seat == NULL or not is_cache(seat.cache[owner])) and join_locked(pool, seat, owner)
    if seat != NULL:
        seat.wanted = NOBODY
    leave(pool)
    return joined


cdef seat_t* seat_of(pool_t* pool) noexcept nogil:
    cdef seat_t** place = seat_place(pool.place)
    cdef seat_t* seat = place[0]
    if seat == NULL or get_pointer(<void* const*>&seat.pool) != pool:
        seat = seat_find(pool, place)
    return seat


cdef bint join_locked(pool_t* pool, seat_t* seat, owner_t owner) noexcept nogil:
    if seat == NULL:
        seat = seat_make(pool, seat_place(pool.place))
        if seat == NULL:
            return False
        seat_add(pool, seat)
    seat.recent = owner
    return cache_make(pool, seat, owner) != NULL


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


# A plain handle is a reference without a record: NOBODY.

cdef int serve_at(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream, void** ptr,
                  seat_t* seat) noexcept nogil:
    cdef stream_ref_t ref
    cdef cache_t* cache
    if seat == NULL:
        ref = by_handle(stream)
        return serve(pool, nbytes, alignment, &ref, ptr)
    cache = cache_of(pool, seat, stream)
    if cache != NULL and desk_alloc(pool, seat, cache, nbytes, alignment, ptr):
        seat_leave(seat)
        return STATUS_OK
    seat_leave(seat)
    ref = by_handle(stream)
    return serve_elsewhere(pool, nbytes, alignment, &ref, ptr)


cdef int serve(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream, void** ptr) noexcept nogil:
    if is_power_of_two(alignment) and alloc_with(pool, sit_down(pool, pool), nbytes, alignment, stream, ptr):
        return STATUS_OK
    return serve_elsewhere(pool, nbytes, alignment, stream, ptr)


cdef int serve_elsewhere(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                         void** ptr) noexcept nogil:
    """The same where the thread is not at its seat, or that did not serve it."""
    ptr[0] = NULL
    if not is_power_of_two(alignment):
        return STATUS_BAD_ALIGNMENT
    if is_traced(pool):
        return traced_alloc(pool, nbytes, alignment, stream, ptr)
    return finish_alloc(pool, nbytes, alignment, stream, ptr, try_serve_without(pool, nbytes, alignment, stream, ptr))


cdef int try_serve(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream, void** ptr) noexcept nogil:
    """Serve a request at the thread's seat after all, or else with the locks that it takes."""
    ptr[0] = NULL
    if not is_power_of_two(alignment):
        return STATUS_BAD_ALIGNMENT
    if alloc_with(pool, sit_down(pool, pool), nbytes, alignment, stream, ptr):
        return STATUS_OK
    if is_traced(pool):
        return traced_try_alloc(pool, nbytes, alignment, stream, ptr)
    return try_serve_without(pool, nbytes, alignment, stream, ptr)


cdef int serve_unnoted(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                       void** ptr) noexcept nogil:
    return finish_alloc(pool, nbytes, alignment, stream, ptr, try_serve_unnoted(pool, nbytes, alignment, stream, ptr))


cdef int finish_alloc(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream, void** ptr,
                      int status) noexcept nogil:
    if status == STATUS_WOULD_WAIT:
        status = alloc_slowly(pool, nbytes, alignment, stream, ptr)
    if status == STATUS_OUT_OF_MEMORY:
        happenings_refuse(&pool.happenings, nbytes)
    return status


cdef int try_serve_unnoted(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                           void** ptr) noexcept nogil:
    ptr[0] = NULL
    if not is_power_of_two(alignment):
        return STATUS_BAD_ALIGNMENT
    if alloc_with(pool, sit_down(pool, seat_key(pool)), nbytes, alignment, stream, ptr):
        return STATUS_OK
    return try_serve_without(pool, nbytes, alignment, stream, ptr)


cdef int try_serve_without(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                           void** ptr) noexcept nogil:
    """The same where the seat does not serve it: with a cache for the stream, or with locks."""
    cdef owner_t owner
    cdef int status
    if (may_join(pool, nbytes) and join_stream(pool, stream)
            and alloc_with(pool, sit_down(pool, seat_key(pool)), nbytes, alignment, stream, ptr)):
        return STATUS_OK
    if try_alloc_large(pool, nbytes, alignment, stream, ptr) or try_alloc_slab(pool, nbytes, alignment, stream, ptr):
        return STATUS_OK
    status = enter(pool)
    if status != STATUS_OK:
        return status
    owner = named_locked(pool, stream)
    if may_reuse(pool, owner, stream) and not defrag_is_due(pool):
        status = alloc_locked(pool, owner, nbytes, alignment, ptr)
    else:
        status = STATUS_WOULD_WAIT
    pool.oom_count += status == STATUS_OUT_OF_MEMORY
    leave(pool)
    return status


cdef seat_t* sit_down(pool_t* pool, const void* key) noexcept nogil:
    """Wait for whoever has stopped the seat, if that will not be long: two threads that each went on with all locks
    instead would stop each other for ever. Once, for a thread that is stopped again has to get on as well.

    The key is the pool for a call that leaves no note: while calls are recorded it does not open the gate.
    """
    cdef seat_t** place = seat_place(pool.place)
    cdef seat_t* seat = seat_enter(place[0], key)
    if seat == NULL and is_waiting(pool, place[0]):
        lock_acquire(&pool.lock)
        lock_release(&pool.lock)
        seat = seat_enter(place[0], key)
    return seat


cdef inline bint is_waiting(const pool_t* pool, seat_t* seat) noexcept nogil:
    return (seat != NULL and get_pointer(<void* const*>&seat.pool) == pool and load_u32(&seat.stopped) == SEAT_WAITS)


cdef bint alloc_with(pool_t* pool, seat_t* seat, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                     void** ptr) noexcept nogil:
    cdef cache_t* cache
    cdef bint done
    if seat == NULL:
        return False
    cache = named_cache(pool, seat, stream)
    done = cache != NULL and desk_alloc(pool, seat, cache, nbytes, alignment, ptr)
    seat_leave(seat)
    return done


cdef bint free_with(pool_t* pool, seat_t* seat, void* ptr, const stream_ref_t* stream) noexcept nogil:
    """Free a block for anyone, or, where a stream is given, in its order."""
    cdef cache_t* cache
    cdef bint done
    if seat == NULL:
        return False
    cache = named_cache(pool, seat, stream) if stream != NULL else NULL
    done = (stream == NULL or cache != NULL) and desk_free(pool, seat, cache, ptr)
    seat_leave(seat)
    return done


cdef bint try_alloc_large(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                          void** ptr) noexcept nogil:
    """Serve a request from the two upper tiers, for which no heap is locked; False, and nothing changed, otherwise."""
    cdef owner_t owner
    cdef size_t offset = 0, used = 0
    cdef bint done = False
    if enter_lock(pool) != STATUS_OK:
        return False
    owner = known_locked(pool, stream)
    if (nbytes > pool.segment.slabs.max and pool.order.captures == 0 and may_reuse(pool, owner, stream)
            and not pool.defrag.due):
        done = segment_alloc_large(&pool.segment, owner, nbytes, alignment, &offset, &used) == STATUS_OK
        defrag_note(pool)
    if done:
        ptr[0] = pool_address(pool, offset)
    leave_lock(pool)
    return done


cdef bint try_alloc_slab(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                         void** ptr) noexcept nogil:
    """Serve a request from a new slab of the stream's, while the seats go on; False, and nothing changed, otherwise."""
    cdef owner_t owner
    cdef size_t offset = 0, used = 0
    cdef bint done = False
    if nbytes - 1 >= pool.segment.slabs.max or enter_heaps(pool) != STATUS_OK:
        return False
    owner = known_locked(pool, stream)
    if (not wants_locks(pool) and pool.helds.bytes == 0 and may_reuse(pool, owner, stream) and not pool.defrag.due):
        done = segment_alloc_slot(&pool.segment, owner, nbytes, alignment, &offset, &used) == STATUS_OK
    if done:
        ptr[0] = pool_address(pool, offset)
    leave_all(pool)
    return done


cdef int take_back_at(pool_t* pool, void* ptr, seat_t* seat) noexcept nogil:
    cdef bint done
    if seat == NULL:
        return take_back(pool, ptr)
    done = desk_free(pool, seat, NULL, ptr)
    seat_leave(seat)
    return STATUS_OK if done else take_back_elsewhere(pool, ptr)


cdef int take_back(pool_t* pool, void* ptr) noexcept nogil:
    if ptr != NULL and free_with(pool, sit_down(pool, pool), ptr, NULL):
        return STATUS_OK
    return take_back_elsewhere(pool, ptr)


cdef int take_back_elsewhere(pool_t* pool, void* ptr) noexcept nogil:
    """The same where the thread is not at its seat, or that did not take it."""
    if ptr == NULL:
        return finish_free(pool, ptr, STATUS_OK)
    if is_traced(pool):
        return traced_free(pool, ptr)
    return finish_free(pool, ptr, try_take_back_without(pool, ptr))


cdef int take_back_unnoted(pool_t* pool, void* ptr) noexcept nogil:
    return finish_free(pool, ptr, try_take_back_unnoted(pool, ptr))


cdef inline int finish_free(pool_t* pool, void* ptr, int status) noexcept nogil:
    if status == STATUS_WOULD_WAIT:
        status = free_scrubbing(pool, ptr)
    if get_flag(&pool.release_due):
        pool_release(pool)
    return status


cdef int free_scrubbing(pool_t* pool, void* ptr) noexcept nogil:
    """Overwrite a block on the default stream, and wait for that: a capture forbids both."""
    cdef leaving_t block
    cdef int status = slow_enter(pool)
    if status != STATUS_OK:
        return status
    status = leaving_begin(pool, ptr, &block)
    if status == STATUS_OK:
        status = STATUS_CAPTURING if is_capturing(pool) else zero_in_order(pool, &block, LEGACY, NULL)
        lock_release(&pool.slow)
        if status == STATUS_OK:
            status = ask_stream_done(pool, NULL)
        return leaving_end(pool, &block, status, NOBODY)
    lock_release(&pool.slow)
    return status


cdef int try_take_back(pool_t* pool, void* ptr) noexcept nogil:
    if ptr == NULL or free_with(pool, sit_down(pool, pool), ptr, NULL):
        return STATUS_OK
    return traced_try_free(pool, ptr) if is_traced(pool) else try_take_back_without(pool, ptr)


cdef int try_take_back_unnoted(pool_t* pool, void* ptr) noexcept nogil:
    if ptr == NULL or free_with(pool, sit_down(pool, seat_key(pool)), ptr, NULL):
        return STATUS_OK
    return try_take_back_without(pool, ptr)


cdef int try_take_back_without(pool_t* pool, void* ptr) noexcept nogil:
    """The same where the seat does not take it: with a cache that it fits in, or with locks."""
    if pool.scrub:
        return STATUS_WOULD_WAIT
    if join_for(pool, ptr) and free_with(pool, sit_down(pool, seat_key(pool)), ptr, NULL):
        return STATUS_OK
    return free_with_locks(pool, ptr)


cdef int free_with_locks(pool_t* pool, void* ptr) noexcept nogil:
    cdef int status = enter_for(pool, ptr)
    if status == STATUS_OK:
        status = free_locked(pool, ptr)
        if pool.releases:
            release_note(pool)
        leave_all(pool)
    return status


cdef int enter_for(pool_t* pool, const void* ptr) noexcept nogil:
    """Take the locks that a block's free needs: `lock` alone, unless it is a slot, or no block at all.

    With the last block all caches are emptied, so that where nothing is live the segment is as it was at first.
    """
    cdef size_t offset = pool_offset(pool, ptr)
    cdef int status = enter_lock(pool)
    if status != STATUS_OK:
        return status
    pool.heaps_held = 0
    if (offset >= pool.segment.span or not segment_is_upper(&pool.segment, offset)
            or segment_is_cached(&pool.segment, offset) or segment_is_last(&pool.segment, offset)):
        heaps_acquire(pool)
    return STATUS_OK


cdef int take_back_async_at(pool_t* pool, void* ptr, cudaStream_t stream, seat_t* seat) noexcept nogil:
    cdef stream_ref_t ref
    cdef cache_t* cache
    if seat == NULL:
        ref = by_handle(stream)
        return take_back_async(pool, ptr, &ref)
    cache = cache_of(pool, seat, stream)
    if cache != NULL and desk_free(pool, seat, cache, ptr):
        seat_leave(seat)
        return STATUS_OK
    seat_leave(seat)
    ref = by_handle(stream)
    return take_back_async_elsewhere(pool, ptr, &ref)


cdef int take_back_async(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    if ptr != NULL and free_with(pool, sit_down(pool, pool), ptr, stream):
        return STATUS_OK
    return take_back_async_elsewhere(pool, ptr, stream)


cdef int take_back_async_elsewhere(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    """The same where the thread is not at its seat, or that did not take it."""
    if ptr == NULL:
        return finish_free_async(pool, ptr, stream, STATUS_OK)
    if is_traced(pool):
        return traced_free_async(pool, ptr, stream)
    return finish_free_async(pool, ptr, stream, try_take_back_async_without(pool, ptr, stream))


cdef int take_back_async_unnoted(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    return finish_free_async(pool, ptr, stream, try_take_back_async_unnoted(pool, ptr, stream))


cdef inline int finish_free_async(pool_t* pool, void* ptr, const stream_ref_t* stream, int status) noexcept nogil:
    if status == STATUS_WOULD_WAIT:
        status = free_async_slowly(pool, ptr, stream)
    if get_flag(&pool.release_due):
        pool_release(pool)
    return status


cdef int try_take_back_async(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    if ptr == NULL or free_with(pool, sit_down(pool, pool), ptr, stream):
        return STATUS_OK
    if is_traced(pool):
        return traced_try_free_async(pool, ptr, stream)
    return try_take_back_async_without(pool, ptr, stream)


cdef int try_take_back_async_unnoted(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    if ptr == NULL or free_with(pool, sit_down(pool, seat_key(pool)), ptr, stream):
        return STATUS_OK
    return try_take_back_async_without(pool, ptr, stream)


cdef int try_take_back_async_without(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    if (may_join(pool, 1) and join_stream(pool, stream)
            and free_with(pool, sit_down(pool, seat_key(pool)), ptr, stream)):
        return STATUS_OK
    return free_async_with_locks(pool, ptr, stream)


cdef int free_async_with_locks(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    cdef owner_t owner
    cdef int status
    status = enter_for(pool, ptr)
    if status != STATUS_OK:
        return status
    owner = known_locked(pool, stream)
    if owner == NOBODY and pool.heaps_held == 0:    # a record may have to be made
        heaps_acquire(pool)
        owner = named_locked(pool, stream)
    if is_sure(pool, owner, stream):
        status = try_free_async_locked(pool, ptr, owner)
    else:
        status = STATUS_WOULD_WAIT
    if pool.releases:
        release_note(pool)
    leave_all(pool)
    return status


cdef int pool_record_use(pool_t* pool, void* ptr, cudaStream_t stream) noexcept nogil:
    cdef stream_ref_t ref = by_handle(stream)
    return pool_record_use_as(pool, ptr, &ref)


cdef int pool_record_use_as(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    cdef owner_t owner
    cdef int status
    if ptr == NULL:
        return STATUS_OK
    status = enter(pool)
    if status != STATUS_OK:
        return status
    owner = named_locked(pool, stream)
    if is_sure(pool, owner, stream):
        status = record_use_locked(pool, ptr, captured(pool, owner))
    else:
        status = STATUS_WOULD_WAIT
    leave(pool)
    return record_use_slowly(pool, ptr, stream) if status == STATUS_WOULD_WAIT else status


# Streams

cdef int pool_stream_wait(pool_t* pool, cudaStream_t stream) noexcept nogil:
    return ask_stream_done(pool, stream)


cdef int pool_forget_stream(pool_t* pool, cudaStream_t stream) noexcept nogil:
    """Its work is waited for only if something is pending on it, or some block's free would have to wait for it."""
    cdef owner_t owner
    cdef uint32_t batch = 0
    cdef bint another
    cdef int status = slow_enter(pool)
    if status != STATUS_OK:
        return status
    owner = find_again(pool, stream, &batch, &another)
    if another:                                 # what an old stream with this handle freed is not done yet
        status = identify(pool, stream, &owner)
    if status == STATUS_OK and owner != NOBODY:
        status = await_stream(pool, stream, owner)
    if status == STATUS_OK and owner != NOBODY:
        if owner == LEGACY:
            legacy_done(pool, batch)
        else:
            drop_stream(pool, owner)
    lock_release(&pool.slow)
    return status


cdef owner_t find_again(pool_t* pool, cudaStream_t stream, uint32_t* batch, bint* another) noexcept nogil:
    """Find the record of a stream, which may be another stream's, and end the batch that is being freed."""
    cdef owner_t owner
    enter_all(pool)
    owner = order_find(&pool.order, stream)
    another[0] = can_be_another(&pool.order.stream[owner])
    batch[0] = pool.order.batch
    pool.order.batch += 1
    leave_all(pool)
    return owner


cdef int await_stream(pool_t* pool, cudaStream_t stream, owner_t owner) noexcept nogil:
    """Wait for a stream that is not captured, if something is or may be pending on it."""
    cdef bint is_captured, pending
    lock_acquire(&pool.lock)
    is_captured = pool.order.stream[owner].capture != NOBODY
    pending = (stream_is_pending(&pool.order.stream[owner]) or pool.order.stream[owner].homes != 0
               or pool.uses.count != 0)
    lock_release(&pool.lock)
    if is_captured:
        return STATUS_CAPTURING
    return ask_stream_done(pool, stream) if pending else STATUS_OK


cdef void legacy_done(pool_t* pool, uint32_t batch) noexcept nogil:
    """The default stream is there for ever: only its frees are settled."""
    cdef stream_t* stream = &pool.order.stream[LEGACY]
    cdef cudaEvent_t event
    while stream.marks != 0 and batch_within(stream.mark[0].batch, batch):
        lock_acquire(&pool.lock)
        event = order_pass_mark(&pool.order, LEGACY)
        lock_release(&pool.lock)
        ask_keep_event(pool, event)
    enter_all(pool)
    stream.done = batch
    settle_locked(pool)
    leave_all(pool)


cdef int pool_hold_stream(pool_t* pool, cudaStream_t stream) noexcept nogil:
    cdef owner_t owner
    cdef int status = slow_enter(pool)
    if status != STATUS_OK:
        return status
    status = identify_as(pool, stream, STREAM_HELD, &owner)
    lock_release(&pool.slow)
    return STATUS_STREAMS if status == STATUS_OK and owner == NOBODY else status


cdef int pool_vouch_stream(pool_t* pool, cudaStream_t stream, stream_ref_t* ref) noexcept nogil:
    cdef owner_t owner = NOBODY
    cdef int status = slow_enter(pool)
    if status != STATUS_OK:
        return status
    status = identify_as(pool, stream, STREAM_VOUCHED, &owner)
    ref[0] = ref_to(&pool.order, owner, stream)
    lock_release(&pool.slow)
    return status


cdef stream_ref_t pool_find_stream(pool_t* pool, cudaStream_t stream) noexcept nogil:
    cdef stream_ref_t ref
    cdef owner_t owner
    ref.owner, ref.serial, ref.handle = NOBODY, 0, stream
    if enter(pool) == STATUS_OK:
        owner = stream_locked(pool, stream)
        ref = ref_to(&pool.order, owner, stream)
        leave(pool)
    return ref


cdef void pool_stream_exists(pool_t* pool, const stream_ref_t* stream, bint exists) noexcept nogil:
    if enter(pool) != STATUS_OK:
        return
    if ref_is_valid(&pool.order, stream):
        pool.order.stream[stream.owner].fresh = exists
    leave(pool)


cdef void pool_unvouch_stream(pool_t* pool, const stream_ref_t* stream) noexcept nogil:
    if enter(pool) != STATUS_OK:
        return
    if ref_is_valid(&pool.order, stream) and pool.order.stream[stream.owner].kind == STREAM_VOUCHED:
        pool.order.stream[stream.owner].kind = STREAM_HANDLE
    leave(pool)


cdef bint pool_stream_is_pending(pool_t* pool, const stream_ref_t* stream) noexcept nogil:
    cdef bint pending
    if enter(pool) != STATUS_OK:
        return False
    pending = ref_is_valid(&pool.order, stream) and (stream_is_pending(&pool.order.stream[stream.owner])
                                                     or pool.order.stream[stream.owner].homes != 0)
    leave(pool)
    return pending


cdef int pool_begin_capture(pool_t* pool, cudaStream_t stream, owner_t* capture) noexcept nogil:
    cdef owner_t owner
    cdef int status = slow_enter(pool)
    if status != STATUS_OK:
        return status
    status = identify(pool, stream, &owner)
    if status == STATUS_OK:
        settle_before_capture(pool, owner)
        status = begin_capture(pool, owner, capture)
    lock_release(&pool.slow)
    return status


cdef int begin_capture(pool_t* pool, owner_t owner, owner_t* capture) noexcept nogil:
    cdef int status
    if owner == NOBODY:
        return STATUS_STREAMS
    status = enter(pool)
    if status != STATUS_OK:
        return status
    if pool.order.stream[owner].capture != NOBODY:
        status = STATUS_CAPTURING
    else:
        capture[0] = order_add(&pool.order, STREAM_CAPTURE, pool.order.stream[owner].handle, 0)
        status = STATUS_OK if capture[0] != NOBODY else STATUS_STREAMS
    if status == STATUS_OK:
        segment_admit(&pool.segment, capture[0])
        owners_add(&pool.segment.captures, capture[0])
        pool.order.stream[owner].capture = capture[0]
        pool.order.captures += 1
    leave(pool)
    return status


cdef int pool_end_capture(pool_t* pool, owner_t capture) noexcept nogil:
    cdef int owner
    cdef int status = enter(pool)
    if status != STATUS_OK:
        return status
    for owner in range(LEGACY, pool.order.streams):
        if pool.order.stream[owner].capture == capture:
            pool.order.stream[owner].capture = NOBODY
            pool.order.captures -= 1
    leave(pool)
    return status


cdef int pool_release_capture(pool_t* pool, owner_t capture, const cudaStream_t* last) noexcept nogil:
    cdef owner_t owner = NOBODY
    cdef int status = slow_enter(pool)
    if status != STATUS_OK:
        return status
    if last != NULL:
        status = identify(pool, last[0], &owner)
        if status == STATUS_OK and owner == NOBODY:     # no record for it: its work is waited for instead
            status = ask_stream_done(pool, last[0])
    if status == STATUS_OK:
        enter_all(pool)
        leave_locked(pool, capture, owner)
        leave_all(pool)
    lock_release(&pool.slow)
    return status


# Questions

cdef int pool_owns(pool_t* pool, const void* ptr, bint* owns) noexcept nogil:
    cdef place_t place
    cdef size_t offset = pool_offset(pool, ptr)
    cdef int status = enter_heaps(pool)
    owns[0] = False
    if status != STATUS_OK:
        return STATUS_OK if status == STATUS_CLOSED else status
    if offset < pool.segment.span and not is_leaving(pool, ptr):
        owns[0] = segment_is_live(&pool.segment, offset, &place) and not is_movable(&place)
    leave(pool)
    return STATUS_OK


cdef int pool_size_of(pool_t* pool, const void* ptr, size_t* requested, size_t* used) noexcept nogil:
    """A live block is found while the seats go on; to say of another address what it is takes all locks."""
    cdef place_t place
    cdef size_t offset = pool_offset(pool, ptr)
    cdef bint found = False
    cdef int status = enter_heaps(pool)
    if status != STATUS_OK:
        return status
    if offset < pool.segment.span and not is_leaving(pool, ptr):
        found = segment_is_live(&pool.segment, offset, &place) and not is_movable(&place)
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
    segment_note_highs(&pool.segment)
    segment_highs(&pool.segment, &out.used_high, &out.requested_high)
    out.pending = segment_pending(&pool.segment)
    out.alloc_count = total.allocs - pool.defrag.moves
    out.free_count = total.frees - pool.defrag.moves
    out.oom_count = pool.oom_count
    out.defrag_count = pool.defrag.count
    out.free = (pool.segment.size if pool.segment.pages.shift == 0 else out.reserved) - total.used
    out.largest_free = min(segment_largest_free(&pool.segment), out.free)       # without growing
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


# Under the locks

cdef inline int alloc_locked(pool_t* pool, owner_t owner, size_t nbytes, size_t alignment, void** ptr) noexcept nogil:
    cdef int status
    if nbytes == 0:
        return STATUS_OK
    if pool.order.captures != 0:
        owner = captured(pool, owner)
    status = serve_locked(pool, owner, nbytes, alignment, ptr)
    return refuse_locked(pool, owner, nbytes) if status == STATUS_OUT_OF_MEMORY else status


cdef int refuse_locked(pool_t* pool, owner_t owner, size_t nbytes) noexcept nogil:
    """Is a request hopeless, or could the driver help?"""
    if pool.order.stream[owner].kind != STREAM_CAPTURE and nbytes <= segment_free_bytes(&pool.segment):
        if pool.helds.bytes != 0 or pool.movables.count != 0 or order_any_pending(&pool.order, owner):
            return STATUS_WOULD_WAIT
        if pool.segment.pages.shift != 0:
            return STATUS_WOULD_WAIT
    if could_grow(pool, owner, nbytes):
        return STATUS_WOULD_WAIT
    return STATUS_OUT_OF_MEMORY


cdef int try_free_async_locked(pool_t* pool, void* ptr, owner_t owner) noexcept nogil:
    cdef const stream_t* stream = &pool.order.stream[owner]
    cdef size_t unmarked
    cdef place_t place
    if pool.scrub or owner == NOBODY:
        return STATUS_WOULD_WAIT
    if stream_can_vanish(stream) and find_locked(pool, ptr, &place) == STATUS_OK:
        unmarked = stream.unmarked + place.used
        if pool.heaps_held != 0:
            unmarked += pool.heaps[owner].unmarked
        if is_worth_an_event(pool, stream, unmarked):
            return STATUS_WOULD_WAIT
    if pool.heaps_held != 0:
        count_unmarked(pool, owner)
    return free_async_locked(pool, ptr, captured(pool, owner))


cdef inline void count_unmarked(pool_t* pool, owner_t owner) noexcept nogil:
    """Count what was freed on the stream with its heap's lock alone."""
    pool.order.stream[owner].unmarked += pool.heaps[owner].unmarked
    pool.heaps[owner].unmarked = 0


cdef inline bint is_worth_an_event(const pool_t* pool, const stream_t* stream, size_t unmarked) noexcept nogil:
    """Is so much without an event that others should not have to wait for the whole device to get it?"""
    if pool.order.streams <= LEGACY + 2 and not stream_is_pending(&pool.order.stream[LEGACY]):
        return False                            # there are no others
    return stream.capture == NOBODY and unmarked >= pool.mark_bytes


cdef inline bint can_be_another(const stream_t* stream) noexcept nogil:
    """May its handle name another stream by now?"""
    return stream.kind == STREAM_HANDLE or stream.kind == STREAM_VOUCHED


cdef inline stream_ref_t by_handle(cudaStream_t handle) noexcept nogil:
    cdef stream_ref_t ref
    ref.owner, ref.serial, ref.handle = NOBODY, 0, handle
    return ref


cdef inline owner_t named_locked(pool_t* pool, const stream_ref_t* stream) noexcept nogil:
    """The record of a stream, or NOBODY if it has none any more."""
    if stream.owner == NOBODY:
        return stream_locked(pool, stream.handle)
    return stream.owner if ref_is_valid(&pool.order, stream) else <owner_t>NOBODY


cdef inline owner_t known_locked(pool_t* pool, const stream_ref_t* stream) noexcept nogil:
    """The same with `lock` alone, under which no record is made."""
    if stream.owner == NOBODY:
        return order_find(&pool.order, stream.handle)
    return stream.owner if ref_is_valid(&pool.order, stream) else <owner_t>NOBODY


cdef inline bint is_sure(const pool_t* pool, owner_t owner, const stream_ref_t* stream) noexcept nogil:
    """Is the record that of the stream that was named, and not of an earlier one with the same handle?"""
    return owner != NOBODY and (stream.owner != NOBODY or not can_be_another(&pool.order.stream[owner]))


cdef inline bint may_reuse(const pool_t* pool, owner_t owner, const stream_ref_t* stream) noexcept nogil:
    """May it have what the record's stream freed: is it that stream, or is nothing pending there?"""
    return is_sure(pool, owner, stream) or (owner != NOBODY and not stream_is_pending(&pool.order.stream[owner]))


cdef inline owner_t stream_locked(pool_t* pool, cudaStream_t stream) noexcept nogil:
    """The record of a handle; that of a thread's default stream is made where there is none."""
    cdef owner_t owner = order_find(&pool.order, stream)
    if owner == NOBODY and <uintptr_t>stream == THREAD_HANDLE:
        owner = order_add(&pool.order, STREAM_THREAD, stream, this_thread())
        if owner != NOBODY:
            segment_admit_stream(&pool.segment, owner)
    return owner


# Slowly: with `slow` held

cdef int slow_enter(pool_t* pool) noexcept nogil:
    """Take `slow` of an open pool."""
    cdef int status = enter(pool)
    if status != STATUS_OK:
        return status
    leave(pool)
    lock_acquire(&pool.slow)
    if pool.order.batch >= BATCH_RENEWED:
        renew_batches(pool)
    status = enter(pool)
    if status == STATUS_OK:
        leave(pool)
    else:
        lock_release(&pool.slow)
    return status


cdef void renew_batches(pool_t* pool) noexcept nogil:
    """Where frees go on meanwhile, the next call tries again: there are as many batches left as were used."""
    if not is_capturing(pool) and wait_for_all(pool) == STATUS_OK:
        enter_all(pool)
        if not pool.closed and pool.waits == 0:     # one that waits has a batch in mind
            renew_batches_locked(pool)
        leave_all(pool)


cdef int alloc_slowly(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                      void** ptr) noexcept nogil:
    cdef int status
    defrag_if_due(pool)
    status = alloc_asking(pool, nbytes, alignment, stream, ptr)
    if status == STATUS_OUT_OF_MEMORY and defrag_for(pool, nbytes, alignment):
        status = alloc_asking(pool, nbytes, alignment, stream, ptr)
    if status == STATUS_OUT_OF_MEMORY:
        lock_acquire(&pool.lock)
        pool.oom_count += 1
        lock_release(&pool.lock)
    return status


cdef int alloc_asking(pool_t* pool, size_t nbytes, size_t alignment, const stream_ref_t* stream,
                      void** ptr) noexcept nogil:
    cdef owner_t owner
    cdef int status = slow_enter(pool)
    if status != STATUS_OK:
        return status
    status = identify_ref(pool, stream, &owner)
    if status == STATUS_OK:
        status = alloc_waiting(pool, nbytes, alignment, owner, ptr)
    lock_release(&pool.slow)
    return status


cdef int free_async_slowly(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    cdef owner_t owner
    cdef int status = slow_enter(pool)
    if status != STATUS_OK:
        return status
    status = identify_ref(pool, stream, &owner)
    if status == STATUS_OK:
        status = free_async_marking(pool, ptr, owner, stream.handle)
    lock_release(&pool.slow)
    return status


cdef int identify_ref(pool_t* pool, const stream_ref_t* stream, owner_t* owner) noexcept nogil:
    """The record that was looked up before, if it is still that stream's: with `slow` held it stays so."""
    cdef bint valid
    lock_acquire(&pool.lock)
    valid = ref_is_valid(&pool.order, stream)
    lock_release(&pool.lock)
    if not valid:
        return identify(pool, stream.handle, owner)
    owner[0] = stream.owner
    return STATUS_OK


cdef int record_use_slowly(pool_t* pool, void* ptr, const stream_ref_t* stream) noexcept nogil:
    cdef owner_t owner
    cdef int status = slow_enter(pool)
    if status != STATUS_OK:
        return status
    status = identify_ref(pool, stream, &owner)
    if status == STATUS_OK and owner == NOBODY:
        status = STATUS_STREAMS
    if status == STATUS_OK:
        status = enter(pool)
        if status == STATUS_OK:
            status = record_use_locked(pool, ptr, captured(pool, owner))
            leave(pool)
    lock_release(&pool.slow)
    return status


cdef int alloc_waiting(pool_t* pool, size_t nbytes, size_t alignment, owner_t owner, void** ptr) noexcept nogil:
    cdef int status = enter(pool)
    if status != STATUS_OK:
        return status
    status = alloc_locked(pool, owner, nbytes, alignment, ptr)
    owner = captured(pool, owner)
    leave(pool)
    return shortage_alloc(pool, owner, nbytes, alignment, ptr) if status == STATUS_WOULD_WAIT else status


cdef int free_async_marking(pool_t* pool, void* ptr, owner_t owner, cudaStream_t stream) noexcept nogil:
    cdef int status
    cdef bint worth_marking
    if pool.scrub or owner == NOBODY:
        if is_of_another_thread(pool, owner):
            status = wait_for_all(pool)         # another thread's stream, which has no name here
            return free_in_order(pool, ptr, LEGACY, NULL) if status == STATUS_OK else status
        return free_in_order(pool, ptr, owner, stream)
    status = enter(pool)
    if status != STATUS_OK:
        return status
    status = free_async_locked(pool, ptr, captured(pool, owner))
    count_unmarked(pool, owner)
    worth_marking = status == STATUS_OK and is_worth_marking(pool, &pool.order.stream[owner])
    leave(pool)
    if worth_marking:
        mark_stream(pool, owner)                # if it fails, a later event will do
    return status


cdef bint is_of_another_thread(pool_t* pool, owner_t owner) noexcept nogil:
    cdef const stream_t* stream = &pool.order.stream[owner]
    cdef bint is_thread
    lock_acquire(&pool.lock)
    is_thread = stream.kind == STREAM_THREAD and not may_record(stream, True)
    lock_release(&pool.lock)
    return is_thread


cdef bint is_worth_marking(const pool_t* pool, const stream_t* stream) noexcept nogil:
    return (stream_can_vanish(stream) and is_worth_an_event(pool, stream, stream.unmarked)
            and may_record(stream, True))


cdef int free_in_order(pool_t* pool, void* ptr, owner_t owner, cudaStream_t stream) noexcept nogil:
    """Overwrite a block on the stream before it is freed there; wait for the stream where it cannot be noted."""
    cdef leaving_t block
    cdef int status = leaving_begin(pool, ptr, &block)
    if status != STATUS_OK:
        return status
    if pool.scrub:
        status = zero_in_order(pool, &block, owner, stream)
    if status == STATUS_OK and owner == NOBODY:
        status = ask_stream_done(pool, stream)
    return leaving_end(pool, &block, status, owner)


cdef int zero_in_order(pool_t* pool, const leaving_t* block, owner_t owner, cudaStream_t stream) noexcept nogil:
    """Overwrite a block on a stream behind the work of all others that may use it."""
    cdef place_t place
    cdef owners_t users
    cdef owner_t asker
    cdef uint32_t batch
    cdef bint any
    cdef int status = enter(pool)
    if status != STATUS_OK:
        return status
    segment_find(&pool.segment, pool_offset(pool, block.ptr), &place)
    any = behind_users(pool, &place, block.ptr, captured(pool, owner), &users)
    batch = pool.order.batch
    leave(pool)
    if any:
        asker = owner if all_exist(pool, &users) else <owner_t>NOBODY       # then it is the host that waits
        status = get_behind_or_wait(pool, asker, &users, batch)
    if status == STATUS_OK and not may_queue(pool, owner, stream):
        status = STATUS_CAPTURING
    return ask_zero(pool, block, stream) if status == STATUS_OK else status


cdef bint may_queue(pool_t* pool, owner_t owner, cudaStream_t stream) noexcept nogil:
    """Does no capture forbid it, such as one that the default stream would have to wait for?"""
    cdef bint is_captured
    if not is_capturing(pool):
        return True
    lock_acquire(&pool.lock)
    is_captured = pool.order.stream[owner].capture != NOBODY
    lock_release(&pool.lock)
    return is_captured or ask_is_open(pool, stream)


cdef int leaving_begin(pool_t* pool, void* ptr, leaving_t* block) noexcept nogil:
    cdef place_t place
    cdef int status = enter(pool)
    if status != STATUS_OK:
        return status
    status = find_locked(pool, ptr, &place)
    if status == STATUS_OK:
        block.ptr = ptr
        block.used = place.used
        block.next = pool.leaving
        set_pointer(<void**>&pool.leaving, block)
    leave(pool)
    return status


cdef int leaving_end(pool_t* pool, leaving_t* block, int status, owner_t owner) noexcept nogil:
    """Free the block for anyone, or in the order of a stream; on an error it stays live."""
    cdef leaving_t** link = &pool.leaving
    enter_all(pool)
    while link[0] != block:
        link = &link[0].next
    set_pointer(<void**>link, block.next)
    if status == STATUS_OK and owner == NOBODY:
        status = free_locked(pool, block.ptr)
    elif status == STATUS_OK:
        status = free_async_locked(pool, block.ptr, captured(pool, owner))
    leave_all(pool)
    return status


cdef void spare_all_events(pool_t* pool) noexcept nogil:
    """Collect the events of all streams where they are destroyed; the pool is closed."""
    cdef int owner, at
    cdef stream_t* stream
    for owner in range(LEGACY, pool.order.streams):
        stream = &pool.order.stream[owner]
        for at in range(stream.marks):
            ask_keep_event(pool, stream.mark[at].event)
        stream.marks = 0
