"""The seam below which CUDA lives: a table of function pointers with CUDA's own signatures."""

ctypedef int cudaError_t
ctypedef void* cudaStream_t
ctypedef void* cudaEvent_t
ctypedef void* cudaGraph_t
ctypedef void (*cudaHostFn_t)(void*) noexcept nogil

# Of CUDA's driver, whose calls are named cu*. Wherever both have a code, a CUresult means what that cudaError_t means.
ctypedef int CUresult
ctypedef int CUdevice                                       # in practice the ordinal
ctypedef unsigned long long CUdeviceptr
ctypedef unsigned long long CUmemGenericAllocationHandle

# Results that the layers above tell apart.
cdef enum:
    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorMemoryAllocation = 2
    cudaErrorInsufficientDriver = 35
    cudaErrorNoDevice = 100
    cudaErrorInvalidDevice = 101
    CUDA_ERROR_INVALID_CONTEXT = 201
    cudaErrorInvalidResourceHandle = 400
    cudaErrorNotReady = 600
    cudaErrorIllegalAddress = 700
    cudaErrorNotPermitted = 800
    cudaErrorNotSupported = 801
    cudaErrorStreamCaptureUnsupported = 900
    cudaErrorStreamCaptureInvalidated = 901
    cudaErrorStreamCaptureMerge = 902
    cudaErrorStreamCaptureUnmatched = 903
    cudaErrorStreamCaptureUnjoined = 904
    cudaErrorStreamCaptureIsolation = 905
    cudaErrorStreamCaptureImplicit = 906
    cudaErrorCapturedEvent = 907
    cudaErrorStreamCaptureWrongThread = 908

# Directions of a copy, the `kind` of cudaMemcpyAsync.
cdef enum:
    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2
    cudaMemcpyDeviceToDevice = 3
    cudaMemcpyDefault = 4

# Flags of cudaStreamCreateWithFlags and cudaEventCreateWithFlags.
cdef enum:
    cudaStreamDefault = 0
    cudaStreamNonBlocking = 1
    cudaEventDisableTiming = 2

# What cudaStreamIsCapturing tells, and the modes of cudaStreamBeginCapture.
cdef enum:
    cudaStreamCaptureStatusNone = 0
    cudaStreamCaptureStatusActive = 1
    cudaStreamCaptureStatusInvalidated = 2
    cudaStreamCaptureModeGlobal = 0
    cudaStreamCaptureModeThreadLocal = 1
    cudaStreamCaptureModeRelaxed = 2

# Virtual memory: the values of what CUDA takes there.
cdef enum:
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102
    CU_MEM_ALLOCATION_TYPE_PINNED = 1
    CU_MEM_HANDLE_TYPE_NONE = 0
    CU_MEM_LOCATION_TYPE_DEVICE = 1
    CU_MEM_ACCESS_FLAGS_PROT_NONE = 0
    CU_MEM_ACCESS_FLAGS_PROT_READ = 1
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3
    CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1

# Laid out as CUDA lays them out: 8, 8, 32 and 12 bytes.
ctypedef struct CUmemLocation:
    int type
    int id                          # of a device: its ordinal

ctypedef struct CUmemAllocationFlags:
    unsigned char compressionType
    unsigned char gpuDirectRDMACapable
    unsigned short usage
    unsigned char reserved[4]

ctypedef struct CUmemAllocationProp:
    int type
    int requestedHandleTypes
    CUmemLocation location
    void* win32HandleMetaData
    CUmemAllocationFlags allocFlags

ctypedef struct CUmemAccessDesc:
    CUmemLocation location
    int flags

