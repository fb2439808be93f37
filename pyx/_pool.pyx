"""The pool: one segment behind a lock, its statistics, and the calls it makes to the driver.

The lock is held for the bookkeeping only. Whatever asks the driver lets go of it first.
"""

from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memcpy, memset

from cuda_pool._bits cimport is_power_of_two, round_up
from cuda_pool._driver cimport cudaError_t, cudaStream_t, device_enter, device_leave, driver_is_shut, driver_t
from cuda_pool._lock cimport lock_acquire, lock_release, sched_yield
from cuda_pool._mid cimport MID_UNIT
from cuda_pool._segment cimport (
    TIERS, place_t, segment_alloc, segment_check, segment_destroy, segment_find, segment_free, segment_init,
    segment_is_live, segment_largest_free, segment_metadata, settings_t)
from cuda_pool._status cimport (
    STATUS_BAD_ALIGNMENT, STATUS_CLOSED, STATUS_FOREIGN_POINTER, STATUS_FORKED, STATUS_FREED_POINTER,
    STATUS_HOST_MEMORY, STATUS_OK, STATUS_OUT_OF_MEMORY, STATUS_WOULD_WAIT, status_code, status_cuda)

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*)() noexcept nogil, void (*)() noexcept nogil, void (*)() noexcept nogil)

cdef enum:
    cudaErrorInvalidResourceHandle = 400
    LEGACY_STREAM = 1           # handles that name the default streams, beside 0
    PER_THREAD_STREAM = 2       # another stream for each thread: never noted

cdef unsigned generation = 0        # forks between the first process and this one

cdef const char** call_names = ["cudaSetDevice", "cudaMalloc", "cudaFree", "cudaMemGetInfo", "cudaMemsetAsync",
                                "cudaStreamSynchronize", "cudaDeviceSynchronize"]


cdef int pool_open(pool_t* pool, const driver_t* driver, int device, size_t nbytes, const settings_t* settings,
                   bint scrub) noexcept nogil:
    """Take the region from the driver; when that or the host fails, nothing is held."""
    cdef int status
    memset(pool, 0, sizeof(pool_t))
    pool.closed = True
    pool.generation = generation
    pool.driver = driver
    pool.device = device
    pool.scrub = scrub
    pool.reserved = nbytes
    status = region_take(pool)
    if status != STATUS_OK:
        return status
    pool.base = round_up(<size_t>pool.region, MID_UNIT)
    nbytes -= pool.base - <size_t>pool.region
    if not segment_init(&pool.segment, pool.base, nbytes, settings):
        region_return(pool)
        return STATUS_HOST_MEMORY
    pool.closed = False
    return STATUS_OK


cdef int pool_close(pool_t* pool) noexcept nogil:
    """Return the region to the driver, live blocks included. Closing twice does nothing the second time."""
    if not shut_down(pool) or driver_is_shut():         # at exit the region is the driver's to take back
        return STATUS_OK
    return region_return(pool)


cdef void pool_abandon(pool_t* pool) noexcept nogil:
    shut_down(pool)


cdef int pool_alloc(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream, void** ptr) noexcept nogil:
    cdef int status = pool_try_alloc(pool, nbytes, alignment, stream, ptr)
    if status != STATUS_WOULD_WAIT:
        return status
    status = enter(pool)
    if status != STATUS_OK:
        return status
    pool.settling += 1              # no free is noted from here on, so one wait is enough
    leave(pool)
    status = settle(pool, NULL)
    if status == STATUS_OK:
        status = pool_try_alloc(pool, nbytes, alignment, stream, ptr)
    lock_acquire(&pool.lock)
    pool.settling -= 1
    lock_release(&pool.lock)
    return status


cdef int pool_try_alloc(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream,
                        void** ptr) noexcept nogil:
    cdef int status
    ptr[0] = NULL
    if not is_power_of_two(alignment):
        return STATUS_BAD_ALIGNMENT
    status = enter(pool)
    if status == STATUS_OK:
        status = alloc_locked(pool, nbytes, alignment, stream, ptr)
        leave(pool)
    return status


cdef int pool_free(pool_t* pool, void* ptr) noexcept nogil:
    cdef int status = pool_try_free(pool, ptr)
    return free_slowly(pool, ptr, NULL) if status == STATUS_WOULD_WAIT else status


