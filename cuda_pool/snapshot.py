"""Snapshots: a pool's memory at one moment, block by block.

A snapshot is saved as JSON, plain or compressed with gzip; docs/reference/snapshot.md describes every key. Or it is
saved in PyTorch's format, for PyTorch's tools.
"""

import os
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from ._jsonfile import JsonFormat
from .errors import SnapshotError
from .sizes import is_index, shown

__all__ = ["Block", "Segment", "Snapshot", "SnapshotError", "Stream"]

FORMAT = "cuda_pool snapshot"
VERSION = 1
FILE_MAX = 48 << 20             # bytes of text: of 1.2 million blocks, or a gibibyte of anything in memory
NUMBER_MAX = (1 << 64) - 1
TEXT_MAX = 100
DEVICE_MAX = (1 << 31) - 1
PICKLES = (".pickle", ".pkl")
SNAPSHOT = JsonFormat("snapshot", FORMAT, VERSION, FILE_MAX, NUMBER_MAX, "five", SnapshotError)

BACKINGS = ("malloc", "virtual")
# In the order of extent_state_t. "busy": being given pages, or given back, while the snapshot was taken.
STATES = ("live", "pending", "free", "ready", "tail", "unmapped", "busy")
TIERS = ("slab", "mid", "buddy")
SIZES = ("capacity", "reserved", "spare", "largest_free", "page", "granule")
FIELDS = ("size", "requested", "state", "tier", "stream", "allocation", "movable")


class Stream(NamedTuple):
    """A stream that the pool has met; `id` is what cudaStreamGetId says, or the thread's number."""

    handle: int
    id: int
    kind: str


class Block(NamedTuple):
    """A piece of a segment; `stream` is an index of ``Snapshot.streams``, or None for nobody's memory.

    `allocation` numbers the event of the trace that made a live block; None where that is not known, as in the
    snapshot of a pool that plays no trace.
    """

    address: int
    size: int
    requested: int
    state: str
    tier: str
    stream: int | None = None
    allocation: int | None = None
    movable: bool = False


class Segment(NamedTuple):
    """A region from the driver, or the addresses of a virtual pool; `blocks` tile it, in ascending order."""

    address: int
    size: int
    blocks: tuple


