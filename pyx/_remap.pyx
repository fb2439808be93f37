"""Moving physical pages under a pool's virtual addresses.

A page that is taken away was made unusable before, under the locks, and one that is mapped becomes usable after it is
accessible. So whatever fails in between leaves each piece of memory in one place, or spare, and a page in one of its
three states; the next call goes on from there.
"""

from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc

from cuda_pool._ask cimport ask_begin_context, ask_count
from cuda_pool._driver cimport (
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CUdeviceptr, CUmemAccessDesc, CUmemAllocationProp,
    CUmemGenericAllocationHandle, cudaErrorMemoryAllocation, device_enter_context, device_leave, memory_of)
from cuda_pool._happenings cimport HAPPENING_GROW, happenings_note
from cuda_pool._lock cimport lock_acquire, lock_release
from cuda_pool._locks cimport enter, enter_all, leave_all
from cuda_pool._pages cimport (
    pages_created, pages_end, pages_has, pages_next, pages_opened, pages_placed, pages_released, pages_spare,
    pages_suspended, pages_t, pages_taken)
from cuda_pool._paging cimport (
    paging_begin, paging_destroy, paging_end, paging_free_pages, paging_gather, paging_t, paging_undo)
from cuda_pool._segment cimport segment_highs, segment_total
from cuda_pool._state cimport (
    UPSTREAM_DEVICE_SYNCHRONIZE, UPSTREAM_MEM_ADDRESS_FREE, UPSTREAM_MEM_ADDRESS_RESERVE, UPSTREAM_MEM_CREATE,
    UPSTREAM_MEM_MAP, UPSTREAM_MEM_RELEASE, UPSTREAM_MEM_SET_ACCESS, UPSTREAM_MEM_UNMAP, UPSTREAM_SET_DEVICE,
    WAIT_SHARE, pool_address)
from cuda_pool._status cimport (
    STATUS_CUDA, STATUS_HOST_MEMORY, STATUS_OK, STATUS_OUT_OF_MEMORY, status_code, status_cuda)


cdef int remap_reserve(pool_t* pool) noexcept nogil:
    cdef CUdeviceptr start = 0
    cdef int previous = 0
    cdef int status = status_cuda(device_enter_context(pool.driver, pool.device, &previous), UPSTREAM_SET_DEVICE)
    if status != STATUS_OK:
        return status
    status = ask_count(pool, pool.driver.cuMemAddressReserve(&start, pool.range_bytes, 0, 0, 0),
                       UPSTREAM_MEM_ADDRESS_RESERVE)
    device_leave(pool.driver, pool.device, previous)
    pool.region = <void*>start
    return status


cdef int remap_fill(pool_t* pool, uint32_t count) noexcept nogil:
    cdef int previous = 0
    cdef uint32_t end = pool.segment.pages.count
    cdef int status = status_cuda(device_enter_context(pool.driver, pool.device, &previous), UPSTREAM_SET_DEVICE)
    if status != STATUS_OK:
        return status
    status = create(pool, count)
    if status == STATUS_OK:
        status = place(pool, end - count, end)
    device_leave(pool.driver, pool.device, previous)
    return status


cdef int remap_alloc(pool_t* pool, owner_t owner, size_t nbytes, size_t alignment, bint may_grow,
                     void** ptr) noexcept nogil:
    cdef pages_t* pages = &pool.segment.pages
    cdef paging_t paging
    cdef size_t offset = 0, used = 0
    cdef size_t reserved
    cdef int status = enter(pool)
    if status != STATUS_OK:
        return status
    reserved = pool.reserved
    pages.limit = pages.most if may_grow else growth_limit(pool, nbytes)
    status = paging_begin(&pool.segment, owner, nbytes, alignment, &paging)
    leave_all(pool)
    if status != STATUS_OK:
        return status
    status = carry_out(pool, &paging)
    enter_all(pool)
    if paging.creates != 0 and status == STATUS_OK:
        pool.grow_count += 1
        happenings_note(&pool.happenings, HAPPENING_GROW, pool.reserved - min(pool.reserved, reserved))
    if status == STATUS_OK:
        status = paging_end(&pool.segment, owner, &paging, nbytes, &offset, &used)
    else:
        paging_undo(&pool.segment, &paging)
    leave_all(pool)
    paging_destroy(&paging)
    if status == STATUS_OK:
        ptr[0] = pool_address(pool, offset)
    return status


