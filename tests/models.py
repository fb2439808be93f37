"""Reference models in plain Python, and how hard hypothesis tries.

A model says what a structure must do in the simplest way that is right: it searches and remembers everything.
"""

import os
import sys

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import cuda_pool as cp

NOBODY = 0              # of the owners of free memory
EFFORT = int(os.environ.get("CUDA_POOL_TEST_EFFORT", "1"))
OPTIMISED = os.environ.get("CUDA_POOL_BUILD", "release") == "release"
# For what is timed, or takes from a sanitizer's runtime what it needs.
optimised = pytest.mark.skipif(not OPTIMISED, reason="the build is instrumented")


def effort(examples, steps=40):
    """Return hypothesis settings; the environment variable CUDA_POOL_TEST_EFFORT multiplies the examples."""
    return settings(max_examples=examples * EFFORT, stateful_step_count=steps, deadline=None,
                    suppress_health_check=list(HealthCheck))


def log_uniform(largest, smallest=1):
    """Strategy for ints from `smallest` to `largest`, every power of two as likely as the next."""
    low, high = smallest.bit_length(), largest.bit_length()
    return st.integers(low, high).flatmap(
        lambda bits: st.integers(max(smallest, 1 << bits - 1), min(largest, (1 << bits) - 1)))


# What a random test of a pool draws must not depend on where its memory lies, which differs from run to run and decides
# whether an aligned block fits: hypothesis stops at a draw that differs. So a block is drawn as a place, in a list of
# any length, in the order of the calls and not of the addresses; and no rule has a precondition.
PLACES = st.integers(0, (1 << 16) - 1)


def at_place(things, place):
    """Return one of `things`, or None if there is none."""
    things = list(things)
    return things[place % len(things)] if things else None


def forked(child):
    """Run `child` in a forked process; return its id. It ends with 0, or with 1 and what it raised on stderr."""
    pid = os.fork()
    if pid:
        return pid
    try:
        child()
    except BaseException as error:          # noqa: BLE001 - whatever it is, the process must end here
        sys.stderr.write(repr(error))
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def comparable(stats, *without):
    """Return statistics as a dict, without what changes by itself: others use a real device, and asking is a call."""
    left_out = {"device_free", "device_total", "upstream_calls", *without}
    return {name: value for name, value in vars(stats).items() if name not in left_out}


class CheckedPool(cp.Pool):
    """A pool that checks itself after every step."""

    def alloc(self, *args, **kwargs):
        return self.checked(super().alloc, *args, **kwargs)

    def free(self, *args):
        self.checked(super().free, *args)

    def free_async(self, *args):
        self.checked(super().free_async, *args)

    def record_use(self, *args):
        self.checked(super().record_use, *args)

    def forget_stream(self, *args):
        self.checked(super().forget_stream, *args)

    def trim(self, *args):
        return self.checked(super().trim, *args)

    def checked(self, method, *args, **kwargs):
        try:
            return method(*args, **kwargs)
        finally:
            self.check()


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


class View:
    """What `owner` may use: what is its own or nobody's, and of others what they freed in batches up to a limit."""

    def __init__(self, owner, batch, limits):
        self.owner = owner
        self.batch = batch
        self.limits = limits

    def allows(self, owner, batch):
        return owner in (NOBODY, self.owner) or batch <= self.limits.get(owner, 0)

    def takes(self, owner, batch):
        """Does a block become the owner's that is not yet?"""
        return owner != self.owner and self.allows(owner, batch)


