"""PyTorch's format of memory snapshots: segments, their blocks, and a trace for each device.

`cuda_pool.readers.torch_snapshot` reads it; `write_snapshot` writes it, as a pickle that PyTorch's memory_viz page and
``torch.cuda._memory_viz`` open. `segments_of` gives the segments of a pool. Times are in microseconds, everything else
is in bytes.
"""

import itertools
import pickle
from dataclasses import dataclass, field

from ._atomic import open_atomically

__all__ = ["Block", "Entry", "Segment", "segments_of", "write_snapshot"]

ALLOCATED = "active_allocated"
PENDING = "active_pending_free"
INACTIVE = "inactive"
STATES = (ALLOCATED, PENDING, INACTIVE)
SEGMENT_TYPES = ("small", "large")
STATE_OF = {"live": ALLOCATED, "pending": PENDING}      # of a block in a pool's snapshot; any other is inactive

# Of entries that are about a block, about a segment, and about neither.
BLOCK_ACTIONS = ("alloc", "free_requested", "free_completed")
SEGMENT_ACTIONS = ("segment_alloc", "segment_free", "segment_map", "segment_unmap")
OTHER_ACTIONS = ("snapshot", "oom", "user_defined")
ACTIONS = BLOCK_ACTIONS + SEGMENT_ACTIONS + OTHER_ACTIONS

DEVICES_MAX = 1024      # there is a list for each device up to the last one
PROTOCOL = 4            # the page's own unpickler knows no later one


@dataclass(slots=True)
class Block:
    """A piece of a segment.

    Attributes
    ----------
    address, size : int
        Where it is.
    requested_size : int
        What was asked for; at most `size`, and of no meaning while the block is inactive.
    state : str
        ``"active_allocated"``, ``"active_pending_free"`` (freed, but queued work may use it) or ``"inactive"``.
    """

    address: int
    size: int
    requested_size: int
    state: str = ALLOCATED


@dataclass(slots=True)
class Segment:
    """A range of memory from the driver.

    Attributes
    ----------
    address : int
        Where it is.
    blocks : list of Block
        In the order of their addresses, without gaps, to the end of the segment.
    device, stream : int
        Number of the device, and handle of the stream.
    segment_type : str
        ``"small"`` or ``"large"``.
    pool_id : tuple of (int, int)
        Of a private pool, such as that of a CUDA graph; ``(0, 0)`` otherwise.
    is_expandable : bool
        Whether it is mapped page by page.
    """

    address: int
    blocks: list = field(default_factory=list)
    device: int = 0
    stream: int = 0
    segment_type: str = "large"
    pool_id: tuple = (0, 0)
    is_expandable: bool = False

    @property
    def total_size(self):
        """Bytes of all blocks."""
        return sum(block.size for block in self.blocks)


@dataclass(slots=True)
class Entry:
    """Something that happened.

    Attributes
    ----------
    action : str
        One of ``cuda_pool.torch_format.ACTIONS``.
    addr, size : int
        Of the block, with the size that was asked for, or of the segment. For ``"oom"`` `size` is what was asked for
        and `addr` what the device had left.
    stream : int
        Handle of the stream.
    time_us : int
        When it happened, in microseconds.
    """

    action: str
    addr: int
    size: int
    stream: int = 0
    time_us: int = 0


def segments_of(snapshot):
    """Return the segments of a pool as PyTorch would tell of them.

    A segment is a region, or where pages move, pages side by side that have memory; it is expandable then. Pending
    blocks are ``"active_pending_free"``, free ones, ready slots and the tails of slabs ``"inactive"``. PyTorch knows
    one stream of a segment: that of its blocks, or the default stream if they are of several or of none. Memory that
    is spare has no address, so it is in no segment.

    Parameters
    ----------
    snapshot : cuda_pool.Snapshot

    Returns
    -------
    list of Segment
        In ascending order of address.
    """
    return [Segment(run[0].address, [_block_of(block) for block in run], snapshot.device, _stream_of(run, snapshot),
                    is_expandable=snapshot.page > 0)
            for segment in snapshot.segments for run in _runs_with_memory(segment.blocks)]


