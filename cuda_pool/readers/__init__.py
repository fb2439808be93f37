"""Readers of the formats that a trace may have; which one a file has is told by its content."""

from dataclasses import dataclass, field

from .._source import open_source
from .._trace import TraceBuilder
from .._trace_csv import CsvParser
from .._trace_rmm import RmmParser
from ..errors import TraceError
from ..sizes import counted
from .torch_snapshot import Snapshot, missing_frees, parse_snapshot, take_snapshot

__all__ = ["About", "Snapshot", "read_into", "read_snapshot"]


@dataclass
class About:
    """What is known of a file beside its events.

    Attributes
    ----------
    format : str
        ``"csv"``, ``"torch"`` or ``"rmm"``.
    gpu : int or None
        Number of the device in the file.
    notes : list of str
        What the file says that a trace does not hold.
    """

    format: str
    gpu: int | None = None
    notes: list = field(default_factory=list)


def read_into(path, max_events, device=None):
    """Read a file of any format; return a TraceBuilder that holds its events, and an `About`."""
    with open_source(path) as source:
        if source.format == "torch":
            return _read_torch(source, max_events, device)
        if source.format == "json":
            raise TraceError(1, "JSON is no trace: expected trace CSV, a memory snapshot of PyTorch or a log of RMM "
                                "(`cuda-pool map FILE` draws a saved snapshot of a pool)")
        if device is not None:
            raise ValueError(f"device {device} of a trace: only snapshots of PyTorch tell devices apart")
        return _read_text(source, max_events)


def read_snapshot(path, device=None):
    """Read a memory snapshot of PyTorch with its segments.

    Parameters
    ----------
    path : str or os.PathLike
        The pickle, plain or gzip.
    device : int, optional
        Whose trace is read; by default the device with the longest one.

    Returns
    -------
    Snapshot

    Raises
    ------
    TraceError
        The file is no snapshot: `place` and `reason` say where and why.
    OSError
        The file cannot be opened or read.
    """
    with open_source(path) as source:
        return _snapshot(source, device)


def _read_torch(source, max_events, device):
    builder = TraceBuilder(max_events)
    snapshot = _snapshot(source, device)
    return builder, About("torch", snapshot.device, take_snapshot(snapshot, builder))


def _snapshot(source, device):
    """Read a snapshot, for which the file is read twice."""
    try:
        return parse_snapshot(source.from_start, device)
    except TraceError as error:
        if source.has_changed():
            raise TraceError(None, "the file was written to while it was read", error.place) from error
        raise


def _read_text(source, max_events):
    parser = (RmmParser if source.format == "rmm" else CsvParser)(max_events)
    for piece in source.pieces(lambda: (parser.row, None)):
        parser.feed(piece)
    if source.format == "rmm":
        parser.feed(b"\n")              # the last line counts in the notes, whether it is ended or not
    return parser, About(source.format, notes=_notes_of(parser) if source.format == "rmm" else [])


def _notes_of(parser):
    notes = []
    if parser.failures:
        notes.append(f"left out: {counted(parser.failures, 'allocation')} that failed when the log was written")
    if parser.lost_frees:
        notes.append(missing_frees(parser.lost_frees))
    return notes
