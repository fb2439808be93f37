from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Any, TypeAlias

from ._trace import TraceTable
from .diagnosis import Diagnosis
from .fitting import GRID as GRID, Fit as Fit, FitResult as FitResult, fit as fit
from .map import Recording
from .profile import Profile
from .sim import Device
from .trace import Trace

__all__ = ["GRID", "Fit", "FitResult", "ReplayResult", "default_capacity", "fit", "replay", "time_malloc"]

_Progress = Callable[[int, int], object]
_Path: TypeAlias = str | PathLike[str]

@dataclass(frozen=True)
class ReplayResult:
    events: int
    streams: int
    peak_live: int
    peak_requested: int
    peak_used: int
    peak_reserved: int
    ratio: float | None
    capacity: int
    failed_row: int | None
    failure: dict[str, int] | None
    diagnosis: Diagnosis | None
    ns_per_event: float | None
    upstream_calls: dict[str, int]
    cross_stream_waits: int
    host_waits: int
    races: int
    misuses: int
    findings: list[str]
    orphan_frees: int
    preexisting: int
    preexisting_bytes: int
    device: str
    simulated: bool
    backing: str
    growth: str
    reuse: str | None
    lag: int
    seed: int | None
    repeats: int
    settings: dict[str, int]
    def as_dict(self) -> dict[str, Any]: ...

def replay(trace: Trace, *, capacity: int | str | None = None, device: int | Device | None = None,
           backing: str = "malloc", growth: str = "static", reuse: str | None = None, lag: int = 0,
           seed: int | None = None, slab_max: int | str | None = None, mid_max: int | str | None = None,
           min_block: int | str | None = None, headroom: float | None = None, profile: Profile | _Path | None = None,
           save_profile: _Path | None = None, repeats: int = 1, recording: Recording | None = None,
           progress: _Progress | None = None) -> ReplayResult: ...
def time_malloc(trace: TraceTable, *, repeats: int = 1, progress: _Progress | None = None) -> float | None: ...
def default_capacity(trace: TraceTable, growth: str = "static") -> int: ...
