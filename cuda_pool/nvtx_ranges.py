"""Slow paths of pools as NVTX ranges, for Nsight Systems; needs ``pip install 'cuda_pool[nvtx]'``."""

from threading import local

import nvtx

from ._api import Pool
from .sizes import shown

__all__ = ["NvtxRanges"]

DOMAIN = "cuda_pool"


class NvtxRanges:
    """Mark what takes long in a pool, until it is closed; a context manager.

    A range is shown for each allocation from Python that a free block in reach did not serve, for ``trim`` and for
    ``defragment``; a mark where the pool grows, gives memory back, cannot serve an allocation or ends a pass of
    defragmentation. All are in the domain ``cuda_pool``. An allocation that is served at once has none, and costs
    nothing more.

    Parameters
    ----------
    pool : cuda_pool.Pool
        What is marked.
    name : str, default "pool"
        How it is called in the messages.

    Raises
    ------
    TypeError
        `pool` is no pool.
    """

    def __init__(self, pool, name="pool"):
        if not isinstance(pool, Pool):
            raise TypeError(f"pool is a cuda_pool.Pool, got {shown(pool)}")
        self.pool = pool
        self.name = name
        self._open = local()
        pool.on_event(self._note, phases=True)

    def close(self):
        """Mark nothing more; a second call does nothing."""
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.off_event(self._note)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def _note(self, event):
        message = f"{self.name}: {event.kind} {event.nbytes}"
        ranges = self._ranges()
        if event.phase == "begin":
            ranges.append(nvtx.start_range(message, domain=DOMAIN))
        elif event.phase is None:
            nvtx.mark(message, domain=DOMAIN)
        elif ranges:                            # one that began before this did has no range
            nvtx.end_range(ranges.pop())

    def _ranges(self):
        """Ranges of the calling thread that are not over."""
        if not hasattr(self._open, "ranges"):
            self._open.ranges = []
        return self._open.ranges
