from collections.abc import Callable, Iterable
from typing import Any

from typing_extensions import Buffer, Self

MEMORY_MIN: int
MEMORY_PER_BYTE: int
DIGITS_MAX: int
KEY_MAX: int
NO_VALUE: str
NO_TEXT: str
ACCEPTED: str
OPCODES: dict[int, str]

class PlainUnpickler:
    length: int
    def __new__(cls, pieces: Callable[[], Iterable[Buffer]]) -> Self: ...
    def load(self) -> Any: ...

def loads(text: Buffer) -> Any: ...
