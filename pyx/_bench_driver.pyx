"""Time the driver's own allocations, for comparison with the pool."""

from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from cuda_pool._driver cimport (
    Device, cudaError_t, cudaSuccess, device_enter, device_leave, driver_check, driver_t)


def time_driver_pairs(Device device not None, size_t nbytes, int pairs, bint asynchronous=False):
    """Time pairs of an allocation and its free, made by the driver in a loop without the GIL.

    Parameters
    ----------
    device : Device
        Real or simulated.
    nbytes : int
        Size of each allocation in bytes.
    pairs : int
        Number of pairs, at least 1.
    asynchronous : bool
        Time cudaMallocAsync and cudaFreeAsync on stream 0, with one cudaStreamSynchronize at the end, in place of
        cudaMalloc and cudaFree.

    Returns
    -------
    float
        Seconds for all pairs.

    Raises
    ------
    NotImplementedError
        The driver has no cudaMallocAsync.
    CudaError
        A call failed.
    """
    cdef const driver_t* driver = device.driver
    cdef double seconds = 0
    cdef int previous = 0
    cdef cudaError_t code
    if pairs < 1:
        raise ValueError(f"pairs is at least 1, got {pairs}")
    if asynchronous and (driver.cudaMallocAsync is NULL or driver.cudaFreeAsync is NULL):
        raise NotImplementedError("this driver has no cudaMallocAsync")
    with nogil:
        code = device_enter(driver, device.number, &previous)
    driver_check(driver, code, "cudaSetDevice")
    with nogil:
        if asynchronous:
            code = time_async(driver, nbytes, pairs, &seconds)
        else:
            code = time_sync(driver, nbytes, pairs, &seconds)
        device_leave(driver, device.number, previous)
    driver_check(driver, code, "cudaMallocAsync" if asynchronous else "cudaMalloc")
    return seconds


cdef cudaError_t time_sync(const driver_t* driver, size_t nbytes, int pairs, double* seconds) noexcept nogil:
    cdef void* ptr = NULL
    cdef double start = now()
    cdef cudaError_t code = cudaSuccess
    cdef int i
    for i in range(pairs):
        code = driver.cudaMalloc(&ptr, nbytes)
        if code == cudaSuccess:
            code = driver.cudaFree(ptr)
        if code != cudaSuccess:
            return code
    seconds[0] = now() - start
    return code


cdef cudaError_t time_async(const driver_t* driver, size_t nbytes, int pairs, double* seconds) noexcept nogil:
    cdef void* ptr = NULL
    cdef double start = now()
    cdef cudaError_t code = cudaSuccess
    cdef int i
    for i in range(pairs):
        code = driver.cudaMallocAsync(&ptr, nbytes, NULL)
        if code == cudaSuccess:
            code = driver.cudaFreeAsync(ptr, NULL)
        if code != cudaSuccess:
            return code
    code = driver.cudaStreamSynchronize(NULL)
    seconds[0] = now() - start
    return code


cdef double now() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return t.tv_sec + 1e-9 * t.tv_nsec
