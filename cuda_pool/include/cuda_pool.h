/* The C interface of cuda_pool, for C99 and C++11. Needs neither CUDA's headers nor Python's.
 *
 * Every function may be called from any thread, with or without Python's global interpreter lock (GIL). None takes the
 * GIL or raises an exception. Those that return an int return 0 or a cuda_pool_status, and after a failure the pool is
 * as it was before.
 *
 * A program gets the functions by import_cuda_pool() of cuda_pool_import.h or, without Python's headers, by
 * cuda_pool_use(). Before that each call answers CUDA_POOL_ERROR_NOT_IMPORTED.
 *
 * CUDA_POOL_ABI changes when anything declared here gets another meaning, type, value or place. Additions do not change
 * it: they are made at the end of an enum, of cuda_pool_stats_t and of cuda_pool_api_t, which tell their size.
 */
#ifndef CUDA_POOL_H
#define CUDA_POOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUDA_POOL_ABI 1

/* A pool that was made in Python. It exists as long as the Python object, or a capsule of it, does. */
typedef struct cuda_pool cuda_pool_t;

/* What a status says in its low 8 bits, see cuda_pool_status_reason(). */
enum cuda_pool_status {
    CUDA_POOL_OK = 0,
    CUDA_POOL_ERROR_OUT_OF_MEMORY = 1,    /* no block of that size */
    CUDA_POOL_ERROR_FOREIGN_POINTER = 2,  /* not an address of this pool */
    CUDA_POOL_ERROR_INTERIOR_POINTER = 3, /* inside a live block, not its start */
    CUDA_POOL_ERROR_FREED_POINTER = 4,    /* in the pool, but in no live block */
    CUDA_POOL_ERROR_CLOSED = 5,           /* the pool is closed */
    CUDA_POOL_ERROR_FORKED = 6,           /* the pool belongs to the parent process */
    CUDA_POOL_ERROR_HOST_MEMORY = 7,      /* no host memory for the bookkeeping */
    CUDA_POOL_ERROR_BAD_ALIGNMENT = 8,    /* not a power of two */
    CUDA_POOL_ERROR_CAPTURING = 9,        /* a stream is being captured, which forbids this */
    CUDA_POOL_ERROR_STREAMS = 10,         /* as many streams as a pool can keep apart are pending */
    CUDA_POOL_ERROR_WOULD_WAIT = 11,      /* the driver would have to be asked; no function below returns it */
    CUDA_POOL_ERROR_OVERLAP = 12,         /* the driver returned memory that is live already */
    CUDA_POOL_ERROR_MOVABLE = 13,         /* the address of a movable block: its Python object is to be used */
    CUDA_POOL_ERROR_PINNED = 14,          /* a movable block is pinned */
    CUDA_POOL_ERROR_CUDA = 15,            /* a CUDA call failed: cuda_pool_cuda_error() tells how */
    CUDA_POOL_ERROR_INVALID_ARGUMENT = 64, /* NULL where that is not accepted, or a size that is too small */
    CUDA_POOL_ERROR_NOT_IMPORTED = 65,    /* import_cuda_pool() or cuda_pool_use() was not called */
    CUDA_POOL_ERROR_ABI = 66              /* the functions are of another CUDA_POOL_ABI, or too old */
};

/* Statistics: bytes, or numbers of blocks and calls. The caller sets `size` to sizeof(cuda_pool_stats_t) beforehand;
 * cuda_pool_get_stats() fills what lies within that many bytes, and sets `size` to how many it has filled. */
typedef struct cuda_pool_stats_t {
    uint64_t size;
    uint64_t capacity;
    uint64_t reserved;
    uint64_t reserved_high;
    uint64_t used;
    uint64_t used_high;
    uint64_t requested;
    uint64_t requested_high;
    uint64_t pending;
    uint64_t free;
    uint64_t largest_free;
    uint64_t alloc_count;
    uint64_t free_count;
    uint64_t oom_count;
    uint64_t grow_count;
    uint64_t trim_count;
    uint64_t defrag_count;
    uint64_t upstream_calls;
    uint64_t slab_blocks;
    uint64_t slab_used;
    uint64_t slab_requested;
    uint64_t mid_blocks;
    uint64_t mid_used;
    uint64_t mid_requested;
    uint64_t buddy_blocks;
    uint64_t buddy_used;
    uint64_t buddy_requested;
} cuda_pool_stats_t;

