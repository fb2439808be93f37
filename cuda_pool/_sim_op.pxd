"""Operations: what streams queue, and what happens to memory when one runs."""

from libc.stdint cimport uint32_t, uint64_t

from cuda_pool._driver cimport cudaError_t, cudaHostFn_t
from cuda_pool._sim_log cimport misuses_t
from cuda_pool._sim_memory cimport memory_t
from cuda_pool._sim_race cimport races_t

cdef enum op_e:
    OP_WORK                         # takes time, and may touch memory without moving data
    OP_FILL                         # sets `writes` to `value`
    OP_COPY                         # moves `nbytes` from `source` to `destination`
    OP_READ                         # copies `reads` into `result`
    OP_FREE                         # gives the allocation at `writes` back
    OP_CALL                         # calls a host function

cdef enum op_state_e:
    OP_QUEUED
    OP_STARTED                      # completes at `end`
    OP_CALLING                      # a thread is in its host function

# Device memory that an operation touches; nbytes == 0: none. `serial` is that of the place_t there when it was queued,
# 0 if there was no memory: it may be gone, and other memory be at its address, when the operation runs.
ctypedef struct span_t:
    uint64_t address
    size_t nbytes
    uint64_t serial

# What a read found. The operation and the Python object that waits for it both hold it.
ctypedef struct result_t:
    int holders
    bint ready
    size_t nbytes
    char* bytes

ctypedef struct op_t:
    op_t* next
    int kind
    int name                        # the call or kernel that queued it, an index in OPERATIONS
    int state
    int value
    uint64_t number                 # operations submitted to the device before it
    uint64_t ticks
    uint64_t until                  # it ends no earlier; 0 for one that takes its `ticks` from when it starts
    uint64_t end
    span_t reads
    span_t writes
    char* destination
    const char* source
    size_t nbytes
    char* staged                    # its own copy of what `source` held when it was queued
    bint pageable                   # `source` is host memory that the caller may reuse once the call has returned
    cudaHostFn_t function
    void* argument
    result_t* result
    uint32_t lanes
    uint64_t* clock                 # it comes after all that this names; clock[its lane] is its own sequence number

# Where and when an operation runs.
ctypedef struct run_t:
    memory_t* memory
    misuses_t* misuses
    races_t* races
    uint64_t now
    uint64_t stream
    uint32_t lane
    uint32_t lanes
    const uint64_t* clock

cdef op_t op_make(int kind, int name, uint64_t ticks) noexcept nogil
cdef span_t span_make(const memory_t* memory, const void* address, size_t nbytes) noexcept nogil

# A copy with a clock of its own, that holds the result too; NULL without host memory for it.
cdef op_t* op_copy(const op_t* op, const uint64_t* clock, uint32_t lanes) noexcept nogil
cdef bint op_stage(op_t* op) noexcept nogil
cdef void op_free(op_t* op) noexcept nogil

# Move the data. cudaErrorIllegalAddress, and an entry in the misuses, if the memory is not there.
cdef cudaError_t op_run(const op_t* op, run_t* run) noexcept nogil

cdef result_t* result_new(size_t nbytes) noexcept nogil                 # held once; NULL without host memory for it
cdef void result_release(result_t* result) noexcept nogil
