"""Streams of the simulated device: virtual time, order, events, default streams, host functions, capture."""

import ctypes
import gc
import itertools
import threading
import time

import pytest

from cuda_pool import sim
from cuda_pool.errors import CudaError

SUCCESS, INVALID_VALUE, INVALID_DEVICE, BAD_HANDLE, NOT_READY = 0, 1, 101, 400, 600
ILLEGAL_ADDRESS, NOT_PERMITTED, NOT_SUPPORTED = 700, 800, 801
UNSUPPORTED, INVALIDATED, MERGE, UNMATCHED, UNJOINED = range(900, 905)
ISOLATION, IMPLICIT, CAPTURED_EVENT, WRONG_THREAD = range(905, 909)
TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
SEEDS = [None, 0, 1, 2, 3]


@pytest.fixture
def current(make_device):
    """A device that is current in this thread."""
    device = make_device()
    sim.set_current_device(device)
    return device


@pytest.fixture
def misused(make_device):
    """The same, for a test that misuses it."""
    device = make_device(misuse=True)
    sim.set_current_device(device)
    return device


def in_thread(function):
    """Run a function in a thread of its own and return what it returns."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


# --- virtual time -------------------------------------------------------------------------------------------------

def test_work_takes_its_ticks(current):
    stream = current.stream()
    stream.work(10)
    assert (current.now, current.pending, stream.query()) == (0, 1, False)
    current.advance(9)
    assert (current.now, current.pending, stream.query()) == (9, 1, False)
    current.advance(1)
    assert (current.now, current.pending, stream.query()) == (10, 0, True)


def test_one_stream_is_in_order(current):
    stream = current.stream()
    ptr = current.malloc(4)
    stream.write(ptr, 4, 1, ticks=5)
    first = stream.read(ptr, 4, ticks=5)
    stream.write(ptr, 4, 2, ticks=5)
    second = stream.read(ptr, 2)
    current.advance(10)
    assert first.value == b"\1\1\1\1"
    assert not second.done
    with pytest.raises(RuntimeError, match="advance"):
        second.value
    current.advance(6)
    assert second.value == b"\2\2"


def test_data_moves_when_the_operation_runs_not_when_it_is_queued(current):
    stream = current.stream()
    ptr = current.malloc(4)
    stream.write(ptr, 4, 7, ticks=3)
    assert ctypes.string_at(ptr, 4) == b"\0\0\0\0"
    current.advance(2)
    assert ctypes.string_at(ptr, 4) == b"\0\0\0\0"
    current.advance(1)
    assert ctypes.string_at(ptr, 4) == b"\7\7\7\7"


def test_streams_run_side_by_side(current):
    slow, fast = current.stream(), current.stream()
    slow.work(100)
    fast.work(1)
    current.advance(1)
    assert fast.query() and not slow.query()
    slow.synchronize()
    assert current.now == 100


def test_synchronize_lets_time_pass_for_all(current):
    streams = [current.stream() for _ in range(4)]
    for ticks, stream in enumerate(streams, 1):
        stream.work(10 * ticks)
    streams[1].synchronize()
    assert (current.now, [stream.query() for stream in streams]) == (20, [True, True, False, False])
    current.synchronize()
    assert (current.now, current.pending) == (40, 0)


def test_a_wait_is_for_what_is_queued_by_then(current, raw):
    """Work that another thread queues while one waits is not waited for."""
    stream = current.stream()
    stream.work(5)
    called = []

    @HOST_FUNCTION
    def function(_):
        def queue():
            stream.work(1000)
            called.append(True)
        thread = threading.Thread(target=queue)
        thread.start()
        thread.join()

    calls = raw(current)
    assert calls.cudaLaunchHostFunc(stream.handle, ctypes.cast(function, ctypes.c_void_p), None) == SUCCESS
    stream.synchronize()
    assert called == [True]
    assert (current.now, current.pending) == (5, 1)


def test_operations_that_take_no_time_are_done_at_once_unless_something_is_before_them(current, raw):
    calls, stream, ptr = raw(current), current.stream(), current.malloc(8)
    assert calls.cudaMemsetAsync(ptr, 1, 8, stream.handle) == SUCCESS
    assert ctypes.string_at(ptr, 8) == b"\1" * 8
    stream.work(3)
    assert calls.cudaMemsetAsync(ptr, 2, 8, stream.handle) == SUCCESS
    assert ctypes.string_at(ptr, 8) == b"\1" * 8
    current.advance(3)
    assert ctypes.string_at(ptr, 8) == b"\2" * 8


@pytest.mark.parametrize("ticks, error", [(-1, ValueError), ((1 << 40) + 1, ValueError), (1.5, TypeError)])
def test_ticks_out_of_range(current, ticks, error):
    with pytest.raises(error):
        current.stream().work(ticks)
    with pytest.raises(error):
        current.advance(ticks)


def test_time_does_not_run_over(current):
    stream = current.stream()
    for _ in range(1 << 12):
        stream.work(1 << 40)
    stream.synchronize()
    assert current.now == 1 << 52
    with pytest.raises(ValueError, match="0 to 255"):
        stream.write(0, 1, 256)


# --- order: a seed picks it, nothing breaks it ------------------------------------------------------------------------

def finishing_order(make_device, seed):
    """Return the order in which six streams' writes to a byte of their own are first seen."""
    device = make_device(seed=seed)
    ptr = device.malloc(6)
    streams = [device.stream() for _ in range(6)]
    for i, stream in enumerate(streams):
        stream.write(ptr + i, 1, 1, ticks=4)
    seen = []
    while device.pending:
        device.advance(1)
        seen += [i for i in range(6) if ctypes.string_at(ptr + i, 1) == b"\1" and i not in seen]
    return tuple(seen)


def test_seed_picks_the_order(make_device):
    assert finishing_order(make_device, None) == (0, 1, 2, 3, 4, 5)
    orders = [finishing_order(make_device, seed) for seed in range(20)]
    assert len(set(orders)) > 10
    assert orders == [finishing_order(make_device, seed) for seed in range(20)]


