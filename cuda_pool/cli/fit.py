"""``cuda-pool fit``: find the smallest capacity that serves a trace."""

from ..replay import fit
from ..report import Points
from ..sizes import counted
from . import output


def add_to(commands):
    """Add the subcommand to argparse's subparsers."""
    parser = commands.add_parser(
        "fit", help="find the smallest capacity that serves a trace",
        description="Find the smallest capacity that serves a trace, and the settings that need least. "
                    "Everything runs on the simulated device.")
    output.add_trace(parser)
    parser.add_argument("--backing", default="malloc", help="where memory comes from: malloc (default) or virtual")
    parser.add_argument("--growth", default="static", help="static (default), or dynamic: the capacity is its limit")
    output.add_streams(parser)
    parser.add_argument("--no-search", action="store_true", help="do not look for better settings than the defaults")
    output.add_settings(parser)
    output.add_json(parser)
    parser.set_defaults(run=run)


def run(arguments):
    """Fit the trace; return the exit code."""
    trace = output.read_trace(arguments.trace, arguments.trace_device)
    with output.progress("fit") as report:
        result = fit(trace, backing=arguments.backing, growth=arguments.growth, reuse=arguments.reuse,
                     lag=arguments.lag, seed=arguments.seed, settings=output.settings_of(arguments) or None,
                     search=not arguments.no_search, progress=report)
    values = {"trace": arguments.trace, **output.origin_of(trace), **result.as_dict()}
    output.finish(arguments, values, _summary(values))
    return 1 if result.failed_row is not None or output.is_faulty(values) else 0


def _summary(values):
    summary = output.Summary(f"{values['trace']}: smallest capacity, on the simulated device (no GPU involved)")
    summary.add("events", values["events"])
    if values["lag"]:
        summary.add("lag", f"the device is {counted(values['lag'], 'event')} behind the host")
    summary.add("peak live", output.size_text(values["peak_live"]))
    if values["min_capacity"] is None:
        summary.add("capacity", "none found")
        summary.remarks.append(f"row {values['failed_row']}: failed with the largest capacity that was tried.")
    else:
        summary.add("capacity", output.size_text(values["min_capacity"]))
        summary.add("found to within", output.size_text(values["resolution"]))
        summary.add("ratio", f"{output.ratio_text(values['ratio'])} (capacity / peak live)")
        if values["lag"]:
            summary.add("waits", f"{values['cross_stream_waits']} between streams, {values['host_waits']} on the host")
    summary.add("settings", output.settings_text(values["settings"]))
    if values["best"]:
        _add_best(summary, values)
    summary.remarks += values["notes"]
    output.add_findings(summary, values)
    if values["reasons"]:
        summary.parts.append(Points("Why", values["reasons"]))
    return summary


def _add_best(summary, values):
    best = values["best"]
    summary.add(f"least of {values['tried']}", output.size_text(best["min_capacity"]))
    summary.add("its ratio", output.ratio_text(best["ratio"]))
    summary.add("its settings", output.settings_text(best["settings"]))
