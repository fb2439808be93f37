"""Streams as Python names them."""

import numpy as np
import pytest

import cuda_pool as cp


class Protocol:
    """An object with __cuda_stream__ as a method."""

    def __init__(self, answer):
        self.answer = answer

    def __cuda_stream__(self):
        return self.answer


class Property:
    """An older one, with a property."""

    def __init__(self, answer):
        self.__cuda_stream__ = answer


@pytest.fixture
def device(make_device):
    return make_device()


@pytest.fixture
def waited(device):
    """Function from a stream to the handle that the driver is asked to wait for."""
    pool = cp.Pool("1MiB", device=device)

    def handle(stream):
        device.clear_log()
        pool.free_async(pool.alloc(100, stream), stream)
        pool.forget_stream(stream)
        return next(args[0] for name, args, _ in device.log if name == "cudaStreamSynchronize")

    return handle


@pytest.mark.parametrize("stream", [0, 1, 2, np.uint64(2), Protocol((0, 0)), Protocol([0, 1]), Property((0, 2)),
                                    Protocol((0, np.int64(2)))], ids=str)
def test_default_streams(waited, stream):
    handle = stream if not hasattr(stream, "__cuda_stream__") else answer_of(stream)[1]
    assert waited(stream) == handle


@pytest.mark.parametrize("wrap", [
    int, np.uint64, lambda handle: Protocol((0, handle)), lambda handle: Protocol([0, np.uint64(handle)]),
    lambda handle: Property((0, handle))], ids=["int", "uint64", "method", "list", "property"])
def test_handles(waited, device, wrap):
    first, second = device.stream(), device.stream()
    for stream in (first, second, first):
        assert waited(wrap(stream.handle)) == stream.handle
    assert waited(second) == second.handle


@pytest.mark.parametrize("wrap", [int, lambda handle: Protocol((0, handle))], ids=["int", "object"])
@pytest.mark.parametrize("handle", [77, (1 << 64) - 1])
def test_handles_of_no_stream(make_device, wrap, handle):
    """The driver is asked before anything is freed in the order of a stream that it may not know."""
    pool = cp.Pool("1MiB", device=make_device(misuse=True))
    ptr = pool.alloc(100)
    with pytest.raises(cp.CudaError, match="cudaStreamGetId") as caught:
        pool.free_async(ptr, wrap(handle))
    assert caught.value.code == 400
    assert pool.owns(ptr) and pool.stats().pending == 0
    pool.free(ptr)
    pool.check()


def answer_of(stream):
    answer = stream.__cuda_stream__
    return answer() if callable(answer) else answer


@pytest.mark.parametrize("stream", [None, "0", 1.5, True, [0], Protocol((0, None)), Protocol((0, "1")),
                                    Protocol((0, True)), Protocol(None), Protocol(5), Protocol((0, 1, 2)),
                                    Property(())])
def test_wrong_types(waited, stream):
    with pytest.raises(TypeError, match="a stream is|__cuda_stream__ of"):
        waited(stream)


@pytest.mark.parametrize("stream", [-1, 1 << 64, Protocol((0, -1)), Protocol((1, 5)), Protocol(("x", 5))])
def test_wrong_values(waited, stream):
    with pytest.raises(ValueError, match="a stream is|version"):
        waited(stream)


def test_error_of_the_protocol_comes_through(waited):
    class Broken:
        def __cuda_stream__(self):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        waited(Broken())
