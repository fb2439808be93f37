"""Virtual memory of the simulated device: reservations, physical memory, mappings, access, and what is refused."""

import ctypes
import faulthandler
import os
import resource
import signal
import threading
import time

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cuda_pool import sim
from cuda_pool.errors import CudaError

from .conftest import RawCalls
from .models import effort, forked, optimised

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE, INVALID_CONTEXT = 0, 1, 2, 101, 201
ILLEGAL_ADDRESS, NOT_PERMITTED, NOT_SUPPORTED, CAPTURE_UNSUPPORTED = 700, 800, 801, 900
NONE, READ, READ_WRITE = 0, 1, 3
TO_DEVICE, TO_HOST, ON_DEVICE, DEFAULT = 1, 2, 3, 4
SIZE = 4096
MIB = 1 << 20
CALLS = ("cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate", "cuMemRelease",
         "cuMemMap", "cuMemUnmap", "cuMemSetAccess")

each_kind = pytest.mark.parametrize("lazy", [False, True], ids=["real", "lazy"])


class Space:
    """A device that is current, its raw calls, and shortcuts that must succeed."""

    def __init__(self, device):
        self.device = device
        self.raw = RawCalls(device)
        self.size = device.granularity
        sim.set_current_device(device)

    def reserve(self, pages, **how):
        status, address = self.raw.reserve(pages * self.size, **how)
        assert status == SUCCESS
        return address

    def create(self, pages=1):
        status, handle = self.raw.create(pages * self.size)
        assert status == SUCCESS
        return handle

    def map(self, address, handle, pages=1, access=READ_WRITE):
        assert self.raw.map(address, pages * self.size, handle) == SUCCESS
        if access is not None:
            assert self.raw.set_access(address, pages * self.size, access) == SUCCESS

    def mapped(self, pages=1, **how):
        """Return the address of a new reservation that is mapped, page by page."""
        address = self.reserve(pages)
        for page in range(pages):
            handle = self.create()
            self.map(address + page * self.size, handle, **how)
            assert self.raw.cuMemRelease(handle) == SUCCESS
        return address

    def unmap(self, address, pages=1):
        assert self.raw.cuMemUnmap(address, pages * self.size) == SUCCESS

    def refused(self, status, text):
        """Assert that a call was refused as invalid, for a reason that the device's latest error tells."""
        assert status == INVALID_VALUE
        assert text in self.device.errors[-1]


@pytest.fixture
def make_space(make_device):
    def make(memory="64MiB", *args, granularity=SIZE, misuse=False, races=False, **kwargs):
        return Space(make_device(memory, *args, granularity=granularity, misuse=misuse, races=races, **kwargs))

    return make


@pytest.fixture(params=[False, True], ids=["real", "lazy"])
def space(request, make_space):
    return make_space(lazy=request.param)


@pytest.fixture(params=[False, True], ids=["real", "lazy"])
def abused(request, make_space):
    """A space whose device may see misuse."""
    return make_space(lazy=request.param, misuse=True)


# --- settings ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("granularity, nbytes", [("2MiB", 2 * MIB), (4096, 4096), ("64KiB", 65536), ("1GiB", 1 << 30)])
def test_granularity(make_device, granularity, nbytes):
    assert make_device(granularity=granularity).granularity == nbytes


def test_granularity_by_default(make_device):
    assert make_device().granularity == 2 * MIB


@pytest.mark.parametrize("wrong", [{"granularity": 2048}, {"granularity": 4097}, {"granularity": 12288},
                                   {"granularity": "2GiB"}, {"granularity": -4096}])
def test_granularity_out_of_range(wrong):
    with pytest.raises(ValueError):
        sim.Device(**wrong)


@pytest.mark.parametrize("wrong", [{"granularity": 1.5}, {"granularity": None}, {"lazy": 1}, {"lazy": None}])
def test_setting_of_a_wrong_type(wrong):
    with pytest.raises(TypeError):
        sim.Device(**wrong)


def test_device_without_virtual_memory(make_device, raw):
    device = make_device(granularity=0)
    assert device.granularity == 0
    calls = raw(device)
    sim.set_current_device(device)
    assert calls.reserve(SIZE) == calls.create(SIZE) == (NOT_SUPPORTED, 0)
    assert calls.cuMemUnmap(SIZE, SIZE) == calls.cuMemAddressFree(SIZE, SIZE) == NOT_SUPPORTED
    assert device.errors == []


def test_attribute(make_device, raw):
    device = make_device()
    value = ctypes.c_int(-1)
    number = Space(device).raw.current()
    assert raw(device).cuDeviceGetAttribute(ctypes.byref(value), 102, number) == SUCCESS and value.value == 1
    assert raw(device).cuDeviceGetAttribute(ctypes.byref(value), 1, number) == INVALID_VALUE
    assert raw(device).cuDeviceGetAttribute(ctypes.byref(value), 102, number + (1 << 12)) == INVALID_DEVICE


@pytest.mark.parametrize("option, status", [(0, SUCCESS), (1, SUCCESS), (2, INVALID_VALUE), (-1, INVALID_VALUE)])
def test_option_of_the_granularity(space, option, status):
    size = ctypes.c_size_t(0)
    prop = space.raw.prop()
    assert space.raw.cuMemGetAllocationGranularity(ctypes.byref(size), ctypes.byref(prop), option) == status
    assert size.value == (SIZE if status == SUCCESS else 0)


# --- what works -------------------------------------------------------------------------------------------------------

