"""Time the driver's own allocations, for comparison with the pool."""

from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from cuda_pool._driver cimport (
    Device, cudaError_t, cudaSuccess, device_enter, device_leave, driver_check, driver_t)

# Makes `pairs` pairs; sets the seconds for all of them, and the name of the last call.
ctypedef cudaError_t (*loop_t)(const driver_t* driver, size_t nbytes, int pairs, double* seconds,
                               const char** call) noexcept nogil


def time_malloc_pairs(Device device not None, size_t nbytes, int pairs):
    """Time pairs of cudaMalloc and cudaFree in a loop without the GIL.

    Parameters
    ----------
    device : Device
        Real or simulated.
    nbytes : int
        Size of each allocation in bytes.
    pairs : int
        Number of pairs, at least 1.

    Returns
    -------
    float
        Seconds for all pairs.

    Raises
    ------
    ValueError
        `pairs` is below 1.
    CudaError
        A call failed, which the error names; what was allocated went back if the driver took it.
    """
    return time_pairs(device, nbytes, pairs, malloc_pairs)


def time_malloc_async_pairs(Device device not None, size_t nbytes, int pairs):
    """Time pairs of cudaMallocAsync and cudaFreeAsync on stream 0, with one cudaStreamSynchronize at the end.

    Parameters, result and errors are those of `time_malloc_pairs`.

    Raises
    ------
    NotImplementedError
        The driver has no cudaMallocAsync.
    """
    if device.driver.cudaMallocAsync is NULL or device.driver.cudaFreeAsync is NULL:
        raise NotImplementedError("this driver has no cudaMallocAsync")
    return time_pairs(device, nbytes, pairs, malloc_async_pairs)


cdef double time_pairs(Device device, size_t nbytes, int pairs, loop_t loop) except -1:
    cdef const driver_t* driver = device.driver
    cdef double seconds = 0
    cdef int previous = 0
    cdef const char* call = b"cudaSetDevice"
    cdef cudaError_t code
    if pairs < 1:
        raise ValueError(f"pairs is at least 1, got {pairs}")
    with nogil:
        code = device_enter(driver, device.number, &previous)
        if code == cudaSuccess:
            code = loop(driver, nbytes, pairs, &seconds, &call)
            device_leave(driver, device.number, previous)
    driver_check(driver, code, call.decode())
    return seconds


cdef cudaError_t malloc_pairs(const driver_t* driver, size_t nbytes, int pairs, double* seconds,
                              const char** call) noexcept nogil:
    cdef void* ptr = NULL
    cdef double start = now()
    cdef cudaError_t code = cudaSuccess
    cdef int i
    for i in range(pairs):
        call[0] = b"cudaMalloc"
        code = driver.cudaMalloc(&ptr, nbytes)
        if code != cudaSuccess:
            return code
        call[0] = b"cudaFree"
        code = driver.cudaFree(ptr)
        if code != cudaSuccess:
            driver.cudaFree(ptr)            # once more: the failure may have been another call's
            return code
    seconds[0] = now() - start
    return code


cdef cudaError_t malloc_async_pairs(const driver_t* driver, size_t nbytes, int pairs, double* seconds,
                                    const char** call) noexcept nogil:
    cdef void* ptr = NULL
    cdef double start = now()
    cdef cudaError_t code = cudaSuccess
    cdef int i
    for i in range(pairs):
        call[0] = b"cudaMallocAsync"
        code = driver.cudaMallocAsync(&ptr, nbytes, NULL)
        if code != cudaSuccess:
            return code
        call[0] = b"cudaFreeAsync"
        code = driver.cudaFreeAsync(ptr, NULL)
        if code != cudaSuccess:
            driver.cudaFreeAsync(ptr, NULL)
            return code
    call[0] = b"cudaStreamSynchronize"
    code = driver.cudaStreamSynchronize(NULL)
    seconds[0] = now() - start
    return code


cdef double now() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return t.tv_sec + 1e-9 * t.tv_nsec