def test_every_order_of_two_streams_occurs(make_device):
    """Ten ticks queued first do not always come first or last beside one tick."""
    outcomes = set()
    for seed in range(60):
        device = make_device(seed=seed, races=True)
        ptr = device.malloc(1)
        long, short = device.stream(), device.stream()
        long.write(ptr, 1, 1, ticks=10)
        short.write(ptr, 1, 2, ticks=1)
        device.synchronize()
        outcomes.add(device.read(ptr, 1))
    assert outcomes == {b"\1", b"\2"}


@pytest.mark.parametrize("seed", range(30))
def test_no_seed_breaks_the_order_that_events_give(make_device, seed):
    device = make_device(seed=seed)
    ptr = device.malloc(1)
    streams = [device.stream(blocking=False) for _ in range(4)]
    for value, (before, after) in enumerate(zip(streams, streams[1:]), 1):
        before.write(ptr, 1, value, ticks=value)
        after.wait(before.record())
    found = streams[-1].read(ptr, 1)
    device.synchronize()
    assert found.value == b"\3"


def test_ties_without_a_seed_go_by_the_order_of_the_calls(make_device):
    device = make_device(races=True)
    ptr = device.malloc(1)
    first, second = device.stream(), device.stream()
    second.write(ptr, 1, 1, ticks=5)
    first.write(ptr, 1, 2, ticks=5)
    device.synchronize()
    assert device.read(ptr, 1) == b"\2"


# --- events -------------------------------------------------------------------------------------------------------

def test_event_is_complete_when_the_work_before_it_is(current):
    stream = current.stream()
    stream.work(10)
    event = stream.record()
    stream.work(10)
    current.advance(9)
    assert not event.query()
    current.advance(1)
    assert event.query() and not stream.query()


def test_event_that_was_never_recorded(current):
    event, stream = current.event(), current.stream()
    assert event.query()
    event.synchronize()
    stream.wait(event)
    assert stream.query()


def test_event_synchronize(current):
    slow, fast = current.stream(), current.stream()
    slow.work(100)
    fast.work(3)
    event = fast.record()
    event.synchronize()
    assert current.now == 3 and not slow.query()


def test_event_recorded_again_stands_for_the_later_work(current):
    stream, other = current.stream(), current.stream()
    event = current.event()
    stream.work(1)
    event.record(stream)
    other.wait(event)
    stream.work(9)
    event.record(stream)
    current.advance(1)
    assert other.query() and not event.query()      # `other` waits for what the event was when it was told to wait
    current.advance(9)
    assert event.query()


def test_a_wait_holds_back_only_later_work(current):
    slow, waiting = current.stream(), current.stream()
    slow.work(10)
    waiting.work(2)
    waiting.wait(slow)
    waiting.work(1)
    current.advance(2)
    assert current.pending == 2
    assert not waiting.query()
    current.advance(9)
    assert waiting.query() and current.now == 11


def test_a_stream_with_nothing_but_a_wait_is_not_ready(current):
    slow, waiting = current.stream(), current.stream()
    slow.work(10)
    waiting.wait(slow)
    assert not waiting.query()
    waiting.synchronize()
    assert current.now == 10


def test_waits_are_transitive(current):
    a, b, c = (current.stream(blocking=False) for _ in range(3))
    a.work(10)
    b.wait(a)
    c.wait(b)
    c.work(1)
    current.advance(10)
    assert a.query() and b.query() and not c.query()


def test_destroyed_event_is_still_waited_for(current):
    slow, waiting = current.stream(), current.stream()
    slow.work(10)
    event = slow.record()
    waiting.wait(event)
    event.destroy()
    waiting.work(1)
    current.advance(10)
    assert not waiting.query()


def test_wait_wants_an_event_or_a_stream(current):
    with pytest.raises(TypeError, match="an Event or a Stream"):
        current.stream().wait(5)


# --- default streams ------------------------------------------------------------------------------------------------

def test_legacy_default_stream_orders_with_blocking_streams(current):
    legacy = current.default_stream()
    blocking, free = current.stream(), current.stream(blocking=False)
    blocking.work(10)
    legacy.work(5)
    blocking.work(1)
    free.work(1)
    current.advance(1)
    assert free.query()
    current.advance(13)
    assert current.pending == 2
    current.advance(1)
    assert current.pending == 1 and legacy.query() is False
    current.advance(1)
    assert current.pending == 0 and legacy.query()


def test_legacy_default_stream_ignores_non_blocking_streams(current):
    legacy, free = current.default_stream(), current.stream(blocking=False)
    free.work(100)
    legacy.work(1)
    legacy.synchronize()
    assert current.now == 1


def test_event_on_the_legacy_default_stream_stands_for_blocking_streams(current):
    blocking = current.stream()
    blocking.work(10)
    event = current.default_stream().record()
    assert not event.query()
    current.advance(10)
    assert event.query()


def test_blocking_streams_do_not_wait_for_each_other(current):
    a, b = current.stream(), current.stream()
    a.work(10)
    b.work(1)
    current.advance(1)
    assert b.query() and not a.query()


@pytest.mark.parametrize("handle", [0, 1])
def test_handles_of_the_legacy_default_stream(current, raw, handle):
    calls, stream, ptr = raw(current), current.stream(), current.malloc(1)
    stream.work(10)
    assert calls.cudaMemsetAsync(ptr, 1, 1, handle) == SUCCESS
    assert ctypes.string_at(ptr, 1) == b"\0"
    assert calls.cudaStreamSynchronize(handle) == SUCCESS
    assert ctypes.string_at(ptr, 1) == b"\1" and current.now == 10


def stream_id(raw, device, handle):
    number = ctypes.c_ulonglong()
    assert raw(device).cudaStreamGetId(handle, ctypes.byref(number)) == SUCCESS
    return number.value


