from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, NamedTuple, TypeAlias

from ._jsonfile import JsonFormat as JsonFormat
from .errors import SnapshotError as SnapshotError

__all__ = ["Block", "Segment", "Snapshot", "SnapshotError", "Stream"]

FORMAT: str
VERSION: int
FILE_MAX: int
NUMBER_MAX: int
TEXT_MAX: int
DEVICE_MAX: int
PICKLES: tuple[str, ...]
SNAPSHOT: JsonFormat
BACKINGS: tuple[str, ...]
STATES: tuple[str, ...]
TIERS: tuple[str, ...]
SIZES: tuple[str, ...]
FIELDS: tuple[str, ...]

_Path: TypeAlias = str | bytes | PathLike[str] | PathLike[bytes]

class Stream(NamedTuple):
    handle: int
    id: int
    kind: str

class Block(NamedTuple):
    address: int
    size: int
    requested: int
    state: str
    tier: str
    stream: int | None = ...
    allocation: int | None = ...
    movable: bool = ...

class Segment(NamedTuple):
    address: int
    size: int
    blocks: tuple[Block, ...]

@dataclass(frozen=True)
class Snapshot:
    backing: str
    capacity: int
    reserved: int
    spare: int
    largest_free: int
    page: int
    granule: int
    streams: Sequence[Stream]
    segments: Sequence[Segment]
    created_by: str
    device: int = ...
    def __post_init__(self) -> None: ...
    @property
    def blocks(self) -> Iterator[Block]: ...
    @property
    def used(self) -> int: ...
    @property
    def requested(self) -> int: ...
    @property
    def pending(self) -> int: ...
    @property
    def free(self) -> int: ...
    @classmethod
    def load(cls, path: _Path) -> Snapshot: ...
    def save(self, path: _Path) -> None: ...
    def as_dict(self) -> dict[str, Any]: ...
    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Snapshot: ...

def is_pending(block: Block) -> bool: ...
