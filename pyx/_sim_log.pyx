"""The call log, the list of misuses and the fault injection of a simulated device."""

from libc.stdlib cimport malloc
from libc.string cimport memcpy, memset

# Name and number of arguments, in the order of call_e.
CALLS = {
    "cudaGetDeviceCount": 0,
    "cudaGetDevice": 0,
    "cudaSetDevice": 1,
    "cudaDeviceGetAttribute": 2,    # ordinal, attribute
    "cudaDriverGetVersion": 0,
    "cudaRuntimeGetVersion": 0,
    "cudaMemGetInfo": 0,
    "cudaMalloc": 1,
    "cudaFree": 1,
    "cudaMallocAsync": 2,
    "cudaFreeAsync": 2,
    "cudaMemcpyAsync": 5,
    "cudaMemsetAsync": 4,
    "cudaStreamSynchronize": 1,
    "cudaDeviceSynchronize": 0,
    "cudaStreamCreateWithFlags": 1,
    "cudaStreamDestroy": 1,
    "cudaStreamGetId": 1,
    "cudaStreamQuery": 1,
    "cudaStreamWaitEvent": 3,       # stream, event, flags
    "cudaStreamIsCapturing": 1,
    "cudaStreamBeginCapture": 2,    # stream, mode
    "cudaStreamEndCapture": 1,
    "cudaEventCreateWithFlags": 1,
    "cudaEventRecord": 2,           # event, stream
    "cudaEventQuery": 1,
    "cudaEventSynchronize": 1,
    "cudaEventDestroy": 1,
    "cudaLaunchHostFunc": 3,        # stream, function, argument
    "cuDeviceGetAttribute": 2,      # ordinal, attribute
    "cuMemGetAllocationGranularity": 1,     # option
    "cuMemAddressReserve": 4,       # size, alignment, hint, flags
    "cuMemAddressFree": 2,
    "cuMemCreate": 2,               # size, flags
    "cuMemRelease": 1,
    "cuMemMap": 5,                  # address, size, offset, handle, flags
    "cuMemUnmap": 2,
    "cuMemSetAccess": 4,            # address, size, flags of the first location, number of locations
}
NAMES = tuple(CALLS)
OPERATIONS = (*NAMES, "work", "write", "read", "launch")

_EXPLANATIONS = {
    MISUSE_UNKNOWN: "nothing is allocated there",
    MISUSE_INTERIOR: "it lies inside the allocation at {base:#x} of {base_size} bytes",
    MISUSE_OUTSIDE: "it runs over the end of the allocation at {base:#x} of {base_size} bytes",
    MISUSE_DEVICE: "the address belongs to device {owner}",
    MISUSE_FREED: "the memory that it was queued for has been freed",
    MISUSE_UNMAPPED: "the memory that it was queued for has been unmapped",
    MISUSE_NO_STREAM: "no stream has this handle",
    MISUSE_STREAM_GONE: "the stream was destroyed",
    MISUSE_STREAM_DEVICE: "the stream belongs to device {owner}",
    MISUSE_NO_EVENT: "no event has this handle",
    MISUSE_EVENT_GONE: "the event was destroyed",
    MISUSE_EVENT_DEVICE: "the event belongs to device {owner}",
    MISUSE_CAPTURE: "not permitted while a stream is capturing",
    MISUSE_HOST_FUNCTION: "a host function makes no CUDA call",
    MISUSE_VIRTUAL: "it lies in the reservation at {base:#x} of {base_size} bytes; "
                    "cuMemUnmap and cuMemAddressFree free it",
    MISUSE_NOT_RESERVED: "the range does not lie in one reservation",
    MISUSE_NOT_MAPPED: "not all of it is mapped in the reservation at {base:#x} of {base_size} bytes",
    MISUSE_NO_ACCESS: "cuMemSetAccess has given no access to it",
    MISUSE_READ_ONLY: "cuMemSetAccess has given access for reading only",
    MISUSE_UNALIGNED: "the size and the address are multiples of the granularity, an alignment is a power of two",
    MISUSE_MAPPED: "something is mapped there",
    MISUSE_PART_MAPPING: "the range begins or ends inside a mapping",
    MISUSE_PART_RESERVATION: "it is not all of the reservation at {base:#x} of {base_size} bytes",
    MISUSE_STILL_MAPPED: "something is still mapped in the reservation",
    MISUSE_OFFSET: "memory is mapped from its start, at offset 0",
    MISUSE_NO_HANDLE: "no memory has this handle",
    MISUSE_HANDLE_GONE: "the memory was released",
    MISUSE_HANDLE_DEVICE: "the memory belongs to device {owner}",
    MISUSE_HANDLE_SIZE: "the memory is smaller than the range",
    MISUSE_LOCATION: "the location is not the current device",
    MISUSE_IN_USE: "the host does not know that the work of stream {stream} on it is complete",
}


