"""The mid tier against a dict of free intervals with exact best fit."""

import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cuda_pool._testing import Mid

from .models import NOBODY, OwnedRangeModel, RangeModel, View, effort, log_uniform

ALIGN = st.one_of(st.just(0), st.integers(0, 9))
OWNERS = st.integers(0, 3)
BACK = st.integers(0, 8)
BIAS = st.one_of(st.just(0), st.integers(0, 2**32 - 1))


class MidMachine(RuleBasedStateMachine):
    """Random sequences; `index` maps the offset of a live block to its record."""

    good_fit = False

    @initialize(end=log_uniform(1 << 24), data=st.data())
    def start(self, end, data):
        start = data.draw(st.integers(0, end))
        self.mid = Mid(start, end, self.good_fit)
        self.model = RangeModel(start, end)
        self.index = {}

    @rule(size=log_uniform(1 << 22), align=ALIGN, bias=BIAS, state=st.sampled_from(["used", "slab"]))
    def alloc(self, size, align, bias, state):
        self.place(size, align, bias, state)

    def place(self, size, align=0, bias=0, state="used"):
        found = self.mid.find(size, align, bias)
        offset = self.choice(found, size, align, bias)
        if offset is None:
            return
        taken = self.mid.take(found, size, align, bias, state)
        start = self.model.take(offset, size, align, bias)
        assert self.mid.block(taken) == (start, size, state)
        assert (start + bias) % (1 << align) == 0
        self.index[start] = taken

    def choice(self, found, size, align, bias):
        """Return the offset of the free block that was found, after comparing it with the model's."""
        offset = self.model.find(size, align, bias)
        if offset is None:
            assert found is None
            return None
        assert self.mid.block(found) == (offset, self.model.free[offset], "free")
        return offset

    @precondition(lambda self: self.index)
    @rule(data=st.data())
    def free(self, data):
        offset = data.draw(st.sampled_from(sorted(self.index)))
        self.mid.free(self.index.pop(offset))
        self.model.give(offset)

    @precondition(lambda self: self.model.start)
    @rule(data=st.data())
    def extend(self, data):
        size = data.draw(log_uniform(self.model.start))
        self.mid.extend(size)
        self.model.extend(size)

    @rule(data=st.data())
    def shrink(self, data):
        size = data.draw(st.integers(0, self.model.edge()))
        self.mid.shrink(size)
        self.model.shrink(size)

    @rule(records=st.integers(0, 300))
    def reserve(self, records):
        self.mid.reserve(records)

    @invariant()
    def agrees(self):
        self.mid.check()
        blocks = [self.mid.block(index) for index in self.mid.blocks()]
        assert [(offset, size, state == "free") for offset, size, state in blocks] == self.model.tiles()
        assert (self.mid.start, self.mid.end) == (self.model.start, self.model.end)
        assert self.mid.used == sum(self.model.live.values())
        assert self.mid.edge() == self.model.edge()
        assert self.mid.largest() == max(self.model.free.values(), default=0)

    def teardown(self):
        for offset in list(getattr(self, "index", ())):
            self.mid.free(self.index.pop(offset))
            self.model.give(offset)
        if hasattr(self, "mid"):
            self.agrees()
            assert self.mid.largest() == self.model.end - self.model.start


class GoodFitMachine(MidMachine):
    """With good fit any block will do that is in a larger bin; else it is the best of the bin."""

    good_fit = True

    def choice(self, found, size, align, bias):
        if found is None:
            assert self.model.find(size, align, bias) is None
            return None
        offset, length, state = self.mid.block(found)
        assert state == "free" and self.model.free[offset] == length
        assert length >= size and self.model.place(offset, size, align, bias) >= offset
        return offset


class CrowdMachine(MidMachine):
    """Many small blocks of few sizes: equal keys in size, deep tries, neighbours on both sides."""

    @initialize(blocks=st.integers(2, 120), sizes=st.lists(st.integers(1, 20), min_size=1, max_size=3))
    def start(self, blocks, sizes):
        sizes = [sizes[at % len(sizes)] for at in range(blocks)]
        self.mid, self.model, self.index = Mid(0, sum(sizes)), RangeModel(0, sum(sizes)), {}
        for size in sizes:
            self.place(size)

    @rule(size=st.integers(1, 24), align=st.integers(0, 3), bias=BIAS)
    def alloc_small(self, size, align, bias):
        self.place(size, align, bias)


