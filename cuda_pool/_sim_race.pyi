from typing import NamedTuple

OPERATIONS: tuple[str, ...]

class Access(NamedTuple):
    stream: int
    operation: str
    address: int
    nbytes: int
    tick: int
    write: bool

class Race(NamedTuple):
    first: Access
    second: Access
