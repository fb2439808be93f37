"""A GPU memory pool: slab, mid and buddy tiers over regions of memory, on CUDA or on a simulated device."""

from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version

from . import capi, sim
from ._api import Pool, release_memory
from ._buffer import Buffer
from ._movable import Movable
from ._tracing import Tracing, record
from .capi import get_include
from .defrag import DefragReport, FreeSpace
from .errors import (
    CudaError, DeviceUnavailableError, InvalidPointerError, OutOfMemoryError, ProfileError, SnapshotError,
    TraceError)
from .events import PoolEvent
from .leaks import Leaks
from .profile import Profile
from .sizes import format_size, parse_size
from .snapshot import Snapshot
from .stats import PoolStats, StatsDelta, TierStats

try:
    __version__ = _version("cuda-pool")
except _PackageNotFoundError:           # imported from a source tree that is built in place
    __version__ = "0+unknown"

__all__ = [
    "Buffer", "CudaError", "DefragReport", "DeviceUnavailableError", "FreeSpace", "InvalidPointerError", "Leaks",
    "Movable", "OutOfMemoryError", "Pool", "PoolEvent", "PoolStats", "Profile", "ProfileError", "Snapshot",
    "SnapshotError", "StatsDelta", "TierStats", "TraceError", "Tracing", "capi", "format_size", "get_include",
    "parse_size", "record", "release_memory", "sim",
]
