"""Allocation traces: what a program allocated and freed, in order.

A trace file is CSV with the header ``event,id,size,stream``, plain or compressed with gzip::

    event,id,size,stream
    alloc,0,154389504,0
    free,0,154389504,0

``event`` is ``alloc`` or ``free``. ``id`` is the block's own number: any integer from 0 to 2**64 - 1, used by one
allocation. ``size`` is the requested bytes, from 0 to 2**63 - 1; a free may leave it empty. ``stream`` is any integer
from 0 to 2**64 - 1. Blanks around a field and empty lines are ignored. Rows of a third kind, ``live``, may come before
all events: blocks that were live before the first event, which need no such row if the trace frees them with a size. A
trace has at most 20 million events unless the reader is told otherwise.

Memory snapshots of PyTorch and logs of RMM are read as traces, too (`read_trace`).
"""

import gzip
import operator
from collections.abc import Iterable

from ._atomic import open_atomically
from ._trace import EVENTS_MAX, TraceTable
from ._trace_csv import CsvParser
from .errors import TraceError
from .readers import read_into
from .sizes import is_index, shown

__all__ = ["Trace", "TraceError", "read_trace"]

HEADER = "event,id,size,stream\n"
ROWS_A_PIECE = 1 << 14


def read_trace(path, *, max_events=EVENTS_MAX, device=None):
    """Read a trace file of any format; the same as `Trace.read`."""
    return Trace.read(path, max_events=max_events, device=device)


class Trace(TraceTable):
    """The events of a trace, in program order; immutable.

    Make one with `Trace.read` or `Trace.from_events`.

    Attributes
    ----------
    events : int
        Number of events, also ``len(trace)``.
    blocks : int
        Number of different ids.
    peak_live : int
        Highest sum of the requested sizes of live blocks, in bytes.
    orphan_frees : int
        Frees without a preceding allocation in the trace.
    preexisting : int
        Blocks that were live before the first event: freed in the trace, with a size above 0, and never allocated.
        A replay allocates them first. Their first frees are among `orphan_frees`.
    preexisting_bytes : int
        Their sizes, summed.
    is_free, is_orphan, id, block, size, stream, row : numpy.ndarray
        One value for each event; `row` is the line in the file, the header being row 1, or the number of the entry in
        a snapshot, from 1.
    live : numpy.ndarray
        Preexisting blocks that the file names as such, with the fields ``size``, ``stream``, ``row`` and ``block``.
    format : str
        ``"csv"``, ``"torch"`` or ``"rmm"``: what was read.
    gpu : int or None
        Number of the device in a snapshot of PyTorch, whose trace this is.
    notes : tuple of str
        What the file says that a trace does not hold, in words.
    """

    format = "csv"
    gpu = None
    notes = ()

    @classmethod
    def read(cls, path, *, max_events=EVENTS_MAX, device=None):
        """Read a trace file.

        Parameters
        ----------
        path : str or os.PathLike
            CSV, a memory snapshot of PyTorch or a log of RMM, plain or gzip; which of them is told by the content, not
            by the name. Text is read in pieces: memory grows with the number of events (32 bytes each) and of blocks
            (24 bytes each, and 8 to 24 more while the file is read), not with the length of the text. The arrays
            double when they are full. A snapshot is read in pieces, too, but twice: what comes out of a pipe is kept
            for that, beyond 4 MiB in a temporary file. It takes 32 bytes for each entry of a trace, 64 for each segment
            and 24 for each block in one, which are given back while events are made of them, and is refused when it
            makes objects of more than 24 times its length and 64 MiB.
        max_events : int
            More events are refused, which bounds the memory: a small compressed file may hold any number. The default
            of 20 million takes 1.5 GB at most.
        device : int, optional
            Which device of a snapshot; by default the one with most entries, or else with most memory.

        Returns
        -------
        Trace

        Raises
        ------
        TraceError
            The content is not a trace, or has too many events: `place` and `reason` say where and why.
        ValueError, TypeError
            `max_events` is no integer from 0 to 2**63 - 1, or the snapshot has nothing of that device.
        OSError
            The file cannot be opened or read.
        """
        builder, about = read_into(path, max_events, device)
        trace = cls(builder)
        trace.format, trace.gpu, trace.notes = about.format, about.gpu, tuple(about.notes)
        return trace

    @classmethod
    def from_events(cls, events):
        """Make a trace of events that are in memory.

        Parameters
        ----------
        events : iterable of (str, int, int, int)
            Event (``"alloc"`` or ``"free"``), id, size in bytes and stream.

        Returns
        -------
        Trace
            As if the events had been read from a file: the first one is row 2.

        Raises
        ------
        TraceError
            An event is malformed, or there are more than 20 million.
        """
        parser = CsvParser()
        parser.feed(HEADER.encode())
        for event in events:
            parser.feed(_row(event, parser.row))
        return cls(parser)

    @property
    def streams(self):
        """Number of different streams."""
        return len(set(self.stream.tolist() + self.live["stream"].tolist()))

    def write(self, path, *, progress=None):
        """Write the trace as CSV.

        Parameters
        ----------
        path : str or os.PathLike
            Compressed with gzip when the name ends in ``.gz``. An existing file is replaced only when all is written.
        progress : callable, optional
            Called as ``progress(done, total)`` with numbers of events.

        Raises
        ------
        OSError
            The file cannot be written; nothing is left behind.
        """
        with open_atomically(path) as file:
            if str(path).lower().endswith(".gz"):
                with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                    self._write_rows(packed, progress)
            else:
                self._write_rows(file, progress)

    def _write_rows(self, file, progress):
        file.write(HEADER.encode())
        for ident, row in zip(self.live_id.tolist(), self.live.tolist()):
            file.write(f"live,{ident},{row[0]},{row[1]}\n".encode())
        columns = (self.is_free, self.id, self.size, self.stream)
        for start in range(0, self.events, ROWS_A_PIECE):
            part = (column[start:start + ROWS_A_PIECE].tolist() for column in columns)
            rows = (f"{'free' if freed else 'alloc'},{ident},{size},{stream}\n"
                    for freed, ident, size, stream in zip(*part))
            file.write("".join(rows).encode())
            if progress:
                progress(min(start + ROWS_A_PIECE, self.events), self.events)


def require_trace(trace):
    """Raise TypeError unless `trace` is a Trace; a path is what is given in its place as a rule."""
    if not isinstance(trace, TraceTable):
        raise TypeError(f"trace is a cuda_pool.trace.Trace, as Trace.read(path) makes it; got {shown(trace)}")


def _row(event, number):
    """Write an event as row `number`; what could be read as anything else than one event is refused."""
    fields = tuple(event) if isinstance(event, Iterable) else ()
    if len(fields) != 4:
        raise TraceError(number, f"{shown(event)} is no event: expected (event, id, size, stream)")
    if not isinstance(fields[0], str) or fields[0] not in ("alloc", "free"):
        raise TraceError(number, f"{shown(fields[0])} is no event: expected alloc or free")
    for name, value in zip(("id", "size", "stream"), fields[1:]):
        if not is_index(value):
            raise TraceError(number, f"{shown(value)} is no {name}: expected an integer")
    try:
        return f"{fields[0]},{','.join(str(operator.index(value)) for value in fields[1:])}\n".encode()
    except ValueError:
        raise TraceError(number, "an integer has more digits than Python writes: "
                                 "expected at most 2**64 - 1") from None
