"""What is known of a few live blocks, against a dict."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cuda_pool._testing import Uses

from .models import effort

# Offsets below 64 have one home; so have some of those further apart, and none of the last.
OFFSETS = st.one_of(st.integers(0, 40), st.integers(0, 40).map(lambda at: at << 6), st.integers(0, 4000),
                    st.integers(0, 60).map(lambda at: at << 38), st.integers(0, 1 << 40))
OWNERS = st.sampled_from([1, 2, 3, 63, 64, 65, 128, 254, 255])


class UsesMachine(RuleBasedStateMachine):
    """`model` maps an offset to [set of owners, origin, batch]."""

    def __init__(self):
        super().__init__()
        self.uses, self.model = Uses(), {}

    @rule(offset=OFFSETS, owner=OWNERS)
    def add(self, offset, owner):
        self.uses.add(offset, owner)
        self.model.setdefault(offset, [set(), 0, 0])[0].add(owner)

    @rule(offset=OFFSETS, origin=OWNERS, batch=st.integers(0, (1 << 32) - 1))
    def came_from(self, offset, origin, batch):
        self.uses.came_from(offset, origin, batch)
        self.model.setdefault(offset, [set(), 0, 0])[1:] = origin, batch

    @rule(first=OFFSETS, step=st.sampled_from([1, 64, 1 << 20]), count=st.integers(1, 80), owner=OWNERS)
    def add_many(self, first, step, count, owner):
        for offset in range(first, first + step * count, step):
            self.add(offset, owner)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), count=st.integers(1, 60))
    def remove(self, data, count):
        """Blocks that were added one after another have places next to each other."""
        offsets = list(self.model)
        first = data.draw(st.integers(0, len(offsets) - 1))
        for offset in offsets[first:first + count]:
            self.uses.remove(offset)
            del self.model[offset]
            self.uses.check()
            assert self.uses.find(offset) is None

    @rule(owner=OWNERS)
    def forget(self, owner):
        """A block whose last stream is gone stays known: it has to wait for nobody then."""
        self.uses.forget(owner)
        for use in self.model.values():
            use[0].discard(owner)
            use[1] = 0 if use[1] == owner else use[1]

    @rule(owner=OWNERS, to=OWNERS)
    def pass_on(self, owner, to):
        self.uses.forget(owner, to)
        for use in self.model.values():
            if owner in use[0]:
                use[0].discard(owner)
                use[0].add(to)
            use[1] = 0 if use[1] == owner else use[1]

    @rule(offset=OFFSETS)
    def find(self, offset):
        assert self.uses.find(offset) == (tuple(self.model[offset]) if offset in self.model else None)

    @invariant()
    def agrees(self):
        self.uses.check()
        assert self.uses.count == len(self.model)
        assert all(self.uses.find(offset) == tuple(use) for offset, use in self.model.items())


TestUses = UsesMachine.TestCase
TestUses.settings = effort(60, steps=40)


def test_nothing_was_used():
    uses = Uses()
    uses.check()
    uses.forget(1)
    assert (uses.find(0), uses.count, uses.places) == (None, 0, 0)


def test_offsets_with_one_home():
    """Every search walks; whichever is removed, the others are found."""
    for gone in range(40):
        uses = Uses()
        for offset in range(40):
            uses.add(offset, offset + 1)
        uses.remove(gone)
        uses.check()
        assert [uses.find(offset) for offset in range(40)] == [
            ({offset + 1}, 0, 0) if offset != gone else None for offset in range(40)]


def test_places_double():
    uses, places = Uses(), set()
    for number in range(1000):
        uses.add(number * 256, 7)
        places.add(uses.places)
    uses.check()
    assert sorted(places) == [64, 128, 256, 512, 1024, 2048]
    for number in range(1000):
        uses.remove(number * 256)
    uses.check()
    assert uses.count == 0
