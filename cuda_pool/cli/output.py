"""What the subcommands share: arguments, progress, summaries and JSON."""

import argparse
import contextlib
import json
import os
import sys
from dataclasses import dataclass, field

from .._atomic import open_atomically, require_writable
from ..map import MODES, require_map_name
from ..settings import require_capacity
from ..sizes import format_size, parse_size
from ..trace import Trace

try:
    import rich
except ImportError:
    rich = None

TRACE_HELP = "CSV with the header event,id,size,stream, a memory snapshot of PyTorch, or a log of RMM; plain or gzip"
NO_RICH = "note: for tables and a progress bar install the extra `cli`: pip install 'cuda-pool[cli]'"


@dataclass
class Summary:
    """What a command has to say: a title, rows of a label and a text, remarks below them, and then whatever has a text
    of its own and knows how rich shows it.
    """

    title: str
    rows: list = field(default_factory=list)
    remarks: list = field(default_factory=list)
    parts: list = field(default_factory=list)

    def add(self, label, text):
        """Add a row."""
        self.rows.append((label, str(text)))


def add_trace(parser, **options):
    """Add the trace, and which device of it, to a parser."""
    parser.add_argument("trace", metavar="TRACE", help=TRACE_HELP, **options)
    add_trace_device(parser)


def add_trace_device(parser):
    """Add which device of the trace to a parser."""
    parser.add_argument("--trace-device", metavar="N", type=_device_number,
                        help="device of a snapshot (default: the one with most entries)")


def add_json(parser):
    """Add ``--json`` to a parser."""
    parser.add_argument("--json", metavar="FILE", type=_json_target,
                        help="write the result as JSON; - writes it, and nothing else, to stdout")


def add_settings(parser):
    """Add the settings of a pool to a parser."""
    for name, what in (("slab-max", "largest request of the slab tier"), ("mid-max", "largest request of the mid tier"),
                       ("min-block", "smallest block of the buddy tier")):
        parser.add_argument(f"--{name}", metavar="SIZE", type=size, help=what)


def add_streams(parser):
    """Add what is about streams to a parser."""
    add_lag(parser, "how many events the simulated device is behind the host; with 0 (default) all work is done at "
                    "once, on one stream")
    parser.add_argument("--reuse", choices=("wait", "query", "never"),
                        help="when one stream may take memory that another has freed (default: the pool's)")
    parser.add_argument("--seed", metavar="N", type=_integer,
                        help="of the simulated device: with a lag, work is up to 128 events later still")


def add_lag(parser, text):
    """Add ``--lag`` to a parser; whether the number is accepted is the replay's to say."""
    parser.add_argument("--lag", metavar="N", type=_integer, default=0, help=text)


def add_by(parser):
    """Add what the colours of a map stand for to a parser."""
    parser.add_argument("--by", choices=MODES, default="tier",
                        help="what the colours stand for at first: tier (default), state, stream or age")


def map_target(text):
    """Read the name of a map's file, for argparse; one that cannot be written is refused before the work is done."""
    try:
        require_map_name(text)
        require_writable(text)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written ({reason}): expected a file whose name ends in "
                                         ".svg or .html") from None
    return text


def size(text):
    """Read a size argument, for argparse."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def capacity(text):
    """Read the capacity of a pool, for argparse; what is refused is shown as it was written."""
    nbytes = size(text)
    try:
        require_capacity(nbytes, text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return nbytes


def settings_of(arguments):
    """Return the settings that were given, as a dict."""
    given = {name: getattr(arguments, name) for name in ("slab_max", "mid_max", "min_block")}
    return {name: size for name, size in given.items() if size is not None}


def check_target(arguments):
    """Refuse, before the work is done, a result without a place, or in the place of what is read or of another."""
    if arguments.json in (None, "-") and sys.stdout is None:
        raise ValueError("stdout is closed, and the result goes there: open it, or name a file with --json")
    taken = set()
    for target in _targets(arguments):
        for kind, source in _sources(arguments):
            if is_same_file(source, target):
                raise ValueError(f"{target}: that is the {kind}, which the result would replace: expected another file")
        place = os.path.realpath(target)
        if place in taken and (os.path.isfile(place) or not os.path.exists(place)):     # and not /dev/null
            raise ValueError(f"{target}: two results would go there: expected another file for one of them")
        taken.add(place)


def _targets(arguments):
    """Return the files that are written."""
    given = [getattr(arguments, option, None) for option in ("json", "map", "out", "save_profile")]
    return [target for target in given if target not in (None, "-")]


def _sources(arguments):
    """Return what is read, as pairs of what it is and a file's name."""
    given = [(kind, getattr(arguments, kind, None)) for kind in ("trace", "snapshot")]
    return [(kind, name) for kind, names in given if names is not None
            for name in ([names] if isinstance(names, str) else names)]


