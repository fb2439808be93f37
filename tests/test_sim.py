"""The simulated device: memory, current device, call log, fault injection, and what it reports."""

import ctypes
import gc
import os
import signal
import threading
import time
import weakref

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cuda_pool import sim
from cuda_pool.errors import CudaError

from .models import forked

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE = 0, 1, 2, 101
TO_DEVICE, TO_HOST, ON_DEVICE, DEFAULT = 1, 2, 3, 4


# --- settings -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("memory, nbytes", [("8GiB", 8 << 30), ("1GB", 10**9), (12345, 12345), ("64TiB", 1 << 46)])
def test_memory(make_device, memory, nbytes):
    device = make_device(memory)
    assert device.memory == nbytes
    assert device.mem_info() == (nbytes, nbytes)


@pytest.mark.parametrize("settings", [
    {"memory": 0}, {"memory": -1}, {"memory": "12 bananas"}, {"memory": "65TiB"}, {"memory": 1 << 80},
    {"ordinal": -1}, {"ordinal": 1 << 31}, {"base_alignment": 255}, {"base_alignment": 4096}, {"base_alignment": 0},
])
def test_setting_out_of_range(settings):
    with pytest.raises(ValueError):
        sim.Device(**settings)


@pytest.mark.parametrize("settings", [{"memory": 1.5}, {"memory": None}, {"ordinal": "0"}, {"ordinal": True},
                                      {"seed": "x"}])
def test_setting_of_a_wrong_type(settings):
    with pytest.raises(TypeError):
        sim.Device(**settings)


def test_set_up_only_once(make_device):
    device = make_device("1MiB")
    with pytest.raises(RuntimeError, match="once"):
        device.__init__("2MiB")
    assert device.memory == 1 << 20


def test_device_that_was_never_set_up():
    device = sim.Device.__new__(sim.Device)
    assert (device.calls, device.log, device.live, device.errors, device.allocated) == ({}, [], {}, [], 0)
    with pytest.raises(CudaError, match="no usable CUDA device"):
        device.mem_info()
    device.close()


def test_device_larger_than_the_host(make_device):
    device = make_device("141GiB")
    ptr = device.malloc(141 << 30)
    device.write(ptr + (141 << 30) - 3, b"end")
    assert device.read(ptr + (141 << 30) - 4, 4) == b"\0end"
    assert device.mem_info() == (0, 141 << 30)


@pytest.mark.parametrize("base_alignment", [256, 512, 1024, 2048])
@pytest.mark.parametrize("seed", [None, 0, 1, -5, 1 << 100])
def test_base_alignment(make_device, base_alignment, seed):
    device = make_device(base_alignment=base_alignment, seed=seed)
    for nbytes in (1, 4096, 100_000) * 20:
        ptr = device.malloc(nbytes)
        assert ptr % base_alignment == 0 and ptr % (2 * base_alignment) != 0
        device.memset(ptr, 7, nbytes)


def test_seed_spreads_addresses_the_same_way_each_time(make_device):
    def offsets(seed):
        device = make_device(base_alignment=256, seed=seed)
        return [device.malloc(64) % 4096 for _ in range(64)]

    assert offsets(1) == offsets(1) != offsets(2)
    assert set(offsets(1)) == set(range(256, 4096, 512))
    assert set(offsets(None)) == {256}


# --- memory -------------------------------------------------------------------------------------------------------

def test_capacity_is_exact(make_device):
    device = make_device(10_000)
    first = device.malloc(9_999)
    assert device.mem_info() == (1, 10_000)
    for nbytes in (2, 10_000, 1 << 40, 2**63, 2**64 - 4096, 2**64 - 1):
        with pytest.raises(CudaError, match="cudaErrorMemoryAllocation"):
            device.malloc(nbytes)
    assert device.live == {first: 9_999}
    second = device.malloc(1)
    device.free(first)
    assert (device.allocated, device.live) == (1, {second: 1})


