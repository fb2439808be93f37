"""Why a trace needs the capacity that it needs, and what other settings save: figures from replays, and words."""

from dataclasses import dataclass

from .diagnosis import NAMES, brief, diagnose, sizes_text
from .sizes import counted, format_size

__all__ = ["Change", "Tightest", "TierWaste", "explain"]

NOTABLE = 0.05              # of what the capacity is above the peak: less waste is not worth a word
SIZES = 5                   # size classes of a tier
SHOWN = 2                   # that a text names
BELOW = {"mid_max": ("mid", "buddy"), "slab_max": ("slab", "mid")}      # the tiers on both sides of a limit


@dataclass(frozen=True)
class TierWaste:
    """What a tier has at the tightest moment, in bytes.

    Attributes
    ----------
    tier : str
    blocks : int
        That are live.
    requested : int
        What was asked for in them.
    rounding : int
        What they occupy beyond that.
    free : int or None
        What lies free in the tier; None where pages move, and free memory is in no tier.
    share : float
        Of the tier's memory that is wasted: ``(rounding + free) / (requested + rounding + free)``.
    sizes : tuple of cuda_pool.evidence.Holder
        Live blocks by size class, those that have most first, at most five.
    """

    tier: str
    blocks: int
    requested: int
    rounding: int
    free: int | None
    share: float
    sizes: tuple


@dataclass(frozen=True)
class Tightest:
    """The moment that asks for the capacity: where the trace fails with a little less.

    Attributes
    ----------
    row : int
        Of the trace.
    capacity : int
        Bytes: with which it fails there.
    requested, live, used, free, largest_free : int
        Bytes, as of ``cuda_pool.diagnosis.Diagnosis``.
    waste : tuple of TierWaste
        Of the tiers that have memory.
    """

    row: int
    capacity: int
    requested: int
    live: int
    used: int
    free: int
    largest_free: int
    waste: tuple


@dataclass(frozen=True)
class Change:
    """One setting that was changed, and what that does to the smallest capacity.

    Attributes
    ----------
    setting : str
        As it is written in a program, such as ``mid_max="64MiB"``.
    options : dict
        The same as values.
    min_capacity : int
        Bytes: the smallest capacity that serves the trace with this change alone.
    saves : int
        Bytes: how much less that is; below 0 where it is more.
    text : str
    """

    setting: str
    options: dict
    min_capacity: int
    saves: int
    text: str


def explain(fitter, chosen, found, best, compared):
    """Return why a trace needs its smallest capacity: the `Tightest`, the `Change`s, and the reasons in words.

    Parameters
    ----------
    fitter : Fitter
        Of the trace.
    chosen : dict
        Settings that were given, which `found` holds for.
    found : Fit
    best : Fit or None
        The settings that need least, if they were looked for.
    compared : dict
        Other values of settings, to be tried one by one.
    """
    failure = fitter.just_below(found, chosen)
    tightest = failure and _tightest(failure, fitter)
    changes = [_change(fitter, chosen, found, best, failure, name, value) for name, value in compared.items()]
    changes = sorted((change for change in changes if change), key=lambda change: -change.saves)
    reasons = [_need(fitter, found, failure, tightest)]
    if tightest:
        least = max(NOTABLE * (found.min_capacity - fitter.trace.peak_live), fitter.step)
        reasons += [_waste_text(waste) for waste in tightest.waste if waste.rounding + (waste.free or 0) >= least]
    reasons += [change.text for change in changes if change.saves >= fitter.step]
    reasons += _together(found, best, changes)
    return tightest, tuple(changes), reasons


def _tightest(failure, fitter):
    moment = failure.moment
    waste = [_waste(name, moment) for name in moment.tiers]
    return Tightest(
        row=failure.row, capacity=moment.capacity, requested=failure.requested, live=moment.live, used=moment.used,
        free=moment.free, largest_free=moment.largest_free, waste=tuple(one for one in waste if one.blocks or one.free))


