"""Pools that grow: several regions in one segment, and the order in which memory is looked for.

The cases by number are faults that users of other pools reported. Every pool is checked after each operation.
"""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

import cuda_pool as cp
from cuda_pool import _testing, sim

from .models import (
    GROWING, PLACES, REUSE, ROUTES, BlocksModel, CheckedPool, at_place, comparable, effort, log_uniform)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
STEP = 2 * MIB

each_route = pytest.mark.parametrize("settings", ROUTES)
each_reuse = pytest.mark.parametrize("reuse", REUSE)


@pytest.fixture
def backing():
    """What grows by regions; how pages come and go is in test_virtual.py."""
    return "malloc"


@pytest.fixture
def device(make_device):
    return make_device("512MiB")


def mallocs(device):
    """Return the sizes that the driver was asked for since the log was cleared."""
    return [args[0] for name, args, _ in device.log if name == "cudaMalloc"]


def fill(device, ptr, nbytes, value):
    device.memset(ptr, value, nbytes)
    return ptr, nbytes, value


def verify(device, block):
    ptr, nbytes, value = block
    assert device.read(ptr, nbytes) == bytes([value]) * nbytes


# Sizes and limits

@each_route
def test_case_04_from_256_bytes_to_1024(make_growing, settings):
    pool = make_growing(256, 1024, **settings)
    ptr = pool.alloc(1024)
    stats = pool.stats()
    assert (stats.reserved, stats.used, stats.capacity) == (1024, 1024, 1024)
    with pytest.raises(cp.OutOfMemoryError) as caught:
        pool.alloc(1)
    assert (caught.value.reserved, caught.value.capacity) == (1024, 1024)
    pool.free(ptr)


@each_route
def test_case_04_at_most_768(make_growing, settings):
    pool = make_growing(256, 768, **settings)
    assert pool.alloc(256) and pool.alloc(512)
    assert pool.stats().reserved == pool.stats().used == 768


@each_route
@pytest.mark.parametrize("start", [1_000_000, MIB, 1_000_031])
def test_case_05_eight_of_8_mib_in_64(make_growing, device, settings, start):
    pool = make_growing(start, "64MiB", **settings)
    blocks = [fill(device, pool.alloc(8 * MIB), 8 * MIB, number) for number in range(8)]
    for block in blocks:
        verify(device, block)
    assert pool.stats().reserved <= 64 * MIB


@each_route
def test_case_06_two_of_8_gib_on_a_device_of_32510_mib(make_device, settings):
    device = make_device(32510 * MIB)
    pool = CheckedPool("1GiB", device=device, growth="dynamic", **settings)
    assert pool.alloc(8 * GIB) and pool.alloc(8 * GIB)
    assert pool.stats().reserved <= 32510 * MIB == pool.stats().capacity
    pool.close()


@pytest.mark.parametrize("left, wanted", [(5 * MIB, 3 * MIB + 256), (5 * MIB, 5 * MIB), (300 * KIB, 300 * KIB)])
def test_case_07_exactly_what_is_needed_when_the_usual_step_is_refused(make_device, left, wanted):
    device = make_device(64 * MIB + left)
    pool = CheckedPool("64MiB", device=device, growth="dynamic", max_capacity="1GiB")
    pool.alloc(64 * MIB)
    device.clear_log()
    assert pool.alloc(wanted)
    sizes = mallocs(device)
    assert sizes[-1] == wanted and all(size % STEP == 0 and size > left for size in sizes[:-1])
    assert pool.stats().reserved == 64 * MIB + wanted
    pool.close()


@each_route
@pytest.mark.parametrize("start", [MIB, 100 * MIB, 512 * MIB])
def test_case_08_a_freed_half_and_three_quarters(make_device, settings, start):
    device = make_device("2GiB")
    pool = CheckedPool(start, device=device, growth="dynamic", max_capacity="1GiB", **settings)
    pool.free(pool.alloc(512 * MIB))
    assert pool.alloc(768 * MIB)
    assert pool.stats().reserved <= GIB
    pool.close()


