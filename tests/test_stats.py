"""Statistics: the dataclass, and what a pool puts into it."""

import dataclasses
from dataclasses import replace

import pytest

import cuda_pool as cp

MIB = 1 << 20
NAMES = ("capacity reserved reserved_high used used_high requested requested_high pending free largest_free "
         "alloc_count free_count oom_count grow_count trim_count defrag_count device_free device_total upstream_calls "
         "slab mid buddy").split()


@pytest.fixture
def stats(make_device):
    with cp.Pool("1MiB", device=make_device("64MiB")) as pool:
        yield pool.stats()


def test_fields(stats):
    assert [field.name for field in dataclasses.fields(stats)] == NAMES
    assert all(type(getattr(stats, name)) is int for name in NAMES[:-4])
    assert [field.name for field in dataclasses.fields(stats.slab)] == ["blocks", "used", "requested"]


def test_frozen(stats):
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.used = 1
    assert hash(stats) == hash(replace(stats))


def test_fractions(stats):
    some = replace(stats, used=800, requested=600, free=400, largest_free=100, reserved=1200)
    assert (some.internal_fragmentation, some.external_fragmentation, some.utilization) == (0.25, 0.75, 0.5)


def test_fractions_of_nothing(stats):
    none = replace(stats, used=0, requested=0, free=0, largest_free=0, reserved=0)
    assert (none.internal_fragmentation, none.external_fragmentation, none.utilization) == (0, 0, 0)


def test_a_new_pool(stats):
    assert (stats.capacity, stats.reserved, stats.reserved_high) == (MIB, MIB, MIB)
    assert (stats.used, stats.used_high, stats.requested, stats.requested_high, stats.pending) == (0, 0, 0, 0, 0)
    assert (stats.free, stats.largest_free) == (MIB, MIB)
    assert (stats.device_free, stats.device_total) == (63 * MIB, 64 * MIB)
    assert stats.slab == stats.mid == stats.buddy == cp.TierStats(0, 0, 0)
    assert stats.external_fragmentation == 0


def test_high_water_marks(device):
    with cp.Pool("8MiB", device=device) as pool:
        first, second = pool.alloc(3 * MIB), pool.alloc(2 * MIB + 1)
        pool.free(first)
        pool.free(second)
        pool.alloc(1000)
        stats = pool.stats()
        assert (stats.requested, stats.requested_high) == (1000, 5 * MIB + 1)
        assert stats.used == 1024 and stats.used_high == 5 * MIB + 256
        assert stats.internal_fragmentation == 1 - 1000 / 1024 and stats.utilization == 1000 / (8 * MIB)


def test_tiers(device):
    with cp.Pool("64MiB", device=device, slab_max="4KiB", mid_max="1MiB") as pool:
        for nbytes in (100, 300, 5000, 2 * MIB):
            pool.alloc(nbytes)
        stats = pool.stats()
    assert stats.slab == cp.TierStats(2, 256 + 512, 400)
    assert stats.mid == cp.TierStats(1, 5120, 5000)
    assert stats.buddy == cp.TierStats(1, 2 * MIB, 2 * MIB)


@pytest.mark.parametrize("mid_max", [20_000, 1 << 20, (1 << 20) + 256])
def test_the_buddy_tier_has_what_is_larger_than_mid_max(make_device, mid_max):
    with cp.Pool("64MiB", device=make_device("128MiB"), mid_max=mid_max) as pool:
        ptrs = [pool.alloc(nbytes) for nbytes in (mid_max - 1, mid_max, mid_max + 1, 4 * mid_max)]
        stats = pool.stats()
        assert (stats.mid.blocks, stats.mid.requested) == (2, 2 * mid_max - 1)
        assert (stats.buddy.blocks, stats.buddy.requested) == (2, 5 * mid_max + 1)
        for ptr in ptrs:
            pool.free(ptr)


def test_upstream_calls(make_device):
    device = make_device()
    pool = cp.Pool("1MiB", device=device, scrub=True)
    pool.free(pool.alloc(100))
    pool.stats()
    calls = pool.stats().upstream_calls
    assert calls == {"cudaMalloc": 1, "cudaMemGetInfo": 2, "cudaMemsetAsync": 1, "cudaStreamSynchronize": 1}
    assert all(device.calls[name] == count for name, count in calls.items())


def test_a_driver_that_fails_to_answer(make_device):
    device = make_device()
    pool = cp.Pool("1MiB", device=device)
    device.fail("cudaMemGetInfo", code="cudaErrorIllegalAddress")
    with pytest.raises(cp.CudaError, match="cudaMemGetInfo"):
        pool.stats()
    pool.stats()


def test_difference(make_device):
    """What a step of a program did: ``later - earlier``."""
    pool = cp.Pool("1MiB", device=make_device("64MiB"))
    kept = pool.alloc(1000)
    before = pool.stats()
    pool.alloc(70_000)
    pool.free(kept)
    with pytest.raises(cp.OutOfMemoryError):
        pool.alloc("1GiB")
    after = pool.stats()
    delta = after - before
    assert isinstance(delta, cp.StatsDelta)
    assert (delta.alloc_count, delta.free_count, delta.oom_count) == (1, 1, 1)
    assert (delta.requested, delta.requested_high) == (69_000, 70_000)
    assert delta.used == -delta.free == after.used - before.used
    assert (delta.slab.blocks, delta.mid.blocks + delta.buddy.blocks, delta.slab.requested) == (-1, 1, -1000)
    assert (before - before).upstream_calls == {} and set(delta.upstream_calls) <= {"cudaMemGetInfo", "cudaSetDevice"}
    assert delta.upstream_calls["cudaMemGetInfo"] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        delta.used = 1
    for other in (None, 3, delta, before.slab):
        with pytest.raises(TypeError):
            after - other
    with pytest.raises(TypeError):
        after.slab - 1
    pool.close()
