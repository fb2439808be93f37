"""Regions that come and go: how a pool grows, and gives memory back.

The driver is called with `slow` held and no other lock, so whoever needs no driver call goes on meanwhile. A region is
in the segment from the moment at which all locks are held after cudaMalloc, and no longer from the one before cudaFree.
"""

from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc, qsort

from cuda_pool._ask cimport ask_is_open, ask_less, ask_mem_info, ask_more
from cuda_pool._bits cimport round_up
from cuda_pool._driver cimport cudaErrorMemoryAllocation
from cuda_pool._gap cimport segment_forget, segment_is_idle, segment_open, segment_reopen, segment_shut
from cuda_pool._happenings cimport HAPPENING_GROW, HAPPENING_TRIM, happenings_note
from cuda_pool._locks cimport enter, enter_all, leave, leave_all
from cuda_pool._mid cimport MID_UNIT, NO_MID
from cuda_pool._order cimport STREAM_CAPTURE
from cuda_pool._owner cimport NOBODY
from cuda_pool._pages cimport pages_end
from cuda_pool._region cimport (
    REGIONS_MAX, region_t, regions_add, regions_init, regions_remove)
from cuda_pool._relaxed cimport set_flag, set_size
from cuda_pool._remap cimport remap_trim
from cuda_pool._segment cimport segment_boundary, segment_highs, segment_reclaim, segment_total
from cuda_pool._shortage cimport is_capturing, see_what_is_done
from cuda_pool._state cimport MARK_SHARE, WAIT_SHARE, serve_locked, settle_locked
from cuda_pool._status cimport (
    STATUS_OK, STATUS_OUT_OF_MEMORY, status_code)

# Which of the idle regions goes first.
ctypedef int choice_t

cdef enum:                      # choice_t
    CHOOSE_SMALLEST = 0             # that has at most the bytes that may go
    CHOOSE_LARGEST
    CHOOSE_ENOUGH                   # the smallest that has the bytes that are wanted, else the largest

cdef enum:
    PAUSE_MAX = 1024                # frees between two tries to give memory back


cdef int region_first(pool_t* pool) noexcept nogil:
    cdef region_t region
    if not regions_init(&pool.regions, pool.segment.span):
        return 0
    region = region_at(pool.region, pool.reserved)
    region.size = pool.segment.size
    region.offset = 0
    note_region(pool, &region)
    pool.reserved_high = pool.reserved
    return 1


cdef bint could_grow(const pool_t* pool, owner_t owner, size_t nbytes) noexcept nogil:
    return (pool.grows and nbytes <= pool.capacity and pool.order.captures == 0
            and pool.order.stream[owner].kind != STREAM_CAPTURE)


cdef inline bint has_regions(const pool_t* pool) noexcept nogil:
    """Does it grow by regions? Pages are got where a place for a request lacks them: see _remap."""
    return pool.grows and pool.segment.pages.shift == 0


cdef bint growth_is_due(pool_t* pool, size_t nbytes, size_t alignment) noexcept nogil:
    """Up to a share of the peak, memory that streams have to themselves is cheaper than waits again and again."""
    cdef size_t needed = bytes_needed(pool, nbytes, alignment)
    if not has_regions(pool) or needed == 0:
        return False
    return pool.reserved + needed <= min(pool.capacity, share_of_peak(pool, needed))


cdef size_t share_of_peak(pool_t* pool, size_t needed) noexcept nogil:
    """Bytes up to which a pool that needs so many more grows as it likes."""
    cdef size_t high = 0, requested_high = 0
    enter_all(pool)
    segment_highs(&pool.segment, &high, &requested_high)
    high = max(high, segment_total(&pool.segment).used + needed)
    leave_all(pool)
    return WAIT_SHARE * high


cdef bint growth_could_help(pool_t* pool, owner_t owner, size_t nbytes, size_t alignment) noexcept nogil:
    cdef size_t needed = bytes_needed(pool, nbytes, alignment), used
    if not has_regions(pool) or needed == 0 or enter(pool) != STATUS_OK:
        return False
    used = segment_total(&pool.segment).used
    leave(pool)
    return needed <= pool.capacity - used and may_call(pool, owner)


