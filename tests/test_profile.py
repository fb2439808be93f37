"""Profiles: the file, its errors, and what a pool makes of one."""

import gzip
import json
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cuda_pool as cp
from cuda_pool import settings
from cuda_pool._profile import profile_of
from cuda_pool.profile import COUNT_MAX, FILE_MAX, Blocks, Profile, Slots

from .models import effort

MIB = 1 << 20

SIZES = st.sets(st.integers(1, 1 << 20), max_size=8).map(sorted)
CLASSES = SIZES.flatmap(lambda sizes: st.tuples(*[
    st.builds(Slots, st.just(size), st.integers(0, 1 << 15)) for size in sizes]))
LARGER = st.sets(st.integers(0, 60), max_size=6).flatmap(lambda orders: st.tuples(*[
    st.builds(Blocks, st.just(1 << order), st.integers(0, COUNT_MAX), st.integers(0, COUNT_MAX))
    for order in sorted(orders)]))
PROFILES = st.builds(
    lambda peaks, allocations, streams, larger, sizes, writer: Profile(
        *sorted(peaks), allocations, streams, larger, dict(zip(("slab_max", "mid_max", "min_block"), sizes)), writer),
    st.lists(st.integers(0, COUNT_MAX), min_size=3, max_size=3), st.integers(0, COUNT_MAX),
    st.lists(CLASSES, min_size=1, max_size=5), LARGER, st.tuples(*[st.integers(0, 1 << 40)] * 3),
    st.text(st.characters(codec="utf-8"), max_size=100))


def profile(**changes):
    values = {"peak_requested": 900, "peak_used": 1000, "peak_reserved": 2000, "allocations": 7,
              "streams": ((Slots(256, 3), Slots(512, 1)),), "larger": (Blocks(65536, 100_000, 1),),
              "settings": {"slab_max": 16384, "mid_max": 1 << 30, "min_block": 65536}, "created_by": "a test"}
    return Profile(**{**values, **changes})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "profile.json"


# The file

@effort(60)
@given(one=PROFILES, suffix=st.sampled_from(["", ".gz"]))
def test_what_is_saved_is_loaded(tmp_path_factory, one, suffix):
    path = tmp_path_factory.mktemp("profiles") / f"profile.json{suffix}"
    one.save(path)
    assert Profile.load(path) == one
    assert Profile.load(os.fsencode(path)) == one
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == bool(suffix)
    assert hash(Profile.load(path)) == hash(one)


@effort(60)
@given(one=PROFILES, other=PROFILES, third=PROFILES)
def test_a_merge_has_the_higher_peaks(one, other, third):
    both = one | other
    assert one | one == one
    assert (both.peak_used, both.peak_requested, both.peak_reserved, both.allocations) == tuple(
        max(getattr(one, key), getattr(other, key))
        for key in ("peak_used", "peak_requested", "peak_reserved", "allocations"))
    for at, classes in enumerate(both.streams):
        wanted = {}
        for profile in (one, other):
            for size, slots in profile.streams[at] if at < len(profile.streams) else ():
                wanted[size] = max(wanted.get(size, 0), slots)
        assert dict(classes) == wanted
    assert (both.streams, both.larger) == ((other | one).streams, (other | one).larger)
    assert ((one | other) | third).streams == (one | (other | third)).streams


def test_a_merge_with_something_else():
    with pytest.raises(TypeError):
        profile() | {}


