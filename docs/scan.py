"""Find from which capacity on every larger one serves a trace too, for docs/internals/measurements.md.

    python docs/scan.py [FOLDER] [--mid-max SIZE] [--growth-step SIZE] [--good-fit]

Each figure is that capacity over the trace's peak of live bytes, scanned downwards from 1.40 in steps of 0.4 %; what
fails at 1.40 is shown as 1.404. The default folder is ../shared/traces beside the repository, else examples/.
"""

import argparse
from pathlib import Path

from cuda_pool import settings
from cuda_pool.replay import replay
from cuda_pool.sizes import parse_size
from cuda_pool.trace import Trace

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ROOT.parent / "shared" / "traces", ROOT / "examples"
TOP, STEP = 1400, 4             # thousandths of the peak


def smallest_safe(trace, **chosen):
    """Return the least ratio from which on every larger one, up to TOP, serves the trace."""
    for thousandths in range(TOP, 1000 - STEP, -STEP):
        if replay(trace, capacity=-(-trace.peak_live * thousandths // 1000), **chosen).failed_row is not None:
            return (thousandths + STEP) / 1000
    return 1.0


def main():
    parser = argparse.ArgumentParser(description="Find from which capacity on every larger one serves a trace too.")
    parser.add_argument("folder", nargs="?", type=Path, default=next(filter(Path.is_dir, FOLDERS)))
    parser.add_argument("--mid-max", metavar="SIZE", type=parse_size)
    parser.add_argument("--growth-step", metavar="SIZE", type=parse_size, default=settings.GROWTH_STEP,
                        help="of the mid tier; 1: exactly what is lacking")
    parser.add_argument("--good-fit", action="store_true", help="the mid tier takes the first block of the next bin")
    arguments = parser.parse_args()
    settings.GROWTH_STEP = arguments.growth_step
    settings.GOOD_FIT = arguments.good_fit
    found = {path.name.removesuffix(".csv.gz"): smallest_safe(Trace.read(path), mid_max=arguments.mid_max)
             for path in sorted(arguments.folder.glob("*.csv.gz"))}
    for name, ratio in found.items():
        print(f"{name:<28}{ratio:.3f}")
    print(f"{'worst':<28}{max(found.values()):.3f}")


if __name__ == "__main__":
    main()
