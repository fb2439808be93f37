"""Why an allocation failed, in words: from what the pool was like, and from a history if there is one."""

from dataclasses import asdict, dataclass, field

import numpy as np

from .evidence import HOLDERS_MAX, Holder
from .settings import CAPACITY_MAX
from .sizes import counted, format_size

__all__ = ["Advice", "Cause", "Diagnosis", "Moment", "diagnose"]

HOLDERS_SHOWN = 6
NOTABLE = 0.1               # of what is in use: less waste by rounding is not worth a word
CROWD = 64                  # blocks: so many of one size may be a leak
PERIODS_MIN = 4             # of a life that shows whether memory is lost
TURNED_OVER = 0.8           # share of the blocks that were freed: less may be a program that still sets itself up
NOTICED = 0.01              # share of what is in use that was lost: less may be chance
STEADY = 0.1                # share of all that was lost that each quarter of the time has, but for the first
UNIT = 256                  # bytes of a block that is no slot
ROUND = 1 << 20             # to which a proposed capacity is rounded up

CERTAIN, LIKELY, POSSIBLE = "certain", "likely", "possible"
NAMES = {"leak": "memory leak", "small": "the pool is too small", "rounding": "rounding",
         "fragmentation": "fragmentation", "pending": "pending work", "device": "the device has no more memory",
         "alignment": "alignment"}


@dataclass(frozen=True)
class Moment:
    """A pool at the moment when an allocation failed; sizes in bytes.

    Attributes
    ----------
    capacity, reserved, used, used_high, pending, free, largest_free, alloc_count, free_count : int
        As in ``cuda_pool.PoolStats``.
    live : int
        What was asked for in live blocks.
    free_blocks : int
        Free blocks outside slabs.
    slab_bytes, slab_free : int
        In slabs, and of that what is in no used slot.
    tier_free : dict
        Free bytes in ``slab`` (as `slab_free`), ``mid`` and ``buddy``; where pages move they are addresses.
    captures : int
        That are under way.
    sampled : bool
        Whether `holders` and `pending_on` are estimates from a sample of the blocks.
    backing : str
    grows : bool
    reuse : str
    settings : dict
        ``slab_max``, ``mid_max`` and ``min_block``.
    tiers : dict
        ``blocks``, ``used`` and ``requested`` of ``slab``, ``mid`` and ``buddy``.
    holders : tuple of cuda_pool.evidence.Holder
        The largest first.
    pending_on : tuple of dict
        ``stream`` (None: more than one) and ``used``, the largest first.
    periods : tuple of (int, int, int)
        Of the pool's life so far, in even steps: allocations that there had been at the end, and the highest and the
        lowest bytes in use that were seen.
    """

    capacity: int
    reserved: int
    used: int
    live: int
    free: int
    largest_free: int
    used_high: int = 0
    pending: int = 0
    free_blocks: int = 0
    slab_bytes: int = 0
    slab_free: int = 0
    tier_free: dict = field(default_factory=dict)
    alloc_count: int = 0
    free_count: int = 0
    captures: int = 0
    sampled: bool = False
    backing: str = "malloc"
    grows: bool = False
    reuse: str = "wait"
    settings: dict = field(default_factory=dict)
    tiers: dict = field(default_factory=dict)
    holders: tuple = ()
    pending_on: tuple = ()
    periods: tuple = ()

    @classmethod
    def of(cls, values):
        """Return the Moment of what ``OutOfMemoryError.moment`` holds."""
        holders = sorted((Holder(**holder) for holder in values["holders"]), key=lambda holder: -holder.used)
        pending = sorted(values["pending_on"], key=lambda one: -one["used"])
        return cls(**{**values, "holders": tuple(holders), "pending_on": tuple(pending),
                      "periods": tuple(values.get("periods", ()))})

    @property
    def room(self):
        """Bytes that blocks may have: of a static pool that is what it got, of any other the capacity."""
        return self.capacity if self.grows or not self.reserved else self.used + self.free

    @property
    def of_graphs(self):
        """Free bytes that captures keep for their graphs."""
        return sum(one["used"] for one in self.pending_on if (one["stream"] or "").startswith("capture"))

    @property
    def waste(self):
        """Bytes in use that nobody asked for."""
        return self.used - self.live


