"""Slabs against sets of slots."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cuda_pool._testing import Slabs
from cuda_pool.settings import usual_classes

from .models import NOBODY, View, effort, log_uniform

OWNERS = st.integers(0, 2)
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


class Owned:
    """A slab with its owner: the state of every slot, and the batch of each that was handed out once."""

    def __init__(self, owner, size_class, slots, batch):
        self.owner, self.size_class, self.slots = owner, size_class, slots
        self.batch = self.birth = batch
        self.live, self.held, self.chain, self.batches = {}, set(), [], {}

    @property
    def used(self):
        return len(self.live) + len(self.held)

    @property
    def fresh(self):
        return len(self.batches)

    @property
    def state(self):
        return "empty" if self.used == 0 else "full" if self.used == self.slots else "partial"

    def take(self, slot, nbytes):
        if slot == self.fresh:
            self.batches[slot] = self.birth
        else:
            self.chain.remove(slot)
        self.live[slot] = nbytes

    def allowed(self, view):
        """Return the slot that a view allows: of the last 64 that were returned, else one never handed out."""
        for slot in self.chain[:-65:-1]:
            if view.allows(self.owner, self.batches[slot]):
                return slot
        return self.fresh if self.fresh < self.slots and view.allows(self.owner, self.birth) else None

    def pass_on(self, to, batch):
        self.owner, self.batch, self.birth = to, batch, batch
        self.batches = dict.fromkeys(self.batches, batch)


class OwnersMachine(RuleBasedStateMachine):
    """Random sequences of two owners and nobody; slots are live, held or free."""

    @initialize(data=st.data())
    def start(self, data):
        self.sizes = data.draw(st.sampled_from([(256,), (64, 1024), (100_032,)]))
        self.slabs, self.model, self.made, self.batch = Slabs(self.sizes), {}, 0, 0
        for owner in data.draw(st.lists(OWNERS, max_size=4)):
            self.take_many(data, owner, 20)

    @rule(data=st.data(), owner=OWNERS, slots=st.integers(1, 30))
    def take_many(self, data, owner, slots):
        """An owner is served from its own slabs alone; a new slab is of nobody's memory or of the owner's own."""
        size_class = data.draw(st.integers(0, len(self.sizes) - 1))
        for nbytes in range(1, slots + 1):
            slab = self.slabs.available(size_class, owner)
            if slab is None:
                assert all(owned.state == "full" for owned in self.of(owner, size_class).values())
                slab = self.make(owner, size_class, data.draw(st.booleans()))
            owned = self.model[slab]
            assert (owned.owner, owned.size_class) == (owner, size_class)
            self.took(slab, owned.chain[-1] if owned.chain else owned.fresh, self.slabs.take(slab, nbytes), nbytes)

    def make(self, owner, size_class, fresh):
        self.made += 1
        batch, size = 0 if fresh else self.next_batch(owner), self.slabs.wanted(size_class, owner)
        slab = self.slabs.make(size_class, self.made * SPACING, size, self.made, owner, batch)
        self.model[slab] = Owned(owner, size_class, size // self.sizes[size_class], batch)
        return slab

    def took(self, slab, slot, offset, nbytes):
        assert self.slabs.slot(slab, offset) == slot
        self.model[slab].take(slot, nbytes)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def take_allowed(self, data):
        slab, owned = self.pick(data)
        limits = {owner: data.draw(st.integers(0, self.batch)) for owner in range(1, 3)}
        view = View(data.draw(st.integers(1, 2)), self.next_batch(1), limits)
        slot = owned.allowed(view)
        offset = self.slabs.take_allowed(slab, view.owner, view.batch, limits, 50)
        assert (offset is None) == (slot is None)
        if slot is not None:
            self.took(slab, slot, offset, 50)

    @precondition(lambda self: self.some("live"))
    @rule(data=st.data(), slots=st.integers(1, 30), noted=st.booleans())
    def give_back(self, data, slots, noted):
        """In the order of the slab's owner, or for anyone who may have what was free in it before."""
        slab, owned = self.pick(data, "live")
        for slot in data.draw(st.permutations(sorted(owned.live)))[:slots]:
            if noted and owned.owner != NOBODY:
                owned.batch = owned.batches[slot] = self.next_batch(owned.owner)
                self.slabs.note_batch(slab, slot, owned.batch)
            del owned.live[slot]
            self.returned(slab, slot, self.slabs.give_back)

    @precondition(lambda self: self.some("live"))
    @rule(data=st.data(), slots=st.integers(1, 30))
    def hold(self, data, slots):
        slab, owned = self.pick(data, "live")
        for slot in sorted(owned.live)[:slots]:
            self.slabs.hold(slab, slot)
            del owned.live[slot]
            owned.held.add(slot)

    @precondition(lambda self: self.some("held"))
    @rule(data=st.data(), nbytes=st.integers(1, 64))
    def retake(self, data, nbytes):
        slab, owned = self.pick(data, "held")
        slot = data.draw(st.sampled_from(sorted(owned.held)))
        self.slabs.retake(slab, slot, nbytes)
        owned.held.remove(slot)
        owned.live[slot] = nbytes

    @precondition(lambda self: self.some("held"))
    @rule(data=st.data(), slots=st.integers(1, 30))
    def release(self, data, slots):
        slab, owned = self.pick(data, "held")
        for slot in data.draw(st.permutations(sorted(owned.held)))[:slots]:
            owned.held.remove(slot)
            self.returned(slab, slot, self.slabs.release)

    def returned(self, slab, slot, give):
        """The second empty slab of an owner's class goes back."""
        owned = self.model[slab]
        others = [other for at, other in self.of(owned.owner, owned.size_class).items() if at != slab]
        second = owned.used == 0 and any(other.state == "empty" for other in others)
        owned.chain.append(slot)
        assert give(slab, slot) == second
        if second:
            self.slabs.unmake(slab)
            del self.model[slab]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), to=OWNERS)
    def pass_on(self, data, to):
        slab, owned = self.pick(data)
        if to == owned.owner:
            return
        batch = self.next_batch(to)
        empty = [other for other in self.of(to, owned.size_class).values() if other.state == "empty"]
        assert self.slabs.pass_on(slab, to, batch) == (owned.state != "empty" or not empty)
        if owned.state != "empty" or not empty:
            owned.pass_on(to, batch)

    def some(self, name):
        return any(getattr(owned, name) for owned in self.model.values())

    def pick(self, data, name=None):
        """Return a slab, that has slots in a state, and its model."""
        return data.draw(st.sampled_from([(slab, owned) for slab, owned in sorted(self.model.items())
                                          if name is None or getattr(owned, name)]))

    def of(self, owner, size_class):
        return {slab: owned for slab, owned in self.model.items()
                if (owned.owner, owned.size_class) == (owner, size_class)}

    def next_batch(self, owner):
        self.batch += 1
        return self.batch if owner != NOBODY else 0

    @invariant()
    def agrees(self):
        self.slabs.check()
        for owner in range(3):
            for size_class in range(len(self.sizes)):
                owned = self.of(owner, size_class)
                for state, slabs in self.slabs.lists(size_class, owner).items():
                    assert sorted(slabs) == sorted(slab for slab in owned if owned[slab].state == state)
                assert self.slabs.slots_used(size_class, owner) == sum(slab.used for slab in owned.values())
        for slab, owned in self.model.items():
            record = self.slabs.slab(slab)
            assert [record[name] for name in ("owner", "used", "held", "fresh", "batch", "birth")] == [
                owned.owner, owned.used, len(owned.held), owned.fresh, owned.batch, owned.birth]
            for slot in range(owned.slots):
                assert self.slabs.is_live(slab, slot) == (slot in owned.live)
            for slot, batch in owned.batches.items():
                assert self.slabs.slot_batch(slab, slot) == batch
            for slot, nbytes in owned.live.items():
                assert self.slabs.requested(slab, slot) == nbytes


