"""Statistics of pools as metrics for Prometheus; needs ``pip install 'cuda_pool[prometheus]'``."""

from collections.abc import Mapping
from weakref import ref

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ._api import Pool
from .sizes import shown

__all__ = ["PoolCollector"]

GAUGES = {
    "capacity": "Bytes that the pool may hold at most",
    "reserved": "Bytes that it holds from the device",
    "reserved_high": "The most that it held",
    "used": "Bytes that live blocks occupy",
    "used_high": "The most that they occupied",
    "requested": "Bytes that were asked for in live blocks",
    "requested_high": "The most that was asked for in them",
    "pending": "Free bytes that one stream only may reuse",
    "free": "Bytes that are not in use",
    "largest_free": "Bytes of the largest request that would succeed without growing",
    "device_free": "Bytes of the device that are free",
}
COUNTERS = {
    "alloc_count": ("allocations", "Allocations that succeeded"),
    "free_count": ("frees", "Frees"),
    "oom_count": ("failed_allocations", "Allocations that failed"),
    "grow_count": ("grows", "Times that the pool grew"),
    "trim_count": ("trims", "Times that it gave memory back"),
    "defrag_count": ("defragmentations", "Passes of defragmentation"),
}
TIERS = ("slab", "mid", "buddy")


class PoolCollector:
    """A collector of the statistics of some pools: give it to the ``register`` of a ``CollectorRegistry``.

    The pools are asked when the registry is, from whatever thread that is; each time costs one call of cudaMemGetInfo
    for each pool. The collector does not keep them alive. A pool that is closed, is gone, or belongs to the parent
    process is left out.

    Parameters
    ----------
    pools : dict of str to cuda_pool.Pool
        By the value that the label ``pool`` is to have.

    Raises
    ------
    TypeError
        `pools` is no such dict.
    """

    def __init__(self, pools):
        if not isinstance(pools, Mapping) or not all(isinstance(pool, Pool) for pool in pools.values()):
            raise TypeError(f"pools is a dict from names to pools (cuda_pool.Pool); got {shown(pools)}")
        self.pools = {name: ref(pool) for name, pool in pools.items()}

    def describe(self):
        """Return the metrics without values, so that the registry knows the names before there is a pool."""
        return list(_families().values())

    def collect(self):
        """Return the metrics with the statistics of now."""
        families = _families()
        for name, pool in self.pools.items():
            stats = _stats(pool())
            if stats is not None:
                _add(families, name, stats)
        return list(families.values())


def _families():
    families = {name: GaugeMetricFamily(f"cuda_pool_{name}_bytes", text, labels=["pool"])
                for name, text in GAUGES.items()}
    families.update({name: CounterMetricFamily(f"cuda_pool_{metric}", text, labels=["pool"])
                     for name, (metric, text) in COUNTERS.items()})
    families["calls"] = CounterMetricFamily("cuda_pool_driver_calls", "Driver calls of the pool",
                                            labels=["pool", "call"])
    families["tier_used"] = GaugeMetricFamily("cuda_pool_tier_used_bytes", "Bytes that live blocks of a tier occupy",
                                              labels=["pool", "tier"])
    families["tier_blocks"] = GaugeMetricFamily("cuda_pool_tier_blocks", "Live blocks of a tier",
                                                labels=["pool", "tier"])
    return families


def _stats(pool):
    if pool is None or pool.closed:
        return None
    try:
        return pool.stats()
    except (ValueError, RuntimeError):      # closed meanwhile; the parent's; a driver that fails
        return None


def _add(families, name, stats):
    for field in (*GAUGES, *COUNTERS):
        families[field].add_metric([name], getattr(stats, field))
    for call, count in stats.upstream_calls.items():
        families["calls"].add_metric([name, call], count)
    for tier in TIERS:
        families["tier_used"].add_metric([name, tier], getattr(stats, tier).used)
        families["tier_blocks"].add_metric([name, tier], getattr(stats, tier).blocks)
