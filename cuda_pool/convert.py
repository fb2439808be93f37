"""Write a trace in another format: CSV, a log of RMM, or a memory snapshot of PyTorch.

Ids are numbered anew by the reader of a log or a snapshot, which name blocks by address. What else a format cannot
hold, `convert` says.
"""

import gzip

from ._atomic import open_atomically
from ._trace_rmm import HEADER as RMM_HEADER
from .peers import BestFit, play, standing_blocks
from .sizes import counted, shown
from .torch_format import INACTIVE, Block, Entry, Segment, write_snapshot
from .trace import require_trace

__all__ = ["FORMATS", "convert", "format_of"]

FORMATS = ("csv", "torch", "rmm")
SUFFIXES = {".csv": "csv", ".csv.gz": "csv", ".pickle": "torch", ".pkl": "torch", ".log": "rmm", ".log.gz": "rmm"}

ROWS_A_PIECE = 1 << 14
RMM_BASE = 0x7F0000000000       # pointers of a log are names: block i has the one at i * RMM_STEP
RMM_STEP = 256
TORCH_BASE = 0x7F0000000000     # where the segments of a snapshot begin
TORCH_PAGE = 2 << 20
ADDRESS_END = 1 << 64


def format_of(path):
    """Return the format that the name of a file asks for.

    Raises
    ------
    ValueError
        Its suffix is none of ``.csv``, ``.csv.gz``, ``.pickle``, ``.pkl``, ``.log`` and ``.log.gz``.
    """
    for suffix, name in SUFFIXES.items():
        if str(path).lower().endswith(suffix):
            return name
    raise ValueError(f"{shown(str(path))} has no suffix of a format: expected {', '.join(SUFFIXES)}, or the format by "
                     f"name: {', '.join(FORMATS)}")


def convert(trace, path, to=None, *, progress=None):
    """Write a trace to a file.

    Parameters
    ----------
    trace : Trace
    path : str or os.PathLike
        An existing file is replaced only when all is written. CSV and logs are compressed when it ends in ``.gz``. A
        snapshot is made in memory: about 500 bytes for each event.
    to : str, optional
        ``"csv"``, ``"torch"`` or ``"rmm"``; by default what the suffix says.
    progress : callable, optional
        Called as ``progress(done, total)`` with numbers of events; for a snapshot there are two rounds of them.

    Returns
    -------
    list of str
        What the format does not hold, in words; the trace that is read from the file is the same otherwise.

    Raises
    ------
    ValueError
        No such format, or the trace does not fit into 64-bit addresses.
    TypeError
        `trace` is no trace.
    OSError
        The file cannot be written; what had the name before still has it.
    """
    require_trace(trace)
    to = format_of(path) if to is None else to
    progress = progress or (lambda done, total: None)
    if to == "csv":
        trace.write(path, progress=progress)
        return []
    if to == "rmm":
        return _write_rmm(trace, path, progress)
    if to == "torch":
        return _write_torch(trace, path, progress)
    raise ValueError(f"{shown(to)} is no format: expected {', '.join(FORMATS)}")


def _write_rmm(trace, path, progress):
    early = _frees_before_allocation(trace)
    with open_atomically(path) as file:
        if str(path).lower().endswith(".gz"):
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                _write_rows(trace, packed, early, progress)
        else:
            _write_rows(trace, file, early, progress)
    notes = []
    if len(trace.live):
        notes.append(f"written as allocations: {counted(len(trace.live), 'block')} live before the first event; a log "
                     "begins with nothing live")
    if early:
        notes.append(f"written without a size, of a block of its own: {counted(len(early), 'free')} before the "
                     "allocation of the same id")
    return notes


def _write_rows(trace, file, early, progress):
    file.write(f"{RMM_HEADER}\n".encode())
    live = trace.live
    for block, size, stream in zip(*(live[name].tolist() for name in ("block", "size", "stream"))):
        file.write(_row(0, "allocate", block, size, stream).encode())
    sizes = trace.block_size
    columns = (trace.is_free, trace.block, trace.size, trace.stream)
    for start in range(0, trace.events, ROWS_A_PIECE):
        rows = []
        for at, (is_free, block, size, stream) in enumerate(
                zip(*(column[start:start + ROWS_A_PIECE].tolist() for column in columns)), start=start):
            if is_free:
                size = 0 if at in early else size or int(sizes[block])
            rows.append(_row(at, "free" if is_free else "allocate", block, size, stream))
        file.write("".join(rows).encode())
        progress(min(start + ROWS_A_PIECE, trace.events), trace.events)


