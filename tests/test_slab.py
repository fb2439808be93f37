"""Slabs against sets of slots."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cuda_pool._testing import Slabs
from cuda_pool.settings import usual_classes

from .models import effort, log_uniform

SPACING = 1 << 21       # from one slab's offset to the next
CLASSES = [(256,), (64, 128), (64, 320, 1024, 4096), (192, 5120, 100_032), usual_classes(16 << 10),
           usual_classes(1 << 20, 64)]


class SlabsMachine(RuleBasedStateMachine):
    """Slabs made and unmade as a segment does it.

    `slots` maps a slab to the slots in use: offset -> bytes requested; `returned` to the freed offsets, last one last.
    """

    @initialize(sizes=st.sampled_from(CLASSES), colouring=st.booleans())
    def start(self, sizes, colouring):
        self.sizes = sizes
        self.slabs = Slabs(sizes, colouring)
        self.slots, self.returned, self.made = {}, {}, 0

    @rule(data=st.data(), alignment=st.sampled_from([1, 64, 256, 1024]))
    def take(self, data, alignment):
        nbytes = data.draw(log_uniform(self.sizes[-1]))
        fitting = [at for at, size in enumerate(self.sizes) if size >= nbytes and size % alignment == 0]
        size_class = self.slabs.size_class(nbytes, alignment)
        assert size_class == (fitting[0] if fitting else None)
        if size_class is not None:
            self.take_one(size_class, nbytes)

    @rule(data=st.data(), slots=st.integers(1, 30))
    def take_many(self, data, slots):
        """As many slots of one of the first classes: its slabs fill up."""
        size_class = data.draw(st.integers(0, min(2, len(self.sizes) - 1)))
        for _ in range(slots):
            self.take_one(size_class, self.sizes[size_class])

    def take_one(self, size_class, nbytes):
        slab = self.slabs.available(size_class)
        if slab is None:
            slab = self.make(size_class)
        offset = self.slabs.take(slab, nbytes)
        self.took(slab, offset, nbytes)

    def make(self, size_class):
        self.made += 1
        size = self.slabs.wanted(size_class)
        assert self.sizes[size_class] <= size <= max(1 << 20, self.sizes[size_class])
        slab = self.slabs.make(size_class, self.made * SPACING, size, self.made)
        assert self.slabs.slab(slab)["slots"] == size // self.sizes[size_class]
        self.slots[slab], self.returned[slab] = {}, []
        return slab

    def took(self, slab, offset, nbytes):
        record = self.slabs.slab(slab)
        size = self.sizes[record["size_class"]]
        assert record["offset"] <= offset and offset + size <= record["offset"] + record["bytes"]
        assert all(abs(offset - other) >= size for other in self.slots[slab])
        if self.returned[slab]:
            assert offset == self.returned[slab].pop()
        slot = self.slabs.slot(slab, offset)
        assert self.slabs.is_live(slab, slot) and self.slabs.requested(slab, slot) == nbytes
        self.slots[slab][offset] = nbytes

    @precondition(lambda self: any(self.slots.values()))
    @rule(data=st.data())
    def give_back(self, data):
        slab = data.draw(st.sampled_from(sorted(slab for slab, slots in self.slots.items() if slots)))
        self.give_one_back(slab, data.draw(st.sampled_from(sorted(self.slots[slab]))))

    @precondition(lambda self: any(self.slots.values()))
    @rule(data=st.data())
    def give_a_slab_back(self, data):
        slab = data.draw(st.sampled_from(sorted(slab for slab, slots in self.slots.items() if slots)))
        for offset in data.draw(st.permutations(sorted(self.slots[slab]))):
            self.give_one_back(slab, offset)

    def give_one_back(self, slab, offset):
        size_class = self.slabs.slab(slab)["size_class"]
        second = bool(self.slabs.lists(size_class)["empty"]) and len(self.slots[slab]) == 1
        slot = self.slabs.slot(slab, offset)
        assert self.slabs.give_back(slab, slot) == second
        del self.slots[slab][offset]
        self.returned[slab].append(offset)
        if second:
            self.unmake(slab)
        else:
            assert not self.slabs.is_live(slab, slot)

    @precondition(lambda self: not all(self.slots.values()))
    @rule(data=st.data())
    def reclaim(self, data):
        self.unmake(data.draw(st.sampled_from(sorted(slab for slab, slots in self.slots.items() if not slots))))

    def unmake(self, slab):
        self.slabs.unmake(slab)
        del self.slots[slab], self.returned[slab]

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def look_up(self, data):
        slab = data.draw(st.sampled_from(sorted(self.slots)))
        record = self.slabs.slab(slab)
        size, first = self.sizes[record["size_class"]], record["offset"] + record["colour"]
        offset = record["offset"] + data.draw(st.integers(0, record["bytes"] - 1))
        slot, rest = divmod(offset - first, size)
        starts = rest == 0 and 0 <= slot < record["slots"]
        assert self.slabs.slot(slab, offset) == (slot if starts else None)

    @invariant()
    def agrees(self):
        self.slabs.check()
        for size_class in range(len(self.sizes)):
            lists = self.slabs.lists(size_class)
            for name, slabs in lists.items():
                assert all(self.state(slab) == name for slab in slabs)
            members = {slab for slabs in lists.values() for slab in slabs}
            assert members == {slab for slab in self.slots if self.slabs.slab(slab)["size_class"] == size_class}
            assert self.slabs.slots_used(size_class) == sum(len(self.slots[slab]) for slab in members)

    def state(self, slab):
        used = len(self.slots[slab])
        return "empty" if used == 0 else "full" if used == self.slabs.slab(slab)["slots"] else "partial"


TestSlabs = SlabsMachine.TestCase
TestSlabs.settings = effort(40, steps=50)


@given(nbytes=st.integers(1, 1 << 20), alignment=st.integers(0, 21).map(lambda order: 1 << order))
@effort(300)
def test_class_of_a_size(nbytes, alignment):
    sizes = usual_classes(1 << 20)
    fitting = [at for at, size in enumerate(sizes) if size >= nbytes and size % alignment == 0]
    assert Slabs(sizes).size_class(nbytes, alignment) == (fitting[0] if fitting else None)


@pytest.mark.parametrize("smallest", [64, 128, 256])
def test_rounding_wastes_at_most_an_eighth(smallest):
    """Beyond eight times the smallest class; below, a class wastes less than the smallest one."""
    sizes = usual_classes(1 << 20, smallest)
    slabs = Slabs(sizes)
    for nbytes in range(1, (1 << 20) + 1, 7):
        waste = sizes[slabs.size_class(nbytes)] - nbytes
        assert waste < smallest or waste <= nbytes / 8


@pytest.mark.parametrize("size", [64, 192, 256, 320, 4096, 5120, 65_600, 100_032, 1 << 20, 1_000_000 // 64 * 64])
@pytest.mark.parametrize("slots", [1, 3, 100])
def test_slot_of_every_offset(size, slots):
    slabs = Slabs([size])
    slab = slabs.make(0, 1 << 30, size * slots + 63)
    step = max(1, size * slots // 20_000)
    for delta in {*range(0, size * slots + 63, step), *(at * size + by for at in range(slots) for by in (-1, 0, 1))}:
        slot, rest = divmod(delta, size)
        assert slabs.slot(slab, (1 << 30) + delta) == (slot if rest == 0 and 0 <= slot < slots else None)


def test_a_larger_slab_of_a_class_keeps_the_slots_exact():
    slabs = Slabs([320])
    for nbytes in (320 * 8, 1 << 20, 320 * 100):
        slab = slabs.make(0, 0, nbytes)
        assert [slabs.slot(slab, at) for at in range(0, nbytes // 320 * 320, 320)] == list(range(nbytes // 320))
        slabs.take(slab, 1)


def test_last_in_first_out():
    slabs = Slabs([256])
    slab = slabs.make(0, 0, 256 * 10)
    offsets = [slabs.take(slab, 200) for _ in range(10)]
    assert offsets == list(range(0, 2560, 256))
    for offset in (512, 0, 1024):
        slabs.give_back(slab, slabs.slot(slab, offset))
    assert [slabs.take(slab, 1) for _ in range(3)] == [1024, 0, 512]


def test_a_second_empty_slab_of_a_class_is_to_go():
    slabs, made = Slabs([256, 512]), []
    for number, size_class in enumerate((0, 0, 0, 1)):
        slab = slabs.make(size_class, number << 20, 1024)
        for _ in range(1024 >> 8 + size_class):
            slabs.take(slab, 1)
        made.append(slab)
    answers = []
    for slab in made:
        answers.append([slabs.give_back(slab, slot) for slot in range(slabs.slab(slab)["slots"])])
        if answers[-1][-1]:
            slabs.unmake(slab)
        slabs.check()
    assert answers == [[False] * 4, [False] * 3 + [True], [False] * 3 + [True], [False] * 2]
    assert (slabs.lists(0)["empty"], slabs.lists(1)["empty"]) == (made[:1], made[3:])


def test_slabs_grow_with_demand():
    """Every slab doubles what its class holds, from 8 slots to 1 MiB."""
    slabs, sizes = Slabs([256]), []
    for number in range(20):
        sizes.append(slabs.wanted(0))
        slab = slabs.make(0, number << 20, sizes[-1])
        for _ in range(sizes[-1] // 256):
            slabs.take(slab, 256)
    slabs.check()
    assert sizes[:3] == [2048, 2048, 4096]
    assert sizes[-1] == 1 << 20
    assert sorted(sizes) == sizes


def test_a_large_class_has_slabs_of_one_slot():
    slabs = Slabs([3 << 20])
    assert slabs.wanted(0) == 3 << 20
    slab = slabs.make(0, 0, 3 << 20)
    assert slabs.take(slab, 1) == 0
    assert slabs.available(0) is None and slabs.lists(0)["full"] == [slab]
    assert slabs.give_back(slab, 0) is False
    slabs.check()


def test_colours_spread_the_first_slots():
    slabs = Slabs([5120], colouring=True)
    firsts = []
    for number in range(12):
        slab = slabs.make(0, number << 20, 5120 * 3 + 1024)
        firsts.append(slabs.take(slab, 1) - (number << 20))
    slabs.check()
    assert set(firsts) == {0, 256, 512, 768, 1024}


def test_without_colouring_slots_start_at_the_slab():
    slabs = Slabs([5120])
    assert [slabs.take(slabs.make(0, number << 20, 5120 + 4000), 1) for number in range(3)] == [0, 1 << 20, 2 << 20]
