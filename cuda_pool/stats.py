"""What ``Pool.stats`` returns."""

from dataclasses import dataclass, field, fields


@dataclass(frozen=True)
class TierStats:
    """Live blocks of one tier; sizes in bytes."""

    blocks: int
    used: int
    requested: int

    def __sub__(self, earlier):
        """Return the differences, as a `TierStats`."""
        if not isinstance(earlier, TierStats):
            return NotImplemented
        return TierStats(self.blocks - earlier.blocks, self.used - earlier.used, self.requested - earlier.requested)


@dataclass(frozen=True)
class PoolStats:
    """Statistics of a pool at one moment; sizes in bytes.

    Attributes
    ----------
    capacity : int
        What the pool may hold at most.
    reserved, reserved_high : int
        What it holds from the device, and the highest value so far.
    used, used_high : int
        What live blocks occupy, rounding included, and the highest value seen.
    requested, requested_high : int
        What was asked for in live blocks, and the highest value seen. Both of these marks are exact while one thread
        uses the pool. With several, a short peak may be missed, or counted with what another thread had just freed.
    pending : int
        Free, and at once reusable by one stream only, as far as the pool knows; part of `free`.
    free : int
        Not in use.
    largest_free : int
        The largest request that would succeed once all pending work is done, without growing. The memory of graphs is
        left out until their release.
    alloc_count, free_count, oom_count : int
        Calls that succeeded, and allocations that failed.
    grow_count, trim_count, defrag_count : int
        Times that the pool grew, and gave memory back; passes of ``Pool.defragment``, by hand or by themselves.
    device_free, device_total : int
        What cudaMemGetInfo says of the device.
    upstream_calls : dict
        Driver calls of this pool by name.
    slab, mid, buddy : TierStats
        The tiers one by one.
    """

    capacity: int
    reserved: int
    reserved_high: int
    used: int
    used_high: int
    requested: int
    requested_high: int
    pending: int
    free: int
    largest_free: int
    alloc_count: int
    free_count: int
    oom_count: int
    grow_count: int
    trim_count: int
    defrag_count: int
    device_free: int
    device_total: int
    upstream_calls: dict = field(hash=False)
    slab: TierStats
    mid: TierStats
    buddy: TierStats

    @property
    def internal_fragmentation(self):
        """Share of the used bytes that nobody asked for: ``1 - requested / used``."""
        return 1 - self.requested / self.used if self.used else 0.0

    @property
    def external_fragmentation(self):
        """Share of the free bytes outside the largest free block: ``1 - largest_free / free``."""
        return 1 - self.largest_free / self.free if self.free else 0.0

    @property
    def utilization(self):
        """Share of the reserved bytes that was asked for: ``requested / reserved``."""
        return self.requested / self.reserved if self.reserved else 0.0

    def __sub__(self, earlier):
        """Return what changed since earlier statistics of the same pool, as a `StatsDelta`: ``later - earlier``."""
        if not isinstance(earlier, PoolStats):
            return NotImplemented
        names = {one.name for one in fields(StatsDelta)} - {"upstream_calls"}
        calls = {name: count - earlier.upstream_calls.get(name, 0) for name, count in self.upstream_calls.items()}
        return StatsDelta(**{name: getattr(self, name) - getattr(earlier, name) for name in names},
                          upstream_calls={name: count for name, count in calls.items() if count})


@dataclass(frozen=True)
class StatsDelta:
    """What changed between two statistics of a pool, ``later - earlier``: bytes, unless the name says otherwise.

    A difference is negative where the later value is the smaller one.

    Attributes
    ----------
    reserved, reserved_high, used, used_high, requested, requested_high, pending, free, device_free : int
        Differences of what `PoolStats` has by these names; those that end in ``_high`` say how much a mark rose.
    alloc_count, free_count, oom_count, grow_count, trim_count, defrag_count : int
        Calls and events in between.
    upstream_calls : dict
        Driver calls of the pool in between, by name; those that were made.
    slab, mid, buddy : TierStats
        Differences of the tiers.
    """

    reserved: int
    reserved_high: int
    used: int
    used_high: int
    requested: int
    requested_high: int
    pending: int
    free: int
    device_free: int
    alloc_count: int
    free_count: int
    oom_count: int
    grow_count: int
    trim_count: int
    defrag_count: int
    upstream_calls: dict = field(hash=False)
    slab: TierStats
    mid: TierStats
    buddy: TierStats
