"""Profiles: what a run needed, for the pool of the next run to start with.

A profile is JSON, plain or compressed with gzip. docs/reference/profile.md describes every key.
"""

import operator
import os
from bisect import bisect_left
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from ._jsonfile import JsonFormat
from .errors import ProfileError
from .settings import CAPACITY_MAX, LARGEST_SLOT, MOST_CLASSES
from .sizes import format_size, is_index, shown

__all__ = ["Blocks", "Profile", "ProfileError", "Slots"]

HEADROOM = 0.15                 # of the peak, that a pool takes above it unless it is told otherwise
VERSION = 1
FORMAT = "cuda_pool profile"
FILE_MAX = 16 << 20             # bytes of text: thrice the largest profile that there can be
DIGITS_MAX = 19                 # of a number; COUNT_MAX has as many
COUNT_MAX = (1 << 63) - 1
STREAMS_MAX = 255               # that a pool keeps apart
BINS_MAX = 64
TEXT_MAX = 100
PROFILE = JsonFormat("profile", FORMAT, VERSION, FILE_MAX, COUNT_MAX, "four", ProfileError)
PEAKS = ("peak_requested", "peak_used", "peak_reserved")
SETTINGS = ("slab_max", "mid_max", "min_block")


class Slots(NamedTuple):
    """Slots of one size class that were in use at its peak."""

    size: int
    slots: int


class Blocks(NamedTuple):
    """Blocks outside the slabs from `size` to below twice that: bytes and blocks in use at the peak of each."""

    size: int
    nbytes: int
    blocks: int


