"""What other allocators would reserve for a trace, by their published rules.

=======================  ===============  ===============================  =========================  =======
policy                   rounding         from the driver                  fit                        streams
=======================  ===============  ===============================  =========================  =======
``pytorch``              512 bytes        up to 1 MiB: 2 MiB; below 10     best fit, small and large  apart
                                          MiB: 20 MiB; else n times 2 MiB  apart
``pytorch_expandable``   512 bytes        2 MiB (small) or 20 MiB at the   best fit, the end of a     apart
                                          end of a range                   range last
``cupy``                 512 bytes        the rounded size                 best fit                   apart
``coalescing_best_fit``  256 bytes        what the end of one range lacks  best fit                   as one
``buddy_power_of_two``   a power of two,  up to the highest block in use   the lowest                 as one
                         at least 4 KiB
=======================  ===============  ===============================  =========================  =======

The fourth is RMM's pool without the steps in which it grows. Rules: PyTorch's CUDACachingAllocator and CuPy's
SingleDeviceMemoryPool, as their documentation and sources describe them; Knuth, The Art of Computer Programming,
volume 1, section 2.5, for best fit and the buddy system.

Events are played in program order, as if the device were never behind: PyTorch and CuPy hand no memory to another
stream, however early that would be safe, and the two that do take no notice of streams.
"""

import heapq
from bisect import bisect_left, insort

from .sizes import shown
from .trace import require_trace

__all__ = ["POLICIES", "peak_reserved"]

MIB = 1 << 20
SLICE = 1 << 14             # events between two reports of progress
GAP = 4096                  # between segments, which never merge
BUDDY_TOP = 96              # order of the address space; more than any trace can fill
BUDDY_MIN = 4096


class FreeBlocks:
    """Free blocks that merge with their neighbours; the smallest that fits is taken, of equal ones the lowest."""

    def __init__(self):
        self.order = []         # (size, address), ascending
        self.size_at = {}       # address -> size
        self.start_of = {}      # end -> address

    def add(self, address, size):
        """Add a block, merged with the free ones beside it."""
        before = self.start_of.get(address)
        if before is not None:
            size += self._drop(before)
            address = before
        if address + size in self.size_at:
            size += self._drop(address + size)
        self.size_at[address] = size
        self.start_of[address + size] = address
        insort(self.order, (size, address))

    def take(self, size):
        """Take the best fit out; return its address and size, or None."""
        at = bisect_left(self.order, (size, 0))
        return self._take_at(at) if at < len(self.order) else None

    def take_but(self, size, end):
        """Do the same, but take the block that stops at `end` only if no larger one fits."""
        at = bisect_left(self.order, (size, 0))
        if at < len(self.order) - 1 and sum(self.order[at]) == end:
            at += 1
        return self._take_at(at) if at < len(self.order) else None

    def take_end(self, end):
        """Take the block that stops at `end` out; return its address, or `end` if there is none."""
        address = self.start_of.get(end)
        if address is None:
            return end
        self._drop(address)
        return address

    def _take_at(self, at):
        size, address = self.order.pop(at)
        del self.size_at[address], self.start_of[address + size]
        return address, size

    def _drop(self, address):
        size = self.size_at.pop(address)
        del self.start_of[address + size], self.order[bisect_left(self.order, (size, address))]
        return size


class Segments:
    """Segments from the driver, in which blocks of a stream are split and merged; none is given back."""

    unit = 512

    def __init__(self):
        self.reserved = 0
        self.pools = {}
        self.live = {}              # address -> (pool, size) of blocks in use
        self.next = 0

    def alloc(self, nbytes, stream):
        """Return the address of a new block."""
        size = _rounded(nbytes, self.unit)
        key = self.pool_of(size, stream)
        free = self.pools.get(key)
        if free is None:
            free = self.pools[key] = FreeBlocks()
        address, whole = free.take(size) or self._grow(self.request_for(size))
        if self.splits(size, whole - size):
            free.add(address + size, whole - size)
            whole = size
        self.live[address] = free, whole
        return address

    def free(self, address):
        """Free a block."""
        free, size = self.live.pop(address)
        free.add(address, size)

    def _grow(self, size):
        address, self.next = self.next, self.next + size + GAP
        self.reserved += size
        return address, size


class PyTorch(Segments):
    """PyTorch's caching allocator with its defaults."""

    def pool_of(self, size, stream):
        """Small and large blocks are kept apart, and so are streams."""
        return size <= MIB, stream

    def request_for(self, size):
        """Size of a new segment."""
        if size <= MIB:
            return 2 * MIB
        return 20 * MIB if size < 10 * MIB else _rounded(size, 2 * MIB)

    def splits(self, size, rest):
        """Whether the rest of a block becomes one of its own."""
        return rest >= 512 if size <= MIB else rest > MIB


class CuPy(Segments):
    """CuPy's default memory pool."""

    def pool_of(self, size, stream):
        """Streams are kept apart."""
        return stream

    def request_for(self, size):
        """Size of a new segment."""
        return size

    def splits(self, size, rest):
        """Whether the rest of a block becomes one of its own."""
        return rest > 0


