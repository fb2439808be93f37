"""The calls of CUDA's driver about virtual memory over the simulated devices.

CUDA lets any device be current in most of them. Here the addresses, the memory and the locations that a call names must
be the current device's, since a caller that means another one has entered the wrong device.
"""

from libc.stdint cimport uint64_t
from libc.string cimport memset

from cuda_pool._driver cimport (
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, CU_MEM_ACCESS_FLAGS_PROT_NONE,
    CU_MEM_ACCESS_FLAGS_PROT_READ, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ALLOC_GRANULARITY_MINIMUM,
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_NONE,
    CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_INVALID_CONTEXT, CUdevice, CUdeviceptr, CUmemAccessDesc,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation, CUresult, cudaErrorInvalidDevice,
    cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorNotSupported, cudaErrorStreamCaptureUnsupported,
    cudaSuccess, driver_t)
from cuda_pool._sim_calls cimport (
    call_begin, call_begin_on, call_end, capture_misuse, handle_misuse, misuse_report, sim_table)
from cuda_pool._sim_device cimport devices_get, sim_device_t, thread_number
from cuda_pool._sim_graph cimport captures_forbid_unsafe
from cuda_pool._sim_log cimport *
from cuda_pool._sim_memory cimport memory_free
from cuda_pool._sim_race cimport access_t, races_beyond, races_forget_range
from cuda_pool._sim_virtual cimport (
    physical_create, physical_get, physical_release, physical_t, physical_was_released, virtual_free,
    virtual_free_fault, virtual_map, virtual_map_fault, virtual_range_fault, virtual_reserve, virtual_reserve_fault,
    virtual_set_access, virtual_unmap)


cdef CUresult sim_driver_attribute(int* value, int attribute, CUdevice number) noexcept nogil:
    cdef sim_device_t* device
    cdef CUresult code = call_begin_on(number, CALL_DRIVER_ATTRIBUTE, attribute, &device)
    if code == cudaSuccess and (device is NULL or device.closed):
        code = cudaErrorInvalidDevice
    if code == cudaSuccess and attribute != CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        code = cudaErrorInvalidValue
    if code == cudaSuccess:
        value[0] = device.memory.space.granularity > 0
    return call_end(code)


cdef CUresult sim_granularity(size_t* granularity, const CUmemAllocationProp* prop, int option) noexcept nogil:
    cdef sim_device_t* device
    cdef CUresult code = space_begin(CALL_GRANULARITY, option, 0, 0, 0, 0, &device)
    if code == cudaSuccess and option not in (CU_MEM_ALLOC_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED):
        code = cudaErrorInvalidValue
    if code == cudaSuccess:
        code = prop_check(device, CALL_GRANULARITY, prop)
    if code == cudaSuccess:
        granularity[0] = device.memory.space.granularity
    return call_end(code)


# --- addresses --------------------------------------------------------------------------------------------------------

cdef CUresult sim_address_reserve(CUdeviceptr* address, size_t size, size_t alignment, CUdeviceptr hint,
                                  unsigned long long flags) noexcept nogil:
    """Reserve addresses; the hint is not followed."""
    cdef sim_device_t* device
    cdef uint64_t start
    cdef CUresult code = space_begin_change(CALL_ADDRESS_RESERVE, size, alignment, hint, flags, 0, &device)
    if code == cudaSuccess and flags != 0:
        code = cudaErrorInvalidValue
    if code == cudaSuccess:
        code = report(device, CALL_ADDRESS_RESERVE, 0, size,
                      virtual_reserve_fault(&device.memory.space, size, alignment))
    if code == cudaSuccess and not virtual_reserve(&device.memory.space, size, alignment, &start):
        code = cudaErrorMemoryAllocation
    if code == cudaSuccess:
        address[0] = start
    return call_end(code)


cdef CUresult sim_address_free(CUdeviceptr address, size_t size) noexcept nogil:
    cdef sim_device_t* device
    cdef CUresult code = space_begin_change(CALL_ADDRESS_FREE, address, size, 0, 0, 0, &device)
    if code == cudaSuccess:
        code = report(device, CALL_ADDRESS_FREE, address, size,
                      virtual_free_fault(&device.memory.space, address, size))
    if code == cudaSuccess:
        virtual_free(&device.memory.space, address)
    return call_end(code)


