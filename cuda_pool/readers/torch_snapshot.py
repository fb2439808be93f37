"""Read PyTorch's memory snapshots, of every version so far.

A snapshot is a pickle; `cuda_pool._unpickle` reads it without running anything, and `cuda_pool._torch_unpickle` keeps
the entries of its traces, its segments and their blocks, which are most of it, as numbers. Segments are as they are at
the end; for each device there is a trace of what happened, of which the beginning may be missing.
"""

from dataclasses import dataclass

from .._torch_entries import Entries
from .._torch_segments import Blocks, Segments
from .._torch_unpickle import SnapshotUnpickler
from .._trace_standing import take_standing
from .._trace_torch import EntryTaker
from ..errors import TraceError
from ..sizes import counted, shown
from ..torch_format import (
    ACTIONS, ALLOCATED, DEVICES_MAX, INACTIVE, OTHER_ACTIONS, SEGMENT_TYPES, STATES, Block, Segment)

SIZE_MAX = 2**63 - 1
ADDRESS_MAX = STREAM_MAX = POOL_ID_MAX = 2**64 - 1
PACKED = {Entries: "an entry of a trace", Segments: "a segment", Blocks: "a block of a segment"}


@dataclass
class Snapshot:
    """What a file says, checked.

    Attributes
    ----------
    segments : sequence of Segment
        Of all devices, in the file's order, in 64 bytes a segment and 24 a block.
    device : int
        Device whose trace was read.
    devices : dict of int to int
        Number of entries of each device that there is anything of.
    entries : sequence of Entry
        Trace of `device`, in 32 bytes an entry.
    """

    segments: Segments
    device: int
    devices: dict
    entries: Entries


def parse_snapshot(pieces, device=None):
    """Read a snapshot.

    Parameters
    ----------
    pieces : callable
        Returns an iterable of bytes-like objects, the pickle from its beginning; it is called twice.
    device : int, optional
        Whose trace is read; by default the device with the longest trace, or else with most memory.

    Returns
    -------
    Snapshot

    Raises
    ------
    TraceError
        It is damaged or no snapshot; `place` says where.
    ValueError
        There is nothing of that device in the snapshot.
    """
    unpickler = SnapshotUnpickler(pieces)
    top = unpickler.load()
    if type(top) is list:               # the oldest variant: nothing but the segments
        top = {"segments": top}
    if type(top) is not dict or "segments" not in top:
        raise TraceError(None, f"{_kind(top)} without segments is no snapshot: expected a dict with 'segments'",
                         "snapshot")
    segments = _segments(top["segments"], unpickler.length)
    traces = _list(top.get("device_traces", []), "device_traces")
    if len(traces) > DEVICES_MAX:
        raise TraceError(None, f"{len(traces)} devices: expected at most {DEVICES_MAX}", "device_traces")
    devices = _devices(segments, traces)
    chosen = _choice(segments, devices, device)
    entries = _entries(traces[chosen], f"device_traces[{chosen}]") if devices[chosen] else Entries()
    return Snapshot(segments, chosen, devices, entries)


def take_snapshot(snapshot, builder):
    """Hand the events of a snapshot to a TraceBuilder; return notes on what they leave out.

    A block is freed when the program says so (``free_requested``), or when the memory is free again if only that
    (``free_completed``) is in the trace. The row of an event is the number of its entry, from 1. Blocks that are live
    in the end and that no entry is about were live all the time; they are in row 0. The snapshot has no entries and no
    segments afterwards.
    """
    failures = snapshot.entries.tally("oom")
    try:
        take_standing(snapshot.segments, snapshot.device, snapshot.entries, builder)
        taker = EntryTaker(builder)
        taker.take(snapshot.entries)
    except TraceError as error:
        raise TraceError(error.row, error.reason, f"entry {error.row}") from None
    return _notes(snapshot, failures, taker.lost_frees)


def _notes(snapshot, failures, lost_frees):
    notes = []
    others = {device: count for device, count in snapshot.devices.items() if device != snapshot.device}
    if others:
        texts = ", ".join(f"device {device} ({count:,} {'entry' if count == 1 else 'entries'})"
                          for device, count in others.items())
        notes.append(f"device {snapshot.device} of the snapshot, which also holds {texts}: --trace-device, or device= of "
                     "read_trace, chooses another")
    if failures:
        notes.append(f"left out: {counted(failures, 'allocation')} that failed when the trace was recorded")
    if lost_frees:
        notes.append(missing_frees(lost_frees))
    return notes


def missing_frees(count):
    """Return the note on frees that a file lacks."""
    return f"missing: {counted(count, 'free')}; blocks whose address was allocated again were freed there"


def _devices(segments, traces):
    """Return the number of entries of every device that there is anything of."""
    devices = dict.fromkeys(segments.totals(), 0)
    counts = {}                         # by id: a pickle can name one list for any number of devices
    for device, trace in enumerate(traces):
        if _list(trace, f"device_traces[{device}]"):
            if id(trace) not in counts:
                counts[id(trace)] = sum(len(part) if type(part) in PACKED else 1 for part in trace)
            devices[device] = counts[id(trace)]
    return dict(sorted(devices.items())) or {0: 0}


def _choice(segments, devices, device):
    if device is None:
        held = segments.totals()
        return max(devices, key=lambda number: (devices[number], held.get(number, 0), -number))
    if device not in devices:
        raise ValueError(f"nothing of device {shown(device)} is in the snapshot: "
                         f"expected {', '.join(map(str, devices))}")
    return device