def test_per_thread_default_stream(current, raw):
    mine = current.default_stream(per_thread=True)
    mine.work(10)

    def elsewhere():
        sim.set_current_device(current)
        mine.work(1)
        current.advance(1)
        return mine.id, mine.query()

    other_id, ready = in_thread(elsewhere)
    assert ready and not mine.query()
    assert len({other_id, mine.id, stream_id(raw, current, 0)}) == 3
    assert stream_id(raw, current, 0) == stream_id(raw, current, 1) == current.default_stream().id


def test_per_thread_default_stream_orders_with_the_legacy_one(current):
    current.default_stream().work(10)
    mine = current.default_stream(per_thread=True)
    mine.work(1)
    mine.synchronize()
    assert current.now == 11


def test_per_thread_default_streams_end_with_their_threads(current):
    ids = set()
    for _ in range(200):
        ids.add(in_thread(lambda: (current.default_stream(per_thread=True).work(1),
                                   current.default_stream(per_thread=True).id)[1]))
        current.synchronize()
    assert len(ids) == 200
    current.check()


def test_work_of_a_thread_that_ended_still_runs(current):
    ptr = current.malloc(1)
    in_thread(lambda: current.default_stream(per_thread=True).write(ptr, 1, 5, ticks=10))
    current.synchronize()
    assert current.read(ptr, 1) == b"\5"


# --- handles, ids, destruction ----------------------------------------------------------------------------------------

def test_handles_are_reused_but_ids_never_are(current, raw):
    calls = raw(current)
    seen, handles = set(), set()
    for _ in range(500):
        status, handle = calls.stream()
        assert status == SUCCESS
        seen.add(stream_id(raw, current, handle))
        handles.add(handle)
        assert calls.cudaStreamDestroy(handle) == SUCCESS
    assert len(handles) == 1 and len(seen) == 500


def test_handles_are_unique_among_devices(make_device):
    devices = [make_device(ordinal=i) for i in range(3)]
    streams = [device.stream() for device in devices for _ in range(100)]
    assert len({stream.handle for stream in streams}) == len({stream.id for stream in streams}) == 300


def test_destroyed_stream_finishes_its_work_and_its_successor_does_not_wait_for_it(current):
    ptr = current.malloc(2)
    old = current.stream()
    old.write(ptr, 1, 1, ticks=10)
    handle, old_id = old.handle, old.id
    old.destroy()
    new = current.stream()
    assert new.handle == handle and new.id != old_id
    new.write(ptr + 1, 1, 2, ticks=1)
    current.advance(1)
    assert ctypes.string_at(ptr, 2) == b"\0\2" and new.query()
    current.advance(9)
    assert ctypes.string_at(ptr, 2) == b"\1\2"


def test_stream_goes_with_its_last_reference(current, raw):
    calls, stream = raw(current), current.stream()
    handle = stream.handle
    del stream
    gc.collect()
    assert calls.stream() == (SUCCESS, handle)


def test_destroyed_stream_is_reported(misused, raw):
    calls = raw(misused)
    stream, event, ptr = misused.stream(), misused.event(), misused.malloc(4)
    handle = stream.handle
    stream.destroy()
    uses = {
        "cudaMemsetAsync": lambda: calls.cudaMemsetAsync(ptr, 1, 4, handle),
        "cudaMemcpyAsync": lambda: calls.cudaMemcpyAsync(ptr, ptr, 4, ON_DEVICE, handle),
        "cudaStreamSynchronize": lambda: calls.cudaStreamSynchronize(handle),
        "cudaStreamQuery": lambda: calls.cudaStreamQuery(handle),
        "cudaStreamWaitEvent": lambda: calls.cudaStreamWaitEvent(handle, event.handle, 0),
        "cudaEventRecord": lambda: calls.cudaEventRecord(event.handle, handle),
        "cudaStreamDestroy": lambda: calls.cudaStreamDestroy(handle),
        "cudaStreamIsCapturing": lambda: calls.capturing(handle)[0],
        "cudaStreamBeginCapture": lambda: calls.cudaStreamBeginCapture(handle, 0),
        "cudaFreeAsync": lambda: calls.cudaFreeAsync(ptr, handle),
        "cudaMallocAsync": lambda: calls.cudaMallocAsync(ctypes.byref(ctypes.c_void_p()), 4, handle),
    }
    for count, (name, use) in enumerate(uses.items(), 1):
        assert use() == BAD_HANDLE
        assert len(misused.errors) == count
        assert misused.errors[-1] == f"{name}: {handle:#x} with device 0 current: the stream was destroyed"
    for use in (lambda: stream.work(1), stream.query, stream.record, stream.destroy, stream.synchronize):
        with pytest.raises(CudaError, match="cudaErrorInvalidResourceHandle"):
            use()
    assert len(misused.errors) == len(uses) + 5
    assert misused.live == {ptr: 4}


def test_python_stream_that_was_destroyed_is_told_from_its_successor(misused):
    old = misused.stream()
    old.destroy()
    new = misused.stream()
    assert new.handle == old.handle
    with pytest.raises(CudaError, match="cudaErrorInvalidResourceHandle"):
        old.work(1)
    assert "work: " in misused.errors[0] and "destroyed" in misused.errors[0]
    del old
    new.work(1)


@pytest.mark.parametrize("handle", [3, 5, 0x1234, 2**64 - 1])
def test_handle_that_no_stream_ever_had(misused, raw, handle):
    assert raw(misused).cudaStreamSynchronize(handle) == BAD_HANDLE
    assert misused.errors == [f"cudaStreamSynchronize: {handle:#x} with device 0 current: no stream has this handle"]


def test_destroyed_event_is_reported(misused, raw):
    calls, stream = raw(misused), misused.stream()
    event = misused.event()
    handle = event.handle
    event.destroy()
    for name, use in [("cudaEventQuery", lambda: calls.cudaEventQuery(handle)),
                      ("cudaEventRecord", lambda: calls.cudaEventRecord(handle, stream.handle)),
                      ("cudaEventSynchronize", lambda: calls.cudaEventSynchronize(handle)),
                      ("cudaStreamWaitEvent", lambda: calls.cudaStreamWaitEvent(stream.handle, handle, 0)),
                      ("cudaEventDestroy", lambda: calls.cudaEventDestroy(handle))]:
        assert use() == BAD_HANDLE
        assert misused.errors[-1] == f"{name}: {handle:#x} with device 0 current: the event was destroyed"
    with pytest.raises(CudaError):
        event.query()
    with pytest.raises(CudaError):
        stream.wait(event)
    assert calls.cudaEventQuery(0xBAD) == BAD_HANDLE
    assert misused.errors[-1].endswith("no event has this handle")


