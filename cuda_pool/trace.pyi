from collections.abc import Callable, Iterable
from os import PathLike
from typing import TypeVar

from ._trace import TraceTable
from .errors import TraceError as TraceError

__all__ = ["Trace", "TraceError", "read_trace"]

HEADER: str
ROWS_A_PIECE: int

_T = TypeVar("_T", bound="Trace")

def read_trace(path: str | PathLike[str], *, max_events: int = ..., device: int | None = ...) -> Trace: ...

def require_trace(trace: object) -> None: ...

class Trace(TraceTable):
    format: str
    gpu: int | None
    notes: tuple[str, ...]
    @classmethod
    def read(cls: type[_T], path: str | PathLike[str], *, max_events: int = ..., device: int | None = ...) -> _T: ...
    @classmethod
    def from_events(cls: type[_T], events: Iterable[tuple[str, int, int, int]]) -> _T: ...
    @property
    def streams(self) -> int: ...
    def write(self, path: str | PathLike[str], *, progress: Callable[[int, int], object] | None = ...) -> None: ...