def test_allocations_do_not_overlap_and_keep_their_data(make_device):
    device = make_device("1GiB", base_alignment=256, seed=3)
    live = {device.malloc(nbytes): nbytes for nbytes in range(1, 40_000, 397)}
    for i, (ptr, nbytes) in enumerate(live.items()):
        device.memset(ptr, i % 251, nbytes)
    assert device.live == live
    for i, (ptr, nbytes) in enumerate(live.items()):
        assert device.read(ptr, nbytes) == bytes([i % 251]) * nbytes
    assert device.allocated == sum(live.values())


def test_memory_is_really_unmapped(run_python):
    """A pool that touches freed memory must not get away with it."""
    code = ("import ctypes\nfrom cuda_pool import sim\ndevice = sim.Device()\n"
            "ptr = device.malloc(4096)\nctypes.string_at(ptr, 4096)\n{}\n"
            "print('here', flush=True)\nctypes.string_at(ptr, 4096)\n")
    for action in ("device.free(ptr)", "device.close()", "ptr += 4096", "ptr -= 4096"):
        done = run_python(code.format(action))
        assert done.stdout == "here\n" and done.returncode != 0


def test_malloc_of_zero_bytes(make_device, raw):
    device = make_device()
    sim.set_current_device(device)
    ptr = ctypes.c_void_p(0xDEAD)
    assert raw(device).cudaMalloc(ctypes.byref(ptr), 0) == SUCCESS
    assert ptr.value is None
    assert raw(device).cudaFree(None) == SUCCESS


def test_copies(make_device, raw):
    device = make_device()
    a, b = device.malloc(100), device.malloc(100)
    device.write(a, bytes(range(100)))
    sim.set_current_device(device)
    copy = raw(device).cudaMemcpyAsync
    host = ctypes.create_string_buffer(100)
    assert copy(b, a, 100, ON_DEVICE, None) == SUCCESS
    assert device.read(b, 100) == bytes(range(100))
    assert copy(ctypes.addressof(host), b + 50, 50, DEFAULT, None) == SUCCESS
    assert host.raw[:50] == bytes(range(50, 100))
    assert copy(a, ctypes.addressof(host), 50, DEFAULT, 2) == SUCCESS
    assert device.read(a, 100) == bytes(range(50, 100)) * 2
    assert copy(a + 10, a, 50, ON_DEVICE, None) == SUCCESS
    assert device.read(a, 60) == bytes(range(50, 60)) + bytes(range(50, 100))
    assert copy(ctypes.addressof(host), ctypes.addressof(host) + 50, 50, 0, None) == SUCCESS
    assert host.raw == bytes(100)
    assert copy(a, b, 1, 5, None) == copy(a, b, 1, -1, None) == INVALID_VALUE


# --- misuse: each gives CUDA's error, a line in `errors`, and changes nothing -----------------------------------------

def misuse(device, text, function, *args):
    """Expect a call to be refused and reported."""
    before, live = len(device.errors), device.live
    assert function(*args) == INVALID_VALUE
    assert len(device.errors) == before + 1
    assert text in device.errors[-1]
    assert device.live == live


@pytest.mark.parametrize("asynchronous", [False, True])
def test_wrong_frees(make_device, raw, asynchronous):
    device = make_device(misuse=True, ordinal=3)
    sim.set_current_device(device)
    calls = raw(device)
    free = (lambda ptr: calls.cudaFreeAsync(ptr, None)) if asynchronous else calls.cudaFree
    ptr = device.malloc(1000)
    misuse(device, f"{ptr + 1:#x} with device 3 current: it lies inside the allocation at {ptr:#x} of 1000 bytes",
           free, ptr + 1)
    misuse(device, "nothing is allocated there", free, ptr + 1000)
    misuse(device, "nothing is allocated there", free, 1)
    assert free(ptr) == SUCCESS
    misuse(device, "nothing is allocated there", free, ptr)
    assert device.errors[-1].startswith("cudaFreeAsync: " if asynchronous else "cudaFree: ")


