"""Regions: addresses and offsets, both ways, against a list; and who has which addresses."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from cuda_pool import _testing

from .models import effort

MIB, PAGE = 1 << 20, 2 << 20
SPAN = 64 * PAGE
BASE = 0x7F00_0000_0000


class RegionsMachine(RuleBasedStateMachine):
    """Regions at addresses in any order, each with pages of its own."""

    def __init__(self):
        super().__init__()
        self.regions, self.model = _testing.Regions(SPAN), {}

    @rule(at=st.integers(0, 500), lost=st.integers(0, 255), units=st.integers(1, 4 * PAGE // 256),
          residue=st.integers(0, 200))
    def add(self, at, lost, units, residue):
        address, size = BASE + at * PAGE + residue * 256, units * 256
        offset = self.place(size + residue * 256)
        if offset is None or any(address < end and start < address + size for start, (end, *_) in self.model.items()):
            return
        self.regions.add(address, size, offset + residue * 256, size + lost)
        self.model[address] = address + size, offset + residue * 256, size + lost

    def place(self, size):
        """Return an offset from which on whole pages are nobody's."""
        taken = {page for start, (end, offset, _) in self.model.items()
                 for page in range(offset // PAGE, (offset + end - start - 1) // PAGE + 1)}
        wanted = -(-size // PAGE)
        return next((first * PAGE for first in range(SPAN // PAGE - wanted + 1)
                     if taken.isdisjoint(range(first, first + wanted))), None)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data):
        address = data.draw(st.sampled_from(sorted(self.model)))
        self.regions.remove(address)
        del self.model[address]

    @invariant()
    def agrees(self):
        self.regions.check()
        assert self.regions.sums == (len(self.model), sum(nbytes for *_, nbytes in self.model.values()),
                                     sum(end - start for start, (end, *_) in self.model.items()))
        for start, (end, offset, _) in self.model.items():
            for address in (start, (start + end) // 2, end - 1):
                assert self.regions.find(address) == offset + address - start
                assert self.regions.address(offset + address - start) == address
            for address in (start - 1, end, 0, 2**64 - 1):
                if not any(low <= address < high for low, (high, *_) in self.model.items()):
                    assert self.regions.find(address) is None


def test_random_regions():
    run_state_machine_as_test(RegionsMachine, settings=effort(60, steps=30))


def test_claims(make_device):
    first, second = make_device(), make_device()
    assert _testing.claim(first, 1000, 2000) is None and _testing.claim(second, 1000, 2000) is None
    assert _testing.claim(first, 2000, 3000) is None
    for start, end in ((1500, 1501), (0, 1001), (1999, 5000), (0, 10_000)):
        assert _testing.claim(first, start, end) in ((1000, 2000), (2000, 3000))
    assert _testing.claim(first, 3000, 3001) is None and _testing.claim(first, 0, 1000) is None
    _testing.unclaim(first, 1000, 2000)
    _testing.unclaim(first, 1000, 2000)
    assert _testing.claim(second, 1000, 2000) == (1000, 2000) and _testing.claim(first, 1000, 2000) is None
    for start, end in ((0, 1000), (1000, 2000), (2000, 3000), (3000, 3001)):
        _testing.unclaim(first, start, end)
    _testing.unclaim(second, 1000, 2000)
    assert _testing.claim(first, 0, 10_000) is None
    _testing.unclaim(first, 0, 10_000)
