"""Streams as Python names them."""

from cuda_pool._driver cimport cudaStream_t

# The handle of an int or an object with __cuda_stream__; TypeError or ValueError says what is accepted.
cdef int stream_handle(object stream, cudaStream_t* handle) except -1
