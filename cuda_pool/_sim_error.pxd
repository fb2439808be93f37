"""The results that a simulated CUDA call may have, and their names."""

from cuda_pool._driver cimport CUresult, cudaError_t

# Entries of the driver table, under CUDA's names for them.
cdef const char* sim_error_name(cudaError_t code) noexcept nogil
cdef const char* sim_error_string(cudaError_t code) noexcept nogil
cdef CUresult sim_driver_error_name(CUresult code, const char** name) noexcept nogil    # NULL: the driver has none