@dataclass(frozen=True)
class Snapshot:
    """What a pool's memory is divided into at one moment; sizes in bytes.

    ``Pool.snapshot`` makes one.

    Attributes
    ----------
    backing : str
        ``"malloc"`` or ``"virtual"``.
    capacity, reserved : int
        What the pool may hold at most, and what it holds from the device.
    spare : int
        Part of `reserved` that is mapped at no address, or not usable yet; 0 unless pages move.
    largest_free : int
        The largest request that would succeed once all pending work is done, without growing.
    page : int
        Bytes of a page of virtual memory; 0 where regions do not move.
    granule : int
        Smallest distance between two blocks outside slabs.
    streams : tuple of cuda_pool.snapshot.Stream
    segments : tuple of cuda_pool.snapshot.Segment
        In ascending order of address.
    created_by : str
        The package that took it, and its version.
    device : int
        Ordinal of the pool's device.

    Raises
    ------
    ValueError
        A value is out of range, or the blocks of a segment do not tile it; the message says where.
    TypeError
        A value is of a type that is not accepted.
    """

    backing: str
    capacity: int
    reserved: int
    spare: int
    largest_free: int
    page: int
    granule: int
    streams: tuple
    segments: tuple
    created_by: str
    device: int = 0

    def __post_init__(self):
        if self.backing not in BACKINGS:
            raise ValueError(f"backing is one of {', '.join(BACKINGS)}, got {shown(self.backing)}")
        for key in SIZES:
            _require_number(getattr(self, key), key)
        _require_number(self.device, "device", DEVICE_MAX)
        _set(self, "streams", tuple(self.streams))
        _set(self, "segments", tuple(self.segments))
        for at, segment in enumerate(self.segments):
            _require_segment(segment, len(self.streams), f"segments[{at}]")
        _require_apart(self.segments)
        if not isinstance(self.created_by, str):
            raise TypeError(f"created_by is a text, got {shown(self.created_by)}")
        _set(self, "created_by", self.created_by[:TEXT_MAX])

    @property
    def blocks(self):
        """The blocks of all segments, as an iterator."""
        return (block for segment in self.segments for block in segment.blocks)

    @property
    def used(self):
        """What live blocks occupy, rounding included."""
        return sum(block.size for block in self.blocks if block.state == "live")

    @property
    def requested(self):
        """What was asked for in live blocks."""
        return sum(block.requested for block in self.blocks)

    @property
    def pending(self):
        """Free, and at once reusable by one stream only, as far as the pool knew."""
        return sum(block.size for block in self.blocks if is_pending(block))

    @property
    def free(self):
        """Memory that is not in use, pending or not, and what is spare."""
        taken = ("live", "unmapped", "busy")
        return self.spare + sum(block.size for block in self.blocks if block.state not in taken)

    @classmethod
    def load(cls, path):
        """Read a snapshot.

        Parameters
        ----------
        path : str or os.PathLike
            JSON, plain or gzip; at most 48 MiB of text.

        Raises
        ------
        SnapshotError
            The file is no snapshot, is damaged, or is of a later version; the message names the file, the key and
            what is accepted.
        OSError
            The file cannot be read.
        """
        return SNAPSHOT.load(path, cls.from_dict)

    def save(self, path):
        """Write the snapshot; what had the name before stays until the new file is whole.

        Parameters
        ----------
        path : str or os.PathLike
            With a name that ends in ``.gz`` the file is compressed. With one that ends in ``.pickle`` or ``.pkl`` it is
            a memory snapshot of PyTorch, for https://pytorch.org/memory_viz and ``torch.cuda._memory_viz``: the
            segments of `cuda_pool.torch_format.segments_of`, and no history. ``load`` reads JSON only.

        Raises
        ------
        OSError
            The file cannot be written.
        ValueError
            There would be more than 48 MiB of JSON, which is about 1.2 million blocks; or the ordinal of the device is
            above 1023, which no snapshot of PyTorch has.
        """
        if os.fsdecode(path).lower().endswith(PICKLES):
            from .torch_format import segments_of, write_snapshot   # few need it, and pickle takes its time
            write_snapshot(path, segments_of(self), {})
            return
        SNAPSHOT.save(path, self.as_dict(), separators=(",", ":"))

    def as_dict(self):
        """Return what ``save`` writes, as plain values. A block is a list of its ``FIELDS``; its address follows from
        those before it.
        """
        return {
            "format": FORMAT, "version": VERSION, "created_by": self.created_by, "device": self.device,
            "backing": self.backing, **{key: getattr(self, key) for key in SIZES},
            "streams": [stream._asdict() for stream in self.streams], "fields": list(FIELDS),
            "segments": [{"address": segment.address, "size": segment.size,
                          "blocks": [list(block[1:]) for block in segment.blocks]} for segment in self.segments],
        }

    @classmethod
    def from_dict(cls, values):
        """Return the snapshot of what ``as_dict`` gave; keys that are not known are ignored.

        Raises
        ------
        ValueError, TypeError
            As for the class, and for another `format`, `version` or order of `fields`.
        """
        SNAPSHOT.require(values)
        needed = ("backing", *SIZES, "streams", "fields", "segments")
        missing = [key for key in needed if key not in values]
        if missing:
            raise ValueError(f"no {missing[0]}: a snapshot has {', '.join(needed)}")
        if values["fields"] != list(FIELDS):
            raise ValueError(f"fields is {list(FIELDS)}, got {shown(values['fields'])}")
        streams = [_stream(stream, f"streams[{at}]") for at, stream in enumerate(_list(values["streams"], "streams"))]
        segments = [_segment(segment, f"segments[{at}]")
                    for at, segment in enumerate(_list(values["segments"], "segments"))]
        return cls(backing=values["backing"], **{key: values[key] for key in SIZES}, streams=streams,
                   segments=segments, created_by=values.get("created_by", "unknown"), device=values.get("device", 0))


