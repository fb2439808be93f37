"""Reference models in plain Python, and how hard hypothesis tries.

A model says what a structure must do in the simplest way that is right: it searches and remembers everything.
"""

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EFFORT = int(os.environ.get("CUDA_POOL_TEST_EFFORT", "1"))


def effort(examples, steps=40):
    """Return hypothesis settings; the environment variable CUDA_POOL_TEST_EFFORT multiplies the examples."""
    return settings(max_examples=examples * EFFORT, stateful_step_count=steps, deadline=None,
                    suppress_health_check=list(HealthCheck))


def log_uniform(largest, smallest=1):
    """Strategy for ints from `smallest` to `largest`, every power of two as likely as the next."""
    low, high = smallest.bit_length(), largest.bit_length()
    return st.integers(low, high).flatmap(
        lambda bits: st.integers(max(smallest, 1 << bits - 1), min(largest, (1 << bits) - 1)))


class UnitsModel:
    """A buddy system: which units are free."""

    def __init__(self, size):
        self.size = size
        self.free = set(range(size))

    def blocks(self):
        """Return (block, order) of the largest aligned blocks that are wholly free, by address."""
        blocks, at = [], 0
        while at < self.size:
            if at not in self.free:
                at += 1
                continue
            order = 0
            while at % (2 << order) == 0 and self.is_free(at, 2 << order):
                order += 1
            blocks.append((at, order))
            at += 1 << order
        return blocks

    def is_free(self, start, units):
        return all(unit in self.free for unit in range(start, start + units))

    def candidates(self, units, order):
        """Return the starts that an allocation may choose: blocks of the smallest order that is large enough."""
        wanted = max(order, (units - 1).bit_length())
        enough = [block for block in self.blocks() if block[1] >= wanted]
        least = min((size for _, size in enough), default=None)
        return {start for start, size in enough if size == least}

    def take(self, start, units):
        self.free -= set(range(start, start + units))

    def give(self, start, units):
        self.free |= set(range(start, start + units))


class RangeModel:
    """A coalescing range [start, end): free and live intervals as dicts from offset to size."""

    def __init__(self, start, end):
        self.start = start
        self.end = end
        self.free = {start: end - start} if start < end else {}
        self.live = {}

    def find(self, size, align=0, bias=0):
        """Return the offset of the best fit, the lowest of equal ones.

        If that cannot hold an aligned block: the best fit for a size that is enough wherever it starts.
        """
        best = self.best_fit(size)
        if best is None or self.place(best, size, align, bias) >= best:
            return best
        return self.best_fit(size + (1 << align) - 1)

    def best_fit(self, size):
        return min(((length, offset) for offset, length in self.free.items() if length >= size),
                   default=(None, None))[1]

    def place(self, offset, size, align, bias):
        """Return where a block goes: as high in the free one as its alignment allows."""
        start = offset + self.free[offset] - size
        return start - (start + bias) % (1 << align)

    def take(self, offset, size, align=0, bias=0):
        start, length = self.place(offset, size, align, bias), self.free.pop(offset)
        if start > offset:
            self.free[offset] = start - offset
        if start + size < offset + length:
            self.free[start + size] = offset + length - start - size
        self.live[start] = size
        return start

    def give(self, offset):
        size = self.live.pop(offset)
        for start, length in list(self.free.items()):
            if start == offset + size:
                size += self.free.pop(start)
            elif start + length == offset:
                offset, size = start, size + self.free.pop(start)
        self.free[offset] = size

    def extend(self, size):
        self.live[self.start - size] = size
        self.start -= size
        self.give(self.start)

    def edge(self):
        return self.free.get(self.start, 0)

    def shrink(self, size):
        edge = self.free.pop(self.start, 0)
        self.start += size
        if edge > size:
            self.free[self.start] = edge - size

    def tiles(self):
        """Return (offset, size, is it free) of every block, by offset."""
        return sorted([(offset, size, True) for offset, size in self.free.items()]
                      + [(offset, size, False) for offset, size in self.live.items()])


class BlocksModel:
    """What a pool holds: (used, requested) of every live block, by address."""

    def __init__(self):
        self.live = {}
        self.freed = set()

    def add(self, address, used, requested):
        overlapping = [other for other, (length, _) in self.live.items()
                       if address < other + length and other < address + used]
        assert not overlapping, f"{address:#x} overlaps {[hex(other) for other in overlapping]}"
        self.live[address] = used, requested
        self.freed.discard(address)

    def remove(self, address):
        self.freed.add(address)
        return self.live.pop(address)

    def inside(self, address):
        """Return the start of the live block that `address` lies in, or None."""
        return next((start for start, (used, _) in self.live.items() if start <= address < start + used), None)

    @property
    def used(self):
        return sum(used for used, _ in self.live.values())

    @property
    def requested(self):
        return sum(requested for _, requested in self.live.values())


# Arguments of pools that between them take every path: (capacity, settings) by name.
POOLS = {
    "defaults": ("4MiB", {}),
    "textbook": ("4MiB", {"mid_max": "1MiB"}),
    "no_mid": (3_000_000, {"mid_max": 0}),
    "no_slabs": ("2MiB", {"slab_max": 0}),
    "buddy_alone": ("1MiB", {"slab_max": 0, "mid_max": 0, "min_block": 256}),
    "slots_of_64": ("1MiB", {"size_classes": 64}),
    "one_class": ("512KiB", {"size_classes": ["4KiB"]}),
    "one_small_class": (4096, {"size_classes": [64], "mid_max": 0, "min_block": 512}),
    "by_hand": ("2MiB", {"size_classes": [1, 1000, 5000, 100_000], "mid_max": "10KiB", "min_block": 1024}),
    "large_slots": ("3MiB", {"slab_max": "1MiB", "mid_max": 0, "min_block": 1024}),
    "small_blocks": ("1MiB", {"min_block": 4096, "mid_max": 0}),
    "bytes_256": (256, {}),
    "bytes_1024": (1024, {"min_block": 256, "mid_max": 0}),
    "bytes_1000031": (1_000_031, {}),
    "bytes_1000192": (1_000_192, {"min_block": 4096}),
    "large_blocks": ("3MiB", {"min_block": "1MiB", "mid_max": 0, "slab_max": 300}),
}
