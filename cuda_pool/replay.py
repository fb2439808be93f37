"""Replay a trace against a pool, and find the smallest capacity that serves one (``cuda_pool.fitting``)."""

from dataclasses import asdict, dataclass, replace

from . import sim
from ._atomic import require_writable
from ._replay import MallocReplay
from ._rounds import (
    Findings, Run, checked_integer, checked_lag, checked_seed, default_capacity, loop_of, not_none, pool_of, ratio_of,
    settings_dict, simulated, waits_of)
from .diagnosis import Diagnosis, diagnose
from .evidence import evidence_of_trace
from .fitting import GRID, Fit, FitResult, fit
from .map.recording import Recording
from .profile import HEADROOM, as_profile
from .settings import require_capacity
from .sizes import parse_size, shown
from .trace import require_trace

__all__ = ["GRID", "Fit", "FitResult", "ReplayResult", "default_capacity", "fit", "replay", "time_malloc"]


@dataclass(frozen=True)
class ReplayResult:
    """What a replay did; sizes in bytes.

    Attributes
    ----------
    events : int
        Events of the trace.
    streams : int
        Different streams in it.
    peak_live : int
        Highest sum of the requested sizes of live blocks, by the trace alone.
    peak_requested, peak_used, peak_reserved : int
        The pool's high-water marks: bytes asked for, in blocks handed out, and held from the device.
    ratio : float or None
        peak_reserved / peak_live; None if nothing was ever live.
    capacity : int
        What the pool could hold at most.
    failed_row : int or None
        Row of the first allocation that could not be served; for a block that was live before the first event, the
        row that frees it.
    failure : dict or None
        Bytes at that allocation: ``requested``, ``free``, ``largest_free``, ``reserved``, ``capacity``.
    diagnosis : cuda_pool.diagnosis.Diagnosis or None
        Why it failed, and what would help; ``cuda_pool.advice.try_advice`` tries that.
    ns_per_event : float or None
        Time for each event, in nanoseconds, over the fastest round; None if there was no event or a failure. It is
        the time in the pool, with a lag also that of the simulated device.
    upstream_calls : dict
        Driver calls by name, up to the end of the last round.
    cross_stream_waits : int
        Waits that the pool put between streams: its calls of cudaStreamWaitEvent.
    host_waits : int
        Times that the pool waited on the host: its calls of cudaEventSynchronize, cudaStreamSynchronize and
        cudaDeviceSynchronize.
    races : int
        Accesses to the same bytes that nothing ordered, as the simulated device found them: 0, or the pool is at
        fault. None are looked for without a lag.
    misuses : int
        Uses of memory, streams and events that the simulated device refused; as for `races`.
    findings : list of str
        The first ten races and misuses, in words.
    orphan_frees, preexisting, preexisting_bytes : int
        Frees without an allocation, and blocks that were live before the first event; see `cuda_pool.trace.Trace`.
    device : str
        Name of the device.
    simulated : bool
        Whether that is a simulated device.
    backing, growth : str
        As given.
    reuse : str or None
        As given.
    lag, repeats : int
        As given.
    seed : int or None
        Of the simulated device.
    settings : dict
        ``slab_max``, ``mid_max`` and ``min_block`` of the pool.
    """

    events: int
    streams: int
    peak_live: int
    peak_requested: int
    peak_used: int
    peak_reserved: int
    ratio: float | None
    capacity: int
    failed_row: int | None
    failure: dict | None
    diagnosis: Diagnosis | None
    ns_per_event: float | None
    upstream_calls: dict
    cross_stream_waits: int
    host_waits: int
    races: int
    misuses: int
    findings: list
    orphan_frees: int
    preexisting: int
    preexisting_bytes: int
    device: str
    simulated: bool
    backing: str
    growth: str
    reuse: str | None
    lag: int
    seed: int | None
    repeats: int
    settings: dict

    def as_dict(self):
        """Return the result as a dict of plain values, as ``cuda-pool replay --json`` writes it."""
        return asdict(self)