# --- physical memory --------------------------------------------------------------------------------------------------

cdef CUresult sim_mem_create(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* prop,
                             unsigned long long flags) noexcept nogil:
    cdef sim_device_t* device
    cdef physical_t* made
    cdef CUresult code = space_begin_change(CALL_MEM_CREATE, size, flags, 0, 0, 0, &device)
    if code == cudaSuccess and flags != 0:
        code = cudaErrorInvalidValue
    if code == cudaSuccess:
        code = prop_check(device, CALL_MEM_CREATE, prop)
    if code == cudaSuccess and (size == 0 or size % device.memory.space.granularity != 0):
        code = report(device, CALL_MEM_CREATE, 0, size, MISUSE_UNALIGNED)
    if code != cudaSuccess:
        return call_end(code)
    made = physical_create(&device.memory.space, size, device.number) if size <= memory_free(&device.memory) else NULL
    if made is NULL:
        return call_end(cudaErrorMemoryAllocation)
    handle[0] = made.handle
    return call_end(cudaSuccess)


cdef CUresult sim_mem_release(CUmemGenericAllocationHandle handle) noexcept nogil:
    cdef sim_device_t* device
    cdef physical_t* physical = NULL
    cdef CUresult code = space_begin_change(CALL_MEM_RELEASE, handle, 0, 0, 0, 0, &device)
    if code == cudaSuccess:
        code = physical_resolve(device, CALL_MEM_RELEASE, handle, &physical)
    if code == cudaSuccess:
        physical_release(&device.memory.space, physical)
    return call_end(code)


# --- mappings ---------------------------------------------------------------------------------------------------------

cdef CUresult sim_mem_map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags) noexcept nogil:
    cdef sim_device_t* device
    cdef physical_t* physical = NULL
    cdef CUresult code = space_begin_change(CALL_MEM_MAP, address, size, offset, handle, flags, &device)
    if code == cudaSuccess and flags != 0:
        code = cudaErrorInvalidValue
    if code == cudaSuccess and offset != 0:
        code = report(device, CALL_MEM_MAP, address, size, MISUSE_OFFSET)
    if code == cudaSuccess:
        code = physical_resolve(device, CALL_MEM_MAP, handle, &physical)
    if code == cudaSuccess:
        code = report(device, CALL_MEM_MAP, address, size,
                      virtual_map_fault(&device.memory.space, address, size, physical))
    if code == cudaSuccess:
        device.memory.serial += 1
        if not virtual_map(&device.memory.space, address, size, physical, device.memory.serial):
            code = cudaErrorMemoryAllocation
    return call_end(code)


cdef CUresult sim_mem_unmap(CUdeviceptr address, size_t size) noexcept nogil:
    """Unmap at once, without waiting for any work."""
    cdef sim_device_t* device
    cdef CUresult code = space_begin_change(CALL_MEM_UNMAP, address, size, 0, 0, 0, &device)
    if code == cudaSuccess:
        code = report(device, CALL_MEM_UNMAP, address, size,
                      virtual_range_fault(&device.memory.space, address, size))
    if code == cudaSuccess and not virtual_unmap(&device.memory.space, address, size):
        code = cudaErrorMemoryAllocation
    if code == cudaSuccess:
        accesses_forget(device, address, size)
    return call_end(code)


cdef CUresult sim_set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc* locations,
                             size_t count) noexcept nogil:
    cdef sim_device_t* device
    cdef size_t i
    cdef CUresult code = space_begin_change(CALL_SET_ACCESS, address, size, locations[0].flags if count > 0 else 0,
                                            count, 0, &device)
    if code == cudaSuccess and count == 0:
        code = cudaErrorInvalidValue
    if code == cudaSuccess:
        code = report(device, CALL_SET_ACCESS, address, size,
                      virtual_range_fault(&device.memory.space, address, size))
    for i in range(count):
        if code == cudaSuccess:
            code = access_flags_check(device, &locations[i])
    if code == cudaSuccess and not virtual_set_access(&device.memory.space, address, size, locations[count - 1].flags):
        code = cudaErrorMemoryAllocation
    return call_end(code)


# --- what they share --------------------------------------------------------------------------------------------------

