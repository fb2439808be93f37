"""Buffers: owning a block, and lending it to arrays."""

import ctypes
import gc
import sys
import threading
import weakref

import numpy as np
import pytest

import cuda_pool as cp

KDL_CPU, KDL_CUDA = 1, 2


class Pool(cp.Pool):
    """A pool that can sit in a reference cycle."""


@pytest.fixture
def simulated(make_device):
    return make_device("64MiB")


@pytest.fixture
def pool(simulated):
    made = cp.Pool("1MiB", device=simulated)
    yield made
    made.check()
    made.close()


class Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class ManagedVersioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor)]


capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype, capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
capsule_rename = ctypes.pythonapi.PyCapsule_SetName
capsule_rename.argtypes = [ctypes.py_object, ctypes.c_char_p]

# A capsule borrows its name: these live as long as the module.
USED = {name: ctypes.create_string_buffer(b"used_" + name) for name in (b"dltensor", b"dltensor_versioned")}
KINDS = {b"dltensor": (None, Managed), b"dltensor_versioned": ((1, 0), ManagedVersioned)}


def consume(capsule, name, kind):
    """Do what a consumer does: take the tensor over, and call its deleter in the end."""
    managed = kind.from_address(capsule_pointer(capsule, name))
    capsule_rename(capsule, USED[name])
    return managed, lambda: ctypes.CFUNCTYPE(None, ctypes.c_void_p)(managed.deleter)(ctypes.addressof(managed))


# Owning

def test_attributes(device):
    with cp.Pool("1MiB", device=device) as pool:
        buffer = pool.buffer("3KiB")
        assert buffer.nbytes == len(buffer) == 3072 and not buffer.freed
        assert pool.owns(buffer.ptr) and pool.size_of(buffer.ptr) == 3072
        assert "3.00 KiB" in repr(buffer) and hex(buffer.ptr) in repr(buffer)


def test_free(device):
    with cp.Pool("1MiB", device=device) as pool:
        buffer = pool.buffer(1000)
        address = buffer.ptr
        buffer.free()
        assert buffer.freed and not pool.owns(address) and "freed" in repr(buffer)
        buffer.free()
        assert pool.stats().free_count == 1
        for use in (lambda: buffer.ptr, lambda: buffer.__cuda_array_interface__, buffer.__dlpack__, buffer.__enter__,
                    buffer.__dlpack_device__):
            with pytest.raises(cp.InvalidPointerError, match="the buffer is freed"):
                use()


def test_a_second_free_does_not_touch_the_next_owner(pool):
    buffer = pool.buffer(1000)
    buffer.free()
    other = pool.buffer(1000)
    buffer.free()
    del buffer
    assert pool.owns(other.ptr)


def test_with_block(device):
    with cp.Pool("1MiB", device=device) as pool:
        with pool.buffer(1000) as buffer:
            address = buffer.ptr
            device.memset(address, 5, 1000)
            assert device.read(address, 1000) == b"\5" * 1000
        assert buffer.freed and not pool.owns(address)
        with pytest.raises(KeyError), pool.buffer(1000) as buffer:
            raise KeyError
        assert buffer.freed and pool.stats().used == 0


def test_a_dropped_buffer_gives_its_block_back(device):
    with cp.Pool("1MiB", device=device) as pool:
        for _ in range(100):
            pool.buffer("900KiB")
        assert pool.stats().used == 0


def test_a_block_freed_behind_the_back_of_its_buffer(pool, monkeypatch):
    buffer = pool.buffer(1000)
    pool.free(buffer.ptr)
    with pytest.raises(cp.InvalidPointerError, match="already freed"):
        buffer.ptr
    with pytest.raises(cp.InvalidPointerError, match="already freed"):
        buffer.free()
    unraisable = []
    with monkeypatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda entry: unraisable.append(entry.exc_value))
        del buffer
    assert [type(error) for error in unraisable] == [cp.InvalidPointerError]
    pool.check()


def test_empty(pool):
    buffer = pool.buffer(0)
    assert (buffer.ptr, buffer.nbytes, pool.stats().alloc_count) == (0, 0, 0)
    assert buffer.__cuda_array_interface__["data"] == (0, False)
    assert np.from_dlpack(buffer).shape == (0,)
    buffer.free()
    assert buffer.freed and pool.stats().free_count == 0


