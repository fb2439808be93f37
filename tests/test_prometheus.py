"""Statistics of pools as metrics."""

import pytest

import cuda_pool as cp

client = pytest.importorskip("prometheus_client")


@pytest.fixture
def registry(make_device):
    from cuda_pool.prometheus import PoolCollector
    pools = {"a": cp.Pool("1MiB", device=make_device()), "b": cp.Pool("2MiB", device=make_device())}
    registry = client.CollectorRegistry()
    registry.register(PoolCollector(pools))
    yield registry, pools
    for pool in pools.values():
        pool.close()


def test_values(registry):
    registry, pools = registry
    pool = pools["a"]
    pool.free(pool.alloc(1000))
    kept = pool.alloc(70_000)
    stats = pool.stats()
    for name, value in (("capacity_bytes", 1 << 20), ("reserved_bytes", stats.reserved), ("used_bytes", stats.used),
                        ("requested_bytes", 70_000), ("requested_high_bytes", 70_000), ("free_bytes", stats.free),
                        ("largest_free_bytes", stats.largest_free), ("allocations_total", 2), ("frees_total", 1),
                        ("failed_allocations_total", 0), ("grows_total", 0)):
        assert registry.get_sample_value(f"cuda_pool_{name}", {"pool": "a"}) == value, name
    assert registry.get_sample_value("cuda_pool_capacity_bytes", {"pool": "b"}) == 2 << 20
    tiers = [registry.get_sample_value("cuda_pool_tier_blocks", {"pool": "a", "tier": tier})
             for tier in ("slab", "mid", "buddy")]
    assert sum(tiers) == 1
    assert registry.get_sample_value("cuda_pool_driver_calls_total", {"pool": "a", "call": "cudaMalloc"}) == 1
    pool.free(kept)


@pytest.mark.parametrize("pools", [5, {"a": 5}, [("a", None)], None])
def test_what_is_no_dict_of_pools(pools):
    from cuda_pool.prometheus import PoolCollector
    with pytest.raises(TypeError, match="pools is a dict from names to pools"):
        PoolCollector(pools)


def test_text(registry):
    text = client.generate_latest(registry[0]).decode()
    assert 'cuda_pool_used_bytes{pool="a"} 0.0' in text
    assert "# HELP cuda_pool_used_bytes Bytes that live blocks occupy" in text
    assert "# TYPE cuda_pool_allocations_total counter" in text


def test_pools_that_are_gone(registry):
    registry, pools = registry
    pools["a"].close()
    del pools["b"]
    assert registry.get_sample_value("cuda_pool_used_bytes", {"pool": "a"}) is None
    assert registry.get_sample_value("cuda_pool_used_bytes", {"pool": "b"}) is None
