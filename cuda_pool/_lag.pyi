from typing_extensions import Self

from ._api import Pool
from ._replay import Replay
from ._trace import TraceTable

LAG_MAX: int
STREAMS_MAX: int

class LaggedReplay(Replay):
    def __new__(cls, trace: TraceTable, pool: Pool, lag: int) -> Self: ...
