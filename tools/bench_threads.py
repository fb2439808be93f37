"""Print how many pairs of allocation and free two threads get done in relation to one.

    python tools/bench_threads.py [WORKLOAD ...] [--pairs N] [--rounds N]

On two streams of a pool, on one, and in two pools. Pairs per second of the wall clock, best of some runs. What two
threads of empty loops get done is the bound: where it is well below 2, the machine has no two processors to spare, and
the other figures mean nothing.
"""

import argparse
import threading
import time

import cuda_pool as cp
from cuda_pool import _bench

CAPACITY = "3GiB"
RUNS = 3


def main():
    arguments = parse_arguments()
    device = cp.sim.Device("16GiB")
    print(f"{'workload':<10}{'what':<28}{'M pairs/s':>10}{'x one thread':>14}")
    for name in arguments.workloads:
        work = _bench.Workload.named(name, arguments.pairs)
        pools = [cp.Pool(CAPACITY, device=device) for _ in range(2)]
        streams = [device.stream() for _ in range(2)]
        base = report(name, "one thread", [stream_loop(work, pools[0], streams[0])], arguments.rounds)
        for what, pool, stream in (("two streams of one pool", pools[0], streams[1]),
                                   ("one stream", pools[0], streams[0]), ("two pools", pools[1], streams[1])):
            loops = [stream_loop(work, pools[0], streams[0]), stream_loop(work, pool, stream)]
            report(name, what, loops, arguments.rounds, base)
        base = report(name, "empty loop, one thread", [_bench.EmptyLoop(work)], arguments.rounds)
        report(name, "empty loops, two threads", [_bench.EmptyLoop(work) for _ in range(2)], arguments.rounds, base)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", default=["W1", "W2"])
    parser.add_argument("--pairs", type=int, default=1_000_000, help="pairs in a round (default: 1000000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of a run (default: 3)")
    arguments = parser.parse_args()
    unknown = set(arguments.workloads).difference(_bench.WORKLOADS)
    if unknown:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}; accepted: {', '.join(_bench.WORKLOADS)}")
    return arguments


def stream_loop(work, pool, stream):
    return _bench.StreamLoop(work, pool, stream)


def report(name, what, loops, rounds, base=None):
    for loop in loops:
        loop.run()                      # what comes first is made now
    pairs = max(rate(loops, rounds) for _ in range(RUNS))
    print(f"{name:<10}{what:<28}{pairs / 1e6:>10.1f}" + (f"{pairs / base:>14.2f}" if base else ""), flush=True)
    return pairs


def rate(loops, rounds):
    """Pairs per second of loops that each run in a thread of their own."""
    threads = [threading.Thread(target=lambda loop=loop: [loop.run() for _ in range(rounds)]) for loop in loops]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rounds * loop.workload.pairs for loop in loops) / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
