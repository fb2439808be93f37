"""What is done to a pool under its locks: bookkeeping that calls no driver and waits for nothing."""

from libc.stdint cimport uint32_t

from cuda_pool._cache cimport caches_check, caches_forget
from cuda_pool._held cimport (
    NO_HELD, held_t, helds_add, helds_check, helds_remove, helds_reserve, owners_allowed)
from cuda_pool._movables cimport (
    MOVABLE_AWAY, MOVABLE_SPARE, movable_t, movables_check, movables_rehome, movables_settle)
from cuda_pool._order cimport (
    LEGACY, STREAM_CAPTURE, order_any_pending, order_check, order_drop, order_view, order_waited, stream_freed,
    stream_t)
from cuda_pool._owner cimport (
    BATCH_LAST, NOBODY, OWNERS, batch_within, later_batch, owners_add, owners_discard, owners_has, owners_t)
from cuda_pool._region cimport regions_check, regions_find
from cuda_pool._relaxed cimport get_u32, set_u32, swap_u32
from cuda_pool._segment cimport (
    TIER_SLAB, segment_alloc_shared, segment_bequeath, segment_claim, segment_free, segment_highs, segment_hold,
    segment_is_live, segment_offset, segment_renew, segment_retake, segment_settle, segment_total, segment_unhold)
from cuda_pool._segment_check cimport segment_check
from cuda_pool._slab cimport slabs_class, slabs_of
from cuda_pool._status cimport STATUS_HOST_MEMORY, STATUS_OK
from cuda_pool._tally cimport tally_t
from cuda_pool._uses cimport use_t, uses_check, uses_find, uses_forget, uses_of, uses_remove, uses_settle

from libc.string cimport memset

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*)() noexcept nogil, void (*)() noexcept nogil, void (*)() noexcept nogil)

cdef unsigned generation = 0        # forks between the first process and this one


cdef const unsigned* fork_counter() noexcept nogil:
    return &generation


cdef int alloc_shared_locked(pool_t* pool, owner_t owner, size_t nbytes, size_t alignment, void** ptr) noexcept nogil:
    cdef view_t view
    cdef size_t offset = 0, used = 0
    cdef int status
    order_view(&pool.order, owner, &view)
    status = segment_alloc_shared(&pool.segment, &view, nbytes, alignment, &offset, &used)
    # What became its own and is left counts as freed on it.
    set_u32(&pool.order.stream[owner].freed, pool.order.batch)
    if status != STATUS_OK:
        return status
    ptr[0] = pool_address(pool, offset)
    claim_locked(pool, owner, offset)
    return STATUS_OK


cdef void claim_locked(pool_t* pool, owner_t owner, size_t offset) noexcept nogil:
    if pool.order.stream[owner].kind == STREAM_CAPTURE:
        segment_claim(&pool.segment, offset, owner, pool.order.batch)


cdef bint retake_locked(pool_t* pool, owner_t owner, size_t nbytes, size_t alignment, void** ptr) noexcept nogil:
    cdef segment_t* segment = &pool.segment
    cdef uint32_t held
    cdef place_t place
    cdef use_t* use
    cdef int size_class
    if nbytes > segment.slabs.max or alignment > segment.slot_alignment:
        return False
    size_class = slabs_class(&segment.slabs, nbytes, alignment)
    held = slabs_of(&segment.slabs, owner, size_class).held if size_class >= 0 else <uint32_t>NO_HELD
    if held == NO_HELD:
        return False
    use = uses_of(&pool.uses, segment_offset(segment, &pool.helds.held[held].place))
    if use == NULL:
        return False
    use.origin = owner
    use.batch = pool.helds.held[held].batch
    place = pool.helds.held[held].place
    helds_remove(&pool.helds, held)
    ptr[0] = pool_address(pool, segment_retake(segment, &place, nbytes))
    return True


cdef int free_found_locked(pool_t* pool, const void* ptr, const place_t* place) noexcept nogil:
    cdef uint32_t batch = 0
    if pool.uses.count != 0 and must_hold(pool, ptr):
        return hold_for_origin(pool, ptr, place)
    if place.tier != TIER_SLAB and place.owner != NOBODY:
        batch = batch_of_origin(pool, place.owner, place.batch)
    segment_free(&pool.segment, place, place.owner, batch)
    return STATUS_OK


cdef bint must_hold(pool_t* pool, const void* ptr) noexcept nogil:
    """Is it a slot taken again from among those held, and is the work that it was held for not over?

    What else is known of the block ends with it.
    """
    cdef size_t offset = pool_offset(pool, ptr)
    cdef const use_t* use = uses_find(&pool.uses, offset)
    if use == NULL:
        return False
    if use.origin != NOBODY and not batch_within(use.batch, pool.order.stream[use.origin].done):
        return True
    uses_remove(&pool.uses, offset)
    return False


