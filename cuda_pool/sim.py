"""The simulated device: host memory behind CUDA's calls, for tests, for machines without a GPU, and for replays."""

from ._sim import Device, current_device, set_current_device
from ._sim_race import Access, Race
from ._sim_work import Event, Graph, Read, Stream

__all__ = ["Access", "Device", "Event", "Graph", "Race", "Read", "Stream", "current_device", "set_current_device"]
