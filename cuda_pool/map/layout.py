"""What a picture shows: strips of memory, and the blocks in them from a moment to another."""

from dataclasses import dataclass, field

import numpy as np

from .._record import NEVER
from ..sizes import format_size
from ..snapshot import STATES, TIERS

__all__ = ["Picture", "Strip", "picture_of_recording", "picture_of_snapshot"]

COLUMNS = {"address": np.uint64, "size": np.uint64, "requested": np.uint64, "state": np.uint8, "tier": np.uint8,
           "stream": np.uint16, "born": np.uint32, "died": np.uint32, "ident": np.uint64}
NO_STREAM = 0xFFFF


@dataclass
class Strip:
    """A region, or those parts of a range of addresses that are ever used: (address, size) of each."""

    address: int
    size: int
    parts: list
    born: int = 0
    died: int = NEVER


@dataclass
class Picture:
    """What a picture shows; sizes in bytes.

    Attributes
    ----------
    title, lead : str
        What the picture is of; plain text.
    strips : list of Strip
    blocks : dict of numpy.ndarray
        Columns: address, size, requested, state (an index of ``cuda_pool.snapshot.STATES``), tier (of TIERS), stream
        (of `streams`, or NO_STREAM), and the moments at which the block came and went; ascending by address. Where
        `is_whole`, they cover all of the strips; otherwise they are the live ones, and the rest is free.
    born_known : bool
        Whether `born` says how old a block is.
    largest : int
        The largest request: free pieces below it are marked.
    page : int
        Bytes of a page where pages move, so that whole free ones are never too small; otherwise 0.
    events : int
        Moments beside the first: 0 for a still picture.
    moment : int
        That is shown first.
    now : int
        Events that had been played at a still picture.
    """

    title: str
    lead: str
    strips: list
    blocks: dict
    streams: list
    is_whole: bool
    born_known: bool
    largest: int
    page: int
    capacity: int
    backing: str
    events: int = 0
    moment: int = 0
    failure: dict | None = None
    reserved: list = field(default_factory=list)        # (moment, bytes)
    samples: list = field(default_factory=list)         # (moment, largest free block, pending bytes)
    pages: list = field(default_factory=list)           # (moment, address, whether there is memory)
    rows: np.ndarray | None = None                      # of each event: its line in the trace
    now: int = 0

    def strips_now(self):
        """Return the strips that are there at `moment`."""
        return [strip for strip in self.strips if strip.born <= self.moment < strip.died]

    def age_of(self, born):
        """Return how many events old a block is that came at a moment."""
        return (self.now if self.is_whole else self.moment) - born

    def figures(self):
        """Return what is live, used, reserved and so on at `moment`, as a dict of bytes and numbers of blocks."""
        live = self.live()
        size, requested = self.blocks["size"][live], self.blocks["requested"][live]
        reserved = max((pair for pair in self.reserved if pair[0] <= self.moment), default=(0, 0))[1]
        largest = max((each for each in self.samples if each[0] <= self.moment), default=(0, 0, 0))[1]
        return {"blocks": len(live), "live": int(requested.sum()), "used": int(size.sum()), "reserved": reserved,
                "free": reserved - int(size.sum()), "largest_free": largest}

    def live(self):
        """Return the indices of the blocks that are live at `moment`."""
        blocks = self.blocks
        return np.flatnonzero((blocks["state"] == 0) & (blocks["born"] <= self.moment) & (blocks["died"] > self.moment))


def picture_of_snapshot(snapshot, title, *, lead=None, failure=None, now=0):
    """Return the Picture of a snapshot; `failure` tells of the request that was not served, if there was one."""
    segments = [segment for segment in snapshot.segments if segment.blocks]
    whole = [block for segment in segments for block in segment.blocks]
    born_known = any(block.allocation is not None for block in whole)
    live = [block.requested for block in whole if block.state == "live"]
    blocks = columns(
        address=[block.address for block in whole], size=[block.size for block in whole],
        requested=[block.requested for block in whole], state=[STATES.index(block.state) for block in whole],
        tier=[TIERS.index(block.tier) for block in whole],
        stream=[NO_STREAM if block.stream is None else block.stream for block in whole],
        born=[0] * len(whole), died=[NEVER] * len(whole),
        ident=[(block.allocation or 0) << 1 | block.movable for block in whole])
    strips = [Strip(segment.address, segment.size, mapped_parts(segment, snapshot.page)) for segment in segments]
    return Picture(
        title=title, lead=lead or lead_of(snapshot), strips=[strip for strip in strips if strip.parts], blocks=blocks,
        streams=[stream_name(stream) for stream in snapshot.streams], is_whole=True, born_known=born_known,
        largest=failure["requested"] if failure else max(live, default=0), page=snapshot.page,
        capacity=snapshot.capacity, backing=snapshot.backing, failure=failure, reserved=[(0, snapshot.reserved)],
        samples=[(0, snapshot.largest_free, snapshot.pending)], now=now)