cdef int hold_for_origin(pool_t* pool, const void* ptr, const place_t* place) noexcept nogil:
    cdef use_t use = uses_find(&pool.uses, pool_offset(pool, ptr))[0]
    cdef owners_t owners
    if not helds_reserve(&pool.helds):
        return STATUS_HOST_MEMORY
    uses_remove(&pool.uses, pool_offset(pool, ptr))
    memset(&owners, 0, sizeof(owners))
    owners_add(&owners, use.origin)
    segment_hold(&pool.segment, place, capture_among(pool, &owners))
    helds_add(&pool.helds, place, &owners, use.batch, slot_list(pool, place, use.origin))
    return STATUS_OK


cdef uint32_t batch_of_origin(pool_t* pool, owner_t owner, uint32_t batch) noexcept nogil:
    cdef uint32_t* freed = &pool.order.stream[owner].freed
    cdef uint32_t seen = get_u32(freed)
    if batch_within(batch, pool.order.stream[owner].done):
        return 0
    while not batch_within(batch, seen) and not swap_u32(freed, seen, batch):
        seen = get_u32(freed)       # something was freed on it meanwhile, at a seat
    return batch


cdef inline void drop_uses(pool_t* pool, const void* ptr) noexcept nogil:
    cdef size_t offset = pool_offset(pool, ptr)
    if pool.uses.count != 0 and uses_find(&pool.uses, offset) != NULL:
        uses_remove(&pool.uses, offset)


cdef int free_async_found_locked(pool_t* pool, const void* ptr, const place_t* place, owner_t owner) noexcept nogil:
    """Hold the block where the stream's order alone does not say when it can be used again."""
    cdef owners_t owners
    if pool.unordered:
        return free_found_locked(pool, ptr, place)
    if is_plain(pool, place, ptr, owner):
        segment_free(&pool.segment, place, owner, pool.order.batch)
        stream_freed(&pool.order, owner, place.used)
        return STATUS_OK
    if not helds_reserve(&pool.helds):
        return STATUS_HOST_MEMORY
    users_of(pool, place, ptr, owner, &owners)
    drop_uses(pool, ptr)
    segment_hold(&pool.segment, place, capture_among(pool, &owners))
    helds_add(&pool.helds, place, &owners, pool.order.batch, held_list(pool, place, owner, &owners))
    note_freed(pool, &owners, place.used)
    return STATUS_OK


cdef inline bint is_plain(const pool_t* pool, const place_t* place, const void* ptr, owner_t owner) noexcept nogil:
    """Is the stream's own work all that the block has to wait for, and may it go where the stream's memory is?"""
    if pool.uses.count != 0 and uses_find(&pool.uses, pool_offset(pool, ptr)) != NULL:
        return False
    if place.owner == owner:
        return True
    if place.tier == TIER_SLAB or pool.order.stream[owner].kind == STREAM_CAPTURE:
        return False
    return place.owner == NOBODY or is_behind(pool, owner, place.owner, place.batch)


cdef inline bint is_behind(const pool_t* pool, owner_t asker, owner_t owner, uint32_t batch) noexcept nogil:
    """Is the asker's work known to run after what `owner` had queued by the end of `batch`?"""
    return (batch_within(batch, pool.order.stream[owner].done)
            or batch_within(batch, order_waited(&pool.order, asker, owner)[0]))


cdef void users_of(const pool_t* pool, const place_t* place, const void* ptr, owner_t owner,
                   owners_t* owners) noexcept nogil:
    """Whose work a block waits for: the stream's, that of its recorded uses, and that behind what it is cut from."""
    cdef const use_t* use = uses_find(&pool.uses, pool_offset(pool, ptr))
    memset(owners, 0, sizeof(owners_t))
    if use != NULL:
        owners[0] = use.owners
        if use.origin != NOBODY and not is_behind(pool, owner, use.origin, use.batch):
            owners_add(owners, use.origin)
    owners_add(owners, owner)
    if place.owner != NOBODY and place.batch != 0 and not is_behind(pool, owner, place.owner, place.batch):
        owners_add(owners, place.owner)


cdef owner_t capture_among(const pool_t* pool, const owners_t* owners) noexcept nogil:
    """A capture that is among some owners, or nobody."""
    cdef int owner
    for owner in range(LEGACY, pool.order.streams):
        if pool.order.stream[owner].kind == STREAM_CAPTURE and owners_has(owners, <owner_t>owner):
            return <owner_t>owner
    return NOBODY


