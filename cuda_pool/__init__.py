"""A GPU memory pool: slab, mid and buddy tiers over regions of memory, on CUDA or on a simulated device."""

from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version

from . import capi, sim
from ._api import Pool, release_memory
from ._buffer import Buffer
from ._movable import Movable
from .capi import get_include
from .defrag import DefragReport, FreeSpace
from .errors import (
    CudaError, DeviceUnavailableError, InvalidPointerError, OutOfMemoryError, ProfileError, SnapshotError,
    TraceError)
from .profile import Profile
from .sizes import format_size, parse_size
from .snapshot import Snapshot
from .stats import PoolStats, TierStats

try:
    __version__ = _version("cuda-pool")
except _PackageNotFoundError:           # imported from a source tree that is built in place
    __version__ = "0+unknown"

__all__ = [
    "Buffer", "CudaError", "DefragReport", "DeviceUnavailableError", "FreeSpace", "InvalidPointerError", "Movable",
    "OutOfMemoryError", "Pool", "PoolStats", "Profile", "ProfileError", "Snapshot", "SnapshotError", "TierStats",
    "TraceError", "capi", "format_size", "get_include", "parse_size", "release_memory", "sim",
]
