from typing_extensions import Self

ACCEPTED: str

class Streams:
    def __new__(cls) -> Self: ...
