"""The buddy system against a set of free units."""

from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cuda_pool._testing import Buddy

from .models import UnitsModel, effort


class BuddyMachine(RuleBasedStateMachine):
    """Random sequences; `live` holds (start, units) of what was handed out."""

    @initialize(size=st.integers(0, 200))
    def start(self, size):
        self.buddy = Buddy(size)
        self.model = UnitsModel(size)
        self.live = []

    @rule(units=st.integers(1, 80), order=st.integers(0, 8))
    def alloc(self, units, order):
        candidates = self.model.candidates(units, order)
        block = self.buddy.alloc(units, order)
        if block is None:
            assert not candidates
            return
        assert block in candidates and block % (1 << order) == 0
        self.model.take(block, units)
        self.live.append((block, units))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data):
        block, units = self.pick(data)
        self.buddy.free(block, units)
        self.model.give(block, units)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), slack=st.integers(0, 65535))
    def hold_and_release(self, data, slack):
        block, units = self.pick(data)
        self.buddy.hold(block, units, slack)
        assert self.buddy.held(block) == (units, slack)
        self.buddy.check()
        self.buddy.release(block)
        self.model.give(block, units)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free_in_two_pieces(self, data):
        block, units = self.pick(data)
        cut = data.draw(st.integers(0, units))
        for start, length in ((block + cut, units - cut), (block, cut)):
            self.buddy.free(start, length)
            self.model.give(start, length)
            self.buddy.check()

    @precondition(lambda self: self.model.size)
    @rule(data=st.data())
    def claim(self, data):
        block = data.draw(st.integers(0, self.model.size - 1))
        units = data.draw(st.integers(1, min(60, self.model.size - block)))
        free = self.model.is_free(block, units)
        assert self.buddy.claim(block, units) == free
        if free:
            self.model.take(block, units)
            self.live.append((block, units))

    @rule(data=st.data())
    def free_beside(self, data):
        at = data.draw(st.integers(0, self.model.size))
        below, above = self.buddy.free_below(at), self.buddy.free_above(at)
        assert self.model.is_free(at - below, below + above)
        assert at - below == 0 or at - below - 1 not in self.model.free
        assert at + above == self.model.size or at + above not in self.model.free

    @invariant()
    def agrees(self):
        self.buddy.check()
        assert sorted(self.buddy.free_blocks()) == self.model.blocks()
        assert self.buddy.used == self.model.size - len(self.model.free)
        assert self.buddy.largest() == max((1 << order for _, order in self.model.blocks()), default=0)

    def pick(self, data):
        return self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))


TestBuddy = BuddyMachine.TestCase
TestBuddy.settings = effort(60, steps=50)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8, 1000, 4095, 4097, 12_345_677])
def test_region_is_the_run_of_its_largest_aligned_blocks(size):
    buddy = Buddy(size)
    buddy.check()
    expected, at = [], 0
    for order in reversed(range(32)):
        if size >> order & 1:
            expected.append((at, order))
            at += 1 << order
    assert sorted(buddy.free_blocks()) == expected
    assert (buddy.used, buddy.largest()) == (0, 1 << size.bit_length() - 1 if size else 0)


def test_only_what_is_needed_is_kept():
    buddy = Buddy(1024)
    assert buddy.alloc(33) == 0
    assert buddy.used == 33
    assert buddy.free_blocks() == [(33, 0), (34, 1), (36, 2), (40, 3), (48, 4), (64, 6), (128, 7), (256, 8), (512, 9)]


def test_last_in_first_out():
    buddy = Buddy(64)
    blocks = [buddy.alloc(1) for _ in range(64)]
    for block in blocks[::2]:
        buddy.free(block, 1)
    assert [buddy.alloc(1) for _ in range(32)] == blocks[::2][::-1]


@pytest.mark.parametrize("order", range(12))
def test_alignment(order):
    buddy = Buddy(1 << 12)
    assert buddy.alloc(1) == 0
    block = buddy.alloc(1, order)
    assert block == 1 << order
    buddy.check()


@pytest.mark.parametrize("order", [13, 31, 32, 63])
def test_alignment_beyond_the_region(order):
    buddy = Buddy(1 << 12)
    assert buddy.alloc(1, order) is None
    assert buddy.free_blocks() == [(0, 12)]


@pytest.mark.parametrize("units", [4097, 1 << 31, (1 << 32) - 2])
def test_more_than_the_region(units):
    buddy = Buddy(1 << 12)
    assert buddy.alloc(units) is None
    assert buddy.used == 0


def test_512_gib_in_blocks_of_64_kib():
    buddy = Buddy(1 << 23)
    runs = [(buddy.alloc(units), units) for units in (1, 4097, 1 << 20, 3_333_333)]
    for block, units in runs:
        buddy.free(block, units)
    buddy.check()
    assert buddy.free_blocks() == [(0, 23)]


def test_untouched_metadata_takes_no_host_memory():
    before = resident_bytes()
    buddy = Buddy(100_000_000)
    assert buddy.metadata > 500_000_000
    for _ in range(100):
        buddy.alloc(1)
    assert resident_bytes() - before < 10_000_000


def test_claim_refused_changes_nothing():
    buddy = Buddy(64)
    assert buddy.claim(40, 1)
    before = buddy.free_blocks()
    assert not buddy.claim(20, 30)
    assert buddy.free_blocks() == before and buddy.used == 1


def resident_bytes():
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024