@pytest.mark.parametrize("dropped", [False, True])
def test_goes_back_in_the_order_of_its_stream(simulated, dropped):
    pool = cp.Pool(256, device=simulated, size_classes=[256])           # of one slot
    own, other = simulated.stream(), simulated.stream()
    buffer = pool.buffer(200, own)
    address = buffer.ptr
    own.write(address, 200, 1, ticks=10)
    if dropped:
        del buffer
    else:
        buffer.free()
    simulated.clear_log()
    assert pool.alloc(200, own) == address and simulated.calls == {}
    pool.free_async(address, own)
    assert pool.alloc(200, other) == address
    assert [args[0] for name, args, _ in simulated.log if name == "cudaStreamWaitEvent"] == [other.handle]
    other.write(address, 200, 2)
    simulated.synchronize()


def test_a_free_that_fails_can_be_tried_again(simulated):
    pool = cp.Pool("1MiB", device=simulated, scrub=True)
    buffer = pool.buffer(1000)
    simulated.fail("cudaMemsetAsync", code="cudaErrorIllegalAddress")
    with pytest.raises(cp.CudaError):
        buffer.free()
    assert not buffer.freed and pool.owns(buffer.ptr)
    buffer.free()
    assert buffer.freed and pool.stats().used == 0


@pytest.mark.threads
def test_a_dropped_buffer_tells_that_its_block_did_not_go_back(simulated, monkeypatch):
    pool = cp.Pool("1MiB", device=simulated, scrub=True)
    buffer = pool.buffer(1000)
    simulated.fail("cudaMemsetAsync", code="cudaErrorIllegalAddress")
    unraisable = []
    with monkeypatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda entry: unraisable.append(str(entry.exc_value)))
        del buffer
    assert unraisable == ["cudaMemsetAsync failed: cudaErrorIllegalAddress (700)"]
    assert pool.stats().used > 0
    pool.check()


@pytest.mark.parametrize("scrub", [False, True])
def test_a_dropped_buffer_of_a_closed_pool_is_silent(simulated, monkeypatch, scrub):
    pool = cp.Pool("1MiB", device=simulated, scrub=scrub)
    buffer = pool.buffer(1000)
    pool.close()
    unraisable = []
    with monkeypatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda entry: unraisable.append(entry.exc_value))
        del buffer
    assert unraisable == []


@pytest.mark.parametrize("end", ["", "import os; child = os.fork(); (child and os.waitpid(child, 0))"])
def test_a_buffer_that_outlives_everything_is_silent(run_python, end):
    """At the interpreter's exit, and in a child process, where the pool is the parent's."""
    done = run_python(f"""
import cuda_pool as cp
device = cp.sim.Device("64MiB")
buffer = cp.Pool("1MiB", device=device, scrub=True).buffer(1000)
device.fail("cudaMemsetAsync", times=100)
{end}
""")
    assert (done.returncode, done.stderr) == (0, "")


