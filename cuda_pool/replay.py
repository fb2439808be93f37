"""Replay a trace against a pool, and find the smallest capacity that serves one."""

import contextlib
import itertools
import operator
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from . import sim
from ._api import Pool
from ._atomic import require_writable
from ._lag import LAG_MAX, LaggedReplay
from ._replay import MallocReplay, PoolReplay
from .diagnosis import Diagnosis, Moment, diagnose
from .errors import OutOfMemoryError
from .evidence import evidence_of_trace
from .profile import HEADROOM, as_profile
from .reasons import Change, Tightest, explain
from .settings import ALIGNMENT, CAPACITY_MAX, require_capacity, resolve
from .sizes import is_index, parse_size, shown

__all__ = ["Fit", "FitResult", "ReplayResult", "default_capacity", "fit", "replay", "time_malloc"]

MIB = 1 << 20
PAGE = 2 * MIB          # of the virtual memory of simulated devices
SLICE = 1 << 14         # events played between two looks at the keyboard
STEP_MIN = 64 << 10
GROWING_START = 2 * MIB     # what a pool that grows begins with
STEPS_IN_PEAK = 4096
STEPS_MAX = 1 << 18     # 64 times the peak: no setting wastes that much
SETTINGS = ("slab_max", "mid_max", "min_block")
FINDINGS_MAX = 10       # races and misuses that a result quotes
NO_ADDRESSES = ("the simulated device takes its memory from the address space of this process, which may have a limit "
                "(ulimit -v) or be full")
