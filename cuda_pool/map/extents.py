"""What the memory in a picture is divided into at its moment, what is free included."""

from dataclasses import dataclass

from ..snapshot import STATES
from .layout import NO_STREAM

__all__ = ["Extent", "extents_of", "fragmented"]

UNUSED = ("free", "pending", "ready")


@dataclass
class Extent:
    """A piece of a strip; `position` counts bytes over the parts of all strips."""

    address: int
    size: int
    position: int
    state: str
    requested: int = 0
    tier: int = 0
    stream: int = NO_STREAM
    born: int = 0
    movable: bool = False
    fragment: bool = False


def extents_of(picture, strips):
    """Return the extents of some of a picture's strips, ascending; those that are too small are marked."""
    there = mapped_at(picture)
    extents, position = [], 0
    blocks = iter(blocks_of(picture))
    block = next(blocks, None)
    for strip in strips:
        for start, size in strip.parts:
            at, end = start, start + size
            while block is not None and block.address < end:
                if block.address >= start:
                    extents += gap(picture, there, at, block.address, position + at - start)
                    block.position = position + block.address - start
                    extents.append(block)
                    at = block.address + block.size
                block = next(blocks, None)
            extents += gap(picture, there, at, end, position + at - start)
            position += size
    mark_fragments(picture, extents)
    return extents


def fragmented(picture, extents):
    """Return the free bytes that a request of the picture's largest size cannot use."""
    return sum(sum(extent.size for extent in run) - usable(picture, run) for run in free_runs(extents))


def blocks_of(picture):
    """Yield an Extent for each block that is there at the moment, ascending by address."""
    columns, moment = picture.blocks, picture.moment
    present = (columns["born"] <= moment) & (columns["died"] > moment)
    names = ("address", "size", "requested", "state", "tier", "stream", "born", "ident")
    for address, size, requested, state, tier, stream, born, ident in zip(
            *(columns[name][present].tolist() for name in names)):
        if picture.is_whole:
            born = ident >> 1
        yield Extent(address, size, 0, STATES[state], requested, tier, stream, born,
                     bool(picture.is_whole and ident & 1))


def mapped_at(picture):
    """Return the addresses of the pages that have memory, or None where there are no pages."""
    if not picture.pages:
        return None
    there = set()
    for moment, address, is_there in picture.pages:
        if moment > picture.moment:
            break
        (there.add if is_there else there.discard)(address)
    return there


def gap(picture, there, start, end, position):
    """Return extents for free memory between two blocks: with pages, what has memory apart from what has none."""
    if there is None:
        return [Extent(start, end - start, position, "free")] if start < end else []
    extents, first = [], start
    while start < end:
        page = start - start % picture.page
        state = "free" if page in there else "unmapped"
        size = min(page + picture.page, end) - start
        if extents and extents[-1].state == state:
            extents[-1].size += size
        else:
            extents.append(Extent(start, size, position + start - first, state))
        start += size
    return extents


def free_runs(extents):
    """Yield lists of neighbours that are not in use."""
    run = []
    for extent in extents:
        if run and (extent.state not in UNUSED or run[-1].address + run[-1].size != extent.address):
            yield run
            run = []
        if extent.state in UNUSED:
            run.append(extent)
    if run:
        yield run


def usable(picture, run):
    """Return the bytes of a run that a request of the largest size can use: all or none, or its whole pages."""
    size = sum(extent.size for extent in run)
    if not picture.page:
        return size if size >= picture.largest else 0
    start, end = run[0].address, run[0].address + size
    return max(0, end // picture.page - -(-start // picture.page)) * picture.page


def mark_fragments(picture, extents):
    for run in free_runs(extents):
        too_small = usable(picture, run) == 0
        for extent in run:
            extent.fragment = too_small
