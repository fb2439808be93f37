"""Print what a pair of allocation and free costs on the host: the pool, its tiers, libc's malloc and an empty loop.

    python tools/bench.py [WORKLOAD ...] [--pairs N] [--rounds N] [--instructions] [--debug] [--good-fit] [--record]

Everything runs on the simulated device, without touching the memory; what is compared is timed in turn, in one run.
--instructions counts them too, with `perf stat` where the processor's counters can be read and with valgrind otherwise.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys

import cuda_pool as cp
from cuda_pool import _bench, settings

CAPACITY = "16GiB"
TIERS = {"W1": "slab", "W2": "slab", "W3": "mid", "W4": "buddy"}
LOOPS = {"malloc": _bench.MallocLoop, "empty": _bench.EmptyLoop, "slab": _bench.SlabLoop, "mid": _bench.MidLoop,
         "buddy": _bench.BuddyLoop}
COUNTED_PAIRS = 20_000
COUNTED_ROUNDS = 10
COUNTERS = {
    "perf": (["perf", "stat", "-x,", "-e", "instructions:u"], re.compile(r"^(\d+),", re.M)),
    "callgrind": (["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"], re.compile(r"Collected : (\d+)")),
}


def main():
    arguments = parse_arguments()
    settings.GOOD_FIT = arguments.good_fit
    if arguments.play:
        return play(*arguments.play, arguments)
    counter = find_counter() if arguments.instructions else None
    counted = f"; instructions by {counter}" if counter else ""
    print(f"nanoseconds per pair, median of {arguments.rounds} rounds{counted}")
    print(f"{'workload':<10}{'what':<8}{'ns':>10}{'x malloc':>10}" + (f"{'instructions':>14}" if counter else ""))
    for name in arguments.workloads:
        print_workload(name, arguments, counter)
    print_calls(arguments)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", default=list(_bench.WORKLOADS),
                        help="of " + ", ".join(_bench.WORKLOADS) + " (default: all)")
    parser.add_argument("--pairs", type=int, default=100_000, help="pairs in a round (default: 100000)")
    parser.add_argument("--rounds", type=int, default=_bench.ROUNDS, help=f"rounds (default: {_bench.ROUNDS})")
    parser.add_argument("--instructions", action="store_true", help="count instructions (takes minutes)")
    parser.add_argument("--debug", action="store_true", help="a pool with debug=True")
    parser.add_argument("--good-fit", action="store_true", help="a mid tier that takes the first block of the next bin")
    parser.add_argument("--record", action="store_true", help="a pool that is recorded")
    parser.add_argument("--play", nargs=3, help=argparse.SUPPRESS)      # what the counted processes do
    arguments = parser.parse_args()
    unknown = set(arguments.workloads).difference(_bench.WORKLOADS)
    if unknown:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}; accepted: {', '.join(_bench.WORKLOADS)}")
    return arguments


def open_pool(arguments):
    trace = os.devnull if arguments.record else None        # its rows go to a temporary file
    return cp.Pool(CAPACITY, device=cp.sim.Device(CAPACITY), debug=arguments.debug, trace=trace)


def make_loop(kind, name, pairs, arguments):
    work = _bench.Workload.named(name, pairs)
    if kind == "pool":
        return _bench.PoolLoop(work, open_pool(arguments))
    return LOOPS[kind](work)


def print_workload(name, arguments, counter):
    kinds = ("pool", "malloc", TIERS[name], "empty")
    loops = [make_loop(kind, name, arguments.pairs, arguments) for kind in kinds]
    times = dict(zip(kinds, _bench.compare(loops, arguments.rounds)))
    for kind in kinds:
        line = f"{name:<10}{kind:<8}{times[kind]:>10.1f}{times[kind] / times['malloc']:>10.3f}"
        if counter:
            line += f"{instructions(counter, kind, name, options_of(arguments)):>14.1f}"
        print(line, flush=True)


def print_calls(arguments):
    with open_pool(arguments) as pool:
        pair, one, none = _bench.compare_calls(pool)
    print("\nfrom Python, nanoseconds per pair")
    print(f"pool.alloc(512); pool.free(ptr)        {pair:8.1f}")
    print(f"two empty calls with one argument      {one:8.1f}   ratio {pair / one:.2f}")
    print(f"two empty calls without an argument    {none:8.1f}   ratio {pair / none:.2f}")


def find_counter():
    """Return the first counter that counts here."""
    for name, (command, pattern) in COUNTERS.items():
        if shutil.which(command[0]) and pattern.search(run([*command, "true"])):
            return name
    sys.exit("--instructions needs valgrind, or perf with access to the processor's counters")


def options_of(arguments):
    """Return the options that change the pool, for another process."""
    return ["--debug"] * arguments.debug + ["--good-fit"] * arguments.good_fit + ["--record"] * arguments.record


def instructions(counter, kind, name, options):
    """Return instructions per pair: what some more rounds add to a process, so that start and end do not count."""
    counts = []
    for rounds in (1, 1 + COUNTED_ROUNDS):
        command, pattern = COUNTERS[counter]
        output = run([*command, sys.executable, __file__, "--play", kind, name, str(rounds), *options])
        counts.append(int(pattern.search(output)[1]))
    return (counts[1] - counts[0]) / (COUNTED_PAIRS * COUNTED_ROUNDS)


def run(command):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          env={**os.environ, "PYTHONHASHSEED": "0"}).stderr


def play(kind, name, rounds, arguments):
    loop = make_loop(kind, name, COUNTED_PAIRS, arguments)
    for _ in range(int(rounds)):
        loop.run()


if __name__ == "__main__":
    main()
