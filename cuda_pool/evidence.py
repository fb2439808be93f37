"""What a history of allocations tells about a failure: who holds the memory, and what only ever grew.

The history is a trace that was replayed up to the failure, or what a recorder has noted.
"""

from dataclasses import dataclass

import numpy as np

__all__ = ["Evidence", "Holder", "Leak", "evidence_of", "evidence_of_leaks", "evidence_of_trace"]

NEVER = np.iinfo(np.int64).max      # the event at which a block that stays is freed
NO_STREAM = (1 << 64) - 1
WINDOWS = 8                         # parts of a run
GROWING = 7                         # of them, in which a leak has new blocks
BLOCKS_MIN = 8                      # that are taken for a leak
FREED = 0.25                        # of what a program has allocated: where it frees less nothing is told
FALL = 0.1                          # of the peak: a program that works off something frees as much at times
HOLDERS_MAX = 20


@dataclass(frozen=True)
class Holder:
    """Live blocks of similar sizes; sizes in bytes.

    Attributes
    ----------
    tier : str
        ``"slab"``, ``"mid"`` or ``"buddy"``; in a history the one that such a size goes to first.
    stream : str or int or None
        Of the trace; otherwise whose memory the blocks were cut from: None where that is nobody's.
    blocks, used, requested : int
        Number, bytes that they occupy, and bytes that were asked for; a history tells only the latter, in both places.
    smallest, largest : int
        One block, as it was asked for; slots of a slab where only the pool was looked at.
    oldest : int or None
        Row of the trace that allocated the first of them.
    stack : tuple of str or None
        Where the program allocated them, innermost call first.
    """

    tier: str
    stream: str | int | None
    blocks: int
    used: int
    requested: int
    smallest: int
    largest: int
    oldest: int | None = None
    stack: tuple | None = None


@dataclass(frozen=True)
class Leak:
    """Blocks of similar sizes that came all through the run and of which none is freed again.

    Attributes
    ----------
    holder : Holder
    per_1000 : float
        Blocks for each 1,000 events.
    certainty : str
        ``"likely"``: the run goes on in the same way afterwards, or has freed much else; ``"possible"``: it may as well
        be what the program needs.
    """

    holder: Holder
    per_1000: float
    certainty: str


@dataclass(frozen=True)
class Evidence:
    """What a history tells.

    Attributes
    ----------
    holders : tuple of Holder
        The largest first, at most 20.
    leaks : tuple of Leak
        The largest first.
    peak_live : int
        Bytes: the most that is asked for at once in the whole history, what came after the failure included.
    """

    holders: tuple
    leaks: tuple
    peak_live: int


def evidence_of_trace(trace, moment, settings):
    """Return the Evidence of a trace that failed after `moment` events.

    Parameters
    ----------
    trace : Trace
    moment : int
        Events that were played.
    settings : dict
        ``slab_max`` and ``mid_max`` of the pool, in bytes.
    """
    born, died, row = (np.full(trace.blocks, value, np.int64) for value in (-1, NEVER, 0))
    stream = np.zeros(trace.blocks, np.uint64)      # of a thread's default stream it is above 2**63
    block, is_free, numbers = trace.block, trace.is_free, np.arange(trace.events)
    for events, at in ((~is_free, born), (is_free & ~trace.is_orphan, died)):
        at[block[events]] = numbers[events]
    for events in (is_free, ~is_free):              # what allocates a block has the last word
        stream[block[events]], row[block[events]] = trace.stream[events], trace.row[events]
    named = trace.live
    stream[named["block"]], row[named["block"]] = named["stream"], named["row"]
    exists = trace.is_preexisting
    exists[block[~is_free]] = True
    return evidence_of(trace.block_size.astype(np.int64)[exists], stream[exists], born[exists], died[exists], moment,
                       trace.events, settings, row=row[exists])


def evidence_of(size, stream, born, died, moment, events, settings, row=None, stack=None):
    """Return the Evidence of a history.

    Parameters
    ----------
    size, stream, born, died : numpy.ndarray
        Whole numbers. Of each block: bytes; number of the stream; events that allocated and freed it, counted from 0:
        below 0 what was live before, and `NEVER` what is not freed.
    moment : int
        Events before the failure.
    events : int
        Events of the whole history, which may go on after the failure.
    settings : dict
        As for `evidence_of_trace`.
    row : numpy.ndarray, optional
        Where each block was allocated, for ``Holder.oldest``.
    stack : list of tuple, optional
        Of each block: texts, innermost call first.
    """
    return _evidence(_History(size, stream, born, died, moment, events, settings, row, stack))


def _evidence(history):
    holders = [history.holder(group) for group in history.groups(history.is_live)]
    holders.sort(key=lambda holder: -holder.requested)
    kept = history.groups(history.is_kept) if history.frees() else ()
    leaks = [leak for group in kept if (leak := history.leak(group))]
    leaks.sort(key=lambda leak: -leak.holder.requested)
    return Evidence(tuple(holders[:HOLDERS_MAX]), tuple(leaks), int(history.live(history.events).max(initial=0)))


