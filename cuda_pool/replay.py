"""Replay a trace against a pool, and find the smallest capacity that serves one."""

import contextlib
import itertools
import operator
from dataclasses import asdict, dataclass

from . import sim
from ._api import Pool
from ._replay import MallocReplay, PoolReplay
from .settings import ALIGNMENT, CAPACITY_MAX, require_capacity, resolve
from .sizes import is_index, parse_size, shown

__all__ = ["Fit", "FitResult", "ReplayResult", "default_capacity", "fit", "replay", "time_malloc"]

MIB = 1 << 20
SLICE = 1 << 14         # events played between two looks at the keyboard
STEP_MIN = 64 << 10
STEPS_IN_PEAK = 4096
STEPS_MAX = 1 << 18     # 64 times the peak: no setting wastes that much
SETTINGS = ("slab_max", "mid_max", "min_block")

# What fit() searches: every combination.
GRID = {
    "slab_max": (0, 4 << 10, 16 << 10, 64 << 10),
    "mid_max": (1 * MIB, 32 * MIB, 128 * MIB, 512 * MIB, 2048 * MIB),
    "min_block": (4 << 10, 64 << 10, 256 << 10),
}


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
    ns_per_event : float or None
        Time in the pool for each event, in nanoseconds, over the fastest round; None if there was no event or a
        failure.
    upstream_calls : dict
        Driver calls by name.
    cross_stream_waits : int
        Waits put between streams: 0 in this version, which plays every event in program order.
    orphan_frees, preexisting, preexisting_bytes : int
        Frees without an allocation, and blocks that were live before the first event; see `cuda_pool.trace.Trace`.
    device : str
        Name of the device.
    simulated : bool
        Whether that is a simulated device.
    backing, growth : str
        As given.
    lag, repeats : int
        As given.
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
    ns_per_event: float | None
    upstream_calls: dict
    cross_stream_waits: int
    orphan_frees: int
    preexisting: int
    preexisting_bytes: int
    device: str
    simulated: bool
    backing: str
    growth: str
    lag: int
    repeats: int
    settings: dict

    def as_dict(self):
        """Return the result as a dict of plain values, as ``cuda-pool replay --json`` writes it."""
        return asdict(self)


@dataclass(frozen=True)
class Fit:
    """The smallest capacity that was found for one choice of settings.

    Attributes
    ----------
    min_capacity : int
        Bytes.
    ratio : float or None
        min_capacity / peak_live; None if nothing was ever live.
    settings : dict
        ``slab_max``, ``mid_max`` and ``min_block``, in bytes.
    """

    min_capacity: int
    ratio: float | None
    settings: dict


@dataclass(frozen=True)
class FitResult:
    """What `fit` found; sizes in bytes.

    Attributes
    ----------
    events, peak_live : int
        Of the trace.
    min_capacity : int or None
        Smallest capacity that serves the trace with `settings`; None if none does.
    ratio : float or None
        min_capacity / peak_live.
    settings : dict
        Settings that min_capacity holds for: those given, else the defaults.
    best : Fit or None
        The settings of the grid that need least, the defaults included; None if no search was made.
    resolution : int
        A capacity that is smaller by so much was seen to fail, or is below peak_live.
    tried : int
        Choices of settings that were tried.
    replays : int
        Replays that it took.
    failed_row : int or None
        Where the largest capacity failed, if no capacity serves the trace.
    backing : str
        As given.
    lag : int
        As given.
    """

    events: int
    peak_live: int
    min_capacity: int | None
    ratio: float | None
    settings: dict
    best: Fit | None
    resolution: int
    tried: int
    replays: int
    failed_row: int | None
    backing: str
    lag: int

    def as_dict(self):
        """Return the result as a dict of plain values, as ``cuda-pool fit --json`` writes it."""
        return asdict(self)