@dataclass(frozen=True)
class Profile:
    """What a run of a pool needed; sizes in bytes.

    ``Pool.save_profile`` makes one. Two are merged with ``|``.

    Attributes
    ----------
    peak_requested, peak_used, peak_reserved : int
        High-water marks of the run, as in ``PoolStats``, in ascending order.
    allocations : int
        Allocations that the run had made.
    streams : tuple of tuple of cuda_pool.profile.Slots
        The size classes of each stream, in the order in which the streams appeared; the default stream is the first
        and always there. Sizes ascend.
    larger : tuple of cuda_pool.profile.Blocks
        Blocks of the mid and the buddy tier, by powers of two; sizes ascend.
    settings : dict
        ``slab_max``, ``mid_max`` and ``min_block`` of the pool.
    created_by : str
        The package that wrote it, and its version.

    Raises
    ------
    ValueError
        A value is out of range; the message names the key and what is accepted.
    TypeError
        A value is of a type that is not accepted.
    """

    peak_requested: int
    peak_used: int
    peak_reserved: int
    allocations: int
    streams: tuple
    larger: tuple
    settings: dict = field(hash=False)
    created_by: str

    def __post_init__(self):
        for key in (*PEAKS, "allocations"):
            _set(self, key, _count(getattr(self, key), key))
        if not self.peak_requested <= self.peak_used <= self.peak_reserved:
            raise ValueError("peak_requested <= peak_used <= peak_reserved does not hold: "
                             f"{self.peak_requested}, {self.peak_used}, {self.peak_reserved}")
        _set(self, "streams", tuple(_classes(pairs, f"streams[{at}].size_classes") for at, pairs in enumerate(
            _items(self.streams, "streams", 1, STREAMS_MAX))))
        _set(self, "larger", _larger(self.larger))
        _set(self, "settings", _settings(self.settings))
        if not isinstance(self.created_by, str):
            raise TypeError(f"created_by is a text, got {shown(self.created_by)}")
        _set(self, "created_by", self.created_by[:TEXT_MAX])

    @classmethod
    def load(cls, path):
        """Read a profile.

        Parameters
        ----------
        path : str or os.PathLike
            JSON, plain or gzip; at most 16 MiB of text.

        Raises
        ------
        ProfileError
            The file is no profile, is damaged, or is of a later version; the message names the file, the key and what
            is accepted.
        OSError
            The file cannot be read.
        """
        return PROFILE.load(path, cls.from_dict)

    def save(self, path):
        """Write the profile; what had the name before stays until the new file is whole.

        Parameters
        ----------
        path : str or os.PathLike
            With a name that ends in ``.gz`` the file is compressed.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        PROFILE.save(path, self.as_dict(), indent=1)

    def as_dict(self):
        """Return what ``save`` writes, as plain values."""
        return {
            "format": FORMAT, "version": VERSION, "created_by": self.created_by,
            **{key: getattr(self, key) for key in PEAKS}, "allocations": self.allocations,
            "streams": [{"size_classes": {str(size): slots for size, slots in classes}} for classes in self.streams],
            "larger": {str(size): {"bytes": nbytes, "blocks": blocks} for size, nbytes, blocks in self.larger},
            "settings": dict(self.settings),
        }

    @classmethod
    def from_dict(cls, values):
        """Return the profile of what ``as_dict`` gave; keys that are not known are ignored.

        Raises
        ------
        ValueError, TypeError
            As for the class, and for another `format` or `version`.
        """
        PROFILE.require(values)
        missing = [key for key in (*PEAKS, "allocations", "streams", "larger", "settings") if key not in values]
        if missing:
            raise ValueError(f"no {missing[0]}: a profile has {', '.join(PEAKS)}, allocations, streams, larger and "
                             "settings")
        streams = [_pairs(_key(_object(stream, f"streams[{at}]"), "size_classes", f"streams[{at}]"),
                          f"streams[{at}].size_classes") for at, stream in enumerate(_list(values["streams"]))]
        larger = [_blocks_of(size, peak) for size, peak in _pairs(values["larger"], "larger")]
        return cls(**{key: values[key] for key in (*PEAKS, "allocations")}, streams=streams, larger=larger,
                   settings=values["settings"], created_by=values.get("created_by", "unknown"))

    def __or__(self, other):
        """Return the profile of a run that needs what either of the two needed: every peak is the higher one.

        The settings and the name of the writer are those of the run with the higher `peak_used`.
        """
        if not isinstance(other, Profile):
            return NotImplemented
        first = max(self, other, key=lambda profile: profile.peak_used)
        count = max(len(self.streams), len(other.streams))
        streams = [_merged(_nth(self.streams, at), _nth(other.streams, at)) for at in range(count)]
        return Profile(
            **{key: max(getattr(self, key), getattr(other, key)) for key in (*PEAKS, "allocations")},
            streams=tuple(streams), larger=_merged(self.larger, other.larger), settings=first.settings,
            created_by=first.created_by)

    @property
    def size_classes(self):
        """Slots of every stream together, as a tuple of `cuda_pool.profile.Slots`."""
        total = {}
        for size, slots in (pair for classes in self.streams for pair in classes):
            total[size] = total.get(size, 0) + slots
        return tuple(Slots(size, total[size]) for size in sorted(total))

    @property
    def shares(self):
        """Share of each stream in the bytes of the slots, from 0 to 1."""
        nbytes = [sum(size * slots for size, slots in classes) for classes in self.streams]
        return tuple(one / sum(nbytes) if one else 0.0 for one in nbytes)

    def capacity(self, headroom):
        """Return what a pool reserves for the run: its peak of used bytes and `headroom` times that, in whole 2 MiB.

        Parameters
        ----------
        headroom : float
            From 0 to 1.
        """
        unit = 2 << 20
        share = Fraction(float(headroom)).limit_denominator(10**6)         # 0.1 as it was meant
        return max(-(-self.peak_used * (1 + share) // unit), 1) * unit

    def slots_for(self, size_classes):
        """Return, for each stream, the slots of a pool's `size_classes` that hold those of the profile.

        Sizes above the last class are left out: they are no slots there.
        """
        plan = []
        for classes in self.streams:
            slots = [0] * len(size_classes)
            for size, peak in classes:
                at = bisect_left(size_classes, size)
                if at < len(slots):
                    slots[at] += peak
            plan.append(slots)
        return plan


def as_profile(profile):
    """Return the Profile of an argument: one, or the path of one."""
    if isinstance(profile, Profile):
        return profile
    if isinstance(profile, (str, os.PathLike)):
        return Profile.load(profile)
    raise TypeError(f"a profile is a Profile, or the path of a saved one; got {shown(profile)}")


# Reading

def _pairs(values, key):
    """Return the items of an object whose keys are sizes."""
    return [(_size_of(text, key), value) for text, value in _object(values, key).items()]


def _size_of(text, key):
    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX and str(int(text)) == text):
        raise ValueError(f"the keys of {key} are sizes in bytes, got {shown(text)}")
    return int(text)


def _blocks_of(size, peak):
    key = f"larger[{size}]"
    return Blocks(size, *(_key(_object(peak, key), name, key) for name in ("bytes", "blocks")))


def _object(values, key):
    if not isinstance(values, dict):
        raise TypeError(f"{key} is an object, got {shown(values)}")
    return values


def _list(values):
    if not isinstance(values, list):
        raise TypeError(f"streams is a list, got {shown(values)}")
    return values


def _key(values, name, where):
    if name not in values:
        raise ValueError(f"{where} has no {name}")
    return values[name]


# Checking

def _set(profile, key, value):
    object.__setattr__(profile, key, value)         # the way of a frozen dataclass


def _count(value, key):
    if not is_index(value):
        raise TypeError(f"{key} is an integer from 0 to {COUNT_MAX}, got {shown(value)}")
    number = operator.index(value)
    if not 0 <= number <= COUNT_MAX:
        raise ValueError(f"{key} is an integer from 0 to {COUNT_MAX}, got {shown(number)}")
    return number


def _items(values, key, least, most):
    try:
        items = tuple(values)
    except TypeError:
        raise TypeError(f"{key} is a sequence, got {shown(values)}") from None
    if not least <= len(items) <= most:
        raise ValueError(f"{key} has from {least} to {most} items, got {len(items)}")
    return items


def _classes(pairs, key):
    classes = [Slots(_count(size, f"a size of {key}"), _count(slots, f"{key}[{shown(size)}]"))
               for size, slots in _items(pairs, key, 0, MOST_CLASSES)]
    _require_ascending([size for size, _ in classes], key)
    for size, slots in classes:
        if not 1 <= size <= LARGEST_SLOT:
            raise ValueError(f"the sizes of {key} are from 1 byte to {format_size(LARGEST_SLOT)}, got {size}")
        if slots * size > CAPACITY_MAX:
            raise ValueError(f"{key}[{size}] has at most {format_size(CAPACITY_MAX)} together, got {slots} slots of "
                             f"{size} bytes")
    return tuple(classes)


def _larger(items):
    bins = [Blocks(_count(size, "a size of larger"), _count(nbytes, f"bytes of larger[{size}]"),
                   _count(blocks, f"blocks of larger[{size}]"))
            for size, nbytes, blocks in _items(items, "larger", 0, BINS_MAX)]
    _require_ascending([size for size, _, _ in bins], "larger")
    for size, _, _ in bins:
        if size == 0 or size & (size - 1):
            raise ValueError(f"the sizes of larger are powers of two, got {size}")
    return tuple(bins)


def _require_ascending(sizes, key):
    if any(one >= other for one, other in zip(sizes, sizes[1:])):
        raise ValueError(f"the sizes of {key} ascend, got {shown(sizes)}")


def _settings(values):
    if not isinstance(values, dict):
        raise TypeError(f"settings is an object, got {shown(values)}")
    return {key: _count(_key(values, key, "settings"), f"settings.{key}") for key in SETTINGS}


# Merging

def _nth(streams, at):
    return streams[at] if at < len(streams) else ()


def _merged(one, other):
    """Return items with the higher one of each figure, for every size that either has."""
    peaks = {item.size: item for item in one}
    for item in other:
        peaks[item.size] = type(item)(*map(max, item, peaks.get(item.size, item)))
    return tuple(peaks[size] for size in sorted(peaks))