@pytest.mark.parametrize("handle", [0, 1, 2])
def test_default_streams_cannot_be_destroyed(current, raw, handle):
    assert raw(current).cudaStreamDestroy(handle) == BAD_HANDLE
    with pytest.raises(CudaError):
        current.default_stream().destroy()
    current.default_stream().work(1)


def test_flags(current, raw):
    calls = raw(current)
    assert calls.stream(2)[0] == calls.event(8)[0] == INVALID_VALUE
    status, stream = calls.stream(1)
    assert status == SUCCESS
    assert calls.event(0)[0] == calls.event(3)[0] == SUCCESS
    assert calls.cudaStreamWaitEvent(stream, calls.event()[1], 2) == INVALID_VALUE


def test_calls_with_another_device_current(make_device, raw):
    mine, other = make_device(ordinal=0, misuse=True), make_device(ordinal=1, misuse=True)
    calls = raw(mine)
    stream, event, ptr = mine.stream(), mine.event(), other.malloc(4)
    sim.set_current_device(other)
    other.clear_log()
    mine.clear_log()
    assert calls.cudaMemsetAsync(ptr, 0, 4, stream.handle) == BAD_HANDLE
    assert other.errors == [
        f"cudaMemsetAsync: {stream.handle:#x} with device 1 current: the stream belongs to device 0"]
    assert calls.cudaEventRecord(event.handle, other.stream().handle) == BAD_HANDLE
    assert "the event belongs to device 0" in other.errors[-1]
    # These may be asked from anywhere, and are recorded where the stream or the event is.
    assert calls.cudaStreamQuery(stream.handle) == calls.cudaStreamSynchronize(stream.handle) == SUCCESS
    assert calls.cudaEventQuery(event.handle) == SUCCESS
    assert calls.cudaStreamWaitEvent(other.stream().handle, event.handle, 0) == NOT_SUPPORTED
    assert mine.log == [("cudaStreamQuery", (stream.handle,), 1), ("cudaStreamSynchronize", (stream.handle,), 1),
                        ("cudaEventQuery", (event.handle,), 1)]
    assert mine.errors == []


def test_calls_with_no_device_current(make_device, raw):
    calls = raw(make_device())
    for use in (calls.cudaStreamQuery, calls.cudaStreamSynchronize, calls.cudaStreamDestroy):
        assert use(0) == use(2) == INVALID_DEVICE
    assert calls.stream() == calls.event() == (INVALID_DEVICE, 0)


def test_closed_device_takes_its_streams_and_events_along(raw):
    device, other = sim.Device("1MiB"), sim.Device("1MiB")
    calls = raw(device)
    stream, event = device.stream(), device.event()
    stream.work(10)
    event.record(stream)
    device.close()
    sim.set_current_device(other)
    assert calls.cudaStreamSynchronize(stream.handle) == calls.cudaEventQuery(event.handle) == BAD_HANDLE
    for use in (stream.query, event.query, stream.destroy, device.stream, device.event, lambda: device.advance(1)):
        with pytest.raises(CudaError, match="cudaErrorInvalidDevice"):
            use()
    assert (device.pending, device.races) == (0, [])
    device.check()
    del stream, event
    sim.set_current_device(None)


# --- memory and queued work -----------------------------------------------------------------------------------------

def test_queued_work_on_freed_memory_is_reported_when_it_runs(misused, raw):
    calls, stream, other = raw(misused), misused.stream(), misused.stream()
    ptr = misused.malloc(100)
    stream.work(10)
    stream.write(ptr, 100, 1)
    read = stream.read(ptr + 10, 20)
    assert calls.cudaFreeAsync(ptr, other.handle) == SUCCESS       # nothing orders this after the write
    assert misused.live == {} and misused.errors == []
    current_id = stream.id
    misused.advance(12)
    freed = "the memory that it was queued for has been freed"
    assert misused.errors == [f"write: {ptr:#x} of 100 bytes on stream {current_id} at tick 11: {freed}",
                              f"read: {ptr + 10:#x} of 20 bytes on stream {current_id} at tick 12: {freed}"]
    assert not read.done
    assert calls.cudaStreamQuery(stream.handle) == ILLEGAL_ADDRESS
    assert calls.cudaStreamQuery(stream.handle) == SUCCESS


def test_other_memory_at_the_address_is_not_the_memory_that_was_meant(misused, raw):
    calls, stream = raw(misused), misused.stream()
    for _ in range(100):
        ptr = misused.malloc(4096)
        stream.work(10)
        stream.write(ptr, 1, 1)
        assert calls.cudaFreeAsync(ptr, 0x2) == SUCCESS
        again = misused.malloc(4096)
        misused.advance(100)
        assert ctypes.string_at(again, 1) == b"\0"
        assert "has been freed" in misused.errors[-1]
        calls.cudaDeviceSynchronize()
        misused.free(again)
        if again == ptr:
            return
    pytest.skip("the system never mapped the same address again")


def test_kernels_on_memory_that_is_not_there(misused):
    stream, ptr = misused.stream(), misused.malloc(100)
    stream.write(ptr + 90, 11, 1)
    stream.write(1, 1, 1)
    with pytest.raises(CudaError, match="cudaErrorIllegalAddress"):
        misused.synchronize()
    assert "runs over the end of the allocation" in misused.errors[0]
    assert "nothing is allocated there" in misused.errors[1] and len(misused.errors) == 2


