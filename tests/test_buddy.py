"""The buddy system against a set of free units."""

from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cuda_pool._testing import Buddy

from .models import NOBODY, OwnedUnitsModel, UnitsModel, View, effort

OWNERS = st.integers(0, 3)
BACK = st.integers(0, 8)


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


class OwnersMachine(RuleBasedStateMachine):
    """Random sequences of up to three owners and nobody.

    `live` holds (start, units, owner, batch): where a run comes from. What is freed is in batch `batch`; a view allows
    of each owner what it freed up to some batch before.
    """

    @initialize(size=st.integers(1, 150), data=st.data())
    def start(self, size, data):
        """Begin with a region in which every owner has something."""
        self.buddy = Buddy(size)
        self.model = OwnedUnitsModel(size)
        self.model.give(0, size, NOBODY, 0)
        self.live, self.batch = [], 0
        for owner in data.draw(st.lists(OWNERS, max_size=12)):
            self.alloc(data.draw(st.integers(1, 20)), 0, NOBODY, data.draw(st.booleans()))
            if self.live:
                self.free_one(0, owner)

    @rule(units=st.integers(1, 60), order=st.integers(0, 6), owner=OWNERS, noted=st.booleans())
    def alloc(self, units, order, owner, noted):
        candidates = self.model.of(owner).candidates(units, order)
        block = self.buddy.alloc(units, order, owner)
        assert (block is None) == (not candidates)
        if block is not None:
            assert block in candidates
            self.took(block, units, *self.model.free[block], noted)

    @rule(units=st.integers(1, 60), order=st.integers(0, 6), noted=st.booleans(), data=st.data())
    def alloc_allowed(self, units, order, noted, data):
        """The first block that would serve each owner is looked at, and no other."""
        view, expected = self.view(data), None
        for owner in range(1, 4):
            orders = [size for _, size in self.model.of(owner).blocks()
                      if size >= max(order, (units - 1).bit_length())]
            first = self.buddy.free_list(min(orders), owner)[0] if orders else None
            if expected is None and first is not None and view.allows(*self.model.free[first]):
                expected = first
        assert self.buddy.alloc_allowed(view.owner, view.batch, view.limits, units, order) == expected
        if expected is not None:
            self.took(expected, units, view.owner, view.batch, noted)

    def took(self, block, units, owner, batch, noted):
        self.model.take(block, units)
        if noted:
            self.buddy.hold(block, units, 0)
        assert self.buddy.origin(block) == (owner, batch)
        self.live.append([block, units, owner, batch, noted])

    @precondition(lambda self: self.live)
    @rule(at=st.integers(0, 1000), owner=OWNERS, back=BACK)
    def free(self, at, owner, back):
        self.free_one(at % len(self.live), owner, back)

    def free_one(self, at, owner, back=0):
        block, units, _, _, noted = self.live.pop(at)
        batch = self.next_batch(owner, back)
        if noted:
            self.buddy.release(block, owner, batch)
        else:
            self.buddy.free(block, units, owner, batch)
        self.model.give(block, units, owner, batch)

    @rule(owner=OWNERS, to=OWNERS, back=BACK, data=st.data())
    def pass_on(self, owner, to, back, data):
        if owner == to:
            return
        limit, batch = data.draw(st.integers(0, self.batch)), self.next_batch(to, back)
        self.buddy.pass_on(owner, limit, to, batch)
        self.model.pass_on(lambda other, freed: other == owner and freed <= limit, to, batch)

    @rule(owner=OWNERS, to=OWNERS)
    def rename(self, owner, to):
        """Only runs that are noted down can be told from what lies inside a block."""
        batch = self.next_batch(to)
        self.buddy.rename(owner, to, batch)
        for run in self.live:
            if run[2] == owner and run[4]:
                run[2:4] = to, batch

    @rule(data=st.data())
    def join(self, data):
        view = self.view(data)
        self.buddy.join(view.owner, view.batch, view.limits)
        self.model.pass_on(view.takes, view.owner, view.batch)

    @rule(units=st.integers(1, 100), data=st.data())
    def could_join(self, units, data):
        view = self.view(data)
        expected = self.buddy.owned > 0 and self.model.largest_run(view) >= units
        assert self.buddy.could_join(view.owner, view.batch, view.limits, units) == expected

    @rule(owner=OWNERS, data=st.data())
    def claim(self, owner, data):
        block = data.draw(st.integers(0, self.model.size - 1))
        units = data.draw(st.integers(1, min(30, self.model.size - block)))
        free = self.model.is_free(block, units, owner)
        assert self.buddy.claim(block, units, owner) == free
        if free:
            self.model.take(block, units)
            self.live.append([block, units, None, None, False])

    @rule(data=st.data())
    def free_beside(self, data):
        """What is nobody's counts, and nothing else."""
        at, nobodys = data.draw(st.integers(0, self.model.size)), self.model.of(NOBODY)
        below, above = self.buddy.free_below(at), self.buddy.free_above(at)
        assert nobodys.is_free(at - below, below + above)
        assert at - below - 1 not in nobodys.free and at + above not in nobodys.free

    def next_batch(self, owner, back=0):
        """Return the next batch, or one before it: memory may come back with the batch that it was cut from."""
        self.batch += 1
        return max(1, self.batch - back) if owner != NOBODY else 0

    def view(self, data):
        limits = {other: data.draw(st.integers(0, self.batch)) for other in range(1, 4)}
        owner = data.draw(st.integers(1, 3))
        return View(owner, self.next_batch(owner), limits)

    @invariant()
    def agrees(self):
        self.buddy.check()
        for owner in range(4):
            blocks = self.buddy.free_blocks(owner)
            assert {block: (order, self.buddy.origin(block)[1]) for block, order in blocks} == self.model.blocks(owner)
            assert self.buddy.largest(owner) == max((1 << order for _, order in blocks), default=0)
        assert self.buddy.used == self.model.size - len(self.model.free)
        assert self.buddy.owned == sum(owner != NOBODY for owner, _ in self.model.free.values())
        for block, _, owner, batch, noted in self.live:
            assert not noted or self.buddy.origin(block) == (owner, batch)

    def teardown(self):
        """With everything nobody's again the region is whole."""
        if not hasattr(self, "buddy"):
            return
        while self.live:
            self.free_one(0, NOBODY)
        for owner in range(1, 4):
            self.buddy.pass_on(owner, self.batch)
        self.buddy.check()
        assert sorted(self.buddy.free_blocks()) == UnitsModel(self.model.size).blocks()


