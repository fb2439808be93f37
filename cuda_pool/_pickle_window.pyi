from collections.abc import Iterable, Iterator
from typing import final

from typing_extensions import Buffer, Self

PIECE: int

@final
class Window:
    def __new__(cls, pieces: Iterable[Buffer], length: int) -> Self: ...

def pieces_of(text: Buffer, size: int = ...) -> Iterator[memoryview]: ...