@each_route
@pytest.mark.parametrize("start", [MIB, 100 * MIB, 300 * MIB])
@pytest.mark.parametrize("freed", [0, 1])
def test_case_09_two_of_300_and_one_of_600(make_device, settings, start, freed):
    device = make_device("2GiB")
    pool = CheckedPool(start, device=device, growth="dynamic", max_capacity=1000 * MIB, **settings)
    blocks = [pool.alloc(300 * MIB) for _ in range(2)]
    pool.free(blocks[freed])
    assert pool.alloc(600 * MIB)
    pool.close()


@each_route
@pytest.mark.parametrize("start", [256, MIB, 64 * MIB])
def test_case_10_growing_sizes(make_growing, device, settings, start):
    pool = make_growing(start, "64MiB", **settings)
    for number in range(1, 65):
        ptr = pool.alloc(number * MIB)
        verify(device, fill(device, ptr + number * MIB - 1000, 1000, number))
        pool.free(ptr)
    assert pool.stats().reserved <= 64 * MIB


@pytest.mark.parametrize("how", ["free", "free_async"])
@pytest.mark.parametrize("settings", [{}, {"slab_max": 0, "mid_max": 0}])
def test_case_10_sizes_that_grow_leave_nothing_behind(make_growing, device, settings, how):
    """Without a limit, too: reserved stays within twice the peak and a step."""
    pool = make_growing("1MiB", **settings)
    for number in range(1, 65):
        ptr = pool.alloc(number * MIB)
        assert pool.stats().reserved <= 2 * number * MIB + STEP
        getattr(pool, how)(ptr)
    assert pool.stats().grow_count < 40


@each_route
@each_reuse
def test_case_15_freed_alternately_on_two_streams(device, make_growing, settings, reuse):
    pool, streams = make_growing("1MiB", "64MiB", reuse=reuse, **settings), [device.stream(), device.stream()]
    blocks = [pool.alloc(MIB, streams[number % 2]) for number in range(64)]
    for number, ptr in enumerate(blocks):
        streams[number % 2].write(ptr, MIB, number)
        pool.free_async(ptr, streams[number % 2])
    device.synchronize()
    ptr = pool.alloc(64 * MIB, streams[0])
    streams[0].write(ptr, 64 * MIB, 1)
    device.synchronize()


@pytest.mark.parametrize("start", [MIB, 16 * MIB])
def test_case_16_reserved_does_not_creep(make_device, start):
    pool = cp.Pool(start, device=make_device("8GiB"), growth="dynamic")
    rng = random.Random(16)
    sizes = [rng.choice((100, 5000, 70_000, 3 * MIB)) * rng.randint(1, 9) for _ in range(5000)]
    order = [rng.randrange(200) for _ in sizes]
    reserved = []
    for _ in range(10):
        live = []
        for nbytes, at in zip(sizes, order):
            live.append(pool.alloc(nbytes))
            if len(live) > 200:
                pool.free(live.pop(at))
        for ptr in live:
            pool.free(ptr)
        pool.check()
        reserved.append(pool.stats().reserved)
    assert len(set(reserved[1:])) == 1


@each_route
def test_case_19_memory_is_kept_until_it_is_trimmed(make_growing, device, settings):
    pool = make_growing("1MiB", **settings)
    for _ in range(1000):
        pool.free(pool.alloc(5 * MIB))
        device.synchronize()
    assert pool.stats().upstream_calls["cudaMalloc"] == 2 and pool.stats().grow_count == 1


@pytest.mark.parametrize("settings", [{}, {"slab_max": 0}])
def test_case_20_reserved_is_at_most_twice_the_peak(make_device, settings):
    load = {"operations": 200_000, "slots": 2000, "smallest": 1, "doublings": 22, "seed": 20}
    with cp.Pool("1MiB", device=make_device("8GiB"), growth="dynamic", **settings) as pool:
        figures = _testing.churn(pool, check_every=20_000, **load)
        stats = pool.stats()
        assert figures["refused"] == 0 and stats.used == stats.requested == 0
        assert stats.reserved_high <= 2 * figures["requested_high"]


