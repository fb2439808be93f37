"""``cuda-pool info``: say what there is to work with."""

from .. import __version__, _cuda
from .._api import SUPPORTED
from . import output


def add_to(commands):
    """Add the subcommand to argparse's subparsers."""
    parser = commands.add_parser("info", help="say which device and driver there are, and what is supported",
                                 description="Say which device and driver there are, and what is supported.")
    output.add_json(parser)
    parser.set_defaults(run=run)


def run(arguments):
    """Describe the devices; return the exit code, which is 0 without a device too."""
    values = {"version": __version__, **_cuda.info(), "backing": list(SUPPORTED["backing"]),
              "growth": list(SUPPORTED["growth"])}
    output.finish(arguments, values, _summary(values))
    return 0


def _summary(values):
    summary = output.Summary(f"cuda-pool {values['version']}")
    summary.add("cuda-bindings", values["bindings"] or "not installed")
    summary.add("driver", _version(values["driver_version"]))
    summary.add("runtime", _version(values["runtime_version"]))
    for device in values["devices"]:
        summary.add(f"device {device['ordinal']}", f"{device['name']}: {output.size_text(device['free'])} free "
                                                   f"of {output.size_text(device['total'])}")
    if not values["devices"]:
        summary.add("device", "no GPU; replay and fit run on the simulated device")
    if values["error"]:
        summary.add("reason", values["error"])
    summary.add("backing", ", ".join(values["backing"]))
    summary.add("growth", ", ".join(values["growth"]))
    if values["missing"]:
        summary.add("missing symbols", ", ".join(values["missing"]))
    return summary


def _version(number):
    return f"CUDA {number // 1000}.{number % 1000 // 10}" if number else "none"
