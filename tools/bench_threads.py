"""Print what a pair of allocation and free costs two threads of a pool, in relation to one thread.

    python tools/bench_threads.py [WORKLOAD ...] [--pairs N] [--rounds N] [--capacity SIZE]

Two threads in one pool, on its default stream (free) and on a stream each (free_async), beside one thread that does the
same; and in two pools, which is what this machine can do. All in turns, each thread bound to a processor of its own:
threads that the system puts on the same one wait for each other. Nanoseconds of a pair with the loop, the median of the
second half of the rounds: what several threads leave behind in the first one is part of the matter.
"""

import argparse
import os
import statistics
import threading

import cuda_pool as cp
from cuda_pool import _bench

SETUPS = {                      # what it is called, and what it is compared with
    "one": ("one thread", None),
    "two": ("two threads", "one"),
    "pools": ("two threads, a pool each", "one"),
    "one stream": ("one thread, free_async", None),
    "two streams": ("two threads, a stream each", "one stream"),
}


class Worker:
    """A thread on a processor of its own that plays the loops that it is given."""

    def __init__(self, cpu, start):
        self.cpu, self.start = cpu, start
        self.asked, self.done = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        os.sched_setaffinity(0, {self.cpu})
        while True:
            self.asked.acquire()
            if self.together:
                self.start.wait()
            self.ns = self.loop.run()
            self.done.release()


def main():
    arguments = parse_arguments()
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise SystemExit("two threads need two processors")
    device = cp.sim.Device("1TiB")
    start = threading.Barrier(2)
    print(f"{'workload':<10}{'what':<28}{'ns':>8}{'x one thread':>14}")
    for name in arguments.workloads:
        loops = {setup: make_loops(setup, device, name, arguments) for setup in SETUPS}
        workers = {setup: [Worker(cpu, start) for cpu, _ in zip(cpus, loops[setup])] for setup in SETUPS}
        rounds = {setup: [] for setup in SETUPS}
        for _ in range(arguments.rounds):
            for setup in SETUPS:
                rounds[setup].append(play(workers[setup], loops[setup]))
        report(name, {setup: times[len(times) // 2:] for setup, times in rounds.items()})


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", default=["W1", "W2", "W3"])
    parser.add_argument("--pairs", type=int, default=300_000, help="pairs in a round (default: 300000)")
    parser.add_argument("--rounds", type=int, default=20, help="rounds (default: 20)")
    parser.add_argument("--capacity", default="3GiB", help="of each pool (default: 3GiB)")
    arguments = parser.parse_args()
    unknown = set(arguments.workloads).difference(_bench.WORKLOADS)
    if unknown:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}; accepted: {', '.join(_bench.WORKLOADS)}")
    if arguments.pairs < 1 or arguments.rounds < 2:
        parser.error("at least 1 pair and 2 rounds")
    return arguments


def make_loops(setup, device, name, arguments):
    """One loop for each thread; each has steps of its own."""
    count = 1 if setup in ("one", "one stream") else 2
    pool, loops = None, []
    for _ in range(count):
        if pool is None or setup == "pools":
            pool = cp.Pool(arguments.capacity, device=device)
        work = _bench.Workload.named(name, arguments.pairs)
        if "stream" in setup:
            loops.append(_bench.StreamLoop(work, pool, device.stream()))
        else:
            loops.append(_bench.PoolLoop(work, pool))
    return loops


def play(workers, loops):
    """Nanoseconds of a pair, the mean of the threads."""
    for worker, loop in zip(workers, loops):
        worker.loop, worker.together = loop, len(loops) > 1
        worker.asked.release()
    for worker in workers:
        worker.done.acquire()
    return statistics.mean(worker.ns for worker in workers)


def report(name, rounds):
    for setup, (what, base) in SETUPS.items():
        ns = statistics.median(rounds[setup])
        ratio = f"{statistics.median(a / b for a, b in zip(rounds[setup], rounds[base])):>14.2f}" if base else ""
        print(f"{name:<10}{what:<28}{ns:>8.1f}{ratio}", flush=True)


if __name__ == "__main__":
    main()
