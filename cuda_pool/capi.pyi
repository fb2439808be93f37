from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

ABI: int
functions: MappingProxyType[str, Function]
table: object
table_address: int

def get_include() -> str: ...

class Function(NamedTuple):
    address: int
    signature: str

class Status(IntEnum):
    OK = 0
    OUT_OF_MEMORY = 1
    FOREIGN_POINTER = 2
    INTERIOR_POINTER = 3
    FREED_POINTER = 4
    CLOSED = 5
    FORKED = 6
    HOST_MEMORY = 7
    BAD_ALIGNMENT = 8
    CAPTURING = 9
    STREAMS = 10
    WOULD_WAIT = 11
    OVERLAP = 12
    MOVABLE = 13
    PINNED = 14
    CUDA = 15
    INVALID_ARGUMENT = 64
    NOT_IMPORTED = 65
    ABI = 66
