"""Streams as Python names them."""

from cpython.long cimport PyLong_CheckExact
from libc.stdint cimport uintptr_t

from cuda_pool._driver cimport cudaStream_t

from cuda_pool.sizes import is_index, shown

ACCEPTED = "an int handle (0: the default stream), or an object with __cuda_stream__"


cdef int stream_handle(object stream, cudaStream_t* handle) except -1:
    cdef object number = stream
    if hasattr(stream, "__cuda_stream__"):
        number = protocol_handle(stream)
    if not PyLong_CheckExact(number):
        if not is_index(number):
            raise TypeError(f"a stream is {ACCEPTED}; got {shown(stream)}")
        number = number.__index__()
    if not 0 <= number < 1 << 64:
        raise ValueError(f"a stream is {ACCEPTED}; got {shown(stream)}")
    handle[0] = <cudaStream_t><uintptr_t>number
    return 0


cdef object protocol_handle(object stream):
    """Ask an object for its handle: (0, handle), a method or, in older objects, a property."""
    answer = stream.__cuda_stream__
    answer = answer() if callable(answer) else answer
    try:
        version, number = answer
    except (TypeError, ValueError):
        raise TypeError(f"__cuda_stream__ of {stream!r} gives {answer!r}, expected (0, handle)") from None
    if version != 0:
        raise ValueError(f"__cuda_stream__ of {stream!r} has version {version!r}, expected 0")
    return number
