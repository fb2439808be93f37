"""Whether what a diagnosis advises would have helped: tried by replays of the whole trace."""

from dataclasses import replace

from .diagnosis import CERTAIN, ROUND, Advice, Cause, brief
from .fitting import Fitter
from .profile import as_profile
from .sizes import format_size

COARSE = 16                 # steps of a fit: replays with a lag take long
REUSES = {"wait": "the pool puts a stream behind the work of another one to get its memory",
          "query": "a stream gets another one's memory once its work is seen to be done",
          "never": "a stream gets another one's memory only when nothing else is left"}

__all__ = ["try_advice"]


def try_advice(trace, result, *, settings=None, profile=None, headroom=None, progress=None):
    """Replay a trace that has failed with each setting that the diagnosis advises.

    With a lag, the other values of `reuse` are tried as well, and whether the trace would go through if all work were
    done at once: then pending work is among the causes.

    A setting helps if the whole trace goes through with it and the capacity that the failure had; then the smallest
    capacity with which it does is looked for, as `cuda_pool.replay.fit` does. Where that would not have been enough,
    the diagnosis says how much would be. All of it runs on simulated devices. With a lag, capacities are in steps of
    1/256 of the peak, as such replays take long, and what does not help is left at that.

    Parameters
    ----------
    trace : Trace
    result : ReplayResult
        Of a replay that failed: its capacity, backing, growth, reuse, lag and seed are those of the replays here.
    settings : dict, optional
        ``slab_max``, ``mid_max`` and ``min_block``, as far as they were given.
    profile, headroom : optional
        As they were given to the replay.
    progress : callable, optional
        Called as ``progress(done, total)`` with numbers of settings.

    Returns
    -------
    ReplayResult
        The same result; in its diagnosis what helps comes first, by the memory that it needs, and what does not last.

    Raises
    ------
    ValueError
        The replay did not fail.
    """
    if result.diagnosis is None:
        raise ValueError("the replay went well: there is no advice to try")
    given = {name: value for name, value in (settings or {}).items() if value is not None}
    trial = _Trial(trace, result, given, profile, headroom)
    advice = (*result.diagnosis.advice, *_for_lag(result))
    tried = []
    for done, one in enumerate(advice):
        if progress:
            progress(done, len(advice) + 1)
        tried.append(trial.of(one))
    tried = list({one.setting: one for one in tried}.values())      # estimates of several causes end in one capacity
    causes = (*trial.pending(), *result.diagnosis.causes)
    if progress:
        progress(len(advice) + 1, len(advice) + 1)
    tried.sort(key=_rank)
    return replace(result, diagnosis=replace(result.diagnosis, causes=causes, advice=tuple(tried)))


def _for_lag(result):
    """Yield what decides when a stream gets what others have freed, where that can make a difference."""
    if result.lag and result.streams > 1:
        for reuse, text in REUSES.items():
            if reuse != (result.reuse or "wait"):
                yield Advice(f'reuse="{reuse}"', text, {"reuse": reuse})


class _Trial:
    """Replays of one trace with one setting changed after another."""

    def __init__(self, trace, result, settings, profile, headroom):
        self.trace = trace
        self.result = result
        self.settings = settings
        parameters = {"backing": result.backing, "growth": result.growth, "reuse": result.reuse, "headroom": headroom,
                      "profile": None if profile is None else as_profile(profile)}
        self.parameters = {name: value for name, value in parameters.items() if value is not None}
        self.known = {}             # smallest capacities by what was changed

    def of(self, advice):
        """Return the advice with what a replay says of it."""
        if advice.options is None:
            return advice
        options = dict(advice.options)
        if options.pop("capacity", None) is not None:
            return self._capacity(advice)
        if "growth" in options:
            return self._growth(advice, options)
        fitter, settings = self._fitter(options)
        fit = fitter.within(self.result.capacity, settings)
        if fit:
            return replace(advice, helps=True, capacity=fit.min_capacity)
        failed_row = fitter.failed_row
        fit = None if self.result.lag else fitter.smallest(settings)
        return replace(advice, helps=False, failed_row=failed_row, capacity=fit and fit.min_capacity)

    def pending(self):
        """Return pending work as a cause, with what it takes, if the trace goes through where there is none."""
        if not self.result.lag:
            return []
        fitter, settings = self._fitter({}, lag=0)
        fit = fitter.within(self.result.capacity, settings)
        needed = self._smallest({}) if fit else None
        if needed is None:
            return []
        return [Cause("pending", CERTAIN, max(needed - fit.min_capacity, 0), (
            f"the device is {self.result.lag} events behind the host, and until it has caught up memory that is freed "
            f"on one stream is no other's; if all work were done at once, the trace would fit in "
            f"{format_size(fit.min_capacity)}, instead of {format_size(needed)}"))]

    def _capacity(self, advice):
        """Put the capacity that serves the whole trace in the place of an estimate."""
        found = self._smallest({})
        if found is None:
            return replace(advice, helps=False, failed_row=self.result.failed_row)
        name = advice.setting.partition("=")[0]
        return replace(advice, setting=f'{name}="{brief(found)}"', text="nothing else changed",
                       options={"capacity": found}, helps=True, capacity=found)

    def _growth(self, advice, options):
        found = self._smallest(options)
        if found is None:
            return replace(advice, helps=False, failed_row=self.result.failed_row)
        return replace(advice, setting=f'{advice.setting}, max_capacity="{brief(found)}"',
                       options={**options, "capacity": found}, helps=True, capacity=found)

    def _smallest(self, options):
        """Return the smallest capacity that serves the trace, in whole MiB if that does as well; None if none does."""
        key = tuple(sorted(options.items()))
        if key not in self.known:
            self.known[key] = self._find_smallest(options)
        return self.known[key]

    def _find_smallest(self, options):
        fitter, settings = self._fitter(options)
        fit = fitter.smallest(settings)
        if fit is None:
            return None
        rounded = -(-fit.min_capacity // ROUND) * ROUND
        return rounded if fitter.serves(rounded, settings) else fit.min_capacity

    def _fitter(self, options, lag=None):
        names = ("backing", "growth", "reuse")
        changed = {name: options[name] for name in names if name in options}
        settings = {**self.settings, **{name: value for name, value in options.items() if name not in names}}
        lag, seed = (self.result.lag, self.result.seed) if lag is None else (lag, None)
        fitter = Fitter(self.trace, lag, seed, **{**self.parameters, **changed})
        fitter.step *= COARSE if self.result.lag else 1
        return fitter, settings


def _rank(advice):
    """What helps, by the memory that it needs; then what was not tried; then the rest."""
    order = {True: 0, None: 1, False: 2}[advice.helps]
    return (order, advice.capacity or 0)
