"""What the arguments of Pool turn into."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_pool.settings import (
    CAPACITY_MAX, LARGEST_SLOT, MID_MAX, MIN_BLOCK, MOST_CLASSES, SLAB_MAX, require_capacity, resolve, usual_classes)

from .models import effort

GIB = 1 << 30
HUGE = 10**5000                 # Python writes no int of more than 4,300 digits
SIZES = st.integers(256, CAPACITY_MAX)


def test_defaults():
    settings = resolve(8 * GIB)
    assert (settings.slab_max, settings.mid_max, settings.min_block) == (SLAB_MAX, MID_MAX, MIN_BLOCK)
    assert settings.size_classes == usual_classes(SLAB_MAX)


def test_sizes_as_text():
    settings = resolve(8 * GIB, slab_max="4KiB", mid_max="1MiB", min_block="4KiB")
    assert (settings.slab_max, settings.mid_max, settings.min_block) == (4096, 1 << 20, 4096)


def test_no_slabs():
    settings = resolve(GIB, slab_max=0)
    assert settings.size_classes == () and settings.slab_max == 0


@pytest.mark.parametrize("mid_max", [CAPACITY_MAX, CAPACITY_MAX + 1, "1PiB", 10**400, HUGE], ids=lambda _: "")
def test_mid_max_above_every_capacity(mid_max):
    """It means every request, whatever its value, and stays one that can be shown."""
    settings = resolve(GIB, mid_max=mid_max)
    assert settings.mid_max == CAPACITY_MAX and str(CAPACITY_MAX) in repr(settings)
    assert resolve(GIB, mid_max=CAPACITY_MAX - 1).mid_max == CAPACITY_MAX - 1


@pytest.mark.parametrize("smallest", [64, 128, 256, "64", "256B", np.int32(128), np.array(256)])
def test_smallest_class(smallest):
    classes = resolve(GIB, size_classes=smallest).size_classes
    assert classes[0] == int(str(smallest).rstrip("B")) and classes[-1] == SLAB_MAX


@pytest.mark.parametrize("given_classes, classes", [
    ([4096], (4096,)), (["4KiB", 100], (128, 4096)), ((64, 64, 1), (64,)), ({300, 200}, (256, 320)),
    (range(64, 321, 64), (64, 128, 192, 256, 320)), (iter([5000]), (5056,)), (np.array([256, 512]), (256, 512)),
    (np.array([64], np.uint8), (64,)), ((size for size in (1, 65)), (64, 128)), ([LARGEST_SLOT], (LARGEST_SLOT,))])
def test_classes_by_hand(given_classes, classes):
    settings = resolve(GIB, size_classes=given_classes)
    assert settings.size_classes == classes and settings.slab_max == classes[-1]


@given(capacity=SIZES, slab_max=st.integers(0, LARGEST_SLOT), smallest=st.sampled_from([64, 128, 256]),
       order=st.integers(8, 30), mid_max=st.integers(0, 1 << 70))
@effort(300)
def test_everything_that_is_accepted_fits_together(capacity, slab_max, smallest, order, mid_max):
    if capacity >> order >= 1 << 31:
        return
    settings = resolve(capacity, slab_max, mid_max, 1 << order, smallest)
    classes = settings.size_classes
    assert settings.slab_max >= slab_max and settings.slab_max == (classes[-1] if classes else 0)
    assert list(classes) == sorted(set(classes)) and len(classes) <= MOST_CLASSES
    assert all(size % 64 == 0 for size in classes)
    assert settings.granule & (settings.granule - 1) == 0
    assert 256 <= settings.granule <= settings.min_block == 1 << order
    assert settings.granule <= max(settings.slab_max, 256)


@given(largest=st.integers(0, LARGEST_SLOT), smallest=st.sampled_from([64, 128, 256]))
@effort(200)
def test_usual_classes(largest, smallest):
    sizes = usual_classes(largest, smallest)
    assert not sizes if largest == 0 else sizes[0] == smallest and sizes[-1] >= largest
    assert all(high - low == smallest or (high - low) * 8 <= low for low, high in zip(sizes, sizes[1:]))
    assert all(low < largest for low in sizes[:-1])


@pytest.mark.parametrize("arguments, text", [
    ({"slab_max": "2GiB"}, "slab_max is at most 1.00 GiB, got 2.00 GiB"),
    ({"slab_max": -1}, "cannot be negative"),
    ({"slab_max": "big"}, "is not a size"),
    ({"mid_max": -1}, "cannot be negative"),
    ({"min_block": 255}, "power of two from 256 bytes to 1.00 GiB, got 255"),
    ({"min_block": 128}, "power of two from 256"),
    ({"min_block": 3 << 20}, "power of two"),
    ({"min_block": "2GiB"}, "power of two from 256 bytes to 1.00 GiB"),
    ({"min_block": 0}, "power of two"),
    ({"size_classes": 100}, "64, 128 or 256 bytes, got 100"),
    ({"size_classes": 0}, "64, 128 or 256"),
    ({"size_classes": []}, "1 to 512 sizes"),
    ({"size_classes": [0, 64]}, "from 1 byte"),
    ({"size_classes": [LARGEST_SLOT + 1]}, "to 1.00 GiB"),
    ({"size_classes": range(64, 64 * 514, 64)}, "1 to 512 sizes"),
    ({"size_classes": [64], "slab_max": 64}, "not both"),
    ({"size_classes": (size for size in [5, 0])}, "got [5, 0]"),
    ({"size_classes": np.array([], int)}, "1 to 512 sizes"),
    ({"size_classes": HUGE}, "64, 128 or 256 bytes, got an int of too many digits"),
    ({"size_classes": [HUGE]}, "got a list that holds too many digits"),
    ({"slab_max": HUGE}, "slab_max is at most 1.00 GiB, got more than 16384.00 PiB"),
    ({"slab_max": 10**400}, "slab_max is at most 1.00 GiB, got more than 16384.00 PiB"),
    ({"min_block": 10**400}, "power of two from 256 bytes to 1.00 GiB, got 1000"),
    ({"min_block": 1 << 200}, "power of two from 256 bytes to 1.00 GiB, got 1606"),
    ({"min_block": HUGE}, "power of two from 256 bytes to 1.00 GiB, got an int of too many digits"),
    ({"min_block": "9" * 5000}, "at most 40 digits"),
])
def test_what_is_not_accepted(arguments, text):
    with pytest.raises(ValueError) as caught:
        resolve(8 * GIB, **arguments)
    assert text in str(caught.value)


@pytest.mark.parametrize("arguments", [{"slab_max": 1.5}, {"mid_max": True}, {"min_block": b"4"},
                                       {"size_classes": 5.0}, {"size_classes": [1.5]}, {"size_classes": True}])
def test_types_that_are_not_accepted(arguments):
    with pytest.raises(TypeError):
        resolve(8 * GIB, **arguments)


@pytest.mark.parametrize("size_classes, text", [
    (256.0, "size_classes is a size, or an iterable of sizes; got 256.0"),
    (np.array(256.0), "size_classes is a size, or an iterable of sizes; got array(256.)"),
    (object, "got <class 'object'>"), (b"256", "got b'256'"), (np.array([256.0]), "a size is an int of bytes"),
    (np.array([[256, 512]]), "a size is an int of bytes"), ([None], "a size is an int of bytes")])
def test_size_classes_of_other_types(size_classes, text):
    with pytest.raises(TypeError) as caught:
        resolve(8 * GIB, size_classes=size_classes)
    assert text in str(caught.value)


@pytest.mark.parametrize("nbytes", [-1, 0, 255, CAPACITY_MAX + 1, pytest.param(HUGE, id="huge")])
def test_capacity_that_no_pool_has(nbytes):
    with pytest.raises(ValueError, match="capacity is from 256 bytes to 512.00 GiB, got "):
        require_capacity(nbytes)
    require_capacity(256)
    require_capacity(CAPACITY_MAX)


def test_min_block_that_is_too_small_for_the_capacity():
    with pytest.raises(ValueError, match="too small for 512.00 GiB"):
        resolve(CAPACITY_MAX, min_block=256)
    assert resolve(CAPACITY_MAX - 256, min_block=256).min_block == 256