class OwnersMachine(RuleBasedStateMachine):
    """Random sequences of up to three owners and nobody; sizes are small, so that neighbours are often free."""

    @initialize(start=st.integers(0, 200), length=st.integers(0, 300), data=st.data())
    def start(self, start, length, data):
        """Begin with a range in which every owner has something."""
        self.mid = Mid(start, start + length)
        self.model = OwnedRangeModel(start, start + length)
        self.index, self.batch = {}, 0
        for size in data.draw(st.lists(st.integers(1, 30), max_size=15)):
            self.alloc(size, 0, 0, NOBODY, "used")
        for offset in data.draw(st.permutations(sorted(self.index)))[3:]:
            self.free_one(offset, data.draw(OWNERS), data.draw(BACK))

    @rule(size=st.integers(1, 60), align=st.integers(0, 4), bias=BIAS, owner=OWNERS,
          state=st.sampled_from(["used", "slab"]))
    def alloc(self, size, align, bias, owner, state):
        found = self.mid.find(size, align, bias, owner)
        self.take(found, self.model.of(owner).find(size, align, bias), size, align, bias, state)

    @rule(size=st.integers(1, 60), align=st.integers(0, 4), bias=BIAS, data=st.data())
    def alloc_allowed(self, size, align, bias, data):
        view = self.view(data)
        found = self.mid.find_allowed(view.owner, view.batch, view.limits, size, align, bias)
        self.take(found, self.model.find_allowed(view, size, align, bias), size, align, bias)

    @rule(size=st.integers(1, 120), align=st.integers(0, 4), bias=BIAS, data=st.data())
    def alloc_joined(self, size, align, bias, data):
        """Exactly what is needed changes hands: the rest of the run stays whose it was."""
        view = self.view(data)
        self.mid.reserve(3)
        found = self.mid.join(view.owner, view.batch, view.limits, size, align, bias)
        self.take(found, self.model.join(view, size, align, bias), size, align, bias)

    def take(self, found, offset, size, align, bias, state="used"):
        assert (found is None) == (offset is None)
        if found is None:
            return
        length, *origin = self.model.free[offset]
        assert self.mid.block(found) == (offset, length, "free") and self.mid.origin(found) == tuple(origin)
        taken = self.mid.take(found, size, align, bias, state)
        start = self.model.take(offset, size, align, bias)
        assert self.mid.block(taken) == (start, size, state) and (start + bias) % (1 << align) == 0
        self.index[start] = taken

    @precondition(lambda self: self.index)
    @rule(data=st.data(), owner=OWNERS, back=BACK)
    def free(self, data, owner, back):
        self.free_one(data.draw(st.sampled_from(sorted(self.index))), owner, back)

    def free_one(self, offset, owner, back=0):
        batch = self.next_batch(owner, back)
        self.mid.free(self.index.pop(offset), owner, batch)
        self.model.give(offset, owner, batch)

    @rule(owner=OWNERS, to=OWNERS, back=BACK, data=st.data())
    def pass_on(self, owner, to, back, data):
        if owner == to:
            return
        limit, batch = data.draw(st.integers(0, self.batch)), self.next_batch(to, back)
        self.mid.pass_on(owner, limit, to, batch)
        self.model.pass_on(lambda other, freed: other == owner and freed <= limit, to, batch)

    @rule(data=st.data(), nobody=st.booleans())
    def adopt(self, data, nobody):
        view = self.view(data, NOBODY if nobody else None)
        self.mid.adopt(view.owner, view.batch, view.limits)
        self.model.pass_on(view.takes, view.owner, view.batch)

    @rule(owner=OWNERS, to=OWNERS)
    def rename(self, owner, to):
        """The blocks that are not free become another owner's."""
        batch = self.next_batch(to)
        self.mid.rename(owner, to, batch)
        self.model.live = {offset: (size, to, batch) if other == owner else (size, other, was)
                           for offset, (size, other, was) in self.model.live.items()}

    @precondition(lambda self: self.model.start)
    @rule(data=st.data(), owner=OWNERS, back=BACK)
    def extend(self, data, owner, back):
        size, batch = data.draw(st.integers(1, self.model.start)), self.next_batch(owner, back)
        self.mid.extend(size, owner, batch)
        self.model.extend(size, owner, batch)

    @rule(data=st.data())
    def shrink(self, data):
        size = data.draw(st.integers(0, self.model.free.get(self.model.start, (0,))[0]))
        self.mid.shrink(size)
        self.model.shrink(size)

    def next_batch(self, owner, back=0):
        """Return the next batch, or one before it: memory may come back with the batch that it was cut from."""
        self.batch += 1
        return max(1, self.batch - back) if owner != NOBODY else 0

    def view(self, data, owner=None):
        limits = {other: data.draw(st.integers(0, self.batch)) for other in range(1, 4)}
        owner = data.draw(st.integers(1, 3)) if owner is None else owner
        return View(owner, self.next_batch(owner), limits)

    @invariant()
    def agrees(self):
        self.mid.check()
        blocks = [(self.mid.block(index), self.mid.origin(index)) for index in self.mid.blocks()]
        assert [(at, size, state == "free", *origin) for (at, size, state), origin in blocks] == self.model.tiles()
        assert (self.mid.start, self.mid.end) == (self.model.start, self.model.end)
        assert self.mid.used == sum(size for size, _, _ in self.model.live.values())
        assert self.mid.owned == sum(size for size, owner, _ in self.model.free.values() if owner != NOBODY)
        for owner in range(4):
            free = self.model.of(owner).free
            assert self.mid.largest(owner) == max(free.values(), default=0)
            assert self.mid.edge(owner) == free.get(self.model.start, 0)

    def teardown(self):
        """With everything nobody's again the range is one block."""
        if not hasattr(self, "mid"):
            return
        for offset in list(self.index):
            self.free_one(offset, NOBODY)
        for owner in range(1, 4):
            self.mid.pass_on(owner, self.batch)
        self.mid.check()
        assert self.mid.largest() == self.model.end - self.model.start