cdef int growth_alloc(pool_t* pool, owner_t owner, size_t nbytes, size_t alignment, void** ptr,
                      int* status) noexcept nogil:
    cdef size_t needed = bytes_needed(pool, nbytes, alignment), returned = 0
    cdef int fault
    if not has_regions(pool) or needed == 0 or needed > pool.capacity or not may_call(pool, owner):
        return STATUS_OK
    fault = make_room(pool, needed, &returned)
    if fault == STATUS_OK and pool.reserved + needed <= pool.capacity:
        fault = grow_somehow(pool, needed, owner, nbytes, alignment, ptr, status, &returned)
    if status[0] == STATUS_OUT_OF_MEMORY and returned != 0:
        take_back(pool, returned)
    return fault


cdef int grow_somehow(pool_t* pool, size_t needed, owner_t owner, size_t nbytes, size_t alignment, void** ptr,
                      int* status, size_t* returned) noexcept nogil:
    """The usual step; if it is refused, exactly what is needed; if that is, too, in exchange for idle regions."""
    cdef size_t step = usual_step(pool, needed)
    cdef int fault = grow(pool, step, owner, nbytes, alignment, ptr, status)
    if fault == STATUS_OK and status[0] == STATUS_OUT_OF_MEMORY and step > needed:
        fault = grow(pool, needed, owner, nbytes, alignment, ptr, status)
    if fault == STATUS_OK and status[0] == STATUS_OUT_OF_MEMORY:
        fault = exchange(pool, needed, owner, nbytes, alignment, ptr, status, returned)
    return fault


cdef size_t bytes_needed(const pool_t* pool, size_t nbytes, size_t alignment) noexcept nogil:
    """Bytes of a region that is sure to hold the request, wherever the driver puts it; 0 for more than there is."""
    cdef size_t slack = alignment - MID_UNIT if alignment > MID_UNIT else 0
    if nbytes > pool.capacity or slack > pool.capacity:
        return 0
    return max(round_up(nbytes, MID_UNIT), pool.segment.granule) + slack


cdef bint may_call(pool_t* pool, owner_t owner) noexcept nogil:
    """During a capture neither cudaMalloc nor cudaFree may be called: by the thread, or by any."""
    if is_capturing(pool):
        return False
    return ask_is_open(pool, pool.order.stream[owner].handle if owner != NOBODY else NULL)


