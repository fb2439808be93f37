"""The results that a simulated CUDA call may have, and their names."""

from cuda_pool._driver cimport CUresult, cudaError_t, cudaErrorInvalidValue, cudaSuccess

# What a call may return, or a test may ask for: number, name in CUDA's runtime, name in its driver, text. The driver's
# name is empty where it has no such result. Kept alive for the C pointers.
ERRORS = (
    (0, b"cudaSuccess", b"CUDA_SUCCESS", b"no error"),
    (1, b"cudaErrorInvalidValue", b"CUDA_ERROR_INVALID_VALUE", b"invalid argument"),
    (2, b"cudaErrorMemoryAllocation", b"CUDA_ERROR_OUT_OF_MEMORY", b"out of memory"),
    (3, b"cudaErrorInitializationError", b"CUDA_ERROR_NOT_INITIALIZED", b"initialization error"),
    (4, b"cudaErrorCudartUnloading", b"CUDA_ERROR_DEINITIALIZED", b"driver shutting down"),
    (35, b"cudaErrorInsufficientDriver", b"", b"driver version is too old"),
    (46, b"cudaErrorDevicesUnavailable", b"CUDA_ERROR_DEVICE_UNAVAILABLE", b"all devices are busy"),
    (100, b"cudaErrorNoDevice", b"CUDA_ERROR_NO_DEVICE", b"no device"),
    (101, b"cudaErrorInvalidDevice", b"CUDA_ERROR_INVALID_DEVICE", b"invalid device number"),
    (201, b"cudaErrorDeviceUninitialized", b"CUDA_ERROR_INVALID_CONTEXT", b"no device is current"),
    (400, b"cudaErrorInvalidResourceHandle", b"CUDA_ERROR_INVALID_HANDLE", b"invalid resource handle"),
    (600, b"cudaErrorNotReady", b"CUDA_ERROR_NOT_READY", b"not ready"),
    (700, b"cudaErrorIllegalAddress", b"CUDA_ERROR_ILLEGAL_ADDRESS", b"illegal memory access"),
    (719, b"cudaErrorLaunchFailure", b"CUDA_ERROR_LAUNCH_FAILED", b"launch failure"),
    (800, b"cudaErrorNotPermitted", b"CUDA_ERROR_NOT_PERMITTED", b"not permitted"),
    (801, b"cudaErrorNotSupported", b"CUDA_ERROR_NOT_SUPPORTED", b"not supported"),
    (900, b"cudaErrorStreamCaptureUnsupported", b"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     b"not permitted while a stream is capturing"),
    (901, b"cudaErrorStreamCaptureInvalidated", b"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     b"the capture failed earlier"),
    (902, b"cudaErrorStreamCaptureMerge", b"CUDA_ERROR_STREAM_CAPTURE_MERGE", b"two captures would become one"),
    (903, b"cudaErrorStreamCaptureUnmatched", b"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     b"the capture did not begin on this stream"),
    (904, b"cudaErrorStreamCaptureUnjoined", b"CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
     b"a captured stream was not joined to where the capture began"),
    (905, b"cudaErrorStreamCaptureIsolation", b"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     b"a capture would depend on work outside it"),
    (906, b"cudaErrorStreamCaptureImplicit", b"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     b"the legacy default stream would depend on a capture"),
    (907, b"cudaErrorCapturedEvent", b"CUDA_ERROR_CAPTURED_EVENT", b"not permitted on an event recorded in a capture"),
    (908, b"cudaErrorStreamCaptureWrongThread", b"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     b"the capture began in another thread"),
    (999, b"cudaErrorUnknown", b"CUDA_ERROR_UNKNOWN", b"unknown error"),
)

ctypedef struct error_t:
    int code
    const char* name
    const char* driver_name
    const char* text

cdef enum:
    ERROR_COUNT = 26

cdef error_t errors[ERROR_COUNT]


cdef const char* sim_error_name(cudaError_t code) noexcept nogil:
    cdef const error_t* found = error_find(code)
    if found is NULL:
        return "unrecognized error code"
    return found.name


cdef const char* sim_error_string(cudaError_t code) noexcept nogil:
    cdef const error_t* found = error_find(code)
    if found is NULL:
        return "unrecognized error code"
    return found.text


cdef CUresult sim_driver_error_name(CUresult code, const char** name) noexcept nogil:
    cdef const error_t* found = error_find(code)
    if found is NULL or found.driver_name[0] == 0:
        name[0] = NULL
        return cudaErrorInvalidValue
    name[0] = found.driver_name
    return cudaSuccess


cdef const error_t* error_find(int code) noexcept nogil:
    cdef int i
    for i in range(ERROR_COUNT):
        if errors[i].code == code:
            return &errors[i]
    return NULL


def _fill():
    cdef int i
    for i in range(ERROR_COUNT):
        errors[i].code, errors[i].name, errors[i].driver_name, errors[i].text = ERRORS[i]


_fill()
