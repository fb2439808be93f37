"""The caches of a thread: filled from slabs, spilled to them, and emptied with all locks held.

Bonwick and Adams, "Magazines and Vmem", USENIX 2001, without magazines' depot: what overflows goes to the slab.
"""

from libc.stdint cimport uint16_t, uint32_t
from libc.string cimport memmove, memset

from cuda_pool._bins cimport (
    BIN_ALIGNMENT, BIN_LEAST, BIN_MOST, BLOCK_BINS, BLOCK_ENTRIES, BLOCK_ENTRIES_MOST, FRESH, bin_count, bin_t,
    cache_limit_blocks, cache_t, entry_t, is_cache)
from cuda_pool._blocks cimport block_return
from cuda_pool._gauge cimport gauge_clear
from cuda_pool._heap cimport heap_t
from cuda_pool._hostmem cimport host_map, host_unmap
from cuda_pool._lock cimport lock_acquire, lock_release
from cuda_pool._mid cimport NO_MID, mid_block_t
from cuda_pool._order cimport LEGACY, STREAM_HELD, STREAM_THREAD, stream_can_vanish, stream_t, this_thread
from cuda_pool._owner cimport OWNERS, owner_t
from cuda_pool._relaxed cimport get_size, get_u32, set_size, set_u32
from cuda_pool._seat cimport load_u32, seat_drop, seat_t, seat_total
from cuda_pool._segment cimport TAG_INDEX_SHIFT, seat_note, segment_recount, segment_shed_slab, segment_t
from cuda_pool._side cimport SIDES
from cuda_pool._slab cimport (
    NOT_LIVE, NO_HELD, NO_SLAB, NO_SLOT, SLAB_CLASSES_MAX, SLAB_UNIT, slab_adopt, slab_begin_line, slab_has_on,
    slab_lists_t, slab_return, slab_slot, slab_t, slab_take_on, slab_unfresh, slabs_available, slabs_available_on,
    slabs_of, slabs_t, slabs_wanted, slot_t)
from cuda_pool._state cimport bin_bytes, blocks_bytes, pool_address, pool_offset, pool_t
from cuda_pool._tally cimport tally_add, tally_t

cdef enum:
    COLOURS = 32
    LENT_SHARE = 4                  # of the slots wanted: what a thread takes of another side's
    TURNS_MOST = 32                 # at a heap's lock, one after the other: then that side is not heard of
    MARK_LEAST = 1 << 29            # more than a slab has slots: of a free one the word has another one's number
    MARK_MOST = (1 << 30) - 2       # less than NO_SLOT has
    NOTHING = (SLAB_CLASSES_MAX >> 6) + 2       # more than 64 bins are in each
    SPARES_MOST = 8                 # of an owner, before somebody has to take all locks


# Zeros, for ever: no request has a class, and every bin is as full as it is empty.
cdef cache_t nothing[NOTHING]


cdef void seat_add(pool_t* pool, seat_t* seat) noexcept nogil:
    cdef int at
    for at in range(OWNERS):
        seat.cache[at] = &nothing[0]
    pool.marks = (pool.marks + 1) % (MARK_MOST - MARK_LEAST + 1)
    seat.mark = NOT_LIVE | MARK_LEAST + pool.marks
    seat.side = least_used_side(pool.segment.seats)
    seat.next = pool.segment.seats
    pool.segment.seats = seat
    seat_note(seat, &pool.segment, pool.segment.total.used, pool.segment.total.requested)


cdef uint32_t least_used_side(const seat_t* seat) noexcept nogil:
    cdef uint32_t seats[SIDES]
    cdef uint32_t side, least = 0
    memset(seats, 0, sizeof(seats))
    while seat != NULL:
        seats[seat.side] += load_u32(&seat.left) == 0
        seat = seat.next
    for side in range(1, SIDES):
        if seats[side] < seats[least]:
            least = side
    return least


cdef cache_t* cache_make(pool_t* pool, seat_t* seat, owner_t owner) noexcept nogil:
    cdef size_t mapped = cache_bytes(pool)
    cdef cache_t* cache = seat.cache[owner]
    if not is_cache(cache):
        cache = <cache_t*>host_map(mapped, owner % COLOURS)
        if cache == NULL:
            return NULL
        cache.mapped = mapped
        cache_init(pool, cache, owner)
        seat.cache[owner] = cache
    cache_name(pool, cache, owner)
    return cache


