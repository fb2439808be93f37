"""Open a file, unpack it if it is compressed, and tell its format by its first bytes."""

import contextlib
import gzip
import os
import zlib

from .errors import TraceError
from .sizes import format_size

GZIP_MAGIC = b"\x1f\x8b"
PIECE = 1 << 20             # bytes of text in memory at a time
HEAD = 64                   # bytes that tell the format
MARK = b"\xef\xbb\xbf"       # with which some programs begin every text
PICKLES = (b"(l", b"(d", b"]q", b"}q", b"](", b"}(")       # how one of protocol 0 or 1 begins
UNPACKED_MIN = 16 << 20     # what any compressed snapshot may be unpacked to,
UNPACKED_PER_BYTE = 32      # and for each of its bytes; snapshots shrink to a tenth


class Source:
    """The unpacked bytes of a file, once and in order.

    Make one with `open_source`.

    Attributes
    ----------
    format : str
        ``"torch"`` for a pickle, ``"json"``, ``"rmm"`` or ``"csv"``; what is none of the four is taken for CSV, whose
        reader says what is wrong with it.
    packed : bool
        Whether it is compressed.
    """

    def __init__(self, file):
        whole = _Rejoined(file.read(len(GZIP_MAGIC)), file)
        self.packed = whole.head == GZIP_MAGIC
        # read1() hands over what precedes a fault; read() would swallow it, and with it the row.
        self._read = gzip.GzipFile(fileobj=whole, mode="rb").read1 if self.packed else whole.read
        self._head = b""
        self._fault = None
        self._fill_head()
        self.format = _format(self._head)

    def pieces(self, where):
        """Yield the bytes, up to a mebibyte at a time.

        Parameters
        ----------
        where : callable
            Returns the (row, place) that is reached, for the TraceError that says what is wrong with the compression.
        """
        if self._head:
            yield self._head
        if self._fault is not None:
            raise TraceError(*_placed(where, self._fault))
        while True:
            try:
                piece = self._read(PIECE)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise TraceError(*_placed(where, _reason(error))) from None
            if not piece:
                return
            yield piece

    def whole(self):
        """Return all bytes of a pickle as a bytearray; a compressed one may be 32 times as long unpacked, and 16 MiB."""
        found = bytearray()             # which grows where it is: pieces that are joined would take twice their length
        for length in self._gather(found):
            packed = self._packed_length() if self.packed else length
            if length > UNPACKED_MIN + UNPACKED_PER_BYTE * packed:
                raise TraceError(None, "the gzip data unpacks to more than a snapshot does: unpack it beforehand if "
                                       "that is right", self._byte(length))
        return found

    def at_most(self, most):
        """Return all bytes, of which there may be so many."""
        found = bytearray()
        for length in self._gather(found):
            if length > most:
                raise TraceError(None, f"the text goes on: expected at most {format_size(most)}", self._byte(most))
        return bytes(found)

    def _gather(self, found):
        """Add the pieces to a bytearray; yield the length after each."""
        length = 0
        for piece in self.pieces(lambda: (None, self._byte(length))):
            found += piece
            length += len(piece)
            yield length

    def _byte(self, number):
        return f"byte {number} of the unpacked file" if self.packed else f"byte {number}"

    def _packed_length(self):
        return self._read.__self__.fileobj.taken

    def _fill_head(self):
        try:
            while len(self._head) < HEAD and (piece := self._read(PIECE)):
                self._head += piece
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            self._fault = _reason(error)
        self._head = self._head.removeprefix(MARK)


class _Rejoined:
    """A file whose first bytes were read already. A pipe cannot go back, and peek() may show only one byte of it."""

    def __init__(self, head, file):
        self.head = head
        self.file = file
        self.taken = len(head)

    def read(self, size):
        part, self.head = self.head[:size], self.head[size:]
        if not part:
            part = self.file.read(size)
            self.taken += len(part)
        return part


@contextlib.contextmanager
def open_source(path):
    """Open a file as a `Source`; a number, which open() would take for a file that is open already, is no path."""
    with open(os.fspath(path), "rb") as file:
        yield Source(file)


def is_json(path):
    """Return whether a file begins as JSON does."""
    with open_source(path) as source:
        return source.format == "json"


def _format(head):
    """A pickle begins with its protocol, or with a container; RMM's log and our own with their headers."""
    if head[:1] == b"\x80" or head[:2] in PICKLES:
        return "torch"
    if head.lstrip()[:1] in (b"{", b"["):
        return "json"
    return "rmm" if head.lstrip(b" \t").startswith(b"Thread") else "csv"


def _reason(error):
    if isinstance(error, EOFError):
        return "the gzip data is truncated: it ends in or before this {}"
    return f"the gzip data is damaged in or after this {{}}: {str(error).replace('{', '(').replace('}', ')')}"


def _placed(where, reason):
    row, place = where()
    return row, reason.format("row" if place is None else "byte"), place