HOST_WAITS = ("cudaEventSynchronize", "cudaStreamSynchronize", "cudaDeviceSynchronize")

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
    cross_stream_waits, host_waits : int
        Of the replay with that capacity, as in `ReplayResult`.
    """

    min_capacity: int
    ratio: float | None
    settings: dict
    cross_stream_waits: int
    host_waits: int


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
    cross_stream_waits, host_waits : int or None
        Of the replay with min_capacity, as in `ReplayResult`; None if there is none.
    best : Fit or None
        The settings of the grid that need least, the defaults included; None if no search was made.
    reasons : list of str
        Why it is that much, and what other settings save, in words; the figures are of replays of this trace.
    tightest : cuda_pool.reasons.Tightest or None
        Where the trace fails with a capacity that is smaller by `resolution`; None if that is below peak_live.
    changes : tuple of cuda_pool.reasons.Change
        Other values of single settings, and what they save; what saves most first.
    resolution : int
        A capacity that is smaller by so much was seen to fail, or is below peak_live.
    tried : int
        Choices of settings that were tried.
    replays : int
        Replays that it took.
    failed_row : int or None
        Where the largest capacity failed, if no capacity serves the trace.
    races, misuses : int
        Over all replays, as in `ReplayResult`.
    findings : list of str
        The first ten of them, in words.
    backing, growth : str
        As given.
    reuse : str or None
        As given.
    lag : int
        As given.
    seed : int or None
        As given.
    """

    events: int
    peak_live: int
    min_capacity: int | None
    ratio: float | None
    settings: dict
    cross_stream_waits: int | None
    host_waits: int | None
    best: Fit | None
    reasons: list
    tightest: Tightest | None
    changes: tuple
    resolution: int
    tried: int
    replays: int
    failed_row: int | None
    races: int
    misuses: int
    findings: list
    backing: str
    growth: str
    reuse: str | None
    lag: int
    seed: int | None

    def as_dict(self):
        """Return the result as a dict of plain values, as ``cuda-pool fit --json`` writes it."""
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
    lag, repeats, seed = _lag(lag), _repeats(repeats), _seed(seed)
    profile = None if profile is None else as_profile(profile)
    if capacity is None:
        needed = 0 if profile is None else profile.capacity(HEADROOM if headroom is None else headroom)
        capacity = max(default_capacity(trace, growth), needed)
    if save_profile is not None:
        require_writable(save_profile)
    given, capacity = capacity, parse_size(capacity)
    require_capacity(capacity, given)   # of the pool; without it a simulated device would speak of its own limits
    device = _device(device, capacity, lag, seed, backing)
    findings = _Findings()
    settings = {"slab_max": slab_max, "mid_max": mid_max, "min_block": min_block, "profile": profile,
                **_given(reuse=reuse, headroom=headroom)}
    with _pool(capacity, device=device, backing=backing, growth=growth, **settings) as pool:
        with _loop(trace, pool, lag, findings) as loop:
            run = _Run(loop, pool, recording, explains=True)
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
        `repeats` is no integer of at least 1.
    """
    repeats = _repeats(repeats)
    run = _Run(MallocReplay(trace))
    run.play(repeats, progress)
    return run.ns_per_event


def fit(trace, *, backing="malloc", growth="static", reuse=None, lag=0, seed=None, settings=None, search=True,
        reasons=True, progress=None):
    """Find the smallest capacity that serves a trace.

    The capacity grows from the trace's peak until a replay succeeds, and is then bisected down to the resolution: the
    larger of 64 KiB and 1/4096 of the peak. Success is not strictly monotonic in the capacity, so a smaller one may
    work too; the one reported is always one that a replay has confirmed. Everything runs on simulated devices.

    Parameters
    ----------
    trace : Trace
    backing : str
        As for `cuda_pool.Pool`.
    growth : str
        As for `cuda_pool.Pool`; the capacity of a pool that grows is its limit, and it begins with 2 MiB.
    reuse : str, optional
        As for `cuda_pool.Pool`.
    lag, seed : int
        As for `replay`.
    settings : dict, optional
        Any of ``slab_max``, ``mid_max`` and ``min_block``, in bytes or as text; nothing is searched then.
    search : bool
        Whether to look through the grid of settings (`GRID`, and a `mid_max` for blocks above that) for those that
        need least. A choice of settings is passed over unless it serves the trace with less than the best one so far.
    reasons : bool
        Whether to find out why: one replay more for `FitResult.tightest`; and, if there was a search or settings were
        given, one bisection for each setting in which the best choice, or the default, differs, and for
        ``backing="virtual"``.
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
    lag, seed = _lag(lag), _seed(seed)
    fitter = Fitter(trace, lag, seed, backing=backing, growth=growth, **_given(reuse=reuse))
    chosen = _given_settings(settings)
    choices = [] if settings is not None or not search else list(_grid(trace))
    best = found = fitter.smallest(chosen)
    failed_row = None if found else fitter.failed_row
    for done, choice in enumerate(choices, start=1):
        if progress:
            progress(done, len(choices) + 1)
        best = fitter.smaller(choice, best) or best
    if progress:
        progress(len(choices) + 1, len(choices) + 1)
    compared = _compared(fitter, chosen, best if choices else None, settings)
    tightest, changes, words = explain(fitter, chosen, found, best if choices else None, compared) if (
        reasons and found) else (None, (), [])
    return FitResult(
        events=trace.events, peak_live=trace.peak_live, min_capacity=found and found.min_capacity,
        ratio=found and found.ratio, settings=fitter.settings_of(chosen),
        cross_stream_waits=found and found.cross_stream_waits, host_waits=found and found.host_waits,
        best=best if choices else None, reasons=words, tightest=tightest, changes=changes, resolution=fitter.step,
        tried=len(choices) + 1, replays=fitter.replays,
        failed_row=failed_row, **fitter.findings.as_dict(), backing=backing, growth=growth, reuse=reuse, lag=lag,
        seed=seed)