# One entry per CUDA call. NULL: the driver lacks it, and the feature that needs it is off.
# A filling owns its table for the whole life of the process, so a driver_t* never dangles.
ctypedef struct driver_t:
    const char* name                                    # "cuda" or "sim"
    cudaError_t (*cudaGetDeviceCount)(int*) noexcept nogil
    cudaError_t (*cudaGetDevice)(int*) noexcept nogil
    cudaError_t (*cudaSetDevice)(int) noexcept nogil
    cudaError_t (*cudaDeviceGetAttribute)(int*, int, int) noexcept nogil
    cudaError_t (*cudaDriverGetVersion)(int*) noexcept nogil
    cudaError_t (*cudaRuntimeGetVersion)(int*) noexcept nogil
    cudaError_t (*cudaMemGetInfo)(size_t*, size_t*) noexcept nogil
    cudaError_t (*cudaMalloc)(void**, size_t) noexcept nogil
    cudaError_t (*cudaFree)(void*) noexcept nogil
    cudaError_t (*cudaMallocAsync)(void**, size_t, cudaStream_t) noexcept nogil     # peers' timing only
    cudaError_t (*cudaFreeAsync)(void*, cudaStream_t) noexcept nogil                # peers' timing only
    cudaError_t (*cudaMemcpyAsync)(void*, const void*, size_t, int, cudaStream_t) noexcept nogil
    cudaError_t (*cudaMemsetAsync)(void*, int, size_t, cudaStream_t) noexcept nogil
    cudaError_t (*cudaStreamSynchronize)(cudaStream_t) noexcept nogil
    cudaError_t (*cudaDeviceSynchronize)() noexcept nogil
    cudaError_t (*cudaStreamCreateWithFlags)(cudaStream_t*, unsigned int) noexcept nogil
    cudaError_t (*cudaStreamDestroy)(cudaStream_t) noexcept nogil
    cudaError_t (*cudaStreamGetId)(cudaStream_t, unsigned long long*) noexcept nogil
    cudaError_t (*cudaStreamQuery)(cudaStream_t) noexcept nogil
    cudaError_t (*cudaStreamWaitEvent)(cudaStream_t, cudaEvent_t, unsigned int) noexcept nogil
    cudaError_t (*cudaStreamIsCapturing)(cudaStream_t, int*) noexcept nogil
    cudaError_t (*cudaStreamBeginCapture)(cudaStream_t, int) noexcept nogil
    cudaError_t (*cudaStreamEndCapture)(cudaStream_t, cudaGraph_t*) noexcept nogil
    cudaError_t (*cudaEventCreateWithFlags)(cudaEvent_t*, unsigned int) noexcept nogil
    cudaError_t (*cudaEventRecord)(cudaEvent_t, cudaStream_t) noexcept nogil
    cudaError_t (*cudaEventQuery)(cudaEvent_t) noexcept nogil
    cudaError_t (*cudaEventSynchronize)(cudaEvent_t) noexcept nogil
    cudaError_t (*cudaEventDestroy)(cudaEvent_t) noexcept nogil
    cudaError_t (*cudaLaunchHostFunc)(cudaStream_t, cudaHostFn_t, void*) noexcept nogil
    const char* (*cudaGetErrorName)(cudaError_t) noexcept nogil
    const char* (*cudaGetErrorString)(cudaError_t) noexcept nogil
    CUresult (*cuDeviceGetAttribute)(int*, int, CUdevice) noexcept nogil
    CUresult (*cuMemGetAllocationGranularity)(size_t*, const CUmemAllocationProp*, int) noexcept nogil
    CUresult (*cuMemAddressReserve)(CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long) noexcept nogil
    CUresult (*cuMemAddressFree)(CUdeviceptr, size_t) noexcept nogil
    CUresult (*cuMemCreate)(CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*,
                            unsigned long long) noexcept nogil
    CUresult (*cuMemRelease)(CUmemGenericAllocationHandle) noexcept nogil
    CUresult (*cuMemMap)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) noexcept nogil
    CUresult (*cuMemUnmap)(CUdeviceptr, size_t) noexcept nogil
    CUresult (*cuMemSetAccess)(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) noexcept nogil
    CUresult (*cuGetErrorName)(CUresult, const char**) noexcept nogil


cdef class Device:
    cdef const driver_t* driver     # never NULL; a Device that no filling made has a table without a device
    cdef int number                 # what cudaSetDevice takes
    cdef readonly int ordinal       # what the user calls it
    cdef readonly str name          # as the driver calls it

    cdef int copy(self, void* destination, const void* source, size_t nbytes, int kind) except -1

# Makes `number` current for the calling thread; device_leave() puts the previous one back.
# device_enter_context() is for the calls named cu*: these, other than those of the runtime, need a context that is
# current already. cudaSetDevice makes the device's primary context current and creates it if need be, also where the
# device was current before, but in name only.
cdef cudaError_t device_enter(const driver_t* driver, int number, int* previous) noexcept nogil
cdef cudaError_t device_enter_context(const driver_t* driver, int number, int* previous) noexcept nogil
cdef void device_leave(const driver_t* driver, int number, int previous) noexcept nogil

# Whether the driver has every call that virtual memory needs.
cdef bint driver_has_virtual(const driver_t* driver) noexcept nogil

# Memory of a device that a process keeps to itself, as cuMemCreate takes it.
cdef CUmemAllocationProp memory_of(int number) noexcept nogil

# The driver gate, which turns a call's result into an exception: CudaError, or DeviceUnavailableError for 35, 100 and
# their like. A result of a call named cu* has the driver's name, such as CUDA_ERROR_OUT_OF_MEMORY, and the same code.
cdef int driver_check(const driver_t* driver, cudaError_t code, str call) except -1

# True once the interpreter is shutting down: destructors that run then leave the driver alone.
cdef bint driver_is_shut() noexcept nogil
