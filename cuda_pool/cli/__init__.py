"""The command line: ``cuda-pool`` and ``python -m cuda_pool``."""

import argparse
import contextlib
import os
import sys

from .. import __version__
from ..errors import CudaError, ProfileError, SnapshotError
from . import bench, compare, convert, fit, info, map, output, replay

__all__ = ["main"]

EXIT_CODES = """\
exit codes: 0 all went well; 1 an allocation of the trace failed, and its row is named; 2 bad arguments or input,
or too little memory on the host or the device"""
NO_TEXT = "the host has too little memory"     # the interpreter's own MemoryError says nothing


def main(argv=None):
    """Run the command line.

    Parameters
    ----------
    argv : list of str, optional
        Arguments without the program's name; those of the process by default.

    Returns
    -------
    int
        Exit code: 0; 1 when an allocation of a trace failed; 2 for bad arguments or input, or when the host or the
        device has too little memory, with a message on stderr; 130 when interrupted; 141 when whoever reads the
        output went away.
    """
    if sys.stderr is None:              # closed; a message would go to stdout otherwise, or nowhere with a traceback
        with open(os.devnull, "w") as sink, contextlib.redirect_stderr(sink):
            return main(argv)
    try:
        return _run(argv)
    except SystemExit as request:       # argparse ends like this, for --help too
        return request.code
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except BrokenPipeError:
        return _mute()
    except (OSError, ValueError, CudaError, MemoryError, ImportError) as error:
        return _complain(_text(error), 2)


def _run(argv):
    arguments = _parser().parse_args(argv)
    output.check_target(arguments)
    code = arguments.run(arguments)
    if sys.stdout is not None:
        sys.stdout.flush()              # a reader that went away shows here, not at the interpreter's exit
    return code


def _parser():
    parser = argparse.ArgumentParser(
        prog="cuda-pool", epilog=EXIT_CODES,
        description="Replay, compare and convert allocation traces of a GPU memory pool, draw its memory, and time it.")
    parser.add_argument("--version", action="version", version=f"cuda-pool {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (replay, fit, compare, convert, map, bench, info):
        command.add_to(commands)
    return parser


def _text(error):
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fspath(error.filename)}: {error.strerror}"
    if isinstance(error, (ProfileError, SnapshotError)):        # as a trace's, without quotes
        return f"{os.fspath(error.path)}: {error.reason}"
    return str(error) or NO_TEXT


def _complain(message, code):
    print(f"cuda-pool: {message}", file=sys.stderr)
    return code


def _mute():
    # What is still buffered has no reader; without this the interpreter would complain about it at its exit.
    if sys.stdout is None:
        return 141
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)
    return 141
