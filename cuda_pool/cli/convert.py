"""``cuda-pool convert``: write a trace in another format."""

import os
import shutil
import sys
import tempfile

from .._atomic import require_writable
from ..convert import FORMATS, convert, format_of
from ..sizes import counted
from . import output


def add_to(commands):
    """Add the subcommand to argparse's subparsers."""
    parser = commands.add_parser(
        "convert", help="write a trace in another format",
        description="Convert between trace CSV, memory snapshots of PyTorch, and logs of RMM; say what the format of "
                    "OUT does not hold.")
    output.add_trace(parser)
    parser.add_argument("out", metavar="OUT", help="by its suffix: .csv, .csv.gz, .pickle, .pkl, .log (RMM) or "
                                                   ".log.gz; - is stdout, with --to")
    parser.add_argument("--to", choices=FORMATS, help="format of OUT, whatever its suffix")
    output.add_json(parser)
    parser.set_defaults(run=run)


def run(arguments):
    """Convert the trace; return the exit code."""
    to_stdout = arguments.out == "-" or output.is_stdout(arguments.out)
    to = arguments.to or _format_of(arguments.out)
    _check_out(arguments, to_stdout)
    trace = output.read_trace(arguments.trace, arguments.trace_device)
    with output.progress("write") as report:
        lost = (_to_stdout if to_stdout else convert)(trace, arguments.out, to, progress=report)
    values = {"trace": arguments.trace, "out": arguments.out, **output.origin_of(trace), "to": to,
              "events": trace.events, "blocks": trace.blocks, "peak_live": trace.peak_live,
              "orphan_frees": trace.orphan_frees, "preexisting": trace.preexisting, "lost": lost}
    if to_stdout:
        output.write_json(arguments, values)
        output.remark(values["notes"] + lost)
    else:
        output.finish(arguments, values, _summary(values))
    return 0


def _format_of(out):
    if out == "-":
        raise ValueError(f"stdout has no suffix: expected --to with one of {', '.join(FORMATS)}")
    return format_of(out)


def _to_stdout(trace, out, to, progress):
    """Write the trace to stdout once it is whole, and nothing else; return what the format does not hold."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, os.path.basename(out))
        lost = convert(trace, path, to, progress=progress)
        with open(path, "rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
    return lost


def _check_out(arguments, to_stdout):
    """Refuse, before the work is done, a place that cannot be written, or two results on stdout."""
    if to_stdout:
        if sys.stdout is None or arguments.json == "-":
            raise ValueError(f"{arguments.out}: stdout is {'closed' if sys.stdout is None else 'for --json'}: expected "
                             "a file for one of them")
        return
    require_writable(arguments.out)


def _summary(values):
    summary = output.Summary(f"{values['trace']} ({values['format']}): written to {values['out']} ({values['to']})")
    summary.add("events", values["events"])
    summary.add("blocks", values["blocks"])
    if values["preexisting"]:
        summary.add("preexisting", f"{counted(values['preexisting'], 'block')} live before the first event")
    summary.add("peak live", output.size_text(values["peak_live"]))
    summary.remarks += values["notes"] + values["lost"]
    return summary
