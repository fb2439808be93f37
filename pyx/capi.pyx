"""The pool for other languages: the functions of cuda_pool.h, by table and by address, and their statuses."""

from enum import IntEnum
from os.path import dirname, join
from types import MappingProxyType
from typing import NamedTuple

from cpython.pycapsule cimport PyCapsule_GetName, PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from libc.string cimport memcpy

from cuda_pool._api cimport POOL_CAPSULE, Pool
from cuda_pool._calls cimport pool_alloc, pool_free, pool_free_async
from cuda_pool._gate cimport status_raise
from cuda_pool._pool cimport pool_get_stats, pool_mem_info, pool_owns, pool_size_of, pool_stats_t, pool_trim
from cuda_pool._pool_stream cimport pool_forget_stream, pool_hold_stream, pool_record_use
from cuda_pool._segment cimport TIER_BUDDY, TIER_MID, TIER_SLAB
from cuda_pool._state cimport UPSTREAM_CALLS, UPSTREAM_MALLOC, pool_t
from cuda_pool._status cimport (
    STATUS_BAD_ALIGNMENT, STATUS_CAPTURING, STATUS_CLOSED, STATUS_CUDA, STATUS_FOREIGN_POINTER, STATUS_FORKED,
    STATUS_FREED_POINTER, STATUS_HOST_MEMORY, STATUS_INTERIOR_POINTER, STATUS_MOVABLE, STATUS_OK, STATUS_OUT_OF_MEMORY,
    STATUS_OVERLAP, STATUS_PINNED, STATUS_STREAMS, STATUS_WOULD_WAIT)

from cuda_pool.sizes import shown

cdef enum:
    DEFAULT_ALIGNMENT = 256     # settings.ALIGNMENT

# Not C's text of the capsule: a module that was compiled for another ABI looks for the same name.
cdef const char* TABLE_NAME = "cuda_pool.capi.table"


cdef cuda_pool_t* pool_handle(object pool) except NULL:
    if isinstance(pool, Pool):
        return <cuda_pool_t*>(<Pool>pool).state
    if PyCapsule_IsValid(pool, POOL_CAPSULE):
        return <cuda_pool_t*>PyCapsule_GetPointer(pool, POOL_CAPSULE)
    raise TypeError(f"expected a cuda_pool.Pool or its capsule, got {shown(pool)}")


cdef int cuda_pool_alloc(cuda_pool_t* pool, size_t nbytes, void* stream, void** ptr) noexcept nogil:
    return cuda_pool_alloc_aligned(pool, nbytes, DEFAULT_ALIGNMENT, stream, ptr)


cdef int cuda_pool_alloc_aligned(cuda_pool_t* pool, size_t nbytes, size_t alignment, void* stream,
                                 void** ptr) noexcept nogil:
    if pool == NULL or ptr == NULL:
        return CUDA_POOL_ERROR_INVALID_ARGUMENT
    return pool_alloc(<pool_t*>pool, nbytes, alignment, stream, ptr)


cdef int cuda_pool_free(cuda_pool_t* pool, void* ptr) noexcept nogil:
    return CUDA_POOL_ERROR_INVALID_ARGUMENT if pool == NULL else pool_free(<pool_t*>pool, ptr)


cdef int cuda_pool_free_async(cuda_pool_t* pool, void* ptr, void* stream) noexcept nogil:
    return CUDA_POOL_ERROR_INVALID_ARGUMENT if pool == NULL else pool_free_async(<pool_t*>pool, ptr, stream)


cdef int cuda_pool_record_use(cuda_pool_t* pool, void* ptr, void* stream) noexcept nogil:
    return CUDA_POOL_ERROR_INVALID_ARGUMENT if pool == NULL else pool_record_use(<pool_t*>pool, ptr, stream)


cdef int cuda_pool_hold_stream(cuda_pool_t* pool, void* stream) noexcept nogil:
    return CUDA_POOL_ERROR_INVALID_ARGUMENT if pool == NULL else pool_hold_stream(<pool_t*>pool, stream)


cdef int cuda_pool_forget_stream(cuda_pool_t* pool, void* stream) noexcept nogil:
    return CUDA_POOL_ERROR_INVALID_ARGUMENT if pool == NULL else pool_forget_stream(<pool_t*>pool, stream)


cdef int cuda_pool_size_of(cuda_pool_t* pool, const void* ptr, size_t* nbytes) noexcept nogil:
    cdef size_t used
    if pool == NULL or nbytes == NULL:
        return CUDA_POOL_ERROR_INVALID_ARGUMENT
    return pool_size_of(<pool_t*>pool, ptr, nbytes, &used)


cdef int cuda_pool_owns(cuda_pool_t* pool, const void* ptr, int* owns) noexcept nogil:
    cdef bint owned = False
    cdef int status
    if pool == NULL or owns == NULL:
        return CUDA_POOL_ERROR_INVALID_ARGUMENT
    status = pool_owns(<pool_t*>pool, ptr, &owned)
    owns[0] = owned
    return status


