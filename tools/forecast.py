"""Measure how well a pool's predictor knows the next period of a trace, for docs/internals/predictor.md.

    python tools/forecast.py [FOLDER]

A period's forecast is compared with what the period then needed, for the slots of the size classes (weighted by their
bytes) and for the peak of used bytes. The default folder is ../shared/traces beside the repository, else examples/.
"""

import argparse
import contextlib
from pathlib import Path

from cuda_pool import Pool, _testing, sim
from cuda_pool._replay import PoolReplay
from cuda_pool.trace import Trace

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ROOT.parent / "shared" / "traces", ROOT / "examples"
SLICE = 16              # events from one look at the predictor to the next
AMPLE = 1.5             # times the peak of live bytes

HEADER = """\
| trace | periods | slots foreseen | slots too many | peak too low | peak too high | slabs made, static | predictive |
|---|---|---|---|---|---|---|---|"""


def play(trace, growth):
    """Play a trace; yield what the predictor says after each slice."""
    capacity = int(AMPLE * trace.peak_live)
    with sim.Device(capacity) as device, Pool(capacity, device=device, growth=growth) as pool:
        with contextlib.closing(PoolReplay(trace, pool)) as loop:
            loop.place()
            while loop.position < len(trace) and not loop.failed:
                loop.run(SLICE)
                yield {**_testing.forecast(pool), "size_classes": pool.settings.size_classes}
            loop.clear()


def periods(looks):
    """Return the last look at each period; that before the first has nothing to compare with."""
    last = {look["periods"]: look for look in looks}
    return [last[period] for period in sorted(last)]


def share(part, whole):
    return f"{part / whole:.3f}" if whole else "–"


def row(name, trace):
    static = periods(play(trace, "static"))
    seen = periods(play(trace, "predictive"))
    needed = foreseen = spare = peak = low = high = 0
    for look in seen[1:]:
        for size, (expected, slots) in zip(look["size_classes"], look["slots"]):
            needed += size * slots
            foreseen += size * min(slots, expected)
            spare += size * max(expected - slots, 0)
        expected, used = look["used"]
        peak += used
        low += max(used - expected, 0)
        high += max(expected - used, 0)
    return (f"| {name} | {len(seen)} | {share(foreseen, needed)} | {share(spare, needed)} | {share(low, peak)} | "
            f"{share(high, peak)} | {static[-1]['slabs']:,} | {seen[-1]['slabs']:,} |")


def main():
    parser = argparse.ArgumentParser(description="Measure how well the predictor knows the next period of a trace.")
    parser.add_argument("folder", nargs="?", type=Path, default=next(filter(Path.is_dir, FOLDERS)))
    print(HEADER)
    for path in sorted(parser.parse_args().folder.glob("*.csv.gz")):
        print(row(path.name.removesuffix(".csv.gz"), Trace.read(path)), flush=True)


if __name__ == "__main__":
    main()
