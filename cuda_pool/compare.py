"""What this pool needs for a trace beside what other allocators would reserve."""

from dataclasses import asdict, dataclass

from .peers import POLICIES, peak_reserved
from .replay import fit, replay

__all__ = ["Row", "compare"]

# This pool: name -> (backing, growth). A static pool needs the smallest capacity that serves the trace; one that grows
# reserves what it takes from 2 MiB on.
POOLS = {"cuda_pool_malloc": ("malloc", "static"), "cuda_pool_virtual": ("virtual", "static"),
         "cuda_pool_malloc_growing": ("malloc", "dynamic"), "cuda_pool_virtual_growing": ("virtual", "dynamic")}


@dataclass(frozen=True)
class Row:
    """What one policy reserves.

    Attributes
    ----------
    policy : str
        A name in ``cuda_pool.compare.POOLS`` or in ``cuda_pool.peers.POLICIES``.
    peak_reserved : int or None
        Bytes; None if the pool cannot serve the trace.
    ratio : float or None
        `peak_reserved` over the trace's peak of live bytes; None without one of them.
    failed_row : int or None
        Where the pool failed, if it cannot serve the trace.
    """

    policy: str
    peak_reserved: int | None
    ratio: float | None
    failed_row: int | None = None

    def as_dict(self):
        """Return the row as a dict of plain values."""
        return asdict(self)


def compare(trace, *, lag=0, progress=None):
    """Compare this pool's defaults with other allocators.

    Parameters
    ----------
    trace : Trace
    lag : int
        How many events the device is behind the host, for this pool; the others are as in `cuda_pool.peers`.
    progress : callable, optional
        Called as ``progress(done, total)`` with numbers of policies, and parts of the one that is played.

    Returns
    -------
    list of Row
        This pool first, with its name in ``cuda_pool.compare.POOLS``: static pools, and pools that grow.

    Raises
    ------
    ValueError, TypeError
        `lag` is no accepted number.
    """
    total = len(POOLS) + len(POLICIES)
    rows = []
    for name, (backing, growth) in POOLS.items():
        rows.append(_own_row(trace, name, backing, growth, lag))
        if progress:
            progress(len(rows), total)
    for name in POLICIES:
        report = progress and (lambda done, events, past=len(rows): progress(past + done / events, total))
        rows.append(_row(trace, name, peak_reserved(trace, name, report)))
        if progress:
            progress(len(rows), total)
    return rows


def _own_row(trace, name, backing, growth, lag):
    if growth == "static":
        found = fit(trace, backing=backing, lag=lag, search=False, reasons=False)
        return _row(trace, name, found.min_capacity, found.failed_row)
    played = replay(trace, backing=backing, growth=growth, lag=lag)
    if played.failed_row is not None:
        return _row(trace, name, None, played.failed_row)
    return _row(trace, name, played.peak_reserved)


def _row(trace, name, nbytes, failed_row=None):
    ratio = nbytes / trace.peak_live if nbytes is not None and trace.peak_live else None
    return Row(name, nbytes, ratio, failed_row)
