"""Segments of several regions, in offsets: gaps, alignment by address, what is idle."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from cuda_pool._testing import Segment
from cuda_pool.settings import resolve, span_for

from .models import BlocksModel, effort, log_uniform

KIB, MIB, PAGE = 1 << 10, 1 << 20, 2 << 20
BASE = 0x7F00_0000_0000
SETTINGS = {"defaults": {}, "no_mid": {"mid_max": 0}, "no_slabs": {"slab_max": 0},
            "small_units": {"mid_max": 0, "min_block": 256, "slab_max": 0}, "large_slots": {"slab_max": "1MiB"}}


def segment_of(size, limit, address=BASE, **settings):
    return Segment(address, size, resolve(size, max_capacity=limit, **settings), span=span_for(limit))


class GapMachine(RuleBasedStateMachine):
    """Regions come and go while blocks do. An address is an offset and what its region adds to it."""

    def __init__(self, name):
        super().__init__()
        self.segment = segment_of(MIB, 64 * MIB, **SETTINGS[name])
        self.regions = {0: (BASE, MIB)}         # by offset
        self.model, self.next = BlocksModel(), BASE + 100 * PAGE

    @rule(units=st.integers(1, 3 * PAGE // 256), skip=st.integers(0, 40_000))
    def open(self, units, skip):
        if sum(size for _, size in self.regions.values()) + units * 256 > 64 * MIB:
            return
        address = self.next + skip * 256
        offset = self.segment.open(address, units * 256)
        assert offset is not None
        if any(self.regions):
            assert (address - offset) % PAGE == (self.bias) % PAGE
        self.regions[offset] = address, units * 256
        self.next = address + units * 256 + PAGE
        pages = [page for at, (_, size) in self.regions.items()
                 for page in range(at // PAGE, (at + size - 1) // PAGE + 1)]
        assert len(pages) == len(set(pages))

    @property
    def bias(self):
        offset, (address, _) = next((item for item in self.regions.items()))
        return address - offset

    @rule(nbytes=log_uniform(8 * MIB), order=st.integers(0, 24))
    def alloc(self, nbytes, order):
        largest = self.segment.largest_free()
        found = self.segment.alloc(nbytes, 1 << order)
        if found is None:
            assert order > 8 or nbytes > largest
            return
        offset, used = found
        start, (address, size) = self.region_of(offset)
        assert offset + used <= start + size and (address + offset - start) % (1 << order) == 0
        self.model.add(offset, used, nbytes)

    def region_of(self, offset):
        return next((start, region) for start, region in self.regions.items() if start <= offset < start + region[1])

    @precondition(lambda self: self.model.live)
    @rule(data=st.data())
    def free(self, data):
        offset = data.draw(st.sampled_from(sorted(self.model.live)))
        self.segment.free(offset)
        self.model.remove(offset)

    @precondition(lambda self: self.regions)
    @rule(data=st.data(), taken=st.booleans())
    def shut(self, data, taken):
        offset = data.draw(st.sampled_from(sorted(self.regions)))
        _, size = self.regions[offset]
        live = any(offset <= at < offset + size for at in self.model.live)
        self.segment.reclaim()
        assert self.segment.is_idle(offset, size) == (not live)
        shut = None if live else self.segment.shut(offset, size)
        assert (shut is None) == live
        if shut is None:
            return
        self.segment.check()
        if taken:
            self.segment.forget(shut)
            del self.regions[offset]
        else:
            self.segment.reopen(shut)

    @invariant()
    def agrees(self):
        self.segment.check()
        assert self.segment.size == sum(size for _, size in self.regions.values())
        assert self.segment.largest_free() <= max([size for _, size in self.regions.values()], default=0)
        for offset, (used, requested) in self.model.live.items():
            assert self.segment.find(offset)[1:] == (used, requested)


@pytest.mark.parametrize("name", SETTINGS)
def test_random_sequences(name):
    run_state_machine_as_test(lambda: GapMachine(name), settings=effort(40, steps=40))


def test_places_are_used_again():
    """A region that goes leaves room for one of its size, however often, and with others around it."""
    segment = segment_of(MIB, 16 * MIB)
    kept = [segment.open(BASE + number * 10 * PAGE, 3 * MIB) for number in range(1, 4)]
    places = set()
    for number in range(10_000):
        address = BASE + (100 + number * 7 % 50) * PAGE
        offset = segment.open(address, 3 * MIB)
        places.add(offset)
        segment.forget(segment.shut(offset, 3 * MIB))
    segment.check()
    assert len(places) == 1 and places.isdisjoint(kept)


def test_a_segment_without_regions():
    segment = segment_of(MIB, 16 * MIB)
    segment.forget(segment.shut(0, MIB))
    segment.check()
    assert segment.size == segment.largest_free() == 0 and segment.alloc(1) is None
    address = 0x7FFF_0000_1300                  # a multiple of 256 only
    assert segment.open(address, 2 * MIB) == 0
    offset, _ = segment.alloc(100, 4096)
    assert (address + offset) % 4096 == 0
    segment.check()


def test_no_room_for_a_region():
    segment = segment_of(MIB, 4 * MIB)
    room = span_for(4 * MIB) - PAGE
    assert segment.open(BASE + 10**9 // 256 * 256, room + PAGE) is None
    segment.check()
    assert segment.size == MIB


def test_free_blocks_of_two_regions_do_not_merge():
    """Not even where their addresses meet."""
    segment = segment_of(PAGE, 16 * MIB)
    segment.open(BASE + PAGE, PAGE)
    assert segment.largest_free() == PAGE and segment.alloc(PAGE + 1) is None
    assert segment.alloc(PAGE) and segment.alloc(PAGE) and segment.alloc(1) is None
    segment.check()