class Ranges:
    """One range for each pool, which grows at its end; blocks are always split."""

    def __init__(self):
        self.free_of = {}
        self.end_of = {}
        self.live = {}              # (pool, address) -> size of blocks in use

    @property
    def reserved(self):
        """Bytes of all ranges."""
        return sum(self.end_of.values())

    def alloc(self, nbytes, stream):
        """Return the place of a new block."""
        size = _rounded(nbytes, self.unit)
        key, page = self.pool_of(size, stream)
        if key not in self.free_of:
            self.free_of[key], self.end_of[key] = FreeBlocks(), 0
        free = self.free_of[key]
        address, whole = self.find(free, size, self.end_of[key]) or self._grow(key, size, page)
        if whole > size:
            free.add(address + size, whole - size)
        self.live[key, address] = size
        return key, address

    def free(self, place):
        """Free a block."""
        self.free_of[place[0]].add(place[1], self.live.pop(place))

    def _grow(self, key, size, page):
        """Add what is missing beside a free block at the end of the range."""
        address = self.free_of[key].take_end(self.end_of[key])
        self.end_of[key] += _rounded(address + size - self.end_of[key], page)
        return address, self.end_of[key] - address


class ExpandablePyTorch(Ranges):
    """PyTorch's caching allocator with expandable segments."""

    unit = 512

    def pool_of(self, size, stream):
        """Small and large blocks are kept apart, and so are streams."""
        return ((True, stream), 2 * MIB) if size <= MIB else ((False, stream), 20 * MIB)

    def find(self, free, size, end):
        """The block at the end counts as one that goes on for ever, so that any other that fits is better."""
        return free.take_but(size, end)


class BestFit(Ranges):
    """One range with coalescing best fit."""

    unit = 256

    def pool_of(self, size, stream):
        """There is one range."""
        return None, self.unit

    def find(self, free, size, end):
        """Take the smallest block that fits."""
        return free.take(size)


class Buddy:
    """A power-of-two buddy system: the smallest free block that fits, of equal ones the lowest, is halved."""

    def __init__(self):
        self.reserved = 0
        self.live = {}                                      # address -> order
        self.free_at = [set() for _ in range(BUDDY_TOP + 1)]
        self.heaps = [[] for _ in range(BUDDY_TOP + 1)]     # of the same, and of some that are free no more
        self._push(BUDDY_TOP, 0)

    def alloc(self, nbytes, stream):
        """Return the address of a new block."""
        order = (max(nbytes, BUDDY_MIN) - 1).bit_length()
        found = order
        while (address := self._lowest(found)) is None:
            found += 1
        self.free_at[found].discard(address)
        while found > order:
            found -= 1
            self._push(found, address + (1 << found))
        self.live[address] = order
        self.reserved = max(self.reserved, address + (1 << order))
        return address

    def free(self, address):
        """Free a block."""
        order = self.live.pop(address)
        while order < BUDDY_TOP and (buddy := address ^ 1 << order) in self.free_at[order]:
            self.free_at[order].discard(buddy)
            address &= ~(1 << order)
            order += 1
        self._push(order, address)

    def _push(self, order, address):
        self.free_at[order].add(address)
        heapq.heappush(self.heaps[order], address)

    def _lowest(self, order):
        heap, free = self.heaps[order], self.free_at[order]
        while heap and heap[0] not in free:
            heapq.heappop(heap)
        return heap[0] if heap else None


POLICIES = {"pytorch": PyTorch, "pytorch_expandable": ExpandablePyTorch, "cupy": CuPy, "coalescing_best_fit": BestFit,
            "buddy_power_of_two": Buddy}


def peak_reserved(trace, policy, progress=None):
    """Return what a policy reserves for a trace at most, in bytes.

    Parameters
    ----------
    trace : Trace
        Blocks that were live before its first event are placed first.
    policy : str
        A name in ``cuda_pool.peers.POLICIES``.
    progress : callable, optional
        Called as ``progress(done, total)`` with numbers of events.

    Returns
    -------
    int

    Raises
    ------
    ValueError
        There is no such policy.
    TypeError
        `trace` is no trace.
    """
    require_trace(trace)
    if not isinstance(policy, str) or policy not in POLICIES:
        raise ValueError(f"{shown(policy)} is no policy: expected {', '.join(POLICIES)}")
    return play(trace, POLICIES[policy](), progress).reserved


def play(trace, allocator, progress=None, placed=None, least=0):
    """Play a trace with an allocator; return the allocator.

    Parameters
    ----------
    trace : Trace
    allocator : object
        Has ``alloc(nbytes, stream)``, which returns a place, and ``free(place)``.
    progress : callable, optional
        Called as ``progress(done, total)`` with numbers of events.
    placed : dict, optional
        Takes the place of every block that was given one, by its index.
    least : int
        Bytes that a block takes at least; with 0, blocks of 0 bytes have no place.
    """
    live, places = {}, {} if placed is None else placed
    for block, size, stream in standing_blocks(trace):
        live[block] = places[block] = allocator.alloc(size, stream)
    columns = (trace.is_free, trace.is_orphan, trace.block, trace.size, trace.stream)
    for start in range(0, trace.events, SLICE):
        for is_free, is_orphan, block, size, stream in zip(*(each[start:start + SLICE].tolist() for each in columns)):
            if not is_free:
                if size or least:
                    live[block] = places[block] = allocator.alloc(max(size, least), stream)
            elif not is_orphan and block in live:
                allocator.free(live.pop(block))
        if progress:
            progress(min(start + SLICE, trace.events), trace.events)
    return allocator


def standing_blocks(trace):
    """Return the blocks that were live before the first event as (block, size, stream), in the trace's order."""
    if not trace.preexisting:
        return []
    before, sizes = trace.is_preexisting, trace.block_size
    streams = dict(zip(trace.live["block"].tolist(), trace.live["stream"].tolist()))
    for block, stream in zip(trace.block.tolist(), trace.stream.tolist()):
        if before[block]:
            streams.setdefault(block, stream)
    return [(block, int(sizes[block]), streams[block]) for block in sorted(streams) if before[block]]


def _rounded(nbytes, unit):
    return -(-nbytes // unit) * unit