def test_cudafree_waits_for_the_device(current):
    stream, ptr = current.stream(blocking=False), current.malloc(100)
    stream.write(ptr, 100, 1, ticks=10)
    current.free(ptr)
    assert (current.now, current.pending, current.live) == (10, 0, {})


def test_cudafree_of_a_wrong_address_waits_for_nothing(misused):
    misused.stream().work(10)
    with pytest.raises(CudaError):
        misused.free(12345)
    assert misused.now == 0


def test_free_async_keeps_to_the_order_of_its_stream(current, raw):
    calls, stream, ptr = raw(current), current.stream(), current.malloc(100)
    stream.write(ptr, 100, 1, ticks=10)
    assert calls.cudaFreeAsync(ptr, stream.handle) == SUCCESS
    current.advance(9)
    assert current.live == {ptr: 100}
    current.advance(1)
    assert current.live == {}


def test_free_async_twice(misused, raw):
    calls, stream, ptr = raw(misused), misused.stream(), misused.malloc(100)
    stream.work(10)
    assert calls.cudaFreeAsync(ptr, stream.handle) == SUCCESS
    assert calls.cudaFreeAsync(ptr, stream.handle) == INVALID_VALUE
    assert calls.cudaFree(ptr) == INVALID_VALUE     # after waiting for the first one
    assert misused.live == {} and len(misused.errors) == 2


def test_allocation_waits_for_queued_frees_when_it_needs_to(make_device, raw):
    device = make_device(1000)
    sim.set_current_device(device)
    calls, stream, ptr = raw(device), device.stream(), device.malloc(600)
    stream.work(10)
    calls.cudaFreeAsync(ptr, stream.handle)
    assert calls.malloc(400)[0] == SUCCESS and device.now == 0
    assert calls.malloc(600)[0] == SUCCESS and device.now == 10


def test_copy_from_host_memory_takes_the_bytes_at_the_call(current, raw):
    calls, stream, ptr = raw(current), current.stream(), current.malloc(4)
    host = ctypes.create_string_buffer(b"abcd", 4)
    stream.work(5)
    assert calls.cudaMemcpyAsync(ptr, ctypes.addressof(host), 4, TO_DEVICE, stream.handle) == SUCCESS
    host.raw = b"xxxx"
    assert current.now == 0
    current.synchronize()
    assert current.read(ptr, 4) == b"abcd"


def test_copy_to_host_memory_waits(current, raw):
    calls, stream, ptr = raw(current), current.stream(), current.malloc(4)
    host = ctypes.create_string_buffer(4)
    stream.write(ptr, 4, 9, ticks=5)
    assert calls.cudaMemcpyAsync(ctypes.addressof(host), ptr, 4, TO_HOST, stream.handle) == SUCCESS
    assert (host.raw, current.now) == (b"\t\t\t\t", 5)


def test_copy_on_the_device_is_queued(current, raw):
    calls, stream = raw(current), current.stream()
    a, b = current.malloc(4), current.malloc(4)
    stream.write(a, 4, 9, ticks=5)
    assert calls.cudaMemcpyAsync(b, a, 4, ON_DEVICE, stream.handle) == SUCCESS
    assert current.now == 0
    stream.synchronize()
    assert ctypes.string_at(b, 4) == b"\t\t\t\t"


def test_call_that_fails_queues_nothing(current, raw):
    calls, stream, ptr = raw(current), current.stream(), current.malloc(4)
    stream.work(1)
    event = current.event()
    for name, use in [("cudaMemsetAsync", lambda: calls.cudaMemsetAsync(ptr, 1, 4, stream.handle)),
                      ("cudaEventRecord", lambda: calls.cudaEventRecord(event.handle, stream.handle)),
                      ("cudaStreamCreateWithFlags", lambda: calls.stream()[0]),
                      ("cudaStreamDestroy", lambda: calls.cudaStreamDestroy(stream.handle)),
                      ("cudaFreeAsync", lambda: calls.cudaFreeAsync(ptr, stream.handle)),
                      ("cudaStreamSynchronize", lambda: calls.cudaStreamSynchronize(stream.handle))]:
        current.fail(name, code=999)
        assert use() == 999
    assert (current.pending, current.now, event.query()) == (1, 0, True)
    assert ctypes.string_at(ptr, 4) == b"\0" * 4
    stream.synchronize()


def test_helpers_are_not_counted_as_cuda_calls(current):
    current.clear_log()
    stream = current.stream()
    stream.work(1)
    stream.wait(stream.record())
    stream.synchronize()
    stream.query()
    stream.destroy()
    assert current.calls == {} and current.log == []


# --- host functions ---------------------------------------------------------------------------------------------------

def host_function(function):
    """Return what keeps the function alive, and its address."""
    made = HOST_FUNCTION(function)
    return made, ctypes.cast(made, ctypes.c_void_p)


def test_host_function_runs_in_its_place(current, raw):
    calls, stream, ptr = raw(current), current.stream(), current.malloc(1)
    seen = []
    keep, address = host_function(lambda argument: seen.append((argument, ctypes.string_at(ptr, 1))))
    stream.write(ptr, 1, 1, ticks=2)
    assert calls.cudaLaunchHostFunc(stream.handle, address, 77) == SUCCESS
    stream.write(ptr, 1, 2, ticks=2)
    current.advance(1)
    assert seen == []
    current.synchronize()
    assert seen == [(77, b"\1")]
    assert ctypes.string_at(ptr, 1) == b"\2"


def test_host_function_runs_only_when_time_passes(current, raw):
    calls, stream = raw(current), current.stream()
    seen = []
    keep, address = host_function(lambda _: seen.append(1))
    assert calls.cudaLaunchHostFunc(stream.handle, address, None) == SUCCESS
    assert calls.cudaStreamQuery(stream.handle) == NOT_READY and seen == []
    current.advance(0)
    assert calls.cudaStreamQuery(stream.handle) == SUCCESS and seen == [1]
    assert calls.cudaLaunchHostFunc(stream.handle, None, None) == INVALID_VALUE


