"""The slab tier alone."""

from cuda_pool import _bench

from . import ratio_to_malloc, workload


class Slab:
    """One block of 512 bytes (W1); 64 bytes to 32 KiB, 10,000 live blocks (W2)."""

    params = ["W1", "W2"]
    param_names = ["workload"]

    def setup(self, name):
        self.loop = _bench.SlabLoop(workload(name))
        self.loop.run()

    def time_pairs(self, name):
        self.loop.run()

    def track_ratio_to_malloc(self, name):
        return ratio_to_malloc(self.loop)

    track_ratio_to_malloc.unit = "x malloc"
