"""The simulated device as Python sees it."""

from cuda_pool._driver cimport Device as BaseDevice
from cuda_pool._sim_device cimport sim_device_t


cdef class Device(BaseDevice):
    cdef sim_device_t state
    cdef bint listed                # in the table of devices that are alive
    cdef readonly object seed
    cdef object __weakref__
