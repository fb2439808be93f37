"""Operations: what streams queue, and what happens to memory when one runs."""

from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove, memset

from cuda_pool._driver cimport cudaErrorIllegalAddress, cudaErrorMemoryAllocation, cudaSuccess
from cuda_pool._sim_log cimport MISUSE_FREED, MISUSE_NONE, MISUSE_UNMAPPED, misuse_t, misuses_add
from cuda_pool._sim_memory cimport memory_find, memory_place, memory_release, place_t
from cuda_pool._sim_race cimport access_t, races_add, races_forget_range
from cuda_pool._sim_virtual cimport virtual_find, virtual_touch


cdef op_t op_make(int kind, int name, uint64_t ticks) noexcept nogil:
    """Return an operation that touches nothing yet."""
    cdef op_t op
    memset(&op, 0, sizeof(op_t))
    op.kind = kind
    op.name = name
    op.ticks = ticks
    return op


cdef span_t span_make(const memory_t* memory, const void* address, size_t nbytes) noexcept nogil:
    """Return a range of device memory, with the memory that is there now."""
    cdef place_t place
    cdef span_t span
    memory_place(memory, address, nbytes, False, &place)
    span.address = <uint64_t>address
    span.nbytes = nbytes
    span.serial = place.serial
    return span


cdef op_t* op_copy(const op_t* op, const uint64_t* clock, uint32_t lanes) noexcept nogil:
    cdef op_t* copy = <op_t*>malloc(sizeof(op_t) + lanes * sizeof(uint64_t))
    if copy is NULL:
        return NULL
    copy[0] = op[0]
    copy.next = NULL
    copy.clock = <uint64_t*>(copy + 1)
    copy.lanes = lanes
    memcpy(copy.clock, clock, lanes * sizeof(uint64_t))
    if copy.result is not NULL:
        copy.result.holders += 1
    return copy


cdef bint op_stage(op_t* op) noexcept nogil:
    """Take the bytes out of the caller's hands, as CUDA does for host memory that is not pinned."""
    op.staged = <char*>malloc(op.nbytes)
    if op.staged is NULL:
        return False
    memcpy(op.staged, op.source, op.nbytes)
    op.source = op.staged
    return True


cdef void op_free(op_t* op) noexcept nogil:
    if op.result is not NULL:
        result_release(op.result)
    free(op.staged)
    free(op)


cdef cudaError_t op_run(const op_t* op, run_t* run) noexcept nogil:
    """Check both ranges, compare them with what others did there, and only then touch them."""
    cdef cudaError_t code = cudaSuccess
    if not (span_is_live(op, &op.reads, False, run) and span_is_live(op, &op.writes, True, run)):
        return cudaErrorIllegalAddress
    if not (span_race(op, &op.reads, False, run) and span_race(op, &op.writes, True, run)):
        code = cudaErrorMemoryAllocation
    if op.kind == OP_WORK:
        return code
    if not (span_touch(&op.reads, run) and span_touch(&op.writes, run)):
        return cudaErrorMemoryAllocation
    if op.kind == OP_FILL:
        memset(<void*>op.writes.address, op.value, op.writes.nbytes)
    elif op.kind == OP_COPY:
        memmove(op.destination, op.source, op.nbytes)
    elif op.kind == OP_READ:
        memcpy(op.result.bytes, <void*>op.reads.address, op.reads.nbytes)
        op.result.ready = True
    elif op.kind == OP_FREE and not races_forget_range(run.races, op.writes.address, op.writes.nbytes):
        code = cudaErrorMemoryAllocation
    if op.kind == OP_FREE:
        memory_release(run.memory, memory_find(run.memory, <char*>op.writes.address))
    return code


cdef result_t* result_new(size_t nbytes) noexcept nogil:
    cdef result_t* result = <result_t*>malloc(sizeof(result_t) + nbytes)
    if result is not NULL:
        result.holders = 1
        result.ready = False
        result.nbytes = nbytes
        result.bytes = <char*>(result + 1)
    return result


cdef void result_release(result_t* result) noexcept nogil:
    result.holders -= 1
    if result.holders == 0:
        free(result)


cdef bint span_is_live(const op_t* op, const span_t* span, bint write, run_t* run) noexcept nogil:
    """Tell whether the range lies in the memory that it was queued for, or in any if there was none then."""
    cdef place_t place
    cdef int kind
    if span.nbytes == 0:
        return True
    kind = memory_place(run.memory, <void*>span.address, span.nbytes, write, &place)
    if span.serial != 0 and place.serial != span.serial:
        kind = MISUSE_FREED if virtual_find(&run.memory.space, span.address) is NULL else MISUSE_UNMAPPED
    return kind == MISUSE_NONE or span_misuse(op, span, kind, &place, run)


cdef bint span_touch(const span_t* span, run_t* run) noexcept nogil:
    """Put host memory behind a range; False when the host refuses."""
    return span.nbytes == 0 or virtual_touch(&run.memory.space, span.address, span.nbytes)


cdef bint span_misuse(const op_t* op, const span_t* span, int kind, const place_t* place, run_t* run) noexcept nogil:
    """Record what is wrong with a range; False."""
    cdef misuse_t misuse
    memset(&misuse, 0, sizeof(misuse_t))
    misuse.kind = kind
    misuse.name = op.name
    misuse.queued = True
    misuse.stream = run.stream
    misuse.tick = run.now
    misuse.address = span.address
    misuse.size = span.nbytes
    misuse.base = place.base
    misuse.base_size = place.size
    misuses_add(run.misuses, &misuse)
    return False


cdef bint span_race(const op_t* op, const span_t* span, bint write, run_t* run) noexcept nogil:
    cdef access_t access
    if span.nbytes == 0:
        return True
    access.address = span.address
    access.nbytes = span.nbytes
    access.stream = run.stream
    access.tick = run.now
    access.sequence = run.clock[run.lane]
    access.lane = run.lane
    access.operation = op.name
    access.write = write
    return races_add(run.races, &access, run.clock, run.lanes)
