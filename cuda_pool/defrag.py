"""What ``Pool.defragment`` returns."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FreeSpace:
    """Free memory of a pool at one moment.

    Attributes
    ----------
    free : int
        Bytes that are not in use.
    largest_free : int
        Bytes of the largest request that would succeed once all pending work is done, without growing.
    free_blocks : int
        Free blocks of the mid and the buddy tier.
    """

    free: int
    largest_free: int
    free_blocks: int

    @property
    def external_fragmentation(self):
        """Share of the free bytes outside the largest free block: ``1 - largest_free / free``."""
        return 1 - self.largest_free / self.free if self.free else 0.0


@dataclass(frozen=True)
class DefragReport:
    """What one pass of ``Pool.defragment`` did.

    Attributes
    ----------
    before, after : FreeSpace
        Free memory when the pass began, and when it had ended.
    moved_bytes, moved_blocks : int
        What was copied, and in how many moves; a block may be moved more than once.
    kept_blocks : int
        Movable blocks that could not be moved when the pass ended: pinned, or with a home on which nothing can be
        queued by this thread.
    pages_moved : int
        Pages of free memory that were moved to where the largest request would be placed (``backing="virtual"``).
    seconds : float
        How long it took, waiting included.
    completed : bool
        Whether nothing was left to be done; False after a capture began, or if others got in the way.
    """

    before: FreeSpace
    after: FreeSpace
    moved_bytes: int
    moved_blocks: int
    kept_blocks: int
    pages_moved: int
    seconds: float
    completed: bool
