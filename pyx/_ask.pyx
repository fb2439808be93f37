"""What a pool asks the driver."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free

from cuda_pool._claim cimport claim_drop, claim_make, claim_t
from cuda_pool._driver cimport (
    cudaErrorInvalidResourceHandle, cudaErrorNotReady, cudaError_t, cudaEventDisableTiming, cudaMemcpyDeviceToDevice,
    cudaStreamCaptureStatusNone, device_enter, device_enter_context, device_leave)
from cuda_pool._hostmem cimport host_grow
from cuda_pool._lock cimport lock_acquire, lock_release
from cuda_pool._locks cimport enter_lock, leave_lock
from cuda_pool._state cimport (
    UPSTREAM_DEVICE_SYNCHRONIZE, UPSTREAM_EVENT_CREATE, UPSTREAM_EVENT_DESTROY, UPSTREAM_EVENT_QUERY,
    UPSTREAM_EVENT_RECORD, UPSTREAM_EVENT_SYNCHRONIZE, UPSTREAM_FREE, UPSTREAM_GET_ID, UPSTREAM_IS_CAPTURING,
    UPSTREAM_MALLOC, UPSTREAM_MEMCPY, UPSTREAM_MEMSET, UPSTREAM_MEM_GET_INFO, UPSTREAM_SET_DEVICE,
    UPSTREAM_STREAM_QUERY, UPSTREAM_SYNCHRONIZE, UPSTREAM_WAIT_EVENT, upstream_t)
from cuda_pool._status cimport STATUS_OK, STATUS_OVERLAP, status_code, status_cuda

cdef const char** call_names = [
    "cudaSetDevice", "cudaMalloc", "cudaFree", "cudaMemGetInfo", "cudaMemsetAsync", "cudaStreamSynchronize",
    "cudaDeviceSynchronize", "cudaEventCreateWithFlags", "cudaEventRecord", "cudaEventQuery", "cudaEventSynchronize",
    "cudaEventDestroy", "cudaStreamWaitEvent", "cudaStreamGetId", "cudaStreamIsCapturing", "cuMemAddressReserve",
    "cuMemAddressFree", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cudaStreamQuery",
    "cudaMemcpyAsync"]


cdef int ask_region(pool_t* pool) noexcept nogil:
    """The pool is not open yet."""
    cdef int previous = 0, status
    cdef cudaError_t error = device_enter(pool.driver, pool.device, &previous)
    if error != 0:
        return status_cuda(error, UPSTREAM_SET_DEVICE)
    status = ask_end(pool, previous, pool.driver.cudaMalloc(&pool.region, pool.reserved), UPSTREAM_MALLOC)
    return status if status != STATUS_OK else claim(pool, pool.region, pool.reserved)


cdef int ask_region_back(pool_t* pool) noexcept nogil:
    """The pool is closed."""
    cdef int previous = 0
    cdef cudaError_t error
    unclaim(pool, pool.region, pool.reserved)
    error = device_enter(pool.driver, pool.device, &previous)
    if error != 0:
        return status_cuda(error, UPSTREAM_SET_DEVICE)
    return ask_end(pool, previous, pool.driver.cudaFree(pool.region), UPSTREAM_FREE)


cdef int ask_regions_back(pool_t* pool) noexcept nogil:
    """The first failure of several is what is told."""
    cdef int previous = 0, status = STATUS_OK, latest
    cdef uint32_t at
    cdef cudaError_t error
    for at in range(pool.regions.count):
        unclaim(pool, pool.regions.region[at].start, pool.regions.region[at].nbytes)
    error = device_enter(pool.driver, pool.device, &previous)
    if error != 0:
        return status_cuda(error, UPSTREAM_SET_DEVICE)
    for at in range(pool.regions.count):
        latest = ask_count(pool, pool.driver.cudaFree(pool.regions.region[at].start), UPSTREAM_FREE)
        status = status or latest
    device_leave(pool.driver, pool.device, previous)
    return status


cdef int ask_more(pool_t* pool, size_t nbytes, void** start) noexcept nogil:
    cdef int previous = 0
    cdef int status = ask_begin(pool, &previous)
    if status == STATUS_OK:
        status = ask_end(pool, previous, pool.driver.cudaMalloc(start, nbytes), UPSTREAM_MALLOC)
    return status if status != STATUS_OK else claim(pool, start[0], nbytes)


cdef int ask_less(pool_t* pool, void* start, size_t nbytes) noexcept nogil:
    cdef int previous = 0
    cdef int status = ask_begin(pool, &previous)
    if status != STATUS_OK:
        return status
    unclaim(pool, start, nbytes)
    status = ask_end(pool, previous, pool.driver.cudaFree(start), UPSTREAM_FREE)
    if status != STATUS_OK:
        claim(pool, start, nbytes)
    return status


cdef int claim(pool_t* pool, void* start, size_t nbytes) noexcept nogil:
    """What somebody has already is not the pool's to return. Without `debug` that is looked at for its own only."""
    cdef claim_t mine = claim_of(pool, start, nbytes), other
    if claim_make(&mine, &other) or not (pool.debug or is_own(pool, &other)):
        return STATUS_OK
    pool.refused = mine
    pool.taken = other
    return STATUS_OVERLAP


