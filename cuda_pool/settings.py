"""Settings of a pool: defaults, and what the arguments of ``Pool`` turn into."""

from dataclasses import dataclass

from .sizes import format_size, is_index, parse_size, shown

# Chosen by tools/sweep.py over recorded traces; docs/internals shows its table.
SLAB_MAX = 16 << 10
MID_MAX = 1 << 30
MIN_BLOCK = 64 << 10
GROWTH_STEP = 32 << 20          # of the mid tier, and the share of a small pool that it is at most
GROWTH_SHARE = 32
GOOD_FIT = False                # of the mid tier: best fit; docs/internals/measurements shows what good fit costs

ALIGNMENT = 256                 # of every address, and the step between sizes of the mid tier
SMALLEST_SLOT = 64
LARGEST_SLOT = 1 << 30
MOST_CLASSES = 512
CLASSES_PER_DOUBLING = 8        # so that rounding up wastes at most 1 / 8
GRANULES = 1 << 16              # entries of the address map that a small pool has, see _granule()
MOST_UNITS = 1 << 31            # of the buddy tier
CAPACITY_MAX = 512 << 30
REGION_PAGE = 2 << 20           # of the offsets of a pool that grows: no two regions have bytes in the same one
SPARE_PAGES = 1024
SPAN_MAX = (1 << 40) - REGION_PAGE      # offsets count units of ALIGNMENT, in 32 bits


@dataclass(frozen=True)
class Settings:
    """What the tiers of a pool are made with; all sizes in bytes.

    Attributes
    ----------
    slab_max : int
        Largest request that is served from a slab; 0: there are no slabs.
    mid_max : int
        Largest request that goes to the mid tier first; larger ones go to the buddy tier first.
    min_block : int
        Unit of the buddy tier, a power of two.
    growth_step : int
        Bytes by which the mid tier grows while there is room, a power of two.
    granule : int
        Unit of the address map, a power of two; live blocks outside slabs start in different granules.
    size_classes : tuple of int
        Slot sizes, ascending.
    good_fit : bool
        Whether the mid tier takes the first block of the next bin instead of the best fit.
    """

    slab_max: int
    mid_max: int
    min_block: int
    growth_step: int
    granule: int
    size_classes: tuple
    good_fit: bool = False


