"""What ``Pool.leaks`` returns: the blocks that are live, by where they were allocated."""

from dataclasses import dataclass
from typing import NamedTuple

from .sizes import counted, format_size

__all__ = ["Frame", "LeakGroup", "Leaks", "LiveBlock"]

SHOWN = 5           # blocks of a group whose addresses a text has


class Frame(NamedTuple):
    """A place in a Python program."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class LiveBlock:
    """A block that is live.

    Attributes
    ----------
    address : int
        For a movable block, where it is now.
    nbytes : int
        Bytes that were asked for.
    stream : int or None
        The stream that it was allocated on, as in a trace; where the pool is not recorded, the one that the memory
        belongs to, or None if that is nobody's.
    age : int or None
        Allocations and frees since it was allocated, or since the recording began if it is older; None where the pool
        is not recorded.
    stack : tuple of Frame
        Where it was allocated, the innermost frame first; empty unless that was recorded.
    """

    address: int
    nbytes: int
    stream: int | None
    age: int | None
    stack: tuple


@dataclass(frozen=True)
class LeakGroup:
    """Live blocks that were allocated at the same place.

    Attributes
    ----------
    stack : tuple of Frame
        The place.
    blocks : tuple of LiveBlock
        The largest first.
    nbytes : int
        All of them together.
    """

    stack: tuple
    blocks: tuple
    nbytes: int

    def __str__(self):
        lines = [f"{format_size(self.nbytes)} in {counted(len(self.blocks), 'block')}"]
        lines += [f'    File "{frame.file}", line {frame.line}, in {frame.function}' for frame in self.stack]
        lines += [f"    {_described(block)}" for block in self.blocks[:SHOWN]]
        if len(self.blocks) > SHOWN:
            lines.append(f"    and {len(self.blocks) - SHOWN} more")
        return "\n".join(lines)


@dataclass(frozen=True)
class Leaks:
    """All live blocks of a pool at one moment; a text with ``str()``.

    Attributes
    ----------
    groups : tuple of cuda_pool.leaks.LeakGroup
        The one with most bytes first; one group only where no stacks were recorded.
    nbytes : int
        Bytes that were asked for in all of them.
    """

    groups: tuple
    nbytes: int

    @property
    def blocks(self):
        """All blocks, group by group."""
        return tuple(block for group in self.groups for block in group.blocks)

    def __len__(self):
        return sum(len(group.blocks) for group in self.groups)

    def __str__(self):
        if not self.groups:
            return "no live block"
        return "\n".join([f"{counted(len(self), 'live block')}, {format_size(self.nbytes)}", *map(str, self.groups)])


def grouped(blocks):
    """Return `Leaks` of some blocks."""
    places = {}
    for block in blocks:
        places.setdefault(block.stack, []).append(block)
    groups = [LeakGroup(stack, tuple(sorted(members, key=lambda block: (-block.nbytes, block.address))),
                        sum(block.nbytes for block in members)) for stack, members in places.items()]
    groups.sort(key=lambda group: -group.nbytes)
    return Leaks(tuple(groups), sum(group.nbytes for group in groups))


def _described(block):
    stream = "" if block.stream is None else f", stream {block.stream:#x}"
    age = "" if block.age is None else f", {counted(block.age, 'event')} old"
    return f"0x{block.address:x}: {format_size(block.nbytes)}{stream}{age}"
