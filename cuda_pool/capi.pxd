"""The Cython interface: what `from cuda_pool cimport ...` gives. Compile with the folder cuda_pool.get_include()."""

from libc.stdint cimport uint32_t, uint64_t

cdef extern from "cuda_pool.h" nogil:
    int CUDA_POOL_ABI

    cdef enum cuda_pool_status:
        CUDA_POOL_OK
        CUDA_POOL_ERROR_OUT_OF_MEMORY
        CUDA_POOL_ERROR_FOREIGN_POINTER
        CUDA_POOL_ERROR_INTERIOR_POINTER
        CUDA_POOL_ERROR_FREED_POINTER
        CUDA_POOL_ERROR_CLOSED
        CUDA_POOL_ERROR_FORKED
        CUDA_POOL_ERROR_HOST_MEMORY
        CUDA_POOL_ERROR_BAD_ALIGNMENT
        CUDA_POOL_ERROR_CAPTURING
        CUDA_POOL_ERROR_STREAMS
        CUDA_POOL_ERROR_WOULD_WAIT
        CUDA_POOL_ERROR_OVERLAP
        CUDA_POOL_ERROR_MOVABLE
        CUDA_POOL_ERROR_PINNED
        CUDA_POOL_ERROR_CUDA
        CUDA_POOL_ERROR_INVALID_ARGUMENT
        CUDA_POOL_ERROR_NOT_IMPORTED
        CUDA_POOL_ERROR_ABI

    ctypedef struct cuda_pool_t:
        pass

    ctypedef struct cuda_pool_stats_t:
        uint64_t size
        uint64_t capacity
        uint64_t reserved
        uint64_t reserved_high
        uint64_t used
        uint64_t used_high
        uint64_t requested
        uint64_t requested_high
        uint64_t pending
        uint64_t free
        uint64_t largest_free
        uint64_t alloc_count
        uint64_t free_count
        uint64_t oom_count
        uint64_t grow_count
        uint64_t trim_count
        uint64_t defrag_count
        uint64_t upstream_calls
        uint64_t slab_blocks
        uint64_t slab_used
        uint64_t slab_requested
        uint64_t mid_blocks
        uint64_t mid_used
        uint64_t mid_requested
        uint64_t buddy_blocks
        uint64_t buddy_used
        uint64_t buddy_requested

    ctypedef struct cuda_pool_api_t:
        uint32_t abi
        uint32_t size
        int (*alloc)(cuda_pool_t*, size_t, void*, void**) noexcept nogil
        int (*alloc_aligned)(cuda_pool_t*, size_t, size_t, void*, void**) noexcept nogil
        int (*free)(cuda_pool_t*, void*) noexcept nogil
        int (*free_async)(cuda_pool_t*, void*, void*) noexcept nogil
        int (*record_use)(cuda_pool_t*, void*, void*) noexcept nogil
        int (*hold_stream)(cuda_pool_t*, void*) noexcept nogil
        int (*forget_stream)(cuda_pool_t*, void*) noexcept nogil
        int (*size_of)(cuda_pool_t*, const void*, size_t*) noexcept nogil
        int (*owns)(cuda_pool_t*, const void*, int*) noexcept nogil
        int (*trim)(cuda_pool_t*, size_t, size_t*) noexcept nogil
        int (*mem_info)(cuda_pool_t*, size_t*, size_t*) noexcept nogil
        int (*get_stats)(cuda_pool_t*, cuda_pool_stats_t*) noexcept nogil
        const char* (*status_name)(int) noexcept nogil

    int cuda_pool_status_reason(int status)
    int cuda_pool_cuda_error(int status)

# The pool of a Pool, or of a capsule of one: valid as long as that object exists. Raises TypeError for anything else.
cdef cuda_pool_t* pool_handle(object pool) except NULL

# What cuda_pool.h says of each. A status; no exception, no GIL.
cdef int cuda_pool_alloc(cuda_pool_t* pool, size_t nbytes, void* stream, void** ptr) noexcept nogil
cdef int cuda_pool_alloc_aligned(cuda_pool_t* pool, size_t nbytes, size_t alignment, void* stream,
                                 void** ptr) noexcept nogil
cdef int cuda_pool_free(cuda_pool_t* pool, void* ptr) noexcept nogil
cdef int cuda_pool_free_async(cuda_pool_t* pool, void* ptr, void* stream) noexcept nogil
cdef int cuda_pool_record_use(cuda_pool_t* pool, void* ptr, void* stream) noexcept nogil
cdef int cuda_pool_hold_stream(cuda_pool_t* pool, void* stream) noexcept nogil
cdef int cuda_pool_forget_stream(cuda_pool_t* pool, void* stream) noexcept nogil
cdef int cuda_pool_size_of(cuda_pool_t* pool, const void* ptr, size_t* nbytes) noexcept nogil
cdef int cuda_pool_owns(cuda_pool_t* pool, const void* ptr, int* owns) noexcept nogil
cdef int cuda_pool_trim(cuda_pool_t* pool, size_t keep, size_t* returned) noexcept nogil
cdef int cuda_pool_mem_info(cuda_pool_t* pool, size_t* free, size_t* total) noexcept nogil
cdef int cuda_pool_get_stats(cuda_pool_t* pool, cuda_pool_stats_t* out) noexcept nogil
cdef const char* cuda_pool_status_name(int status) noexcept nogil

# The same with the exceptions of Pool's methods. The GIL is taken only to raise one.
cdef void* alloc_or_raise(cuda_pool_t* pool, size_t nbytes, void* stream) except? NULL nogil
cdef void* alloc_aligned_or_raise(cuda_pool_t* pool, size_t nbytes, size_t alignment, void* stream) except? NULL nogil
cdef int free_or_raise(cuda_pool_t* pool, void* ptr) except -1 nogil
cdef int free_async_or_raise(cuda_pool_t* pool, void* ptr, void* stream) except -1 nogil
cdef int record_use_or_raise(cuda_pool_t* pool, void* ptr, void* stream) except -1 nogil
cdef size_t size_of_or_raise(cuda_pool_t* pool, const void* ptr) except? 0 nogil
# For the status of any function: 0, or the exception. `nbytes` and `ptr` are for its message, else 0 and NULL.
cdef int raise_status(cuda_pool_t* pool, int status, size_t nbytes, const void* ptr) except -1 nogil