def test_a_page_from_its_making_to_its_end(space):
    device, raw = space.device, space.raw
    address = space.reserve(4)
    assert device.reserved == {address: 4 * SIZE} and address % SIZE == 0
    handle = space.create()
    assert (device.physical, device.allocated, device.mapped) == (SIZE, SIZE, {})
    assert device.mem_info() == (64 * MIB - SIZE, 64 * MIB)
    space.map(address + SIZE, handle)
    assert device.mapped == {address + SIZE: SIZE}
    device.write(address + SIZE, b"abc")
    assert device.read(address + SIZE, 4) == b"abc\0"
    assert raw.cuMemRelease(handle) == SUCCESS
    assert device.physical == SIZE and device.read(address + SIZE, 3) == b"abc"
    space.unmap(address + SIZE)
    assert (device.physical, device.mapped, device.mem_info()[0]) == (0, {}, 64 * MIB)
    assert raw.cuMemAddressFree(address, 4 * SIZE) == SUCCESS
    assert device.reserved == {} and device.live == {}


def test_data_moves_with_its_page(space):
    """As a pool does that moves free pages, but with data in them."""
    first, second = space.reserve(4), space.reserve(4)
    handles = [space.create() for _ in range(4)]
    for page, handle in enumerate(handles):
        space.map(first + page * SIZE, handle)
        space.device.memset(first + page * SIZE, page + 1, SIZE)
    space.unmap(first, 4)
    for page, handle in enumerate(reversed(handles)):
        space.map(second + page * SIZE, handle)
    assert space.device.read(second, 4 * SIZE) == b"".join(bytes([n]) * SIZE for n in (4, 3, 2, 1))


def test_a_page_mapped_twice_is_the_same_memory(space):
    first, second = space.reserve(1), space.reserve(1)
    handle = space.create()
    space.map(first, handle)
    space.map(second, handle)
    space.device.write(first, b"once")
    assert space.device.read(second, 4) == b"once"
    space.unmap(first)
    assert space.device.read(second, 4) == b"once"


def test_memory_goes_only_when_released_and_unmapped(space):
    address, handle = space.reserve(1), space.create()
    space.map(address, handle)
    space.device.write(address, b"kept")
    space.unmap(address)
    assert space.device.physical == SIZE
    space.map(address, handle)
    assert space.device.read(address, 4) == b"kept"
    space.unmap(address)
    assert space.raw.cuMemRelease(handle) == SUCCESS
    assert space.device.physical == 0


def test_new_memory_holds_zeros(space):
    address = space.mapped()
    space.device.memset(address, 7, SIZE)
    space.unmap(address)
    space.map(address, space.create())
    assert space.device.read(address, SIZE) == bytes(SIZE)


def test_memory_larger_than_a_page_and_part_of_it(space):
    address, handle = space.reserve(8), space.create(4)
    space.map(address, handle, pages=4)
    space.map(address + 4 * SIZE, handle, pages=2)
    space.device.memset(address, 9, 2 * SIZE)
    assert space.device.read(address + 4 * SIZE, 2 * SIZE) == b"\t" * 2 * SIZE
    assert space.device.mapped == {address: 4 * SIZE, address + 4 * SIZE: 2 * SIZE}
    space.unmap(address, 6)
    assert space.device.mapped == {} and space.device.physical == 4 * SIZE


