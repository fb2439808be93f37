"""What a simulated device remembers of the calls it got, and what tests tell it to get wrong."""

from libc.stdint cimport int64_t, uint64_t

# In the order of CALLS.
cdef enum call_e:
    CALL_GET_DEVICE_COUNT
    CALL_GET_DEVICE
    CALL_SET_DEVICE
    CALL_GET_ATTRIBUTE
    CALL_DRIVER_VERSION
    CALL_RUNTIME_VERSION
    CALL_MEM_GET_INFO
    CALL_MALLOC
    CALL_FREE
    CALL_MALLOC_ASYNC
    CALL_FREE_ASYNC
    CALL_MEMCPY_ASYNC
    CALL_MEMSET_ASYNC
    CALL_STREAM_SYNCHRONIZE
    CALL_DEVICE_SYNCHRONIZE
    CALL_STREAM_CREATE
    CALL_STREAM_DESTROY
    CALL_STREAM_GET_ID
    CALL_STREAM_QUERY
    CALL_STREAM_WAIT_EVENT
    CALL_STREAM_IS_CAPTURING
    CALL_BEGIN_CAPTURE
    CALL_END_CAPTURE
    CALL_EVENT_CREATE
    CALL_EVENT_RECORD
    CALL_EVENT_QUERY
    CALL_EVENT_SYNCHRONIZE
    CALL_EVENT_DESTROY
    CALL_LAUNCH_HOST_FUNC
    CALL_DRIVER_ATTRIBUTE
    CALL_GRANULARITY
    CALL_ADDRESS_RESERVE
    CALL_ADDRESS_FREE
    CALL_MEM_CREATE
    CALL_MEM_RELEASE
    CALL_MEM_MAP
    CALL_MEM_UNMAP
    CALL_SET_ACCESS
    # What queues work without being a CUDA call; these are never logged.
    KERNEL_WORK
    KERNEL_WRITE
    KERNEL_READ
    KERNEL_LAUNCH

cdef enum:
    CALL_COUNT = 38                 # a literal: Cython before 3.3 takes no other enumerator as a dimension
    CALL_ARGS = 5
    LOG_LIMIT = 65536               # calls kept; the counts go on
    MISUSE_LIMIT = 1000
    RULE_LIMIT = 64

ctypedef struct call_t:
    int name
    int current                     # ordinal of the thread's current device, -1 for none
    uint64_t args[CALL_ARGS]

# records holds the last min(count, LOG_LIMIT) calls, call number i at i % LOG_LIMIT; sum(by_name) == count.
ctypedef struct log_t:
    call_t* records
    uint64_t count
    uint64_t by_name[CALL_COUNT]

cdef enum misuse_e:
    MISUSE_NONE
    MISUSE_UNKNOWN                  # nothing is allocated there
    MISUSE_INTERIOR                 # a free of an address inside an allocation
    MISUSE_OUTSIDE                  # an access that runs over the end of an allocation
    MISUSE_DEVICE                   # the address belongs to another device than the current one
    MISUSE_FREED                    # queued work ran after the memory that it was queued for was freed
    MISUSE_UNMAPPED                 # as above, but unmapped, or mapped anew
    MISUSE_NO_STREAM                # no stream ever had the handle
    MISUSE_STREAM_GONE
    MISUSE_STREAM_DEVICE            # the stream belongs to another device than the current one
    MISUSE_NO_EVENT
    MISUSE_EVENT_GONE
    MISUSE_EVENT_DEVICE             # the event and the stream belong to different devices
    MISUSE_CAPTURE                  # not permitted while a stream is capturing
    MISUSE_HOST_FUNCTION            # a CUDA call from a host function
    MISUSE_VIRTUAL                  # cudaFree of reserved addresses
    MISUSE_NOT_RESERVED             # the range does not lie in one reservation
    MISUSE_NOT_MAPPED
    MISUSE_NO_ACCESS                # mapped, but cuMemSetAccess has given no access
    MISUSE_READ_ONLY
    MISUSE_UNALIGNED                # a size, an address or an alignment
    MISUSE_MAPPED                   # something is mapped there
    MISUSE_PART_MAPPING             # not all of a mapping
    MISUSE_PART_RESERVATION         # not all of a reservation
    MISUSE_STILL_MAPPED             # a reservation with mappings is given back
    MISUSE_OFFSET                   # other than 0
    MISUSE_NO_HANDLE                # no memory ever had the handle
    MISUSE_HANDLE_GONE
    MISUSE_HANDLE_DEVICE            # the memory belongs to another device than the current one
    MISUSE_HANDLE_SIZE              # more is mapped than the memory has
    MISUSE_LOCATION                 # memory or access is asked for on another device than the current one
    MISUSE_IN_USE                   # unmapped under work that is complete as far as the host knows not

ctypedef struct misuse_t:
    int kind
    int name                        # of the call
    int current
    int owner                       # ordinal of the device whose address, stream or event it is
    bint queued                     # found when the operation ran, on `stream` at `tick`
    uint64_t stream
    uint64_t tick
    uint64_t address                # or handle
    uint64_t size                   # of the access; 0 for a free and for a handle
    uint64_t base                   # of the allocation at the address
    uint64_t base_size

# records holds the first min(count, MISUSE_LIMIT).
ctypedef struct misuses_t:
    misuse_t* records
    uint64_t count

# After `after` more calls of `name`, the next `times` return `code`.
ctypedef struct rule_t:
    int name
    int code
    uint64_t after
    uint64_t times

cdef enum:
    RULE_ALIAS = -1                 # a `code`: succeed, with an address that is live already

ctypedef struct faults_t:
    rule_t rules[RULE_LIMIT]
    int count
    int64_t delay_ns[CALL_COUNT]

cdef int log_init(log_t* self) except -1
cdef void log_add(log_t* self, const call_t* call) noexcept nogil
cdef void log_clear(log_t* self) noexcept nogil
cdef bint log_copy(const log_t* self, log_t* copy) noexcept nogil       # the copy's records are the caller's to free()
cdef list log_list(const log_t* self)

cdef int misuses_init(misuses_t* self) except -1
cdef void misuses_add(misuses_t* self, const misuse_t* misuse) noexcept nogil
cdef bint misuses_copy(const misuses_t* self, misuses_t* copy) noexcept nogil
cdef list misuses_list(const misuses_t* self)

# False when there are RULE_LIMIT rules already.
cdef bint faults_add(faults_t* self, rule_t rule) noexcept nogil

# Count a call of `name`; the code that it shall return, or 0.
cdef int faults_take(faults_t* self, int name) noexcept nogil

cdef int call_index(str name) except -1
