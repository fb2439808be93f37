"""What ``Pool.on_event`` tells."""

from dataclasses import dataclass

__all__ = ["KINDS", "PoolEvent"]

KINDS = ("grow", "trim", "oom", "defragment")


@dataclass(frozen=True)
class PoolEvent:
    """Something that happened to a pool.

    Attributes
    ----------
    kind : str
        ``"grow"``: memory came from the driver. ``"trim"``: memory went back. ``"oom"``: an allocation failed.
        ``"defragment"``: a pass ended, by hand or by itself. With ``phases`` also ``"alloc"``: an allocation that a
        free block in reach did not serve.
    pool : Pool
    nbytes : int
        Bytes that came, went back, were asked for in vain or were moved; in a phase, those that are asked for or to be
        kept, or 0.
    phase : str or None
        ``"begin"`` or ``"end"`` of a call of the thread that calls back, where ``phases`` was asked for; else None.
    """

    kind: str
    pool: object
    nbytes: int
    phase: str | None = None