cdef CUresult space_begin(int name, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                          sim_device_t** device) noexcept nogil:
    """Begin a call that needs a current device with virtual memory."""
    cdef CUresult code = call_begin(name, a, b, c, d, e, device)
    if device[0] is NULL or device[0].closed:
        return CUDA_ERROR_INVALID_CONTEXT
    if code == cudaSuccess and device[0].memory.space.granularity == 0:
        return cudaErrorNotSupported
    return code


cdef CUresult space_begin_change(int name, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                                 sim_device_t** device) noexcept nogil:
    """Begin a call that a capture forbids, as it does cudaMalloc."""
    cdef CUresult code = space_begin(name, a, b, c, d, e, device)
    if code == cudaSuccess and captures_forbid_unsafe(thread_number()):
        code = capture_misuse(device[0], name, 0, cudaErrorStreamCaptureUnsupported)
    return code


cdef CUresult report(sim_device_t* device, int name, uint64_t address, size_t size, int kind) noexcept nogil:
    """Record a misuse of a range, if it is one."""
    return cudaSuccess if kind == MISUSE_NONE else misuse_report(device, name, address, size, kind)


cdef CUresult prop_check(sim_device_t* device, int name, const CUmemAllocationProp* prop) noexcept nogil:
    if prop.type != CU_MEM_ALLOCATION_TYPE_PINNED:
        return cudaErrorInvalidValue
    if prop.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE:
        return cudaErrorNotSupported
    return location_check(device, name, &prop.location)


cdef CUresult access_flags_check(sim_device_t* device, const CUmemAccessDesc* wanted) noexcept nogil:
    if wanted.flags not in (CU_MEM_ACCESS_FLAGS_PROT_NONE, CU_MEM_ACCESS_FLAGS_PROT_READ,
                            CU_MEM_ACCESS_FLAGS_PROT_READWRITE):
        return cudaErrorInvalidValue
    return location_check(device, CALL_SET_ACCESS, &wanted.location)


cdef CUresult location_check(sim_device_t* device, int name, const CUmemLocation* location) noexcept nogil:
    """Check that a location is the current device."""
    if location.type != CU_MEM_LOCATION_TYPE_DEVICE:
        return cudaErrorNotSupported
    if location.id == device.number:
        return cudaSuccess
    if devices_get(location.id) is NULL:
        return cudaErrorInvalidDevice
    handle_misuse(device, name, location.id, MISUSE_LOCATION, location.id)
    return cudaErrorInvalidDevice


cdef CUresult physical_resolve(sim_device_t* device, int name, uint64_t handle, physical_t** physical) noexcept nogil:
    """Find the memory that a handle names."""
    physical[0] = physical_get(handle)
    if physical[0] is NULL:
        handle_misuse(device, name, handle,
                      MISUSE_HANDLE_GONE if physical_was_released(handle) else MISUSE_NO_HANDLE, 0)
        return cudaErrorInvalidValue
    if physical[0].device != device.number:
        handle_misuse(device, name, handle, MISUSE_HANDLE_DEVICE, physical[0].device)
        return cudaErrorInvalidValue
    return cudaSuccess


cdef void accesses_forget(sim_device_t* device, uint64_t address, size_t size) noexcept nogil:
    """Report work on a range that is gone which may not have been complete, and forget what was done there."""
    cdef const access_t* access = races_beyond(&device.timeline.races, address, size, device.timeline.host)
    cdef misuse_t misuse
    if access is not NULL:
        memset(&misuse, 0, sizeof(misuse_t))
        misuse.kind = MISUSE_IN_USE
        misuse.name = CALL_MEM_UNMAP
        misuse.current = device.ordinal
        misuse.address = address
        misuse.size = size
        misuse.stream = access.stream
        misuses_add(&device.misuses, &misuse)
    races_forget_range(&device.timeline.races, address, size)


def _fill_table():
    cdef driver_t* table = sim_table()
    table.cuDeviceGetAttribute = sim_driver_attribute
    table.cuMemGetAllocationGranularity = sim_granularity
    table.cuMemAddressReserve = sim_address_reserve
    table.cuMemAddressFree = sim_address_free
    table.cuMemCreate = sim_mem_create
    table.cuMemRelease = sim_mem_release
    table.cuMemMap = sim_mem_map
    table.cuMemUnmap = sim_mem_unmap
    table.cuMemSetAccess = sim_set_access


_fill_table()
