"""Find the smallest capacity that serves a trace, and the settings that need least.

`cuda_pool.replay` has the public names as well.
"""

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

from ._rounds import (
    MIB, PAGE, SETTINGS, Findings, Run, checked_lag, checked_seed, default_capacity, loop_of, not_none, pool_of,
    ratio_of, settings_dict, simulated, waits_of)
from .diagnosis import Moment
from .reasons import Tightest, explain
from .settings import ALIGNMENT, CAPACITY_MAX, resolve
from .sizes import shown
from .trace import require_trace

__all__ = ["GRID", "Failure", "Fit", "FitResult", "Fitter", "fit"]

STEP_MIN = 64 << 10
STEPS_IN_PEAK = 4096
STEPS_MAX = 1 << 18     # 64 times the peak: no setting wastes that much

# What fit() searches: every combination.
GRID = {
    "slab_max": (0, 4 << 10, 16 << 10, 64 << 10),
    "mid_max": (1 * MIB, 32 * MIB, 128 * MIB, 512 * MIB, 2048 * MIB),
    "min_block": (4 << 10, 64 << 10, 256 << 10),
}


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
    require_trace(trace)
    lag, seed = checked_lag(lag), checked_seed(seed)
    fitter = Fitter(trace, lag, seed, backing=backing, growth=growth, **not_none(reuse=reuse))
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
        self.findings = Findings()
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
        return settings_dict(resolve(default_capacity(self.trace), **settings, page=page))

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
        return Fit(capacity, ratio_of(capacity, self.trace.peak_live), self.settings_of(settings),
                   **waits_of(run.stats))

    def _run(self, capacity, settings, explains=False):
        self.replays += 1
        device = simulated(capacity, self.seed, self.parameters["backing"])
        with pool_of(capacity, device=device, **self.parameters, **settings) as pool:
            with loop_of(self.trace, pool, self.lag, self.findings) as loop:
                run = Run(loop, pool, explains=explains)
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
    if settings is not None and not isinstance(settings, Mapping):
        raise TypeError(f"settings is a dict with any of {', '.join(SETTINGS)}; got {shown(settings)}")
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
