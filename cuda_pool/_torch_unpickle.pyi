from typing import Any

from typing_extensions import Buffer

from ._unpickle import PlainUnpickler

class SnapshotUnpickler(PlainUnpickler): ...

def loads(text: Buffer) -> Any: ...