cdef int remap_gather(pool_t* pool, uint32_t most, size_t* moved) noexcept nogil:
    cdef paging_t paging
    cdef int status = enter(pool)
    moved[0] = 0
    if status != STATUS_OK:
        return status
    status = paging_gather(&pool.segment, most, &paging)
    leave_all(pool)
    if status == STATUS_OK and paging.first != paging.end:
        status = carry_out(pool, &paging)
        moved[0] = paging.units if status == STATUS_OK else 0
    paging_destroy(&paging)
    return status


cdef uint32_t growth_limit(const pool_t* pool, size_t nbytes) noexcept nogil:
    """As for regions: up to a share of the peak, memory that streams have to themselves is cheaper than waits."""
    cdef size_t high = 0, requested_high = 0
    segment_highs(&pool.segment, &high, &requested_high)
    high = max(high, segment_total(&pool.segment).used + nbytes)
    return max(pool.segment.pages.created, min(pool.segment.pages.most,
                                               pages_end(&pool.segment.pages, WAIT_SHARE * high)))


cdef int carry_out(pool_t* pool, const paging_t* paging) noexcept nogil:
    cdef int previous = 0
    cdef int status = ask_begin_context(pool, &previous)
    if status != STATUS_OK:
        return status
    status = take(pool, paging.take, paging.takes)
    if status == STATUS_OK:
        status = create(pool, paging.creates)
    if status == STATUS_OK:
        status = place(pool, paging.first, paging.end)
    device_leave(pool.driver, pool.device, previous)
    return status


cdef inline bint is_out_of_memory(int status) noexcept nogil:
    return status & 0xFF == STATUS_CUDA and status_code(status) == cudaErrorMemoryAllocation


cdef inline CUdeviceptr address_of(const pool_t* pool, uint32_t page) noexcept nogil:
    return <CUdeviceptr>pool.base + (<size_t>page << pool.segment.pages.shift)


cdef inline size_t page_bytes(const pool_t* pool) noexcept nogil:
    return <size_t>1 << pool.segment.pages.shift


cdef int take(pool_t* pool, const uint32_t* pages, uint32_t count) noexcept nogil:
    """Unmap pages that were suspended. Those that are left, where one fails, are made accessible again when needed."""
    cdef uint32_t at
    cdef int status
    for at in range(count):
        status = ask_count(pool, pool.driver.cuMemUnmap(address_of(pool, pages[at]), page_bytes(pool)),
                           UPSTREAM_MEM_UNMAP)
        if status != STATUS_OK:
            return status
        lock_acquire(&pool.lock)
        pages_taken(&pool.segment.pages, pages[at])
        lock_release(&pool.lock)
    return STATUS_OK


cdef int create(pool_t* pool, uint32_t count) noexcept nogil:
    cdef CUmemAllocationProp prop = memory_of(pool.device)
    cdef CUmemGenericAllocationHandle handle
    cdef int status
    while count != 0:
        handle = 0
        status = ask_count(pool, pool.driver.cuMemCreate(&handle, page_bytes(pool), &prop, 0), UPSTREAM_MEM_CREATE)
        if is_out_of_memory(status):            # the device has less than was thought
            return STATUS_OUT_OF_MEMORY
        if status != STATUS_OK:
            return status
        lock_acquire(&pool.lock)
        pages_created(&pool.segment.pages, handle)
        pool.reserved += page_bytes(pool)
        pool.reserved_high = max(pool.reserved_high, pool.reserved)
        lock_release(&pool.lock)
        count -= 1
    return STATUS_OK


cdef int place(pool_t* pool, uint32_t first, uint32_t end) noexcept nogil:
    """Map spare memory where there is none in [first, end), then make accessible what is not, run by run."""
    cdef pages_t* pages = &pool.segment.pages
    cdef uint32_t at = pages_next(pages.placed, first, end, False)
    cdef int status
    while at < end:
        status = ask_count(pool, pool.driver.cuMemMap(address_of(pool, at), page_bytes(pool), 0, pages_spare(pages), 0),
                           UPSTREAM_MEM_MAP)
        if status != STATUS_OK:
            return status
        lock_acquire(&pool.lock)
        pages_placed(pages, at)
        lock_release(&pool.lock)
        at = pages_next(pages.placed, at, end, False)
    return open_pages(pool, first, end)