def picture_of_recording(recording, title):
    """Return the Picture of a recording: of every moment in it.

    Raises
    ------
    ValueError
        No replay has filled the recording.
    """
    if recording.snapshot is None:
        raise ValueError("the recording is empty: give it to cuda_pool.replay.replay(recording=...) first")
    snapshot, trace = recording.snapshot, recording.trace
    numbers, home = recording.streams_of_blocks()
    order = np.argsort(recording.address, kind="stable")
    order = order[(recording.used[order] > 0)]
    blocks = columns(
        address=recording.address[order], size=recording.used[order], requested=trace.block_size[order],
        state=np.zeros(len(order)), tier=recording.tier[order] - 1, stream=np.minimum(home[order], NO_STREAM - 1),
        born=recording.born[order], died=recording.died[order], ident=ids_of_blocks(trace)[order])
    moment = recording.moment if recording.failure else recording.peak()
    return Picture(
        title=title, lead=lead_of(snapshot), strips=strips_of(recording, blocks, snapshot.page), blocks=blocks,
        streams=[f"stream {number}" for number in numbers], is_whole=False, born_known=True,
        largest=recording.failure["requested"] if recording.failure else int(blocks["requested"].max(initial=0)),
        page=snapshot.page, capacity=snapshot.capacity, backing=snapshot.backing, events=recording.moment,
        moment=moment, failure=recording.failure, reserved=recording.reserved, samples=recording.samples,
        pages=[(at, recording.regions[0][0] + page * snapshot.page, there) for at, page, there in recording.pages],
        rows=trace.row)


def ids_of_blocks(trace):
    """Return the id of every block of a trace."""
    ids = np.zeros(trace.blocks, np.uint64)
    ids[trace.live["block"]] = trace.live_id
    ids[trace.block] = trace.id
    return ids


def columns(**values):
    return {name: np.asarray(values[name]).astype(dtype) for name, dtype in COLUMNS.items()}


def lead_of(snapshot):
    backing = "pages that move" if snapshot.backing == "virtual" else "regions from cudaMalloc"
    return (f"{format_size(snapshot.reserved)} reserved of {format_size(snapshot.capacity)} at most; {backing} "
            f"(backing {snapshot.backing})")


def stream_name(stream):
    if stream.kind == "trace":
        return f"stream {stream.handle}"
    return "default stream" if stream.kind == "default" else f"stream {stream.handle:#x} ({stream.kind})"


def strips_of(recording, blocks, page):
    """Return a Strip for each region that there ever was; of a range of addresses, only pages that ever had memory."""
    regions = sorted(map(tuple, recording.regions))
    if not page:
        return [Strip(address, size, [(address, size)], born, died) for address, size, born, died in regions]
    address, size, born, died = regions[0]
    used = sorted({at for _, at, _ in recording.pages})
    parts = runs([(address + at * page, page) for at in used])
    return [Strip(address, size, parts, born, died)] if parts else []


def mapped_parts(segment, page):
    """Return the parts of a segment that have memory, or, with pages, the pages of which anything has."""
    if not page:
        return [(segment.address, segment.size)]
    pages = []
    for block in segment.blocks:
        if block.state != "unmapped":
            low = (block.address - segment.address) // page * page
            high = -(-(block.address + block.size - segment.address) // page) * page
            pages.append((segment.address + low, min(high, segment.size) - low))
    return runs(pages)


def runs(pieces):
    """Join pieces, by ascending address, that touch or overlap."""
    joined = []
    for address, size in pieces:
        if joined and address <= joined[-1][0] + joined[-1][1]:
            start = joined[-1][0]
            joined[-1] = start, max(joined[-1][1], address + size - start)
        else:
            joined.append((int(address), int(size)))
    return joined