class OwnedUnitsModel:
    """A buddy system with owners: the owner and the batch of every free unit.

    The units of one block have one batch. Which blocks there are follows from the owners: no two free buddies of one
    owner are left unmerged, and the only such partition of an owner's units is that into its largest aligned blocks.
    """

    def __init__(self, size):
        self.size = size
        self.free = {}

    def of(self, owner):
        model = UnitsModel(self.size)
        model.free = {unit for unit, (other, _) in self.free.items() if other == owner}
        return model

    def blocks(self, owner):
        """Return {block: (order, batch)}."""
        return {start: (order, self.free[start][1]) for start, order in self.of(owner).blocks()}

    def is_free(self, start, units, owner):
        return all(self.free.get(unit, (None,))[0] == owner for unit in range(start, start + units))

    def take(self, start, units):
        for unit in range(start, start + units):
            del self.free[unit]

    def give(self, start, units, owner, batch):
        self.free.update((unit, (owner, batch)) for unit in range(start, start + units))
        self.merge(owner)

    def merge(self, owner):
        """A block that is made of several waits for the last of them."""
        for start, order in self.of(owner).blocks():
            units = range(start, start + (1 << order))
            batch = max(self.free[unit][1] for unit in units)
            self.free.update((unit, (owner, batch)) for unit in units)

    def pass_on(self, is_meant, to, batch):
        self.free.update((unit, (to, batch)) for unit, block in list(self.free.items()) if is_meant(*block))
        self.merge(to)

    def largest_run(self, view):
        """Return the units of the longest run that the view allows."""
        longest = run = 0
        for unit in range(self.size):
            run = run + 1 if unit in self.free and view.allows(*self.free[unit]) else 0
            longest = max(longest, run)
        return longest


class RangeModel:
    """A coalescing range [start, end): free and live intervals as dicts from offset to size."""

    def __init__(self, start, end):
        self.start = start
        self.end = end
        self.free = {start: end - start} if start < end else {}
        self.live = {}

    def find(self, size, align=0, bias=0):
        """Return the offset of the best fit, the lowest of equal ones.

        Among the first 16 that are large enough, the first that can hold an aligned block; else the best fit for a
        size that is enough wherever it starts.
        """
        fits = self.fits(size)
        for offset in fits[:16]:
            if self.place(offset, size, align, bias) >= offset:
                return offset
        return next(iter(self.fits(size + (1 << align) - 1)), None) if len(fits) > 16 else None

    def fits(self, size):
        """Return the offsets of the free intervals that are large enough, the best first."""
        return [offset for length, offset in sorted((length, offset) for offset, length in self.free.items())
                if length >= size]

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


