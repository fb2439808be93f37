"""DLPack 1.0, as far as an array of bytes needs it. The structs are those of the specification."""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from cuda_pool._driver cimport Device

ctypedef struct DLDevice:
    int32_t device_type
    int32_t device_id

ctypedef struct DLDataType:
    uint8_t code
    uint8_t bits
    uint16_t lanes

ctypedef struct DLTensor:
    void* data
    DLDevice device
    int32_t ndim
    DLDataType dtype
    int64_t* shape
    int64_t* strides
    uint64_t byte_offset

ctypedef struct DLPackVersion:
    uint32_t major
    uint32_t minor

ctypedef struct DLManagedTensor:
    DLTensor dl_tensor
    void* manager_ctx
    void (*deleter)(DLManagedTensor*) noexcept

ctypedef struct DLManagedTensorVersioned:
    DLPackVersion version
    void* manager_ctx
    void (*deleter)(DLManagedTensorVersioned*) noexcept
    uint64_t flags
    DLTensor dl_tensor

# One allocation: the managed tensor of either kind, and its shape and strides.
ctypedef struct export_t:
    DLManagedTensor plain
    int64_t shape[1]
    int64_t strides[1]

ctypedef struct versioned_export_t:
    DLManagedTensorVersioned versioned
    int64_t shape[1]
    int64_t strides[1]

cdef enum:
    kDLCPU = 1
    kDLCUDA = 2
    kDLUInt = 1

cdef const char* PLAIN = "dltensor"
cdef const char* VERSIONED = "dltensor_versioned"


cdef object dlpack_device(Device device):
    if device.is_simulated:
        return kDLCPU, 0
    return kDLCUDA, device.ordinal


cdef object dlpack_capsule(object owner, void* data, size_t nbytes, Device device, object max_version):
    if max_version is not None and tuple(max_version) >= (1, 0):
        return export_versioned(owner, data, nbytes, device)
    cdef export_t* export = <export_t*>calloc(1, sizeof(export_t))
    if export == NULL:
        raise MemoryError("the host has no memory left for a DLPack export")
    export.plain.manager_ctx = <void*>owner
    export.plain.deleter = delete_plain
    Py_INCREF(owner)
    try:
        tensor_fill(&export.plain.dl_tensor, data, nbytes, device, export.shape, export.strides)
        return PyCapsule_New(export, PLAIN, drop_plain)
    except:                         # there is no capsule that would do it
        delete_plain(&export.plain)
        raise


cdef object export_versioned(object owner, void* data, size_t nbytes, Device device):
    cdef versioned_export_t* export = <versioned_export_t*>calloc(1, sizeof(versioned_export_t))
    if export == NULL:
        raise MemoryError("the host has no memory left for a DLPack export")
    export.versioned.version.major = 1
    export.versioned.manager_ctx = <void*>owner
    export.versioned.deleter = delete_versioned
    Py_INCREF(owner)
    try:
        tensor_fill(&export.versioned.dl_tensor, data, nbytes, device, export.shape, export.strides)
        return PyCapsule_New(export, VERSIONED, drop_versioned)
    except:                         # there is no capsule that would do it
        delete_versioned(&export.versioned)
        raise


cdef int tensor_fill(DLTensor* tensor, void* data, size_t nbytes, Device device, int64_t* shape,
                     int64_t* strides) except -1:
    shape[0] = <int64_t>nbytes
    strides[0] = 1
    tensor.data = data
    tensor.device.device_type, tensor.device.device_id = dlpack_device(device)
    tensor.ndim = 1
    tensor.dtype.code = kDLUInt
    tensor.dtype.bits = 8
    tensor.dtype.lanes = 1
    tensor.shape = shape
    tensor.strides = strides
    return 0


# A consumer calls the deleter, from any thread, when it is done; a capsule that nobody consumed does it itself.

cdef void delete_plain(DLManagedTensor* managed) noexcept with gil:
    Py_DECREF(<object>managed.manager_ctx)
    free(managed)


cdef void delete_versioned(DLManagedTensorVersioned* managed) noexcept with gil:
    Py_DECREF(<object>managed.manager_ctx)
    free(managed)


cdef void drop_plain(object capsule) noexcept:
    if PyCapsule_IsValid(capsule, PLAIN):
        delete_plain(<DLManagedTensor*>PyCapsule_GetPointer(capsule, PLAIN))


cdef void drop_versioned(object capsule) noexcept:
    if PyCapsule_IsValid(capsule, VERSIONED):
        delete_versioned(<DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, VERSIONED))