def test_host_function_may_make_no_call(misused, raw):
    calls, stream = raw(misused), misused.stream()
    codes = []

    def function(_):
        codes.append(calls.cudaStreamQuery(stream.handle))
        codes.append(calls.malloc(1)[0])
        for use in (stream.query, lambda: misused.advance(1), lambda: stream.work(1)):
            with pytest.raises(CudaError, match="cudaErrorNotPermitted"):
                use()
            codes.append("raised")

    keep, address = host_function(function)
    calls.cudaLaunchHostFunc(stream.handle, address, None)
    stream.synchronize()
    assert codes == [NOT_PERMITTED, NOT_PERMITTED, "raised", "raised", "raised"]
    assert "a host function makes no CUDA call" in misused.errors[0]


def test_host_function_holds_no_lock(current, raw):
    """While it runs another thread uses the device, and waits for the stream that it is in."""
    calls, stream, other = raw(current), current.stream(), current.stream()
    entered, leave = threading.Event(), threading.Event()

    def function(_):
        entered.set()
        assert leave.wait(20)

    keep, address = host_function(function)
    calls.cudaLaunchHostFunc(stream.handle, address, None)
    waiting = threading.Thread(target=stream.synchronize)
    waiting.start()
    assert entered.wait(20)
    other.work(5)
    other.synchronize()
    assert current.now == 5 and not stream.query()
    also_waiting = threading.Thread(target=stream.synchronize)
    also_waiting.start()
    time.sleep(0.05)
    assert also_waiting.is_alive()
    leave.set()
    waiting.join(20)
    also_waiting.join(20)
    assert not waiting.is_alive() and not also_waiting.is_alive() and stream.query()


def test_device_closed_during_a_host_function(raw):
    device = sim.Device("1MiB")
    sim.set_current_device(device)
    calls, stream = raw(device), device.stream()
    entered, leave = threading.Event(), threading.Event()
    caught = []

    def function(_):
        entered.set()
        assert leave.wait(20)

    def wait():
        with pytest.raises(CudaError, match="cudaErrorInvalidDevice") as error:
            stream.synchronize()
        caught.append(error.value.code)

    keep, address = host_function(function)
    calls.cudaLaunchHostFunc(stream.handle, address, None)
    stream.work(5)
    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert entered.wait(20)
    device.close()
    leave.set()
    for thread in threads:
        thread.join(20)
    assert caught == [INVALID_DEVICE] * 2
    sim.set_current_device(None)


# --- capture ------------------------------------------------------------------------------------------------------

def test_captured_operations_run_when_the_graph_is_launched(current, raw):
    calls, stream, ptr = raw(current), current.stream(), current.malloc(4)
    assert calls.capturing(stream.handle) == (SUCCESS, 0)
    assert calls.cudaStreamBeginCapture(stream.handle, GLOBAL) == SUCCESS
    assert calls.capturing(stream.handle) == (SUCCESS, 1)
    stream.write(ptr, 4, 1)
    assert calls.cudaMemsetAsync(ptr + 2, 2, 2, stream.handle) == SUCCESS
    found = stream.read(ptr, 4)
    status, graph = calls.end_capture(stream.handle)
    assert status == SUCCESS and graph
    assert calls.capturing(stream.handle) == (SUCCESS, 0)
    current.advance(100)
    assert (current.pending, found.done, ctypes.string_at(ptr, 4)) == (0, False, b"\0" * 4)
    for _ in range(2):
        current.launch(graph, stream)
        current.synchronize()
        assert found.value == b"\1\1\2\2"
        stream.write(ptr, 4, 9)
        current.synchronize()


def test_graph_comes_after_the_stream_and_before_what_it_gets_next(current):
    stream, ptr = current.stream(), current.malloc(1)
    stream.begin_capture()
    stream.write(ptr, 1, 1, ticks=5)
    graph = stream.end_capture()
    assert graph.nodes == 1
    other = current.stream(blocking=False)
    other.work(10)
    graph.launch(other)
    found = other.read(ptr, 1)
    current.advance(14)
    assert ctypes.string_at(ptr, 1) == b"\0"
    current.advance(2)
    assert found.value == b"\1"


def forked_capture(device, origin, side, ptr):
    """Capture two writes side by side, joined again."""
    origin.begin_capture()
    event = origin.record()
    side.wait(event)
    origin.write(ptr, 1, 1, ticks=5)
    side.write(ptr + 1, 1, 2, ticks=5)
    origin.wait(side)
    origin.write(ptr + 1, 1, 3, ticks=1)
    return origin.end_capture()


@pytest.mark.parametrize("seed", SEEDS)
def test_branches_of_a_graph_run_side_by_side(make_device, seed):
    device = make_device(seed=seed)
    origin, side, ptr = device.stream(), device.stream(), device.malloc(2)
    graph = forked_capture(device, origin, side, ptr)
    assert graph.nodes == 3
    for _ in range(3):
        device.memset(ptr, 0, 2)
        start = device.now
        graph.launch(origin)
        origin.synchronize()
        assert seed is not None or device.now == start + 6
        assert device.read(ptr, 2) == b"\1\3"
    side.work(1)
    side.synchronize()


def test_graph_outlives_its_streams_but_not_its_release(current):
    origin, side, ptr = current.stream(), current.stream(), current.malloc(2)
    graph = forked_capture(current, origin, side, ptr)
    origin.destroy()
    side.destroy()
    current.launch(graph, 0)
    graph.release()
    current.synchronize()
    assert current.read(ptr, 2) == b"\1\3"
    for use in (graph.release, lambda: graph.launch(0), lambda: current.launch(graph.handle, 0),
                lambda: current.launch(12345, 0)):
        with pytest.raises(ValueError, match="not yet released"):
            use()


def test_memory_freed_under_a_graph_is_reported(misused):
    stream, ptr = misused.stream(), misused.malloc(16)
    stream.begin_capture()
    stream.write(ptr, 16, 1)
    graph = stream.end_capture()
    misused.free(ptr)
    graph.launch(stream)
    with pytest.raises(CudaError, match="cudaErrorIllegalAddress"):
        stream.synchronize()
    assert "has been freed" in misused.errors[0]