cdef int log_init(log_t* self) except -1:
    self.records = <call_t*>malloc(LOG_LIMIT * sizeof(call_t))
    if self.records is NULL:
        raise MemoryError("no host memory for the call log of a simulated device")
    log_clear(self)
    return 0


cdef void log_add(log_t* self, const call_t* call) noexcept nogil:
    self.records[self.count % LOG_LIMIT] = call[0]
    self.count += 1
    self.by_name[call.name] += 1


cdef void log_clear(log_t* self) noexcept nogil:
    self.count = 0
    memset(self.by_name, 0, sizeof(self.by_name))


cdef bint log_copy(const log_t* self, log_t* copy) noexcept nogil:
    cdef size_t kept = min(self.count, <uint64_t>LOG_LIMIT)
    copy[0] = self[0]
    copy.records = <call_t*>malloc((kept + 1) * sizeof(call_t))
    if copy.records is NULL:
        return False
    memcpy(copy.records, self.records, kept * sizeof(call_t))
    return True


cdef list log_list(const log_t* self):
    """Return the calls that are kept, oldest first, as (name, arguments, ordinal of the current device or None)."""
    cdef uint64_t i, first = self.count - min(self.count, <uint64_t>LOG_LIMIT)
    return [call_tuple(&self.records[i % LOG_LIMIT]) for i in range(first, self.count)]


cdef tuple call_tuple(const call_t* call):
    name = NAMES[call.name]
    args = tuple([call.args[i] for i in range(<int>CALLS[name])])
    return name, args, None if call.current < 0 else call.current


cdef int misuses_init(misuses_t* self) except -1:
    self.records = <misuse_t*>malloc(MISUSE_LIMIT * sizeof(misuse_t))
    if self.records is NULL:
        raise MemoryError("no host memory for the error list of a simulated device")
    self.count = 0
    return 0


cdef void misuses_add(misuses_t* self, const misuse_t* misuse) noexcept nogil:
    if self.count < MISUSE_LIMIT:
        self.records[self.count] = misuse[0]
    self.count += 1


cdef bint misuses_copy(const misuses_t* self, misuses_t* copy) noexcept nogil:
    cdef size_t kept = min(self.count, <uint64_t>MISUSE_LIMIT)
    copy[0] = self[0]
    copy.records = <misuse_t*>malloc((kept + 1) * sizeof(misuse_t))
    if copy.records is NULL:
        return False
    memcpy(copy.records, self.records, kept * sizeof(misuse_t))
    return True


cdef list misuses_list(const misuses_t* self):
    """Return the misuses as text, oldest first."""
    cdef uint64_t kept = min(self.count, <uint64_t>MISUSE_LIMIT)
    texts = [misuse_text(&self.records[i]) for i in range(kept)]
    if kept < self.count:
        texts.append(f"and {self.count - kept} more")
    return texts


cdef str misuse_text(const misuse_t* misuse):
    size = f" of {misuse.size} bytes" if misuse.size else ""
    why = _EXPLANATIONS[misuse.kind].format(base=misuse.base, base_size=misuse.base_size, owner=misuse.owner,
                                              stream=misuse.stream)
    where = f"on stream {misuse.stream} at tick {misuse.tick}"
    if not misuse.queued:
        where = "with no device current" if misuse.current < 0 else f"with device {misuse.current} current"
    return f"{OPERATIONS[misuse.name]}: {misuse.address:#x}{size} {where}: {why}"


cdef bint faults_add(faults_t* self, rule_t rule) noexcept nogil:
    if self.count == RULE_LIMIT:
        return False
    self.rules[self.count] = rule
    self.count += 1
    return True


cdef int faults_take(faults_t* self, int name) noexcept nogil:
    """Count a call against every rule for `name`; the oldest rule that is due decides."""
    cdef int i, code = 0
    for i in range(self.count):
        if self.rules[i].name != name:
            continue
        if self.rules[i].after > 0:
            self.rules[i].after -= 1
        elif code == 0:
            code = self.rules[i].code
            self.rules[i].times -= 1
    faults_drop_spent(self)
    return code


cdef void faults_drop_spent(faults_t* self) noexcept nogil:
    cdef int i, kept = 0
    for i in range(self.count):
        if self.rules[i].times > 0:
            self.rules[kept] = self.rules[i]
            kept += 1
    self.count = kept


cdef int call_index(str name) except -1:
    """Return the index of a CUDA call that the simulator serves."""
    if name not in CALLS:
        raise ValueError(f"the simulated device has no call {name!r}; it has {', '.join(NAMES)}")
    return NAMES.index(name)
