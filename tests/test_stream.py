"""Streams as Python names them."""

import contextlib

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
def waited(make_device):
    """Function from a stream to the handle that the driver is asked to wait for."""
    device = make_device(misuse=True)
    pool = cp.Pool("1MiB", device=device)

    def handle(stream):
        device.clear_log()
        with contextlib.suppress(cp.CudaError):         # the driver knows only the default streams
            pool.free_async(pool.alloc(100), stream)    # waits where the stream cannot be noted
            pool.forget_stream(stream)
        return next(args[0] for name, args, _ in device.log if name == "cudaStreamSynchronize")

    return handle


@pytest.mark.parametrize("stream, handle", [
    (0, 0), (1, 0), (2, 2), ((1 << 64) - 1, (1 << 64) - 1), (0x7F00_1234_5678, 0x7F00_1234_5678), (np.uint64(77), 77),
    (Protocol((0, 99)), 99), (Protocol([0, 5]), 5), (Property((0, 98)), 98), (Protocol((0, np.int64(3))), 3),
])
def test_handles(waited, stream, handle):
    assert waited(stream) == handle


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