def is_pending(block):
    """Return whether a block's memory is one stream's to reuse; free addresses without memory may be, too."""
    return block.state == "pending" or block.state == "unmapped" and block.stream is not None


# Reading

def _list(values, key):
    if not isinstance(values, list):
        raise TypeError(f"{key} is a list, got {shown(values)}")
    return values


def _members(values, names, key):
    if not isinstance(values, dict):
        raise TypeError(f"{key} is an object, got {shown(values)}")
    for name in names:
        if name not in values:
            raise ValueError(f"{key} has no {name}")
    return (values[name] for name in names)


def _stream(values, key):
    handle, ident, kind = _members(values, Stream._fields, key)
    _require_number(handle, f"{key}.handle")
    _require_number(ident, f"{key}.id")
    if not isinstance(kind, str):
        raise TypeError(f"{key}.kind is a text, got {shown(kind)}")
    return Stream(handle, ident, kind[:TEXT_MAX])


def _segment(values, key):
    address, size, rows = _members(values, ("address", "size", "blocks"), key)
    _require_number(address, f"{key}.address")
    for at, row in enumerate(_list(rows, f"{key}.blocks")):
        if not isinstance(row, list) or len(row) != len(FIELDS):
            raise TypeError(f"{key}.blocks[{at}] is a list of {len(FIELDS)} values, got {shown(row)}")
        _require_number(row[0], f"{key}.blocks[{at}].size")
    starts = accumulate((row[0] for row in rows), initial=address)
    return Segment(address, size, tuple(Block(start, *row) for start, row in zip(starts, rows)))


# Checking

def _set(snapshot, key, value):
    object.__setattr__(snapshot, key, value)        # the way of a frozen dataclass


def _require_number(value, key, most=NUMBER_MAX):
    if not is_index(value):
        raise TypeError(f"{key} is an integer from 0 to {most}, got {shown(value)}")
    if not 0 <= value <= most:
        raise ValueError(f"{key} is an integer from 0 to {most}, got {shown(value)}")


def _require_segment(segment, streams, key):
    _require_number(segment.address, f"{key}.address")
    _require_number(segment.size, f"{key}.size")
    end = segment.address
    for at, block in enumerate(segment.blocks):
        if block.address != end or not is_index(block.size) or block.size <= 0:
            raise ValueError(f"{key}.blocks[{at}] does not begin where the one before ends, or has no size: "
                             "the blocks of a segment tile it")
        _require_block(block, streams, f"{key}.blocks[{at}]")
        end += block.size
    if end != segment.address + segment.size or end > NUMBER_MAX:
        raise ValueError(f"the blocks of {key} have {end - segment.address} bytes together; "
                         f"expected its size, {segment.size}")


def _require_block(block, streams, key):
    if block.state not in STATES:
        raise ValueError(f"{key}.state is one of {', '.join(STATES)}, got {shown(block.state)}")
    if block.tier not in TIERS:
        raise ValueError(f"{key}.tier is one of {', '.join(TIERS)}, got {shown(block.tier)}")
    most = block.size if block.state == "live" else 0
    if not is_index(block.requested) or not 0 <= block.requested <= most:
        raise ValueError(f"{key}.requested is an integer from 0 to {most}, got {shown(block.requested)}")
    if block.stream is not None and not (is_index(block.stream) and 0 <= block.stream < streams):
        raise ValueError(f"{key}.stream is none or an index of streams, of which there are {streams}; "
                         f"got {shown(block.stream)}")
    if block.allocation is not None:
        _require_number(block.allocation, f"{key}.allocation")
    if not isinstance(block.movable, bool):
        raise TypeError(f"{key}.movable is true or false, got {shown(block.movable)}")


def _require_apart(segments):
    for one, other in zip(segments, segments[1:]):
        if one.address + one.size > other.address:
            raise ValueError(f"the segments at {one.address:#x} and {other.address:#x} overlap, or do not ascend")