cdef int pool_try_free(pool_t* pool, void* ptr) noexcept nogil:
    cdef int status
    if ptr == NULL:
        return STATUS_OK
    if pool.scrub:
        return STATUS_WOULD_WAIT
    status = enter(pool)
    if status == STATUS_OK:
        status = free_locked(pool, ptr)
        leave(pool)
    return status


cdef int pool_free_async(pool_t* pool, void* ptr, cudaStream_t stream) noexcept nogil:
    cdef int status = pool_try_free_async(pool, ptr, stream)
    return free_slowly(pool, ptr, stream) if status == STATUS_WOULD_WAIT else status


cdef int pool_try_free_async(pool_t* pool, void* ptr, cudaStream_t stream) noexcept nogil:
    cdef int status
    if ptr == NULL:
        return STATUS_OK
    if pool.scrub or <uintptr_t>stream == PER_THREAD_STREAM:
        return STATUS_WOULD_WAIT
    status = enter(pool)
    if status != STATUS_OK:
        return status
    stream = noted(stream)
    status = STATUS_WOULD_WAIT
    if pool.settling == 0 and (not pool.async_pending or pool.async_stream == stream):
        status = free_locked(pool, ptr)
    if status == STATUS_OK:
        pool.async_pending = True
        pool.async_stream = stream
        pool.async_epoch += 1
    leave(pool)
    return status


cdef int pool_forget_stream(pool_t* pool, cudaStream_t stream) noexcept nogil:
    stream = noted(stream)
    return settle(pool, &stream)


cdef int pool_owns(pool_t* pool, const void* ptr, bint* owns) noexcept nogil:
    cdef place_t place
    cdef size_t offset = <size_t>ptr - pool.base
    cdef int status = enter(pool)
    owns[0] = False
    if status != STATUS_OK:
        return STATUS_OK if status == STATUS_CLOSED else status
    if offset < pool.segment.size and not is_leaving(pool, ptr):
        owns[0] = segment_is_live(&pool.segment, offset, &place)
    leave(pool)
    return STATUS_OK


cdef int pool_size_of(pool_t* pool, const void* ptr, size_t* requested, size_t* used) noexcept nogil:
    cdef place_t place
    cdef int status = enter(pool)
    if status != STATUS_OK:
        return status
    status = find_locked(pool, ptr, &place)
    leave(pool)
    if status == STATUS_OK:
        requested[0] = place.requested
        used[0] = place.used
    return status


cdef int pool_mem_info(pool_t* pool, size_t* free, size_t* total) noexcept nogil:
    cdef int previous = 0
    cdef int status = ask_begin(pool, &previous)
    if status == STATUS_OK:
        status = ask_end(pool, previous, pool.driver.cudaMemGetInfo(free, total), UPSTREAM_MEM_GET_INFO)
    return status


cdef int pool_get_stats(pool_t* pool, pool_stats_t* out) noexcept nogil:
    cdef int status = enter(pool)
    memset(out, 0, sizeof(pool_stats_t))
    if status != STATUS_OK:
        return status
    out.capacity = pool.reserved
    out.reserved = pool.reserved
    out.reserved_high = pool.reserved
    out.used = pool.used
    out.used_high = pool.used_high
    out.requested = pool.requested
    out.requested_high = pool.requested_high
    out.alloc_count = pool.alloc_count
    out.free_count = pool.free_count
    out.oom_count = pool.oom_count
    out.free = pool.segment.size - pool.used
    out.largest_free = segment_largest_free(&pool.segment)
    memcpy(out.tier, pool.segment.tier, sizeof(out.tier))
    memcpy(out.upstream, pool.upstream, sizeof(out.upstream))
    leave(pool)
    return STATUS_OK


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
    broken = segment_check(&pool.segment)
    if broken == NULL:
        broken = totals_check(pool)
    leave(pool)
    return broken


cdef const char* pool_call_name(int call) noexcept nogil:
    return call_names[call]


cdef inline int enter(pool_t* pool) noexcept nogil:
    """Take the lock of an open pool; on any other status it is not held."""
    if pool.generation != generation:       # first: another thread of the parent may have held the lock at the fork
        return STATUS_FORKED
    lock_acquire(&pool.lock)
    if not pool.closed:
        return STATUS_OK
    lock_release(&pool.lock)
    return STATUS_CLOSED