def is_same_file(one, other):
    """Return whether two names are of one file that is there."""
    return os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)


def origin_of(trace):
    """Return what is known of a trace's file, as JSON keys."""
    return {"format": trace.format, "trace_device": trace.gpu, "notes": list(trace.notes)}


def read_trace(path, device=None):
    """Read a trace of any format; what is wrong with it names the file as well as the place."""
    with progress("read"):
        try:
            return Trace.read(path, device=device)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def finish(arguments, result, summary):
    """Write the result where ``--json`` says, and the summary to stdout unless JSON goes there.

    Parameters
    ----------
    arguments : argparse.Namespace
    result : dict
        Plain values.
    summary : Summary
    """
    if arguments.json == "-":
        sys.stdout.write(_json_text(result))
        return
    write_json(arguments, result)
    _show(summary)


def write_json(arguments, result):
    """Write the result into the file that ``--json`` names, if there is one."""
    if arguments.json is not None:
        with open_atomically(arguments.json) as file:
            file.write(_json_text(result).encode())


def remark(texts):
    """Say something on stderr, since stdout is for something else."""
    for text in texts:
        print(f"cuda-pool: {text}", file=sys.stderr)


def _json_text(result):
    return json.dumps(result, indent=2, allow_nan=False) + "\n"


@contextlib.contextmanager
def progress(label):
    """Show a progress bar on stderr while the block runs, if that is a terminal and rich is installed.

    Yields
    ------
    callable or None
        To be called as ``report(done, total)``; None when nothing is shown.
    """
    if rich is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def add_findings(summary, values):
    """Add what the simulated device found fault with, and say whose fault that is."""
    if not is_faulty(values):
        return
    summary.add("races", values["races"])
    summary.add("misuses", values["misuses"])
    summary.remarks += values["findings"]
    summary.remarks.append("The pool handed out memory that was still in use: that is a defect of cuda_pool; "
                           "please report it with the trace.")


def is_faulty(values):
    """Return whether the simulated device found fault with the pool."""
    return values["races"] + values["misuses"] > 0


def size_text(nbytes):
    """Write a size for reading, such as ``"1.50 GiB (1610612736 bytes)"``."""
    return f"{nbytes} B" if nbytes < 1024 else f"{format_size(nbytes)} ({nbytes} bytes)"


def settings_text(settings):
    """Write the settings of a pool for reading."""
    return ", ".join(f"{name} {format_size(value)}" for name, value in settings.items())


def ratio_text(ratio):
    """Write a ratio for reading; None is one that does not exist."""
    return "-" if ratio is None else f"{ratio:.4f}"


def _integer(text):
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:100]!r} is no such number: expected an integer") from None


def _device_number(text):
    if text.isascii() and text.isdecimal():
        return int(text[:9])
    raise argparse.ArgumentTypeError(f"{text!r} is no number of a device: expected an integer from 0")


def _json_target(text):
    """Refuse a file that cannot be written before the work is done, not after it."""
    if not text:
        raise argparse.ArgumentTypeError("'' is no name of a file: expected one, or -")
    if text == "-" or is_stdout(text):
        return "-"
    try:
        require_writable(text)
    except (OSError, ValueError) as error:      # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise argparse.ArgumentTypeError(
            f"{text!r} cannot be written ({reason}): expected a file that can, or -") from None
    return text


def is_stdout(path):
    """Return whether `path` is what stdout writes to, such as /dev/stdout: a summary there would spoil the JSON."""
    try:
        return sys.stdout is not None and os.path.samestat(os.stat(path), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):       # no such file, or a stdout that is no file
        return False


def _show(summary):
    if sys.stdout is None:      # closed; the result is in a file
        return
    if rich is not None and sys.stdout.isatty():
        _show_rich(summary)
        return
    width = max((len(label) for label, _ in summary.rows), default=0)
    print(summary.title)
    for label, text in summary.rows:
        print(f"  {label:<{width}}  {text}")
    for remark in summary.remarks:
        print(remark)
    for part in summary.parts:
        print(f"\n{part}")
    if rich is None and sys.stdout.isatty():
        print(NO_RICH, file=sys.stderr)


def _show_rich(summary):
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(summary.title), title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for label, text in summary.rows:
        table.add_row(Text(label), Text(text))
    console = Console()
    console.print(table)
    for remark in summary.remarks:
        console.print(Text(remark))
    for part in summary.parts:
        console.print()
        console.print(part)