def test_the_file_that_is_there_stays_until_the_new_one_is_whole(path, monkeypatch):
    profile().save(path)
    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *names: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        profile(allocations=8).save(path)
    assert path.read_bytes() == before and [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_folder_that_is_missing(tmp_path):
    with pytest.raises(OSError):
        profile().save(tmp_path / "no" / "profile.json")
    with pytest.raises(FileNotFoundError):
        Profile.load(tmp_path / "profile.json")


def with_value(*keys_and_value):
    """Return a change of the values in a file: the last one goes where the keys lead."""
    *keys, last, value = keys_and_value

    def change(values):
        at = values
        for key in keys:
            at = at[key]
        at[last] = value
    return change


def without(key):
    return lambda values: values.pop(key)


DAMAGES = [
    (with_value("peak_used", -1), "peak_used is an integer from 0 to"),
    (with_value("peak_used", 1 << 63), f"peak_used is an integer from 0 to {COUNT_MAX}, got {1 << 63}"),
    (with_value("peak_used", 1.5), "peak_used is an integer .*, got 1.5"),
    (with_value("peak_used", True), "peak_used is an integer .*, got True"),
    (with_value("peak_used", None), "peak_used is an integer .*, got None"),
    (with_value("peak_used", "12"), "peak_used is an integer .*, got '12'"),
    (with_value("peak_used", 10**300), f"is no number that is accepted: expected an integer from 0 to {COUNT_MAX}"),
    (with_value("peak_used", float("nan")), "'NaN' is no number"),
    (with_value("peak_used", float("inf")), "'Infinity' is no number"),
    (with_value("peak_used", 899), "peak_requested <= peak_used <= peak_reserved does not hold: 900, 899, 2000"),
    (with_value("allocations", []), "allocations is an integer"),
    (with_value("version", 2), "version is 1 for this package, got 2; the file was made by 'a test'"),
    (with_value("version", "1"), "version is an integer"),
    (without("version"), "the profile has no version"),
    (with_value("format", "something"), 'no profile: that is an object with "format": "cuda_pool profile"'),
    (without("peak_used"), "no peak_used: a profile has"),
    (without("streams"), "no streams: a profile has"),
    (with_value("streams", {}), "streams is a list, got {}"),
    (with_value("streams", []), "streams has from 1 to 255 items, got 0"),
    (with_value("streams", [{"size_classes": {}}] * 256), "streams has from 1 to 255 items, got 256"),
    (with_value("streams", [1]), r"streams\[0\] is an object, got 1"),
    (with_value("streams", [{}]), r"streams\[0\] has no size_classes"),
    (with_value("streams", 0, "size_classes", []), r"streams\[0\].size_classes is an object, got \[\]"),
    (with_value("streams", 0, "size_classes", "256", -3), r"streams\[0\].size_classes\[256\] is an integer from 0"),
    (with_value("streams", 0, "size_classes", "-5", 3), r"the keys of streams\[0\].size_classes are sizes.*got '-5'"),
    (with_value("streams", 0, "size_classes", "0256", 3), "are sizes in bytes, got '0256'"),
    (with_value("streams", 0, "size_classes", "9" * 5000, 3), "are sizes in bytes, got '9999"),
    (with_value("streams", 0, "size_classes", "0", 3), "ascend"),
    (with_value("streams", 0, "size_classes", {"0": 3}), "size_classes are from 1 byte to 1.00 GiB, got 0"),
    (with_value("streams", 0, "size_classes", {str(1 << 31): 3}), "size_classes are from 1 byte to 1.00 GiB"),
    (with_value("streams", 0, "size_classes", {"256": 1 << 50}), r"size_classes\[256\] has at most 512.00 GiB"),
    (with_value("streams", 0, "size_classes", {str(64 * at): 1 for at in range(1, 514)}), "from 0 to 512 items"),
    (with_value("larger", []), r"larger is an object, got \[\]"),
    (with_value("larger", "65537", {"bytes": 1, "blocks": 1}), "the sizes of larger are powers of two, got 65537"),
    (with_value("larger", "65536", {"bytes": 1}), r"larger\[65536\] has no blocks"),
    (with_value("larger", "65536", 1), r"larger\[65536\] is an object, got 1"),
    (with_value("larger", "65536", {"bytes": -1, "blocks": 1}), r"bytes of larger\[65536\] is an integer"),
    (with_value("settings", None), "settings is an object, got None"),
    (with_value("settings", {"slab_max": 1}), "settings has no mid_max"),
    (with_value("settings", "slab_max", "x"), "settings.slab_max is an integer"),
    (with_value("created_by", 5), "created_by is a text, got 5"),
]


@pytest.mark.parametrize("change, reason", DAMAGES, ids=[reason[:40] for _, reason in DAMAGES])
def test_a_value_that_is_not_accepted(path, change, reason):
    values = profile().as_dict()
    change(values)
    path.write_text(json.dumps(values))
    with pytest.raises(cp.ProfileError, match=reason) as error:
        Profile.load(path)
    assert str(error.value).startswith(f"'{path}': ") and error.value.path == str(path)


def test_a_stream_slot_ascends():
    with pytest.raises(ValueError, match=r"the sizes of streams\[0\].size_classes ascend"):
        profile(streams=((Slots(512, 1), Slots(256, 1)),))


@pytest.mark.parametrize("text, reason", [
    (b"", "no JSON"), (b"{", "no JSON"), (b"[1, 2]", "no profile"), (b"null", "no profile"),
    (b"\xff\xfe\x00", "no text"), (b'{"format": 1, "format": 2}', "the key 'format' is there twice"),
    (b"\x1f\x8b", "truncated"), (b"\x1f\x8bnonsense", "method"),
    (b"[" * 100_000, "nested too deeply"), (b'{"a":' * 50_000, "nested too deeply"),
    (b"1" * 5000, "no number that is accepted"),
    (b"-" + b"1" * 5000, "no number that is accepted"),
    (gzip.compress(b"{}")[:-6], "truncated"), (gzip.compress(b"{"), "no JSON"),
    (gzip.compress(gzip.compress(b"{}")), "no text|no JSON")])
def test_a_file_that_is_no_profile(path, text, reason):
    path.write_bytes(text)
    with pytest.raises(cp.ProfileError, match=reason):
        Profile.load(path)


def test_every_truncation(path):
    text = json.dumps(profile().as_dict(), indent=1).encode()
    for end in range(0, len(text), 7):
        path.write_bytes(text[:end])
        with pytest.raises(cp.ProfileError):
            Profile.load(path)


def test_a_large_file_is_not_read_to_its_end(path, tmp_path):
    """100 MiB, plain and packed: an error in the time that 16 MiB take."""
    for opened in (open(path, "wb"), gzip.open(tmp_path / "packed", "wb", 1)):
        with opened as file:
            for _ in range(100):
                file.write(bytes(MIB))
        started = time.process_time()
        with pytest.raises(cp.ProfileError, match="at most 16.00 MiB"):
            Profile.load(file.name)
        assert time.process_time() - started < 5
    assert FILE_MAX == 16 * MIB


def test_the_largest_profile_can_be_read(path):
    classes = tuple(Slots(size, 1 << 9) for size in range((1 << 30) - 512, 1 << 30))
    largest = profile(streams=(classes,) * 255, larger=tuple(Blocks(1 << at, COUNT_MAX, COUNT_MAX) for at in range(63)))
    largest.save(path)
    assert Profile.load(path) == largest
    assert path.stat().st_size < FILE_MAX / 3


def test_a_key_that_is_not_known_is_ignored(path):
    values = {**profile().as_dict(), "later": [1, 2]}
    values["streams"][0]["name"] = "compute"
    path.write_text(json.dumps(values))
    assert Profile.load(path) == profile()


# What is made of it

def test_capacity():
    assert profile(peak_used=100 * MIB, peak_reserved=200 * MIB).capacity(0.1) == 110 * MIB
    assert profile(peak_used=100 * MIB + 1, peak_reserved=200 * MIB).capacity(0) == 102 * MIB
    assert profile(peak_requested=0, peak_used=0).capacity(0.15) == 2 * MIB
    assert profile(peak_used=(1 << 53) + 1, peak_reserved=1 << 54).capacity(0) == (1 << 53) + 2 * MIB


def test_slots_for_other_classes():
    streams = ((Slots(256, 3), Slots(512, 1), Slots(700, 5), Slots(4096, 9)), (), (Slots(1, 2),))
    assert profile(streams=streams).slots_for((512, 1024)) == [[4, 5], [0, 0], [2, 0]]
    assert profile(streams=streams).slots_for(()) == [[], [], []]


def test_shares_and_totals():
    one = profile(streams=((Slots(256, 3),), (), (Slots(256, 3), Slots(768, 2))))
    assert one.shares == (0.25, 0.0, 0.75)
    assert one.size_classes == (Slots(256, 6), Slots(768, 2))
    assert profile(streams=((), ())).shares == (0.0, 0.0)


# In a pool

def test_a_run_is_saved_and_the_next_one_starts_with_it(make_device, path):
    device = make_device("256MiB")
    with cp.Pool("200MiB", device=device) as pool:
        ptrs = [pool.alloc(1000) for _ in range(300)] + [pool.alloc(40 * MIB), pool.alloc(100_000)]
        for ptr in ptrs:
            pool.free(ptr)
        pool.alloc(70 * MIB)
        pool.save_profile(path)
        stats = pool.stats()
    saved = Profile.load(path)
    assert (saved.peak_used, saved.peak_requested, saved.peak_reserved) == (
        stats.used_high, stats.requested_high, stats.reserved_high)
    assert saved.allocations == 303 and saved.created_by.startswith("cuda_pool ")
    assert saved.settings == {"slab_max": 16384, "mid_max": 1 << 30, "min_block": 65536}
    assert dict(saved.size_classes) == {1024: 300}
    assert saved.larger == (Blocks(65536, 100_096, 1), Blocks(32 * MIB, 40 * MIB, 1), Blocks(64 * MIB, 70 * MIB, 1))
    for given_as in (path, str(path), saved):
        with cp.Pool(device=device, growth="predictive", profile=given_as, headroom=0.2) as pool:
            assert pool.stats().reserved == saved.capacity(0.2)
            assert pool.stats().largest_free == pool.stats().reserved
            pool.check()
    assert device.live == {}


def test_a_capacity_that_is_given_is_the_pools(make_device):
    with cp.Pool("3MiB", device=make_device(), growth="predictive", profile=profile()) as pool:
        assert pool.stats().reserved == 3 * MIB
    with cp.Pool(0.75, device=make_device(), growth="predictive", profile=profile()) as pool:
        assert pool.stats().reserved == 48 * MIB


def test_predictive_without_a_profile(make_device):
    with cp.Pool(device=make_device(), growth="predictive") as pool:
        assert pool.stats().reserved == 48 * MIB


def test_a_profile_that_does_not_fit(make_device):
    device = make_device("64MiB")
    large = profile(peak_used=60 * MIB, peak_reserved=60 * MIB)
    with pytest.raises(cp.OutOfMemoryError, match="peak of 60.00 MiB and headroom 0.15 of it are 6.00 MiB more than "):
        cp.Pool(device=device, growth="predictive", profile=large)
    assert device.calls["cudaMalloc"] == 0
    with cp.Pool(device=device, growth="predictive", profile=large, headroom=0) as pool:
        assert pool.stats().reserved == 60 * MIB
    huge = profile(peak_used=1 << 60, peak_reserved=1 << 60)
    with pytest.raises(ValueError, match="capacity is from 256 bytes to 512.00 GiB, got "):
        cp.Pool(device=device, growth="predictive", profile=huge)


def test_a_profile_beyond_max_capacity(make_device):
    large = profile(peak_used=40 * MIB, peak_reserved=40 * MIB)
    device = make_device("64MiB")
    with pytest.raises(ValueError, match="peak of 40.00 MiB and headroom 0.15 of it are 6.00 MiB more than max_cap"):
        cp.Pool(device=device, growth="predictive", profile=large, max_capacity="40MiB")
    assert device.calls["cudaMalloc"] == 0
    with cp.Pool(device=device, growth="predictive", profile=large, max_capacity="46MiB") as pool:
        assert pool.stats().reserved == pool.stats().capacity == 46 * MIB


def test_a_predictive_pool_grows_beyond_its_profile(make_device):
    with cp.Pool(device=make_device("64MiB"), growth="predictive", profile=profile()) as pool:
        pool.free(pool.alloc("10MiB"))
        assert pool.stats().reserved > 10 * MIB and pool.stats().grow_count == 1
        pool.check()


@pytest.mark.parametrize("given_as, error", [(5, TypeError), ([], TypeError), ({}, TypeError), ("no/such", OSError)])
def test_an_argument_that_is_no_profile(make_device, given_as, error):
    device = make_device()
    with pytest.raises(error):
        cp.Pool(device=device, growth="predictive", profile=given_as)
    assert device.calls["cudaMalloc"] == 0


def test_a_profile_is_for_predictive_growth(make_device):
    with pytest.raises(ValueError, match="profile is for growth='predictive', got growth='static'"):
        cp.Pool(device=make_device(), profile=profile())


def test_save_of_a_closed_pool(make_device, path):
    pool = cp.Pool("1MiB", device=make_device())
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        pool.save_profile(path)
    assert not path.exists()


def test_save_where_there_is_no_folder(make_device, tmp_path):
    with cp.Pool("1MiB", device=make_device()) as pool:
        with pytest.raises(OSError):
            pool.save_profile(tmp_path / "no" / "profile.json")
        pool.check()


@effort(30)
@given(steps=st.lists(st.tuples(st.sampled_from([100, 256, 300, 5000, 16_000]), st.booleans(), st.integers(0, 99)),
                      min_size=1, max_size=300))
def test_the_slots_of_a_profile_are_a_peak(steps):
    """Never fewer than were in use, and no more than one slab's slots beyond."""
    classes = settings.usual_classes(16 << 10)
    used, highest, ptrs = {}, {}, []
    with cp.sim.Device("64MiB") as device, cp.Pool("32MiB", device=device) as pool:
        for nbytes, grows, pick in steps:
            if grows or not ptrs:
                size = next(size for size in classes if size >= nbytes)
                ptrs.append((pool.alloc(nbytes), size))
                used[size] = used.get(size, 0) + 1
                highest[size] = max(highest.get(size, 0), used[size])
            else:
                ptr, size = ptrs.pop(pick % len(ptrs))
                pool.free(ptr)
                used[size] -= 1
        found = dict(profile_of(pool).size_classes)
    assert found.keys() == highest.keys()
    for size, slots in found.items():
        assert highest[size] <= slots <= max(2 * highest[size], 8)
