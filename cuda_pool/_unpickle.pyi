from typing import Any

from typing_extensions import Self

MEMORY_MIN: int
MEMORY_PER_BYTE: int
DIGITS_MAX: int
KEY_MAX: int
ACCEPTED: str
OPCODES: dict[int, str]

class PlainUnpickler:
    def __new__(cls, text: bytes) -> Self: ...
    def load(self) -> Any: ...

def loads(text: bytes) -> Any: ...
