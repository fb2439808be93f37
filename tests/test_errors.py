"""The exceptions: types, attributes, text, and that they survive pickling."""

import pickle

import pytest

import cuda_pool as cp

OUT_OF_MEMORY = cp.OutOfMemoryError(3 << 30, 2 << 30, 1 << 30, 4 << 30, 5 << 30)
CUDA = cp.CudaError(2, "cudaErrorMemoryAllocation", "cudaMalloc")
UNAVAILABLE = cp.DeviceUnavailableError(100, "cudaErrorNoDevice", "cudaGetDeviceCount", "try this")
TRACE = cp.TraceError(17, "size is no number")


@pytest.mark.parametrize("error, base", [(OUT_OF_MEMORY, MemoryError), (CUDA, RuntimeError),
                                         (UNAVAILABLE, cp.CudaError), (cp.InvalidPointerError("x"), ValueError),
                                         (TRACE, ValueError)])
def test_bases(error, base):
    assert isinstance(error, base)


def test_out_of_memory():
    error = OUT_OF_MEMORY
    assert (error.requested, error.free, error.largest_free, error.reserved, error.capacity) == (
        3 << 30, 2 << 30, 1 << 30, 4 << 30, 5 << 30)
    assert str(error) == (
        "out of memory: requested 3221225472 bytes (3.00 GiB), free 2147483648 bytes (2.00 GiB), "
        "largest free 1073741824 bytes (1.00 GiB), reserved 4294967296 bytes (4.00 GiB), "
        "capacity 5368709120 bytes (5.00 GiB)")


def test_out_of_memory_of_a_size_that_python_does_not_write():
    error = cp.OutOfMemoryError(10**5000, 1, 1, 2, 3)
    assert str(error).startswith("out of memory: requested more than 2**64 bytes, free 1 bytes (1 B), ")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert "requested 18446744073709551616 bytes" in str(cp.OutOfMemoryError(1 << 64, 1, 1, 2, 3))


def test_cuda_error():
    assert (CUDA.code, CUDA.name, CUDA.call) == (2, "cudaErrorMemoryAllocation", "cudaMalloc")
    assert str(CUDA) == "cudaMalloc failed: cudaErrorMemoryAllocation (2)"
    assert str(UNAVAILABLE) == "cudaGetDeviceCount failed: cudaErrorNoDevice (100); try this"


def test_trace_error():
    assert (TRACE.row, TRACE.reason, str(TRACE)) == (17, "size is no number", "row 17: size is no number")


@pytest.mark.parametrize("error", [OUT_OF_MEMORY, CUDA, UNAVAILABLE, TRACE])
def test_pickle(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and str(copy) == str(error) and vars(copy) == vars(error)


def test_no_device_names_the_simulator():
    from cuda_pool import _cuda

    if _cuda.info()["devices"]:
        pytest.skip("there is a real device")
    with pytest.raises(cp.DeviceUnavailableError, match=r"cp\.sim\.Device"):
        cp.Pool("1MiB")
