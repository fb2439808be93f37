"""The simulated devices that are alive, the lock around them, and which one each thread has current."""

from libc.stdint cimport uint64_t

from cuda_pool._sim_log cimport faults_t, log_t, misuses_t
from cuda_pool._sim_memory cimport memory_t
from cuda_pool._sim_stream cimport timeline_t

cdef enum:
    NO_DEVICE = 0                   # the number that is current in a thread that has chosen none

# `number` is what cudaSetDevice takes. It names one device only, ever: its low bits are the slot, the rest
# counts the slot's devices, so that a thread whose current device is gone does not find another in its place.
ctypedef struct sim_device_t:
    int number
    int ordinal
    bint closed
    memory_t memory
    log_t log
    misuses_t misuses
    faults_t faults
    timeline_t timeline

# The lock guards every sim_device_t and the table of them. Its holder calls nothing that waits for the GIL or
# for another lock. Take it without the GIL.
cdef void sim_lock() noexcept nogil
cdef void sim_unlock() noexcept nogil

# A host function has returned: those who wait for that, and hold the lock, look again.
cdef void sim_wake() noexcept nogil
cdef void sim_sleep() noexcept nogil

# Each of these needs the lock.
cdef int devices_add(sim_device_t* device) noexcept nogil           # 0, or -1 when every slot is taken
cdef void devices_remove(sim_device_t* device) noexcept nogil
cdef sim_device_t* devices_get(int number) noexcept nogil           # NULL once the device is gone
cdef sim_device_t* devices_owning(const char* address) noexcept nogil
cdef int devices_count() noexcept nogil

cdef int current_number() noexcept nogil
cdef void current_set(int number) noexcept nogil

# A number that no other thread ever has, from 1; its per-thread default streams end with it.
cdef uint64_t thread_number() noexcept nogil

# Whether the calling thread is in a host function that a simulated stream called.
cdef bint thread_is_called() noexcept nogil
cdef void thread_set_called(bint called) noexcept nogil