@each_reuse
def test_case_24_space_for_all_streams(make_growing, device, reuse):
    """Each stream's share of the peak of live bytes is there for it: nobody waits for another."""
    pool, streams = make_growing("4MiB", reuse=reuse), [device.stream() for _ in range(4)]
    for _ in range(5):
        blocks = [(pool.alloc(MIB, stream), stream) for stream in streams]
        for ptr, stream in blocks:
            stream.write(ptr, MIB, 1, ticks=100)
            pool.free_async(ptr, stream)
    assert device.calls["cudaStreamWaitEvent"] == 0 and device.now == 0
    device.synchronize()


@each_reuse
@each_route
def test_case_30_pending_work_is_waited_for_without_growing(device, make_growing, reuse, settings):
    pool, first, second = make_growing("100MiB", "100MiB", reuse=reuse, **settings), device.stream(), device.stream()
    ptr = pool.alloc(80 * MIB, second)
    second.write(ptr, 80 * MIB, 1, ticks=10)
    pool.free_async(ptr, second)
    device.clear_log()
    got = pool.alloc(80 * MIB, first)
    first.write(got, 80 * MIB, 2)
    assert mallocs(device) == [] and pool.stats().reserved == 100 * MIB
    device.synchronize()


def test_case_30_a_wait_is_cheaper_than_twice_the_peak(device, make_growing):
    """With room to grow as well: one block was ever live, so a third of them is not reserved for streams in turn."""
    pool, streams = make_growing("80MiB"), [device.stream() for _ in range(4)]
    for stream in streams:
        ptr = pool.alloc(80 * MIB, stream)
        stream.write(ptr, 80 * MIB, 1, ticks=10)
        pool.free_async(ptr, stream)
    assert pool.stats().reserved <= 160 * MIB and device.calls["cudaStreamWaitEvent"] > 0 and device.now == 0
    device.synchronize()


@each_reuse
def test_growing_comes_before_a_wait_of_the_host(device, make_growing, reuse):
    pool, first, second = make_growing("8MiB", "64MiB", reuse=reuse), device.stream(), device.stream()
    blocks = [pool.alloc(4 * MIB, first) for _ in range(2)]
    first.work(1000)
    for ptr in blocks:
        pool.free_async(ptr, first)
    assert pool.alloc(30 * MIB, second) and device.now == 0
    assert pool.stats().grow_count == 1


@each_reuse
def test_at_the_limit_the_host_waits_and_regions_are_exchanged(device, make_growing, reuse):
    pool, first, second = make_growing("8MiB", "32MiB", reuse=reuse), device.stream(), device.stream()
    blocks = [pool.alloc(8 * MIB, first) for _ in range(4)]
    for ptr in blocks:
        first.write(ptr, 8 * MIB, 1, ticks=10)
        pool.free_async(ptr, first)
    ptr = pool.alloc(32 * MIB, second)
    assert device.now >= 40 and pool.stats().reserved == 32 * MIB
    second.write(ptr, 32 * MIB, 2)
    device.synchronize()


# Captures

def test_no_growth_on_a_stream_that_is_captured(device, make_growing):
    pool, stream = make_growing("4MiB", "64MiB"), device.stream()
    with pool.capture(stream) as kept:
        stream.begin_capture()
        assert pool.alloc(3 * MIB, stream)
        before = device.calls["cudaMalloc"]
        with pytest.raises(cp.OutOfMemoryError):
            pool.alloc(3 * MIB, stream)
        with pytest.raises(cp.OutOfMemoryError):
            pool.alloc(3 * MIB, device.stream())
        assert device.calls["cudaMalloc"] == before and pool.trim() == 0
        graph = stream.end_capture()
    graph.release()
    kept.release()
    assert pool.alloc(3 * MIB, stream)