def test_two_threads_free_one_buffer(simulated):
    """While the first waits for the driver, the second finds the buffer freed."""
    pool = cp.Pool("1MiB", device=simulated, scrub=True)
    simulated.delay("cudaMemsetAsync", 0.2)
    buffer = pool.buffer(1000)
    threads = [threading.Thread(target=buffer.free) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert buffer.freed and pool.stats().free_count == 1
    pool.check()


def test_out_of_memory_makes_no_buffer(pool):
    with pytest.raises(cp.OutOfMemoryError):
        pool.buffer("2MiB")
    assert pool.stats().used == 0


def test_buffers_are_made_by_pools():
    for buffer in (cp.Buffer(), cp.Buffer.__new__(cp.Buffer)):
        for use in (lambda: buffer.ptr, lambda: buffer.__dlpack__(stream=5), lambda: buffer.__cuda_array_interface__,
                    lambda: buffer.__enter__(), lambda: buffer.__dlpack_device__()):
            with pytest.raises(cp.InvalidPointerError, match="not made by Pool.buffer"):
                use()
        buffer.free()


# The pool's end

def test_closed_pool(simulated):
    pool = cp.Pool("1MiB", device=simulated)
    buffer, array = pool.buffer(1000), np.from_dlpack(other := pool.buffer(1000))
    pool.close()
    with pytest.raises(cp.InvalidPointerError, match="closed"):
        buffer.ptr
    with pytest.raises(cp.InvalidPointerError, match="closed"):
        buffer.__dlpack__()
    buffer.free()
    assert buffer.freed
    del array, other, buffer
    assert simulated.calls["cudaFree"] == 1


def test_a_buffer_keeps_its_pool_open(simulated):
    pool = cp.Pool("1MiB", device=simulated)
    buffer = pool.buffer(1000)
    gone = weakref.ref(pool)
    del pool
    gc.collect()
    assert gone() is not None
    simulated.write(buffer.ptr, b"x" * 1000)
    del buffer
    gc.collect()
    assert gone() is None and simulated.live == {}


# __cuda_array_interface__

@pytest.mark.parametrize("stream, shown", [(0, 1), (1, 1), (2, 2), (None, None)])
def test_cuda_array_interface(pool, simulated, stream, shown):
    """The default stream has handle 1 there; None is a stream that is made here."""
    if stream is None:
        stream = simulated.stream()
        shown = stream.handle
    buffer = pool.buffer(1000, stream)
    assert buffer.__cuda_array_interface__ == {
        "shape": (1000,), "typestr": "|u1", "strides": None, "version": 3, "data": (buffer.ptr, False),
        "stream": shown}


# DLPack

def test_numpy_sees_the_bytes(pool, simulated):
    buffer = pool.buffer(1000)
    array = np.from_dlpack(buffer)
    assert array.dtype == np.uint8 and array.shape == (1000,) and array.ctypes.data == buffer.ptr
    simulated.memset(buffer.ptr, 7, 1000)
    assert (array == 7).all()
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":         # before, numpy takes what DLPack gives as read-only
        array[3] = 9
        assert simulated.read(buffer.ptr, 5) == bytes([7, 7, 7, 9, 7])


def test_an_array_keeps_the_block(pool, simulated):
    buffer = pool.buffer(1000)
    address = buffer.ptr
    array = np.from_dlpack(buffer)
    view = array[10:20]
    del buffer, array
    gc.collect()
    assert pool.owns(address)
    simulated.memset(address, 1, 1000)
    assert (view == 1).all()
    del view
    gc.collect()
    assert not pool.owns(address)


def test_device(device):
    with cp.Pool("1MiB", device=device) as pool:
        expected = (KDL_CPU, 0) if device.is_simulated else (KDL_CUDA, device.ordinal)
        assert pool.buffer(10).__dlpack_device__() == expected


@pytest.mark.parametrize("name", KINDS)
def test_capsule(device, name):
    version, kind = KINDS[name]
    with cp.Pool("1MiB", device=device) as pool:
        buffer = pool.buffer(1000)
        address, expected = buffer.ptr, buffer.__dlpack_device__()
        capsule = buffer.__dlpack__(max_version=version)
        del buffer
        managed, finish = consume(capsule, name, kind)
        tensor = managed.tensor
        assert (tensor.data, tensor.ndim, tensor.shape[0], tensor.strides[0], tensor.byte_offset) == (
            address, 1, 1000, 1, 0)
        assert (tensor.device_type, tensor.device_id) == expected
        assert (tensor.code, tensor.bits, tensor.lanes) == (1, 8, 1)
        if version:
            assert (managed.major, managed.minor, managed.flags) == (1, 0, 0)
        del capsule
        gc.collect()
        assert pool.owns(address)
        finish()
        assert not pool.owns(address)


@pytest.mark.parametrize("name", KINDS)
def test_capsule_that_nobody_consumes(pool, name):
    buffer = pool.buffer(1000)
    address, capsule = buffer.ptr, buffer.__dlpack__(max_version=KINDS[name][0])
    del buffer
    assert pool.owns(address) and name.decode() in repr(capsule)
    del capsule
    assert not pool.owns(address)


@pytest.mark.untraced
@pytest.mark.parametrize("name", KINDS)
def test_export_without_host_memory_keeps_nothing(pool, name):
    """Every allocation of the interpreter fails in turn, that of the capsule among them."""
    testcapi = pytest.importorskip("_testcapi")
    version, failures = KINDS[name][0], 0
    buffer = pool.buffer(1000)
    export = buffer.__dlpack__
    export(max_version=version)
    before = sys.getrefcount(buffer)
    for start in range(30):
        try:
            testcapi.set_nomemory(start, start + 1)
            try:
                export(max_version=version)
            finally:
                testcapi.remove_mem_hooks()
        except MemoryError:
            failures += 1
    assert failures > 1
    assert sys.getrefcount(buffer) == before
    address = buffer.ptr
    del export, buffer
    assert not pool.owns(address)


@pytest.mark.parametrize("name", KINDS)
def test_deleter_called_by_a_thread_without_the_gil(pool, name):
    version, kind = KINDS[name]
    buffer = pool.buffer(1000)
    address = buffer.ptr
    _, finish = consume(buffer.__dlpack__(max_version=version), name, kind)
    del buffer
    thread = threading.Thread(target=finish)        # ctypes releases the GIL around the call
    thread.start()
    thread.join()
    assert not pool.owns(address)


@pytest.mark.parametrize("version, name", [(None, "dltensor"), ((0, 8), "dltensor"), ((1, 0), "dltensor_versioned"),
                                           ((1, 3), "dltensor_versioned"), ((2, 0), "dltensor_versioned")])
def test_version(pool, version, name):
    assert f'"{name}"' in repr(pool.buffer(1).__dlpack__(max_version=version))


def test_what_it_does_not_export(pool):
    buffer = pool.buffer(10)
    with pytest.raises(BufferError, match="cannot be exported to"):
        buffer.__dlpack__(dl_device=(99, 0))
    with pytest.raises(BufferError, match="copy"):
        buffer.__dlpack__(copy=True)
    buffer.__dlpack__(dl_device=buffer.__dlpack_device__(), copy=False)
    with pytest.raises(TypeError, match="a stream is"):
        buffer.__dlpack__(stream="5")


@pytest.mark.parametrize("own, consumer, waited", [
    (0, None, []), (1, None, []), (0, 1, []), (0, 0, []), (5, 5, []), (5, -1, []), (0, -1, []), (5, None, [5]),
    (5, 1, [5]), (0, 5, [0]), (2, 1, [2]), (5, 6, [5])])
def test_stream_of_the_consumer(pool, simulated, own, consumer, waited):
    """The consumer's stream comes after the buffer's; None is the legacy default stream, 5 and 6 are streams made."""
    made = {5: simulated.stream(), 6: simulated.stream()}
    handles = {number: stream.handle for number, stream in made.items()}
    buffer = pool.buffer(10, handles.get(own, own))
    simulated.clear_log()
    buffer.__dlpack__(stream=handles.get(consumer, consumer))
    assert [args[0] for name, args, _ in simulated.log if name == "cudaStreamSynchronize"] == [
        handles.get(stream, stream) for stream in waited]
    buffer.free()


def test_a_wait_that_fails_exports_nothing(pool, simulated):
    stream = simulated.stream()
    buffer = pool.buffer(10, stream)
    address = buffer.ptr
    simulated.fail("cudaStreamSynchronize", code="cudaErrorIllegalAddress")
    with pytest.raises(cp.CudaError):
        buffer.__dlpack__(stream=1)
    assert pool.owns(address)
    del buffer
    assert not pool.owns(address)


# Cycles

def test_a_pool_in_a_cycle(simulated):
    pool = Pool("1MiB", device=simulated)
    pool.itself, pool.buffers = pool, [pool.buffer(1000) for _ in range(10)]
    gone = weakref.ref(pool)
    del pool
    gc.collect()
    assert gone() is None and simulated.calls["cudaFree"] == 1 and simulated.live == {}


def test_an_array_in_a_cycle(simulated):
    pool = Pool("1MiB", device=simulated)
    pool.array = np.from_dlpack(pool.buffer(1000))
    pool.capsules = [pool.buffer(10).__dlpack__(), pool.buffer(10).__dlpack__(max_version=(1, 0))]
    gone = weakref.ref(pool)
    del pool
    gc.collect()
    # numpy's arrays and capsules take no part in the search for cycles: the cycle stays, its memory too.
    assert gone() is not None
    gone().array = gone().capsules = None
    gc.collect()
    assert gone() is None and simulated.live == {}
