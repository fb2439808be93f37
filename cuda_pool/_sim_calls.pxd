"""CUDA's calls over the simulated devices, and the driver table that holds them."""

from libc.stdint cimport uint64_t

from cuda_pool._driver cimport cudaError_t, cudaStream_t, driver_t
from cuda_pool._sim_device cimport sim_device_t
from cuda_pool._sim_event cimport event_t
from cuda_pool._sim_stream cimport stream_t

# _sim_stream_calls fills the part of the table that is about streams, _sim_virtual_calls that about virtual memory.
cdef driver_t* sim_table() noexcept nogil

# What the calls share. Each call_begin takes the lock, logs the call and its up to five arguments, and gives the code
# that the call must fail with, or 0; call_end gives the lock back. A code below 0 is a RULE_ALIAS.
cdef cudaError_t call_begin(int name, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                            sim_device_t** device) noexcept nogil
cdef cudaError_t call_begin_on(int number, int name, uint64_t a, sim_device_t** device) noexcept nogil
cdef cudaError_t call_begin_current(int name, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                                    sim_device_t** device) noexcept nogil
cdef cudaError_t call_begin_stream(int name, uint64_t a, uint64_t b, uint64_t c, cudaStream_t handle,
                                   sim_device_t** device, stream_t** stream) noexcept nogil
cdef cudaError_t call_begin_work(int name, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                                 cudaStream_t handle, sim_device_t** device, stream_t** stream) noexcept nogil
cdef cudaError_t call_record(int name, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                             sim_device_t** device) noexcept nogil
cdef cudaError_t call_end(cudaError_t code) noexcept nogil

# These need the lock. stream_resolve: the stream of a handle, or a reported misuse. query_check, event_check: whether a
# capture forbids to ask. The others record a misuse and return the code of the call; misuse_report: `kind` unless the
# address belongs to another device.
cdef cudaError_t misuse_report(sim_device_t* device, int name, uint64_t address, size_t nbytes,
                               int kind) noexcept nogil
cdef cudaError_t stream_resolve(cudaError_t code, int name, uint64_t handle, sim_device_t* device,
                                stream_t** stream) noexcept nogil
cdef cudaError_t query_check(sim_device_t* device, int name, uint64_t handle, stream_t* stream) noexcept nogil
cdef cudaError_t event_check(sim_device_t* device, int name, const event_t* event) noexcept nogil
cdef cudaError_t handle_misuse(sim_device_t* device, int name, uint64_t handle, int kind, int owner) noexcept nogil
cdef cudaError_t capture_misuse(sim_device_t* device, int name, uint64_t handle, cudaError_t code) noexcept nogil
