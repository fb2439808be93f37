from typing_extensions import Self

from ._torch_entries import Entries
from ._trace import TraceBuilder

class EntryTaker:
    def __new__(cls, builder: TraceBuilder) -> Self: ...
    @property
    def lost_frees(self) -> int: ...
    def take(self, entries: Entries) -> None: ...
