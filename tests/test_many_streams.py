"""Streams beyond what a pool keeps apart, and events beyond what it counts."""

import pytest

import cuda_pool as cp
from cuda_pool import _testing

MIB = 1 << 20


@pytest.fixture
def device(make_device):
    return make_device("64MiB")


@pytest.mark.parametrize("by_object", [True, False], ids=["object", "handle"])
def test_more_streams_than_a_pool_keeps_apart(device, by_object):
    """All of them have frees pending; each block is written by one stream after another."""
    streams = [device.stream(blocking=False) for _ in range(600)]
    with cp.Pool("1MiB", device=device) as pool:
        for turn, stream in enumerate(streams):
            name = stream if by_object else stream.handle
            ptr = pool.alloc(MIB // 4, name)
            stream.write(ptr, MIB // 4, turn % 251, ticks=3)
            read = stream.read(ptr, MIB // 4)
            pool.free_async(ptr, name)
            pool.check()
        device.synchronize()
        assert read.value == bytes([599 % 251]) * (MIB // 4)
        assert pool.alloc(MIB) and device.races == []


def test_idle_streams_give_their_place_back(device):
    with cp.Pool("1MiB", device=device) as pool:
        for _ in range(600):
            stream = device.stream()
            pool.free_async(pool.alloc(1000, stream), stream)
            pool.hold_stream(stream)
            pool.forget_stream(stream)
        for _ in range(600):
            stream = device.stream()
            pool.free(pool.alloc(1000, stream))
        assert device.calls["cudaDeviceSynchronize"] <= 10
        pool.hold_stream(device.stream())


def test_held_streams_are_refused_when_there_are_too_many(device):
    streams = [device.stream() for _ in range(300)]
    with cp.Pool("1MiB", device=device) as pool:
        with pytest.raises(RuntimeError, match="254"):
            for stream in streams:
                pool.hold_stream(stream)
        ptr = pool.alloc(MIB, streams[-1])
        streams[-1].work(10)
        pool.free_async(ptr, streams[-1])
        assert device.now == 10                 # there is no place to note the free down, so it waited
        pool.forget_stream(streams[0])
        pool.hold_stream(streams[-1])
        pool.check()


def test_batches_are_numbered_anew(device):
    """What is live, pending and held when that happens is ordered as ever."""
    one, two, three = (device.stream() for _ in range(3))
    with cp.Pool("8MiB", device=device) as pool:
        live = [pool.alloc(nbytes, one) for nbytes in (100, 5000, 100_000, 3 * MIB)]
        ptr = pool.alloc(100_000, one)
        one.write(ptr, 100_000, 1, ticks=10)
        found = one.read(ptr, 100_000)
        pool.free_async(ptr, one)
        again = pool.alloc(100_000, one)        # cut from memory that is pending
        _testing.skip_batches(pool, (1 << 30) + 5)
        other = pool.alloc(MIB, two)
        two.write(other, MIB, 2, ticks=50)
        pool.free_async(other, two)
        live.append(pool.alloc(1000, three))    # a stream that is seen for the first time: the driver is asked
        assert device.now >= 11 and found.value == b"\1" * 100_000
        pool.check()
        for block in (again, *live):
            pool.free(block)
        whole = pool.alloc(7 * MIB, three)
        three.write(whole, 7 * MIB, 3)
        pool.check()
        device.synchronize()
        assert device.races == []


def test_a_captured_stream_is_not_forgotten(device):
    stream = device.stream()
    with cp.Pool("1MiB", device=device) as pool:
        with pool.capture(stream) as capture:
            with pytest.raises(ValueError, match="captured"):
                pool.forget_stream(stream)
            with pytest.raises(ValueError, match="captured"), pool.capture(stream):
                pass
            ptr = pool.alloc(1000, stream)
        capture.release()
        pool.free(ptr)
        pool.forget_stream(stream)
        assert pool.stats().pending == 0