@dataclass(frozen=True)
class Cause:
    """One reason why there was no block.

    Attributes
    ----------
    kind : str
        ``"leak"``, ``"small"`` (the pool), ``"rounding"``, ``"fragmentation"``, ``"pending"`` (work), ``"device"``
        (that has no more memory) or ``"alignment"``.
    certainty : str
        ``"certain"``, ``"likely"`` or ``"possible"``.
    nbytes : int
        What it takes away, or what is missing.
    text : str
    """

    kind: str
    certainty: str
    nbytes: int
    text: str


@dataclass(frozen=True)
class Advice:
    """Something to do about it.

    Attributes
    ----------
    setting : str
        As it is written in a program, such as ``backing="virtual"``.
    text : str
        What it changes.
    options : dict or None
        The same as arguments of ``cuda_pool.replay.replay``; None if that cannot try it.
    helps : bool or None
        Whether a replay of the whole trace went well with it; None if none was made.
    capacity : int or None
        Bytes: the smallest capacity with which one did.
    failed_row : int or None
        Where the replay failed that had no more than the capacity of the failure.
    """

    setting: str
    text: str
    options: dict | None = None
    helps: bool | None = None
    capacity: int | None = None
    failed_row: int | None = None


@dataclass(frozen=True)
class Diagnosis:
    """Why an allocation failed, and what to do about it. ``print`` shows it in words, ``rich.print`` with tables.

    Attributes
    ----------
    requested, capacity, reserved, used, live, pending, free, largest_free : int
        Bytes: what was asked for, and the pool at that moment; `live` is what was asked for in live blocks.
    causes : tuple of Cause
        The most important first.
    holders : tuple of cuda_pool.evidence.Holder
        What has most of the memory.
    sampled : bool
        Whether the holders are estimates from a sample of the blocks, as there are many.
    advice : tuple of Advice
        What helps most first; what did not help when it was tried comes last.
    """

    requested: int
    capacity: int
    reserved: int
    used: int
    live: int
    pending: int
    free: int
    largest_free: int
    causes: tuple
    holders: tuple
    sampled: bool
    advice: tuple

    def as_dict(self):
        """Return the diagnosis as a dict of plain values, as ``cuda-pool replay --json`` writes it."""
        return asdict(self)

    def __str__(self):
        from .report import text_of
        return text_of(self)

    def __repr__(self):
        return f"<Diagnosis: {', '.join(cause.kind for cause in self.causes)}>"

    def __rich_console__(self, console, options):
        from .report import renderables_of
        yield from renderables_of(self)


def diagnose(requested, moment, evidence=None):
    """Say why an allocation failed.

    Parameters
    ----------
    requested : int
        Bytes that were asked for.
    moment : Moment
        The pool at that moment.
    evidence : cuda_pool.evidence.Evidence, optional
        What a history tells; without one a leak is a guess.

    Returns
    -------
    Diagnosis
    """
    causes = _ranked(requested, moment, _causes(requested, moment, evidence))
    known = bool(evidence and evidence.holders)
    holders = evidence.holders if known else moment.holders[:HOLDERS_MAX]
    return Diagnosis(
        requested=requested, capacity=moment.capacity, reserved=moment.reserved, used=moment.used, live=moment.live,
        pending=moment.pending, free=moment.free, largest_free=moment.largest_free, causes=tuple(causes),
        holders=tuple(holders), sampled=moment.sampled and not known, advice=tuple(_advice(requested, moment, causes)))


# Causes

def _causes(requested, moment, evidence):
    found = [_small(requested, moment, evidence), _rounding(requested, moment), _pieces(requested, moment),
             _leak(requested, moment, evidence)]
    return [cause for cause in found if cause]


def _small(requested, moment, evidence):
    """Nothing else helps if what is live and the request are more than the pool may hold."""
    lacking = moment.live + requested - moment.room
    if lacking <= 0:
        return _small_later(moment, evidence)
    if requested > moment.room:
        text = f"the request alone is more than the capacity of {format_size(moment.capacity)}"
    else:
        text = (f"the program had {format_size(moment.live)} in live blocks; with the {format_size(requested)} that "
                f"were asked for that is {format_size(lacking)} more than the capacity of "
                f"{format_size(moment.capacity)}")
    return Cause("small", CERTAIN, lacking, text)