TestMid = MidMachine.TestCase
TestMid.settings = effort(40)
TestGoodFit = GoodFitMachine.TestCase
TestGoodFit.settings = effort(20)
TestCrowd = CrowdMachine.TestCase
TestCrowd.settings = effort(40, steps=60)
TestOwners = OwnersMachine.TestCase
TestOwners.settings = effort(100, steps=50)


def filled(sizes, end=None):
    """Return a Mid full of blocks of the given sizes, from the high end down, and their records."""
    mid = Mid(end or sum(sizes), end or sum(sizes))
    taken = []
    for size in sizes:
        mid.extend(size)
        taken.append(mid.take(mid.find(size), size))
    assert mid.largest() == 0
    return mid, taken


def test_best_fit_then_lowest_offset():
    mid, taken = filled([10, 1, 8, 1, 9, 1, 8, 1, 8, 1, 12])
    for index in taken[::2]:
        mid.free(index)
    mid.check()
    offsets = [mid.block(mid.find(size))[:2] for size in (1, 8, 9, 10, 11, 12)]
    assert offsets == [(13, 8), (13, 8), (31, 9), (50, 10), (0, 12), (0, 12)]
    assert mid.find(13) is None


def test_a_block_is_placed_at_the_high_end():
    mid = Mid(0, 100)
    assert mid.block(mid.take(mid.find(10), 10)) == (90, 10, "used")
    assert mid.block(mid.take(mid.find(10, 4), 10, 4)) == (80, 10, "used")
    assert mid.block(mid.take(mid.find(10, 5, 7), 10, 5, 7)) == (57, 10, "used")
    assert [mid.block(index) for index in mid.blocks()] == [
        (0, 57, "free"), (57, 10, "used"), (67, 13, "free"), (80, 10, "used"), (90, 10, "used")]


def test_the_choice_depends_on_the_free_blocks_only():
    """Whatever the order of the frees, the same requests get the same addresses."""
    rng = random.Random(1)
    sizes = [rng.randint(1, 40) for _ in range(400)]
    answers = set()
    for _ in range(5):
        mid, taken = filled(sizes)
        gone = taken[::3]
        rng.shuffle(gone)
        for index in gone:
            mid.free(index)
        answers.add(tuple(mid.block(mid.take(mid.find(size), size))[0] for size in (3, 17, 17, 30, 1, 2, 9)))
    assert len(answers) == 1


def test_free_merges_with_both_neighbours():
    mid, taken = filled([5, 6, 7])
    mid.free(taken[0])
    mid.free(taken[2])
    mid.check()
    assert len(mid.blocks()) == 3
    mid.free(taken[1])
    mid.check()
    assert [mid.block(index) for index in mid.blocks()] == [(0, 18, "free")]


def test_records_are_used_again():
    mid, taken = filled([3] * 1000)
    records = mid.records
    for _ in range(5):
        for index in taken:
            mid.free(index)
        mid.check()
        taken = [mid.take(mid.find(3), 3) for _ in range(1000)]
    assert mid.records == records


