from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from .diagnosis import Moment
from .reasons import Change, Tightest
from .trace import Trace

__all__ = ["GRID", "Failure", "Fit", "FitResult", "Fitter", "fit"]

STEP_MIN: int
STEPS_IN_PEAK: int
STEPS_MAX: int
GRID: dict[str, tuple[int, ...]]

_Progress = Callable[[int, int], object]

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

def fit(trace: Trace, *, backing: str = "malloc", growth: str = "static", reuse: str | None = None, lag: int = 0,
        seed: int | None = None, settings: dict[str, int | str | None] | None = None, search: bool = True,
        reasons: bool = True, progress: _Progress | None = None) -> FitResult: ...
