"""The driver table filled from cuda-python."""

from cuda_pool._driver cimport Device, driver_t


cdef class CudaDevice(Device):
    pass

# The table, filled on first use. ImportError where cuda-bindings is missing or lacks a call that every pool needs.
cdef const driver_t* cuda_table() except NULL
