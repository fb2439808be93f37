from typing import Any

from typing_extensions import Self

from ._trace_text import TextParser

HEADER: str
WORDS: dict[str, Any]

class RmmParser(TextParser):
    def __new__(cls, *args: Any, **kwargs: Any) -> Self: ...
    @property
    def failures(self) -> int: ...
    @property
    def lost_frees(self) -> int: ...