def _row(number, action, block, size, stream):
    """An event takes a microsecond."""
    seconds, micros = divmod(number, 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    time = f"{minutes // 60 % 24:02}:{minutes % 60:02}:{seconds:02}.{micros:06}"
    return f"0,{time},{action},{RMM_BASE + block * RMM_STEP:#x},{size},{stream:#x}\n"


def _frees_before_allocation(trace):
    """Return the positions of frees of blocks that are allocated later; in other formats that is another block."""
    unborn = set(trace.block[~trace.is_free].tolist())
    found = set()
    if trace.orphan_frees:
        for at, (is_free, block) in enumerate(zip(trace.is_free.tolist(), trace.block.tolist())):
            if not is_free:
                unborn.discard(block)
            elif block in unborn:
                found.add(at)
    return found


class _Layout(BestFit):
    """One range a stream, so that a segment has the stream of its blocks."""

    unit = 512

    def pool_of(self, size, stream):
        """Streams are kept apart."""
        return stream, TORCH_PAGE


def _write_torch(trace, path, progress):
    layout, placed = _Layout(), {}
    play(trace, layout, lambda done, total: progress(done, 2 * total), placed=placed, least=1)
    bases, end = {}, TORCH_BASE
    for stream, size in sorted(layout.end_of.items()):
        bases[stream] = end
        end += size + TORCH_PAGE
    if end > ADDRESS_END:
        raise ValueError("the trace does not fit into 64-bit addresses: expected less than 2**63 bytes in all")
    address_of = {block: bases[place[0]] + place[1] for block, place in placed.items()}
    left = {stream: {} for stream in bases}
    for block, size in _left_live(trace).items():
        left[placed[block][0]][address_of[block]] = size
    segments = [_segment(layout, stream, base, left[stream]) for stream, base in bases.items()]
    write_snapshot(path, segments, {trace.gpu or 0: _entries(trace, address_of, progress)})
    return _torch_notes(trace)


def _left_live(trace):
    """Return the requested size of every block that is live in the end."""
    sizes = trace.block_size.tolist()
    live = {block: sizes[block] for block, _, _ in standing_blocks(trace)}
    for is_free, is_orphan, block in zip(trace.is_free.tolist(), trace.is_orphan.tolist(), trace.block.tolist()):
        if not is_free:
            live[block] = sizes[block]
        elif not is_orphan:
            del live[block]
    return live


def _segment(layout, stream, base, live):
    """The segment of a stream in the end: live blocks, and inactive ones between them."""
    blocks = [Block(base + offset, size, 0, INACTIVE) for offset, size in layout.free_of[stream].size_at.items()]
    blocks += [Block(address, layout.live[stream, address - base], requested) for address, requested in live.items()]
    return Segment(base, sorted(blocks, key=lambda block: block.address), stream=stream)


def _entries(trace, address_of, progress):
    sizes = trace.block_size.tolist()
    columns = (trace.is_free, trace.is_orphan, trace.block, trace.stream)
    for at, (is_free, is_orphan, block, stream) in enumerate(zip(*(column.tolist() for column in columns))):
        if at % ROWS_A_PIECE == 0:
            progress(trace.events + at, 2 * trace.events)
        if is_orphan:
            continue
        for action in ("free_requested", "free_completed") if is_free else ("alloc",):
            yield Entry(action, address_of[block], sizes[block], stream, at)


def _torch_notes(trace):
    notes = []
    orphans = int(trace.is_orphan.sum())
    if orphans:
        notes.append(f"left out: {counted(orphans, 'free')} of blocks that are not live; a snapshot has none")
    ends = trace.is_free & ~trace.is_orphan
    others = int((trace.size[ends] != trace.block_size[trace.block[ends]]).sum())
    if others:
        notes.append(f"written with the size of the allocation: {counted(others, 'free')} that gave another or none")
    return notes