def _small_later(moment, evidence):
    lacking = evidence.peak_live - moment.capacity if evidence else 0
    if lacking <= 0:
        return None
    return Cause("small", CERTAIN, lacking, (
        f"later the program has {format_size(evidence.peak_live)} in live blocks, {format_size(lacking)} more than the "
        f"capacity of {format_size(moment.capacity)}"))


def _rounding(requested, moment):
    """It decides where the live bytes alone would have left room, and is worth a word where it takes much."""
    waste = moment.waste
    decides = moment.live + requested <= moment.room < moment.used + requested
    if waste == 0 or not (decides or waste >= NOTABLE * moment.used):
        return None
    parts = ", ".join(f"{format_size(tier['used'] - tier['requested'])} in the {name} tier"
                      for name, tier in moment.tiers.items() if tier["used"] > tier["requested"])
    return Cause("rounding", CERTAIN, waste, (
        f"blocks occupy {format_size(waste)} more than was asked for, {waste / moment.used:.0%} of what is in use"
        + (f": {parts}" if parts else "")))


def _pieces(requested, moment):
    """There is room enough in sum: it is in pieces, or not to be had now, or the device has not got it."""
    if moment.used + requested > moment.room:
        return None
    if moment.largest_free >= requested:
        return _pending(moment) if moment.pending or moment.captures else _unaligned(requested, moment)
    if moment.free >= requested > moment.free - moment.of_graphs:
        return _graphs(moment)
    if moment.free >= requested and not _could_grow(requested, moment):
        return _fragmentation(requested, moment)
    return _device(requested, moment)


def _could_grow(requested, moment):
    """May the pool hold so much more that a region, or pages, for the request would have been allowed?"""
    needed = max(requested - moment.free, 0) if moment.backing == "virtual" else requested
    return moment.grows and moment.reserved + needed <= moment.capacity


def _fragmentation(requested, moment):
    text = (f"{format_size(moment.free)} are free, more than the {format_size(requested)} that were asked for, but the "
            f"largest piece is {format_size(moment.largest_free)}")
    if moment.free_blocks > 1:
        text += f": there are {moment.free_blocks} free blocks between live ones"
    if moment.slab_free >= NOTABLE * moment.free:
        text += f"; {format_size(moment.slab_free)} of it are free slots in slabs that are in use"
    return Cause("fragmentation", CERTAIN, moment.free - moment.largest_free, text)


def _pending(moment):
    on = ", ".join(f"{format_size(one['used'])} on {_stream_text(one['stream'])}" for one in moment.pending_on[:3])
    text = (f"{format_size(moment.pending)} were freed in the order of streams whose work was not known to be done"
            + (f" ({on})" if on else "")
            + f"; once it is, {format_size(moment.largest_free)} can be had in one piece")
    if moment.captures:
        text += f". While a stream is captured ({moment.captures} under way) the pool may not wait for that work"
    return Cause("pending", CERTAIN, moment.pending, text)


def _graphs(moment):
    return Cause("pending", CERTAIN, moment.of_graphs, (
        f"{format_size(moment.of_graphs)} of the free memory are kept for CUDA graphs that were captured: they use it "
        "each time they are launched, and nobody else gets it before their release"))


def _unaligned(requested, moment):
    return Cause("alignment", LIKELY, requested, (
        f"a block of {format_size(moment.largest_free)} is free, but not at the alignment that was asked for; or "
        "another thread freed it right after the failure"))


def _device(requested, moment):
    more = moment.capacity - moment.reserved
    if moment.reserved == 0 and not moment.grows:
        return Cause("device", CERTAIN, requested - moment.free, (
            f"the device has {format_size(moment.free)} free" if moment.free < requested else
            f"the device has {format_size(moment.free)} free, but not in one piece"))
    return Cause("device", CERTAIN, requested - moment.largest_free, (
        f"the pool holds {format_size(moment.reserved)} and may take {format_size(more)} more, but the device did not "
        "give it: it has not that much free"))