cdef void cache_init(const pool_t* pool, cache_t* cache, owner_t owner) noexcept nogil:
    cdef const segment_t* segment = &pool.segment
    cdef entry_t* entry
    cdef int index
    cache.colour = owner % COLOURS
    cache.classes = segment.slabs.classes
    cache.table_max = segment.slabs.table_max
    cache.slab_max = segment.slabs.max
    cache.blocks_most = 0 if counts_blocks(pool) else blocks_bytes(pool)
    entry = <entry_t*>(&cache.bin[0] + cache.classes + 1)
    for index in range(cache.classes):
        cache.bin[index].size = segment.slabs.size_class[index].size
        entry = bin_place(&cache.bin[index], entry, bin_most(pool, cache.bin[index].size))
    bin_place(&cache.bin[cache.classes], entry, 0)
    for index in range(BLOCK_BINS + 1):
        entry.record = &segment.mid.block[NO_MID]
        entry = bin_place(&cache.block[index], entry + 1, BLOCK_ENTRIES_MOST)
        cache.block[index].limit = cache.block[index].floor + (BLOCK_ENTRIES if index < BLOCK_BINS else 0)
    cache.table = <uint16_t*>entry
    fill_table(segment, cache, <uint16_t*>entry)


cdef inline entry_t* bin_place(bin_t* bin, entry_t* entry, uint32_t most) noexcept nogil:
    bin.top = entry
    bin.floor = entry
    bin.limit = entry + most
    return bin.limit