def _waste(name, moment):
    tier = moment.tiers[name]
    free = moment.tier_free[name] if moment.backing == "malloc" else None
    rounding = tier["used"] - tier["requested"]
    wasted, whole = rounding + (free or 0), tier["used"] + (free or 0)
    return TierWaste(tier=name, blocks=tier["blocks"], requested=tier["requested"], rounding=rounding, free=free,
                     share=wasted / whole if whole else 0.0,
                     sizes=tuple(holder for holder in moment.holders if holder.tier == name)[:SIZES])


def _need(fitter, found, failure, tightest):
    """Say what the capacity is made of."""
    more = found.min_capacity - fitter.trace.peak_live
    if failure is None:
        if more >= fitter.step:
            return f"{format_size(found.min_capacity)} are {format_size(more)} more than the peak of live bytes"
        rounded = f" of {format_size(fitter.trace.peak_live)}, rounded up" if more else ""
        return f"{format_size(found.min_capacity)} are the peak of live bytes{rounded}: no setting could need less"
    cause = diagnose(failure.requested, failure.moment).causes[0]
    return (f"{format_size(found.min_capacity)} are {format_size(more)} more than the peak of live bytes: with "
            f"{format_size(found.min_capacity - tightest.capacity)} less the trace fails at row {failure.row}, for "
            f"{NAMES[cause.kind]}: {cause.text}")


def _waste_text(waste):
    if not waste.sizes:
        return f"{format_size(waste.free)} were free in the {waste.tier} tier at that moment, and no block was in it"
    sizes = " and ".join(sizes_text(holder) for holder in waste.sizes[:SHOWN])
    parts = [f"{format_size(waste.rounding)} rounding"] if waste.rounding else []
    parts += [f"{format_size(waste.free)} free beside them"] if waste.free else []
    others = " and others" if len(waste.sizes) > SHOWN else ""
    return (f"blocks of {sizes}{others} waste {waste.share:.0%} in the {waste.tier} tier at that moment: "
            f"{' and '.join(parts)}")


def _change(fitter, chosen, found, best, failure, name, value):
    """Fit with one setting changed; None where no capacity serves the trace then."""
    setting = f"{name}={_shown(value)}"
    if name == "backing":
        other = fitter.with_backing(value)
        fit = other.smallest(chosen)
        fitter.replays += other.replays
    else:
        fit = fitter.smallest({**chosen, name: value})
    if fit is None:
        return None
    least = fit.min_capacity
    if best and best.settings == {**found.settings, name: value}:
        least = min(least, best.min_capacity)       # a bisection that began elsewhere may have found less
    saves = found.min_capacity - least
    if 0 < saves < fitter.step:
        text = f"{setting} saves less than the {format_size(fitter.step)} that capacities are found to within"
    else:
        why = _moved(failure, name, found.settings.get(name), value) if saves > 0 else ""
        text = f"{setting} {'saves' if saves > 0 else 'costs'} {format_size(abs(saves))}{why}"
    return Change(setting, {name: value}, least, saves, text)


def _shown(value):
    return f'"{value}"' if isinstance(value, str) else f'"{brief(value)}"' if value else "0"


def _moved(failure, name, old, new):
    """Say which blocks a limit between two tiers moves."""
    if name == "backing":
        return ": free pages go under the block that needs them"
    if failure is None or name not in BELOW:
        return ""
    low, high = min(old, new), max(old, new)
    holders = [holder for holder in failure.moment.holders if low < holder.largest <= high]
    if not holders:
        return ""
    below, above = BELOW[name]
    goes, was = (below, above) if new > old else (above, below)
    blocks = sum(holder.blocks for holder in holders)
    nbytes = sum(holder.used for holder in holders)
    return (f": {counted(blocks, 'block')}, {format_size(nbytes)}, most of it in those of {sizes_text(holders[0])}, go to the "
            f"{goes} tier instead of the {was} tier")


def _together(found, best, changes):
    if best is None:
        return []
    saves = found.min_capacity - best.min_capacity
    if saves <= 0:
        return ["no other choice of slab_max, mid_max and min_block that was tried needs less"]
    settings = ", ".join(f"{name}={_shown(value)}" for name, value in best.settings.items()
                         if value != found.settings[name])
    alone = [change for change in changes
             if change.min_capacity <= best.min_capacity and "backing" not in change.options]
    return [] if alone else [f"{settings} together save {format_size(saves)}"]