TestSlabs = SlabsMachine.TestCase
TestSlabs.settings = effort(40, steps=50)
TestOwners = OwnersMachine.TestCase
TestOwners.settings = effort(60, steps=40)


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


def test_every_owner_has_slabs_of_its_own():
    slabs = Slabs([256])
    made = [slabs.make(0, number << 20, 1024, owner=owner, batch=0) for number, owner in enumerate((0, 1, 2))]
    assert [slabs.available(0, owner) for owner in range(4)] == [*made, None]
    assert slabs.pass_on(made[0], 2, 5) is False        # both are empty
    slabs.take(made[0], 100)
    assert slabs.pass_on(made[0], 2, 5) is True
    slabs.check()
    assert slabs.available(0, 0) is None and slabs.lists(0, 2) == {"partial": made[:1], "full": [], "empty": made[2:]}
    assert (slabs.slots_used(0, 0), slabs.slots_used(0, 2)) == (0, 1)
    assert slabs.take_allowed(made[0], 1, 9, {2: 4}, 100) is None
    assert slabs.take_allowed(made[0], 1, 9, {2: 5}, 100) == 256
    slabs.check()


def test_a_held_slot_keeps_its_slab():
    slabs = Slabs([256])
    made = [slabs.make(0, number << 20, 512, owner=1) for number in range(2)]
    for slab in made:
        slabs.take(slab, 100)
        slabs.hold(slab, 0)
    slabs.check()
    assert slabs.lists(0, 1) == {"partial": made[::-1], "full": [], "empty": []} and slabs.slots_used(0, 1) == 2
    assert not slabs.is_live(made[0], 0)
    slabs.retake(made[0], 0, 77)
    assert slabs.is_live(made[0], 0) and slabs.requested(made[0], 0) == 77
    slabs.hold(made[0], 0)
    assert [slabs.release(slab, 0) for slab in made] == [False, True]
    slabs.unmake(made[1])
    slabs.check()
    assert slabs.lists(0, 1)["empty"] == made[:1]


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