cdef bint is_own(const pool_t* pool, const claim_t* claim) noexcept nogil:
    cdef uint32_t at
    for at in range(pool.regions.count):
        if <size_t>pool.regions.region[at].start == claim.start:
            return True
    return False


cdef void unclaim(pool_t* pool, void* start, size_t nbytes) noexcept nogil:
    cdef claim_t mine = claim_of(pool, start, nbytes)
    claim_drop(&mine)


cdef inline claim_t claim_of(const pool_t* pool, void* start, size_t nbytes) noexcept nogil:
    cdef claim_t mine
    mine.driver = pool.driver
    mine.device = pool.device
    mine.start = <size_t>start
    mine.end = <size_t>start + nbytes
    return mine


cdef int ask_mem_info(pool_t* pool, size_t* free, size_t* total) noexcept nogil:
    cdef int previous = 0
    cdef int status = ask_begin(pool, &previous)
    if status == STATUS_OK:
        status = ask_end(pool, previous, pool.driver.cudaMemGetInfo(free, total), UPSTREAM_MEM_GET_INFO)
    return status


cdef int ask_zero(pool_t* pool, const leaving_t* block, cudaStream_t stream) noexcept nogil:
    cdef int previous = 0
    cdef int status = ask_begin(pool, &previous)
    if status == STATUS_OK:
        status = ask_end(pool, previous, pool.driver.cudaMemsetAsync(block.ptr, 0, block.used, stream),
                         UPSTREAM_MEMSET)
    return status


cdef int ask_copy(pool_t* pool, void* to, const void* place, size_t nbytes, cudaStream_t stream) noexcept nogil:
    cdef int previous = 0
    cdef int status = ask_begin(pool, &previous)
    if status == STATUS_OK:
        status = ask_end(pool, previous,
                         pool.driver.cudaMemcpyAsync(to, place, nbytes, cudaMemcpyDeviceToDevice, stream),
                         UPSTREAM_MEMCPY)
    return status


cdef int ask_stream_done(pool_t* pool, cudaStream_t stream) noexcept nogil:
    cdef int previous = 0
    cdef int status = ask_begin(pool, &previous)
    if status != STATUS_OK:
        return status
    status = ask_end(pool, previous, pool.driver.cudaStreamSynchronize(stream), UPSTREAM_SYNCHRONIZE)
    if status_code(status) != cudaErrorInvalidResourceHandle:
        return status
    # The stream was destroyed before its pool heard of it: all work of the device includes what it had queued.
    return ask_device_done(pool)


cdef int ask_device_done(pool_t* pool) noexcept nogil:
    cdef int previous = 0
    cdef int status = ask_begin(pool, &previous)
    if status == STATUS_OK:
        status = ask_end(pool, previous, pool.driver.cudaDeviceSynchronize(), UPSTREAM_DEVICE_SYNCHRONIZE)
    return status


cdef int ask_stream_id(pool_t* pool, cudaStream_t stream, uint64_t* id) noexcept nogil:
    cdef int previous = 0
    cdef unsigned long long number = 0
    cdef int status = ask_begin(pool, &previous)
    if status == STATUS_OK:
        status = ask_end(pool, previous, pool.driver.cudaStreamGetId(stream, &number), UPSTREAM_GET_ID)
    id[0] = number
    return status


cdef bint ask_is_open(pool_t* pool, cudaStream_t stream) noexcept nogil:
    cdef int previous = 0, capturing = 0
    cdef int status = ask_begin(pool, &previous)
    if status == STATUS_OK:
        status = ask_end(pool, previous, pool.driver.cudaStreamIsCapturing(stream, &capturing), UPSTREAM_IS_CAPTURING)
    return status == STATUS_OK and capturing == cudaStreamCaptureStatusNone


cdef int ask_is_idle(pool_t* pool, cudaStream_t stream, bint* idle) noexcept nogil:
    cdef int previous = 0
    cdef int status = ask_begin(pool, &previous)
    idle[0] = False
    if status != STATUS_OK:
        return status
    status = ask_end(pool, previous, pool.driver.cudaStreamQuery(stream), UPSTREAM_STREAM_QUERY)
    idle[0] = status == STATUS_OK
    return STATUS_OK if status_code(status) == cudaErrorNotReady else status


