"""Print what a pair of allocation and free costs in a pool whose calls are recorded, beside one whose are not.

    python tools/bench_record.py [WORKLOAD ...] [--pairs N] [--rounds N]

The pools are timed in turn, in one run, on the simulated device. The pairs of a round should fit into the ring, or what
is timed is the writer.
"""

import argparse
import os

import cuda_pool as cp
from cuda_pool import _bench

CAPACITY = "16GiB"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", default=list(_bench.WORKLOADS),
                        help="of " + ", ".join(_bench.WORKLOADS) + " (default: all)")
    parser.add_argument("--pairs", type=int, default=20_000, help="pairs in a round (default: 20000)")
    parser.add_argument("--rounds", type=int, default=_bench.ROUNDS, help=f"rounds (default: {_bench.ROUNDS})")
    arguments = parser.parse_args()
    unknown = set(arguments.workloads).difference(_bench.WORKLOADS)
    if unknown:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}; accepted: {', '.join(_bench.WORKLOADS)}")
    print(f"nanoseconds per pair, median of {arguments.rounds} rounds")
    print(f"{'workload':<10}{'not recorded':>14}{'recorded':>10}{'more':>8}{'waits':>8}")
    for name in arguments.workloads:
        print_workload(name, arguments)


def print_workload(name, arguments):
    work = _bench.Workload.named(name, arguments.pairs)
    with open_pool(None) as plain, open_pool(os.devnull) as recorded:       # the rows go to a temporary file
        plain_ns, recorded_ns = _bench.compare([_bench.PoolLoop(work, pool) for pool in (plain, recorded)],
                                               arguments.rounds)
        print(f"{name:<10}{plain_ns:>14.1f}{recorded_ns:>10.1f}{recorded_ns - plain_ns:>8.1f}"
              f"{recorded.tracing.waits:>8}", flush=True)


def open_pool(trace):
    return cp.Pool(CAPACITY, device=cp.sim.Device(CAPACITY), trace=trace)


if __name__ == "__main__":
    main()
