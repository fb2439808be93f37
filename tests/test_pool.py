"""The class Pool: random sequences with data in every block, arguments, errors, life and death."""

import gc
import os
import threading
import weakref
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

import cuda_pool as cp
from cuda_pool import _testing
from cuda_pool.settings import CAPACITY_MAX, MID_MAX, MIN_BLOCK, SLAB_MAX, resolve

from .models import PLACES, POOLS, VIRTUAL_POOLS, BlocksModel, at_place, comparable, effort, log_uniform

MIB = 1 << 20
STREAMS = st.sampled_from([0, 0, 0, 1, 2])      # the legacy and the per-thread default stream exist everywhere


@pytest.fixture
def pool(device):
    with cp.Pool("64MiB", device=device) as made:
        yield made
        made.check()


ALL_POOLS = POOLS | VIRTUAL_POOLS


class PoolMachine(RuleBasedStateMachine):
    """Random sequences over one of POOLS. Every block is filled when it is made and verified when it goes."""

    def __init__(self, device, name, **settings):
        super().__init__()
        capacity, more = ALL_POOLS[name]
        self.device = device
        self.pool = cp.Pool(capacity, device=device, **more, **settings)
        self.model, self.values, self.buffers = BlocksModel(), {}, {}
        self.counts = {"alloc_count": 0, "free_count": 0, "oom_count": 0}

    @rule(data=st.data(), alignment=st.one_of(st.just(256), st.integers(0, 14).map(lambda order: 1 << order)),
          stream=STREAMS)
    def alloc(self, data, alignment, stream):
        before = self.pool.stats()
        nbytes = data.draw(log_uniform(2 * before.capacity))
        try:
            address = self.pool.alloc(nbytes, stream, alignment=alignment)
        except cp.OutOfMemoryError as error:
            self.refused(error, nbytes, alignment, before)
            return
        assert alignment < 256 or nbytes <= before.largest_free or before.pending
        assert address % alignment == 0
        self.add(address, nbytes, before)

    def refused(self, error, nbytes, alignment, before):
        """After the error everything is as it was, and the error says how things are."""
        self.counts["oom_count"] += 1
        now = self.pool.stats()
        changed = ["oom_count"]
        if before.pending or alignment > 256:
            # What is over was given back, neighbours of several streams were joined, empty slabs went back in vain.
            changed += ["pending", "largest_free"]
        assert comparable(now, *changed) == comparable(before, *changed)
        assert (error.requested, error.free, error.largest_free) == (nbytes, now.free, now.largest_free)
        assert (error.reserved, error.capacity) == (now.reserved, now.capacity)
        assert alignment > 256 or error.largest_free < nbytes

    @rule(settled=st.booleans())
    def alloc_the_largest(self, settled):
        """With work pending even more may fit: what two streams freed is joined only where that is needed."""
        if settled:
            self.settle()
        before = self.pool.stats()
        if before.largest_free:
            self.add(self.pool.alloc(before.largest_free), before.largest_free, before)
        with pytest.raises(cp.OutOfMemoryError):
            self.pool.alloc(getattr(self.pool.stats(), "largest_free" if settled else "free") + 1)
        self.counts["oom_count"] += 1

    def settle(self):
        for stream in (0, 2):
            self.pool.forget_stream(stream)
        assert self.pool.stats().pending == 0

    @rule(nbytes=log_uniform(100_000), stream=STREAMS)
    def make_buffer(self, nbytes, stream):
        before = self.pool.stats()
        if nbytes <= before.largest_free:
            buffer = self.pool.buffer(nbytes, stream)
            assert buffer.nbytes == nbytes
            self.add(buffer.ptr, nbytes, before)
            self.buffers[buffer.ptr] = buffer

    def add(self, address, nbytes, before):
        self.counts["alloc_count"] += 1
        self.model.add(address, self.pool.stats().used - before.used, nbytes)
        self.values[address] = value = (address // 256 + self.counts["alloc_count"]) % 251
        self.device.memset(address, value, nbytes)

    @rule(place=PLACES, stream=STREAMS, how=st.sampled_from(["free", "free_async", "buffer"]))
    def free(self, place, stream, how):
        if self.model.live:
            self.remove(at_place(self.model.live, place), stream, how)

    def remove(self, address, stream=0, how="free"):
        used, nbytes = self.model.remove(address)
        value = self.values.pop(address)
        assert self.device.read(address, nbytes) == bytes([value]) * nbytes
        before = self.pool.stats().used
        buffer = self.buffers.pop(address, None)
        if buffer is not None and how == "buffer":
            buffer.free()
        elif buffer is not None:
            del buffer
        elif how == "free_async":
            self.pool.free_async(address, stream)
        else:
            self.pool.free(address)
        self.counts["free_count"] += 1
        assert before - self.pool.stats().used == used

    @rule(place=PLACES, delta=st.integers(-5000, 10_000_000))
    def invalid_free(self, place, delta):
        address = at_place([*self.model.live, *self.model.freed] or [0x1000], place) + delta
        if address <= 0 or address in self.model.live:
            return
        before = self.pool.stats()
        text = "inside" if self.model.inside(address) is not None else "not an address|already freed"
        for method in (self.pool.free, self.pool.free_async, self.pool.size_of):
            with pytest.raises(cp.InvalidPointerError, match=text):
                method(address)
        assert not self.pool.owns(address)
        assert comparable(self.pool.stats()) == comparable(before)

    @rule(place=PLACES)
    def double_free(self, place):
        address = at_place(self.model.freed, place)
        if address is None:
            return
        text = "already freed" if self.model.inside(address) is None else "inside"
        with pytest.raises(cp.InvalidPointerError, match=text):
            self.pool.free(address)

    @invariant()
    def agrees(self):
        self.pool.check()
        stats = self.pool.stats()
        assert (stats.requested, stats.used) == (self.model.requested, self.model.used)
        assert stats.used + stats.free <= stats.reserved == stats.capacity
        assert {name: getattr(stats, name) for name in self.counts} == self.counts
        tiers = (stats.slab, stats.mid, stats.buddy)
        assert sum(tier.blocks for tier in tiers) == len(self.model.live)
        assert sum(tier.used for tier in tiers) == stats.used <= stats.used_high
        assert sum(tier.requested for tier in tiers) == stats.requested <= stats.requested_high
        for address, (_, nbytes) in self.model.live.items():
            assert self.pool.size_of(address) == nbytes and self.pool.owns(address)

    def teardown(self):
        """What is freed can be had again, whole."""
        for address in list(self.model.live):
            self.remove(address)
        self.settle()
        whole = self.pool.stats().free
        assert whole == self.pool.stats().largest_free
        self.pool.free(self.pool.alloc(whole))
        self.pool.check()
        self.pool.close()


@pytest.mark.parametrize("name", ALL_POOLS)
def test_random_sequences(device, name):
    run_state_machine_as_test(lambda: PoolMachine(device, name), settings=effort(20, steps=40))


@pytest.mark.parametrize("name", ["defaults", "no_mid", "by_hand", "virtual"])
@pytest.mark.parametrize("settings", [{"debug": True}, {"scrub": True}])
def test_random_sequences_with_options(device, name, settings):
    run_state_machine_as_test(lambda: PoolMachine(device, name, **settings), settings=effort(20, steps=40))


@pytest.mark.parametrize("base_alignment", [256, 512, 2048])
def test_random_sequences_on_an_odd_base(make_device, base_alignment):
    device = make_device("64MiB", base_alignment=base_alignment)
    run_state_machine_as_test(lambda: PoolMachine(device, "defaults"), settings=effort(20, steps=40))


# Arguments of Pool

def test_defaults(make_device):
    pool = cp.Pool(device=make_device("1GiB"))
    assert pool.stats().capacity == 3 << 28
    settings = pool.settings
    assert (settings.slab_max, settings.mid_max, settings.min_block) == (SLAB_MAX, MID_MAX, MIN_BLOCK)
    assert not pool.debug and not pool.closed


@pytest.mark.parametrize("name", ["slab_max", "mid_max", "min_block"])
def test_settings_far_above_any_capacity(make_device, name):
    """A tier up to which nothing is too large is one thing; slots and units have a limit."""
    device = make_device("64MiB")
    if name == "mid_max":
        with cp.Pool("32MiB", device=device, mid_max=10**400) as pool:
            ptr = pool.alloc(20 * MIB)
            assert pool.stats().mid.requested == 20 * MIB and pool.settings.mid_max == CAPACITY_MAX
            pool.free(ptr)
            with pytest.raises(cp.OutOfMemoryError):
                pool.alloc(1 << 63)
    else:
        with pytest.raises(ValueError, match=f"^{name} is .* 1.00 GiB, got "):
            cp.Pool("32MiB", device=device, **{name: 10**400})
    assert device.live == {}


@pytest.mark.parametrize("capacity, nbytes", [
    (0.5, 32 * MIB), (1.0, 64 * MIB), (np.float32(0.25), 16 * MIB), ("1MiB", MIB), ("1MB", 10**6), (12345, 12345),
    (np.int64(4096), 4096), (1, None), (255, None), (0, None), (-1, None), (0.0, None), (1.5, None), (-0.5, None),
    (float("nan"), None), (CAPACITY_MAX + 1, None), ("12 bananas", None)])
def test_capacity(make_device, capacity, nbytes):
    device = make_device("64MiB")
    if nbytes is None:
        with pytest.raises(ValueError):
            cp.Pool(capacity, device=device)
        assert device.live == {}
    else:
        assert cp.Pool(capacity, device=device).stats().reserved == nbytes


def test_a_fraction_is_one_of_the_free_memory(make_device):
    device = make_device("64MiB")
    taken = device.malloc(32 * MIB)
    assert cp.Pool(0.5, device=device).stats().capacity == 16 * MIB
    device.free(taken)


@pytest.mark.parametrize("settings", [
    {"backing": "paper"}, {"backing": None}, {"growth": "doubling"}, {"max_capacity": "1GiB"},
    {"release_threshold": "1MiB"}, {"profile": "p.json"}, {"stacks": True}, {"min_block": 3000}, {"min_block": 128},
    {"slab_max": "2GiB"}, {"slab_max": -1}, {"mid_max": "x"}, {"size_classes": []}, {"size_classes": 100},
    {"size_classes": [0]}, {"size_classes": [256], "slab_max": 1024}])
def test_setting_that_is_not_accepted(make_device, settings):
    device = make_device()
    with pytest.raises(ValueError):
        cp.Pool("1MiB", device=device, **settings)
    assert device.calls["cudaMalloc"] == 0


@pytest.mark.parametrize("name", ["backing", "growth"])
@pytest.mark.parametrize("value", [np.array([1, 2]), np.array(["malloc"]), 10**5000], ids=["ints", "texts", "huge"])
def test_setting_that_is_of_another_type(make_device, name, value):
    with pytest.raises(ValueError, match=f"{name}=.* is not supported: this version accepts "):
        cp.Pool("1MiB", device=make_device(), **{name: value})


@pytest.mark.parametrize("headroom, error", [
    ("abc", TypeError), ("0.5", TypeError), (None, TypeError), (True, TypeError), (np.array([0.1]), TypeError),
    (1j, TypeError), (-0.1, ValueError), (1.1, ValueError), (2, ValueError), (float("nan"), ValueError),
    (10**5000, ValueError)], ids=lambda value: "huge" if isinstance(value, int) and value > 2 else None)
def test_headroom_that_is_not_accepted(make_device, headroom, error):
    device = make_device()
    with pytest.raises(error, match="headroom is a number from 0 to 1, got "):
        cp.Pool("1MiB", device=device, headroom=headroom)
    assert device.live == {}


@pytest.mark.parametrize("headroom", [0, 1, 0.5, np.float32(0.25), Fraction(1, 3)])
def test_headroom(make_device, headroom):
    cp.Pool("1MiB", device=make_device(), headroom=headroom).check()


@pytest.mark.parametrize("use", [lambda pool: pool.alloc(10**5000), lambda pool: pool.buffer(10**5000)],
                         ids=["alloc", "buffer"])
def test_out_of_memory_for_a_size_that_python_does_not_write(pool, use):
    with pytest.raises(cp.OutOfMemoryError, match=r"requested more than 2\*\*64 bytes"):
        use(pool)


def test_numbers_that_python_does_not_write(pool, make_device):
    huge = 10**5000
    for use, text in ((lambda: pool.alloc(1, huge), "a stream is"),
                      (lambda: pool.alloc(1, alignment=huge), "power of two"),
                      (lambda: cp.Pool(huge, device=make_device()), "capacity is from"),
                      (lambda: cp.Pool("1MiB", device=-huge), "CUDA ordinals"),
                      (lambda: cp.sim.Device(huge), "memory is from"),
                      (lambda: cp.sim.Device(ordinal=huge), "ordinal is")):
        with pytest.raises(ValueError, match=text):
            use()


def test_settings_that_cannot_be_converted_leak_nothing(make_device, monkeypatch):
    """The table of slot sizes goes back however the opening ends."""
    whole, device = resolve(MIB), make_device()
    odd = replace(whole, size_classes=(256,) * 500_000 + (-1,))
    monkeypatch.setattr("cuda_pool._api.resolve", lambda *arguments, **options: odd)
    before = address_space()
    for _ in range(20):
        with pytest.raises(OverflowError):
            cp.Pool("1MiB", device=device)
    assert address_space() - before < 40 * MIB


def address_space():
    """Size of this process, in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("device", ["sim", None, 1.0, True, object(), np.array([0])])
def test_what_is_no_device(device):
    with pytest.raises(TypeError, match="ordinal or a cuda_pool.sim.Device"):
        cp.Pool("1MiB", device=device)


def test_capacity_that_the_device_lacks(make_device):
    device = make_device("64MiB")
    with pytest.raises(cp.OutOfMemoryError) as caught:
        cp.Pool("65MiB", device=device)
    assert (caught.value.requested, caught.value.free) == (65 * MIB, 64 * MIB)
    assert device.live == {} and device.allocated == 0


def test_driver_that_fails_otherwise(make_device):
    device = make_device()
    device.fail("cudaMalloc", code="cudaErrorIllegalAddress")
    with pytest.raises(cp.CudaError, match="cudaMalloc failed: cudaErrorIllegalAddress") as caught:
        cp.Pool("1MiB", device=device)
    assert caught.value.call == "cudaMalloc"
    cp.Pool("1MiB", device=device).check()


def test_a_pool_is_initialised_once(make_device):
    pool = cp.Pool("1MiB", device=make_device())
    with pytest.raises(RuntimeError, match="once"):
        pool.__init__("1MiB", device=pool.device)
    pool.check()


def test_a_failed_pool_can_be_initialised_again(make_device):
    device = make_device("2MiB")
    pool = cp.Pool.__new__(cp.Pool)
    for _ in range(3):
        with pytest.raises(cp.OutOfMemoryError):
            pool.__init__("3MiB", device=device)
    pool.__init__("1MiB", device=device)
    pool.free(pool.alloc(100))
    pool.check()


def test_a_pool_that_was_never_initialised_is_closed():
    pool = cp.Pool.__new__(cp.Pool)
    assert pool.closed and not pool.owns(4096) and pool.metadata_bytes >= 0
    pool.check()
    for use in (lambda: pool.alloc(1), lambda: pool.stats(), lambda: pool.buffer(1), lambda: pool.free(4096),
                lambda: pool.size_of(4096)):
        with pytest.raises(ValueError, match="closed"):
            use()
    with pytest.raises(ValueError, match="closed"):
        pool.forget_stream(0)
    pool.close()


# Arguments of the methods

@pytest.mark.parametrize("nbytes, requested", [(1, 1), ("3KiB", 3072), (np.int32(77), 77), (np.uint64(5), 5)])
def test_sizes(pool, nbytes, requested):
    assert pool.size_of(pool.alloc(nbytes)) == requested


@pytest.mark.parametrize("nbytes, error", [(-1, ValueError), (-(1 << 70), ValueError), ("", ValueError),
                                           ("-1", ValueError), (1.5, TypeError), (None, TypeError), (True, TypeError)])
def test_sizes_that_are_none(pool, nbytes, error):
    with pytest.raises(error, match="a size|not a size"):
        pool.alloc(nbytes)
    assert pool.stats().alloc_count == pool.stats().oom_count == 0


@pytest.mark.parametrize("alignment, error", [(0, ValueError), (3, ValueError), (-256, ValueError),
                                              (768, ValueError), (1.0, TypeError), (None, TypeError)])
def test_alignments_that_are_none(pool, alignment, error):
    with pytest.raises(error):
        pool.alloc(100, alignment=alignment)


@pytest.mark.parametrize("alignment", [128 * MIB, 1 << 63, 1 << 64, 1 << 100])
def test_alignment_larger_than_the_pool(pool, alignment):
    with pytest.raises(cp.OutOfMemoryError):
        pool.alloc(100, alignment=alignment)
    assert pool.stats().used == 0


@pytest.mark.parametrize("address", [1, -1, -256, 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 200, np.int64(12345)])
def test_addresses_of_nobody(pool, address):
    for method in (pool.free, pool.free_async, pool.size_of):
        with pytest.raises(cp.InvalidPointerError, match="not an address of this pool"):
            method(address)
    assert not pool.owns(address)


@pytest.mark.parametrize("address", [1.0, None, "0x100", True, b"1", np.array([1])])
def test_what_is_no_address(pool, address):
    for method in (pool.free, pool.free_async, pool.size_of, pool.owns):
        with pytest.raises(TypeError, match="an address is an int"):
            method(address)


def test_addresses_of_other_types_of_int(pool):
    address = pool.alloc(100)
    assert pool.size_of(np.uint64(address)) == 100
    pool.free(np.int64(address))
    assert pool.stats().used == 0


def test_address_0(pool):
    for _ in range(3):
        pool.free(0)
        pool.free_async(0)
        pool.free_async(0, 2)
    assert not pool.owns(0)
    with pytest.raises(cp.InvalidPointerError):
        pool.size_of(0)
    assert pool.stats().free_count == 0


@pytest.mark.parametrize("stream", [-1, 1 << 64, "0", None, 1.0, True, np.array([0])])
def test_what_is_no_stream(pool, stream):
    address = pool.alloc(100)
    for use in (lambda: pool.alloc(1, stream), lambda: pool.free_async(address, stream),
                lambda: pool.buffer(1, stream), lambda: pool.forget_stream(stream)):
        with pytest.raises((TypeError, ValueError), match="a stream is"):
            use()
    assert pool.owns(address) and pool.stats().alloc_count == 1


# Streams

def test_forget_stream(make_device):
    device = make_device()
    pool = cp.Pool("1MiB", device=device)
    five, six = device.stream(), device.stream()
    pool.free_async(pool.alloc(1000, five), five)
    device.clear_log()
    pool.forget_stream(six)
    assert device.calls["cudaStreamSynchronize"] == 0
    pool.forget_stream(five)
    assert device.calls["cudaStreamSynchronize"] == 1
    pool.alloc(1000, six)
    pool.forget_stream(five)
    assert device.calls["cudaStreamSynchronize"] == 1


def test_small_blocks_at_an_alignment_that_slots_do_not_have(make_device):
    """Where a region begins anywhere they are blocks of the mid tier, each in a granule of the map of its own."""
    with cp.Pool("512MiB", device=make_device("1GiB", base_alignment=256)) as pool:
        assert pool.settings.granule > 1024
        ptrs = [pool.alloc(1, alignment=1024) for _ in range(100)]
        assert all(pool.size_of(ptr) == 1 and ptr % 1024 == 0 for ptr in ptrs)
        pool.check()
        for ptr in ptrs:
            pool.free(ptr)
        assert pool.stats().used == 0


def test_a_refused_alignment_makes_nothing_pending(make_device):
    device = make_device()
    pool = cp.Pool("1MiB", device=device, slab_max=0, mid_max=0, min_block=256)
    first, second = device.stream(), device.stream()
    base, alignment = pool.alloc(600 << 10, first), 1 << 19
    pool.alloc(256, second)
    before = pool.stats()
    # Where the region starts is up to the system: one byte more than fits behind the last aligned address.
    with pytest.raises(cp.OutOfMemoryError):
        pool.alloc((base + (1 << 20)) % alignment + 1, first, alignment=alignment)
    assert comparable(pool.stats(), "oom_count") == comparable(before, "oom_count")


def test_scrub_leaves_zeros(device):
    with cp.Pool("1MiB", device=device, scrub=True) as pool:
        for free in (pool.free, pool.free_async, lambda address: pool.free_async(address, 2)):
            for nbytes in (100, 20_000, 500_000):
                address = pool.alloc(nbytes)
                device.memset(address, 77, nbytes)
                free(address)
                assert device.read(address, nbytes) == bytes(nbytes)
                pool.check()


def test_a_scrub_that_fails_frees_nothing(make_device):
    device = make_device()
    pool = cp.Pool("1MiB", device=device, scrub=True)
    address = pool.alloc(100)
    for free in (pool.free, pool.free_async):
        device.fail("cudaMemsetAsync", code="cudaErrorIllegalAddress")
        with pytest.raises(cp.CudaError, match="cudaMemsetAsync"):
            free(address)
        assert pool.owns(address)
    pool.free(address)
    pool.check()


# Life and death

def test_close(make_device):
    device = make_device()
    pool = cp.Pool("1MiB", device=device)
    address = pool.alloc(100)
    pool.close()
    pool.close()
    assert pool.closed and device.live == {} and device.calls["cudaFree"] == 1
    assert "closed" in repr(pool)
    assert not pool.owns(address)
    pool.check()
    with pytest.raises(ValueError, match="the pool is closed"):
        pool.alloc(100)
    with pytest.raises(ValueError, match="the pool is closed"):
        pool.stats()
    with pytest.raises(ValueError, match="the pool is closed"):
        pool.buffer(100)
    with pytest.raises(cp.InvalidPointerError, match="closed"):
        pool.free(address)
    with pytest.raises(cp.InvalidPointerError, match="closed"):
        pool.size_of(address)


def test_close_that_the_driver_refuses(make_device):
    device = make_device()
    pool = cp.Pool("1MiB", device=device)
    device.fail("cudaFree", code="cudaErrorIllegalAddress")
    with pytest.raises(cp.CudaError, match="cudaFree"):
        pool.close()
    assert pool.closed
    pool.close()
    assert device.calls["cudaFree"] == 1


def test_with_block_closes(make_device):
    device = make_device()
    with pytest.raises(KeyError), cp.Pool("1MiB", device=device) as pool:
        pool.alloc(10)
        raise KeyError
    assert pool.closed and device.live == {}


def test_a_dropped_pool_gives_its_region_back(make_device):
    device = make_device()
    pool = cp.Pool("1MiB", device=device)
    pool.alloc(100)
    gone = weakref.ref(pool)
    del pool
    gc.collect()
    assert gone() is None and device.live == {} and device.calls["cudaFree"] == 1


def test_many_pools_on_one_device(device):
    pools = [cp.Pool("1MiB", device=device) for _ in range(20)]
    addresses = [pool.alloc(1000) for pool in pools]
    assert len(set(addresses)) == 20
    for at, pool in enumerate(pools):
        assert [other.owns(addresses[at]) for other in pools].count(True) == 1
        with pytest.raises(cp.InvalidPointerError, match="not an address of this pool"):
            pools[at - 1].free(addresses[at])
    for pool, address in zip(pools, addresses):
        pool.free(address)
        pool.check()
        pool.close()


def test_pools_do_not_leak_host_memory(make_device):
    device = make_device("1GiB")

    def cycle():
        with cp.Pool("64MiB", device=device) as pool:
            for nbytes in range(256, 20_000, 256):
                pool.alloc(nbytes)
            with pytest.raises(cp.OutOfMemoryError):
                pool.alloc("65MiB")
            with pytest.raises(cp.OutOfMemoryError):
                cp.Pool("2GiB", device=device)

    for _ in range(20):
        cycle()
    before = mapped_bytes()
    for _ in range(200):
        cycle()
    assert mapped_bytes() - before < 16 * MIB


def test_a_debug_pool_that_is_refused_leaks_nothing(make_device):
    device = make_device("256MiB", misuse=True)
    keep = cp.Pool("64MiB", device=device, debug=True)

    def refused():
        device.alias()
        with pytest.raises(RuntimeError, match="overlaps"):
            cp.Pool("64MiB", device=device, debug=True)

    for _ in range(20):
        refused()
    before = mapped_bytes()
    for _ in range(200):
        refused()
    assert mapped_bytes() - before < 16 * MIB
    assert device.calls["cudaFree"] == 0
    keep.check()


def test_debug_takes_the_region_of_a_closed_pool(make_device):
    device = make_device("64MiB")
    for _ in range(3):
        with cp.Pool("48MiB", device=device, debug=True) as pool:
            pool.alloc(100)


def test_repr(device):
    with cp.Pool("1MiB", device=device) as pool:
        assert "1048576 bytes" in repr(pool)


# Threads: these run eight at a time, with the GIL and without

@pytest.mark.threads
def test_threads_in_python(make_device):
    """Every block is filled when it is made, and verified when it is freed."""
    device = make_device("256MiB")
    pool = cp.Pool("256MiB", device=device)
    faults = []

    def give_back(address, nbytes, value, free):
        if pool.size_of(address) != nbytes or device.read(address, nbytes) != bytes([value]) * nbytes:
            faults.append((address, nbytes))
        free(address)

    def work(seed):
        live = []
        for step in range(3000):
            if live and (seed * step) % 3 == 0:
                give_back(*live.pop((seed + step) % len(live)), pool.free if step % 2 else pool.free_async)
            else:
                nbytes, value = 100 + (seed * 7919 + step * 104_729) % 20_000, (31 * seed + step) % 251
                live.append((pool.alloc(nbytes), nbytes, value))
                device.memset(live[-1][0], value, nbytes)
        for block in live:
            give_back(*block, pool.free)

    run_threads(work, 8)
    pool.check()
    stats = pool.stats()
    assert faults == []
    assert (stats.used, stats.requested, stats.alloc_count) == (0, 0, stats.free_count)


@pytest.mark.threads
@pytest.mark.parametrize("settings", [{}, {"mid_max": 0}, {"debug": True}])
def test_threads_without_the_gil(make_device, settings):
    """A million operations by eight threads; every block is filled, and verified when it is freed."""
    pool = cp.Pool("64MiB", device=make_device("64MiB"), **settings)
    totals = []
    for turn in range(4):
        run_threads(lambda seed: totals.append(_testing.churn(
            pool, 31_250, 300, 100, 7, seed + 8 * turn, check_every=2000, fill=True, alone=False)), 8)
        pool.check()
    stats = pool.stats()
    assert (stats.used, stats.requested) == (0, 0)
    assert stats.alloc_count == stats.free_count == sum(total["allocs"] for total in totals)
    assert stats.alloc_count > 4 * 8 * 15_000
    assert stats.oom_count == sum(total["refused"] for total in totals) == 0


@pytest.mark.threads
def test_close_while_others_allocate(make_device):
    pool = cp.Pool("16MiB", device=make_device())
    started = threading.Barrier(5)

    def work(seed):
        started.wait()
        if seed == 0:
            pool.close()
            return
        with pytest.raises(ValueError, match="closed"):
            while True:
                pool.free(pool.alloc(1000 * seed))

    run_threads(work, 5)
    assert pool.device.live == {}


def run_threads(work, count):
    """Run work(0 .. count - 1) at once; raise what the first of them raised."""
    raised = []

    def guarded(seed):
        try:
            work(seed)
        except BaseException as error:      # noqa: BLE001 - handed to the test
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(seed,)) for seed in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def mapped_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.threads
def test_initialising_in_several_threads(make_device):
    """One of them opens the pool; the region of none is lost."""
    device = make_device("64MiB")
    device.delay("cudaMalloc", 0.1)
    pool = cp.Pool.__new__(cp.Pool)
    errors = []

    def initialise():
        try:
            pool.__init__("1MiB", device=device)
        except RuntimeError as error:
            errors.append(error)

    threads = [threading.Thread(target=initialise) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 2 and len(device.live) == 1
    pool.close()
    assert device.live == {}


def test_initialising_again_after_a_failure(make_device):
    device = make_device("1MiB")
    pool = cp.Pool.__new__(cp.Pool)
    with pytest.raises(cp.OutOfMemoryError):
        pool.__init__("2MiB", device=device)
    pool.__init__("1MiB", device=device)
    with pytest.raises(RuntimeError, match="once"):
        pool.__init__("1MiB", device=device)
    pool.free(pool.alloc(1000))
    pool.close()


@pytest.mark.untraced
@pytest.mark.parametrize("call", ["alloc", "buffer"])
def test_no_block_is_lost_when_the_host_has_no_memory(make_device, call):
    capi = pytest.importorskip("_testcapi")
    pool = cp.Pool("1MiB", device=make_device("1MiB"))
    refused = 0
    spare = [pool.buffer(0) for _ in range(200)]        # no object lies ready to be used again
    for number in range(1, 12):
        got = None
        try:
            capi.set_nomemory(number, number + 1)
            got = getattr(pool, call)(1000)
        except MemoryError:
            refused += 1
        finally:
            capi.remove_mem_hooks()
        live = pool.stats().alloc_count - pool.stats().free_count
        assert live == (0 if got is None else 1)
        if call == "alloc":
            pool.free(got or 0)
        del got
    assert refused and spare
    assert pool.stats().used == 0
    pool.check()