cdef uint32_t* held_list(pool_t* pool, const place_t* place, owner_t owner, const owners_t* owners) noexcept nogil:
    """A slot that waits for one stream only is for that stream to reuse at once."""
    cdef int at
    if place.tier != TIER_SLAB or pool.order.stream[owner].kind == STREAM_CAPTURE:
        return &pool.helds.mixed
    for at in range(1, pool.order.streams):
        if at != owner and owners_has(owners, <owner_t>at):
            return &pool.helds.mixed
    return slot_list(pool, place, owner)


cdef void note_freed(pool_t* pool, const owners_t* owners, size_t nbytes) noexcept nogil:
    cdef int owner
    for owner in range(LEGACY, pool.order.streams):
        if owners_has(owners, <owner_t>owner):
            stream_freed(&pool.order, <owner_t>owner, nbytes)


cdef int record_use_locked(pool_t* pool, void* ptr, owner_t owner) noexcept nogil:
    cdef place_t place
    cdef use_t* use
    cdef int status = find_locked(pool, ptr, &place)
    if status != STATUS_OK:
        return status
    use = uses_of(&pool.uses, pool_offset(pool, ptr))
    if use == NULL:
        return STATUS_HOST_MEMORY
    owners_add(&use.owners, owner)
    return STATUS_OK


cdef bint is_leaving(const pool_t* pool, const void* ptr) noexcept nogil:
    cdef const leaving_t* block = pool.leaving
    while block != NULL and block.ptr != ptr:
        block = block.next
    return block != NULL


cdef void settle_locked(pool_t* pool) noexcept nogil:
    cdef view_t done
    cdef uint32_t index
    cdef held_t held
    order_view(&pool.order, NOBODY, &done)
    segment_settle(&pool.segment, &done)
    for index in range(1, pool.helds.made):
        held = pool.helds.held[index]
        if held.head != NULL and owners_allowed(&held.owners, held.batch, &done):
            helds_remove(&pool.helds, index)
            segment_unhold(&pool.segment, &held.place, NOBODY, 0)


cdef void unhold_locked(pool_t* pool, const view_t* view) noexcept nogil:
    """A slot cannot go back to its slab, whose owner is not behind that work: it is held on for the asker alone."""
    cdef uint32_t index
    cdef held_t* held
    for index in range(1, pool.helds.made):
        held = &pool.helds.held[index]
        if held.head == NULL or is_listed(pool, held, view.owner):
            continue
        if owners_allowed(&held.owners, held.batch, view):
            unhold_one(pool, index, view)


cdef inline bint is_listed(pool_t* pool, const held_t* held, owner_t owner) noexcept nogil:
    """Is a held slot on the stream's list, to be reused at once?"""
    return held.place.tier == TIER_SLAB and held.head == slot_list(pool, &held.place, owner)


cdef inline uint32_t* slot_list(pool_t* pool, const place_t* place, owner_t owner) noexcept nogil:
    return &slabs_of(&pool.segment.slabs, owner, pool.segment.slabs.slab[place.index].size_class).held


cdef void unhold_one(pool_t* pool, uint32_t index, const view_t* view) noexcept nogil:
    cdef place_t place = pool.helds.held[index].place
    cdef owners_t owners
    helds_remove(&pool.helds, index)
    set_u32(&pool.order.stream[view.owner].freed, view.batch)
    if place.tier != TIER_SLAB:
        segment_unhold(&pool.segment, &place, view.owner, view.batch)
        return
    memset(&owners, 0, sizeof(owners))
    owners_add(&owners, view.owner)
    helds_add(&pool.helds, &place, &owners, view.batch, slot_list(pool, &place, view.owner))


cdef void leave_locked(pool_t* pool, owner_t owner, owner_t to) noexcept nogil:
    cdef uint32_t index, batch = 0 if to == NOBODY else pool.order.batch
    cdef held_t* held
    for index in range(1, pool.helds.made):
        held = &pool.helds.held[index]
        if held.head != NULL and owners_has(&held.owners, owner):
            owners_discard(&held.owners, owner)
            held.batch = later_batch(batch, held.batch)
            if to != NOBODY:
                owners_add(&held.owners, to)
    uses_forget(&pool.uses, owner, to)
    segment_bequeath(&pool.segment, owner, BATCH_LAST, to, batch, LEGACY if to == NOBODY else to)
    if to != NOBODY:
        stream_freed(&pool.order, to, 0)
    caches_forget(pool, owner)
    owners_discard(&pool.segment.captures, owner)
    order_drop(&pool.order, owner)
    settle_locked(pool)


