"""CUDA devices: the driver table filled from the functions that cuda-python exports to Cython.

The functions come as capsules named by their C signature, so no CUDA header is needed to build, and one
binary serves every cuda-bindings whose signatures are the ones asked for here.
"""

import operator

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from libc.stdint cimport uintptr_t
from libc.string cimport memset

from cuda_pool._driver cimport Device, cudaError_t, cudaErrorNoDevice, cudaSuccess, driver_check, driver_t

from cuda_pool._driver import NO_DEVICE_HINT as _NO_DEVICE_HINT
from cuda_pool.errors import DeviceUnavailableError
from cuda_pool.sizes import is_index, shown

# Without these no pool works; whatever else is missing only turns off what needs it.
_REQUIRED = frozenset({
    "cudaGetDeviceCount", "cudaGetDevice", "cudaSetDevice", "cudaMemGetInfo", "cudaMalloc", "cudaFree",
    "cudaMemcpyAsync", "cudaMemsetAsync", "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaGetErrorName",
})

# cuda-bindings may raise while it loads the driver, and says so with one of these results.
ctypedef cudaError_t (*query_t)(int*) except? 36 nogil           # cudaErrorCallRequiresNewerDriver
ctypedef int (*device_name_t)(char*, int, int) except? 500 nogil        # CUDA_ERROR_NOT_FOUND

cdef driver_t table
cdef device_name_t device_get_name = NULL
cdef bint filled = False
cdef object missing = ()
cdef object bindings_version = None
memset(&table, 0, sizeof(table))


cdef class CudaDevice(Device):
    """A CUDA device; made by device()."""


def device(ordinal=0):
    """Return the CUDA device with the given ordinal.

    Parameters
    ----------
    ordinal : int
        As CUDA counts, from 0; CUDA_VISIBLE_DEVICES applies.

    Returns
    -------
    CudaDevice

    Raises
    ------
    DeviceUnavailableError
        There is no driver or no device; the message names the simulated device.
    ValueError
        There are devices, but none with this ordinal.
    TypeError
        `ordinal` is no int.
    ImportError
        cuda-bindings is missing, or is no version from 12.9 to 13.x.
    """
    number = _ordinal(ordinal)
    cdef int count = device_count()
    if number >= count:
        raise ValueError(f"no CUDA device {number}: ordinals here are 0 to {count - 1}")
    return new_device(number)


def info():
    """Describe what CUDA offers here; never fails for want of a device.

    Returns
    -------
    dict
        bindings : version of cuda-bindings, None if it is not installed
        driver_version, runtime_version : as CUDA counts them, such as 13000 for 13.0; None if unknown
        devices : list of dicts with ordinal, name, free and total (bytes)
        missing : symbols that this cuda-bindings lacks or declares otherwise
        error : why no device can be used, None if one can
    """
    found = {"bindings": None, "driver_version": None, "runtime_version": None, "devices": [], "missing": [],
             "error": None}
    try:
        cuda_table()
        count = device_count()
        found["devices"] = [_describe(new_device(number)) for number in range(count)]
    except (ImportError, RuntimeError) as error:
        found["error"] = str(error)
    found["bindings"] = bindings_version
    found["missing"] = list(missing)
    found["driver_version"] = version_of(<query_t>table.cudaDriverGetVersion)
    found["runtime_version"] = version_of(<query_t>table.cudaRuntimeGetVersion)
    return found


def symbol_address(capi, name, signature):
    """Return the address of function `name` in a ``__pyx_capi__``, 0 if it is absent or its signature differs."""
    return <uintptr_t>symbol(capi, name, signature.encode())


cdef const driver_t* cuda_table() except NULL:
    """Return the table, filling it on first use."""
    if not filled:
        table_load()
    return &table


cdef int table_load() except -1:
    global filled, missing, bindings_version, device_get_name
    version, runtime, driver = _import_bindings()
    missing = table_fill(runtime.__pyx_capi__, driver.__pyx_capi__)
    device_get_name = <device_name_t>symbol(driver.__pyx_capi__, "cuDeviceGetName", b"CUresult (char *, int, CUdevice)")
    bindings_version = version
    lacking = sorted(_REQUIRED.intersection(missing))
    if lacking:
        raise ImportError(f"cuda-bindings {version} has no usable {', '.join(lacking)}; versions 12.9 to 13.x do")
    filled = True
    return 0


def _import_bindings():
    """Import cuda-bindings only here, on first use, so that the package works where it does not."""
    try:
        from cuda.bindings import __version__, cydriver, cyruntime
    except ImportError as error:
        raise ImportError("a CUDA device needs cuda-bindings 12.9 to 13.x: pip install cuda-python; "
                          'without a GPU use the simulated device, cp.sim.Device("8GiB")') from error
    return __version__, cyruntime, cydriver