def test_no_growth_on_a_stream_that_is_captured_unannounced(device, make_growing):
    pool, stream = make_growing("4MiB", "64MiB"), device.stream()
    pool.alloc(3 * MIB, stream)
    stream.begin_capture()
    for named in (stream, stream.handle):
        with pytest.raises(cp.OutOfMemoryError):
            pool.alloc(3 * MIB, named)
    assert device.calls["cudaMalloc"] == 1
    stream.end_capture().release()
    assert pool.alloc(3 * MIB, stream)


# Alignment

@pytest.mark.parametrize("base_alignment", [None, 256])
@pytest.mark.parametrize("settings", ROUTES + [{"debug": True}])
def test_case_11_every_alignment_in_every_region(make_device, base_alignment, settings):
    device = make_device("256MiB", base_alignment=base_alignment)
    pool = CheckedPool("256KiB", device=device, growth="dynamic", **settings)
    live = []
    for turn in range(3):
        for order in range(22):
            ptr = pool.alloc(32 + turn * 50_000, alignment=1 << order)
            assert ptr % (1 << order) == 0
            live.append(fill(device, ptr, 32, order))
        live.append(fill(device, pool.alloc(5 * MIB), 32, 77))
    for block in live:
        verify(device, block)
        pool.free(block[0])
    assert pool.trim() and pool.stats().reserved == 0
    pool.close()


@pytest.mark.parametrize("base_alignment", [None, 256])
def test_alignment_of_more_than_a_page(make_device, base_alignment):
    device = make_device("1GiB", base_alignment=base_alignment)
    pool = CheckedPool("32MiB", device=device, growth="dynamic")
    rng = random.Random(5)
    live = []
    for _ in range(60):
        alignment = MIB << rng.randrange(6)
        ptr = pool.alloc(rng.choice((100, 300_000, 3 * MIB)), alignment=alignment)
        assert ptr % alignment == 0
        live.append(ptr)
        if rng.random() < 0.4:
            pool.free(live.pop(rng.randrange(len(live))))
    for ptr in live:
        pool.free(ptr)
    pool.trim()
    assert pool.stats().reserved == 0
    pool.close()


# Addresses

def test_addresses_of_all_regions(make_growing, device):
    pool = make_growing("2MiB")
    blocks = [pool.alloc(nbytes) for nbytes in [100, 5000, 70_000, MIB, 3 * MIB] * 8]
    assert pool.stats().grow_count > 3
    for ptr in blocks:
        assert pool.owns(ptr) and not pool.owns(ptr + 1)
        with pytest.raises(cp.InvalidPointerError, match="inside a live block"):
            pool.free(ptr + 1)
    foreign = device.malloc(MIB)
    for address in (foreign, foreign + 256, 1, 2**63):
        assert not pool.owns(address)
        with pytest.raises(cp.InvalidPointerError, match="not an address of this pool"):
            pool.free(address)
    device.free(foreign)
    for ptr in blocks:
        pool.free(ptr)
        with pytest.raises(cp.InvalidPointerError, match="already freed"):
            pool.free(ptr)
    pool.trim()
    for ptr in blocks:
        assert not pool.owns(ptr)
        with pytest.raises(cp.InvalidPointerError, match="not an address of this pool"):
            pool.free(ptr)


def test_streams_and_uses_in_every_region(make_growing, device):
    pool, first, second = make_growing("1MiB"), device.stream(), device.stream()
    for nbytes in [100, 70_000, 3 * MIB] * 5:
        ptr = pool.alloc(nbytes, first)
        first.write(ptr, nbytes, 1)
        pool.record_use(ptr, second)
        second.wait(first)
        second.read(ptr, nbytes, ticks=5)
        pool.free_async(ptr, first)
    device.synchronize()
    pool.forget_stream(first)
    pool.forget_stream(second)
    pool.trim()
    assert pool.stats().reserved == 0


