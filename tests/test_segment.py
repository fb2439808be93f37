"""A segment: three tiers over one region that is never touched."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test)

from cuda_pool._testing import Segment
from cuda_pool.settings import resolve
from cuda_pool.sizes import parse_size

from .models import POOLS, BlocksModel, effort, log_uniform

BASE = 1 << 40
MIB = 1 << 20


def segment(capacity, address=BASE, colouring=False, **settings):
    size = parse_size(capacity)
    return Segment(address, size, resolve(size, **settings), colouring)


class SegmentMachine(RuleBasedStateMachine):
    """Random sequences over one of POOLS, at an address that is a multiple of 256 bytes and perhaps of no more."""

    def __init__(self, name):
        super().__init__()
        self.capacity, self.settings = POOLS[name]

    @initialize(address=st.sampled_from([BASE, BASE + 256, BASE + 512, BASE + 3 * 4096]), colouring=st.booleans(),
                good_fit=st.booleans(), predicts=st.booleans())
    def start(self, address, colouring, good_fit, predicts):
        size = parse_size(self.capacity)
        self.address = address
        self.segment = Segment(address, size, resolve(size, **self.settings), colouring, good_fit, predicts=predicts)
        self.model = BlocksModel()
        self.classes = len(resolve(size, **self.settings).size_classes)

    @rule(data=st.data(), alignment=st.one_of(st.just(256), st.integers(0, 21).map(lambda order: 1 << order)))
    def alloc(self, data, alignment):
        nbytes = data.draw(log_uniform(2 * self.segment.size))
        before = self.figures()
        got = self.segment.alloc(nbytes, alignment)
        if got is None:
            assert self.figures()[1:] == before[1:]
            assert alignment > 256 or nbytes > before[0] == self.segment.largest_free()
            return
        offset, used = got
        assert (self.address + offset) % alignment == 0
        assert nbytes <= used and offset + used <= self.segment.size
        assert alignment < 256 or nbytes <= before[0]
        self.model.add(offset, used, nbytes)

    @precondition(lambda self: self.model.live)
    @rule(data=st.data())
    def free(self, data):
        offset = data.draw(st.sampled_from(sorted(self.model.live)))
        self.segment.free(offset)
        self.model.remove(offset)
        assert self.segment.find(offset) == "freed"

    @rule(data=st.data())
    def find(self, data):
        offset = data.draw(st.integers(0, self.segment.size - 1))
        start = self.model.inside(offset)
        found = self.segment.find(offset)
        if start == offset:
            assert found[1:] == self.model.live[offset]
        else:
            assert found == ("freed" if start is None else "interior")

    @precondition(lambda self: self.classes)
    @rule(data=st.data(), slots=st.integers(0, 100))
    def prepare(self, data, slots):
        """Ready slabs are free memory: nothing is lost."""
        before = self.figures()
        size_class = data.draw(st.integers(0, self.classes - 1))
        prepared = self.segment.prepare(size_class, slots)
        demand = self.segment.demand(size_class)
        assert prepared == (demand["active"] + demand["ready"] >= slots)
        assert self.figures() == before

    @rule()
    def end_period(self):
        self.segment.end_period()

    @rule()
    def take_the_largest(self):
        """What largest_free promises, and not a byte more."""
        largest = self.segment.largest_free()
        assert self.segment.alloc(largest + 1) is None
        if largest:
            offset, used = self.segment.alloc(largest)
            self.model.add(offset, used, largest)

    @invariant()
    def agrees(self):
        self.segment.check()
        tiers = [self.segment.tier(name) for name in ("slab", "mid", "buddy")]
        assert [sum(figure) for figure in zip(*tiers)] == [len(self.model.live), self.model.used, self.model.requested]
        for offset, figures in self.model.live.items():
            assert self.segment.find(offset)[1:] == figures

    def figures(self):
        return self.segment.largest_free(), *(self.segment.tier(name) for name in ("slab", "mid", "buddy"))

    def teardown(self):
        """What is freed can be had again, whole."""
        for offset in list(self.model.live):
            self.free_one(offset)
        self.agrees()
        assert self.segment.largest_free() == self.segment.size
        alignment = self.address & -self.address
        whole = self.segment.alloc(self.segment.size, min(alignment, 1 << self.segment.size.bit_length() - 1))
        assert whole == (0, self.segment.size)

    def free_one(self, offset):
        self.segment.free(offset)
        self.model.remove(offset)


@pytest.mark.parametrize("name", POOLS)
def test_random_sequences(name):
    run_state_machine_as_test(lambda: SegmentMachine(name), settings=effort(25, steps=50))


def test_tiers_by_size():
    pool = segment("64MiB", slab_max="16KiB", mid_max="1MiB")
    tiers = [pool.find(pool.alloc(nbytes)[0])[0] for nbytes in (1, 16 << 10, (16 << 10) + 1, MIB, MIB + 1, 8 * MIB)]
    assert tiers == ["slab", "slab", "mid", "mid", "buddy", "buddy"]


def test_used_is_what_the_tier_rounds_to():
    pool = segment("64MiB", slab_max="16KiB", mid_max="1MiB", min_block="64KiB")
    assert [pool.alloc(nbytes)[1] for nbytes in (1, 257, 2049, 20_001, 1_100_000)] == [
        256, 512, 2304, 20_224, 17 * 65536]


def test_buddy_grows_up_and_mid_grows_down():
    pool = segment("64MiB", slab_max=0, mid_max="1MiB")
    assert pool.boundary == 64 * MIB
    assert pool.alloc(2 * MIB)[0] == 0
    assert pool.alloc(1000)[0] == 64 * MIB - 1024
    assert pool.boundary == 64 * MIB - resolve(64 * MIB).growth_step


def test_mid_grows_by_what_it_lacks_where_a_whole_step_is_not_free():
    pool = segment("64MiB", slab_max=0, mid_max="1MiB")
    assert pool.alloc(63 * MIB + 1) == (0, 63 * MIB + 65536)
    assert pool.alloc(1000)[0] == 64 * MIB - 1024
    assert pool.boundary == 64 * MIB - 65536


def test_a_tier_that_is_full_asks_the_other():
    pool = segment("8MiB", slab_max=0, mid_max="1MiB")
    large = [pool.alloc(2 * MIB)[0] for _ in range(3)]
    pool.alloc(MIB)
    pool.free(large[0])
    small = [pool.alloc(MIB) for _ in range(3)]
    assert None not in small
    assert {pool.find(offset)[0] for offset, _ in small} == {"mid", "buddy"}
    pool.check()


def test_mid_gives_its_edge_back_to_buddy():
    pool = segment("8MiB", slab_max=0, mid_max="1MiB")
    offsets = [pool.alloc(MIB)[0] for _ in range(8)]
    assert pool.boundary == 0 and pool.alloc(1) is None
    for offset in offsets:
        pool.free(offset)
    assert pool.alloc(8 * MIB) == (0, 8 * MIB)
    assert pool.find(0)[0] == "buddy" and pool.boundary == 8 * MIB
    pool.check()


def test_small_request_goes_to_a_free_run_when_nothing_else_is_left():
    """Slots of its class do not fit the run, the mid tier cannot grow into it, and mid_max is below the request."""
    pool = segment("4MiB", size_classes=[100_000], mid_max=0, min_block="64KiB")
    runs = [pool.alloc(200_000)[0] for _ in range(16)]
    assert pool.alloc(200_000) is None
    pool.free(runs[0])
    largest = pool.largest_free()
    assert largest >= 131_072
    while (got := pool.alloc(60_000)) is not None:
        pool.check()
        assert got[1] < largest
    assert pool.largest_free() < 60_000


@pytest.mark.parametrize("alignment", [1 << order for order in range(22)])
def test_the_whole_region_at_every_alignment_of_its_base(alignment):
    for settings in ({}, {"mid_max": 0}, {"slab_max": 0}):
        pool = segment(3 * MIB + 512, **settings)
        assert pool.alloc(3 * MIB + 512, alignment) == (0, 3 * MIB + 512)
        pool.check()


def test_empty_slabs_in_runs_count_as_free():
    """A slab that lies in the buddy tier merges with its buddies when it goes back."""
    pool = segment("1MiB", mid_max=0, min_block=4096)
    runs = [pool.alloc(32 << 10)[0] for _ in range(32)]
    pool.free(runs[5])
    slots = [pool.alloc(nbytes)[0] for nbytes in (100, 300)]
    assert all(runs[5] <= offset < runs[6] for offset in slots)
    for offset in [*slots, runs[4], runs[6], runs[7]]:
        pool.free(offset)
    assert pool.largest_free() == 128 << 10
    assert pool.alloc((128 << 10) + 1) is None
    assert pool.alloc(128 << 10) == (runs[4], 128 << 10)
    pool.check()


def test_a_slab_of_odd_length_in_a_run_is_not_promised_whole():
    """Returned to the buddy tier it falls apart into buddies."""
    pool = segment("1MiB", size_classes=[12 << 10], mid_max=0, min_block=4096)
    runs = [pool.alloc(128 << 10)[0] for _ in range(8)]
    pool.free(runs[3])
    slot = pool.alloc(12 << 10)[0]
    for _ in range(8):
        assert pool.alloc(4096, 4096)[0] - runs[3] >= 96 << 10
    pool.free(slot)
    assert pool.largest_free() == 64 << 10
    assert pool.alloc((64 << 10) + 1) is None and pool.alloc(64 << 10) is not None


def test_a_request_that_fails_leaves_empty_slabs_as_they_are():
    """Returned, this one would be a run of 16 KiB and one of 2 KiB, and no longer a slot of 18 KiB."""
    pool = segment("1MiB", size_classes=["18KiB"], mid_max=0, min_block=1024)
    runs = [pool.alloc(32 << 10)[0] for _ in range(32)]
    pool.free(runs[5])
    slot = pool.alloc(18 << 10)[0]
    pool.free(slot)
    assert pool.alloc(8 << 10, 8192) and pool.largest_free() == 18 << 10
    for nbytes in ((18 << 10) + 1, 64 << 10, 2 << 20):
        assert pool.alloc(nbytes) is None
        assert pool.largest_free() == 18 << 10
    assert pool.alloc(18 << 10)[1] == 18 << 10


def test_faults_say_which():
    pool = segment("1MiB", slab_max="16KiB")
    small, large, other = (pool.alloc(nbytes)[0] for nbytes in (100, 100_000, 100_000))
    assert (pool.find(small + 1), pool.find(large + 99_999)) == ("interior", "interior")
    pool.free(large)
    assert [pool.find(offset) for offset in (large, large + 5, other - 1, 0)] == ["freed"] * 4
    pool.free(small)
    assert (pool.find(small), pool.find(small + 1)) == ("freed", "freed")


def test_metadata_of_141_gb_is_a_thousandth():
    size = 141 * 10**9 // 256 * 256
    pool = Segment(BASE, size, resolve(size))
    assert pool.metadata <= size / 1000
    whole = pool.alloc(size)
    assert whole == (0, size)


def test_512_gib():
    pool = segment("512GiB")
    offsets = [pool.alloc(nbytes)[0] for nbytes in (1, 1000, 100_000, 10**8, 10**11, 2 * 10**11)]
    pool.check()
    for offset in offsets:
        pool.free(offset)
    assert pool.alloc(512 << 30) == (0, 512 << 30)