/* The functions below, as the installed package has them. */
typedef struct cuda_pool_api_t {
    uint32_t abi;  /* CUDA_POOL_ABI of the package */
    uint32_t size; /* sizeof(cuda_pool_api_t) there */
    int (*alloc)(cuda_pool_t *pool, size_t nbytes, void *stream, void **ptr);
    int (*alloc_aligned)(cuda_pool_t *pool, size_t nbytes, size_t alignment, void *stream, void **ptr);
    int (*free)(cuda_pool_t *pool, void *ptr);
    int (*free_async)(cuda_pool_t *pool, void *ptr, void *stream);
    int (*record_use)(cuda_pool_t *pool, void *ptr, void *stream);
    int (*hold_stream)(cuda_pool_t *pool, void *stream);
    int (*forget_stream)(cuda_pool_t *pool, void *stream);
    int (*size_of)(cuda_pool_t *pool, const void *ptr, size_t *nbytes);
    int (*owns)(cuda_pool_t *pool, const void *ptr, int *owns);
    int (*trim)(cuda_pool_t *pool, size_t keep, size_t *returned);
    int (*mem_info)(cuda_pool_t *pool, size_t *free, size_t *total);
    int (*get_stats)(cuda_pool_t *pool, cuda_pool_stats_t *out);
    const char *(*status_name)(int status);
} cuda_pool_api_t;

/* One for all translation units of a program or shared object, and for no other: hence weak, and hidden. */
__attribute__((weak, visibility("hidden"))) const cuda_pool_api_t *cuda_pool_api = NULL;

/* Let the functions below be those of `api`, if this was compiled for it: 0, CUDA_POOL_ERROR_INVALID_ARGUMENT for NULL,
 * or CUDA_POOL_ERROR_ABI. To be called once, before other threads call the functions. */
static inline int cuda_pool_use(const cuda_pool_api_t *api)
{
    if (api == NULL)
        return CUDA_POOL_ERROR_INVALID_ARGUMENT;
    if (api->abi != CUDA_POOL_ABI || api->size < sizeof(cuda_pool_api_t))
        return CUDA_POOL_ERROR_ABI;
    cuda_pool_api = api;
    return CUDA_POOL_OK;
}

/* One of enum cuda_pool_status. */
static inline int cuda_pool_status_reason(int status)
{
    return status & 0xFF;
}

/* The cudaError_t, or CUresult of a virtual pool, that a CUDA call failed with, else 0. */
static inline int cuda_pool_cuda_error(int status)
{
    return cuda_pool_status_reason(status) == CUDA_POOL_ERROR_CUDA ? status >> 8 & 0xFFFF : 0;
}

/* The CUDA_POOL_ABI of the installed package; 0 before it is imported. */
static inline int cuda_pool_abi(void)
{
    return cuda_pool_api == NULL ? 0 : (int)cuda_pool_api->abi;
}

/* "CUDA_POOL_ERROR_OUT_OF_MEMORY" and the like; never NULL. */
static inline const char *cuda_pool_status_name(int status)
{
    return cuda_pool_api == NULL ? "CUDA_POOL_ERROR_NOT_IMPORTED" : cuda_pool_api->status_name(status);
}

/* Allocate at least `nbytes` bytes, at a multiple of 256, for use on `stream` (a cudaStream_t; NULL: the default one)
 * first. 0 bytes succeed with NULL. After a failure *ptr is NULL. In a shortage it may wait for the device. */
static inline int cuda_pool_alloc(cuda_pool_t *pool, size_t nbytes, void *stream, void **ptr)
{
    return cuda_pool_api == NULL ? CUDA_POOL_ERROR_NOT_IMPORTED : cuda_pool_api->alloc(pool, nbytes, stream, ptr);
}