class OwnedRangeModel:
    """A coalescing range with owners: dicts from offset to (size, owner, batch)."""

    def __init__(self, start, end):
        self.start = start
        self.end = end
        self.free = {start: (end - start, NOBODY, 0)} if start < end else {}
        self.live = {}

    def of(self, owner):
        """Return a RangeModel of what an owner has free."""
        model = RangeModel(self.end, self.end)
        model.start = self.start
        model.free = {offset: size for offset, (size, other, _) in self.free.items() if other == owner}
        return model

    def find_allowed(self, view, size, align, bias):
        """Return the smallest of the other owners' best fits that are allowed, the lowest owner's of equal ones."""
        found = []
        for owner in sorted({owner for _, owner, _ in self.free.values()} - {NOBODY, view.owner}):
            offset = self.of(owner).find(size, align, bias)
            if offset is not None and view.allows(owner, self.free[offset][2]):
                found.append((self.free[offset][0], owner, offset))
        return min(found)[2] if found else None

    def runs(self, view):
        """Return [(offset, size)] of the longest runs of neighbours that the view allows."""
        runs = []
        for offset, (size, owner, batch) in sorted(self.free.items()):
            if not view.allows(owner, batch):
                continue
            if runs and sum(runs[-1]) == offset:
                runs[-1] = runs[-1][0], runs[-1][1] + size
            else:
                runs.append((offset, size))
        return runs

    def join(self, view, size, align, bias):
        """Make the high end of the smallest run that is enough one block of the asker's; return its offset, or None."""
        for length, offset in sorted((length, offset) for offset, length in self.runs(view)):
            start = offset + length - size
            start -= (start + bias) % (1 << align)
            if start >= offset:
                self.cut(start)
                for part in [part for part in self.free if start <= part < offset + length]:
                    del self.free[part]
                self.free[start] = offset + length - start, view.owner, view.batch
                return start
        return None

    def cut(self, at):
        for offset, (size, owner, batch) in list(self.free.items()):
            if offset < at < offset + size:
                self.free[offset] = at - offset, owner, batch
                self.free[at] = offset + size - at, owner, batch

    def take(self, offset, size, align=0, bias=0):
        length, owner, batch = self.free.pop(offset)
        start = offset + length - size
        start -= (start + bias) % (1 << align)
        if start > offset:
            self.free[offset] = start - offset, owner, batch
        if start + size < offset + length:
            self.free[start + size] = offset + length - start - size, owner, batch
        self.live[start] = size, owner, batch
        return start

    def give(self, offset, owner, batch):
        self.free[offset] = self.live.pop(offset)[0], owner, batch
        self.merge()

    def merge(self):
        """Merge neighbours of one owner; the result waits for the last of them."""
        merged = {}
        last = None
        for offset, (size, owner, batch) in sorted(self.free.items()):
            if last is not None and last + merged[last][0] == offset and merged[last][1] == owner:
                merged[last] = merged[last][0] + size, owner, max(merged[last][2], batch)
            else:
                merged[offset] = size, owner, batch
                last = offset
        self.free = merged

    def pass_on(self, is_meant, to, batch):
        self.free = {offset: (size, to, batch) if is_meant(owner, was) else (size, owner, was)
                     for offset, (size, owner, was) in self.free.items()}
        self.merge()

    def extend(self, size, owner, batch):
        self.start -= size
        self.free[self.start] = size, owner, batch
        self.merge()

    def shrink(self, size):
        length, owner, batch = self.free.pop(self.start, (0, NOBODY, 0))
        self.start += size
        if length > size:
            self.free[self.start] = length - size, owner, batch

    def tiles(self):
        """Return (offset, size, is it free, owner, batch) of every block, by offset."""
        return sorted([(offset, size, True, *rest) for offset, (size, *rest) in self.free.items()]
                      + [(offset, size, False, *rest) for offset, (size, *rest) in self.live.items()])


class TrieModel:
    """The tries of a range, made by putting free blocks in one after another, and what a search in them visits.

    A node is [size, offset, child on bit 0, child on bit 1].
    """

    def __init__(self, end):
        self.offset_bits = max(1, (max(end, 2) - 1).bit_length())
        self.roots, self.depths, self.counts = {}, {}, {}

    def bin_of(self, size):
        row = size.bit_length() - 1
        return row, (size << 5 >> row) & 31

    def path(self, size, offset):
        """Return the bits that tell this key from others of its bin, first one first."""
        bits = max(0, size.bit_length() - 6)
        return f"{size & (1 << bits) - 1:0{bits}b}"[:bits] + f"{offset:0{self.offset_bits}b}"

    def put(self, size, offset):
        bin, node, depth = self.bin_of(size), [size, offset, None, None], 1
        at = self.roots.setdefault(bin, node)
        for bit in self.path(size, offset):
            if at is node:
                break
            side, depth = 2 + int(bit), depth + 1
            at[side] = at[side] or node
            at = at[side]
        assert at is node, "two blocks have one key"
        self.depths[bin] = max(self.depths.get(bin, 0), depth)
        self.counts[bin] = self.counts.get(bin, 0) + 1

    def find(self, size):
        """Return (key of the best fit or None, nodes that the search visits)."""
        visited, best, larger = [], None, None
        at = self.roots.get(self.bin_of(size))
        for bit in self.path(size, 0) + "-":
            if at is None:
                break
            visited.append(at)
            if bit == "0" and at[3]:
                larger = at[3]
            at = at[2 + int(bit)] if bit != "-" else None
        visited += self.smallest(larger)
        best = min((node[:2] for node in visited if node[0] >= size), default=None)
        if best is None:
            above = min((bin for bin in self.roots if bin > self.bin_of(size)), default=None)
            visited += self.smallest(self.roots.get(above))
            best = min((node[:2] for node in visited if node[0] >= size), default=None)
        return best and tuple(best), len(visited)

    def smallest(self, at):
        """Return the nodes on the way to the smallest key below `at`."""
        visited = []
        while at is not None:
            visited.append(at)
            at = at[2] or at[3]
        return visited