cdef int open_pages(pool_t* pool, uint32_t first, uint32_t end) noexcept nogil:
    cdef pages_t* pages = &pool.segment.pages
    cdef CUmemAccessDesc access
    cdef uint32_t at = pages_next(pages.ready, first, end, False), last
    cdef int status
    access.location = memory_of(pool.device).location
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    while at < end:
        last = pages_next(pages.ready, at, end, True)
        status = ask_count(pool, pool.driver.cuMemSetAccess(address_of(pool, at), page_bytes(pool) * (last - at),
                                                            &access, 1), UPSTREAM_MEM_SET_ACCESS)
        if status != STATUS_OK:
            return status
        lock_acquire(&pool.lock)
        for at in range(at, last):
            pages_opened(pages, at)
        lock_release(&pool.lock)
        at = pages_next(pages.ready, last, end, False)
    return STATUS_OK


cdef int remap_trim(pool_t* pool, uint32_t keep, uint32_t* gone) noexcept nogil:
    cdef pages_t* pages = &pool.segment.pages
    cdef uint32_t* chosen = NULL
    cdef uint32_t count = 0, surplus, at
    cdef int previous = 0, status
    gone[0] = 0
    status = enter(pool)
    if status != STATUS_OK:
        return status
    surplus = pages.created - keep if pages.created > keep else 0
    if surplus > pages.spares:
        chosen = <uint32_t*>malloc((surplus - pages.spares) * sizeof(uint32_t))
        if chosen == NULL:
            leave_all(pool)
            return STATUS_HOST_MEMORY
        count = paging_free_pages(&pool.segment, 0, 0, surplus - pages.spares, chosen)
        for at in range(count):
            if pages_has(pages.ready, chosen[at]):
                pages_suspended(pages, chosen[at])
    leave_all(pool)
    status = ask_begin_context(pool, &previous)
    if status == STATUS_OK:
        status = take(pool, chosen, count)
        if status == STATUS_OK:
            status = release_spares(pool, surplus, gone)
        device_leave(pool.driver, pool.device, previous)
    free(chosen)
    return status


cdef int release_spares(pool_t* pool, uint32_t most, uint32_t* gone) noexcept nogil:
    """Give spare memory back to the driver, at most so many pieces."""
    cdef pages_t* pages = &pool.segment.pages
    cdef int status
    while pages.spares != 0 and gone[0] < most:
        status = ask_count(pool, pool.driver.cuMemRelease(pages_spare(pages)), UPSTREAM_MEM_RELEASE)
        if status != STATUS_OK:
            return status
        lock_acquire(&pool.lock)
        pages_released(pages)
        pool.reserved -= page_bytes(pool)
        lock_release(&pool.lock)
        gone[0] += 1
    return STATUS_OK


cdef int remap_release(pool_t* pool) noexcept nogil:
    """Wait for all work, as cudaFree does of itself. After that go on where something fails, so that as much as can be
    is given back; the first failure is the result.
    """
    cdef pages_t* pages = &pool.segment.pages
    cdef uint32_t at = 0
    cdef int previous = 0, fault = STATUS_OK, status
    status = status_cuda(device_enter_context(pool.driver, pool.device, &previous), UPSTREAM_SET_DEVICE)
    if status != STATUS_OK:
        return status
    if pages.placed_count != 0:
        status = ask_count(pool, pool.driver.cudaDeviceSynchronize(), UPSTREAM_DEVICE_SYNCHRONIZE)
    if status != STATUS_OK:
        device_leave(pool.driver, pool.device, previous)
        return status
    at = pages_next(pages.placed, 0, pages.count, True)
    while at < pages.count:
        status = ask_count(pool, pool.driver.cuMemUnmap(address_of(pool, at), page_bytes(pool)), UPSTREAM_MEM_UNMAP)
        fault = fault or status
        if status == STATUS_OK:
            if pages_has(pages.ready, at):
                pages_suspended(pages, at)
            pages_taken(pages, at)
        at = pages_next(pages.placed, at + 1, pages.count, True)
    while pages.spares != 0:
        status = ask_count(pool, pool.driver.cuMemRelease(pages_spare(pages)), UPSTREAM_MEM_RELEASE)
        fault = fault or status
        pages_released(pages)
    if pages.placed_count == 0:
        status = ask_count(pool, pool.driver.cuMemAddressFree(<CUdeviceptr>pool.region, pool.range_bytes),
                           UPSTREAM_MEM_ADDRESS_FREE)
        fault = fault or status
    device_leave(pool.driver, pool.device, previous)
    return fault