def default_capacity(trace, growth="static"):
    """Return 1.25 times the peak of a trace, or 2 times for a pool that grows, in bytes.

    It is rounded up to 2 MiB, and at most what a pool can hold.
    """
    quarters = 5 if growth == "static" else 8
    return min(max(-(-trace.peak_live * quarters // (8 * MIB)), 1) * 2 * MIB, CAPACITY_MAX)


class _Run:
    """Rounds of a replay: the fastest time, or the first failure with the pool's state at that point."""

    def __init__(self, loop, pool=None, recording=None, explains=False):
        self.loop = loop if recording is None else recording.watch(loop)
        self.pool = pool
        self.recording = recording
        self.explains = explains
        self.events = len(loop.trace) if recording is None else recording.end_of(loop.trace)
        self.best_ns = None
        self.failed_row = None
        self.failed_at = None       # events before it
        self.failure = None
        self.moment = None      # of the pool at the failure, if it is to be explained
        self.stats = None       # the pool's, after the last event
        self.rounds_left = 0

    @property
    def ns_per_event(self):
        return self.best_ns / self.events if self.events and self.best_ns is not None else None

    def play(self, repeats=1, progress=None):
        total = self.events * repeats
        for round_ in range(repeats):
            self.rounds_left = repeats - round_ - 1
            report = progress and (lambda done, past=self.events * round_: progress(past + done, total))
            if not self._round(report):
                return

    def _round(self, report):
        loop = self.loop
        try:
            loop.place()
            while loop.position < self.events and not loop.failed:
                loop.run(min(SLICE, self.events - loop.position))
                if report:
                    report(loop.position)
            return self._note()
        finally:
            loop.clear()

    def _note(self):
        loop = self.loop
        loop.check()
        if self.recording is not None:
            self.recording.take(self.loop, self.pool)
        if self.pool and (loop.failed or self.rounds_left == 0):
            self.stats = self.pool.stats()
        if not loop.failed:
            self.best_ns = loop.ns if self.best_ns is None else min(self.best_ns, loop.ns)
            return True
        self.best_ns = None
        self.failed_row = loop.failed_row
        self.failed_at = loop.position
        self.failure = self.pool and _failure(loop, self.stats)
        if self.explains:
            self.moment = Moment.of(loop.moment())
        return False


def _failure(loop, stats):
    return {"requested": loop.failed_size, "free": stats.free, "largest_free": stats.largest_free,
            "reserved": stats.reserved, "capacity": stats.capacity}


def _diagnosis(trace, run):
    if run.moment is None:
        return None
    evidence = evidence_of_trace(trace, run.failed_at, run.moment.settings)
    if run.failed_at == 0 and run.moment.live < trace.preexisting_bytes:
        evidence = replace(evidence, holders=())        # what was live before has not got its place: the pool knows
    return diagnose(run.failure["requested"], run.moment, evidence)


class _Findings:
    """What simulated devices found fault with in replays with a lag."""

    def __init__(self):
        self.races = 0
        self.misuses = 0
        self.texts = []

    @contextlib.contextmanager
    def watch(self, device):
        """Add what the device finds in the meantime."""
        races, misuses = device.race_count, len(device.errors)
        yield
        self.races += device.race_count - races
        self.misuses += len(device.errors) - misuses
        if self.races or self.misuses:
            self.texts += map(str, device.races[races:] + device.errors[misuses:])

    def as_dict(self):
        return {"races": self.races, "misuses": self.misuses, "findings": self.texts[:FINDINGS_MAX]}


@contextlib.contextmanager
def _loop(trace, pool, lag, findings):
    """The loop for a replay, which is at its first event again in the end."""
    with contextlib.ExitStack() as stack:
        if lag:
            stack.enter_context(findings.watch(pool.device))
        loop = LaggedReplay(trace, pool, lag) if lag else PoolReplay(trace, pool)
        yield stack.enter_context(contextlib.closing(loop))


def _result(trace, pool, run, **given):
    stats = run.stats
    return ReplayResult(
        events=trace.events, streams=trace.streams, peak_live=trace.peak_live,
        peak_requested=stats.requested_high, peak_used=stats.used_high, peak_reserved=stats.reserved_high,
        ratio=_ratio(stats.reserved_high, trace.peak_live), capacity=stats.capacity, failed_row=run.failed_row,
        failure=run.failure, diagnosis=_diagnosis(trace, run), ns_per_event=run.ns_per_event,
        upstream_calls=dict(stats.upstream_calls), **_waits(stats), orphan_frees=trace.orphan_frees,
        preexisting=trace.preexisting,
        preexisting_bytes=trace.preexisting_bytes, device=pool.device.name, simulated=pool.device.is_simulated,
        settings=_as_dict(pool.settings), **given)


class Failure(NamedTuple):
    """Where a replay failed, the bytes that it asked for, and the Moment of the pool."""

    row: int
    requested: int
    moment: Moment


class Fitter:
    """Capacities of base + k * step that are tried with one choice of settings after another."""

    def __init__(self, trace, lag, seed, **parameters):
        self.trace = trace
        self.lag = lag
        self.seed = seed
        self.parameters = parameters
        self.findings = _Findings()
        self.base = max(-(-trace.peak_live // ALIGNMENT), 1) * ALIGNMENT
        self.step = max(STEP_MIN, -(-trace.peak_live // STEPS_IN_PEAK))
        if parameters["backing"] == "virtual":
            self.base, self.step = (-(-nbytes // PAGE) * PAGE for nbytes in (self.base, self.step))
        self.replays = 0
        self.failed_row = None

    def smallest(self, settings):
        """Return the Fit of these settings, or None."""
        failing, working = -1, 0
        while not (fit := self._served(working, settings)):
            failing, working = working, max(1, 2 * working)
            if working > STEPS_MAX or self._capacity(failing) == CAPACITY_MAX:
                return None
        return self._bisected(failing, working, fit, settings)

    def smaller(self, settings, best):
        """Return the Fit of these settings if they need less than `best` (or if that is None), else None."""
        if best is None:
            return self.smallest(settings)
        working = (best.min_capacity - self.base) // self.step - 1
        fit = self._served(working, settings) if working >= 0 else None
        return fit and self._bisected(-1, working, fit, settings)

    def within(self, capacity, settings):
        """Return the Fit of these settings if they serve the trace with `capacity` bytes, else None."""
        fit = self._served_by(capacity, settings)
        working = (capacity - self.base) // self.step
        if fit is None or working < 0:
            return fit
        served = self._served(working, settings)
        return self._bisected(-1, working, served, settings) if served else fit

    def serves(self, capacity, settings):
        """Return whether the trace goes through with that capacity."""
        return self._served_by(capacity, settings) is not None

    def just_below(self, fit, settings):
        """Return the Failure with a step less than a Fit's capacity; None if that is below the peak, or serves."""
        capacity = fit.min_capacity - self.step
        if capacity < self.base:
            return None
        run = self._run(capacity, settings, explains=True)
        return run.moment and Failure(run.failed_row, run.failure["requested"], run.moment)

    def with_backing(self, backing):
        """Return a fitter of the same trace for pools with another backing."""
        other = Fitter(self.trace, self.lag, self.seed, **{**self.parameters, "backing": backing})
        other.findings = self.findings
        return other

    def settings_of(self, settings):
        """Return the settings with the pool's defaults filled in."""
        page = PAGE if self.parameters["backing"] == "virtual" else 0
        return _as_dict(resolve(default_capacity(self.trace), **settings, page=page))

    def _bisected(self, failing, working, fit, settings):
        while working - failing > 1:
            middle = (failing + working) // 2
            served = self._served(middle, settings)
            if served:
                working, fit = middle, served
            else:
                failing = middle
        return fit

    def _served(self, steps, settings):
        return self._served_by(self._capacity(steps), settings)

    def _served_by(self, capacity, settings):
        """Replay the trace; return the Fit if that went well, else None."""
        run = self._run(capacity, settings)
        self.failed_row = run.failed_row
        if run.failed_row is not None:
            return None
        return Fit(capacity, _ratio(capacity, self.trace.peak_live), self.settings_of(settings), **_waits(run.stats))

    def _run(self, capacity, settings, explains=False):
        self.replays += 1
        device = _simulated(capacity, self.seed, self.parameters["backing"])
        with _pool(capacity, device=device, **self.parameters, **settings) as pool:
            with _loop(self.trace, pool, self.lag, self.findings) as loop:
                run = _Run(loop, pool, explains=explains)
                run.play()
        return run

    def _capacity(self, steps):
        return min(self.base + steps * self.step, CAPACITY_MAX)


def _compared(fitter, chosen, best, settings):
    """Return the values of single settings that are worth a comparison: of the best choice, or of the defaults."""
    other = best.settings if best else fitter.settings_of({}) if settings else {}
    now = fitter.settings_of(chosen)
    compared = {name: value for name, value in other.items() if value != now[name]}
    if (best or settings) and fitter.parameters["backing"] == "malloc":
        compared["backing"] = "virtual"
    return compared


def _given_settings(settings):
    unknown = set(settings or ()).difference(SETTINGS)
    if unknown:
        raise ValueError(f"no such settings: {', '.join(sorted(unknown))}; accepted: {', '.join(SETTINGS)}")
    return {name: size for name, size in (settings or {}).items() if size is not None}


def _grid(trace):
    """Yield the choices of settings; one of them leaves the buddy tier nothing, however large the blocks are."""
    largest = int(trace.block_size.max(initial=0))
    grid = dict(GRID)
    if grid["mid_max"][-1] < largest <= CAPACITY_MAX:
        grid["mid_max"] += (1 << (largest - 1).bit_length(),)
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values))


@contextlib.contextmanager
def _pool(capacity, **parameters):
    """A pool that may hold `capacity` bytes; one that grows begins with its profile, or with little."""
    try:
        pool = _opened(capacity, **parameters)
    except OutOfMemoryError as error:
        if error.free >= error.requested and getattr(parameters["device"], "is_simulated", False):
            error.hint = error.hint or NO_ADDRESSES
        raise
    try:
        yield pool
    finally:
        pool.close()


def _opened(capacity, **parameters):
    if parameters.get("profile") is not None:
        return Pool(max_capacity=capacity, **parameters)
    if parameters.get("growth") != "static":
        return Pool(min(GROWING_START, capacity), max_capacity=capacity, **parameters)
    return Pool(capacity, **parameters)


def _device(device, capacity, lag, seed, backing):
    if device is None:
        return _simulated(capacity, seed, backing)
    if lag and not isinstance(device, sim.Device):
        raise ValueError(f"lag {shown(lag)} needs the simulated device, whose streams have virtual time; "
                         "accepted on a CUDA device: 0")
    if seed is not None:
        raise ValueError("seed is for the simulated device that a replay makes: give it to your own device instead")
    return device


def _simulated(capacity, seed, backing):
    """A device that is just large enough; nobody looks at its memory."""
    if backing == "virtual":
        return sim.Device(-(-capacity // PAGE) * PAGE, seed=seed, granularity=PAGE, lazy=True)
    return sim.Device(capacity, seed=seed)


def _given(**parameters):
    """Return the parameters that are not left to the pool's defaults."""
    return {name: value for name, value in parameters.items() if value is not None}


def _waits(stats):
    calls = stats.upstream_calls
    return {"cross_stream_waits": calls.get("cudaStreamWaitEvent", 0),
            "host_waits": sum(calls.get(name, 0) for name in HOST_WAITS)}


def _as_dict(settings):
    return {name: getattr(settings, name) for name in SETTINGS}


def _ratio(capacity, peak):
    return capacity / peak if peak else None


def _lag(lag):
    number = _integer(lag, "lag is a number of events, from 0 to 2**40")
    if not 0 <= number <= LAG_MAX:
        raise ValueError(f"lag is a number of events, from 0 to 2**40, got {shown(lag)}")
    return number


def _seed(seed):
    return None if seed is None else _integer(seed, "seed is an integer")


def _repeats(repeats):
    rounds = _integer(repeats, "repeats is a number of rounds, at least 1")
    if rounds < 1:
        raise ValueError(f"repeats is a number of rounds, at least 1, got {shown(repeats)}")
    return rounds


def _integer(value, accepted):
    if not is_index(value):
        raise TypeError(f"{accepted}; got {shown(value)}")
    return operator.index(value)