def replay(trace, *, capacity=None, device=None, backing="malloc", growth="static", lag=0,
           slab_max=None, mid_max=None, min_block=None, repeats=1, progress=None):
    """Replay a trace against a new pool.

    Blocks that were live before the first event are allocated beforehand. Frees whose block is not live are skipped.
    The replay ends at the first allocation that cannot be served. Only the events are timed, with the GIL released.

    Streams are not played in this version: every event is played in program order, as if all were on one stream whose
    work is done at once, so that `ReplayResult.cross_stream_waits` is 0.

    Parameters
    ----------
    trace : Trace
    capacity : int or str, optional
        Bytes, or text such as ``"8GiB"``; by default 1.25 times the trace's peak,
        rounded up to 2 MiB.
    device : int or cuda_pool.sim.Device, optional
        CUDA ordinal or simulated device; by default a simulated device that is just large enough.
    backing, growth : str
        As for `cuda_pool.Pool`.
    lag : int
        How many events the device is behind the host. Only 0 is accepted: all work is done at once.
    slab_max, mid_max, min_block : int or str, optional
        Settings of the pool; its defaults otherwise.
    repeats : int
        Rounds; whatever is live at the end of one is freed before the next.
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
    CudaError
        A driver call failed; DeviceUnavailableError when there is no device.
    """
    lag, repeats = _lag(lag), _repeats(repeats)
    capacity = default_capacity(trace) if capacity is None else parse_size(capacity)
    require_capacity(capacity)      # of the pool; without it a simulated device would speak of its own limits
    device = _simulated(capacity) if device is None else device
    settings = {"slab_max": slab_max, "mid_max": mid_max, "min_block": min_block}
    with _pool(capacity, device, backing=backing, growth=growth, **settings) as pool:
        run = _Run(PoolReplay(trace, pool), pool)
        run.play(repeats, progress)
        return _result(trace, pool, run, backing=backing, growth=growth, lag=lag, repeats=repeats)


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
        `repeats` is no integer of at least 1.
    """
    repeats = _repeats(repeats)
    run = _Run(MallocReplay(trace))
    run.play(repeats, progress)
    return run.ns_per_event


def fit(trace, *, backing="malloc", lag=0, settings=None, search=True, progress=None):
    """Find the smallest capacity that serves a trace.

    The capacity grows from the trace's peak until a replay succeeds, and is then bisected down to the resolution: the
    larger of 64 KiB and 1/4096 of the peak. Success is not strictly monotonic in the capacity, so a smaller one may
    work too; the one reported is always one that a replay has confirmed. Everything runs on simulated devices.

    Parameters
    ----------
    trace : Trace
    backing : str
        As for `cuda_pool.Pool`.
    lag : int
        As for `replay`.
    settings : dict, optional
        Any of ``slab_max``, ``mid_max`` and ``min_block``, in bytes or as text; nothing is searched then.
    search : bool
        Whether to look through the grid of settings (`GRID`) for those that need least. A choice of settings is
        passed over unless it serves the trace with less than the best one so far.
    progress : callable, optional
        Called as ``progress(done, total)`` with numbers of choices of settings.

    Returns
    -------
    FitResult
        Also when no capacity serves the trace: `FitResult.failed_row` says where the largest one failed.

    Raises
    ------
    ValueError
        A parameter has no accepted value.
    TypeError
        A parameter is of a type that is not accepted.
    """
    lag = _lag(lag)
    fitter = _Fitter(trace, backing)
    chosen = _given_settings(settings)
    choices = [] if settings is not None or not search else list(_grid())
    best = found = fitter.smallest(chosen)
    failed_row = None if found else fitter.failed_row
    for done, choice in enumerate(choices, start=1):
        if progress:
            progress(done, len(choices) + 1)
        best = fitter.smaller(choice, best) or best
    if progress:
        progress(len(choices) + 1, len(choices) + 1)
    return FitResult(
        events=trace.events, peak_live=trace.peak_live, min_capacity=found and found.min_capacity,
        ratio=found and found.ratio, settings=fitter.settings_of(chosen), best=best if choices else None,
        resolution=fitter.step, tried=len(choices) + 1, replays=fitter.replays,
        failed_row=failed_row, backing=backing, lag=lag)


def default_capacity(trace):
    """Return 1.25 times the peak of a trace, rounded up to 2 MiB and at most what a pool can hold, in bytes."""
    return min(max(-(-trace.peak_live * 5 // (8 * MIB)), 1) * 2 * MIB, CAPACITY_MAX)


class _Run:
    """Rounds of a replay: the fastest time, or the first failure with the pool's state at that point."""

    def __init__(self, loop, pool=None):
        self.loop = loop
        self.pool = pool
        self.best_ns = None
        self.failed_row = None
        self.failure = None

    @property
    def ns_per_event(self):
        events = len(self.loop.trace)
        return self.best_ns / events if events and self.best_ns is not None else None

    def play(self, repeats=1, progress=None):
        total = len(self.loop.trace) * repeats
        for round_ in range(repeats):
            report = progress and (lambda done, past=len(self.loop.trace) * round_: progress(past + done, total))
            if not self._round(report):
                return

    def _round(self, report):
        loop = self.loop
        try:
            loop.place()
            while loop.position < len(loop.trace) and not loop.failed:
                loop.run(SLICE)
                if report:
                    report(loop.position)
            return self._note()
        finally:
            loop.clear()

    def _note(self):
        loop = self.loop
        if not loop.failed:
            self.best_ns = loop.ns if self.best_ns is None else min(self.best_ns, loop.ns)
            return True
        self.best_ns = None
        self.failed_row = loop.failed_row
        self.failure = self.pool and _failure(loop, self.pool)
        return False