cdef void fill_table(const segment_t* segment, const cache_t* cache, uint16_t* table) noexcept nogil:
    cdef int index = 0
    cdef size_t unit
    for unit in range(cache.table_max // SLAB_UNIT + 1):
        while index < cache.classes and (cache.bin[index].size < unit * SLAB_UNIT
                                         or cache.bin[index].size % BIN_ALIGNMENT != 0
                                         or segment.slot_alignment < BIN_ALIGNMENT):
            index += 1
        table[unit] = <uint16_t>(index * sizeof(bin_t))


cdef inline bint counts_blocks(const pool_t* pool) noexcept nogil:
    """Does the pool do something by itself when blocks come and go?"""
    return pool.releases or pool.learn.predicts or pool.defrag.threshold != 0 or pool.defrag.interval != 0


cdef size_t cache_bytes(const pool_t* pool) noexcept nogil:
    cdef const segment_t* segment = &pool.segment
    cdef size_t entries = (BLOCK_BINS + 1) * (1 + BLOCK_ENTRIES_MOST)
    cdef int index
    for index in range(segment.slabs.classes):
        entries += bin_most(pool, segment.slabs.size_class[index].size)
    return (sizeof(cache_t) + segment.slabs.classes * sizeof(bin_t) + entries * sizeof(entry_t)
            + (segment.slabs.table_max // SLAB_UNIT + 1) * sizeof(uint16_t))


cdef inline uint32_t bin_most(const pool_t* pool, size_t size) noexcept nogil:
    cdef size_t slots = bin_bytes(pool) // size
    return <uint32_t>min(max(slots, <size_t>BIN_LEAST), <size_t>BIN_MOST)


cdef void cache_name(pool_t* pool, cache_t* cache, owner_t owner) noexcept nogil:
    cdef const stream_t* stream = &pool.order.stream[owner]
    cache.owner = owner
    cache.serial = stream.serial
    cache.freed = &pool.order.stream[owner].freed
    cache.handle = stream.handle
    cache.by_handle = (owner == LEGACY or stream.kind == STREAM_HELD
                       or (stream.kind == STREAM_THREAD and stream.id == this_thread()))
    note_unmarked(pool, cache)


cdef inline void note_unmarked(pool_t* pool, cache_t* cache) noexcept nogil:
    """Count what was freed on the stream, and how much more may be before it wants an event."""
    cdef size_t* unmarked = &pool.heaps[cache.owner].unmarked
    unmarked[0] += cache.unmarked
    cache.unmarked = 0
    cache.unmarked_most = <size_t>-1
    if stream_can_vanish(&pool.order.stream[cache.owner]):
        cache.unmarked_most = pool.mark_bytes - min(pool.mark_bytes, unmarked[0])


cdef bint cache_refill(pool_t* pool, seat_t* seat, cache_t* cache, int size_class) noexcept nogil:
    """Fill half of an empty bin from one slab, whose first slot is then the first to be handed out.

    Not from one with slots of other sides alone, if a new slab costs little.
    """
    cdef slabs_t* slabs = &pool.segment.slabs
    cdef heap_t* heap = &pool.heaps[cache.owner]
    cdef bin_t* bin = &cache.bin[size_class]
    cdef const slab_lists_t* lists = slabs_of(slabs, cache.owner, size_class)
    cdef uint32_t slab
    heap_enter(heap, seat)
    slab = slabs_available_on(slabs, lists, seat.side)
    if slab != NO_SLAB and lists.held == NO_HELD:
        begin_line(pool, seat, slab)
        if not slab_has_on(&slabs.slab[slab], seat.side):
            if heap.turns >= TURNS_MOST:
                slab_adopt(&slabs.slab[slab], seat.side)
            elif may_make_slab(pool) and slabs_wanted(slabs, cache.owner, size_class) <= bin_bytes(pool):
                slab = NO_SLAB
        if slab != NO_SLAB:
            take_some(pool, seat, bin, slab)
            cache.refilled = True
    lock_release(&heap.lock)
    return bin.top != bin.floor


cdef inline bint may_make_slab(const pool_t* pool) noexcept nogil:
    """Is a new slab likely to be made while the seats go on?"""
    return not pool.learn.predicts and get_size(&pool.helds.bytes) == 0


cdef inline void heap_enter(heap_t* heap, const seat_t* seat) noexcept nogil:
    lock_acquire(&heap.lock)
    heap.turns = heap.turns + 1 if heap.side == seat.side else 0
    heap.side = seat.side


cdef inline void begin_line(pool_t* pool, const seat_t* seat, uint32_t slab) noexcept nogil:
    """A pool that predicts counts the slots that were never handed out: there they are not left."""
    if pool.segment.seats.next != NULL and not pool.learn.predicts:
        slab_begin_line(&pool.segment.slabs, slab, seat.side)


cdef inline void take_some(pool_t* pool, seat_t* seat, bin_t* bin, uint32_t index) noexcept nogil:
    """As many as there are of the seat's side, or, if there are none, some of another's."""
    cdef slab_t* slab = &pool.segment.slabs.slab[index]
    cdef uint32_t wanted = <uint32_t>(bin.limit - bin.floor + 1) // 2, free = slab.slots - slab.used, taken = 0
    cdef bint own = slab_has_on(slab, seat.side)
    if not own:
        wanted = (wanted + LENT_SHARE - 1) // LENT_SHARE
    while taken < min(wanted, free):
        if own:
            begin_line(pool, seat, index)
            if not slab_has_on(slab, seat.side):
                break
        take(pool, seat, bin, index, taken)
        taken += 1
    bin.top = bin.floor + taken
    turn_round(bin.floor, bin.top - 1)


cdef inline void turn_round(entry_t* first, entry_t* last) noexcept nogil:
    cdef entry_t entry
    while first < last:
        entry = first[0]
        first[0] = last[0]
        last[0] = entry
        first += 1
        last -= 1


cdef inline void take(pool_t* pool, seat_t* seat, bin_t* bin, uint32_t slab, uint32_t at) noexcept nogil:
    cdef slab_t* record = &pool.segment.slabs.slab[slab]
    cdef uint32_t fresh = record.fresh
    cdef size_t offset = slab_take_on(&pool.segment.slabs, slab, seat.side, 0)
    cdef slot_t* slot = &record.slot[slab_slot(&pool.segment.slabs, slab, offset)]
    set_u32(&slot.value, seat.mark | (FRESH if record.fresh != fresh else 0))
    bin.floor[at].ptr = pool_address(pool, offset)
    bin.floor[at].record = slot


cdef bint cache_spill(pool_t* pool, seat_t* seat, cache_t* cache, int size_class) noexcept nogil:
    """Return the older half of a bin to the slabs; whether there is room now.

    Slabs that are left empty beside the one of their lists wait for whoever has all locks: that should be soon where
    there are many, and at once in a pool that expects something of each.
    """
    cdef bin_t* bin = &cache.bin[size_class]
    cdef heap_t* heap = &pool.heaps[cache.owner]
    cdef uint32_t at, count = bin_count(bin), half = (count + 1) // 2
    if get_size(&heap.spares) > SPARES_MOST or pool.learn.predicts:
        return False
    heap_enter(heap, seat)
    for at in range(half):
        if not was_fresh(pool, seat, &bin.floor[at]):
            set_size(&heap.spares, heap.spares + give_back(pool, seat, &bin.floor[at]))
    lock_release(&heap.lock)
    memmove(bin.floor, bin.floor + half, (count - half) * sizeof(entry_t))
    bin.top -= half
    return True


cdef bint give_back(pool_t* pool, seat_t* seat, const entry_t* entry) noexcept nogil:
    """Return a slot to its slab; whether that is a second empty one now.

    A slot that somebody else has by now, freed twice at one time, is left alone.
    """
    cdef slot_t* slot = <slot_t*>entry.record
    cdef uint32_t slab = slab_of(pool, entry)
    if get_u32(&slot.value) & ~FRESH != seat.mark:
        seat.strays = True
        return False
    return slab_return(&pool.segment.slabs, slab, <uint32_t>(slot - pool.segment.slabs.slab[slab].slot))


cdef void seats_empty(pool_t* pool) noexcept nogil:
    """No slab is unmade before all caches are empty: a slot that was freed twice at one time is in two of them."""
    cdef seat_t** link = &pool.segment.seats
    cdef seat_t* seat
    cdef bint strays = False
    cdef int at
    while link[0] != NULL:
        seat = link[0]
        for at in range(OWNERS):
            if is_cache(seat.cache[at]):
                cache_empty(pool, seat, seat.cache[at])
        seat_fold(pool, seat)
        strays = strays or seat.strays
        seat.strays = False
        if load_u32(&seat.left) == 0:
            link = &seat.next
            continue
        link[0] = seat.next
        seat_close(seat)
    pool.crowd.last = NULL
    pool.crowd.calls = 0
    pool.crowd.bytes = 0
    for at in range(LEGACY, pool.heaps_held):
        if pool.heaps[at].spares != 0:
            shed_spares(pool, <owner_t>at)
    if strays:
        segment_recount(&pool.segment)
    seat = pool.segment.seats
    while seat != NULL:
        seat_note(seat, &pool.segment, pool.segment.total.used, pool.segment.total.requested)
        seat = seat.next


cdef void shed_spares(pool_t* pool, owner_t owner) noexcept nogil:
    """Do with empty slabs what is done with a second one of its lists."""
    cdef const slab_lists_t* lists
    cdef uint32_t slab, after
    cdef int index
    pool.heaps[owner].spares = 0
    for index in range(pool.segment.slabs.classes):
        lists = slabs_of(&pool.segment.slabs, owner, index)
        slab = slabs_available(lists)
        while slab != NO_SLAB:
            after = pool.segment.slabs.slab[slab].next
            if pool.segment.slabs.slab[slab].used == 0 and slab != lists.empty:
                segment_shed_slab(&pool.segment, slab)
            slab = after


cdef void seat_fold(pool_t* pool, seat_t* seat) noexcept nogil:
    cdef segment_t* segment = &pool.segment
    cdef tally_t total = seat_total(seat)
    tally_add(&segment.total, &total)
    tally_add(&segment.mid_tally, &seat.blocks)
    set_size(&segment.used_high, max(segment.used_high, min(seat.used.high, segment.size_high)))
    set_size(&segment.requested_high, max(segment.requested_high, min(seat.requested.high, segment.used_high)))
    set_size(&seat.allocs, 0)
    set_size(&seat.frees, 0)
    gauge_clear(&seat.used)
    gauge_clear(&seat.requested)
    memset(&seat.blocks, 0, sizeof(seat.blocks))


cdef void cache_empty(pool_t* pool, seat_t* seat, cache_t* cache) noexcept nogil:
    cdef int index
    cdef uint32_t at
    note_unmarked(pool, cache)
    if cache.refilled or seat.frees != 0:
        for index in range(cache.classes):
            empty_bin(pool, seat, cache, &cache.bin[index])
    if cache.blocks_bytes != 0:
        for index in range(BLOCK_BINS):
            for at in range(bin_count(&cache.block[index])):
                block_return(pool, <mid_block_t*>cache.block[index].floor[at].record)
            cache.block[index].top = cache.block[index].floor
    cache.refilled = False
    cache.blocks_bytes = 0
    if cache.blocks_most > blocks_bytes(pool):
        cache_limit_blocks(cache, blocks_bytes(pool), BLOCK_ENTRIES)


cdef void empty_bin(pool_t* pool, seat_t* seat, const cache_t* cache, bin_t* bin) noexcept nogil:
    """What was never handed out goes first, from the last slot down, wherever in the bin it lies."""
    cdef uint32_t count = bin_count(bin), before = count + 1, at, kept
    while count < before:
        before, kept = count, 0
        for at in range(before):
            if not was_fresh(pool, seat, &bin.floor[at]):
                bin.floor[kept] = bin.floor[at]
                kept += 1
        count = kept
    for at in range(count):
        pool.heaps[cache.owner].spares += give_back(pool, seat, &bin.floor[at])
    bin.top = bin.floor


cdef inline bint was_fresh(pool_t* pool, const seat_t* seat, const entry_t* entry) noexcept nogil:
    """Return a slot that was taken last of those never handed out as if it had not been taken; False for others."""
    cdef const slot_t* slot = <slot_t*>entry.record
    cdef uint32_t slab
    if get_u32(&slot.value) != seat.mark | FRESH:
        return False
    slab = slab_of(pool, entry)
    return slab_unfresh(&pool.segment.slabs, slab, <uint32_t>(slot - pool.segment.slabs.slab[slab].slot))


cdef inline uint32_t slab_of(const pool_t* pool, const entry_t* entry) noexcept nogil:
    return pool.segment.tag[pool_offset(pool, entry.ptr) >> pool.segment.granule_shift] >> TAG_INDEX_SHIFT


cdef void seat_close(seat_t* seat) noexcept nogil:
    cdef int at
    for at in range(OWNERS):
        if is_cache(seat.cache[at]):
            host_unmap(seat.cache[at], seat.cache[at].mapped, seat.cache[at].colour)
            seat.cache[at] = &nothing[0]
    seat_drop(seat)


cdef void seats_close(pool_t* pool) noexcept nogil:
    cdef seat_t* seat = pool.segment.seats
    cdef seat_t* after
    pool.segment.seats = NULL
    while seat != NULL:
        after = seat.next
        seat_close(seat)
        seat = after


cdef void caches_forget(pool_t* pool, owner_t owner) noexcept nogil:
    cdef seat_t* seat = pool.segment.seats
    while seat != NULL:
        if is_cache(seat.cache[owner]):
            seat.cache[owner].serial = 0
            seat.cache[owner].by_handle = False
        seat = seat.next


cdef const char* caches_check(const pool_t* pool) noexcept nogil:
    cdef const seat_t* seat = pool.segment.seats
    cdef const cache_t* cache
    cdef int at
    while seat != NULL:
        for at in range(OWNERS):
            cache = seat.cache[at]
            if is_cache(cache) and not is_empty(cache):
                return b"cache: not empty while all locks are held"
        if seat.pool != pool:
            return b"seat: on the list of another pool"
        seat = seat.next
    return NULL


cdef bint is_empty(const cache_t* cache) noexcept nogil:
    cdef int index
    for index in range(cache.classes):
        if cache.bin[index].top != cache.bin[index].floor:
            return False
    for index in range(BLOCK_BINS):
        if cache.block[index].top != cache.block[index].floor:
            return False
    return cache.blocks_bytes == 0
