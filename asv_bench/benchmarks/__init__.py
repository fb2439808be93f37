"""What the benchmarks share. They need the installed package only; replay needs the traces in examples/ too."""

import cuda_pool as cp
from cuda_pool import _bench

CAPACITY = "16GiB"
PAIRS = 20_000          # of a free and an allocation: what one timed call does


def simulated_pool(capacity=CAPACITY, **settings):
    """Return a pool on a simulated device of its own."""
    return cp.Pool(capacity, device=cp.sim.Device(capacity), **settings)


def workload(name):
    return _bench.Workload.named(name, PAIRS)


def ratio_to_malloc(loop):
    """Return the time of a loop as a multiple of libc malloc's at the same work, timed in turn."""
    own, malloc = _bench.compare([loop, _bench.MallocLoop(loop.workload)])
    return own / malloc