def begin(raw, device, mode=GLOBAL, blocking=False):
    calls, stream = raw(device), device.stream(blocking)
    assert calls.cudaStreamBeginCapture(stream.handle, mode) == SUCCESS
    return calls, stream


def assert_broken(calls, stream):
    """The capture is invalidated: only ending it is left, and nothing comes of it."""
    assert calls.capturing(stream.handle) == (SUCCESS, 2)
    assert calls.cudaMemsetAsync(0, 0, 0, stream.handle) == SUCCESS      # nothing to do, so nothing to capture
    with pytest.raises(CudaError, match="cudaErrorStreamCaptureInvalidated"):
        stream.work(1)
    assert calls.end_capture(stream.handle) == (INVALIDATED, 0)
    assert calls.capturing(stream.handle) == (SUCCESS, 0)
    stream.work(1)


def test_asking_after_a_captured_stream_or_event_breaks_the_capture(misused, raw):
    event = misused.event()
    for use, code in [(lambda calls, stream: calls.cudaStreamQuery(stream), UNSUPPORTED),
                      (lambda calls, stream: calls.cudaStreamSynchronize(stream), UNSUPPORTED),
                      (lambda calls, stream: calls.cudaStreamDestroy(stream), UNSUPPORTED),
                      (lambda calls, stream: calls.cudaDeviceSynchronize(), UNSUPPORTED),
                      (lambda calls, stream: calls.cudaEventRecord(event.handle, stream)
                       or calls.cudaEventQuery(event.handle), CAPTURED_EVENT),
                      (lambda calls, stream: calls.cudaEventRecord(event.handle, stream)
                       or calls.cudaEventSynchronize(event.handle), CAPTURED_EVENT),
                      (lambda calls, stream: calls.cudaStreamBeginCapture(stream, 0), None)]:
        calls, stream = begin(raw, misused, RELAXED)
        before = len(misused.errors)
        if code is None:
            assert use(calls, stream.handle) == UNSUPPORTED
            assert calls.end_capture(stream.handle)[0] == SUCCESS
            continue
        assert use(calls, stream.handle) == code
        assert "not permitted while a stream is capturing" in misused.errors[before]
        assert_broken(calls, stream)


@pytest.mark.parametrize("mode, here, elsewhere", [
    (GLOBAL, UNSUPPORTED, UNSUPPORTED), (THREAD_LOCAL, UNSUPPORTED, SUCCESS), (RELAXED, SUCCESS, SUCCESS)])
def test_unsafe_calls(misused, raw, mode, here, elsewhere):
    """In the thread of a capture, and in another one."""
    idle, event = misused.stream(), misused.event()
    ptrs = [misused.malloc(1), misused.malloc(1)]
    for use in (lambda: calls.malloc(1)[0], lambda: calls.cudaFree(ptrs[0]), lambda: calls.cudaEventQuery(event.handle),
                lambda: calls.cudaStreamQuery(idle.handle), lambda: calls.cudaEventSynchronize(event.handle),
                lambda: calls.cudaStreamSynchronize(idle.handle)):
        for where, code in ((in_thread, elsewhere), (lambda run: run(), here)):
            calls, stream = begin(raw, misused, mode)
            before = len(misused.errors)
            assert where(lambda: (sim.set_current_device(misused), use())[1]) == code
            assert len(misused.errors) == before + (code != SUCCESS)
            assert calls.end_capture(stream.handle)[0] == (INVALIDATED if code else SUCCESS)
            ptrs.sort(key=lambda ptr: ptr not in misused.live)


def test_safe_calls_leave_a_capture_alone(current, raw):
    calls, stream = begin(raw, current)
    size = ctypes.c_size_t()
    assert calls.cudaMemGetInfo(ctypes.byref(size), ctypes.byref(size)) == SUCCESS
    status, event = calls.event()
    assert status == SUCCESS and calls.cudaEventRecord(event, stream.handle) == SUCCESS
    assert calls.cudaEventDestroy(event) == SUCCESS
    assert calls.stream()[0] == SUCCESS and stream_id(raw, current, stream.handle) == stream.id
    other = current.stream()
    other.work(1)
    assert calls.end_capture(stream.handle)[0] == SUCCESS


def test_legacy_default_stream_beside_a_captured_blocking_stream(misused, raw):
    ptr, event = misused.malloc(4), misused.event()
    for use in (lambda: calls.cudaMemsetAsync(ptr, 1, 4, 0), lambda: calls.cudaStreamSynchronize(0),
                lambda: calls.cudaEventRecord(event.handle, 1), lambda: calls.cudaStreamWaitEvent(0, event.handle, 0),
                lambda: calls.cudaStreamQuery(0)):
        calls, stream = begin(raw, misused, RELAXED, blocking=True)
        assert calls.capturing(0)[0] == IMPLICIT
        assert calls.capturing(stream.handle) == (SUCCESS, 1)       # asking did no harm
        assert use() == IMPLICIT
        assert_broken(calls, stream)
    misused.synchronize()
    calls, stream = begin(raw, misused, RELAXED, blocking=False)
    assert calls.capturing(0) == (SUCCESS, 0)
    assert calls.cudaMemsetAsync(ptr, 1, 4, 0) == SUCCESS
    assert calls.end_capture(stream.handle)[0] == SUCCESS


def test_legacy_default_stream_cannot_be_captured(current, raw):
    calls = raw(current)
    assert calls.cudaStreamBeginCapture(0, RELAXED) == calls.cudaStreamBeginCapture(1, RELAXED) == UNSUPPORTED
    assert calls.cudaStreamBeginCapture(2, RELAXED) == SUCCESS
    assert calls.end_capture(2)[0] == SUCCESS
    assert calls.cudaStreamBeginCapture(2, 3) == INVALID_VALUE


