"""Compare what can be counted exactly with what was counted before: driver calls, footprints, instructions.

    python tools/check_counts.py            # the exit code is 1 when something became worse
    python tools/check_counts.py --update   # write tools/counts.json anew

No time is measured, so a busy machine does no harm. Driver calls and footprints are those of the traces in examples/:
the calls may not grow at all, footprints by no more than how exactly they are found. Instructions are counted where
valgrind is installed, and may grow by a tenth, for compilers and C libraries differ. With ever more live blocks they
may grow by LIVE_LIMIT at most.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from cuda_pool import _bench_count, _bench_table
from cuda_pool.replay import fit, replay
from cuda_pool.trace import Trace

ROOT = Path(__file__).resolve().parents[1]
COUNTS = ROOT / "tools" / "counts.json"
TRACES = ("gpt2_124m_train", "llama_serve_growing_kv", "resnet50_b64_train")
SERVING = ROOT / "examples" / "llama_serve_growing_kv.csv.gz"
TOLERANCES = {"driver calls": 0, "peak reserved": 0.002, "min capacity": 0.002, "instructions": 0.10}
LIVE = ("L2", "L4", "L6")
LIVE_KEY = "instructions, most live / fewest"
LIVE_LIMIT = 1.3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help=f"write {COUNTS.name} anew")
    arguments = parser.parse_args()
    found = {**count_traces(), **count_instructions()}
    if arguments.update:
        return update(found)
    known = json.loads(COUNTS.read_text())
    worse = [key for key, number in found.items() if is_worse(key, number, known.get(key))]
    report(found, known, worse)
    return 1 if worse else 0


def count_traces():
    """Return driver calls and footprints of the recorded traces."""
    found = {}
    for name in TRACES:
        trace = Trace.read(ROOT / "examples" / f"{name}.csv.gz")
        for growth in ("static", "dynamic"):
            result = replay(trace, growth=growth)
            found[f"driver calls, {growth}, {name}"] = sum(result.upstream_calls.values())
        found[f"peak reserved / peak live, dynamic, {name}"] = round(result.ratio, 4)
        for backing in ("malloc", "virtual"):
            found[f"min capacity / peak live, {backing}, {name}"] = round(
                fit(trace, backing=backing, search=False).ratio, 4)
    return found


def count_instructions():
    """Return instructions per pair of the pool, and how they grow with live blocks; nothing without valgrind."""
    if not shutil.which("valgrind"):
        print("instructions: not checked, valgrind is not installed")
        return {}
    names = {name: name for name in (*_bench_table.TIERS, *LIVE)} | {SERVING.name.partition(".")[0]: str(SERVING)}
    counts = _bench_count.count([(name, "pool") for name in names.values()], "valgrind")
    found = {f"instructions, {label}": round(counts[name, "pool"], 1) for label, name in names.items()}
    live = [counts[name, "pool"] for name in LIVE]
    return {**found, LIVE_KEY: round(max(live) / min(live), 3)}


def is_worse(key, number, known):
    """Return whether a number is above what is accepted; one that is not known yet is."""
    if key == LIVE_KEY:
        return number > LIVE_LIMIT
    tolerance = next(share for kind, share in TOLERANCES.items() if key.startswith(kind))
    return known is None or number > known * (1 + tolerance)


def update(found):
    """Write the counts; those of instructions stay where they cannot be counted."""
    kept = {}
    if COUNTS.exists() and not any(key.startswith("instructions") for key in found):
        kept = {key: number for key, number in json.loads(COUNTS.read_text()).items() if key.startswith("instructions")}
    COUNTS.write_text(json.dumps({**found, **kept}, indent=2) + "\n")
    print(f"{COUNTS}: {len(found)} counts written")
    return 0


def report(found, known, worse):
    """Print what differs from what was known."""
    for key, number in found.items():
        if key in worse:
            print(f"WORSE  {key}: {number}, was {known.get(key, 'not counted')}")
        elif number < known.get(key, number):
            print(f"better {key}: {number}, was {known[key]}")
    print(f"{len(found)} counts, {len(worse)} worse" + ("; tools/check_counts.py --update accepts them" * bool(worse)))


if __name__ == "__main__":
    sys.exit(main())