def evidence_of_leaks(leaks, events, moment):
    """Return the Evidence of the live blocks of a pool that is recorded: by stack, where stacks are.

    Of what was freed only the number is known, so a leak is no more than possible.

    Parameters
    ----------
    leaks : cuda_pool.Leaks
        What ``Pool.leaks`` returned.
    events : int
        That were recorded so far.
    moment : dict
        That of the OutOfMemoryError.
    """
    blocks = [block for group in leaks.groups for block in group.blocks]
    stack = [_places(group.stack) for group in leaks.groups for _ in group.blocks]
    size, born = (np.array(values, np.int64) for values in (
        [block.nbytes for block in blocks], [events - block.age if block.age else -1 for block in blocks]))
    stream = np.array([NO_STREAM if block.stream is None else block.stream for block in blocks], np.uint64)
    history = _History(size, stream, born, np.full(len(blocks), NEVER), events, events, moment["settings"], None,
                       stack if any(stack) else None)
    history.freed = moment["free_count"] >= max(FREED * moment["alloc_count"], 1)
    return _evidence(history)


def _places(frames):
    return tuple(f"{frame.function} ({frame.file}:{frame.line})" for frame in frames)


class _History:
    freed = None            # whether a good part of what came was freed, where the blocks do not tell

    def __init__(self, size, stream, born, died, moment, events, settings, row, stack):
        self.size, self.stream, self.born, self.died = size, stream, born, died
        self.moment, self.events, self.settings = moment, events, settings
        self.row, self.stack = row, stack
        # A run that ends frees everything: that tells nothing.
        last_birth = int(born.max(initial=-1))
        self.is_live = (born < moment) & (died >= moment)
        self.is_kept = (born >= 0) & (died > last_birth)
        self.kind = np.unique([_name(path) for path in stack], return_inverse=True)[1] if stack else 0

    def groups(self, chosen):
        """Yield the indices of the chosen blocks that belong together: of one stack, stream and size class."""
        index = np.flatnonzero(chosen)
        if not len(index):
            return
        streams = np.unique(self.stream[index], return_inverse=True)[1]
        kind = self.kind[index] if self.stack else 0
        number = (bin_of(self.size[index]) * (len(index) + 1) + streams) * (len(self.size) + 1) + kind
        order = np.argsort(number, kind="stable")
        yield from np.split(index[order], np.flatnonzero(np.diff(number[order])) + 1)

    def holder(self, group):
        sizes = self.size[group]
        first = group[np.argmin(self.born[group])]
        return Holder(
            tier=self._tier(int(sizes.max())), stream=self._stream(group[0]), blocks=len(group),
            used=int(sizes.sum()), requested=int(sizes.sum()), smallest=int(sizes.min()), largest=int(sizes.max()),
            oldest=None if self.row is None else int(self.row[first]),
            stack=self.stack[group[0]] if self.stack else None)

    def leak(self, group):
        """Return the Leak of blocks that are kept, or None if it is none."""
        so_far = group[self.born[group] < self.moment]
        if len(so_far) < BLOCKS_MIN or not self._grows(so_far, 0, self.moment):
            return None
        rest = self.events - self.moment
        if 2 * rest >= self.moment:         # long enough to see whether it goes on
            if not self._grows(group, self.moment, self._last_birth()):
                return None
            certainty = "likely"
        else:
            certainty = "likely" if self._frees_much() else "possible"
        return Leak(self.holder(so_far), 1000 * len(so_far) / self.moment, certainty)

    def _grows(self, group, start, end):
        born = self.born[group]
        parts = np.histogram(born, bins=WINDOWS, range=(start, max(end, start + 1)))[0]
        return np.count_nonzero(parts) >= GROWING

    def frees(self):
        """Was a good part of what came before the failure freed by then?"""
        if self.freed is not None:
            return self.freed
        came = (self.born >= 0) & (self.born < self.moment)
        return np.count_nonzero(came & (self.died < self.moment)) >= max(FREED * np.count_nonzero(came), 1)

    def _last_birth(self):
        return int(self.born.max(initial=0))

    def _frees_much(self):
        """Did the live bytes fall by a tenth of their peak at some time before the failure?"""
        live = self.live(self.moment)
        return bool(np.max(np.maximum.accumulate(live) - live, initial=0) >= FALL * live.max(initial=0))

    def live(self, moment):
        """Return the live bytes after each change before a moment."""
        made, freed = self.born < moment, self.died < moment
        at = np.concatenate((np.maximum(self.born[made], -1), self.died[freed]))
        change = np.concatenate((self.size[made], -self.size[freed]))
        return np.cumsum(change[np.argsort(at, kind="stable")])

    def _stream(self, block):
        stream = int(self.stream[block])
        return None if stream == NO_STREAM else stream

    def _tier(self, size):
        if size <= self.settings["slab_max"]:
            return "slab"
        return "mid" if size <= self.settings["mid_max"] else "buddy"


def bin_of(sizes):
    """Return the size classes of an array of sizes: eight for each power of two."""
    sizes = np.maximum(sizes, 1).astype(np.float64)
    mantissa, exponent = np.frexp(sizes)            # from 0.5 to 1
    return exponent.astype(np.int64) * 8 + np.floor((mantissa - 0.5) * 16).astype(np.int64)


def _name(stack):
    return "\n".join(stack)
