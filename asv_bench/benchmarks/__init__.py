"""What the benchmarks share. They need the installed package only; those of traces need the files in examples/ too."""

from pathlib import Path

import cuda_pool as cp
from cuda_pool import _bench

CAPACITY = "16GiB"
PAIRS = 20_000          # of a free and an allocation: what one timed call does
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def simulated_pool(capacity=CAPACITY, **settings):
    """Return a pool on a simulated device of its own."""
    return cp.Pool(capacity, device=cp.sim.Device(capacity), **settings)


def workload(name):
    return _bench.Workload.named(name, PAIRS)


def ratio_to_malloc(loop):
    """Return the time of a loop as a multiple of libc malloc's at the same work, timed in turn."""
    own, malloc = _bench.compare([loop, _bench.MallocLoop(loop.workload)])
    return own / malloc


def example(name):
    """Return the file of a trace; where it is not there, what needs it is skipped."""
    path = EXAMPLES / f"{name}.csv.gz"
    if not path.exists():
        raise NotImplementedError(f"no {path}")
    return path
