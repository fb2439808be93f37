"""What is taken down of a pool when an allocation fails, against its statistics and its snapshot."""

import random
from collections import Counter

import pytest

import cuda_pool as cp

MIB = 1 << 20
KINDS = {
    "static": {}, "textbook": {"mid_max": "256KiB", "min_block": "4KiB"}, "no slabs": {"slab_max": 0},
    "virtual": {"backing": "virtual"}, "dynamic": {"growth": "dynamic", "max_capacity": "16MiB"},
}


def failure(pool, nbytes="1GiB", **options):
    with pytest.raises(cp.OutOfMemoryError) as caught:
        pool.alloc(nbytes, **options)
    return caught.value


def assert_agrees(moment, pool):
    """Compare what was taken down with the pool, which has not changed since."""
    stats, snapshot = pool.stats(), pool.snapshot()
    for key in ("capacity", "reserved", "used", "pending", "free", "largest_free", "alloc_count", "free_count"):
        assert moment[key] == getattr(stats, key), key
    assert moment["live"] == stats.requested
    by_tier, blocks = Counter(), Counter()
    for holder in moment["holders"]:
        by_tier[holder["tier"]] += holder["used"]
        blocks[holder["tier"]] += holder["blocks"]
        assert 0 < holder["smallest"] <= holder["largest"]
        assert holder["smallest"] * holder["blocks"] <= holder["requested"] <= holder["largest"] * holder["blocks"]
    for tier in ("slab", "mid", "buddy"):
        assert (blocks[tier], by_tier[tier]) == (getattr(stats, tier).blocks, getattr(stats, tier).used)
        assert moment["tiers"][tier] == {"blocks": blocks[tier], "used": by_tier[tier],
                                         "requested": getattr(stats, tier).requested}
    assert sum(one["used"] for one in moment["pending_on"]) == stats.pending
    slabs = Counter()
    for block in snapshot.blocks:
        if block.tier == "slab":
            slabs[block.state] += block.size
    assert moment["slab_bytes"] == sum(slabs.values())
    held = sum(one["used"] for one in moment["pending_on"] if one["stream"] is None)       # slots, or larger blocks
    not_live = moment["slab_bytes"] - slabs["live"]
    assert not_live - held <= moment["slab_free"] <= not_live


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_it_agrees_with_the_statistics(make_device, kind, seed):
    device, rng = make_device("64MiB", granularity="64KiB"), random.Random(seed)
    streams = [0, device.stream(), device.stream()]
    with cp.Pool("16MiB" if kind != "dynamic" else "2MiB", device=device, **KINDS[kind]) as pool:
        live = []
        for step in range(600):
            if rng.random() < 0.6 or not live:
                stream = rng.choice(streams)
                try:
                    live.append((pool.alloc(int(2 ** rng.uniform(4, 20)), stream), stream))
                except cp.OutOfMemoryError:
                    pass
            else:
                ptr, stream = live.pop(rng.randrange(len(live)))
                pool.free(ptr) if rng.random() < 0.3 else pool.free_async(ptr, rng.choice(streams))
            if step % 60 == 59:
                assert_agrees(failure(pool).moment, pool)
                pool.check()


def test_blocks_of_one_size_are_one_holder(device):
    with cp.Pool("32MiB", device=device) as pool:
        for nbytes in [300] * 5 + [33_000] * 3 + [33_001] * 2 + [2 * MIB] * 4:
            pool.alloc(nbytes)
        holders = {(one["tier"], one["largest"]): one for one in failure(pool).moment["holders"]}
    assert {key: one["blocks"] for key, one in holders.items()} == {
        ("slab", 512): 5, ("mid", 33_001): 5, ("mid", 2 * MIB): 4}
    assert holders["mid", 33_001]["smallest"] == 33_000 and holders["mid", 33_001]["requested"] == 5 * 33_000 + 2


@pytest.mark.parametrize("kind, small, large", [
    ({}, 20_000, 90_000), ({"mid_max": 1024, "min_block": 4096}, 4096, 65_536)], ids=["mid", "buddy"])
def test_a_sample_stands_for_many_blocks(make_device, kind, small, large):
    device = make_device("1GiB")
    stream = device.stream()
    with cp.Pool("512MiB", device=device, slab_max=0, **kind) as pool:
        assert failure(pool).moment["sampled"] is False
        blocks = [pool.alloc(small if at % 2 else large, stream) for at in range(6000)]
        for ptr in blocks[::5]:
            pool.free_async(ptr, stream)
        stats, moment = pool.stats(), failure(pool).moment
    assert moment["sampled"] is True
    by_size = {holder["largest"]: holder["blocks"] for holder in moment["holders"]}
    assert by_size.keys() == {small, large}
    assert sum(by_size.values()) == pytest.approx(4800, abs=2) and by_size[large] == pytest.approx(2400, rel=0.15)
    assert sum(holder["used"] for holder in moment["holders"]) == pytest.approx(stats.used, abs=8)
    assert sum(holder["requested"] for holder in moment["holders"]) == pytest.approx(stats.requested, abs=8)
    assert [entry["stream"] for entry in moment["pending_on"]] == [f"object 0x{stream.handle:x}"]
    assert moment["pending"] == stats.pending == moment["pending_on"][0]["used"]


def test_pending_memory_is_its_streams(make_device):
    device = make_device("16MiB")
    one, other = device.stream(), device.stream()
    with cp.Pool("8MiB", device=device, reuse="never") as pool:
        blocks = [(pool.alloc(MIB, stream), stream) for stream in (one, other, other)]
        for ptr, stream in blocks:
            stream.work(ticks=1000)
            pool.free_async(ptr, stream)
        moment = failure(pool).moment
        assert moment["pending"] == sum(entry["used"] for entry in moment["pending_on"])
        named = {entry["stream"]: entry["used"] for entry in moment["pending_on"]}
        assert named == {f"object 0x{one.handle:x}": MIB, f"object 0x{other.handle:x}": 2 * MIB}
        assert moment["reuse"] == "never"
