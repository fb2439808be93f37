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
    def __new__(cls, text: Buffer) -> Self: ...
    def load(self) -> Any: ...

def loads(text: Buffer) -> Any: ...