def test_one_access_over_many_mappings(space):
    address = space.mapped(5)
    data = bytes(range(256)) * (5 * SIZE // 256)
    space.device.write(address, data)
    assert space.device.read(address, len(data)) == data
    space.device.memset(address + SIZE - 1, 0, 3 * SIZE)
    assert space.device.read(address, len(data)) == data[:SIZE - 1] + bytes(3 * SIZE) + data[4 * SIZE - 1:]


@pytest.mark.parametrize("kind", [ON_DEVICE, DEFAULT])
def test_copies_between_virtual_and_other_memory(space, kind):
    virtual, plain = space.mapped(2), space.device.malloc(2 * SIZE)
    space.device.memset(plain, 3, 2 * SIZE)
    assert space.raw.cudaMemcpyAsync(virtual, plain, 2 * SIZE, kind, None) == SUCCESS
    space.device.memset(plain, 0, 2 * SIZE)
    assert space.raw.cudaMemcpyAsync(plain, virtual + SIZE, SIZE, kind, None) == SUCCESS
    assert space.device.read(plain, SIZE + 1) == b"\3" * SIZE + b"\0"


def test_the_host_sees_mapped_memory(make_space):
    space = make_space()
    address = space.mapped(2)
    view = np.ctypeslib.as_array((ctypes.c_ubyte * (2 * SIZE)).from_address(address))
    view[:] = 5
    assert space.device.read(address, 2 * SIZE) == b"\5" * 2 * SIZE


def test_the_host_sees_lazy_memory_that_was_touched(make_space):
    space = make_space(lazy=True)
    address = space.mapped()
    space.device.write(address + 10, b"x")
    assert ctypes.string_at(address + 10, 2) == b"x\0"


@pytest.mark.parametrize("alignment", [0, 1, SIZE, 64 * SIZE, 1 << 30])
def test_alignment_of_addresses(space, alignment):
    for pages in (1, 3, 100):
        assert space.reserve(pages, alignment=alignment) % max(alignment, SIZE) == 0


@optimised                      # a sanitizer keeps a shadow of them
def test_reservations_cost_no_memory(make_space):
    space = make_space("80GiB", granularity="2MiB")
    for _ in range(8):
        space.reserve(1 << 20)      # 2 TiB
    assert space.device.allocated == 0


# --- capacity ---------------------------------------------------------------------------------------------------------

def test_capacity_is_shared_with_cuda_malloc(make_space):
    space = make_space(10 * SIZE)
    plain = space.device.malloc(4 * SIZE + 1)
    handles = [space.create() for _ in range(5)]
    assert space.raw.create(SIZE) == (OUT_OF_MEMORY, 0)
    assert space.device.mem_info() == (SIZE - 1, 10 * SIZE)
    with pytest.raises(CudaError, match="cudaErrorMemoryAllocation"):
        space.device.malloc(SIZE)
    space.device.free(plain)
    handles.append(space.create(5))
    assert space.device.mem_info()[0] == 0
    assert space.raw.cuMemRelease(handles.pop()) == SUCCESS
    assert space.device.malloc(5 * SIZE)
    assert space.device.physical == 5 * SIZE and space.device.allocated == 10 * SIZE


@pytest.mark.parametrize("pages", [1 << 20, 1 << 51, (1 << 52) - 1])
def test_sizes_that_no_device_has(space, pages):
    assert space.raw.create(pages * SIZE) == (OUT_OF_MEMORY, 0)
    assert space.device.physical == 0


@pytest.mark.parametrize("pages", [1 << 51, (1 << 52) - 1])
def test_ranges_that_no_address_space_has(space, pages):
    assert space.raw.reserve(pages * SIZE) == (OUT_OF_MEMORY, 0)
    assert space.raw.reserve(SIZE, alignment=1 << 63) == (OUT_OF_MEMORY, 0)
    assert space.device.reserved == {}


# --- access -----------------------------------------------------------------------------------------------------------

def test_no_access_before_it_is_set(abused):
    address = abused.mapped(access=None)
    for action in (lambda: abused.device.read(address, 1), lambda: abused.device.write(address, b"x"),
                   lambda: abused.device.memset(address, 0, SIZE)):
        with pytest.raises(CudaError, match="cudaErrorInvalidValue"):
            action()
        assert "has given no access" in abused.device.errors[-1]
    assert abused.raw.set_access(address, SIZE) == SUCCESS
    assert abused.device.read(address, 2) == b"\0\0"


def test_access_for_reading_only_and_taken_back(abused):
    address = abused.mapped(2)
    abused.device.write(address, b"abc")
    assert abused.raw.set_access(address, SIZE, READ) == SUCCESS
    assert abused.device.read(address, 3) == b"abc"
    with pytest.raises(CudaError, match="cudaErrorInvalidValue"):
        abused.device.write(address, b"xyz")
    assert "for reading only" in abused.device.errors[-1]
    assert abused.raw.set_access(address, 2 * SIZE, NONE) == SUCCESS
    with pytest.raises(CudaError):
        abused.device.read(address, 3)
    assert "has given no access" in abused.device.errors[-1]
    assert abused.raw.set_access(address, 2 * SIZE, READ_WRITE) == SUCCESS
    assert abused.device.read(address, 3) == b"abc"


def test_access_ends_with_the_mapping(abused):
    address, handle = abused.reserve(1), abused.create()
    abused.map(address, handle)
    abused.unmap(address)
    abused.map(address, handle, access=None)
    with pytest.raises(CudaError):
        abused.device.read(address, 1)


@pytest.mark.parametrize("offset, nbytes", [(0, 1), (SIZE - 1, 2), (3 * SIZE - 1, 2), (3 * SIZE, SIZE),
                                            (SIZE, 4 * SIZE)])
def test_access_that_is_not_wholly_mapped(abused, offset, nbytes):
    """Pages 1 and 2 of 4 are mapped; the host must survive."""
    address = abused.reserve(4)
    for page in (1, 2):
        abused.map(address + page * SIZE, abused.create())
    for action in (lambda: abused.device.read(address + offset, nbytes),
                   lambda: abused.device.write(address + offset, b"x" * nbytes),
                   lambda: abused.device.memset(address + offset, 1, nbytes)):
        with pytest.raises(CudaError, match="cudaErrorInvalidValue"):
            action()
    assert len(abused.device.errors) == 3
    over = offset + nbytes > 4 * SIZE
    assert ("runs over the end" if over else "not all of it is mapped") in abused.device.errors[-1]
    assert abused.device.read(address + SIZE, 2 * SIZE) == bytes(2 * SIZE)


@pytest.mark.parametrize("kind", [TO_DEVICE, TO_HOST, ON_DEVICE, DEFAULT])
def test_copy_whose_kind_lies_about_unmapped_memory(abused, kind):
    """Reserved addresses are device memory whatever the caller says: the host has nothing there."""
    mapped, hole = abused.mapped(), abused.reserve(1)
    assert abused.raw.cudaMemcpyAsync(mapped, hole, 8, kind, None) == INVALID_VALUE
    assert abused.raw.cudaMemcpyAsync(hole, mapped, 8, kind, None) == INVALID_VALUE
    assert "cudaMemcpyAsync" in abused.device.errors[-1]


@each_kind
@pytest.mark.parametrize("action", [
    lambda space, address: space.unmap(address),
    lambda space, address: space.raw.set_access(address, SIZE, NONE),
    lambda space, address: space.device.close(),
], ids=["unmap", "no access", "close"])
def test_memory_is_really_gone_from_the_host(make_space, lazy, action):
    """A pool that touches it must not get away with that."""
    space = make_space(lazy=lazy)
    address = space.mapped()
    space.device.write(address, b"x")

    def child():
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.string_at(address, SIZE)
        action(space, address)
        ctypes.string_at(address, SIZE)

    assert os.waitstatus_to_exitcode(os.waitpid(forked(child), 0)[1]) == -signal.SIGSEGV


# --- what is refused --------------------------------------------------------------------------------------------------

def test_reserve_refuses(abused):
    raw = abused.raw
    for size in (0, 1, SIZE - 1, SIZE + 1):
        abused.refused(raw.reserve(size)[0], "multiples of the granularity")
    abused.refused(raw.reserve(SIZE, alignment=3 * SIZE)[0], "an alignment is a power of two")
    assert raw.reserve(SIZE, flags=1) == (INVALID_VALUE, 0)
    assert abused.device.reserved == {}


def test_address_free_refuses(abused):
    address, free = abused.reserve(4), abused.raw.cuMemAddressFree
    for start, size in ((address, SIZE), (address + SIZE, 3 * SIZE), (address, 5 * SIZE), (address, 0)):
        abused.refused(free(start, size), "not all of the reservation")
    abused.refused(free(address - SIZE, SIZE), "does not lie in one reservation")
    abused.refused(free(0, SIZE), "does not lie in one reservation")
    abused.map(address + SIZE, abused.create())
    abused.refused(free(address, 4 * SIZE), "still mapped")
    abused.unmap(address + SIZE)
    assert free(address, 4 * SIZE) == SUCCESS
    abused.refused(free(address, 4 * SIZE), "does not lie in one reservation")


def test_create_refuses(abused):
    for size in (0, 1, SIZE - 1, SIZE + 1):
        abused.refused(abused.raw.create(size)[0], "multiples of the granularity")
    assert abused.raw.create(SIZE, flags=1) == (INVALID_VALUE, 0)
    for prop, status in (({"type": 0}, INVALID_VALUE), ({"handle_types": 1}, NOT_SUPPORTED)):
        assert abused.raw.create(SIZE, abused.raw.prop(**prop)) == (status, 0)
    prop = abused.raw.prop()
    prop.location.type = 2
    assert abused.raw.create(SIZE, prop) == (NOT_SUPPORTED, 0)
    assert abused.raw.create(SIZE, abused.raw.prop(id=0x7FFFFFFF)) == (INVALID_DEVICE, 0)
    assert abused.device.physical == 0 and len(abused.device.errors) == 4


def test_release_refuses(abused):
    release, handle = abused.raw.cuMemRelease, abused.create()
    assert release(handle) == SUCCESS
    abused.refused(release(handle), "the memory was released")
    again = abused.create()
    assert again != handle
    abused.refused(release(handle), "the memory was released")
    for wrong in (0, 1, handle + 64, handle ^ 1 << 63, 2**64 - 1):
        abused.refused(release(wrong), "no memory has this handle" if wrong != handle + 64 else "")
    assert abused.device.physical == SIZE and release(again) == SUCCESS


def test_map_refuses(abused):
    address, handle, raw = abused.reserve(4), abused.create(2), abused.raw
    for size in (0, 1, SIZE + 1):
        abused.refused(raw.map(address, size, handle), "multiples of the granularity")
    abused.refused(raw.map(address + 1, SIZE, handle), "multiples of the granularity")
    abused.refused(raw.map(address, SIZE, handle, offset=SIZE), "at offset 0")
    assert raw.map(address, SIZE, handle, flags=1) == INVALID_VALUE
    abused.refused(raw.map(address, 3 * SIZE, handle), "smaller than the range")
    abused.refused(raw.map(address + 3 * SIZE, 2 * SIZE, handle), "does not lie in one reservation")
    abused.refused(raw.map(address - SIZE, SIZE, handle), "does not lie in one reservation")
    abused.refused(raw.map(address, SIZE, 0), "no memory has this handle")
    gone = abused.create()
    assert raw.cuMemRelease(gone) == SUCCESS
    abused.refused(raw.map(address, SIZE, gone), "the memory was released")
    abused.map(address + SIZE, handle, pages=2)
    for start, size in ((address + SIZE, SIZE), (address + 2 * SIZE, SIZE), (address, 2 * SIZE),
                        (address + 2 * SIZE, 2 * SIZE)):
        abused.refused(raw.map(start, size, handle), "something is mapped there")
    assert abused.device.mapped == {address + SIZE: 2 * SIZE}


@pytest.mark.parametrize("name", ["cuMemUnmap", "cuMemSetAccess"])
def test_only_whole_mappings(abused, name):
    """Pages 1 and 2 of 6 are one mapping, page 3 is another."""
    address, raw = abused.reserve(6), abused.raw
    abused.map(address + SIZE, abused.create(2), pages=2)
    abused.map(address + 3 * SIZE, abused.create())
    before = abused.device.mapped
    call = raw.set_access if name == "cuMemSetAccess" else raw.cuMemUnmap
    for first, pages, text in ((1, 1, "inside a mapping"), (2, 1, "inside a mapping"), (2, 2, "inside a mapping"),
                               (0, 3, "not all of it is mapped"), (3, 2, "not all of it is mapped"),
                               (4, 1, "not all of it is mapped"), (3, 4, "does not lie in one reservation"),
                               (-1, 1, "does not lie in one reservation")):
        abused.refused(call(address + first * SIZE, pages * SIZE), text)
    for start, size in ((address + SIZE, 0), (address + SIZE, SIZE + 1), (address + SIZE + 1, SIZE)):
        abused.refused(call(start, size), "multiples of the granularity")
    assert abused.device.mapped == before
    abused.device.memset(address + SIZE, 1, 3 * SIZE)
    assert call(address + SIZE, 3 * SIZE) == SUCCESS


def test_set_access_refuses(abused):
    address = abused.mapped()
    assert [abused.raw.set_access(address, SIZE, flags) for flags in (2, 4, -1)] == [INVALID_VALUE] * 3
    assert abused.raw.set_access(address, SIZE, count=0) == INVALID_VALUE
    assert abused.raw.set_access(address, SIZE, type=2) == NOT_SUPPORTED
    assert abused.raw.set_access(address, SIZE, id=0x7FFFFFFF) == INVALID_DEVICE
    assert abused.device.errors == []
    abused.device.write(address, b"x")


def test_free_of_virtual_memory(abused):
    address = abused.mapped()
    assert abused.raw.cudaFree(address) == abused.raw.cudaFreeAsync(address, None) == INVALID_VALUE
    assert all("cuMemUnmap and cuMemAddressFree free it" in error for error in abused.device.errors)
    assert abused.device.read(address, 1) == b"\0"


def test_another_device_is_current(make_space):
    mine = make_space(misuse=True)
    address, handle, number = mine.mapped(), mine.create(), mine.raw.current()
    other = make_space(misuse=True, ordinal=7)
    raw = other.raw
    for status in (raw.cuMemUnmap(address, SIZE), raw.set_access(address, SIZE),
                   raw.cuMemAddressFree(address, SIZE)):
        assert status == INVALID_VALUE
        assert "belongs to device 0" in other.device.errors[-1] and "with device 7 current" in mine.device.errors[-1]
    other.refused(raw.cuMemRelease(handle), "the memory belongs to device 0")
    other.refused(raw.map(other.reserve(1), SIZE, handle), "the memory belongs to device 0")
    assert raw.create(SIZE, raw.prop(id=number)) == (INVALID_DEVICE, 0)
    assert "the location is not the current device" in other.device.errors[-1]
    assert raw.set_access(other.mapped(), SIZE, id=number) == INVALID_DEVICE
    assert mine.device.mapped == {address: SIZE} and mine.device.physical == 2 * SIZE


def test_no_device_is_current(make_space):
    space = make_space()
    address, handle, location = space.mapped(), space.create(), space.raw.prop()
    sim.set_current_device(None)
    raw = space.raw
    assert raw.reserve(SIZE) == raw.create(SIZE, location) == (INVALID_CONTEXT, 0)
    assert raw.cuMemUnmap(address, SIZE) == raw.cuMemRelease(handle) == raw.cuMemAddressFree(address, SIZE) \
        == raw.map(address, SIZE, handle) == raw.set_access(address, SIZE) == INVALID_CONTEXT
    assert space.device.granularity == SIZE     # which enters the device


def test_calls_on_a_closed_device(make_space):
    space = make_space()
    address = space.mapped()
    space.device.close()
    assert space.raw.cuMemUnmap(address, SIZE) == INVALID_CONTEXT
    assert space.raw.reserve(SIZE) == (INVALID_CONTEXT, 0)
    assert (space.device.reserved, space.device.mapped, space.device.physical) == ({}, {}, 0)


@pytest.mark.parametrize("mode, forbidden", [("global", True), ("thread_local", True), ("relaxed", False)])
def test_calls_during_a_capture(make_space, mode, forbidden):
    space = make_space(misuse=forbidden)
    raw, address, handle = space.raw, space.reserve(4), space.create()
    calls = {
        "cuMemAddressReserve": lambda: raw.reserve(SIZE)[0], "cuMemCreate": lambda: raw.create(SIZE)[0],
        "cuMemMap": lambda: raw.map(address, SIZE, handle), "cuMemSetAccess": lambda: raw.set_access(address, SIZE),
        "cuMemUnmap": lambda: raw.cuMemUnmap(address, SIZE), "cuMemRelease": lambda: raw.cuMemRelease(handle),
        "cuMemAddressFree": lambda: raw.cuMemAddressFree(address, 4 * SIZE),
    }
    for name, call in calls.items():
        stream = space.device.stream()
        stream.begin_capture(mode)
        assert call() == (CAPTURE_UNSUPPORTED if forbidden else SUCCESS)
        if forbidden:
            assert name in space.device.errors[-1] and "capturing" in space.device.errors[-1]
            with pytest.raises(CudaError, match="cudaErrorStreamCaptureInvalidated"):
                stream.end_capture()
        else:
            stream.end_capture().release()


def test_calls_from_a_host_function(make_space):
    space = make_space(misuse=True)
    number, found = space.raw.current(), []
    prop = space.raw.prop(id=number)

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def function(_):
        found.append((space.raw.reserve(SIZE)[0], space.raw.create(SIZE, prop)[0]))

    stream = space.device.stream()
    assert space.raw.cudaLaunchHostFunc(stream.handle, function, None) == SUCCESS
    stream.synchronize()
    assert found == [(NOT_PERMITTED, NOT_PERMITTED)]


# --- queued work ------------------------------------------------------------------------------------------------------

def test_kernels_reach_virtual_memory(space):
    address, stream = space.mapped(3), space.device.stream()
    stream.work(5)
    stream.write(address + SIZE // 2, 2 * SIZE, 6)
    read = stream.read(address, 3 * SIZE)
    assert not read.done
    stream.synchronize()
    assert read.value == bytes(SIZE // 2) + b"\6" * 2 * SIZE + bytes(SIZE // 2)


@pytest.mark.parametrize("queue", [lambda stream, address: stream.write(address, 2 * SIZE, 1),
                                   lambda stream, address: stream.read(address, 2 * SIZE)])
@pytest.mark.parametrize("change, text", [
    (lambda space, address: space.unmap(address + SIZE), "has been unmapped"),
    (lambda space, address: (space.unmap(address + SIZE), space.map(address + SIZE, space.create())),
     "has been unmapped"),
    (lambda space, address: space.raw.set_access(address, SIZE, NONE), "has given no access"),
], ids=["unmapped", "remapped", "no access"])
def test_memory_that_changes_under_queued_work(abused, queue, change, text):
    address, stream = abused.mapped(2), abused.device.stream()
    stream.work(5)
    queue(stream, address)
    change(abused, address)
    assert abused.device.errors == []
    with pytest.raises(CudaError, match="cudaErrorIllegalAddress"):
        abused.device.synchronize()
    assert len(abused.device.errors) == 1 and text in abused.device.errors[0]


def test_work_queued_before_its_memory_is_mapped(space):
    """CUDA looks at the addresses when the work runs."""
    address, stream = space.reserve(1), space.device.stream()
    stream.work(5)
    stream.write(address, SIZE, 8)
    space.map(address, space.create())
    stream.synchronize()
    assert space.device.read(address, SIZE) == b"\b" * SIZE


@pytest.mark.parametrize("prepare, text", [
    (lambda space: space.reserve(2), "not all of it is mapped"),
    (lambda space: space.mapped(2, access=None), "has given no access"),
    (lambda space: space.mapped(1), "runs over the end"),
])
def test_kernel_on_memory_that_is_not_there(abused, prepare, text):
    address, stream = prepare(abused), abused.device.stream()
    stream.write(address, 2 * SIZE, 1)
    with pytest.raises(CudaError, match="cudaErrorIllegalAddress"):
        stream.synchronize()
    assert text in abused.device.errors[0] and f"on stream {stream.id}" in abused.device.errors[0]


def test_kernel_that_writes_where_it_may_only_read(abused):
    address, stream = abused.mapped(access=READ), abused.device.stream()
    assert stream.read(address, 4) is not None
    stream.synchronize()
    stream.write(address, 4, 1)
    with pytest.raises(CudaError):
        stream.synchronize()
    assert "for reading only" in abused.device.errors[0]


def test_unmapping_under_work_that_may_still_run(make_space):
    """It ran in virtual time, but nothing has told the host so: on a GPU it might run still."""
    space = make_space(misuse=True)
    address, stream = space.mapped(2), space.device.stream()
    stream.write(address, SIZE, 1)
    space.device.advance(100)
    assert space.device.pending == 0
    space.unmap(address)
    assert len(space.device.errors) == 1
    assert f"the work of stream {stream.id}" in space.device.errors[0] and "cuMemUnmap" in space.device.errors[0]
    space.unmap(address + SIZE)         # which nothing used
    assert len(space.device.errors) == 1


@pytest.mark.parametrize("learn", [
    lambda device, stream, event: stream.synchronize(), lambda device, stream, event: event.query(),
    lambda device, stream, event: device.synchronize()], ids=["synchronize", "query", "device"])
def test_unmapping_once_the_host_knows(space, learn):
    address, stream = space.mapped(), space.device.stream()
    stream.write(address, SIZE, 1)
    event = stream.record()
    space.device.advance(100)
    learn(space.device, stream, event)
    space.unmap(address)


def test_races_are_found_in_virtual_memory(make_space):
    space = make_space(races=True)
    address = space.mapped(2)
    one, two = space.device.stream(), space.device.stream()
    one.write(address, SIZE + 10, 1)
    two.write(address + SIZE, SIZE, 2)
    space.device.synchronize()
    [race] = space.device.races
    assert (race.first.address, race.second.address) == (address, address + SIZE)


def test_no_race_with_what_was_at_the_address_before(space):
    address, handle = space.reserve(1), space.create()
    space.map(address, handle)
    one, two = space.device.stream(), space.device.stream()
    one.write(address, SIZE, 1)
    one.synchronize()
    space.unmap(address)
    space.map(address, space.create())
    two.write(address, SIZE, 2)
    space.device.synchronize()
    assert space.device.read(address, 1) == b"\2"


# --- faults, delays, the log ------------------------------------------------------------------------------------------

def each_call(space):
    """Return functions that make each call, by name, in an order in which all succeed."""
    raw, state = space.raw, {}
    size, prop = ctypes.c_size_t(), space.raw.prop()
    address, handle = space.reserve(2), space.create()
    doomed = space.reserve(1)

    def create():
        status, state["made"] = raw.create(SIZE)
        return status

    return {
        "cuMemGetAllocationGranularity": lambda: raw.cuMemGetAllocationGranularity(
            ctypes.byref(size), ctypes.byref(prop), 0),
        "cuMemAddressReserve": lambda: raw.reserve(SIZE)[0],
        "cuMemAddressFree": lambda: raw.cuMemAddressFree(doomed, SIZE),
        "cuMemCreate": create,
        "cuMemRelease": lambda: raw.cuMemRelease(state["made"]),
        "cuMemMap": lambda: raw.map(address, SIZE, handle),
        "cuMemSetAccess": lambda: raw.set_access(address, SIZE),
        "cuMemUnmap": lambda: raw.cuMemUnmap(address, SIZE),
    }


def state_of(device):
    return device.reserved, device.mapped, device.physical, device.mem_info()


def test_fault_at_each_call(space):
    for name, call in each_call(space).items():
        before = state_of(space.device)
        space.device.fail(name, code="CUDA_ERROR_UNKNOWN")
        assert call() == 999
        assert state_of(space.device) == before
        assert call() == SUCCESS
        space.device.check()


def test_fault_by_default_is_that_memory_is_out(space):
    space.device.fail("cuMemCreate", after=1)
    space.create()
    assert space.raw.create(SIZE) == (OUT_OF_MEMORY, 0)
    name = ctypes.c_char_p()
    assert space.raw.cuGetErrorName(OUT_OF_MEMORY, ctypes.byref(name)) == SUCCESS
    assert name.value == b"CUDA_ERROR_OUT_OF_MEMORY"


def test_an_error_of_the_driver_has_its_own_name(make_device):
    device = make_device()
    for call, code, name in (("cuMemGetAllocationGranularity", 2, "CUDA_ERROR_OUT_OF_MEMORY"),
                             ("cuDeviceGetAttribute", "CUDA_ERROR_INVALID_CONTEXT", "CUDA_ERROR_INVALID_CONTEXT"),
                             ("cudaSetDevice", 2, "cudaErrorMemoryAllocation"),
                             ("cuDeviceGetAttribute", 35, "unknown error")):
        device.fail(call, code=code)
        with pytest.raises(CudaError) as caught:
            device.granularity
        assert (caught.value.call, caught.value.name) == (call, name)


def test_delay_of_each_call(make_space):
    space = make_space()
    for name, call in each_call(space).items():
        space.device.delay(name, 0.02)
        start = time.monotonic()
        assert call() == SUCCESS
        assert time.monotonic() - start >= 0.02
        space.device.delay(name, 0)


def test_a_device_that_closes_while_a_call_is_delayed(make_space):
    space = make_space()
    space.device.delay("cuMemCreate", 0.3)
    found, started = [], threading.Event()

    def create():
        sim.set_current_device(space.device)
        prop = space.raw.prop()
        started.set()
        found.append(space.raw.create(SIZE, prop))

    thread = threading.Thread(target=create)
    thread.start()
    started.wait()
    while space.device.calls["cuMemCreate"] == 0:
        time.sleep(0.001)
    space.device.close()
    thread.join()
    assert found == [(INVALID_CONTEXT, 0)]


def test_log_and_counts(space):
    address, handle = space.reserve(2, alignment=2 * SIZE), space.create()
    space.map(address, handle)
    space.unmap(address)
    assert space.raw.cuMemRelease(handle) == space.raw.cuMemAddressFree(address, 2 * SIZE) == SUCCESS
    entries = [(name, arguments) for name, arguments, current in space.device.log if name in CALLS[1:]]
    assert entries == [
        ("cuMemAddressReserve", (2 * SIZE, 2 * SIZE, 0, 0)), ("cuMemCreate", (SIZE, 0)),
        ("cuMemMap", (address, SIZE, 0, handle, 0)), ("cuMemSetAccess", (address, SIZE, READ_WRITE, 1)),
        ("cuMemUnmap", (address, SIZE)), ("cuMemRelease", (handle,)), ("cuMemAddressFree", (address, 2 * SIZE))]
    assert all(space.device.calls[name] == 1 for name in CALLS[1:])


# --- what it costs the host -------------------------------------------------------------------------------------------

def host_pages():
    """Bytes of shared memory that the process has touched."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssShmem"))


def test_host_memory_is_used_only_where_data_is_and_given_back(make_space):
    space = make_space("80GiB", granularity="2MiB")
    before = host_pages()
    address, handle = space.reserve(1 << 12), space.create(1 << 12)         # 8 GiB
    space.map(address, handle, pages=1 << 12)
    assert host_pages() - before < MIB
    space.device.memset(address, 1, 32 * MIB)
    assert host_pages() - before >= 32 * MIB
    assert space.raw.cuMemRelease(handle) == SUCCESS
    space.unmap(address, 1 << 12)
    assert host_pages() - before < MIB


def open_files():
    return len(os.listdir("/proc/self/fd"))


@each_kind
def test_nothing_is_left_after_close(make_space, lazy):
    def once():
        space = make_space(lazy=lazy)
        address = space.mapped(3)
        space.create()
        space.device.memset(address, 1, 3 * SIZE)
        space.device.close()
        return address

    once()
    before = open_files()
    address = once()
    assert open_files() == before
    with open("/proc/self/maps") as maps:
        assert not any(int(line.split("-")[0], 16) <= address < int(line.split("-")[1].split()[0], 16) for line in maps
                       if "cuda_pool" in line)


def test_no_file_without_virtual_memory(make_space):
    before = open_files()
    space = make_space()
    space.reserve(4)
    space.create()
    assert open_files() == before


def test_the_host_has_no_file_to_give(make_space):
    """Then access is refused, and all is as before."""
    space = make_space()
    address, handle = space.reserve(1), space.create()
    space.map(address, handle, access=None)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        try:
            while True:
                taken.append(os.dup(0))
        except OSError:
            pass
        assert space.raw.set_access(address, SIZE) == OUT_OF_MEMORY
    finally:
        for file in taken:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert space.raw.set_access(address, SIZE) == SUCCESS
    space.device.write(address, b"x")


@pytest.mark.slow
def test_a_hundred_thousand_pages_stay_fast(make_space):
    """Twice as many take about twice as long, so no call looks at all the others."""
    spent = {}
    for pages in (50_000, 100_000):
        space = make_space("1TiB", granularity="2MiB", lazy=True)
        address = space.reserve(pages)
        start = time.process_time()
        for page in range(pages):
            handle = space.raw.create(2 * MIB)[1]
            assert space.raw.map(address + page * 2 * MIB, 2 * MIB, handle) == SUCCESS
            assert space.raw.cuMemRelease(handle) == SUCCESS
        assert space.raw.set_access(address, pages * 2 * MIB) == SUCCESS
        for page in range(pages):
            assert space.raw.cuMemUnmap(address + page * 2 * MIB, 2 * MIB) == SUCCESS
        spent[pages] = time.process_time() - start
        assert space.device.physical == 0
    assert spent[100_000] < 4 * spent[50_000] + 1


def test_neighbours_are_one_mapping_of_the_host(make_space):
    """Else a device of 80 GiB would run into the host's limit on mappings."""
    space = make_space("8GiB", granularity="2MiB")
    with open("/proc/self/maps") as maps:
        before = len(maps.readlines())
    space.mapped(1000)
    with open("/proc/self/maps") as maps:
        assert len(maps.readlines()) - before < 20


# --- threads and forks ------------------------------------------------------------------------------------------------

def test_threads_map_and_unmap_at_once(make_space):
    space = make_space()
    failed = []

    def work():
        sim.set_current_device(space.device)
        for _ in range(100):
            address = space.mapped(3)
            space.device.memset(address, 1, 3 * SIZE)
            space.unmap(address, 3)
            if space.raw.cuMemAddressFree(address, 3 * SIZE) != SUCCESS:
                failed.append(address)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == [] and state_of(space.device)[:3] == ({}, {}, 0)


@each_kind
def test_child_of_a_fork_takes_nothing_from_its_parent(make_space, lazy):
    space = make_space(lazy=lazy)
    address, handle = space.reserve(2), space.create()
    space.map(address, handle)
    space.device.write(address, b"parent's")

    def child():
        assert space.device.read(address, 8) == b"parent's"
        space.unmap(address)
        assert space.raw.cuMemRelease(handle) == SUCCESS
        assert space.device.physical == 0
        space.device.close()

    assert os.waitstatus_to_exitcode(os.waitpid(forked(child), 0)[1]) == 0
    assert space.device.read(address, 8) == b"parent's"
    assert space.device.mapped == {address: SIZE}
    space.device.check()


# --- a random program against a model ---------------------------------------------------------------------------------

class Model(RuleBasedStateMachine):
    """The device against dictionaries: what is mapped where, and one byte for each page of memory."""

    pages = 8

    @initialize(lazy=st.booleans())
    def start(self, lazy):
        self.device = sim.Device(24 * SIZE, granularity=SIZE, lazy=lazy)
        self.space = Space(self.device)
        self.ranges = []                # addresses of reservations
        self.handles = {}               # handle: name
        self.sizes = {}                 # name of memory that exists: pages
        self.bytes = {}                 # (name, page): value
        self.maps = {}                  # address: (name, pages, access)
        self.made = 0

    def teardown(self):
        if hasattr(self, "device"):
            self.device.close()
            sim.set_current_device(None)

    def covered(self, first, end):
        """The mappings in a range, if it consists of whole ones; else None."""
        found, at = [], first
        while at < end:
            if at not in self.maps:
                return None
            found.append(at)
            at += self.maps[at][1] * SIZE
        return found if at == end and found else None

    def forget_unused(self):
        kept = {name for name, _, _ in self.maps.values()} | set(self.handles.values())
        self.sizes = {name: pages for name, pages in self.sizes.items() if name in kept}

    @precondition(lambda self: len(self.ranges) < 3)
    @rule()
    def reserve(self):
        self.ranges.append(self.space.reserve(self.pages))

    @precondition(lambda self: self.ranges)
    @rule(data=st.data())
    def free(self, data):
        address = data.draw(st.sampled_from(self.ranges))
        empty = not any(address <= at < address + self.pages * SIZE for at in self.maps)
        assert self.space.raw.cuMemAddressFree(address, self.pages * SIZE) == (SUCCESS if empty else INVALID_VALUE)
        if empty:
            self.ranges.remove(address)

    @rule(pages=st.integers(1, 4))
    def create(self, pages):
        status, handle = self.space.raw.create(pages * SIZE)
        fits = sum(self.sizes.values()) + pages <= 24
        assert status == (SUCCESS if fits else OUT_OF_MEMORY)
        if fits:
            self.made += 1
            self.handles[handle] = self.made
            self.sizes[self.made] = pages
            self.bytes.update({(self.made, page): 0 for page in range(pages)})

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def release(self, data):
        handle = data.draw(st.sampled_from(list(self.handles)))
        assert self.space.raw.cuMemRelease(handle) == SUCCESS
        del self.handles[handle]
        self.forget_unused()

    @precondition(lambda self: self.handles and self.ranges)
    @rule(data=st.data(), page=st.integers(0, 7), pages=st.integers(1, 4))
    def map(self, data, page, pages):
        handle = data.draw(st.sampled_from(list(self.handles)))
        base = data.draw(st.sampled_from(self.ranges))
        name, address = self.handles[handle], base + page * SIZE
        good = page + pages <= self.pages and pages <= self.sizes[name] and not any(
            at < address + pages * SIZE and address < at + mapped * SIZE for at, (_, mapped, _) in self.maps.items())
        assert self.space.raw.map(address, pages * SIZE, handle) == (SUCCESS if good else INVALID_VALUE)
        if good:
            self.maps[address] = name, pages, NONE

    @precondition(lambda self: self.ranges)
    @rule(data=st.data(), page=st.integers(0, 7), pages=st.integers(1, 8),
          access=st.sampled_from([NONE, READ, READ_WRITE, READ_WRITE]))
    def set_access(self, data, page, pages, access):
        address = data.draw(st.sampled_from([base + page * SIZE for base in self.ranges] + list(self.maps)))
        found = self.covered(address, address + pages * SIZE)
        status = self.space.raw.set_access(address, pages * SIZE, access)
        assert status == (SUCCESS if found else INVALID_VALUE)
        for at in found or ():
            self.maps[at] = *self.maps[at][:2], access

    @precondition(lambda self: self.maps)
    @rule(data=st.data(), pages=st.integers(1, 8))
    def unmap(self, data, pages):
        address = data.draw(st.sampled_from(list(self.maps)))
        found = self.covered(address, address + pages * SIZE)
        assert self.space.raw.cuMemUnmap(address, pages * SIZE) == (SUCCESS if found else INVALID_VALUE)
        for at in found or ():
            del self.maps[at]
        self.forget_unused()

    @precondition(lambda self: self.maps)
    @rule(data=st.data(), value=st.integers(1, 255))
    def write(self, data, value):
        address = data.draw(st.sampled_from(list(self.maps)))
        name, pages, access = self.maps[address]
        if access == READ_WRITE:
            self.device.memset(address, value, pages * SIZE)
            self.bytes.update({(name, page): value for page in range(pages)})
        else:
            with pytest.raises(CudaError):
                self.device.memset(address, value, pages * SIZE)

    @invariant()
    def agrees(self):
        if not hasattr(self, "device"):
            return
        self.device.check()
        assert self.device.reserved == {address: self.pages * SIZE for address in self.ranges}
        assert self.device.mapped == {address: pages * SIZE for address, (_, pages, _) in self.maps.items()}
        assert self.device.physical == sum(self.sizes.values()) * SIZE
        for address, (name, pages, access) in self.maps.items():
            if access != NONE:
                expected = b"".join(bytes([self.bytes[name, page]]) * SIZE for page in range(pages))
                assert self.device.read(address, pages * SIZE) == expected


TestModel = Model.TestCase
TestModel.settings = effort(60)