def test_access_outside_an_allocation(make_device, raw):
    device = make_device(misuse=True)
    sim.set_current_device(device)
    calls = raw(device)
    ptr = device.malloc(1000)
    host = ctypes.addressof(ctypes.create_string_buffer(2000))
    over = f"runs over the end of the allocation at {ptr:#x} of 1000 bytes"
    nothing = "nothing is allocated there"
    for first, nbytes, text in [(ptr, 1001, over), (ptr + 999, 2, over), (ptr, 2**64 - 1, over),
                                (ptr + 1000, 1, nothing), (ptr - 1, 2, nothing), (0, 1, nothing)]:
        misuse(device, text, calls.cudaMemsetAsync, first, 0, nbytes, None)
        misuse(device, text, calls.cudaMemcpyAsync, first, host, nbytes, TO_DEVICE, None)
        misuse(device, text, calls.cudaMemcpyAsync, host, first, nbytes, TO_HOST, None)
        misuse(device, text, calls.cudaMemcpyAsync, first, ptr, nbytes, ON_DEVICE, None)
    misuse(device, over, calls.cudaMemcpyAsync, host, ptr, 1001, DEFAULT, None)


def test_address_of_another_device(make_device, raw):
    mine, other = make_device(ordinal=0, misuse=True), make_device(ordinal=1, misuse=True)
    ptr = mine.malloc(64)
    sim.set_current_device(other)
    calls = raw(mine)
    misuse(other, "with device 1 current: the address belongs to device 0", calls.cudaFree, ptr)
    misuse(mine, "with device 1 current: the address belongs to device 0", calls.cudaMemsetAsync, ptr, 0, 64, None)
    misuse(other, "with device 1 current", calls.cudaMemcpyAsync, ptr, ptr, 64, DEFAULT, None)
    assert mine.errors == other.errors and len(mine.errors) == 3
    assert mine.live == {ptr: 64}


def test_calls_with_no_device_current(make_device, raw):
    device = make_device(misuse=True)
    ptr = device.malloc(64)
    calls = raw(device)
    size = ctypes.c_size_t()
    assert calls.malloc(64) == (INVALID_DEVICE, 0)
    assert calls.cudaMemGetInfo(ctypes.byref(size), ctypes.byref(size)) == INVALID_DEVICE
    assert calls.cudaMemsetAsync(ptr, 0, 64, None) == INVALID_DEVICE
    assert calls.cudaDeviceSynchronize() == INVALID_DEVICE
    misuse(device, "with no device current: the address belongs to device 0", calls.cudaFree, ptr)


def test_list_of_errors_is_bounded(make_device, raw):
    device = make_device(misuse=True)
    sim.set_current_device(device)
    free = raw(device).cudaFree
    for address in range(1, 1006):
        free(address)
    assert len(device.errors) == 1001
    assert device.errors[-1] == "and 5 more"
    assert device.errors[0].startswith("cudaFree: 0x1 ")


# --- current device -----------------------------------------------------------------------------------------------

def test_current_device_is_per_thread(make_device):
    first, second = make_device(ordinal=0), make_device(ordinal=1)
    sim.set_current_device(first)
    seen = []

    def other_thread():
        seen.append(sim.current_device())
        sim.set_current_device(second)
        seen.append(sim.current_device())

    thread = threading.Thread(target=other_thread)
    thread.start()
    thread.join()
    assert seen == [None, second]
    assert sim.current_device() is first
    sim.set_current_device(None)
    assert sim.current_device() is None


def test_set_current_device_wants_an_open_simulated_device(make_device):
    device = make_device()
    device.close()
    with pytest.raises(ValueError, match="closed"):
        sim.set_current_device(device)
    for wrong in (0, "0", object()):
        with pytest.raises(TypeError):
            sim.set_current_device(wrong)


def test_devices_with_one_ordinal_are_different_devices(make_device):
    devices = [make_device(1000 + i, ordinal=7) for i in range(300)]
    ptrs = [device.malloc(i + 1) for i, device in enumerate(devices)]
    for i, device in enumerate(devices):
        assert device.mem_info() == (999, 1000 + i)
        assert device.live == {ptrs[i]: i + 1}
        assert {current for _, _, current in device.log} == {7, None}
        assert device.log[0] == ("cudaSetDevice", (7,), None)