def _leak(requested, moment, evidence):
    if evidence is None:
        return _rising(requested, moment) or _suspected(requested, moment)
    nbytes = sum(leak.holder.requested for leak in evidence.leaks)
    certainty = LIKELY if any(leak.certainty == LIKELY for leak in evidence.leaks) else POSSIBLE
    lacking = moment.used + requested - moment.room
    if nbytes < NOTABLE * moment.used or nbytes == 0 or (certainty == POSSIBLE and lacking <= 0):
        return None
    first = evidence.leaks[0]
    text = (f"{first.holder.blocks} blocks of {sizes_text(first.holder)} on {_stream_text(first.holder.stream)} came "
            f"all through the run, {first.per_1000:.3g} in 1,000 events, and are never freed: "
            f"{format_size(first.holder.requested)}")
    if len(evidence.leaks) > 1:
        text += f"; with {counted(len(evidence.leaks) - 1, 'more group')} of blocks {format_size(nbytes)}"
    if certainty == POSSIBLE:
        text += ". It may be what the program needs: the history ends too early to tell"
    return Cause("leak", certainty, nbytes, text)


def _rising(requested, moment):
    """Without a recording: what is in use never falls back to where it was, all through the pool's life."""
    if len(moment.periods) < PERIODS_MIN or moment.free_count < TURNED_OVER * moment.alloc_count:
        return None
    floors = _floors(moment.periods)
    nbytes = floors[-1] - floors[0]
    lacking = moment.used + requested - moment.room
    if nbytes < max(lacking, NOTICED * moment.used) or np.diff(floors).min() < STEADY * nbytes:
        return None
    return Cause("leak", LIKELY, nbytes, (
        f"what is in use never falls back to where it was: the least rose from {format_size(floors[0])} to "
        f"{format_size(floors[-1])} in the last three quarters of {moment.alloc_count} allocations, in each of them, "
        f"though {moment.free_count / moment.alloc_count:.0%} of all blocks were freed. A recording tells whose they "
        "are: trace=\"run.csv.gz\", stacks=True"))


def _floors(periods):
    """Return what was in use at least from each quarter of a pool's life on, beginning with the end of the first."""
    ends, _, troughs = np.array(periods, dtype=float).T
    floors = np.minimum.accumulate(troughs[::-1])[::-1]
    return np.interp(ends[-1] * np.arange(1, 5) / 4, ends, floors).astype(int).tolist()


def _suspected(requested, moment):
    """Without a history: many blocks of one size that have most of the memory."""
    first = moment.holders[0] if moment.holders else None
    if first is None or first.blocks < CROWD or 2 * first.used < moment.used:
        return None
    if requested > moment.free + first.used:        # they would not have made room
        return None
    return Cause("leak", POSSIBLE, first.used, (
        f"{first.blocks} blocks of {sizes_text(first)} have {first.used / moment.used:.0%} of what is in use; of all "
        f"{moment.alloc_count} allocations so far {moment.free_count} were freed. Only a recording tells whether that "
        "is a leak or what the program needs"))


def _ranked(requested, moment, causes):
    """What alone would have made room comes first; then what is more certain, takes more."""
    lacking = max(moment.used + requested - moment.room, 1)

    def rank(cause):
        suffices = cause.kind != "small" and cause.nbytes >= lacking and cause.certainty != POSSIBLE
        return (not suffices, (CERTAIN, LIKELY, POSSIBLE).index(cause.certainty), cause.kind != "small", -cause.nbytes)

    return sorted(causes, key=rank)


# Advice

def _advice(requested, moment, causes):
    """Return what to do, the first cause's first; a setting once."""
    found = {}
    for cause in causes:
        for advice in RULES[cause.kind](requested, moment):
            found.setdefault(advice.setting, advice)
    return list(found.values())


def _for_fragmentation(requested, moment):
    if moment.backing == "malloc":
        yield Advice('backing="virtual"', "pages move under the block that needs them, so that all free memory can be "
                     "had in one piece", {"backing": "virtual"})
    yield from _larger_mid(requested, moment)
    yield Advice("Pool.movable and Pool.defragment", "blocks that may move are moved together, by itself before an "
                 "allocation fails")
    yield from _capacity(moment.capacity + requested, moment)