cdef int ask_event(pool_t* pool, cudaStream_t stream, cudaEvent_t* event) noexcept nogil:
    cdef int previous = 0
    cdef int status = ask_begin(pool, &previous)
    if status != STATUS_OK:
        return status
    event[0] = spare_event(pool)
    if event[0] == NULL:
        status = ask_count(pool, pool.driver.cudaEventCreateWithFlags(event, cudaEventDisableTiming),
                           UPSTREAM_EVENT_CREATE)
    if status == STATUS_OK:
        status = ask_count(pool, pool.driver.cudaEventRecord(event[0], stream), UPSTREAM_EVENT_RECORD)
        if status != STATUS_OK:
            ask_keep_event(pool, event[0])
    device_leave(pool.driver, pool.device, previous)
    return status


cdef cudaEvent_t spare_event(pool_t* pool) noexcept nogil:
    cdef cudaEvent_t event = NULL
    lock_acquire(&pool.lock)
    if pool.spares != 0:
        pool.spares -= 1
        event = pool.spare_event[pool.spares]
    lock_release(&pool.lock)
    return event


cdef int ask_is_over(pool_t* pool, cudaEvent_t event, bint* over) noexcept nogil:
    cdef int previous = 0
    cdef int status = ask_begin(pool, &previous)
    over[0] = False
    if status != STATUS_OK:
        return status
    status = ask_end(pool, previous, pool.driver.cudaEventQuery(event), UPSTREAM_EVENT_QUERY)
    over[0] = status == STATUS_OK
    return STATUS_OK if status_code(status) == cudaErrorNotReady else status


cdef int ask_event_done(pool_t* pool, cudaEvent_t event) noexcept nogil:
    cdef int previous = 0
    cdef int status = ask_begin(pool, &previous)
    if status == STATUS_OK:
        status = ask_end(pool, previous, pool.driver.cudaEventSynchronize(event), UPSTREAM_EVENT_SYNCHRONIZE)
    return status


cdef int ask_wait(pool_t* pool, cudaStream_t stream, cudaEvent_t event) noexcept nogil:
    cdef int previous = 0
    cdef int status = ask_begin(pool, &previous)
    if status == STATUS_OK:
        status = ask_end(pool, previous, pool.driver.cudaStreamWaitEvent(stream, event, 0), UPSTREAM_WAIT_EVENT)
    return status


cdef void ask_keep_event(pool_t* pool, cudaEvent_t event) noexcept nogil:
    cdef bint kept
    cdef int previous = 0
    if event == NULL:
        return
    lock_acquire(&pool.lock)
    kept = host_grow(<void**>&pool.spare_event, sizeof(cudaEvent_t), &pool.spare_capacity, pool.spares + 1)
    if kept:
        pool.spare_event[pool.spares] = event
        pool.spares += 1
    lock_release(&pool.lock)
    if not kept and device_enter(pool.driver, pool.device, &previous) == 0:
        ask_count(pool, pool.driver.cudaEventDestroy(event), UPSTREAM_EVENT_DESTROY)
        device_leave(pool.driver, pool.device, previous)


cdef void ask_no_events(pool_t* pool) noexcept nogil:
    """The pool is closed; a destroyed event that is still waited for on the device stays until then."""
    cdef int previous = 0
    cdef uint32_t at
    if pool.spares != 0 and device_enter(pool.driver, pool.device, &previous) == 0:
        for at in range(pool.spares):
            ask_count(pool, pool.driver.cudaEventDestroy(pool.spare_event[at]), UPSTREAM_EVENT_DESTROY)
        device_leave(pool.driver, pool.device, previous)
    free(pool.spare_event)
    pool.spare_event = NULL
    pool.spares = 0
    pool.spare_capacity = 0


cdef const char* ask_call_name(int call) noexcept nogil:
    return call_names[call]


cdef int ask_begin(pool_t* pool, int* previous) noexcept nogil:
    """Make the pool's device current for a driver call, which only an open pool of this process makes."""
    cdef int status = enter_lock(pool)
    if status != STATUS_OK:
        return status
    leave_lock(pool)
    return status_cuda(device_enter(pool.driver, pool.device, previous), UPSTREAM_SET_DEVICE)


cdef int ask_end(pool_t* pool, int previous, cudaError_t error, upstream_t call) noexcept nogil:
    """Make the caller's device current again, count the call, and turn its result into a status."""
    device_leave(pool.driver, pool.device, previous)
    return ask_count(pool, error, call)


cdef int ask_begin_context(pool_t* pool, int* previous) noexcept nogil:
    cdef int status = enter_lock(pool)
    if status != STATUS_OK:
        return status
    leave_lock(pool)
    return status_cuda(device_enter_context(pool.driver, pool.device, previous), UPSTREAM_SET_DEVICE)


cdef int ask_count(pool_t* pool, int error, upstream_t call) noexcept nogil:
    lock_acquire(&pool.lock)
    pool.upstream[call] += 1
    lock_release(&pool.lock)
    return status_cuda(error, call)
