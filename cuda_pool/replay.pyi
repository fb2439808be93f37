from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Any, NamedTuple, TypeAlias

from ._trace import TraceTable
from .diagnosis import Diagnosis, Moment
from .map import Recording
from .profile import Profile
from .reasons import Change, Tightest
from .sim import Device
from .trace import Trace

__all__ = ["Fit", "FitResult", "ReplayResult", "default_capacity", "fit", "replay", "time_malloc"]

MIB: int
SLICE: int
STEP_MIN: int
STEPS_IN_PEAK: int
STEPS_MAX: int
SETTINGS: tuple[str, ...]
FINDINGS_MAX: int
HOST_WAITS: tuple[str, ...]
GRID: dict[str, tuple[int, ...]]

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

@dataclass(frozen=True)
class Fit:
    min_capacity: int
    ratio: float | None
    settings: dict[str, int]
    cross_stream_waits: int
    host_waits: int

@dataclass(frozen=True)
class FitResult:
    events: int
    peak_live: int
    min_capacity: int | None
    ratio: float | None
    settings: dict[str, int]
    cross_stream_waits: int | None
    host_waits: int | None
    best: Fit | None
    reasons: list[str]
    tightest: Tightest | None
    changes: tuple[Change, ...]
    resolution: int
    tried: int
    replays: int
    failed_row: int | None
    races: int
    misuses: int
    findings: list[str]
    backing: str
    growth: str
    reuse: str | None
    lag: int
    seed: int | None
    def as_dict(self) -> dict[str, Any]: ...

class Failure(NamedTuple):
    row: int
    requested: int
    moment: Moment

class Fitter:
    trace: Trace
    lag: int
    seed: int | None
    parameters: dict[str, Any]
    findings: Any
    base: int
    step: int
    replays: int
    failed_row: int | None
    def __init__(self, trace: Trace, lag: int, seed: int | None, **parameters: Any) -> None: ...
    def smallest(self, settings: dict[str, Any]) -> Fit | None: ...
    def smaller(self, settings: dict[str, Any], best: Fit | None) -> Fit | None: ...
    def within(self, capacity: int, settings: dict[str, Any]) -> Fit | None: ...
    def serves(self, capacity: int, settings: dict[str, Any]) -> bool: ...
    def just_below(self, fit: Fit, settings: dict[str, Any]) -> Failure | None: ...
    def with_backing(self, backing: str) -> Fitter: ...
    def settings_of(self, settings: dict[str, Any]) -> dict[str, int]: ...

def replay(trace: Trace, *, capacity: int | str | None = None, device: int | Device | None = None,
           backing: str = "malloc", growth: str = "static", reuse: str | None = None, lag: int = 0,
           seed: int | None = None, slab_max: int | str | None = None, mid_max: int | str | None = None,
           min_block: int | str | None = None, headroom: float | None = None, profile: Profile | _Path | None = None,
           save_profile: _Path | None = None, repeats: int = 1, recording: Recording | None = None,
           progress: _Progress | None = None) -> ReplayResult: ...
def time_malloc(trace: TraceTable, *, repeats: int = 1, progress: _Progress | None = None) -> float | None: ...
def fit(trace: Trace, *, backing: str = "malloc", growth: str = "static", reuse: str | None = None, lag: int = 0,
        seed: int | None = None, settings: dict[str, int | str | None] | None = None, search: bool = True,
        reasons: bool = True, progress: _Progress | None = None) -> FitResult: ...
def default_capacity(trace: TraceTable, growth: str = "static") -> int: ...