def _larger_mid(requested, moment):
    """Where the buddy tier is used: let the mid tier have it all."""
    mid_max = moment.settings.get("mid_max", CAPACITY_MAX)
    largest = max([requested, *(holder.largest for holder in moment.holders)])
    if moment.backing == "malloc" and mid_max < min(largest, CAPACITY_MAX):
        larger = min(1 << (largest - 1).bit_length(), CAPACITY_MAX)
        yield Advice(f'mid_max="{brief(larger)}"', "blocks up to that size are placed by best fit, not in powers of "
                     "two", {"mid_max": larger})


def _for_rounding(requested, moment):
    waste = {name: tier["used"] - tier["requested"] for name, tier in moment.tiers.items()}
    yield from _larger_mid(requested, moment)
    if waste.get("buddy", 0) and moment.settings["min_block"] > 4096:
        yield Advice('min_block="4KiB"', "the buddy tier rounds up to less", {"min_block": 4096})
    # Elsewhere, too, a block has whole units: it would waste up to one.
    slots = moment.tiers.get("slab", {}).get("blocks", 0)
    if waste.get("slab", 0) >= max(slots, 1) * UNIT and moment.settings["slab_max"] > 1024:
        yield Advice('slab_max="1KiB"', "only the smallest blocks are slots of a size class", {"slab_max": 1024})
        yield Advice("slab_max=0", "no block is rounded up to a size class", {"slab_max": 0})
    yield from _capacity(moment.used + requested, moment)


def _for_small(requested, moment):
    yield from _capacity(moment.used + requested, moment)
    if not moment.grows:
        yield Advice('growth="dynamic"', "the pool takes more from the device when it needs it, up to max_capacity",
                     {"growth": "dynamic"})


def _for_pending(requested, moment):
    if moment.reuse != "wait":
        yield Advice('reuse="wait"', "the pool puts a stream behind the work of another one to get its memory",
                     {"reuse": "wait"})
    if moment.captures:
        yield Advice("allocate before the capture begins", "outside of a capture the pool waits for pending work")
    if moment.of_graphs:
        yield Advice("Capture.release", "others get the memory of a graph that is gone")
    yield Advice("Pool.free or Pool.forget_stream once the work is done", "what is freed so is anybody's at once")


def _for_device(requested, moment):
    if moment.reserved == 0:
        yield Advice("capacity=0.75", "a share of what the device has free")
        return
    yield Advice("cuda_pool.release_memory and Pool.trim", "pools give back what they do not use; call it where others "
                 "hold memory, or from Pool.on_pressure")
    yield Advice("growth=\"static\"", "if the device has room for it, the pool has its capacity from the start, before "
                 "others take the memory")


def _for_leak(requested, moment):
    yield Advice("free these blocks", "a larger pool only fails later")


def _for_alignment(requested, moment):
    yield Advice("a smaller alignment", "256 bytes always fit")


RULES = {"leak": _for_leak, "small": _for_small, "rounding": _for_rounding, "fragmentation": _for_fragmentation,
         "pending": _for_pending, "device": _for_device, "alignment": _for_alignment}


def _capacity(nbytes, moment):
    nbytes = -(-nbytes // ROUND) * ROUND
    if nbytes <= CAPACITY_MAX:
        name = "max_capacity" if moment.grows else "capacity"
        yield Advice(f'{name}="{brief(nbytes)}"', "about what would have served this request", {"capacity": nbytes})


# Words

def sizes_text(holder):
    """Return the sizes of a holder's blocks."""
    smallest, largest = format_size(holder.smallest), format_size(holder.largest)
    return largest if smallest == largest else f"{smallest} to {largest}"


def brief(nbytes):
    """Return a size as a setting is written: exact, in the largest unit that divides it."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes and nbytes % (1 << power) == 0:
            return f"{nbytes >> power}{unit}"
    return str(nbytes)


def _stream_text(stream):
    if stream is None:
        return "several streams"
    return f"stream {stream}" if isinstance(stream, int) else f"the stream {stream}"


def moment_of_error(error):
    """Return the Moment of an OutOfMemoryError; where it has none, one of its numbers alone."""
    if error.moment is not None:
        return Moment.of(error.moment)
    return Moment(capacity=error.capacity, reserved=error.reserved, used=0, live=0, free=error.free,
                  largest_free=error.largest_free)