def replay(trace, *, capacity=None, device=None, backing="malloc", growth="static", reuse=None, lag=0, seed=None,
           slab_max=None, mid_max=None, min_block=None, headroom=None, profile=None, save_profile=None, repeats=1,
           recording=None, progress=None):
    """Replay a trace against a new pool.

    Blocks that were live before the first event are allocated beforehand. Frees whose block is not live are skipped.
    The replay ends at the first allocation that cannot be served. Only the events are timed, with the GIL released.

    Without a lag every event is played in program order, as if all were on one stream whose work is done at once. With
    one, each stream of the trace is a stream of the simulated device, which is `lag` events behind the host: an
    allocation and a free each queue work that uses the whole block, and that is done when `lag` more events have been
    played, not before; a free is asynchronous. The stream 0 is the default stream, which takes no notice of the others.
    Whether the pool hands memory on only where something orders the uses is in `ReplayResult.races`.

    Parameters
    ----------
    trace : Trace
    capacity : int or str, optional
        Bytes, or text such as ``"8GiB"``; by default 1.25 times the trace's peak, rounded up to 2 MiB, and twice the
        peak, or what the profile needs, for a pool that grows, which has this as its limit. It begins with what the
        profile needs, or else with 2 MiB.
    device : int or cuda_pool.sim.Device, optional
        CUDA ordinal or simulated device; by default a simulated device that is just large enough.
    backing, growth : str
        As for `cuda_pool.Pool`.
    reuse : str, optional
        As for `cuda_pool.Pool`; its default otherwise.
    lag : int
        How many events the device is behind the host, at most 2**40; 0: all work is done at once. Other numbers need a
        simulated device.
    seed : int, optional
        Of the simulated device that is made when `device` is not given. With a seed and a lag, half of the work is up
        to 128 ticks later still, an event being one tick.
    slab_max, mid_max, min_block : int or str, optional
        Settings of the pool; its defaults otherwise.
    headroom : float, optional
        As for `cuda_pool.Pool`; its default otherwise.
    profile : cuda_pool.Profile, str or os.PathLike, optional
        As for `cuda_pool.Pool`.
    save_profile : str or os.PathLike, optional
        Where the pool's own profile is written after the last round, also when an allocation failed.
    repeats : int
        Rounds; whatever is live at the end of one is freed before the next.
    recording : cuda_pool.map.Recording, optional
        Filled with what the last round did to the pool's memory, for ``cuda_pool.map``; it may end the round early.
        Then the time per event includes a look at the clock for each.
    progress : callable, optional
        Called as ``progress(done, total)`` with numbers of events.

    Returns
    -------
    ReplayResult
        Also when an allocation failed: `ReplayResult.failed_row` says where.

    Raises
    ------
    ValueError
        A parameter has no accepted value.
    TypeError
        A parameter is of a type that is not accepted.
    OutOfMemoryError
        The device cannot give the capacity.
    ProfileError
        The file at `profile` is damaged, or no profile.
    OSError
        `profile` cannot be read, or `save_profile` not be written: what shows beforehand is raised before the replay.
    CudaError
        A driver call failed; DeviceUnavailableError when there is no device.
    """
    require_trace(trace)
    if recording is not None and not isinstance(recording, Recording):
        raise TypeError(f"recording is a cuda_pool.map.Recording, or None; got {shown(recording)}")
    lag, repeats, seed = checked_lag(lag), _repeats(repeats), checked_seed(seed)
    profile = None if profile is None else as_profile(profile)
    if capacity is None:
        needed = 0 if profile is None else profile.capacity(HEADROOM if headroom is None else headroom)
        capacity = max(default_capacity(trace, growth), needed)
    if save_profile is not None:
        require_writable(save_profile)
    given, capacity = capacity, parse_size(capacity)
    require_capacity(capacity, given)   # of the pool; without it a simulated device would speak of its own limits
    device = _device(device, capacity, lag, seed, backing)
    findings = Findings()
    settings = {"slab_max": slab_max, "mid_max": mid_max, "min_block": min_block, "profile": profile,
                **not_none(reuse=reuse, headroom=headroom)}
    with pool_of(capacity, device=device, backing=backing, growth=growth, **settings) as pool:
        with loop_of(trace, pool, lag, findings) as loop:
            run = Run(loop, pool, recording, explains=True)
            run.play(repeats, progress)
        if save_profile is not None:
            pool.save_profile(save_profile)
        return _result(trace, pool, run, **findings.as_dict(), backing=backing, growth=growth, reuse=reuse, lag=lag,
                       seed=seed, repeats=repeats)


def time_malloc(trace, *, repeats=1, progress=None):
    """Time libc's malloc and free on the events of a trace; the memory is not touched.

    Large blocks (above 128 KiB at first, up to 32 MiB as glibc adapts) are mapped and unmapped by the kernel each time,
    which takes most of the time where a trace is full of them.

    Parameters
    ----------
    trace : Trace
    repeats : int
        Rounds.
    progress : callable, optional
        Called as ``progress(done, total)`` with numbers of events.

    Returns
    -------
    float or None
        Nanoseconds for each event over the fastest round; None if malloc refused a block or there is no event.

    Raises
    ------
    ValueError, TypeError
        `repeats` is no integer of at least 1; `trace` is no trace (TypeError).
    """
    require_trace(trace)
    repeats = _repeats(repeats)
    run = Run(MallocReplay(trace))
    run.play(repeats, progress)
    return run.ns_per_event


def _diagnosis(trace, run):
    if run.moment is None:
        return None
    evidence = evidence_of_trace(trace, run.failed_at, run.moment.settings)
    if run.failed_at == 0 and run.moment.live < trace.preexisting_bytes:
        evidence = replace(evidence, holders=())        # what was live before has not got its place: the pool knows
    return diagnose(run.failure["requested"], run.moment, evidence)


def _result(trace, pool, run, **given):
    stats = run.stats
    return ReplayResult(
        events=trace.events, streams=trace.streams, peak_live=trace.peak_live,
        peak_requested=stats.requested_high, peak_used=stats.used_high, peak_reserved=stats.reserved_high,
        ratio=ratio_of(stats.reserved_high, trace.peak_live), capacity=stats.capacity, failed_row=run.failed_row,
        failure=run.failure, diagnosis=_diagnosis(trace, run), ns_per_event=run.ns_per_event,
        upstream_calls=dict(stats.upstream_calls), **waits_of(stats), orphan_frees=trace.orphan_frees,
        preexisting=trace.preexisting,
        preexisting_bytes=trace.preexisting_bytes, device=pool.device.name, simulated=pool.device.is_simulated,
        settings=settings_dict(pool.settings), **given)


def _device(device, capacity, lag, seed, backing):
    if device is None:
        return simulated(capacity, seed, backing)
    if lag and not isinstance(device, sim.Device):
        raise ValueError(f"lag {shown(lag)} needs the simulated device, whose streams have virtual time; "
                         "accepted on a CUDA device: 0")
    if seed is not None:
        raise ValueError("seed is for the simulated device that a replay makes: give it to your own device instead")
    return device


def _repeats(repeats):
    rounds = checked_integer(repeats, "repeats is a number of rounds, at least 1")
    if rounds < 1:
        raise ValueError(f"repeats is a number of rounds, at least 1, got {shown(repeats)}")
    return rounds