def test_slots_are_reused_but_a_stale_current_device_finds_nobody(raw):
    device = sim.Device("1MiB")
    calls = raw(device)
    sim.set_current_device(device)
    stale = calls.current()
    del device
    gc.collect()
    for _ in range(5000):
        successor = sim.Device("1MiB")
    assert sim.current_device() is None
    assert calls.current() == 0
    assert calls.malloc(1) == (INVALID_DEVICE, 0)
    assert calls.cudaSetDevice(stale) == INVALID_DEVICE
    assert successor.log == []


@pytest.mark.parametrize("number", [-1, -(2**31), 4095, 2**31 - 1])
def test_numbers_that_no_device_has(make_device, raw, number):
    assert raw(make_device()).cudaSetDevice(number) == INVALID_DEVICE


def test_too_many_devices():
    devices = []
    with pytest.raises(RuntimeError, match="4,095"):
        for _ in range(4096):
            devices.append(sim.Device("1MiB"))
    devices.pop()
    sim.Device("1MiB").mem_info()


def test_closed_device(make_device, raw):
    device = make_device()
    ptr = device.malloc(1000)
    sim.set_current_device(device)
    number = raw(device).current()
    device.close()
    device.close()
    assert (device.closed, device.live, device.allocated, device.memory) == (True, {}, 0, 64 << 20)
    assert sim.current_device() is None
    assert raw(device).cudaSetDevice(number) == INVALID_DEVICE
    for function in (device.mem_info, device.synchronize, lambda: device.free(ptr), lambda: device.malloc(1)):
        with pytest.raises(CudaError, match="cudaErrorInvalidDevice"):
            function()
    assert device.calls["cudaMalloc"] == 1


def test_context_manager_closes():
    with sim.Device("1MiB") as device:
        device.malloc(100)
    assert device.closed and device.live == {}


def test_dropped_device_is_collected_and_unmapped():
    def mappings():
        with open("/proc/self/maps") as maps:
            return sum(1 for _ in maps)

    before = mappings()
    device = sim.Device()
    for _ in range(500):
        device.malloc(8192)
    assert mappings() > before + 400
    cycle = [device]
    cycle.append(cycle)
    gone = weakref.ref(device)
    del device, cycle
    gc.collect()
    assert gone() is None
    assert mappings() < before + 50


# --- log, faults, delays ------------------------------------------------------------------------------------------

def test_log_and_calls(make_device):
    device = make_device(ordinal=2)
    sim.set_current_device(device)
    ptr = device.malloc(100)
    device.memset(ptr, 9, 10)
    device.free(ptr)
    assert [entry for entry in device.log if entry[0] != "cudaGetDevice"] == [
        ("cudaMalloc", (100,), 2), ("cudaMemsetAsync", (ptr, 9, 10, 0), 2), ("cudaStreamSynchronize", (0,), 2),
        ("cudaFree", (ptr,), 2)]
    assert device.calls == {"cudaGetDevice": 3, "cudaMalloc": 1, "cudaMemsetAsync": 1, "cudaStreamSynchronize": 1,
                            "cudaFree": 1}
    device.clear_log()
    assert device.log == [] and device.calls == {}
    device.mem_info()
    assert device.log == [("cudaGetDevice", (), 2), ("cudaMemGetInfo", (), 2)]


def test_log_keeps_the_latest(make_device, raw):
    device = make_device()
    sim.set_current_device(device)
    fill = raw(device).cudaMemsetAsync
    for value in range(65_536 + 100):
        fill(0, value, 0, 0)
    assert device.calls["cudaMemsetAsync"] == 65_536 + 100
    assert [args[1] for _, args, _ in device.log] == list(range(100, 65_636))


def statuses(device, raw, count):
    return [raw(device).malloc(1)[0] for _ in range(count)]