cdef int cuda_pool_trim(cuda_pool_t* pool, size_t keep, size_t* returned) noexcept nogil:
    cdef size_t unwanted
    if pool == NULL:
        return CUDA_POOL_ERROR_INVALID_ARGUMENT
    return pool_trim(<pool_t*>pool, keep, returned if returned != NULL else &unwanted)


cdef int cuda_pool_mem_info(cuda_pool_t* pool, size_t* free, size_t* total) noexcept nogil:
    cdef size_t free_bytes = 0, total_bytes = 0
    cdef int status
    if pool == NULL:
        return CUDA_POOL_ERROR_INVALID_ARGUMENT
    status = pool_mem_info(<pool_t*>pool, &free_bytes, &total_bytes)
    if status == STATUS_OK and free != NULL:
        free[0] = free_bytes
    if status == STATUS_OK and total != NULL:
        total[0] = total_bytes
    return status


cdef int cuda_pool_get_stats(cuda_pool_t* pool, cuda_pool_stats_t* out) noexcept nogil:
    cdef pool_stats_t now
    cdef cuda_pool_stats_t filled
    cdef int status
    if pool == NULL or out == NULL or out.size < sizeof(out.size):
        return CUDA_POOL_ERROR_INVALID_ARGUMENT
    status = pool_get_stats(<pool_t*>pool, &now)
    if status == STATUS_OK:
        stats_fill(&filled, &now)
        filled.size = min(<size_t>out.size, sizeof(cuda_pool_stats_t))
        memcpy(out, &filled, filled.size)
    return status


cdef const char* cuda_pool_status_name(int status) noexcept nogil:
    cdef int reason = cuda_pool_status_reason(status)
    if 0 <= reason <= STATUS_CUDA:
        return pool_names[reason]
    if CUDA_POOL_ERROR_INVALID_ARGUMENT <= reason <= CUDA_POOL_ERROR_ABI:
        return own_names[reason - CUDA_POOL_ERROR_INVALID_ARGUMENT]
    return "unknown status"


# With exceptions

cdef void* alloc_or_raise(cuda_pool_t* pool, size_t nbytes, void* stream) except? NULL nogil:
    return alloc_aligned_or_raise(pool, nbytes, DEFAULT_ALIGNMENT, stream)


cdef void* alloc_aligned_or_raise(cuda_pool_t* pool, size_t nbytes, size_t alignment, void* stream) except? NULL nogil:
    cdef void* ptr = NULL
    raise_status(pool, cuda_pool_alloc_aligned(pool, nbytes, alignment, stream, &ptr), nbytes, NULL)
    return ptr


cdef int free_or_raise(cuda_pool_t* pool, void* ptr) except -1 nogil:
    return raise_status(pool, cuda_pool_free(pool, ptr), 0, ptr)


cdef int free_async_or_raise(cuda_pool_t* pool, void* ptr, void* stream) except -1 nogil:
    return raise_status(pool, cuda_pool_free_async(pool, ptr, stream), 0, ptr)


cdef int record_use_or_raise(cuda_pool_t* pool, void* ptr, void* stream) except -1 nogil:
    return raise_status(pool, cuda_pool_record_use(pool, ptr, stream), 0, ptr)


cdef size_t size_of_or_raise(cuda_pool_t* pool, const void* ptr) except? 0 nogil:
    cdef size_t nbytes = 0
    raise_status(pool, cuda_pool_size_of(pool, ptr, &nbytes), 0, ptr)
    return nbytes


cdef int raise_status(cuda_pool_t* pool, int status, size_t nbytes, const void* ptr) except -1 nogil:
    if status == STATUS_OK:
        return 0
    with gil:
        if pool == NULL or cuda_pool_status_reason(status) >= CUDA_POOL_ERROR_INVALID_ARGUMENT:
            raise ValueError(f"{cuda_pool_status_name(status).decode()}: a pool is needed that is not NULL, and a "
                             "place for each result")
        return status_raise(<pool_t*>pool, status, nbytes, <size_t>ptr)


# Statistics

cdef void stats_fill(cuda_pool_stats_t* out, const pool_stats_t* now) noexcept nogil:
    cdef int call
    out.capacity = now.capacity
    out.reserved = now.reserved
    out.reserved_high = now.reserved_high
    out.used = now.used
    out.used_high = now.used_high
    out.requested = now.requested
    out.requested_high = now.requested_high
    out.pending = now.pending
    out.free = now.free
    out.largest_free = now.largest_free
    out.alloc_count = now.alloc_count
    out.free_count = now.free_count
    out.oom_count = now.oom_count
    out.grow_count = now.grow_count
    out.trim_count = now.trim_count
    out.defrag_count = now.defrag_count
    out.upstream_calls = 0
    for call in range(UPSTREAM_MALLOC, UPSTREAM_CALLS):
        out.upstream_calls += now.upstream[call]
    out.slab_blocks = now.tier[TIER_SLAB].allocs - now.tier[TIER_SLAB].frees
    out.slab_used = now.tier[TIER_SLAB].used
    out.slab_requested = now.tier[TIER_SLAB].requested
    out.mid_blocks = now.tier[TIER_MID].allocs - now.tier[TIER_MID].frees
    out.mid_used = now.tier[TIER_MID].used
    out.mid_requested = now.tier[TIER_MID].requested
    out.buddy_blocks = now.tier[TIER_BUDDY].allocs - now.tier[TIER_BUDDY].frees
    out.buddy_used = now.tier[TIER_BUDDY].used
    out.buddy_requested = now.tier[TIER_BUDDY].requested


