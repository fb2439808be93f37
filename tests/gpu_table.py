"""Print what a pair of allocation and free costs: the pool beside cudaMalloc and cudaMallocAsync.

    python tests/gpu_table.py [--simulated] [--seconds S]

All are timed in loops without the interpreter, but for the column "in Python": `free(alloc(nbytes))`.
"""

import argparse
import statistics
import timeit

import cuda_pool as cp
from cuda_pool._bench import PoolLoop, Workload
from cuda_pool._bench_driver import time_malloc_async_pairs, time_malloc_pairs
from cuda_pool.sizes import format_size

SIZES = (512, 64 << 10, 1 << 20, 64 << 20)
ROUNDS = 5


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulated", action="store_true", help="the driver's columns then mean nothing")
    parser.add_argument("--seconds", type=float, default=0.2, help="time spent on each round of each figure")
    arguments = parser.parse_args()
    device = cp.sim.Device("8GiB") if arguments.simulated else 0
    with cp.Pool("256MiB", device=device) as pool:
        print_table(pool, arguments.seconds)
        pool.check()


def print_table(pool, seconds):
    columns = ("size", "pool", "in Python", "cudaMalloc", "cudaMallocAsync", "cudaMalloc / pool", "Async / pool")
    print(f"{pool.device.name}: nanoseconds per pair of allocation and free, median of {ROUNDS} rounds")
    print("  ".join(f"{column:>10}" for column in columns))
    for nbytes in SIZES:
        own, python, plain, queued = (median_ns(timed, seconds) for timed in contenders(pool, nbytes))
        cells = (format_size(nbytes), f"{own:.1f}", f"{python:.1f}", f"{plain:.0f}", f"{queued:.0f}",
                 f"{plain / own:.0f}", f"{queued / own:.0f}")
        print("  ".join(f"{cell:>{max(10, len(column))}}" for cell, column in zip(cells, columns)), flush=True)


def contenders(pool, nbytes):
    """Yield functions from a number of pairs to the seconds that they take."""
    yield lambda pairs: PoolLoop(Workload(nbytes, nbytes, 1, pairs), pool).run() * pairs * 1e-9
    yield timeit.Timer("free(alloc(nbytes))", globals={"alloc": pool.alloc, "free": pool.free, "nbytes": nbytes}).timeit
    yield lambda pairs: time_malloc_pairs(pool.device, nbytes, pairs)
    yield lambda pairs: time_malloc_async_pairs(pool.device, nbytes, pairs)


def median_ns(timed, seconds):
    """Return the median over ROUNDS of the nanoseconds per pair; each round takes about `seconds`."""
    pairs = 1
    while (spent := timed(pairs)) < seconds / 10:
        pairs *= 4
    pairs = max(1, int(pairs * seconds / spent))
    return statistics.median(timed(pairs) / pairs * 1e9 for _ in range(ROUNDS))


if __name__ == "__main__":
    main()
