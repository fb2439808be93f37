"""Sweep the settings of the pool over recorded traces and print a table, from which the defaults are chosen.

    python tools/sweep.py [FOLDER] [--out FILE] [--jobs N]

Each figure of a trace is the smallest capacity that serves it, divided by the trace's peak of live bytes: 1.000 is the
bound. Everything runs on the simulated device.
"""

import argparse
import itertools
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

from cuda_pool import settings
from cuda_pool._atomic import open_atomically
from cuda_pool.replay import fit, replay
from cuda_pool.sizes import format_size
from cuda_pool.trace import Trace

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT.parent / "shared" / "traces"
EXAMPLES = ROOT / "examples"

KIB, MIB = 1 << 10, 1 << 20
SLAB_MAX = (0, 1 * KIB, 4 * KIB, 16 * KIB, 64 * KIB)
MID_MAX = (1 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, 512 * MIB, 1024 * MIB)
MIN_BLOCK = (4 * KIB, 64 * KIB, 256 * KIB)
TEXTBOOK_MID_MAX = 1 * MIB
TIMED_ROUNDS = 3
AMPLE = 4               # times the peak: enough for every choice, so that what is timed never fails


@dataclass(frozen=True, order=True)
class Choice:
    """One choice of settings, in bytes."""

    slab_max: int
    mid_max: int
    min_block: int

    @property
    def remark(self):
        """What the choice is known as, or an empty string."""
        if self == DEFAULTS:
            return "default"
        return "textbook" if self == TEXTBOOK else ""

    def as_dict(self):
        """Return what `fit` and `replay` take."""
        return {"slab_max": self.slab_max, "mid_max": self.mid_max, "min_block": self.min_block}


DEFAULTS = Choice(settings.SLAB_MAX, settings.MID_MAX, settings.MIN_BLOCK)
TEXTBOOK = Choice(settings.SLAB_MAX, TEXTBOOK_MID_MAX, settings.MIN_BLOCK)


def main():
    arguments = parse_arguments()
    paths = sorted(trace_folder(arguments.folder).glob("*.csv.gz"))
    if not paths:
        sys.exit(f"no *.csv.gz in {arguments.folder or EXAMPLES}")
    choices = sorted({Choice(*values) for values in itertools.product(SLAB_MAX, MID_MAX, MIN_BLOCK)}
                     | {DEFAULTS, TEXTBOOK})
    table = "\n".join(table_lines(paths, choices, ratios(paths, choices, arguments.jobs), times(paths, choices))) + "\n"
    print(table, end="")
    if arguments.out:
        with open_atomically(arguments.out) as file:
            file.write(table.encode())


def parse_arguments():
    parser = argparse.ArgumentParser(description="Sweep the settings of the pool over recorded traces.")
    parser.add_argument("folder", nargs="?", type=Path, help="folder of *.csv.gz (default: ../shared/traces)")
    parser.add_argument("--out", metavar="FILE", help="write the table there too")
    parser.add_argument("--jobs", metavar="N", type=int, default=2, help="processes (default: 2)")
    return parser.parse_args()


def trace_folder(folder):
    if folder is not None or TRACES.is_dir():
        return folder or TRACES
    print("there is no ../shared/traces: falling back to examples/", file=sys.stderr)
    return EXAMPLES


def ratios(paths, choices, jobs):
    """Return the capacity that each choice needs on each trace, as a multiple of the peak: {choice: [ratio, ...]}."""
    tasks = list(itertools.product(paths, choices))
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        found = dict(zip(tasks, pool.map(ratio, *zip(*tasks), chunksize=len(choices) // 4 or 1)))
    return {choice: [found[path, choice] for path in paths] for choice in choices}


def ratio(path, choice):
    return fit(load(path), settings=choice.as_dict(), reasons=False).ratio


def times(paths, choices):
    """Return nanoseconds per event, the median over the traces, timed with nothing else running: {choice: ns}."""
    return {choice: statistics.median(time_of(path, choice) for path in paths) for choice in choices}


def time_of(path, choice):
    trace = load(path)
    capacity = AMPLE * trace.peak_live
    return replay(trace, capacity=capacity, repeats=TIMED_ROUNDS, **choice.as_dict()).ns_per_event


@lru_cache(maxsize=None)
def load(path):
    return Trace.read(path)


def table_lines(paths, choices, ratios_of, ns_of):
    yield f"{len(paths)} traces, {len(choices)} choices of settings, best worst case first."
    yield f"min_capacity / peak live on each trace; ns per event is the median over the traces at {AMPLE} x peak live."
    yield ""
    names = [path.name.removesuffix(".csv.gz") for path in paths]
    header = ["slab_max", "mid_max", "min_block", "worst", "median", "ns/event", *names, ""]
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for choice in sorted(choices, key=lambda each: (max(ratios_of[each]), statistics.median(ratios_of[each]))):
        each = ratios_of[choice]
        figures = [max(each), statistics.median(each)]
        cells = [*map(format_size, choice.as_dict().values()), *(f"{figure:.3f}" for figure in figures),
                 f"{ns_of[choice]:.1f}", *(f"{figure:.3f}" for figure in each), choice.remark]
        yield "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
