"""Letting virtual time pass on a simulated device, as far as a call has to wait."""

from libc.stdint cimport uint32_t, uint64_t

from cuda_pool._driver cimport cudaError_t
from cuda_pool._sim_device cimport sim_device_t
from cuda_pool._sim_stream cimport stream_t

# These need the lock, and give it up while a host function runs: no pointer to a device, a stream or an event that was
# taken before outlives them. Host functions run in these alone. cudaErrorInvalidDevice: the device is gone or closed.
# The queries wait for nothing: cudaErrorNotReady, or the host knows from then on.
cdef cudaError_t device_await(sim_device_t* device, const uint64_t* clock, uint32_t lanes) noexcept nogil
cdef cudaError_t device_await_stream(sim_device_t* device, const stream_t* stream) noexcept nogil
cdef cudaError_t device_query_stream(sim_device_t* device, const stream_t* stream) noexcept nogil
cdef cudaError_t device_query(sim_device_t* device, const uint64_t* clock, uint32_t lanes) noexcept nogil
cdef cudaError_t device_await_all(sim_device_t* device) noexcept nogil
cdef cudaError_t device_advance(sim_device_t* device, uint64_t ticks) noexcept nogil

# The code of the first queued operation that went wrong since the last time this was asked, or 0.
cdef cudaError_t device_take_fault(sim_device_t* device) noexcept nogil

# Drop all that is queued, and every stream, event, capture and graph of the device.
cdef void device_clear(sim_device_t* device) noexcept nogil