class BlocksModel:
    """What a pool holds: (used, requested) of every live block, by address."""

    def __init__(self):
        self.live = {}
        self.freed = {}         # as a set in the order of the calls

    def add(self, address, used, requested):
        overlapping = [other for other, (length, _) in self.live.items()
                       if address < other + length and other < address + used]
        assert not overlapping, f"{address:#x} overlaps {[hex(other) for other in overlapping]}"
        self.live[address] = used, requested
        self.freed.pop(address, None)

    def remove(self, address):
        self.freed[address] = None
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
REUSE = ["wait", "query", "never"]
# Blocks of a size, and a pool that a few of them fill: from slabs, the mid tier and the buddy tier.
SIZES = [(100, 8 << 10), (20_000, 100_000), (3 << 20, 12 << 20)]

# Settings that send requests by each tier.
ROUTES = [{}, {"mid_max": "1MiB"}, {"mid_max": 0}, {"slab_max": 0}, {"slab_max": 0, "mid_max": 0}]
# Pools whose pages move: on devices with pages of 4 KiB and of 2 MiB, the latter with a buddy tier, too.
VIRTUAL_POOLS = {
    "virtual": ("1MiB", {"backing": "virtual"}),
    "virtual_no_slabs": ("1MiB", {"backing": "virtual", "slab_max": 0}),
    "virtual_textbook": ("4MiB", {"backing": "virtual", "mid_max": "300KiB"}),
    "virtual_no_mid": ("1MiB", {"backing": "virtual", "mid_max": 0, "min_block": 1024}),
    "virtual_1000031": (1_000_031, {"backing": "virtual"}),
}
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

# The same of pools that grow, and of some that keep and prepare slabs, too.
GROWING = {
    "predicts": ("2MiB", {"growth": "predictive", "max_capacity": "2MiB"}),
    "predicts_and_grows": ("256KiB", {"growth": "predictive", "max_capacity": "6MiB"}),
    "predicts_large_slots": ("512KiB", {"growth": "predictive", "max_capacity": "4MiB", "slab_max": "1MiB"}),
    "predicts_and_shrinks": ("64KiB", {"growth": "predictive", "max_capacity": "8MiB", "release_threshold": "512KiB"}),
    "grows": ("64KiB", {"max_capacity": "6MiB"}),
    "grows_a_lot": (256, {"max_capacity": "12MiB", "slab_max": "4KiB"}),
    "grows_textbook": ("1MiB", {"max_capacity": "7MiB", "mid_max": "256KiB"}),
    "grows_no_mid": ("1MiB", {"max_capacity": "5MiB", "mid_max": 0}),
    "grows_no_slabs": ("512KiB", {"max_capacity": "4MiB", "slab_max": 0}),
    "grows_and_shrinks": ("256KiB", {"max_capacity": "8MiB", "release_threshold": "512KiB"}),
    "grows_to_1024": (256, {"max_capacity": 1024, "min_block": 256, "mid_max": 0}),
    "grows_to_1000031": (100_003, {"max_capacity": 1_000_031}),
    "grows_with_large_slots": ("300KiB", {"max_capacity": "6MiB", "slab_max": "1MiB", "min_block": 1024}),
}
GROWING = {name: (capacity, {"growth": "dynamic", **settings}) for name, (capacity, settings) in GROWING.items()}
