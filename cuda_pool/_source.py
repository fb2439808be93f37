"""Open a file, unpack it if it is compressed, and tell its format by its first bytes."""

import contextlib
import gzip
import os
import stat
import tempfile
import zlib

from .errors import TraceError
from .sizes import format_size

GZIP_MAGIC = b"\x1f\x8b"
PIECE = 1 << 20             # bytes of text in memory at a time
KEPT = 4 << 20              # bytes of a pipe that are kept in memory, not in a file
HEAD = 64                   # bytes that tell the format
MARK = b"\xef\xbb\xbf"       # with which some programs begin every text
PICKLES = (b"(l", b"(d", b"]q", b"}q", b"](", b"}(")       # how one of protocol 0 or 1 begins
UNPACKED_MIN = 16 << 20     # what any compressed snapshot may be unpacked to,
UNPACKED_PER_BYTE = 32      # and for each of its bytes; snapshots shrink to a tenth


class Source:
    """The unpacked bytes of a file, in order: once, or those of a pickle again and again.

    Make one with `open_source`. Only a regular file is read again from disk. What a pipe has of a pickle is kept while
    it is read, beyond 4 MiB in a file of the folder for temporary ones.

    Attributes
    ----------
    format : str
        ``"torch"`` for a pickle, ``"json"``, ``"rmm"`` or ``"csv"``; what is none of the four is taken for CSV, whose
        reader says what is wrong with it.
    packed : bool
        Whether it is compressed.
    """

    def __init__(self, file, copy):
        self._file = _Regular(file) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else _Kept(file, copy)
        self._begin()
        self.format = _format(self._head)
        if self.format != "torch":
            self._file.read_once()

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

    def from_start(self):
        """Yield the bytes of a pickle from the first, up to a mebibyte at a time; call it as often as they are needed.

        A compressed one may be 32 times as long unpacked, and 16 MiB.
        """
        self._begin()
        length = 0
        for piece in self.pieces(lambda: (None, self._byte(length))):
            length += len(piece)
            if self.packed and length > UNPACKED_MIN + UNPACKED_PER_BYTE * self._file.taken:
                raise TraceError(None, "the gzip data unpacks to more than a snapshot does: unpack it beforehand if "
                                       "that is right", self._byte(length))
            yield piece

    def has_changed(self):
        """Return whether somebody has written to the file since it was opened."""
        return self._file.has_changed()

    def at_most(self, most):
        """Return all bytes, of which there may be so many."""
        found = bytearray()             # which grows where it is: pieces that are joined would take twice their length
        for piece in self.pieces(lambda: (None, self._byte(len(found)))):
            found += piece
            if len(found) > most:
                raise TraceError(None, f"the text goes on: expected at most {format_size(most)}", self._byte(most))
        return bytes(found)

    def _byte(self, number):
        return f"byte {number} of the unpacked file" if self.packed else f"byte {number}"

    def _begin(self):
        self._file.rewind()
        self.packed = self._file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        self._file.rewind()
        # read1() hands over what precedes a fault; read() would swallow it, and with it the row.
        self._read = gzip.GzipFile(fileobj=self._file, mode="rb").read1 if self.packed else self._file.read
        self._head = b""
        self._fault = None
        self._fill_head()

    def _fill_head(self):
        try:
            while len(self._head) < HEAD and (piece := self._read(PIECE)):
                self._head += piece
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            self._fault = _reason(error)
        self._head = self._head.removeprefix(MARK)


class _Regular:
    """A file on disk; `taken` bytes were read since it was last rewound."""

    def __init__(self, file):
        self.file = file
        self.taken = 0
        self.state = self._state()

    def read(self, size):
        part = self.file.read(size)
        self.taken += len(part)
        return part

    def rewind(self):
        self.file.seek(0)
        self.taken = 0

    def read_once(self):
        """Be told that it is not rewound any more."""

    def has_changed(self):
        return self._state() != self.state

    def _state(self):
        found = os.fstat(self.file.fileno())
        return found.st_size, found.st_mtime_ns


class _Kept:
    """A pipe, or another file that cannot be read twice: what came out of it is kept. `taken` is as in `_Regular`."""

    def __init__(self, file, copy):
        self.file = file
        self.copy = copy
        self.taken = 0
        self.is_kept = True

    def read(self, size):
        part = self.copy.read(size)
        if not part:
            part = self.file.read(size)
            if self.is_kept:
                self.copy.write(part)
        self.taken += len(part)
        return part

    def rewind(self):
        self.copy.seek(0)
        self.taken = 0

    def read_once(self):
        self.is_kept = False

    def has_changed(self):
        return False


@contextlib.contextmanager
def open_source(path):
    """Open a file as a `Source`; a number, which open() would take for a file that is open already, is no path."""
    with open(os.fspath(path), "rb") as file, tempfile.SpooledTemporaryFile(KEPT) as copy:
        yield Source(file, copy)


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
