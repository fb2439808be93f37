from cuda_pool.capi cimport (
    CUDA_POOL_ABI, CUDA_POOL_ERROR_ABI, CUDA_POOL_ERROR_BAD_ALIGNMENT, CUDA_POOL_ERROR_CAPTURING,
    CUDA_POOL_ERROR_CLOSED, CUDA_POOL_ERROR_CUDA, CUDA_POOL_ERROR_FOREIGN_POINTER, CUDA_POOL_ERROR_FORKED,
    CUDA_POOL_ERROR_FREED_POINTER, CUDA_POOL_ERROR_HOST_MEMORY, CUDA_POOL_ERROR_INTERIOR_POINTER,
    CUDA_POOL_ERROR_INVALID_ARGUMENT, CUDA_POOL_ERROR_MOVABLE, CUDA_POOL_ERROR_NOT_IMPORTED,
    CUDA_POOL_ERROR_OUT_OF_MEMORY, CUDA_POOL_ERROR_OVERLAP, CUDA_POOL_ERROR_PINNED, CUDA_POOL_ERROR_STREAMS,
    CUDA_POOL_ERROR_WOULD_WAIT, CUDA_POOL_OK, alloc_aligned_or_raise, alloc_or_raise, cuda_pool_alloc,
    cuda_pool_alloc_aligned, cuda_pool_api_t, cuda_pool_cuda_error, cuda_pool_forget_stream, cuda_pool_free,
    cuda_pool_free_async, cuda_pool_get_stats, cuda_pool_hold_stream, cuda_pool_mem_info, cuda_pool_owns,
    cuda_pool_record_use, cuda_pool_size_of, cuda_pool_stats_t, cuda_pool_status, cuda_pool_status_name,
    cuda_pool_status_reason, cuda_pool_t, cuda_pool_trim, free_async_or_raise, free_or_raise, pool_handle,
    raise_status, record_use_or_raise, size_of_or_raise)
