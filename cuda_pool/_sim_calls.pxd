"""CUDA's calls over the simulated devices, and the driver table that holds them."""

from cuda_pool._driver cimport driver_t

cdef const driver_t* sim_table() noexcept nogil
