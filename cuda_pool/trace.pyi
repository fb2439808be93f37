from collections.abc import Iterable
from os import PathLike
from typing import TypeVar

from ._trace import TraceTable
from .errors import TraceError as TraceError

__all__ = ["Trace", "TraceError"]

HEADER: str
GZIP_MAGIC: bytes
PIECE: int
ROWS_A_PIECE: int

_T = TypeVar("_T", bound="Trace")

class Trace(TraceTable):
    @classmethod
    def read(cls: type[_T], path: str | PathLike[str], *, max_events: int = ...) -> _T: ...
    @classmethod
    def from_events(cls: type[_T], events: Iterable[tuple[str, int, int, int]]) -> _T: ...
    @property
    def streams(self) -> int: ...
    def write(self, path: str | PathLike[str]) -> None: ...
