"""The simulated device: host memory behind CUDA's calls, for tests, for machines without a GPU, and for replays."""

from ._sim import Device, current_device, set_current_device

__all__ = ["Device", "current_device", "set_current_device"]
