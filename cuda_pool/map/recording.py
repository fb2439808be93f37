"""What a replay did to a pool's memory, for pictures of it."""

import operator

import numpy as np

from .._record import NEVER, Recorder
from ..sizes import counted, is_index, shown
from ..snapshot import Snapshot, Stream

__all__ = ["Recording"]

EVENTS_MAX = NEVER - 1


class Recording:
    """What a replay did to the memory, event after event: give one to `cuda_pool.replay.replay`.

    A moment is a number of events that were played.

    Parameters
    ----------
    until : int, optional
        Play no more events than that; by default all.

    Attributes
    ----------
    trace : Trace
        What was played.
    moment : int
        Events that were played in the last round: fewer than wanted where an allocation failed.
    failure : dict or None
        Of the allocation that failed: ``row``, ``requested``, ``free``, ``largest_free``.
    snapshot : cuda_pool.Snapshot
        Of the pool at that moment.
    address, used, tier, born, died, samples, reserved, regions, pages
        As in ``cuda_pool._record.Recorder``.

    Raises
    ------
    ValueError, TypeError
        `until` is no integer from 0 on.
    """

    def __init__(self, until=None):
        if until is not None and not is_index(until):
            raise TypeError(f"until is a number of events, or None; got {shown(until)}")
        if until is not None and until < 0:
            raise ValueError(f"until is a number of events from 0 on, got {shown(until)}")
        self.until = None if until is None else operator.index(until)
        self.snapshot = None            # until a replay has filled the recording

    def end_of(self, trace):
        """Return how many events of a trace are to be played."""
        if self.until is not None and self.until > len(trace):
            raise ValueError(f"the trace has {counted(len(trace), 'event')}: expected a moment from 0 to that, "
                             f"got {self.until}")
        return len(trace) if self.until is None else self.until

    def watch(self, loop):
        """Return a replay to be used in place of `loop`, which notes what that one does."""
        return Recorder(loop)

    def take(self, loop, pool):
        """Take over what was noted, and the state of the pool, at the end of a round."""
        for name in ("address", "used", "tier", "born", "died", "samples", "reserved", "regions", "pages"):
            setattr(self, name, getattr(loop, name))
        self.trace = loop.trace
        self.moment = loop.position
        self.failure = None
        if loop.failed:
            stats = pool.stats()
            self.failure = {"row": loop.failed_row, "requested": loop.failed_size, "free": stats.free,
                            "largest_free": stats.largest_free}
        self.snapshot = self.named(pool.snapshot())

    def peak(self):
        """Return the first moment with the most live bytes."""
        placed = np.flatnonzero(self.used)
        requested, after = self.trace.block_size[placed].astype(np.int64), self.moment + 1
        change = np.zeros(after + 1, np.int64)
        np.add.at(change, np.minimum(self.born[placed], after), requested)
        np.subtract.at(change, np.minimum(self.died[placed], after), requested)
        return int(np.argmax(np.cumsum(change)[:after]))

    def streams_of_blocks(self):
        """Return the streams of the trace, ascending, and for each block the index of the one that it was made for.

        A block that was live before the first event is the stream's that the trace names, or else that frees it.
        """
        trace = self.trace
        numbers, on = np.unique(np.concatenate((trace.live["stream"], trace.stream)), return_inverse=True)
        standing, on = on[:len(trace.live)], on[len(trace.live):]
        home = np.zeros(trace.blocks, np.uint32)
        kept = ~trace.is_orphan
        freed, made = kept & trace.is_free, kept & ~trace.is_free
        home[trace.block[freed]] = on[freed]
        home[trace.live["block"]] = standing
        home[trace.block[made]] = on[made]
        return numbers.tolist(), home

    def named(self, snapshot):
        """Return a snapshot with the streams of the trace and the events that allocated its live blocks."""
        numbers, home = self.streams_of_blocks()
        live = np.flatnonzero((self.used > 0) & (self.died > self.moment) & (self.born <= self.moment))
        born = {int(self.address[block]): (int(home[block]), int(self.born[block])) for block in live}

        def name(block):
            if block.state != "live" or block.address not in born:
                return block._replace(stream=None)
            stream, moment = born[block.address]
            return block._replace(stream=stream, allocation=moment)

        segments = [segment._replace(blocks=tuple(map(name, segment.blocks))) for segment in snapshot.segments]
        values = {key: getattr(snapshot, key) for key in Snapshot.__dataclass_fields__}
        return Snapshot(**{**values, "segments": segments,
                           "streams": [Stream(number, number, "trace") for number in numbers]})