def _segments(found, most):
    """Return the segments, which come in parts: `Segments`, and what has to be looked at."""
    parts = _list(found, "segments")
    if len(parts) == 1 and type(parts[0]) is Segments:
        segments = parts[0]
    else:
        segments = _joined(parts, most)
    overlap = segments.overlap()
    if overlap:
        raise TraceError(None, f"it overlaps with segments[{overlap[0]}]", f"segments[{overlap[1]}]")
    return segments


def _joined(parts, most):
    segments, blocks = Segments(), 0
    for part in parts:
        if type(part) is Segments:
            segments.extend(part)
            continue
        place = f"segments[{len(segments)}]"
        segment = _segment(part, place)
        segments.append(segment)
        blocks += len(segment.blocks)
        if blocks > most:               # a pickle can name one list of blocks in any number of segments
            raise TraceError(None, "more blocks than the file has bytes", place)
    return segments


def _segment(found, place):
    fields = _Fields(found, place)
    segment = Segment(
        address=fields.number("address", ADDRESS_MAX), device=fields.number("device", DEVICES_MAX - 1, 0),
        stream=fields.number("stream", STREAM_MAX, 0), segment_type=fields.text("segment_type", SEGMENT_TYPES),
        pool_id=_pool_id(found, place), is_expandable=found.get("is_expandable") is True)
    fields.number("total_size", SIZE_MAX)       # the only one of the sums that every version has
    end = segment.address
    for index, block in enumerate(_unpacked(_list(fields.get("blocks"), f"{place}.blocks"))):
        segment.blocks.append(_block(block, end, f"{place}.blocks[{index}]"))
        end += segment.blocks[-1].size
    for name, states in (("total_size", STATES), ("allocated_size", (ALLOCATED,)), ("active_size", STATES[:2])):
        held = sum(block.size for block in segment.blocks if block.state in states)
        stated = fields.number(name, SIZE_MAX, held)
        if held != stated:
            raise TraceError(None, f"{stated} bytes, but its blocks have {held}", f"{place}.{name}")
    return segment


def _unpacked(parts):
    """Yield the blocks of a segment that does not agree with them, or that shares them, as dicts again."""
    for part in parts:
        if type(part) is Blocks:
            yield from part
        else:
            yield part


def _block(found, address, place):
    fields = _Fields(found, place)
    if fields.number("address", ADDRESS_MAX, address) != address:
        raise TraceError(None, f"{found['address']} is not where the block before ends, which is {address}",
                         f"{place}.address")
    size = fields.number("size", SIZE_MAX)
    state = fields.text("state", STATES)
    requested = fields.number("requested_size", SIZE_MAX, size)
    if state != INACTIVE and requested > size:
        raise TraceError(None, f"{requested} bytes of a block of {size}", f"{place}.requested_size")
    if size == 0:
        raise TraceError(None, "a block has at least 1 byte", f"{place}.size")
    return Block(address, size, requested, state)


def _pool_id(found, place):
    pool_id = found.get("segment_pool_id", (0, 0))
    if (type(pool_id) in (tuple, list) and len(pool_id) == 2
            and all(type(part) is int and 0 <= part <= POOL_ID_MAX for part in pool_id)):
        return tuple(pool_id)
    raise TraceError(None, f"{_kind(pool_id)} is no id of a pool: expected two integers from 0 to {POOL_ID_MAX}",
                     f"{place}.segment_pool_id")


def _entries(trace, place):
    """Return the entries of a trace, which comes in parts: `Entries`, and what has to be looked at."""
    if len(trace) == 1 and type(trace[0]) is Entries:
        return trace[0]
    entries = Entries()
    for part in trace:
        if type(part) is Entries:
            entries.extend(part)
        else:
            entries.append(*_entry(part, f"{place}[{len(entries)}]"))
    return entries


def _entry(found, place):
    fields = _Fields(found, place)
    action = fields.text("action", ACTIONS)
    name = "device_free" if action == "oom" else "addr"
    absent = 0 if action in OTHER_ACTIONS else None
    return (action, fields.number(name, ADDRESS_MAX, absent), fields.number("size", SIZE_MAX, absent),
            fields.number("stream", STREAM_MAX, 0))


class _Fields:
    """The fields of a dict in the file, each of which is checked when it is asked for."""

    def __init__(self, found, place):
        if type(found) is not dict:
            raise TraceError(None, f"{_kind(found)}: expected a dict", place)
        self.found = found
        self.place = place

    def get(self, name):
        """Return a field that has to be there."""
        if name not in self.found:
            raise TraceError(None, f"{name!r} is missing", self.place)
        return self.found[name]

    def number(self, name, most, absent=None):
        """Return a number from 0 to `most`."""
        value = self.get(name) if absent is None else self.found.get(name, absent)
        if type(value) is not int or not 0 <= value <= most:
            raise TraceError(None, f"{_kind(value)}: expected an integer from 0 to {most}", f"{self.place}.{name}")
        return value

    def text(self, name, accepted):
        """Return one of the accepted strings."""
        value = self.get(name)
        if type(value) is not str or value not in accepted:
            raise TraceError(None, f"{_kind(value)}: expected {', '.join(accepted)}", f"{self.place}.{name}")
        return value


def _list(found, place):
    if type(found) not in (list, tuple):
        raise TraceError(None, f"{_kind(found)}: expected a list", place)
    return found


def _kind(value):
    """Say what a value is; containers may hold themselves, so they are named only."""
    if type(value) in PACKED:
        return PACKED[type(value)]
    return f"a {type(value).__name__}" if isinstance(value, (dict, list, tuple)) else shown(value)