def test_slots_of_a_ready_slab_wait_for_the_last_free_in_it():
    """They count as never handed out, but not as free before that."""
    slabs = Slabs((256,))
    slab = slabs.make(0, 0, 2048, owner=1, batch=1)
    offset = slabs.take(slab, 100)
    slabs.note_batch(slab, slabs.slot(slab, offset), 5)
    assert not slabs.give_back(slab, slabs.slot(slab, offset))
    slabs.shelve(slab)
    slabs.check()
    assert slabs.available(0, owner=1) is None and slabs.ready(0, owner=1) == slab
    record = slabs.slab(slab)
    assert (record["fresh"], record["birth"], record["batch"]) == (0, 5, 5)
    slabs.activate(slab)
    assert slabs.take_allowed(slab, 2, 6, {1: 4}, 100) is None
    assert slabs.take_allowed(slab, 2, 6, {1: 5}, 100) == 0
    slabs.check()


@effort(40)
@given(slots=st.lists(st.integers(0, 300), min_size=1, max_size=12))
def test_what_is_expected_is_the_weighted_peak(slots):
    """Of periods in which a class had so many slots; empty slabs are ready in between."""
    slabs, expected, at = Slabs((256,)), 0, 0
    for period, count in enumerate(slots, start=1):
        taken = []
        for _ in range(count):
            slab = slabs.available(0)
            if slab is None:
                slab = slabs.ready(0)
                if slab is None:
                    at += 1
                    slab = slabs.make(0, at * SPACING, slabs.wanted(0))
                else:
                    slabs.activate(slab)
            taken.append((slab, slabs.slot(slab, slabs.take(slab, 256))))
        assert slabs.demand(0)["active"] >= count
        for slab, slot in taken:
            slabs.give_back(slab, slot)
        for slab in {slab for slab, _ in taken}:
            slabs.shelve(slab)
        slabs.check()
        slabs.pass_periods(period)
        expected = count if count >= expected else (expected + count) // 2
        assert slabs.demand(0)["expected"] == expected
    assert slabs.demand(0)["highest"] == max(slots)