def test_fail_third_call(make_device, raw):
    device = make_device()
    sim.set_current_device(device)
    device.fail("cudaMalloc", after=2)
    assert statuses(device, raw, 5) == [0, 0, 2, 0, 0]
    assert device.allocated == 4 and device.calls["cudaMalloc"] == 5


def test_fail_several_times_with_a_code(make_device, raw):
    device = make_device()
    sim.set_current_device(device)
    device.fail("cudaMalloc", code="cudaErrorIllegalAddress", times=2)
    device.fail("cudaMalloc", after=3, code=999)
    device.fail("cudaFree", code=1)
    assert statuses(device, raw, 6) == [700, 700, 0, 999, 0, 0]


def test_faults_of_one_device_leave_others_alone(make_device):
    device, other = make_device(), make_device()
    device.fail("cudaMalloc", times=100)
    other.malloc(1)
    with pytest.raises(CudaError):
        device.malloc(1)


def test_failed_call_has_no_effect(make_device):
    device = make_device()
    ptr = device.malloc(100)
    device.memset(ptr, 1, 100)
    for name, run in [("cudaFree", lambda: device.free(ptr)), ("cudaMemsetAsync", lambda: device.memset(ptr, 2, 100)),
                      ("cudaMemcpyAsync", lambda: device.write(ptr, bytes(100)))]:
        device.fail(name, code=999)
        with pytest.raises(CudaError, match="cudaErrorUnknown"):
            run()
    assert device.live == {ptr: 100}
    assert device.read(ptr, 100) == b"\x01" * 100


def test_clear_faults(make_device, raw):
    device = make_device()
    sim.set_current_device(device)
    device.fail("cudaMalloc", times=5)
    device.alias("cudaMalloc", after=1)
    device.delay("cudaMalloc", 3600)
    device.clear_faults()
    assert statuses(device, raw, 3) == [0, 0, 0]
    assert len(device.live) == 3


@pytest.mark.parametrize("arguments, shown", [
    (("cudaMallocc",), "cudaMalloc, cudaFree"), (("cudaMalloc", -1), "after is from 0"),
    (("cudaMalloc", 0, "cudaErrorFoo"), r"cudaErrorMemoryAllocation \(2\)"), (("cudaMalloc", 0, 0), "accepted are"),
    (("cudaMalloc", 0, 12345), "accepted are"), (("cudaMalloc", 0, 2, 0), "times is from 1"),
])
def test_fail_with_a_wrong_argument(make_device, arguments, shown):
    device = make_device()
    with pytest.raises(ValueError, match=shown):
        device.fail(*arguments)
    device.malloc(1)


def test_too_many_faults(make_device):
    device = make_device()
    for _ in range(64):
        device.fail("cudaMalloc", after=10)
    with pytest.raises(RuntimeError, match="clear_faults"):
        device.fail("cudaMalloc")
    device.malloc(1)


def test_alias_returns_a_live_address(make_device, raw):
    device = make_device()
    sim.set_current_device(device)
    device.alias("cudaMalloc", after=1, times=2)
    calls = raw(device)
    large = calls.malloc(500)[1]
    assert [calls.malloc(100), calls.malloc(200)] == [(0, large)] * 2
    assert calls.malloc(300)[1] != large
    assert device.allocated == 800


def test_alias_without_a_live_address_allocates(make_device):
    device = make_device()
    device.alias()
    ptr = device.malloc(10)
    assert device.live == {ptr: 10}
    with pytest.raises(ValueError, match="cudaMalloc or cudaMallocAsync"):
        device.alias("cudaFree")


def test_delay(make_device):
    device = make_device()
    device.delay("cudaMalloc", 0.1)
    start = time.perf_counter()
    device.malloc(1)
    assert time.perf_counter() - start >= 0.1
    device.delay("cudaMalloc", 3600)
    device.delay("cudaMalloc", 0)
    device.malloc(1)


def test_delayed_call_holds_up_nobody_else(make_device):
    """On a busy machine the others may need longer than the delay: then it is tried with a longer one."""
    assert any(others_are_served_during(seconds, make_device) for seconds in (0.3, 2, 10))


