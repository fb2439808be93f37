from ._api import Pool
from .snapshot import Snapshot

KINDS: dict[int, str]

def snapshot_of(pool: Pool) -> Snapshot: ...