def _failure(loop, pool):
    loop.check()
    stats = pool.stats()
    return {"requested": loop.failed_size, "free": stats.free, "largest_free": stats.largest_free,
            "reserved": stats.reserved, "capacity": stats.capacity}


def _result(trace, pool, run, **given):
    stats = pool.stats()
    return ReplayResult(
        events=trace.events, streams=trace.streams, peak_live=trace.peak_live,
        peak_requested=stats.requested_high, peak_used=stats.used_high, peak_reserved=stats.reserved_high,
        ratio=_ratio(stats.reserved_high, trace.peak_live), capacity=stats.capacity, failed_row=run.failed_row,
        failure=run.failure, ns_per_event=run.ns_per_event, upstream_calls=dict(stats.upstream_calls),
        cross_stream_waits=0, orphan_frees=trace.orphan_frees, preexisting=trace.preexisting,
        preexisting_bytes=trace.preexisting_bytes, device=pool.device.name, simulated=pool.device.is_simulated,
        settings=_as_dict(pool.settings), **given)


class _Fitter:
    """Capacities of base + k * step that are tried with one choice of settings after another."""

    def __init__(self, trace, backing):
        self.trace = trace
        self.backing = backing
        self.base = max(-(-trace.peak_live // ALIGNMENT), 1) * ALIGNMENT
        self.step = max(STEP_MIN, -(-trace.peak_live // STEPS_IN_PEAK))
        self.replays = 0
        self.failed_row = None

    def smallest(self, settings):
        """Return the Fit of these settings, or None."""
        failing, working = -1, 0
        while not self._serves(working, settings):
            failing, working = working, max(1, 2 * working)
            if working > STEPS_MAX or self._capacity(failing) == CAPACITY_MAX:
                return None
        return self._bisected(failing, working, settings)

    def smaller(self, settings, best):
        """Return the Fit of these settings if they need less than `best` (or if that is None), else None."""
        if best is None:
            return self.smallest(settings)
        working = (best.min_capacity - self.base) // self.step - 1
        if working < 0 or not self._serves(working, settings):
            return None
        return self._bisected(-1, working, settings)

    def settings_of(self, settings):
        """Return the settings with the pool's defaults filled in."""
        return _as_dict(resolve(default_capacity(self.trace), **settings))

    def _bisected(self, failing, working, settings):
        while working - failing > 1:
            middle = (failing + working) // 2
            if self._serves(middle, settings):
                working = middle
            else:
                failing = middle
        capacity = self._capacity(working)
        return Fit(capacity, _ratio(capacity, self.trace.peak_live), self.settings_of(settings))

    def _serves(self, steps, settings):
        self.replays += 1
        capacity = self._capacity(steps)
        with _pool(capacity, _simulated(capacity), backing=self.backing, **settings) as pool:
            run = _Run(PoolReplay(self.trace, pool), pool)
            run.play()
        self.failed_row = run.failed_row
        return run.failed_row is None

    def _capacity(self, steps):
        return min(self.base + steps * self.step, CAPACITY_MAX)


def _given_settings(settings):
    unknown = set(settings or ()).difference(SETTINGS)
    if unknown:
        raise ValueError(f"no such settings: {', '.join(sorted(unknown))}; accepted: {', '.join(SETTINGS)}")
    return {name: size for name, size in (settings or {}).items() if size is not None}


def _grid():
    for values in itertools.product(*GRID.values()):
        yield dict(zip(GRID, values))


@contextlib.contextmanager
def _pool(capacity, device, **parameters):
    pool = Pool(capacity, device=device, **parameters)
    try:
        yield pool
    finally:
        pool.close()


def _simulated(capacity):
    return sim.Device(capacity)


def _as_dict(settings):
    return {name: getattr(settings, name) for name in SETTINGS}


def _ratio(capacity, peak):
    return capacity / peak if peak else None


def _lag(lag):
    if _integer(lag, "lag is a number of events, accepted: 0") != 0:
        raise ValueError(f"lag {shown(lag)} needs the stream queues: accepted: 0")
    return 0


def _repeats(repeats):
    rounds = _integer(repeats, "repeats is a number of rounds, at least 1")
    if rounds < 1:
        raise ValueError(f"repeats is a number of rounds, at least 1, got {shown(repeats)}")
    return rounds


def _integer(value, accepted):
    if not is_index(value):
        raise TypeError(f"{accepted}; got {shown(value)}")
    return operator.index(value)