def test_the_whole_of_512_gib():
    end = (512 << 30) // 256
    mid = Mid(end, end)
    mid.extend(end)
    assert mid.largest() == end
    index = mid.take(mid.find(end), end)
    mid.check()
    assert mid.find(1) is None
    mid.free(index)
    first, last = mid.take(mid.find(1), 1), mid.take(mid.find(end - 1), end - 1)
    assert (mid.block(first)[0], mid.block(last)[0]) == (end - 1, 0)
    mid.check()


def test_empty():
    mid = Mid(7, 7)
    mid.check()
    assert (mid.find(1), mid.largest(), mid.edge(), mid.blocks()) == (None, 0, 0, [])
    mid.shrink(0)
    mid.extend(3)
    mid.shrink(3)
    mid.check()
    assert (mid.start, mid.blocks()) == (7, [])


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 15, 16, 17, 255, 256, 1 << 20, (1 << 30) + 1])
def test_sizes_around_the_bins(size):
    """A free block is found by every size up to its own and by none above."""
    mid, (index, _) = filled([size, 1], end=size + 1)
    mid.free(index)
    for wanted in {1, size // 2 or 1, max(size - 1, 1), size}:
        assert mid.block(mid.find(wanted)) == (1, size, "free")
    assert mid.find(size + 1) is None
    mid.check()


def test_neighbours_of_two_owners_do_not_merge():
    mid, taken = filled([10, 20, 30, 40])           # at 90, 70, 40 and 0
    for index, owner, batch in zip(taken, (1, 2, 1, 1), (5, 6, 7, 9)):
        mid.free(index, owner, batch)
        mid.check()
    assert [(mid.block(index)[:2], mid.origin(index)) for index in mid.blocks()] == [
        ((0, 70), (1, 9)), ((70, 20), (2, 6)), ((90, 10), (1, 5))]
    mid.pass_on(2, 5, to=1, batch=10)
    assert len(mid.blocks()) == 3
    mid.pass_on(2, 6, to=1, batch=10)
    assert [(mid.block(index)[:2], mid.origin(index)) for index in mid.blocks()] == [((0, 100), (1, 10))]
    mid.check()


def test_a_merged_block_waits_for_the_last_of_its_parts():
    for batches in ((5, 9, 2), (2, 9, 5), (9, 2, 5), (2, 5, 9)):
        for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1)):
            mid, taken = filled([5, 6, 7])
            for at in order:
                mid.free(taken[at], 1, batches[at])
            mid.check()
            assert [mid.origin(index) for index in mid.blocks()] == [(1, 9)]


def test_join_takes_what_is_needed_of_the_smallest_run():
    """The lower run of 70 is not touched; of the upper one of 60 the rest stays whose it was."""
    mid, taken = filled([20, 40, 5, 30, 40])        # at 115, 75, 70, 40 and 0
    for index, owner, batch in zip(taken[:2] + taken[3:], (1, 2, 1, 2), (5, 6, 7, 8)):
        mid.free(index, owner, batch)
    assert mid.join(3, 9, {1: 7, 2: 5}, 50) is None and mid.join(3, 9, {1: 7, 2: 8}, 71) is None
    mid.reserve(3)
    block = mid.take(mid.join(3, 9, {1: 7, 2: 8}, 50), 50)
    mid.check()
    assert (mid.block(block), mid.origin(block)) == ((85, 50, "used"), (3, 9))
    assert [(mid.block(index), mid.origin(index)) for index in mid.blocks()[:3]] == [
        ((0, 40, "free"), (2, 8)), ((40, 30, "free"), (1, 7)), ((70, 5, "used"), (0, 0))]
    assert [(mid.block(index), mid.origin(index)) for index in mid.blocks()[3:4]] == [((75, 10, "free"), (2, 6))]


def test_an_aligned_hole_behind_an_unaligned_one():
    """Of two holes of the size that is wanted, the lower one is not aligned."""
    mid = Mid(0, 64)
    blocks = [mid.take(mid.find(size), size) for size in (16, 8, 16, 24)]     # at 48, 40, 24 and 0
    mid.free(blocks[2])
    mid.free(blocks[0])
    assert mid.block(mid.find(16))[0] == 24
    found = mid.find(16, align=4)
    assert mid.block(found)[0] == 48
    mid.take(found, 16, align=4)
    mid.check()
