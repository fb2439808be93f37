"""``cuda-pool bench``: what a pair of allocation and free costs on the host."""

import argparse
import os

from .. import _bench, _bench_count, _bench_table
from ..sizes import counted
from . import output

DRAWN = (*_bench.WORKLOADS, *_bench_table.THREADS)
TRACES = ("bert_serve_4stream", "llama_serve_growing_kv")
WHATS = ("pool", "malloc", "empty")
QUICK = {"pairs": 20_000, "rounds": 3}
QUICK_LIVE = 4              # of the workloads with ever more live blocks
HEADER = f"{'ns':>8}{'spread':>8}{'x malloc':>9}{'x empty':>9}{'instr.':>9}"     # 80 columns hold a row


def add_to(commands):
    """Add the subcommand to argparse's subparsers."""
    parser = commands.add_parser(
        "bench", help="time allocation and free on this host",
        description="Time pairs of an allocation and a free on this host: the pool, libc's malloc, and two empty "
                    "calls, in turn. Everything runs on the simulated device, and nobody touches the memory.")
    parser.add_argument("workloads", metavar="WORKLOAD", nargs="*", default=[],
                        help=f"of {', '.join(_names())} (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, fewer live blocks, no instructions counted")
    parser.add_argument("--traces", metavar="DIR", nargs="+", default=["examples"],
                        help="where recorded traces are (default: examples)")
    parser.add_argument("--tiers", action="store_true", help="time the tier that serves the workload alone, too")
    parser.add_argument("--debug", action="store_true", help="a pool with debug=True")
    parser.add_argument("--pairs", metavar="N", type=_count, help="in a round (default: 100000, with --quick 20000)")
    parser.add_argument("--rounds", metavar="N", type=_count, help="of each (default: 11, with --quick 3)")
    output.add_json(parser)
    parser.set_defaults(run=run)


def run(arguments):
    """Time everything; return the exit code."""
    files, skipped = _works(arguments)
    settings = {"debug": True} if arguments.debug else {}
    jobs = {name: _whats(name, arguments.tiers) for name in files}
    counts, counter, not_counted = _count_instructions(files, jobs, settings, arguments.quick)
    rows = _time_all(files, jobs, counts, settings, arguments)
    values = {"device": "sim", "pairs": _pairs(arguments), "rounds": _rounds(arguments), "counter": counter,
              "not_counted": not_counted, "live_ratio": _live_ratio(rows), "skipped": skipped,
              "rows": [row.as_dict() for row in rows]}
    output.finish(arguments, values, _summary(values))
    return 0


def _names():
    return [*DRAWN, *TRACES, *_bench_table.LIVE, _bench_table.CALLS]


def _works(arguments):
    """Return the workloads as names of `_bench_table.make_work`, by what rows call them, and what is skipped."""
    unknown = [name for name in arguments.workloads if name not in _names()]
    if unknown:
        raise ValueError(f"no workload is named {unknown[0]!r}: expected some of {', '.join(_names())}")
    names = arguments.workloads or [name for name in _names() if not arguments.quick or not _is_long(name)]
    files = {name: _find_trace(name, arguments.traces) if name in TRACES else name for name in dict.fromkeys(names)}
    skipped = [{"workload": name, "reason": f"no {name}.csv.gz in {', '.join(arguments.traces)}: name its folder with "
                                            "--traces"} for name, file in files.items() if file is None]
    found = {name: file for name, file in files.items() if file is not None}
    if not found:           # only recorded traces were asked for: there is nothing to time
        raise ValueError("; ".join(f"{each['workload']}: {each['reason']}" for each in skipped))
    return found, skipped


def _is_long(name):
    return name in _bench_table.LIVE and _bench_table.LIVE[name][2] > 10 ** QUICK_LIVE


def _find_trace(name, folders):
    paths = [os.path.join(folder, f"{name}.csv.gz") for folder in folders]
    return next(filter(os.path.exists, paths), None)


def _whats(name, tiers):
    if name == _bench_table.CALLS:
        return list(_bench.CALLS)
    if tiers and name in _bench_table.TIERS:
        return [WHATS[0], _bench_table.TIERS[name], *WHATS[1:]]
    return list(WHATS)


def _pairs(arguments):
    return arguments.pairs or (QUICK["pairs"] if arguments.quick else _bench_table.PAIRS)


def _rounds(arguments):
    return arguments.rounds or (QUICK["rounds"] if arguments.quick else _bench.ROUNDS)


def _count_instructions(files, jobs, settings, quick):
    """Return the counts by (file, what), by which counter, and why there is none."""
    if quick:
        return {}, None, "not with --quick"
    counter, reason = _bench_count.find_counter()
    if counter is None:
        return {}, None, reason
    todo = [(files[name], what) for name, whats in jobs.items() if name not in _bench_table.THREADS for what in whats]
    try:
        with output.progress("count instructions"):
            return _bench_count.count(todo, counter, settings), counter, None
    except RuntimeError as error:
        return {}, None, str(error)


def _time_all(files, jobs, counts, settings, arguments):
    rows = []
    with output.progress("bench") as report:
        for done, (name, file) in enumerate(files.items()):
            if report:
                report(done, len(files))
            runs = _bench_table.make_runs(file, jobs[name], _pairs(arguments), **settings)
            counted = {what: counts[file, what] for what in jobs[name] if (file, what) in counts}
            rows += _bench_table.time_workload(file, runs, _rounds(arguments), counted, name)
    return rows


def _live_ratio(rows):
    """Return the pool's most instructions for a pair over its least, as live blocks become more."""
    counted = [row.instructions for row in rows
               if row.workload in _bench_table.LIVE and row.what == WHATS[0] and row.instructions is not None]
    return max(counted) / min(counted) if len(counted) > 1 else None


def _summary(values):
    summary = output.Summary(f"nanoseconds per pair, median of {counted(values['rounds'], 'round')}, on the simulated "
                             "device (no GPU involved)")
    summary.add("", HEADER)
    for row in values["rows"]:
        summary.add(f"{row['workload']} {row['what']}", _text(row, values["counter"]))
    if values["counter"] is None:
        summary.remarks.append(f"Instructions were not counted: {values['not_counted']}.")
    elif any(row["workload"] in _bench_table.THREADS for row in values["rows"]):
        summary.remarks.append("Instructions of two threads are not counted.")
    if values["live_ratio"] is not None:
        summary.remarks.append(f"Instructions with ever more live blocks: the most are {values['live_ratio']:.2f} "
                               "times the least.")
    summary.remarks += [f"{skipped['workload']}: skipped, {skipped['reason']}" for skipped in values["skipped"]]
    return summary


def _text(row, counter):
    malloc = "-" if row["ratio_to_malloc"] is None else f"{row['ratio_to_malloc']:.3f}"
    counted = "-" if row["instructions"] is None else f"{row['instructions']:.1f}"
    return f"{row['ns']:>8.1f}{row['spread']:>8.1f}{malloc:>9}{row['ratio_to_empty']:>9.2f}{counted:>9}"


def _count(text):
    if text.isascii() and text.isdecimal() and 0 < int(text[:10]) <= 100_000_000:
        return int(text[:10])
    raise argparse.ArgumentTypeError(f"{text!r} is no such number: expected an integer from 1 to 100000000")
