from ._torch_entries import Entries
from ._torch_segments import Segments
from ._trace import TraceBuilder

def take_standing(segments: Segments, device: int, entries: Entries, builder: TraceBuilder) -> None: ...
