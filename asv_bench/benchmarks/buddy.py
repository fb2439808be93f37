"""The buddy tier alone."""

from cuda_pool import _bench

from . import ratio_to_malloc, workload


class Buddy:
    """1 to 64 MiB, 200 live blocks."""

    def setup(self):
        self.loop = _bench.BuddyLoop(workload("W4"))
        self.loop.run()

    def time_pairs(self):
        self.loop.run()

    def track_ratio_to_malloc(self):
        return ratio_to_malloc(self.loop)

    track_ratio_to_malloc.unit = "x malloc"
