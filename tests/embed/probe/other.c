#include "cuda_pool.h"

int other_pairs(cuda_pool_t *pool, size_t nbytes);

int other_pairs(cuda_pool_t *pool, size_t nbytes)
{
    int status = CUDA_POOL_OK;
    void *block[8];
    for (int i = 0; i < 8; i++) {
        int latest = cuda_pool_alloc(pool, nbytes, NULL, &block[i]);
        status = status ? status : latest;
    }
    for (int i = 0; i < 8; i++) {
        int latest = cuda_pool_free_async(pool, block[i], NULL);
        status = status ? status : latest;
    }
    return status ? status : cuda_pool_trim(pool, 0, NULL);
}