cdef list table_fill(dict runtime, dict driver):
    """Fill the table and return the names of the symbols that could not be."""
    lacking = []
    table.name = "cuda"
    table_fill_runtime(runtime, lacking)
    table_fill_driver(driver, lacking)
    return lacking


cdef int table_fill_runtime(dict capi, list lacking) except -1:
    bind(capi, "cudaGetDeviceCount", b"cudaError_t (int *)", <void**>&table.cudaGetDeviceCount, lacking)
    bind(capi, "cudaGetDevice", b"cudaError_t (int *)", <void**>&table.cudaGetDevice, lacking)
    bind(capi, "cudaSetDevice", b"cudaError_t (int)", <void**>&table.cudaSetDevice, lacking)
    bind(capi, "cudaDeviceGetAttribute", b"cudaError_t (int *, enum cudaDeviceAttr, int)",
         <void**>&table.cudaDeviceGetAttribute, lacking)
    bind(capi, "cudaDriverGetVersion", b"cudaError_t (int *)", <void**>&table.cudaDriverGetVersion, lacking)
    bind(capi, "cudaRuntimeGetVersion", b"cudaError_t (int *)", <void**>&table.cudaRuntimeGetVersion, lacking)
    bind(capi, "cudaMemGetInfo", b"cudaError_t (size_t *, size_t *)", <void**>&table.cudaMemGetInfo, lacking)
    bind(capi, "cudaMalloc", b"cudaError_t (void **, size_t)", <void**>&table.cudaMalloc, lacking)
    bind(capi, "cudaFree", b"cudaError_t (void *)", <void**>&table.cudaFree, lacking)
    bind(capi, "cudaMallocAsync", b"cudaError_t (void **, size_t, cudaStream_t)",
         <void**>&table.cudaMallocAsync, lacking)
    bind(capi, "cudaFreeAsync", b"cudaError_t (void *, cudaStream_t)", <void**>&table.cudaFreeAsync, lacking)
    bind(capi, "cudaMemcpyAsync", b"cudaError_t (void *, void const *, size_t, enum cudaMemcpyKind, cudaStream_t)",
         <void**>&table.cudaMemcpyAsync, lacking)
    bind(capi, "cudaMemsetAsync", b"cudaError_t (void *, int, size_t, cudaStream_t)",
         <void**>&table.cudaMemsetAsync, lacking)
    bind(capi, "cudaStreamSynchronize", b"cudaError_t (cudaStream_t)", <void**>&table.cudaStreamSynchronize, lacking)
    bind(capi, "cudaDeviceSynchronize", b"cudaError_t (void)", <void**>&table.cudaDeviceSynchronize, lacking)
    bind(capi, "cudaStreamCreateWithFlags", b"cudaError_t (cudaStream_t *, unsigned int)",
         <void**>&table.cudaStreamCreateWithFlags, lacking)
    bind(capi, "cudaStreamDestroy", b"cudaError_t (cudaStream_t)", <void**>&table.cudaStreamDestroy, lacking)
    bind(capi, "cudaStreamGetId", b"cudaError_t (cudaStream_t, unsigned PY_LONG_LONG *)",
         <void**>&table.cudaStreamGetId, lacking)
    bind(capi, "cudaStreamQuery", b"cudaError_t (cudaStream_t)", <void**>&table.cudaStreamQuery, lacking)
    bind(capi, "cudaStreamWaitEvent", b"cudaError_t (cudaStream_t, cudaEvent_t, unsigned int)",
         <void**>&table.cudaStreamWaitEvent, lacking)
    bind(capi, "cudaStreamIsCapturing", b"cudaError_t (cudaStream_t, enum cudaStreamCaptureStatus *)",
         <void**>&table.cudaStreamIsCapturing, lacking)
    bind(capi, "cudaStreamBeginCapture", b"cudaError_t (cudaStream_t, enum cudaStreamCaptureMode)",
         <void**>&table.cudaStreamBeginCapture, lacking)
    bind(capi, "cudaStreamEndCapture", b"cudaError_t (cudaStream_t, cudaGraph_t *)",
         <void**>&table.cudaStreamEndCapture, lacking)
    bind(capi, "cudaEventCreateWithFlags", b"cudaError_t (cudaEvent_t *, unsigned int)",
         <void**>&table.cudaEventCreateWithFlags, lacking)
    bind(capi, "cudaEventRecord", b"cudaError_t (cudaEvent_t, cudaStream_t)", <void**>&table.cudaEventRecord, lacking)
    bind(capi, "cudaEventQuery", b"cudaError_t (cudaEvent_t)", <void**>&table.cudaEventQuery, lacking)
    bind(capi, "cudaEventSynchronize", b"cudaError_t (cudaEvent_t)", <void**>&table.cudaEventSynchronize, lacking)
    bind(capi, "cudaEventDestroy", b"cudaError_t (cudaEvent_t)", <void**>&table.cudaEventDestroy, lacking)
    bind(capi, "cudaLaunchHostFunc", b"cudaError_t (cudaStream_t, cudaHostFn_t, void *)",
         <void**>&table.cudaLaunchHostFunc, lacking)
    bind(capi, "cudaGetErrorName", b"char const *(cudaError_t)", <void**>&table.cudaGetErrorName, lacking)
    bind(capi, "cudaGetErrorString", b"char const *(cudaError_t)", <void**>&table.cudaGetErrorString, lacking)
    return 0