cdef void rehome_locked(pool_t* pool, owner_t owner) noexcept nogil:
    cdef stream_t* legacy = &pool.order.stream[LEGACY]
    legacy.homes += movables_rehome(&pool.movables, owner, LEGACY, legacy.serial)
    pool.order.stream[owner].homes = 0


cdef bint renew_batches_locked(pool_t* pool) noexcept nogil:
    """Captures keep the numbers of theirs, which stay later than whatever is done of them: nothing."""
    cdef int owner, other
    if order_any_pending(&pool.order, NOBODY):
        return False
    settle_locked(pool)
    for owner in range(LEGACY, pool.order.streams):
        if pool.order.stream[owner].kind != STREAM_CAPTURE:
            segment_renew(&pool.segment, <owner_t>owner)
            uses_settle(&pool.uses, <owner_t>owner)
        pool.order.stream[owner].done = 0
        set_u32(&pool.order.stream[owner].freed, 0)
        for other in range(LEGACY, pool.order.streams):
            order_waited(&pool.order, <owner_t>owner, <owner_t>other)[0] = 0
    movables_settle(&pool.movables)
    pool.order.batch = 1
    return True


cdef const char* state_check(const pool_t* pool) noexcept nogil:
    cdef const char* broken = segment_check(&pool.segment)
    if broken == NULL:
        broken = caches_check(pool)
    if broken == NULL:
        broken = order_check(&pool.order)
    if broken == NULL:
        broken = helds_check(&pool.helds)
    if broken == NULL:
        broken = uses_check(&pool.uses)
    if broken == NULL:
        broken = movables_check(&pool.movables)
    if broken == NULL:
        broken = homes_check(pool)
    if broken == NULL and pool.helds.bytes != pool.segment.held:
        broken = b"pool: helds.bytes != segment.held"
    if broken == NULL:
        broken = totals_check(pool)
    return broken


cdef const char* homes_check(const pool_t* pool) noexcept nogil:
    """Is each movable block what its record says, and each home counted?"""
    cdef uint32_t homes[OWNERS]
    cdef const movable_t* record
    cdef place_t place
    cdef uint32_t at
    memset(homes, 0, sizeof(homes))
    for at in range(1, pool.movables.made):
        record = &pool.movables.record[at]
        if record.state == MOVABLE_SPARE:
            continue
        homes[record.home] += 1
        if pool.order.stream[record.home].serial != record.serial:
            return b"pool: the home of a movable block is another stream's record"
        if record.state != MOVABLE_AWAY and not is_movable_at(pool, record.ptr, at, &place):
            return b"pool: a movable block does not name its record"
    for at in range(LEGACY, pool.order.streams):
        if homes[at] != pool.order.stream[at].homes:
            return b"pool: homes differs from the movable blocks of a stream"
    return NULL


cdef bint is_movable_at(const pool_t* pool, const void* ptr, uint32_t record, place_t* place) noexcept nogil:
    cdef size_t offset = pool_offset(pool, ptr)
    return offset < pool.segment.span and segment_is_live(&pool.segment, offset, place) and place.movable == record


cdef const char* totals_check(const pool_t* pool) noexcept nogil:
    cdef tally_t total = segment_total(&pool.segment)
    cdef size_t used_high = 0, requested_high = 0
    segment_highs(&pool.segment, &used_high, &requested_high)
    if not total.requested <= total.used <= pool.reserved <= pool.capacity:
        return b"pool: not requested <= used <= reserved <= capacity"
    if not requested_high <= used_high <= pool.reserved_high or pool.reserved > pool.reserved_high:
        return b"pool: not requested_high <= used_high <= reserved_high, or reserved > reserved_high"
    return regions_agree(pool)


cdef const char* regions_agree(const pool_t* pool) noexcept nogil:
    cdef const char* broken
    if pool.segment.pages.shift != 0:
        if pool.reserved != <size_t>pool.segment.pages.created << pool.segment.pages.shift:
            return b"pool: reserved differs from the pages that were created"
        return NULL
    broken = regions_check(&pool.regions)
    if broken == NULL and (pool.regions.size != pool.segment.size + pool.segment.shut
                           or pool.regions.nbytes != pool.reserved):
        broken = b"pool: regions.size != segment.size + segment.shut, or regions.nbytes != reserved"
    if broken == NULL and pool.first != 0 and regions_find(&pool.regions, pool.base) != 0:
        broken = b"pool: the region at offset 0 does not begin at base"
    return broken


cdef void forked() noexcept nogil:
    global generation
    generation += 1


pthread_atfork(NULL, NULL, forked)