def test_event_from_outside_cannot_enter_a_capture(current, raw):
    outside = current.stream(blocking=False)
    event = outside.record()
    calls, stream = begin(raw, current)
    assert calls.cudaStreamWaitEvent(stream.handle, event.handle, 0) == ISOLATION
    assert_broken(calls, stream)


def test_two_captures_cannot_merge(current, raw):
    calls, first = begin(raw, current)
    _, second = begin(raw, current)
    event = current.event()
    assert calls.cudaEventRecord(event.handle, first.handle) == SUCCESS
    assert calls.cudaStreamWaitEvent(second.handle, event.handle, 0) == MERGE
    assert_broken(calls, first)
    assert_broken(calls, second)


def test_stream_that_was_not_joined(current, raw):
    calls, origin = begin(raw, current)
    side = current.stream(blocking=False)
    side.wait(origin.record())
    assert calls.capturing(side.handle) == (SUCCESS, 1)
    side.work(1)
    assert calls.end_capture(side.handle) == (UNMATCHED, 0)
    assert calls.end_capture(origin.handle) == (UNJOINED, 0)
    assert calls.capturing(side.handle) == (SUCCESS, 0)


def test_end_of_a_capture_in_the_wrong_thread(current, raw):
    calls, stream = begin(raw, current)
    assert in_thread(lambda: calls.end_capture(stream.handle)) == (WRONG_THREAD, 0)
    assert calls.end_capture(stream.handle)[0] == SUCCESS
    calls, stream = begin(raw, current, RELAXED)
    assert in_thread(lambda: calls.end_capture(stream.handle))[0] == SUCCESS
    assert calls.end_capture(stream.handle) == (UNMATCHED, 0)


def test_event_of_a_capture_that_has_ended(misused, raw):
    calls, stream = begin(raw, misused)
    event = stream.record()
    assert calls.end_capture(stream.handle)[0] == SUCCESS
    other = misused.stream()
    assert calls.cudaStreamWaitEvent(other.handle, event.handle, 0) == CAPTURED_EVENT
    assert calls.cudaEventQuery(event.handle) == CAPTURED_EVENT
    event.record(other)
    assert calls.cudaEventQuery(event.handle) == SUCCESS


def test_launch_into_a_capture_or_on_a_stream_of_another_device(make_device):
    device, other = make_device(misuse=True), make_device()
    stream = device.stream(blocking=False)
    stream.begin_capture()
    stream.work(1)
    graph = stream.end_capture()
    stream.begin_capture("relaxed")
    with pytest.raises(CudaError, match="cudaErrorStreamCaptureUnsupported"):
        graph.launch(stream)
    with pytest.raises(CudaError, match="cudaErrorStreamCaptureInvalidated"):
        stream.end_capture()
    with pytest.raises(CudaError, match="cudaErrorInvalidResourceHandle"):
        graph.launch(other.stream())
    with pytest.raises(ValueError, match="global"):
        stream.begin_capture("local")
    assert device.pending == 0


def test_too_many_branches(current, raw):
    calls, origin = begin(raw, current)
    event = origin.record()
    sides = [current.stream(blocking=False) for _ in range(31)]
    for side in sides:
        side.wait(event)
    with pytest.raises(CudaError, match="cudaErrorStreamCaptureUnsupported"):
        current.stream(blocking=False).wait(event)
    assert calls.end_capture(origin.handle) == (INVALIDATED, 0)


def test_host_functions_and_reads_in_a_graph(current, raw):
    calls, stream = begin(raw, current)
    seen = []
    keep, address = host_function(lambda argument: seen.append(argument))
    assert calls.cudaLaunchHostFunc(stream.handle, address, 5) == SUCCESS
    status, graph = calls.end_capture(stream.handle)
    assert status == SUCCESS and seen == []
    current.launch(graph, stream)
    current.launch(graph, stream)
    current.synchronize()
    assert seen == [5, 5]


def test_device_that_goes_during_a_capture(raw):
    device = sim.Device("1MiB")
    stream = device.stream()
    stream.begin_capture()
    stream.work(1)
    device.close()
    with sim.Device("1MiB") as other:
        other.free(other.malloc(1))         # no capture is left that would forbid it


# --- threads --------------------------------------------------------------------------------------------------------

@pytest.mark.threads
@pytest.mark.parametrize("seed", SEEDS[:3])
def test_threads_with_streams_of_their_own(make_device, raw, seed):
    device = make_device(seed=seed)
    failures = []

    def run(number):
        sim.set_current_device(device)
        calls = raw(device)
        streams = [device.stream(blocking=False), device.default_stream(per_thread=True)]
        ptr = device.malloc(64)
        for i in range(150):
            value = (i * 7 + number) % 256
            a, b = streams[i % 2], streams[1 - i % 2]
            a.write(ptr, 64, value, ticks=i % 5)
            b.wait(a)
            found = b.read(ptr, 64, ticks=i % 3)
            if i % 7 == 0:
                device.advance(3)
            b.synchronize()
            if found.value != bytes([value]) * 64:
                failures.append((number, i))
            if i % 10 == 0:
                calls.cudaEventDestroy(calls.event()[1])
                streams[0] = device.stream(blocking=False)
        device.free(ptr)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        device.check()
        assert isinstance(device.races, list)
    for thread in threads:
        thread.join()
    assert failures == []


def test_many_streams(current):
    streams = [current.stream() for _ in range(300)]
    for first, second in itertools.pairwise(streams):
        first.work(1)
        second.wait(first)
    current.synchronize()
    assert current.now == 299
    for stream in streams:
        stream.destroy()
    current.check()


def test_exit_with_queued_work(run_python):
    code = ("from cuda_pool import sim\ndevice = sim.Device('1GiB')\nsim.set_current_device(device)\n"
            "ptr = device.malloc(1000)\nstreams = [device.stream() for _ in range(5)]\n"
            "reads = [stream.read(ptr, 10, ticks=5) for stream in streams]\n"
            "events = [stream.record() for stream in streams]\n"
            "streams[0].begin_capture(); streams[0].work(1)\n"
            "device.default_stream(per_thread=True).work(3)\n")
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "")
