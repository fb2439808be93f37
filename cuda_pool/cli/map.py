"""``cuda-pool map``: draw a pool's memory."""

import argparse
import os

from .._source import is_json
from ..errors import SnapshotError
from ..map import Recording, figures_of, picture_of_snapshot, write_map
from ..replay import replay
from ..sizes import counted, format_size
from ..snapshot import Snapshot
from . import output

PEAK, END = "peak", "end"
# Options that a snapshot has no use for, and their defaults.
OF_A_TRACE = {**dict.fromkeys(("at", "trace_device", "capacity", "reuse", "seed", "slab_max", "mid_max", "min_block")),
              "lag": 0, "backing": "malloc", "growth": "static"}
MOMENTS = {PEAK: ", the peak of live bytes", END: ", the end of the trace", "event": "", "failure": ", where it failed"}


def add_to(commands):
    """Add the subcommand to argparse's subparsers."""
    parser = commands.add_parser(
        "map", help="draw a pool's memory",
        description="Draw a pool's memory, as SVG or as an HTML page that needs nothing else: from a snapshot that "
                    "Pool.snapshot().save() wrote, or at a moment of a trace, which is replayed up to there.")
    parser.add_argument("snapshot", metavar="SNAPSHOT", nargs="?", help="JSON, plain or gzip")
    parser.add_argument("--trace", metavar="TRACE", help=output.TRACE_HELP)
    output.add_trace_device(parser)
    parser.add_argument("--at", metavar="MOMENT", type=_moment,
                        help="of the trace. peak: when most bytes are live (default); end; or a number of events. "
                             "Where an allocation fails, the map shows that moment")
    parser.add_argument("--out", metavar="FILE", type=output.map_target,
                        help="where the map goes; .svg or .html (default: an HTML page in this folder, with the name "
                             "of what it shows)")
    output.add_by(parser)
    parser.add_argument("--capacity", metavar="SIZE", type=output.capacity,
                        help="of the trace's pool; 1.25 times the trace's peak by default, twice for one that grows")
    parser.add_argument("--backing", default="malloc", help="of the trace's pool: malloc (default) or virtual")
    parser.add_argument("--growth", default="static",
                        help="of the trace's pool: static (default), dynamic or predictive")
    output.add_streams(parser)
    output.add_settings(parser)
    output.add_json(parser)
    parser.set_defaults(run=run)


def run(arguments):
    """Draw the map; return the exit code."""
    if (arguments.snapshot is None) == (arguments.trace is None):
        raise ValueError("a map shows a snapshot or, with --trace, a trace: expected one of the two")
    if arguments.trace is None:
        _refuse_what_is_of_a_trace(arguments)
    out = arguments.out or output.map_target(_default_name(arguments.snapshot or arguments.trace))
    picture = _of_snapshot(arguments) if arguments.trace is None else _of_trace(arguments)
    with output.progress("draw"):
        write_map(out, picture, arguments.by)
    values = {"snapshot": arguments.snapshot, "trace": arguments.trace, "map": out, "at": picture.now,
              "moment": _moment_name(arguments, picture),
              "backing": picture.backing, "capacity": picture.capacity, "segments": len(picture.strips),
              **figures_of(picture), "largest_request": picture.largest,
              "failed_row": picture.failure and picture.failure["row"]}
    output.finish(arguments, values, _summary(values))
    return 1 if picture.failure else 0


def _refuse_what_is_of_a_trace(arguments):
    for option, default in OF_A_TRACE.items():
        if getattr(arguments, option) != default:
            raise ValueError(f"--{option.replace('_', '-')} is for a trace, and the memory of a snapshot is as it is: "
                             "expected --trace TRACE with it")


def _default_name(source):
    """Return the name of a page beside which no other file of that kind is likely: that of what it shows."""
    return f"{os.path.basename(os.fspath(source)).split('.')[0] or 'map'}.html"


def _of_snapshot(arguments):
    try:
        snapshot = Snapshot.load(arguments.snapshot)
    except SnapshotError as error:
        if os.path.isfile(arguments.snapshot) and not is_json(arguments.snapshot):      # a pipe is read once only
            raise SnapshotError(error.path, f"{error.reason}; a trace is drawn with --trace TRACE") from None
        raise
    return picture_of_snapshot(snapshot, os.path.basename(arguments.snapshot))


def _of_trace(arguments):
    trace = output.read_trace(arguments.trace, arguments.trace_device)
    recording = _recorded(trace, arguments, arguments.at if isinstance(arguments.at, int) else None)
    if _wants_peak(arguments) and not recording.failure:
        recording = _recorded(trace, arguments, recording.peak())       # known now that all of it went through
    row = f", row {int(trace.row[recording.moment - 1])}" if recording.moment else ""
    at_peak = ", at the peak of live bytes" if _wants_peak(arguments) and not recording.failure else ""
    title = f"{os.path.basename(arguments.trace)} after {counted(recording.moment, 'event')}{row}{at_peak}"
    return picture_of_snapshot(recording.snapshot, title, failure=recording.failure, now=recording.moment)


def _recorded(trace, arguments, until):
    recording = Recording(until)
    with output.progress("map") as report:
        replay(trace, capacity=arguments.capacity, backing=arguments.backing, growth=arguments.growth,
               reuse=arguments.reuse, lag=arguments.lag, seed=arguments.seed, recording=recording, progress=report,
               **output.settings_of(arguments))
    return recording


def _wants_peak(arguments):
    return arguments.at in (None, PEAK)


def _moment_name(arguments, picture):
    """Return which moment of a trace is shown, and None for a snapshot."""
    if arguments.trace is None:
        return None
    if picture.failure:
        return "failure"
    return PEAK if _wants_peak(arguments) else END if arguments.at == END else "event"


def _summary(values):
    failed = values["failed_row"] is not None
    summary = output.Summary(f"{values['snapshot'] or values['trace']}: "
                             + (f"FAILED at row {values['failed_row']}" if failed else "drawn"))
    if values["trace"]:
        summary.add("device", "simulated (no GPU involved)")
        summary.add("moment", f"after {counted(values['at'], 'event')}{MOMENTS[values['moment']]}")
    summary.add("map", f"written to {values['map']}")
    summary.add("segments", values["segments"])
    summary.add("blocks", values["blocks"])
    for key in ("live", "used", "reserved", "free", "largest_free", "fragmented"):
        summary.add(key.replace("_", " "), output.size_text(values[key]))
    if values["largest_request"]:
        summary.remarks.append(f"fragmented: free bytes that a request of {format_size(values['largest_request'])}, "
                               "the largest one, cannot use.")
    if values["trace"] and not (values["blocks"] or failed):
        summary.remarks.append(_nothing_live(values))
    return summary


def _nothing_live(values):
    if values["moment"] == PEAK:
        return "Nothing is live at any moment of the trace."
    return (f"Nothing is live after {counted(values['at'], 'event')}: --at peak draws the moment with most live bytes, "
            "and `cuda-pool replay TRACE --map FILE` all moments.")


def _moment(text):
    if text in (PEAK, END):
        return text
    if text.isascii() and text.isdecimal():
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no moment: expected peak, end, or a number of events from 0 on")
