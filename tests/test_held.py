"""Blocks that are freed and held, against lists."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cuda_pool._testing import Helds

from .models import View, effort


class HeldsMachine(RuleBasedStateMachine):
    """`lists` holds the records of each list, newest last; `record` what was said of each."""

    @initialize()
    def start(self):
        self.helds, self.lists, self.record = Helds(), [[] for _ in range(Helds.LISTS)], {}

    @rule(used=st.integers(1, 1 << 30), owners=st.sets(st.sampled_from([1, 2, 63, 64, 255]), max_size=5),
          batch=st.integers(1, 20), at=st.integers(0, Helds.LISTS - 1))
    def add(self, used, owners, batch, at):
        index = self.helds.add(used, owners, batch, at)
        assert index not in self.record
        self.record[index] = used, owners, batch
        self.lists[at].append(index)

    @precondition(lambda self: self.record)
    @rule(data=st.data())
    def remove(self, data):
        index = data.draw(st.sampled_from(sorted(self.record)))
        self.helds.remove(index)
        del self.record[index]
        for records in self.lists:
            if index in records:
                records.remove(index)

    @precondition(lambda self: self.record)
    @rule(data=st.data(), owner=st.sampled_from([1, 64, 255]), limit=st.integers(0, 20), other=st.integers(0, 20))
    def is_allowed(self, data, owner, limit, other):
        """A block waits for all of its streams, but for the asker itself."""
        index = data.draw(st.sampled_from(sorted(self.record)))
        _, owners, batch = self.record[index]
        limits = {1: limit, 2: other, 63: limit, 64: other, 255: limit}
        expected = all(View(owner, 0, limits).allows(one, batch) for one in owners)
        assert self.helds.is_allowed(index, owner, limits) == expected

    @invariant()
    def agrees(self):
        self.helds.check()
        assert self.helds.bytes == sum(used for used, _, _ in self.record.values())
        assert [self.helds.list(at)[::-1] for at in range(Helds.LISTS)] == self.lists


TestHelds = HeldsMachine.TestCase
TestHelds.settings = effort(40, steps=60)


def test_records_are_used_again():
    helds = Helds()
    for _ in range(5):
        indices = [helds.add(256, {1}, 1, at % 4) for at in range(100)]
        for index in indices:
            helds.remove(index)
        helds.check()
    assert helds.records == 101 and helds.bytes == 0