# Statuses, in the order of their values

cdef const char** pool_names = [
    "CUDA_POOL_OK", "CUDA_POOL_ERROR_OUT_OF_MEMORY", "CUDA_POOL_ERROR_FOREIGN_POINTER",
    "CUDA_POOL_ERROR_INTERIOR_POINTER", "CUDA_POOL_ERROR_FREED_POINTER", "CUDA_POOL_ERROR_CLOSED",
    "CUDA_POOL_ERROR_FORKED", "CUDA_POOL_ERROR_HOST_MEMORY", "CUDA_POOL_ERROR_BAD_ALIGNMENT",
    "CUDA_POOL_ERROR_CAPTURING", "CUDA_POOL_ERROR_STREAMS", "CUDA_POOL_ERROR_WOULD_WAIT", "CUDA_POOL_ERROR_OVERLAP",
    "CUDA_POOL_ERROR_MOVABLE", "CUDA_POOL_ERROR_PINNED", "CUDA_POOL_ERROR_CUDA"]
cdef const char** own_names = [
    "CUDA_POOL_ERROR_INVALID_ARGUMENT", "CUDA_POOL_ERROR_NOT_IMPORTED", "CUDA_POOL_ERROR_ABI"]


class Status(IntEnum):
    """What a function of the C interface returns in its low 8 bits, and why; ``CUDA_POOL_ERROR_*`` in C."""

    OK = STATUS_OK
    OUT_OF_MEMORY = STATUS_OUT_OF_MEMORY
    FOREIGN_POINTER = STATUS_FOREIGN_POINTER
    INTERIOR_POINTER = STATUS_INTERIOR_POINTER
    FREED_POINTER = STATUS_FREED_POINTER
    CLOSED = STATUS_CLOSED
    FORKED = STATUS_FORKED
    HOST_MEMORY = STATUS_HOST_MEMORY
    BAD_ALIGNMENT = STATUS_BAD_ALIGNMENT
    CAPTURING = STATUS_CAPTURING
    STREAMS = STATUS_STREAMS
    WOULD_WAIT = STATUS_WOULD_WAIT
    OVERLAP = STATUS_OVERLAP
    MOVABLE = STATUS_MOVABLE
    PINNED = STATUS_PINNED
    CUDA = STATUS_CUDA
    INVALID_ARGUMENT = CUDA_POOL_ERROR_INVALID_ARGUMENT
    NOT_IMPORTED = CUDA_POOL_ERROR_NOT_IMPORTED
    ABI = CUDA_POOL_ERROR_ABI


# By table, and by address

class Function(NamedTuple):
    """A function of the C interface.

    Attributes
    ----------
    address : int
        Where it is; valid as long as the process.
    signature : str
        The type of a pointer to it, in C.
    """

    address: int
    signature: str


def get_include():
    """Return the folder of ``cuda_pool.h`` and ``cuda_pool_import.h``, for a compiler's ``-I``."""
    return join(dirname(__file__), "include")


cdef object listed(str name):
    """Return a function of this module's pxd as a Function; Cython names its capsule by its type."""
    capsule = globals()["__pyx_capi__"][name]
    kind = PyCapsule_GetName(capsule)
    return Function(<size_t>PyCapsule_GetPointer(capsule, kind), kind.decode().replace("(", "(*)(", 1))


cdef cuda_pool_api_t api
api.abi = CUDA_POOL_ABI
api.size = sizeof(cuda_pool_api_t)
api.alloc = cuda_pool_alloc
api.alloc_aligned = cuda_pool_alloc_aligned
api.free = cuda_pool_free
api.free_async = cuda_pool_free_async
api.record_use = cuda_pool_record_use
api.hold_stream = cuda_pool_hold_stream
api.forget_stream = cuda_pool_forget_stream
api.size_of = cuda_pool_size_of
api.owns = cuda_pool_owns
api.trim = cuda_pool_trim
api.mem_info = cuda_pool_mem_info
api.get_stats = cuda_pool_get_stats
api.status_name = cuda_pool_status_name

ABI = CUDA_POOL_ABI
table = PyCapsule_New(&api, TABLE_NAME, NULL)
table_address = <size_t>&api
functions = MappingProxyType({
    name: listed(name) for name in sorted(globals()["__pyx_capi__"]) if name.startswith("cuda_pool_")})