def resolve(capacity, slab_max=None, mid_max=None, min_block=None, size_classes=None, max_capacity=None, *, page=0):
    """Return the settings of a pool of `capacity` bytes, or of one that begins with them and grows.

    Parameters
    ----------
    capacity : int
        Bytes.
    slab_max, mid_max, min_block : int or str, optional
        Sizes; the defaults are `SLAB_MAX`, `MID_MAX` and `MIN_BLOCK`. The first and the last are at most
        `LARGEST_SLOT`; a `mid_max` above `CAPACITY_MAX` is `CAPACITY_MAX`, which is every request.
    size_classes : int, str or iterable of sizes, optional
        The smallest slot (64, 128 or 256 bytes) of the usual classes, or every class by hand.
    max_capacity : int, optional
        Bytes that it grows to at most.
    page : int, optional
        Bytes of a page of the virtual memory that the pool is made of, 0 if it is not: `min_block` is at least that.

    Raises
    ------
    ValueError
        A setting is out of range or contradicts another; the message says what is accepted.
    TypeError
        A setting is of a type that is not accepted.
    """
    if size_classes is None or isinstance(size_classes, str) or is_index(size_classes):
        largest = SLAB_MAX if slab_max is None else parse_size(slab_max)
        classes = usual_classes(largest, 256 if size_classes is None else parse_size(size_classes))
    elif slab_max is not None:
        raise ValueError("give slab_max or a list of size_classes, not both: the largest class is slab_max")
    else:
        classes = _classes_by_hand(size_classes)
    slab_max = classes[-1] if classes else 0
    min_block = max(_min_block(capacity, min_block), page)
    mid_max = MID_MAX if mid_max is None else min(parse_size(mid_max), CAPACITY_MAX)
    return Settings(slab_max=slab_max, mid_max=mid_max, min_block=min_block,
                    growth_step=_power_below(min(GROWTH_STEP, capacity // GROWTH_SHARE)),
                    granule=_granule(max_capacity or capacity, slab_max, min_block), size_classes=classes,
                    good_fit=GOOD_FIT)


def require_capacity(nbytes, given=None):
    """Raise ValueError unless a pool can have a capacity of `nbytes` bytes; `given` is how it was asked for."""
    if not ALIGNMENT <= nbytes <= CAPACITY_MAX:
        got = f"{shown(nbytes)} bytes"
        raise ValueError(f"capacity is from {ALIGNMENT} bytes to {format_size(CAPACITY_MAX)}, got "
                         + (got if given is None or is_index(given) else f"{shown(given)}, which is {got}"))


def span_for(max_capacity):
    """Return how many bytes of offsets a pool needs that grows to `max_capacity` bytes.

    Regions come and go, and each begins and ends in 2 MiB of its own: twice the memory and some more leaves room for
    one more wherever the others lie. Only what is used takes host memory.
    """
    return min(-(-2 * max_capacity // REGION_PAGE) * REGION_PAGE + SPARE_PAGES * REGION_PAGE, SPAN_MAX)


def usual_classes(largest, smallest=256):
    """Return slot sizes from `smallest` bytes to at least `largest`, each at most 1/8 above the one before.

    Below eight times `smallest` the step is `smallest` itself.
    """
    if smallest not in (64, 128, 256):
        raise ValueError(f"the smallest size class is 64, 128 or 256 bytes, got {shown(smallest)}")
    if largest > LARGEST_SLOT:
        raise ValueError(f"slab_max is at most {format_size(LARGEST_SLOT)}, got {format_size(largest)}")
    sizes, size = [], smallest
    while largest and (not sizes or sizes[-1] < largest):
        sizes.append(size)
        size += max(smallest, (1 << (size.bit_length() - 1)) // CLASSES_PER_DOUBLING)
    return tuple(sizes)


def _classes_by_hand(size_classes):
    given = _listed(size_classes)
    sizes = sorted({-(-parse_size(size) // SMALLEST_SLOT) * SMALLEST_SLOT for size in given})
    if not sizes or len(sizes) > MOST_CLASSES or sizes[0] == 0 or sizes[-1] > LARGEST_SLOT:
        raise ValueError(f"size_classes are 1 to {MOST_CLASSES} sizes from 1 byte to {format_size(LARGEST_SLOT)}, "
                         f"got {shown(given)}")
    return tuple(sizes)


def _listed(size_classes):
    """Return the sizes as a list, which can be shown after it was looked through."""
    if not isinstance(size_classes, (bytes, bytearray)):        # text that was meant, in all likelihood
        try:
            return list(size_classes)
        except TypeError:           # no iterable, or an array without dimensions
            pass
    raise TypeError(f"size_classes is a size, or an iterable of sizes; got {shown(size_classes)}")


def _min_block(capacity, min_block):
    size = MIN_BLOCK if min_block is None else parse_size(min_block)
    if size < ALIGNMENT or size > LARGEST_SLOT or size & (size - 1):
        raise ValueError(f"min_block is a power of two from {ALIGNMENT} bytes to {format_size(LARGEST_SLOT)}, "
                         f"got {shown(size)}")
    if capacity // size >= MOST_UNITS:
        raise ValueError(f"min_block of {size} bytes is too small for {format_size(capacity)}: "
                         f"at most {MOST_UNITS} blocks")
    return size


def _granule(capacity, slab_max, min_block):
    """Coarse enough for a small address map, fine enough that no request outside the slabs is rounded up to it."""
    return max(ALIGNMENT, min(min_block, _power_below(slab_max), _power_below(capacity // GRANULES)))


def _power_below(size):
    """Return the largest power of two up to `size`, or 1."""
    return 1 << max(size, 1).bit_length() - 1