TestBuddy = BuddyMachine.TestCase
TestBuddy.settings = effort(60, steps=50)
TestOwners = OwnersMachine.TestCase
TestOwners.settings = effort(60, steps=50)


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


def test_buddies_of_two_owners_do_not_merge():
    buddy = Buddy(8)
    for _ in range(8):
        buddy.alloc(1)
    for block, owner in enumerate((1, 2, 1, 1, 0, 0, 2, 0)):
        buddy.free(block, 1, owner, (3, 4, 5, 9, 0, 0, 7, 0)[block])
        buddy.check()
    assert [sorted(buddy.free_blocks(owner)) for owner in range(3)] == [
        [(4, 1), (7, 0)], [(0, 0), (2, 1)], [(1, 0), (6, 0)]]
    assert [buddy.origin(block) for block in (0, 1, 2, 4, 6)] == [(1, 3), (2, 4), (1, 9), (0, 0), (2, 7)]
    assert buddy.owned == 5
    assert [buddy.could_join(1, 10, {2: limit}, units) for limit, units in ((6, 6), (6, 7), (7, 8))] == [
        True, False, True]
    buddy.join(1, 10, {2: 6})
    assert [sorted(buddy.free_blocks(owner)) for owner in range(3)] == [[], [(0, 2), (4, 1), (7, 0)], [(6, 0)]]
    buddy.pass_on(2, 7, 1, 11)
    assert buddy.free_blocks(1) == [(0, 3)] and buddy.origin(0) == (1, 11)


def test_claim_refused_changes_nothing():
    buddy = Buddy(64)
    assert buddy.claim(40, 1)
    before = buddy.free_blocks()
    assert not buddy.claim(20, 30)
    assert buddy.free_blocks() == before and buddy.used == 1


def resident_bytes():
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024