def others_are_served_during(seconds, make_device):
    device, other = make_device(), make_device()
    device.delay("cudaMalloc", seconds)
    thread = threading.Thread(target=device.malloc, args=(1,))
    thread.start()
    while device.calls["cudaMalloc"] == 0:
        time.sleep(0.001)
    device.mem_info()
    other.malloc(1)
    waiting = device.allocated == 0
    thread.join()
    assert device.allocated == 1
    return waiting


def test_device_closed_during_a_delayed_call(make_device):
    device = make_device()
    device.delay("cudaMalloc", 0.2)
    caught = []

    def allocate():
        with pytest.raises(CudaError) as error:
            device.malloc(1)
        caught.append(error.value.name)

    thread = threading.Thread(target=allocate)
    thread.start()
    while device.calls["cudaMalloc"] == 0:
        time.sleep(0.001)
    device.close()
    thread.join()
    assert caught == ["cudaErrorInvalidDevice"] and device.live == {}


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 100_000])
def test_delay_out_of_range(make_device, seconds):
    with pytest.raises(ValueError, match="0 to 86400"):
        make_device().delay("cudaMalloc", seconds)


def test_attributes_and_versions(make_device, raw):
    device = make_device()
    sim.set_current_device(device)
    calls, value = raw(device), ctypes.c_int()
    number = calls.current()
    assert calls.cudaDeviceGetAttribute(ctypes.byref(value), 115, number) == SUCCESS and value.value == 1
    assert calls.cudaDeviceGetAttribute(ctypes.byref(value), 9999, number) == INVALID_VALUE
    assert calls.cudaDeviceGetAttribute(ctypes.byref(value), 115, 0) == INVALID_DEVICE
    assert calls.cudaDriverGetVersion(ctypes.byref(value)) == SUCCESS and value.value >= 12090
    assert calls.cudaGetDeviceCount(ctypes.byref(value)) == SUCCESS and value.value >= 1
    assert calls.cudaGetErrorName(123456) == b"unrecognized error code"


# --- threads, processes -------------------------------------------------------------------------------------------

