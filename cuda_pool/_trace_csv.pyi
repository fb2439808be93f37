from typing import Any

from typing_extensions import Self

from ._trace_text import TextParser

HEADER: str
WORDS: dict[str, Any]

class CsvParser(TextParser):
    def __new__(cls, *args: Any, **kwargs: Any) -> Self: ...