def test_a_hundred_regions(make_device):
    """Places in the segment are used again, and whatever is left is found by its address."""
    device = make_device("130GiB")
    pool = cp.Pool("1GiB", device=device, growth="dynamic", min_block="1MiB")
    blocks = [pool.alloc(GIB) for _ in range(100)]
    assert pool.stats().grow_count == 99
    random.Random(1).shuffle(blocks)
    for ptr in blocks[:50]:
        pool.free(ptr)
    pool.check()
    assert pool.trim() == 50 * GIB == pool.stats().reserved
    assert all(pool.owns(ptr) for ptr in blocks[50:]) and not any(pool.owns(ptr) for ptr in blocks[:50])
    for turn in range(20):
        more = [pool.alloc((1024 + 2 * turn) * MIB) for _ in range(50)]
        pool.check()
        for ptr in more:
            pool.free(ptr)
        assert pool.trim() == 50 * (1024 + 2 * turn) * MIB
    pool.check()
    pool.close()


# Faults

@pytest.mark.parametrize("code", ["cudaErrorMemoryAllocation", "cudaErrorIllegalAddress"])
@pytest.mark.parametrize("call", ["cudaMalloc", "cudaFree", "cudaMemGetInfo", "cudaStreamIsCapturing", "cudaSetDevice",
                                  "cudaStreamQuery", "cudaEventRecord"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_case_40_the_driver_fails_while_the_pool_grows(make_device, call, nth, code):
    """Live blocks and reserved bytes are as before, or the request is served all the same; the next one is."""
    device = make_device("64MiB")
    pool = CheckedPool("16MiB", device=device, growth="dynamic", max_capacity="40MiB")
    kept = fill(device, pool.alloc(9 * MIB), 9 * MIB, 5)
    pool.free(pool.alloc(16 * MIB))
    before = comparable(pool.stats(), "oom_count", "grow_count", "trim_count", "reserved_high", "largest_free")
    device.fail(call, after=nth - 1, code=code)
    try:
        got = pool.alloc(24 * MIB)
    except (cp.OutOfMemoryError, cp.CudaError):
        device.clear_faults()
        pool.check()
        assert comparable(pool.stats(), "oom_count", "grow_count", "trim_count", "reserved_high",
                          "largest_free") == before
        got = pool.alloc(24 * MIB)
    device.clear_faults()
    verify(device, kept)
    pool.free(got)
    pool.close()
    assert device.live == {}


@pytest.mark.parametrize("code", ["cudaErrorMemoryAllocation", "cudaErrorIllegalAddress"])
def test_case_40_a_driver_that_never_gives_anything(make_growing, device, code):
    """The pool goes on with what it has; once the driver works again it grows."""
    pool = make_growing("4MiB")
    kept = fill(device, pool.alloc(MIB), MIB, 3)
    device.fail("cudaMalloc", code=code, times=1000)
    for _ in range(10):
        with pytest.raises((cp.OutOfMemoryError, cp.CudaError)):
            pool.alloc(4 * MIB)
        pool.free(pool.alloc(3 * MIB))
    device.clear_faults()
    assert pool.alloc(4 * MIB)
    verify(device, kept)


def test_case_42_an_address_that_is_live_already(make_device):
    """A driver that hands out memory of the pool's own a second time is not believed."""
    device = make_device("64MiB", misuse=True)
    pool = CheckedPool("4MiB", device=device, growth="dynamic")
    kept = fill(device, pool.alloc(4 * MIB), 4 * MIB, 7)
    device.alias(times=10)
    with pytest.raises(RuntimeError, match="overlaps"):
        pool.alloc(4 * MIB)
    verify(device, kept)
    assert device.calls["cudaFree"] == 0
    device.clear_faults()
    pool.free(pool.alloc(4 * MIB))
    pool.close()


def test_case_42_an_address_of_another_pool(make_device):
    device = make_device("64MiB", misuse=True)
    first = CheckedPool("8MiB", device=device)
    second = CheckedPool("1MiB", device=device, growth="dynamic", debug=True)
    kept = fill(device, first.alloc(8 * MIB), 8 * MIB, 7)
    device.alias(times=10)
    with pytest.raises(RuntimeError, match=f"overlaps a live region from 0x{kept[0]:x} to 0x{kept[0] + 8 * MIB:x}"):
        second.alloc(4 * MIB)
    verify(device, kept)
    assert device.calls["cudaFree"] == 0
    device.clear_faults()
    assert second.alloc(4 * MIB)
    second.close()
    first.close()


def test_an_address_that_was_given_back_is_no_longer_live(make_device):
    """Two debug pools in turn get the same memory from the driver."""
    device = make_device("16MiB")
    first = CheckedPool("12MiB", device=device, growth="dynamic", debug=True)
    for _ in range(3):
        first.trim()
        with CheckedPool("12MiB", device=device, debug=True) as second:
            assert second.alloc(12 * MIB)
        first.free(first.alloc(12 * MIB))
    first.close()


# Limits as arguments

@pytest.mark.parametrize("limit", [0, -1, "x", "3MiB", 2.0, 255, 10**30])
def test_a_limit_that_is_not_accepted(device, limit):
    with pytest.raises(ValueError):
        cp.Pool("4MiB", device=device, growth="dynamic", max_capacity=limit)
    assert device.calls["cudaMalloc"] == 0


@pytest.mark.parametrize("limit, capacity", [(None, 512 * MIB), ("4MiB", 4 * MIB), (0.5, 256 * MIB), (10**9, 10**9)])
def test_limits(device, limit, capacity):
    with cp.Pool("4MiB", device=device, growth="dynamic", max_capacity=limit) as pool:
        stats = pool.stats()
        assert (stats.reserved, stats.capacity) == (4 * MIB, capacity)
        with pytest.raises(cp.OutOfMemoryError) as caught:
            pool.alloc(capacity + 1)
        assert (caught.value.capacity, caught.value.reserved) == (capacity, 4 * MIB)
        assert f"capacity {capacity} bytes" in str(caught.value)


def test_the_device_has_less_than_the_limit(make_device):
    device = make_device("8MiB")
    with cp.Pool("4MiB", device=device, growth="dynamic", max_capacity="1GiB") as pool:
        assert pool.alloc(4 * MIB) and pool.alloc(4 * MIB - 256)
        with pytest.raises(cp.OutOfMemoryError):
            pool.alloc(MIB)
        assert pool.stats().reserved == 8 * MIB


def test_bookkeeping_takes_address_space_only(make_device):
    with cp.Pool("2MiB", device=make_device("80GiB"), growth="dynamic") as pool:
        assert pool.metadata_bytes < 80 * GIB // 1000


# Random sequences

class GrowingMachine(RuleBasedStateMachine):
    """Random sequences over one of GROWING, with faults of the driver: data in every block, nothing lost."""

    def __init__(self, name, reuse):
        super().__init__()
        capacity, settings = GROWING[name]
        self.device = sim.Device("9MiB")
        self.pool = cp.Pool(capacity, device=self.device, reuse=reuse, **settings)
        self.model, self.values, self.reads = BlocksModel(), {}, []
        self.streams = [self.device.default_stream(), self.device.stream(), self.device.stream()]
        self.names = [0, self.streams[1], self.streams[2].handle]
        self.limit = self.pool.stats().capacity
        self.had_faults = False         # one of them may be the reason for a refusal

    @rule(data=st.data(), on=st.integers(0, 2), ticks=st.integers(0, 20),
          alignment=st.one_of(st.just(256), st.integers(0, 21).map(lambda order: 1 << order)))
    def alloc(self, data, on, ticks, alignment):
        nbytes = data.draw(log_uniform(self.limit + 1000))
        before = self.pool.stats()
        try:
            ptr = self.pool.alloc(nbytes, self.names[on], alignment=alignment)
        except (cp.OutOfMemoryError, cp.CudaError) as error:
            self.refused(error, nbytes, alignment, before)
            return
        assert ptr % alignment == 0
        self.model.add(ptr, self.pool.stats().used - before.used, nbytes)
        self.values[ptr] = on, ptr // 256 % 250 + 1
        self.streams[on].write(ptr, nbytes, self.values[ptr][1], ticks=ticks)

    def refused(self, error, nbytes, alignment, before):
        now = self.pool.stats()
        assert (now.used, now.requested, now.alloc_count) == (before.used, before.requested, before.alloc_count)
        if isinstance(error, cp.OutOfMemoryError):
            assert (error.requested, error.capacity) == (nbytes, self.limit)
            possible = min(self.limit, 9 << 20) // 256 * 256
            assert self.model.live or self.had_faults or alignment > 256 or nbytes > possible

    @rule(place=PLACES, how=st.sampled_from(["free", "free_async", "free_async", "elsewhere"]))
    def free(self, place, how):
        if self.model.live:
            self.remove(at_place(self.model.live, place), how)

    def remove(self, ptr, how="free"):
        _, nbytes = self.model.remove(ptr)
        on, value = self.values.pop(ptr)
        self.reads.append((self.streams[on].read(ptr, nbytes, ticks=3), value, nbytes))
        if how == "free":
            self.streams[on].synchronize()
            self.pool.free(ptr)
        elif how == "elsewhere":
            other = (on + 1) % 3
            self.streams[other].wait(self.streams[on])
            self.retry(lambda: self.pool.free_async(ptr, self.names[other]))
        else:
            self.retry(lambda: self.pool.free_async(ptr, self.names[on]))

    def retry(self, action):
        """After an error the block is live as before."""
        try:
            action()
        except cp.CudaError:
            self.device.clear_faults()
            action()

    @rule(share=st.floats(0, 1))
    def trim(self, share):
        before = self.pool.stats()
        keep = int(share * before.reserved)
        try:
            returned = self.pool.trim(keep)
        except cp.CudaError:
            return
        now = self.pool.stats()
        assert before.reserved - now.reserved == returned and (returned == 0 or now.reserved >= keep)

    @rule(ticks=st.integers(0, 30))
    def advance(self, ticks):
        self.device.advance(ticks)

    @rule(call=st.sampled_from(["cudaMalloc", "cudaMalloc", "cudaFree", "cudaStreamQuery",
                                "cudaEventRecord", "cudaStreamWaitEvent"]), after=st.integers(0, 3),
          code=st.sampled_from(["cudaErrorMemoryAllocation", "cudaErrorIllegalAddress"]))
    def fail(self, call, after, code):
        self.had_faults = True
        self.device.fail(call, after=after, code=code)

    @rule()
    def heal(self):
        self.device.clear_faults()

    @invariant()
    def agrees(self):
        self.pool.check()
        stats = self.pool.stats()
        assert (stats.requested, stats.used) == (self.model.requested, self.model.used)
        assert stats.used <= stats.reserved <= stats.reserved_high <= stats.capacity == self.limit
        assert sum(self.device.live.values()) == stats.reserved and stats.largest_free <= stats.free
        for ptr, (_, nbytes) in self.model.live.items():
            assert self.pool.size_of(ptr) == nbytes and self.pool.owns(ptr) and not self.pool.owns(ptr + 1)

    def teardown(self):
        """All of it can be had in one piece, and goes back."""
        self.device.clear_faults()
        for ptr in list(self.model.live):
            self.remove(ptr)
        self.device.synchronize()
        for found, value, nbytes in self.reads:
            assert found.value == bytes([value]) * nbytes
        for name in self.names:
            self.pool.forget_stream(name)
        whole = min(self.limit, 9 << 20) // 256 * 256
        self.pool.free(self.pool.alloc(whole))
        self.pool.trim()
        assert self.pool.stats().reserved == 0 and self.device.live == {}
        self.pool.check()
        self.pool.close()
        assert self.device.errors == [] and self.device.races == []
        self.device.close()


@each_reuse
@pytest.mark.parametrize("name", GROWING)
def test_random_sequences(name, reuse):
    run_state_machine_as_test(lambda: GrowingMachine(name, reuse), settings=effort(15, steps=40))


# Threads

@pytest.mark.threads
@pytest.mark.parametrize("settings", [{}, {"slab_max": 0}, {"release_threshold": "1MiB"}])
def test_case_33_threads_in_a_pool_that_grows_and_shrinks(make_device, settings):
    device = make_device("1GiB")
    with cp.Pool("1MiB", device=device, growth="dynamic", **settings) as pool:
        with ThreadPoolExecutor(5) as executor:
            running = [executor.submit(_testing.churn, pool, 20_000, 400, 100, 8 + seed % 2 * 3, seed, fill=True,
                                       alone=False, check_every=1000) for seed in range(4)]
            while not all(thread.done() for thread in running):
                pool.trim()
                pool.check()
                time.sleep(0.002)
            figures = [thread.result() for thread in running]
        assert all(figure["refused"] == 0 for figure in figures)
        pool.trim()
        assert pool.stats().used == pool.stats().reserved == 0 and device.live == {}
        assert pool.stats().grow_count > 5


@pytest.mark.threads
@each_reuse
def test_streams_and_threads_in_a_pool_that_grows_and_shrinks(make_device, reuse):
    device = make_device("1GiB")
    with cp.Pool("1MiB", device=device, growth="dynamic", reuse=reuse) as pool:
        streams = [device.stream() for _ in range(6)]
        with ThreadPoolExecutor(4) as executor:
            running = [executor.submit(_testing.churn_streams, pool, streams[2 * seed:2 * seed + 2], 5000, seed,
                                       doublings=11) for seed in range(3)]
            while not all(thread.done() for thread in running):
                pool.trim()
                time.sleep(0.002)
            assert all(thread.result()["refused"] == 0 for thread in running)
        device.synchronize()
        pool.check()
        pool.trim()
        assert pool.stats().used == 0


@pytest.mark.threads
def test_case_34_growth_delays_nobody_whom_the_cache_can_serve(make_device):
    """The driver takes 100 ms for a region; the 99th percentile of the others is below 1 ms, in one of five tries."""
    device = make_device("1GiB")
    with cp.Pool("4MiB", device=device, growth="dynamic") as pool:
        pool.free(pool.alloc(1000))
        pool.free(pool.alloc(100_000))
        device.delay("cudaMalloc", 0.1)
        device.delay("cudaFree", 0.1)
        assert any(percentile_99_beside(lambda: grow_and_shrink(pool), pool) < 1e-3 for _ in range(5))


def grow_and_shrink(pool):
    started = time.perf_counter()
    pool.free(pool.alloc(60 * MIB))
    pool.trim("4MiB")
    assert time.perf_counter() - started >= 0.2


def percentile_99_beside(action, pool):
    seconds = []
    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(action)
        while not running.done():
            for nbytes in (1000, 100_000):
                started = time.perf_counter()
                pool.free(pool.alloc(nbytes))
                seconds.append(time.perf_counter() - started)
        running.result()
    return sorted(seconds)[len(seconds) * 99 // 100]


@pytest.mark.parametrize("backing", ["malloc", "virtual"])
def test_largest_free_is_what_fits_without_growing(make_device, backing):
    with cp.Pool("4MiB", device=make_device("128MiB"), growth="dynamic", max_capacity="64MiB", backing=backing) as pool:
        stats = pool.stats()
        assert stats.largest_free <= stats.free <= stats.reserved and 0 <= stats.external_fragmentation <= 1
        calls = dict(stats.upstream_calls)
        pool.free(pool.alloc(stats.largest_free))
        assert {name: count for name, count in pool.stats().upstream_calls.items() if "M" in name} \
            == {name: count for name, count in calls.items() if "M" in name} | {
                "cudaMemGetInfo": calls["cudaMemGetInfo"] + 1}
        pool.check()
