from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, NamedTuple, TypeAlias

from ._jsonfile import JsonFormat as JsonFormat
from .errors import ProfileError as ProfileError

__all__ = ["Blocks", "Profile", "ProfileError", "Slots"]

HEADROOM: float
VERSION: int
FORMAT: str
FILE_MAX: int
DIGITS_MAX: int
COUNT_MAX: int
STREAMS_MAX: int
BINS_MAX: int
TEXT_MAX: int
PROFILE: JsonFormat
PEAKS: tuple[str, ...]
SETTINGS: tuple[str, ...]

_Path: TypeAlias = str | bytes | PathLike[str] | PathLike[bytes]

class Slots(NamedTuple):
    size: int
    slots: int

class Blocks(NamedTuple):
    size: int
    nbytes: int
    blocks: int

@dataclass(frozen=True)
class Profile:
    peak_requested: int
    peak_used: int
    peak_reserved: int
    allocations: int
    streams: tuple[tuple[Slots, ...], ...]
    larger: tuple[Blocks, ...]
    settings: dict[str, int]
    created_by: str
    def __post_init__(self) -> None: ...
    @classmethod
    def load(cls, path: _Path) -> Profile: ...
    def save(self, path: _Path) -> None: ...
    def as_dict(self) -> dict[str, Any]: ...
    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Profile: ...
    def __or__(self, other: Profile) -> Profile: ...
    @property
    def size_classes(self) -> tuple[Slots, ...]: ...
    @property
    def shares(self) -> tuple[float, ...]: ...
    def capacity(self, headroom: float) -> int: ...
    def slots_for(self, size_classes: Sequence[int]) -> list[list[int]]: ...

def as_profile(profile: Profile | str | PathLike[str]) -> Profile: ...