/* The same at a multiple of `alignment`, a power of two. */
static inline int cuda_pool_alloc_aligned(cuda_pool_t *pool, size_t nbytes, size_t alignment, void *stream, void **ptr)
{
    return cuda_pool_api == NULL ? CUDA_POOL_ERROR_NOT_IMPORTED
                                 : cuda_pool_api->alloc_aligned(pool, nbytes, alignment, stream, ptr);
}

/* Free a block that no queued work uses any more. NULL does nothing, here and in the next two. */
static inline int cuda_pool_free(cuda_pool_t *pool, void *ptr)
{
    return cuda_pool_api == NULL ? CUDA_POOL_ERROR_NOT_IMPORTED : cuda_pool_api->free(pool, ptr);
}

/* Free a block in the order of a stream: reusable there at once, elsewhere when the work queued before is done. */
static inline int cuda_pool_free_async(cuda_pool_t *pool, void *ptr, void *stream)
{
    return cuda_pool_api == NULL ? CUDA_POOL_ERROR_NOT_IMPORTED : cuda_pool_api->free_async(pool, ptr, stream);
}

/* Let the asynchronous free of a block wait for the work of one more stream, up to that free. */
static inline int cuda_pool_record_use(cuda_pool_t *pool, void *ptr, void *stream)
{
    return cuda_pool_api == NULL ? CUDA_POOL_ERROR_NOT_IMPORTED : cuda_pool_api->record_use(pool, ptr, stream);
}

/* Promise that a stream exists until it is forgotten, which makes its use cheaper. */
static inline int cuda_pool_hold_stream(cuda_pool_t *pool, void *stream)
{
    return cuda_pool_api == NULL ? CUDA_POOL_ERROR_NOT_IMPORTED : cuda_pool_api->hold_stream(pool, stream);
}

/* Settle what was freed on a stream that is about to be destroyed; may wait for it. */
static inline int cuda_pool_forget_stream(cuda_pool_t *pool, void *stream)
{
    return cuda_pool_api == NULL ? CUDA_POOL_ERROR_NOT_IMPORTED : cuda_pool_api->forget_stream(pool, stream);
}

/* The bytes that a live block was allocated with. */
static inline int cuda_pool_size_of(cuda_pool_t *pool, const void *ptr, size_t *nbytes)
{
    return cuda_pool_api == NULL ? CUDA_POOL_ERROR_NOT_IMPORTED : cuda_pool_api->size_of(pool, ptr, nbytes);
}

/* *owns is 1 where `ptr` is the address of a live block, else 0. A closed pool owns nothing. */
static inline int cuda_pool_owns(cuda_pool_t *pool, const void *ptr, int *owns)
{
    return cuda_pool_api == NULL ? CUDA_POOL_ERROR_NOT_IMPORTED : cuda_pool_api->owns(pool, ptr, owns);
}

/* Give memory back to the driver that is wholly free, as long as `keep` bytes stay; *returned, unless it is NULL, is
 * how many bytes that were. */
static inline int cuda_pool_trim(cuda_pool_t *pool, size_t keep, size_t *returned)
{
    return cuda_pool_api == NULL ? CUDA_POOL_ERROR_NOT_IMPORTED : cuda_pool_api->trim(pool, keep, returned);
}

/* What the device has, as cudaMemGetInfo tells; either pointer may be NULL. */
static inline int cuda_pool_mem_info(cuda_pool_t *pool, size_t *free, size_t *total)
{
    return cuda_pool_api == NULL ? CUDA_POOL_ERROR_NOT_IMPORTED : cuda_pool_api->mem_info(pool, free, total);
}

/* Fill *out, whose `size` is set; makes no CUDA call. */
static inline int cuda_pool_get_stats(cuda_pool_t *pool, cuda_pool_stats_t *out)
{
    return cuda_pool_api == NULL ? CUDA_POOL_ERROR_NOT_IMPORTED : cuda_pool_api->get_stats(pool, out);
}

#ifdef __cplusplus
}
#endif

#endif