def test_eight_threads_on_four_devices(make_device, raw):
    """Raw calls run without the GIL; the accessors, with it, look on."""
    devices = [make_device("1GiB", ordinal=i) for i in range(4)]
    failures = []

    def work(device, seed):
        calls, live = raw(device), {}
        sim.set_current_device(device)
        for i in range(1500):
            nbytes = (i * seed) % 5000 + 1
            status, ptr = calls.malloc(nbytes)
            if status or calls.cudaMemsetAsync(ptr, seed, nbytes, None):
                failures.append((status, ptr))
            live[ptr] = nbytes
            if i % 3:
                ptr, nbytes = live.popitem() if i % 2 else (next(iter(live)), live.pop(next(iter(live))))
                if ctypes.string_at(ptr, nbytes) != bytes([seed]) * nbytes or calls.cudaFree(ptr):
                    failures.append(ptr)
        for ptr in live:
            calls.cudaFree(ptr)

    threads = [threading.Thread(target=work, args=(devices[i % 4], 101 + i)) for i in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert all(sum(device.live.values()) <= device.memory for device in devices)
        assert all(device.errors == [] and len(device.log) <= 65_536 for device in devices)
    assert failures == []
    for device in devices:
        assert device.calls["cudaMalloc"] == device.calls["cudaFree"] == 3000
        assert device.allocated == 0 and device.live == {}


def test_devices_come_and_go_while_others_work():
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            device = sim.Device("1MiB")
            device.free(device.malloc(100))
            device.malloc(100)

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    steady = sim.Device("1MiB", ordinal=9)
    for _ in range(2000):
        steady.free(steady.malloc(1000))
    stop.set()
    for thread in threads:
        thread.join()
    assert steady.errors == [] and steady.allocated == 0


@pytest.mark.threads
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_while_another_thread_holds_the_lock(make_device):
    device = make_device("4GiB")
    ptr = device.malloc(1 << 20)
    stop, statuses = threading.Event(), []

    def child():
        assert device.calls["cudaMemsetAsync"] >= 0
        assert sim.Device("1MiB").mem_info()[0] == 1 << 20

    def hold():
        while not stop.is_set():
            device.memset(ptr, 1, 1 << 20)

    thread = threading.Thread(target=hold)
    thread.start()
    for _ in range(20):
        statuses.append(status_of(forked(child)))
    stop.set()
    thread.join()
    assert statuses == [0] * 20


def status_of(pid, patience=100):
    """Return the status with which a child ends; kill one that does not end within `patience` seconds."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "killed: it hung"


def test_exit_with_live_memory(run_python):
    code = ("from cuda_pool import sim\ndevices = [sim.Device('1GiB') for _ in range(5)]\n"
            "ptrs = [device.malloc(1000) for device in devices for _ in range(20)]\n"
            "sim.set_current_device(devices[0])\n")
    for _ in range(3):
        done = run_python(code)
        assert (done.returncode, done.stderr) == (0, "")


# --- any sequence of operations, against a model ------------------------------------------------------------------

class SimulatorModel(RuleBasedStateMachine):
    """A dict of address to (size, fill byte) for each of two devices."""

    @initialize(memory=st.integers(1, 1 << 20), seed=st.none() | st.integers(0, 9),
                base_alignment=st.sampled_from([None, 256, 512, 1024, 2048]))
    def start(self, memory, seed, base_alignment):
        self.devices = [sim.Device(memory, ordinal=i, seed=seed, base_alignment=base_alignment) for i in range(2)]
        self.model = [{}, {}]
        self.refused = [0, 0]

    @rule(which=st.integers(0, 1), nbytes=st.integers(0, 1 << 19) | st.integers(2**64 - 10_000, 2**64 - 1),
          fill=st.integers(0, 255))
    def allocate(self, which, nbytes, fill):
        device, model = self.devices[which], self.model[which]
        free = device.memory - sum(size for size, _ in model.values())
        if nbytes > free:
            with pytest.raises(CudaError, match="cudaErrorMemoryAllocation"):
                device.malloc(nbytes)
            return
        ptr = device.malloc(nbytes)
        assert (ptr == 0) == (nbytes == 0)
        if nbytes:
            device.memset(ptr, fill, nbytes)
            model[ptr] = (nbytes, fill)

    @precondition(lambda self: any(self.model))
    @rule(data=st.data())
    def release(self, data):
        which = data.draw(st.sampled_from([i for i in range(2) if self.model[i]]))
        ptr = data.draw(st.sampled_from(list(self.model[which])))
        nbytes, fill = self.model[which].pop(ptr)
        assert self.devices[which].read(ptr, nbytes) == bytes([fill]) * nbytes
        self.devices[which].free(ptr)

    @precondition(lambda self: any(self.model))
    @rule(data=st.data(), offset=st.integers(-3, 5000))
    def release_wrongly(self, data, offset):
        which = data.draw(st.sampled_from([i for i in range(2) if self.model[i]]))
        on = data.draw(st.integers(0, 1))
        wrong = data.draw(st.sampled_from(list(self.model[which]))) + offset
        if wrong in self.model[on]:
            return
        with pytest.raises(CudaError, match="cudaErrorInvalidValue"):
            self.devices[on].free(wrong)
        self.refused[on] += 1
        if any(ptr <= wrong < ptr + nbytes for ptr, (nbytes, _) in self.model[1 - on].items()):
            self.refused[1 - on] += 1

    @invariant()
    def same_as_model(self):
        for device, model, refused in zip(getattr(self, "devices", ()), self.model if hasattr(self, "model") else (),
                                          self.refused if hasattr(self, "refused") else ()):
            assert device.live == {ptr: nbytes for ptr, (nbytes, _) in model.items()}
            assert device.mem_info()[0] == device.memory - device.allocated == device.memory - sum(device.live.values())
            assert len(device.errors) == refused

    def teardown(self):
        for device in getattr(self, "devices", ()):
            device.close()


TestSimulatorModel = SimulatorModel.TestCase
TestSimulatorModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