cdef inline void leave(pool_t* pool) noexcept nogil:
    lock_release(&pool.lock)


cdef int may_ask(pool_t* pool) noexcept nogil:
    """STATUS_OK if the pool is open and this process's: only then does it call the driver."""
    cdef int status = enter(pool)
    if status == STATUS_OK:
        leave(pool)
    return status


cdef bint shut_down(pool_t* pool) noexcept nogil:
    """Close the pool and drop its bookkeeping; False where that is done, or the parent process's to do."""
    while True:
        if enter(pool) != STATUS_OK:
            return False
        if pool.leaving == NULL:
            break
        leave(pool)                 # a free is in the middle of a driver call on the region
        sched_yield()
    pool.closed = True
    leave(pool)
    segment_destroy(&pool.segment)
    return True


# Under the lock

cdef inline int alloc_locked(pool_t* pool, size_t nbytes, size_t alignment, cudaStream_t stream, void** ptr) noexcept nogil:
    cdef size_t offset = 0, used = 0
    cdef int status
    if nbytes == 0:
        return STATUS_OK
    if pool.async_pending and noted(stream) != pool.async_stream:
        return STATUS_WOULD_WAIT
    status = segment_alloc(&pool.segment, nbytes, alignment, &offset, &used)
    if status != STATUS_OK:
        pool.oom_count += status == STATUS_OUT_OF_MEMORY
        return status
    pool.alloc_count += 1
    pool.used += used
    pool.requested += nbytes
    pool.used_high = max(pool.used_high, pool.used)
    pool.requested_high = max(pool.requested_high, pool.requested)
    ptr[0] = <void*>(pool.base + offset)
    return STATUS_OK


cdef inline int free_locked(pool_t* pool, void* ptr) noexcept nogil:
    cdef place_t place
    cdef int status = find_locked(pool, ptr, &place)
    if status != STATUS_OK:
        return status
    segment_free(&pool.segment, &place)
    pool.free_count += 1
    pool.used -= place.used
    pool.requested -= place.requested
    return STATUS_OK


cdef inline int find_locked(pool_t* pool, const void* ptr, place_t* place) noexcept nogil:
    cdef size_t offset = <size_t>ptr - pool.base
    if offset >= pool.segment.size:         # below the base it wraps round to a large number
        return STATUS_FOREIGN_POINTER
    if is_leaving(pool, ptr):
        return STATUS_FREED_POINTER
    return segment_find(&pool.segment, offset, place)


cdef inline bint is_leaving(const pool_t* pool, const void* ptr) noexcept nogil:
    cdef const leaving_t* block = pool.leaving
    while block != NULL and block.ptr != ptr:
        block = block.next
    return block != NULL


cdef inline cudaStream_t noted(cudaStream_t stream) noexcept nogil:
    """The handle under which a stream is noted: the legacy default stream has two, 0 and 1."""
    return NULL if <uintptr_t>stream == LEGACY_STREAM else stream


cdef const char* totals_check(const pool_t* pool) noexcept nogil:
    cdef size_t used = 0, requested = 0, blocks = 0
    cdef int tier
    for tier in range(TIERS):
        used += pool.segment.tier[tier].used
        requested += pool.segment.tier[tier].requested
        blocks += pool.segment.tier[tier].blocks
    if used != pool.used or requested != pool.requested:
        return b"pool: used or requested differs from the sum over the tiers"
    if pool.alloc_count - pool.free_count != blocks:
        return b"pool: alloc_count - free_count != live blocks"
    if not (pool.requested <= pool.used <= pool.reserved):
        return b"pool: not requested <= used <= reserved"
    if pool.used > pool.used_high or pool.requested > pool.requested_high:
        return b"pool: a high-water mark is below what it marks"
    return NULL


# The lock taken and released

cdef int free_slowly(pool_t* pool, void* ptr, cudaStream_t stream) noexcept nogil:
    """Free a block once the stream is done with it, and with overwriting it; on an error it stays live."""
    cdef leaving_t block
    cdef int status = leaving_begin(pool, ptr, &block)
    if status != STATUS_OK:
        return status
    if pool.scrub:
        status = scrub_block(pool, &block, stream)
    if status == STATUS_OK:
        status = pool_stream_wait(pool, stream)
    return leaving_end(pool, &block, status)


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
        pool.leaving = block
    leave(pool)
    return status


