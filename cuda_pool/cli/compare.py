"""``cuda-pool compare``: the pool beside what other allocators would reserve."""

import os

from ..compare import compare
from ..sizes import counted
from . import output


def add_to(commands):
    """Add the subcommand to argparse's subparsers."""
    parser = commands.add_parser(
        "compare", help="compare the pool with other allocators",
        description="Say what this pool needs for traces, and what PyTorch, CuPy, a coalescing best fit as in RMM and "
                    "a power-of-two buddy system would reserve by their published rules. Everything is simulated.")
    output.add_trace(parser, nargs="+")
    output.add_lag(parser, "how many events the simulated device is behind the host, for this pool")
    output.add_json(parser)
    parser.set_defaults(run=run)


def run(arguments):
    """Compare; return the exit code."""
    traces = [output.read_trace(name, arguments.trace_device) for name in arguments.trace]  # a bad one shows at once
    found = []
    for name, trace in zip(arguments.trace, traces):
        with output.progress(os.path.basename(name)) as report:
            found.append([row.as_dict() for row in compare(trace, lag=arguments.lag, progress=report)])
    about = [{"trace": name, **output.origin_of(trace), "events": trace.events, "streams": trace.streams,
              "peak_live": trace.peak_live} for name, trace in zip(arguments.trace, traces)]
    rows = [{"trace": name, **row} for name, each in zip(arguments.trace, found) for row in each]
    values = {"lag": arguments.lag, "traces": about, "rows": rows}
    output.finish(arguments, values, _summary(arguments.lag, about, found))
    return 1 if any(row["peak_reserved"] is None for row in rows) else 0


def _summary(lag, about, found):
    behind = f", the device {counted(lag, 'event')} behind the host" if lag else ""
    summary = output.Summary(f"Peak reserved over peak live, and peak reserved; simulated (no GPU involved){behind}")
    for trace, rows in zip(about, found):
        for key in ("trace", "events", "streams"):
            summary.add(key, trace[key])
        summary.add("peak live", output.size_text(trace["peak_live"]))
        for row in rows:
            summary.add(f"  {row['policy']}", _text(row))
        summary.remarks += trace["notes"] if len(about) == 1 else [
            f"{trace['trace']}: {note}" for note in trace["notes"]]
    return summary


def _text(row):
    if row["peak_reserved"] is None:
        return f"FAILED at row {row['failed_row']}"
    return f"{output.ratio_text(row['ratio']):>8}  {output.size_text(row['peak_reserved'])}"
