"""The mid tier alone."""

from cuda_pool import _bench

from . import ratio_to_malloc, workload


class Mid:
    """32 KiB to 1 MiB, 2,000 live blocks."""

    def setup(self):
        self.loop = _bench.MidLoop(workload("W3"))
        self.loop.run()

    def time_pairs(self):
        self.loop.run()

    def track_ratio_to_malloc(self):
        return ratio_to_malloc(self.loop)

    track_ratio_to_malloc.unit = "x malloc"
