"""``cuda-pool replay``: play a trace against a pool."""

import argparse
import contextlib
import os

from ..advice import try_advice
from ..map import Recording, picture_of_recording, write_map
from ..replay import replay, time_malloc
from ..sizes import counted
from . import output

TIMED_MIN = 1000        # events: the time of fewer is mostly that of the first calls


def add_to(commands):
    """Add the subcommand to argparse's subparsers."""
    parser = commands.add_parser(
        "replay", help="replay a trace against a pool",
        description="Replay a trace against a pool; report what the pool needed, and its speed beside libc's malloc.")
    output.add_trace(parser)
    parser.add_argument("--capacity", metavar="SIZE", type=output.capacity,
                        help="what the pool may hold; 1.25 times the trace's peak by default, twice for one that grows")
    parser.add_argument("--backing", default="malloc", help="where memory comes from: malloc (default) or virtual")
    parser.add_argument("--growth", help="static (default); dynamic: it begins with 2 MiB; or predictive, which is the "
                                         "default with --profile")
    parser.add_argument("--profile", metavar="FILE", help="what an earlier run needed: the pool begins with that")
    parser.add_argument("--headroom", metavar="SHARE", type=_share,
                        help="of the profile's peak, that is taken above it (default: 0.15)")
    parser.add_argument("--save-profile", metavar="FILE", help="write what the replay needed")
    parser.add_argument("--map", metavar="FILE", type=output.map_target,
                        help="draw the pool's memory: an HTML page with all moments, or an SVG image of the peak "
                             "or the failure")
    output.add_by(parser)
    output.add_streams(parser)
    parser.add_argument("--device", metavar="sim|N", type=_device, default="sim",
                        help="the simulated device (default) or a CUDA ordinal")
    parser.add_argument("--repeats", metavar="N", type=_repeats, default=1,
                        help="rounds; the fastest is timed (default: 1)")
    output.add_settings(parser)
    output.add_json(parser)
    parser.set_defaults(run=run)


def run(arguments):
    """Replay the trace; return the exit code."""
    trace = output.read_trace(arguments.trace, arguments.trace_device)
    device = None if arguments.device == "sim" else arguments.device
    growth = arguments.growth or ("static" if arguments.profile is None else "predictive")
    recording = None if arguments.map is None else Recording()
    with output.progress("replay") as report:
        result = replay(trace, capacity=arguments.capacity, device=device, backing=arguments.backing, growth=growth,
                        reuse=arguments.reuse, lag=arguments.lag, seed=arguments.seed, repeats=arguments.repeats,
                        profile=arguments.profile, headroom=arguments.headroom, save_profile=arguments.save_profile,
                        recording=recording, progress=report, **output.settings_of(arguments))
    if result.diagnosis is not None:
        with output.progress("advice") as report:
            result = try_advice(trace, result, settings=output.settings_of(arguments), profile=arguments.profile,
                                headroom=arguments.headroom, progress=report)
    if recording is not None:
        write_map(arguments.map, picture_of_recording(recording, os.path.basename(arguments.trace)), arguments.by)
    malloc_ns = _malloc_ns(trace, arguments) if result.ns_per_event and not result.lag else None
    values = {"trace": arguments.trace, **output.origin_of(trace), "profile": arguments.profile,
              "saved_profile": arguments.save_profile, "map": arguments.map, **result.as_dict(),
              "malloc_ns_per_event": malloc_ns,
              "ratio_to_malloc": result.ns_per_event / malloc_ns if malloc_ns else None}
    output.finish(arguments, values, _summary(values, arguments.capacity is None, result.diagnosis))
    return 1 if result.failed_row is not None or output.is_faulty(values) else 0


def _malloc_ns(trace, arguments):
    with output.progress("malloc") as report:
        return time_malloc(trace, repeats=arguments.repeats, progress=report)


def _summary(values, is_default, diagnosis):
    failed = values["failed_row"] is not None
    outcome = f"FAILED at row {values['failed_row']}" if failed else "replayed"
    summary = output.Summary(f"{values['trace']}: {outcome}")
    summary.add("device", "simulated (no GPU involved)" if values["simulated"] else values["device"])
    summary.add("events", values["events"])
    summary.add("streams", _streams_text(values))
    if values["orphan_frees"]:
        summary.add("orphan frees", f"{values['orphan_frees']} (frees without an allocation in the trace)")
    if values["preexisting"]:
        summary.add("preexisting", f"{counted(values['preexisting'], 'block')} live before the first event, "
                                   f"{output.size_text(values['preexisting_bytes'])}")
    summary.add("peak live", output.size_text(values["peak_live"]))
    summary.add("capacity", output.size_text(values["capacity"]) + (
        f", by default {_rule(values)}" if is_default else ""))
    if values["saved_profile"] is not None:
        summary.add("profile", f"written to {values['saved_profile']}")
    if values["map"] is not None:
        summary.add("map", f"written to {values['map']}")
    _add_outcome(summary, values, failed)
    if values["lag"]:
        summary.add("waits", f"{values['cross_stream_waits']} between streams, {values['host_waits']} on the host")
    summary.add("settings", output.settings_text(values["settings"]))
    summary.remarks += values["notes"]
    output.add_findings(summary, values)
    if diagnosis is not None:
        summary.parts.append(diagnosis)
    return summary


def _streams_text(values):
    if values["lag"]:
        return f"{values['streams']}, the device {counted(values['lag'], 'event')} behind the host"
    return f"{values['streams']}; without --lag all events are played in program order, not stream by stream"


def _rule(values):
    factor = 1.25 if values["growth"] == "static" else 2
    if values["profile"] is not None and values["capacity"] > values["peak_live"] * factor + (2 << 20):
        return f"what {values['profile']} needs"
    return f"{factor} x peak live" if values["capacity"] >= values["peak_live"] * factor else (
        "the most that a pool can hold")


def _add_outcome(summary, values, failed):
    summary.add("peak used", output.size_text(values["peak_used"]))
    summary.add("peak reserved", output.size_text(values["peak_reserved"]))
    if failed:
        _add_failure(summary, values)
        return
    summary.add("ratio", f"{output.ratio_text(values['ratio'])} (peak reserved / peak live)")
    if values["ns_per_event"] is not None:
        summary.add("time", _time_text(values))


def _time_text(values):
    if values["events"] < TIMED_MIN:
        return f"not told: a trace of fewer than {TIMED_MIN:,} events is too short"
    return f"{values['ns_per_event']:.1f} ns per event{_beside(values)}"


def _add_failure(summary, values):
    for key in ("requested", "free", "largest_free"):
        summary.add(key.replace("_", " "), output.size_text(values["failure"][key]))
    requested = values["failure"]["requested"]
    summary.remarks.append(f"row {values['failed_row']}: the pool had no block of {requested} bytes.")
    summary.remarks.append("`cuda-pool fit` finds the smallest capacity that serves the trace, and its best settings.")


def _beside(values):
    if values["lag"]:
        return ", the simulated device included"
    if values["ratio_to_malloc"] is None:
        return "; libc's malloc could not serve the trace on this host"
    return f", {values['ratio_to_malloc']:.2f} of libc's malloc ({values['malloc_ns_per_event']:.1f} ns)"


def _device(text):
    if text == "sim":
        return text
    if text.isascii() and text.isdecimal():
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no device: expected sim or a CUDA ordinal such as 0")


def _share(text):
    with contextlib.suppress(ValueError):
        if 0 <= float(text) <= 1:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no share: expected a number from 0 to 1")


def _repeats(text):
    if text.isascii() and text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number of rounds: expected an integer of at least 1")
