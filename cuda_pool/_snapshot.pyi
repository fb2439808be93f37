from ._api import Pool
from .snapshot import Snapshot

STATES: tuple[str, ...]

KINDS: dict[int, str]

def snapshot_of(pool: Pool) -> Snapshot: ...