cdef size_t usual_step(const pool_t* pool, size_t needed) noexcept nogil:
    cdef size_t share = min(pool.reserved // GROWTH_SHARE, <size_t>GROWTH_STEP_MAX)
    cdef size_t step = round_up(max(needed, share), GROWTH_STEP)
    return max(needed, min(step, pool.capacity - pool.reserved))


cdef int make_room(pool_t* pool, size_t needed, size_t* returned) noexcept nogil:
    """Give idle regions back where the limit asks for it and they are enough, and what exceeds the share of the peak.

    Sizes that grow slowly would otherwise leave a region behind for each of them.
    """
    cdef size_t share
    cdef int fault
    if pool.reserved + needed > pool.capacity and idle_bytes(pool) < pool.reserved + needed - pool.capacity:
        return STATUS_OK
    share = min(share_of_peak(pool, needed), pool.capacity)
    if pool.reserved + needed <= share:
        return STATUS_OK
    fault = see_what_is_done(pool)
    return give_back(pool, pool.reserved + needed - share, returned) if fault == STATUS_OK else fault


cdef int exchange(pool_t* pool, size_t needed, owner_t owner, size_t nbytes, size_t alignment, void** ptr, int* status,
                  size_t* returned) noexcept nogil:
    """Give idle regions back until the driver has the memory, unless even all of them would not be enough."""
    cdef size_t available = 0, total = 0, before
    cdef int fault = ask_mem_info(pool, &available, &total)
    while fault == STATUS_OK and status[0] == STATUS_OUT_OF_MEMORY and idle_bytes(pool) + available >= needed:
        before = returned[0]
        fault = give_back(pool, needed, returned)
        available += returned[0] - before
        if fault != STATUS_OK or returned[0] == before:
            break
        fault = grow(pool, needed, owner, nbytes, alignment, ptr, status)
    return fault


cdef void take_back(pool_t* pool, size_t nbytes) noexcept nogil:
    """Reserve as much as was given back in vain. If the driver has no such piece any more, later requests will grow."""
    cdef int status
    cdef void* start = NULL
    if ask_more(pool, nbytes, &start) != STATUS_OK:
        return
    enter_all(pool)
    status = add_region(pool, start, nbytes)
    leave_all(pool)
    if status != STATUS_OK:
        ask_less(pool, start, nbytes)


cdef int grow(pool_t* pool, size_t size, owner_t owner, size_t nbytes, size_t alignment, void** ptr,
              int* status) noexcept nogil:
    """Take a region and serve the request from it before anyone else can. The result is a fault's."""
    cdef void* start = NULL
    cdef int fault = ask_more(pool, size, &start)
    if status_code(fault) == cudaErrorMemoryAllocation:
        return STATUS_OK                        # refused
    if fault != STATUS_OK:
        return fault
    enter_all(pool)
    fault = add_region(pool, start, size)
    if fault == STATUS_OK:
        pool.grow_count += 1
        happenings_note(&pool.happenings, HAPPENING_GROW, size)
        status[0] = serve_locked(pool, owner, nbytes, alignment, ptr)
    leave_all(pool)
    if fault != STATUS_OK:
        ask_less(pool, start, size)
    return STATUS_OK if fault == STATUS_OUT_OF_MEMORY else fault


cdef int add_region(pool_t* pool, void* start, size_t nbytes) noexcept nogil:
    """Under all locks. STATUS_OUT_OF_MEMORY: there are as many regions as there can be, or it is too small."""
    cdef region_t region = region_at(start, nbytes)
    cdef int status
    if region.size == 0 or pool.regions.count == REGIONS_MAX:
        return STATUS_OUT_OF_MEMORY
    status = segment_open(&pool.segment, region.address, region.size, &region.offset)
    if status == STATUS_OK:
        note_region(pool, &region)
    return status


cdef region_t region_at(void* start, size_t nbytes) noexcept nogil:
    cdef region_t region
    cdef size_t lost
    region.start = start
    region.nbytes = nbytes
    region.address = round_up(<size_t>start, MID_UNIT)
    lost = region.address - <size_t>start
    region.size = (nbytes - lost) & ~<size_t>(MID_UNIT - 1) if nbytes > lost else 0
    region.offset = 0
    return region


cdef void note_region(pool_t* pool, const region_t* region) noexcept nogil:
    regions_add(&pool.regions, region)
    if region.offset == 0:
        set_size(&pool.base, region.address)
        set_size(&pool.first, region.size)
    note_reserved(pool)


cdef inline void note_reserved(pool_t* pool) noexcept nogil:
    pool.reserved = pool.regions.nbytes
    pool.reserved_high = max(pool.reserved_high, pool.reserved)
    pool.mark_bytes = pool.reserved // MARK_SHARE


# Giving back

cdef int growth_trim(pool_t* pool, size_t keep, size_t* returned) noexcept nogil:
    cdef int fault = see_what_is_done(pool)
    cdef choice_t order
    if fault != STATUS_OK or not pool.grows or not may_call(pool, NOBODY):
        return fault
    if pool.segment.pages.shift != 0:
        return trim_pages(pool, keep, returned)
    order = better_order(pool, keep)
    while fault == STATUS_OK and pool.reserved > keep:
        if not give_one_back(pool, pool.reserved - keep, order, returned, &fault):
            break
    return fault


cdef choice_t better_order(pool_t* pool, size_t keep) noexcept nogil:
    """By which order more may go; the smaller ones first if it is the same, since a large one serves every request."""
    cdef size_t* sizes = <size_t*>malloc(REGIONS_MAX * sizeof(size_t))
    cdef size_t room, count, small = 0, large = 0, at
    if sizes == NULL or pool.reserved <= keep:
        free(sizes)
        return CHOOSE_SMALLEST
    room = pool.reserved - keep
    count = list_idle(pool, sizes)
    qsort(sizes, count, sizeof(size_t), compare_sizes)
    for at in range(count):
        if small + sizes[at] <= room:
            small += sizes[at]
        if large + sizes[count - 1 - at] <= room:
            large += sizes[count - 1 - at]
    free(sizes)
    return CHOOSE_LARGEST if large > small else CHOOSE_SMALLEST


cdef int compare_sizes(const void* one, const void* other) noexcept nogil:
    cdef size_t first = (<const size_t*>one)[0], second = (<const size_t*>other)[0]
    return (first > second) - (first < second)


cdef int growth_give_back(pool_t* pool, size_t wanted, size_t* returned) noexcept nogil:
    cdef int fault = see_what_is_done(pool)
    if fault != STATUS_OK or not pool.grows or not may_call(pool, NOBODY):
        return fault
    if pool.segment.pages.shift != 0:
        return trim_pages(pool, pool.reserved - min(wanted, pool.reserved), returned)
    return give_back(pool, wanted, returned)


cdef int trim_pages(pool_t* pool, size_t keep, size_t* returned) noexcept nogil:
    """Give back pages that no block touches until what is left is at least `keep`."""
    cdef uint32_t gone = 0
    cdef int fault
    enter_all(pool)
    settle_locked(pool)
    segment_reclaim(&pool.segment)
    leave_all(pool)
    fault = remap_trim(pool, pages_end(&pool.segment.pages, min(keep, pool.reserved)) if keep != 0 else 0, &gone)
    if gone != 0:
        enter_all(pool)
        pool.trim_count += 1
        leave_all(pool)
        returned[0] += <size_t>gone << pool.segment.pages.shift
        happenings_note(&pool.happenings, HAPPENING_TRIM, <size_t>gone << pool.segment.pages.shift)
    return fault


cdef int give_back(pool_t* pool, size_t wanted, size_t* returned) noexcept nogil:
    """The smallest region that is enough, or else the largest one, and so on."""
    cdef size_t goal = returned[0] + wanted
    cdef int fault = STATUS_OK
    while fault == STATUS_OK and returned[0] < goal:
        if not give_one_back(pool, goal - returned[0], CHOOSE_ENOUGH, returned, &fault):
            break
    return fault


cdef bint give_one_back(pool_t* pool, size_t nbytes, choice_t choice, size_t* returned, int* fault) noexcept nogil:
    """Give back the region that is chosen for so many bytes; False if there is none."""
    cdef region_t region
    cdef uint32_t index, shut = NO_MID
    enter_all(pool)
    index = choose_idle(pool, nbytes, choice)
    region = pool.regions.region[index]
    if index != pool.regions.count:
        shut = segment_shut(&pool.segment, region.offset, region.size)
    leave_all(pool)
    if shut == NO_MID:
        return False
    fault[0] = ask_less(pool, region.start, region.nbytes)
    enter_all(pool)
    if fault[0] == STATUS_OK:
        segment_forget(&pool.segment, shut)
        regions_remove(&pool.regions, index)
        if region.offset == 0:
            set_size(&pool.first, 0)
        note_reserved(pool)
        pool.trim_count += 1
        returned[0] += region.nbytes
        happenings_note(&pool.happenings, HAPPENING_TRIM, region.nbytes)
    else:
        segment_reopen(&pool.segment, shut)
    leave_all(pool)
    return True


cdef uint32_t choose_idle(pool_t* pool, size_t nbytes, choice_t choice) noexcept nogil:
    """The index of an idle region, or the number of regions."""
    cdef uint32_t at, best = pool.regions.count
    settle_locked(pool)
    segment_reclaim(&pool.segment)
    for at in range(pool.regions.count):
        if not is_idle(pool, at) or (choice != CHOOSE_ENOUGH and pool.regions.region[at].nbytes > nbytes):
            continue
        if best == pool.regions.count or is_better(pool, at, best, nbytes, choice):
            best = at
    return best


cdef inline bint is_idle(pool_t* pool, uint32_t index) noexcept nogil:
    return segment_is_idle(&pool.segment, pool.regions.region[index].offset, pool.regions.region[index].size)


cdef inline bint is_better(const pool_t* pool, uint32_t one, uint32_t other, size_t wanted,
                           choice_t choice) noexcept nogil:
    """Of two equal regions the one with the higher offset."""
    cdef const region_t* region = &pool.regions.region[one]
    cdef const region_t* best = &pool.regions.region[other]
    if region.nbytes == best.nbytes:
        return region.offset > best.offset
    if choice == CHOOSE_ENOUGH and best.nbytes >= wanted:
        return wanted <= region.nbytes < best.nbytes
    return (region.nbytes < best.nbytes) == (choice == CHOOSE_SMALLEST)


cdef size_t idle_bytes(pool_t* pool) noexcept nogil:
    cdef size_t* sizes = <size_t*>malloc(REGIONS_MAX * sizeof(size_t))
    cdef size_t nbytes = 0, at
    for at in range(list_idle(pool, sizes) if sizes != NULL else 0):
        nbytes += sizes[at]
    free(sizes)
    return nbytes


cdef size_t list_idle(pool_t* pool, size_t* sizes) noexcept nogil:
    """The number of idle regions, and the bytes of each."""
    cdef size_t count = 0
    cdef uint32_t at
    enter_all(pool)
    settle_locked(pool)
    segment_reclaim(&pool.segment)
    for at in range(pool.regions.count):
        if is_idle(pool, at):
            sizes[count] = pool.regions.region[at].nbytes
            count += 1
    leave_all(pool)
    return count


# By itself

cdef void release_note(pool_t* pool) noexcept nogil:
    if free_in_blocks(pool) <= pool.release.threshold:
        return
    if pool.release.pause != 0:
        pool.release.pause -= 1
    else:
        set_flag(&pool.release_due, True)


cdef size_t free_in_blocks(const pool_t* pool) noexcept nogil:
    """Bytes that are free outside slabs, whosever they are."""
    cdef size_t lent = <size_t>pool.segment.buddy.size - segment_boundary(&pool.segment)
    cdef size_t used = pool.segment.buddy.used - lent << pool.segment.min_block_shift
    cdef size_t gaps = pool.segment.span - pool.segment.size
    cdef size_t nbytes = pool.segment.size if pool.segment.pages.shift == 0 else pool.reserved
    return nbytes - used - (<size_t>pool.segment.mid.used * MID_UNIT - gaps)


cdef int release_run(pool_t* pool) noexcept nogil:
    """After a try in vain more and more frees pass before the next one."""
    cdef size_t returned = 0, unused
    cdef int status = see_what_is_done(pool)
    set_flag(&pool.release_due, False)
    while status == STATUS_OK and may_call(pool, NOBODY):
        enter_all(pool)
        unused = free_in_blocks(pool)
        leave_all(pool)
        if unused <= pool.release.threshold:
            break
        if pool.segment.pages.shift != 0:
            status = trim_pages(pool, pool.reserved - (unused - pool.release.threshold), &returned)
            break
        if not give_one_back(pool, unused - pool.release.threshold, CHOOSE_LARGEST, &returned, &status):
            break
    enter_all(pool)
    pool.release.next_pause = 0 if returned != 0 else min(2 * pool.release.next_pause + 1, <uint32_t>PAUSE_MAX)
    pool.release.pause = pool.release.next_pause
    leave_all(pool)
    return status