cdef int table_fill_driver(dict capi, list lacking) except -1:
    bind(capi, "cuDeviceGetAttribute", b"CUresult (int *, CUdevice_attribute, CUdevice)",
         <void**>&table.cuDeviceGetAttribute, lacking)
    bind(capi, "cuMemGetAllocationGranularity",
         b"CUresult (size_t *, CUmemAllocationProp const *, CUmemAllocationGranularity_flags)",
         <void**>&table.cuMemGetAllocationGranularity, lacking)
    bind(capi, "cuMemAddressReserve", b"CUresult (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned PY_LONG_LONG)",
         <void**>&table.cuMemAddressReserve, lacking)
    bind(capi, "cuMemAddressFree", b"CUresult (CUdeviceptr, size_t)", <void**>&table.cuMemAddressFree, lacking)
    bind(capi, "cuMemCreate", b"CUresult (CUmemGenericAllocationHandle *, size_t, CUmemAllocationProp const *, "
         b"unsigned PY_LONG_LONG)", <void**>&table.cuMemCreate, lacking)
    bind(capi, "cuMemRelease", b"CUresult (CUmemGenericAllocationHandle)", <void**>&table.cuMemRelease, lacking)
    bind(capi, "cuMemMap", b"CUresult (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, "
         b"unsigned PY_LONG_LONG)", <void**>&table.cuMemMap, lacking)
    bind(capi, "cuMemUnmap", b"CUresult (CUdeviceptr, size_t)", <void**>&table.cuMemUnmap, lacking)
    bind(capi, "cuMemSetAccess", b"CUresult (CUdeviceptr, size_t, CUmemAccessDesc const *, size_t)",
         <void**>&table.cuMemSetAccess, lacking)
    bind(capi, "cuGetErrorName", b"CUresult (CUresult, char const **)", <void**>&table.cuGetErrorName, lacking)
    return 0


cdef int bind(dict capi, str name, bytes signature, void** entry, list lacking) except -1:
    entry[0] = symbol(capi, name, signature)
    if entry[0] is NULL:
        lacking.append(name)
    return 0


cdef void* symbol(dict capi, str name, bytes signature) except? NULL:
    capsule = capi.get(name)
    if capsule is None or not PyCapsule_IsValid(capsule, signature):
        return NULL
    return PyCapsule_GetPointer(capsule, signature)


cdef int device_count() except -1:
    """Return the number of devices, at least 1.

    The GIL is held here: cuda-bindings loads the driver on its first call, and what goes wrong then it raises
    as a Python exception, which a call without the GIL could not pass on.
    """
    cdef const driver_t* driver = cuda_table()
    cdef int count = 0
    cdef cudaError_t code
    try:
        code = (<query_t>driver.cudaGetDeviceCount)(&count)
    except RuntimeError as error:
        raise DeviceUnavailableError(cudaErrorNoDevice, "cudaErrorNoDevice", "cudaGetDeviceCount",
                                     _NO_DEVICE_HINT) from error
    if code == cudaSuccess and count == 0:
        code = cudaErrorNoDevice
    driver_check(driver, code, "cudaGetDeviceCount")
    return count


cdef CudaDevice new_device(int number):
    cdef CudaDevice made = CudaDevice.__new__(CudaDevice)
    made.driver = &table
    made.number = number
    made.ordinal = number
    made.name = name_of(number)
    return made


cdef str name_of(int number):
    cdef char text[256]
    text[0] = 0
    if device_get_name is NULL or device_get_name(text, sizeof(text), number) != 0 or text[0] == 0:
        return f"CUDA device {number}"
    return (<bytes>text).decode("utf-8", "replace")


cdef object version_of(query_t get_version):
    """Ask for a version with the GIL held, since the driver may not have been loaded."""
    cdef int version = 0
    try:
        if get_version is not NULL and get_version(&version) == cudaSuccess and version > 0:
            return version
    except RuntimeError:
        pass
    return None


def _describe(Device one):
    free, total = one.mem_info()
    return {"ordinal": one.ordinal, "name": one.name, "free": free, "total": total}


def _ordinal(ordinal):
    if not is_index(ordinal):
        raise TypeError(f"a device is a CUDA ordinal, such as 0, or a cp.sim.Device, got {shown(ordinal)}")
    number = operator.index(ordinal)
    if not 0 <= number <= 0x7FFFFFFF:
        raise ValueError(f"CUDA ordinals count from 0, got {shown(number)}")
    return number
