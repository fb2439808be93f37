"""Print what recorded traces need on virtual backing: the smallest capacity, and the driver calls at larger ones.

    python tools/virtual.py TRACE ... [--lag N] [--peers FILE]

Calls are those of the second half of a trace, per 1,000 events, at 1.03 to 1.20 times its peak of live bytes. `limit`
is what PyTorch's expandable segments need, from FILE, or 1.01 if that is higher.
"""

import argparse
import json
from pathlib import Path

import cuda_pool as cp
from cuda_pool import _replay, sim
from cuda_pool._rounds import PAGE
from cuda_pool.replay import fit
from cuda_pool.trace import Trace

FACTORS = (1.03, 1.05, 1.10, 1.20)


def main():
    arguments = parse_arguments()
    peers = json.loads(arguments.peers.read_text()) if arguments.peers else {}
    print(f"{'trace':<28}{'peak MiB':>10}{'need':>8}{'limit':>8}" + "".join(f"{factor:>9.2f}" for factor in FACTORS))
    for path in arguments.traces:
        trace = Trace.read(path)
        name = path.name.split(".")[0]
        found = fit(trace, backing="virtual", lag=arguments.lag, settings={}, reasons=False)
        line = f"{name:<28}{trace.peak_live / 2**20:>10.0f}{found.ratio or 0:>8.4f}{limit(peers, name):>8}"
        for factor in FACTORS if not arguments.lag else ():
            calls = calls_at(trace, factor)
            line += f"{'-' if calls is None else format(calls, '.1f'):>9}"
        print(line, flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+", metavar="TRACE", type=Path)
    parser.add_argument("--lag", type=int, default=0, help="events that the device is behind the host")
    parser.add_argument("--peers", type=Path, help="a file with the peers' figures for these traces")
    return parser.parse_args()


def limit(peers, name):
    try:
        return format(max(peers[name]["peak_reserved_over_peak_live"]["pytorch_expandable"], 1.01), ".4f")
    except KeyError:
        return "-"


def calls_at(trace, factor):
    """Return the driver calls per 1,000 events of the second half; None if the capacity does not do."""
    capacity = int(trace.peak_live * factor) // PAGE * PAGE
    half = len(trace) // 2
    if capacity < trace.peak_live:
        return None
    with cp.Pool(capacity, device=sim.Device(capacity, lazy=True), backing="virtual") as pool:
        loop = _replay.PoolReplay(trace, pool)
        try:
            loop.place()
            loop.run(half)
            before = calls(pool)
            loop.run(len(trace) - half)
            return None if loop.failed else (calls(pool) - before) / (len(trace) - half) * 1000
        finally:
            loop.clear()
            loop.close()


def calls(pool):
    return sum(count for name, count in pool.stats().upstream_calls.items() if name != "cudaMemGetInfo")


if __name__ == "__main__":
    main()