def write_snapshot(path, segments, traces):
    """Write a snapshot.

    Parameters
    ----------
    path : str or os.PathLike
        An existing file is replaced only when all is written.
    segments : iterable of Segment
        As they are after the last entry.
    traces : dict of int to iterable of Entry
        What happened on each device, in order.

    Raises
    ------
    ValueError
        A segment or an entry is none that a reader accepts: blocks leave a gap or overlap, an unknown state or action,
        the number of a device above 1023.
    OSError
        The file cannot be written; what had the name before still has it.
    """
    segments = list(segments)
    no_frames = []                      # one list for all: a pickle names it again in two bytes
    count = _devices([*traces, *(segment.device for segment in segments)])
    snapshot = {
        "segments": [_segment(segment, no_frames) for segment in segments],
        "device_traces": [[_entry(entry, no_frames) for entry in traces.get(device, ())] for device in range(count)],
        "allocator_settings": {},
        "external_annotations": [],
    }
    with open_atomically(path) as file:
        pickle.dump(snapshot, file, protocol=PROTOCOL)


def _devices(numbers):
    """Return how many lists of entries there are."""
    for number in numbers:
        if not 0 <= number < DEVICES_MAX:
            raise ValueError(f"{number} is no number of a device: expected one from 0 to {DEVICES_MAX - 1}")
    return 1 + max(numbers, default=0)


def _runs_with_memory(blocks):
    for has_memory, run in itertools.groupby(blocks, lambda block: block.state != "unmapped"):
        if has_memory:
            yield list(run)


def _block_of(block):
    state = STATE_OF.get(block.state, INACTIVE)
    requested = {ALLOCATED: block.requested, PENDING: block.size, INACTIVE: 0}[state]
    return Block(block.address, block.size, requested, state)


def _stream_of(blocks, snapshot):
    streams = {block.stream for block in blocks} - {None}
    return snapshot.streams[streams.pop()].handle if len(streams) == 1 else 0


def _segment(segment, frames):
    blocks = list(segment.blocks)
    _require_contiguous(segment, blocks)
    active = [block for block in blocks if block.state != INACTIVE]
    return {
        "device": segment.device, "address": segment.address, "total_size": segment.total_size,
        "allocated_size": sum(block.size for block in active if block.state == ALLOCATED),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested_size for block in active),
        "stream": segment.stream, "segment_type": segment.segment_type, "segment_pool_id": tuple(segment.pool_id),
        "is_expandable": segment.is_expandable, "frames": frames,
        "blocks": [{"address": block.address, "size": block.size, "requested_size": block.requested_size,
                    "state": block.state, "frames": frames} for block in blocks],
    }


def _require_contiguous(segment, blocks):
    end = segment.address
    for block in blocks:
        if block.address != end or block.size <= 0:
            raise ValueError(f"the block at {block.address:#x} of {block.size} bytes: expected one that begins where "
                             f"the one before ends, at {end:#x}, and has at least 1 byte")
        if block.state not in STATES:
            raise ValueError(f"{block.state!r} is no state of a block: expected {', '.join(STATES)}")
        if block.state != INACTIVE and not 0 <= block.requested_size <= block.size:
            raise ValueError(f"the block at {block.address:#x}: {block.requested_size} bytes were requested of "
                             f"{block.size}: expected at most that")
        end += block.size


def _entry(entry, frames):
    if entry.action not in ACTIONS:
        raise ValueError(f"{entry.action!r} is no action: expected {', '.join(ACTIONS)}")
    place = "device_free" if entry.action == "oom" else "addr"
    return {"action": entry.action, place: entry.addr, "size": entry.size, "stream": entry.stream,
            "time_us": entry.time_us, "frames": frames}
