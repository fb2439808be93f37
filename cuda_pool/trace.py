"""Allocation traces: what a program allocated and freed, in order.

A trace file is CSV with the header ``event,id,size,stream``, plain or compressed with gzip::

    event,id,size,stream
    alloc,0,154389504,0
    free,0,154389504,0

``event`` is ``alloc`` or ``free``. ``id`` is the block's own number: any integer from 0 to 2**64 - 1, used by one
allocation. ``size`` is the requested bytes, from 0 to 2**63 - 1; a free may leave it empty. ``stream`` is any integer
from 0 to 2**64 - 1. Blanks around a field and empty lines are ignored. A trace has at most 20 million events unless
the reader is told otherwise.
"""

import gzip
import operator
import zlib
from collections.abc import Iterable

from ._atomic import open_atomically
from ._trace import EVENTS_MAX, TraceParser, TraceTable
from .errors import TraceError
from .sizes import is_index, shown

__all__ = ["Trace", "TraceError"]

HEADER = "event,id,size,stream\n"
GZIP_MAGIC = b"\x1f\x8b"
PIECE = 1 << 20         # bytes of text in memory at a time
ROWS_A_PIECE = 1 << 14


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
        One value for each event; `row` is the line in the file, the header being row 1.
    """

    @classmethod
    def read(cls, path, *, max_events=EVENTS_MAX):
        """Read a trace file.

        Parameters
        ----------
        path : str or os.PathLike
            CSV, plain or gzip; which of the two is told by the content, not by the name. The file is read in pieces:
            memory grows with the number of events (32 bytes each) and of blocks (24 bytes each, and 8 to 16 more
            while the file is read), not with the length of the text. The arrays double when they are full.
        max_events : int
            More events are refused, which bounds the memory: a small compressed file may hold any number. The default
            of 20 million takes 1.5 GB at most.

        Returns
        -------
        Trace

        Raises
        ------
        TraceError
            The content is not a trace, or has too many events: `row` and `reason` say where and why.
        ValueError, TypeError
            `max_events` is no integer from 0 to 2**63 - 1.
        OSError
            The file cannot be opened or read.
        """
        parser = TraceParser(max_events)
        with open(path, "rb") as file:
            for piece in _pieces(file, parser):
                parser.feed(piece)
        return cls(parser)

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
        parser = TraceParser()
        parser.feed(HEADER.encode())
        for event in events:
            parser.feed(_row(event, parser.row))
        return cls(parser)

    @property
    def streams(self):
        """Number of different streams."""
        return len(set(self.stream.tolist()))

    def write(self, path):
        """Write the trace as CSV.

        Parameters
        ----------
        path : str or os.PathLike
            Compressed with gzip when the name ends in ``.gz``. An existing file is replaced only when all is written.

        Raises
        ------
        OSError
            The file cannot be written; nothing is left behind.
        """
        with open_atomically(path) as file:
            if str(path).endswith(".gz"):
                with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                    self._write_rows(packed)
            else:
                self._write_rows(file)

    def _write_rows(self, file):
        file.write(HEADER.encode())
        columns = (self.is_free, self.id, self.size, self.stream)
        for start in range(0, self.events, ROWS_A_PIECE):
            part = (column[start:start + ROWS_A_PIECE].tolist() for column in columns)
            rows = (f"{'free' if freed else 'alloc'},{ident},{size},{stream}\n"
                    for freed, ident, size, stream in zip(*part))
            file.write("".join(rows).encode())


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


class _Rejoined:
    """A file whose first bytes were read already. A pipe cannot go back, and peek() may show only one byte of it."""

    def __init__(self, head, file):
        self.head = head
        self.file = file

    def read(self, size):
        part, self.head = self.head[:size], self.head[size:]
        return part or self.file.read(size)


def _pieces(file, parser):
    """Yield the text of an open file; what is wrong with its compression names the row that `parser` has reached."""
    whole = _Rejoined(file.read(len(GZIP_MAGIC)), file)
    if whole.head != GZIP_MAGIC:
        yield from iter(lambda: whole.read(PIECE), b"")
        return
    packed = gzip.GzipFile(fileobj=whole, mode="rb")
    try:
        # read1() hands over what precedes a fault; read() would swallow it, and with it the row.
        yield from iter(lambda: packed.read1(PIECE), b"")
    except EOFError:
        raise TraceError(parser.row, "the gzip data is truncated: it ends in or before this row") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(parser.row, f"the gzip data is damaged in or after this row: {error}") from None