cdef int leaving_end(pool_t* pool, leaving_t* block, int status) noexcept nogil:
    cdef leaving_t** link = &pool.leaving
    lock_acquire(&pool.lock)
    while link[0] != block:
        link = &link[0].next
    link[0] = block.next
    if status == STATUS_OK:
        status = free_locked(pool, block.ptr)
    lock_release(&pool.lock)
    return status


cdef int settle(pool_t* pool, const cudaStream_t* only) noexcept nogil:
    """Wait for the work behind the pending asynchronous frees, or only if they are on one stream.

    Frees that arrive meanwhile stay pending.
    """
    cdef cudaStream_t stream
    cdef uint64_t epoch
    cdef int status = enter(pool)
    if status != STATUS_OK:
        return status
    stream = pool.async_stream
    epoch = pool.async_epoch
    if not pool.async_pending or (only != NULL and only[0] != stream):
        leave(pool)
        return STATUS_OK
    leave(pool)
    status = pool_stream_wait(pool, stream)
    if status != STATUS_OK:
        return status
    status = enter(pool)
    if status == STATUS_OK:
        if pool.async_epoch == epoch:
            pool.async_pending = False
        leave(pool)
    return status


# The driver, never under the lock

cdef int region_take(pool_t* pool) noexcept nogil:
    cdef int previous = 0
    cdef cudaError_t error = device_enter(pool.driver, pool.device, &previous)
    if error != 0:
        return status_cuda(error, UPSTREAM_SET_DEVICE)
    return ask_end(pool, previous, pool.driver.cudaMalloc(&pool.region, pool.reserved), UPSTREAM_MALLOC)


cdef int region_return(pool_t* pool) noexcept nogil:
    cdef int previous = 0
    cdef cudaError_t error = device_enter(pool.driver, pool.device, &previous)
    if error != 0:
        return status_cuda(error, UPSTREAM_SET_DEVICE)
    return ask_end(pool, previous, pool.driver.cudaFree(pool.region), UPSTREAM_FREE)


cdef int pool_stream_wait(pool_t* pool, cudaStream_t stream) noexcept nogil:
    cdef int previous = 0
    cdef int status = ask_begin(pool, &previous)
    if status != STATUS_OK:
        return status
    status = ask_end(pool, previous, pool.driver.cudaStreamSynchronize(stream), UPSTREAM_SYNCHRONIZE)
    if status_code(status) != cudaErrorInvalidResourceHandle:
        return status
    # The stream was destroyed before its pool heard of it: all work of the device includes what it had queued.
    status = ask_begin(pool, &previous)
    if status == STATUS_OK:
        status = ask_end(pool, previous, pool.driver.cudaDeviceSynchronize(), UPSTREAM_DEVICE_SYNCHRONIZE)
    return status


cdef int scrub_block(pool_t* pool, const leaving_t* block, cudaStream_t stream) noexcept nogil:
    cdef int previous = 0
    cdef int status = ask_begin(pool, &previous)
    if status == STATUS_OK:
        status = ask_end(pool, previous, pool.driver.cudaMemsetAsync(block.ptr, 0, block.used, stream),
                         UPSTREAM_MEMSET)
    return status


cdef int ask_begin(pool_t* pool, int* previous) noexcept nogil:
    """Make the pool's device current for a driver call, which only an open pool of this process makes."""
    cdef int status = may_ask(pool)
    if status != STATUS_OK:
        return status
    return status_cuda(device_enter(pool.driver, pool.device, previous), UPSTREAM_SET_DEVICE)


cdef int ask_end(pool_t* pool, int previous, cudaError_t error, upstream_t call) noexcept nogil:
    """Make the caller's device current again, count the call, and turn its result into a status."""
    device_leave(pool.driver, pool.device, previous)
    lock_acquire(&pool.lock)
    pool.upstream[call] += 1
    lock_release(&pool.lock)
    return status_cuda(error, call)


cdef void forked() noexcept nogil:
    global generation
    generation += 1


pthread_atfork(NULL, NULL, forked)
