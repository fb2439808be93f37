"""The streams of a pool and their batches, against plain lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cuda_pool._testing import STREAM_MARKS, Order, is_within, later

from .models import effort

LEGACY, WRAP = 1, 1 << 32


class Stream:
    """A stream of the model: its marks as [event, batch], and what is known of its work."""

    def __init__(self, kind, handle, batch):
        self.kind, self.handle = kind, handle
        self.marks, self.unmarked = [], 0
        self.done = self.freed = batch - 1

    @property
    def pending(self):
        return self.done < self.freed


class OrderMachine(RuleBasedStateMachine):
    """Frees, events and waits of a few streams; the model's batches are plain ints."""

    FIRST = 1

    @initialize(more=st.integers(0, 20))
    def start(self, more):
        self.batch = self.FIRST + more
        self.order, self.streams, self.waited, self.events = Order(self.batch), {}, {}, 0
        self.streams[LEGACY] = Stream("legacy", 0, self.batch)

    @precondition(lambda self: len(self.streams) < 6)
    @rule(kind=st.sampled_from(["handle", "vouched", "held", "gone", "capture"]), handle=st.integers(1, 9))
    def add(self, kind, handle):
        handle <<= 12
        if kind in ("handle", "vouched", "held") and self.named(handle) is not None:
            return
        owner = self.order.add(kind, handle)
        assert owner == next(at for at in range(1, 256) if at not in self.streams)
        self.streams[owner] = Stream(kind, handle, self.batch)

    @rule(data=st.data())
    def drop(self, data):
        """A record without pending frees, or a capture's, goes back: whoever gets it next has waited for nobody."""
        idle = [owner for owner, stream in self.streams.items()
                if owner != LEGACY and (not stream.pending or stream.kind == "capture")]
        if not idle:
            return
        owner = data.draw(st.sampled_from(idle))
        self.order.drop(owner)
        del self.streams[owner]
        self.waited = {pair: batch for pair, batch in self.waited.items() if owner not in pair}

    @rule(data=st.data(), nbytes=st.integers(0, 1 << 20))
    def free(self, data, nbytes):
        owner, stream = self.pick(data)
        self.order.freed(owner, nbytes)
        stream.freed = self.batch
        stream.unmarked += nbytes

    @rule(data=st.data())
    def mark(self, data):
        """Where there is no room the newest mark goes: a later event covers what it covered."""
        owner, stream = self.pick(data)
        self.events += 1
        replaced = stream.marks.pop()[0] if len(stream.marks) == STREAM_MARKS else None
        assert self.order.mark(owner, self.events) == replaced
        stream.marks.append((self.events, self.batch))
        stream.unmarked = 0
        self.batch += 1

    @rule(data=st.data())
    def pass_mark(self, data):
        owner, stream = self.pick(data)
        if not stream.marks:
            return
        event, batch = stream.marks.pop(0)
        assert self.order.pass_mark(owner) == event
        stream.done = max(stream.done, batch)

    @rule(data=st.data())
    def wait(self, data):
        """One stream is put behind an event of another."""
        asker, other = self.pick(data)[0], self.pick(data)[0]
        if self.streams[other].marks and asker != other:
            _, batch = data.draw(st.sampled_from(self.streams[other].marks))
            self.order.wait(asker, other, batch)
            self.waited[asker, other] = max(batch, self.waited.get((asker, other), 0))

    @rule(data=st.data(), back=st.integers(0, 30))
    def allows(self, data, back):
        """Memory of a stream is the asker's if it is the asker, if it is done, or if the asker waited for it."""
        asker, owner = self.pick(data)[0], self.pick(data)[0]
        batch = max(self.FIRST, self.batch - back)
        limit = max(self.streams[owner].done, self.waited.get((asker, owner), 0))
        assert self.order.allows(asker, owner, batch) == (asker == owner or batch <= limit)
        assert self.order.allows(0, owner, batch) == (batch <= self.streams[owner].done)

    @rule(handle=st.integers(1, 9))
    def find(self, handle):
        handle <<= 12
        assert self.order.find(handle) == self.order.search(handle) == self.named(handle)

    @rule()
    def find_the_default_stream(self):
        assert self.order.find(0) == self.order.find(1) == LEGACY

    def named(self, handle):
        return next((owner for owner, stream in self.streams.items()
                     if stream.handle == handle and stream.kind in ("handle", "vouched", "held")), None)

    def pick(self, data):
        return data.draw(st.sampled_from(sorted(self.streams.items(), key=lambda item: item[0])))

    @invariant()
    def agrees(self):
        self.order.check()
        assert self.order.batch == self.batch
        for owner, stream in self.streams.items():
            record = self.order.stream(owner)
            assert record["marks"] == [(event, batch) for event, batch in stream.marks]
            assert (record["done"], record["freed"]) == (stream.done, stream.freed)
            assert (record["kind"], record["handle"]) == (stream.kind, stream.handle)
            assert record["unmarked"] == stream.unmarked
            assert self.order.is_pending(owner) == stream.pending
        for but in (0, *self.streams):
            assert self.order.any_pending(but) == any(
                stream.pending and stream.kind != "capture" for owner, stream in self.streams.items() if owner != but)


class LateMachine(OrderMachine):
    """The last batches before there are no more: by then a pool has numbered them anew."""

    FIRST = (1 << 31) - 300


TestOrder = OrderMachine.TestCase
TestOrder.settings = effort(40, steps=60)
TestLate = LateMachine.TestCase
TestLate.settings = effort(40, steps=60)


@given(batch=st.integers(0, WRAP - 1), ahead=st.integers(0, (1 << 31) - 1))
@effort(300)
def test_batches_less_than_half_the_range_apart_are_in_order(batch, ahead):
    limit = (batch + ahead) % WRAP
    assert is_within(batch, limit) and is_within(limit, batch) == (ahead == 0)
    assert later(batch, limit) == later(limit, batch) == limit


def test_every_record_has_a_serial_of_its_own():
    order, serials = Order(), set()
    for _ in range(3):
        owners = [order.add("handle", 1 << 12 + at) for at in range(10)]
        serials |= {order.stream(owner)["serial"] for owner in owners}
        for owner in owners:
            order.drop(owner)
            assert order.stream(owner)["serial"] == 0
    assert len(serials) == 30


def test_no_record_is_left():
    order = Order()
    assert [order.add("handle", at << 12) for at in range(2, 257)] == [*range(2, 256), None]
    order.check()
    order.drop(77)
    assert order.add("held", 5) == 77


def test_a_new_stream_has_nothing_pending():
    """Blocks that came from whoever had the record before are old enough for anyone."""
    order = Order()
    first = order.add("handle", 1 << 12)
    order.freed(first, 100)
    order.mark(first, 9)
    order.pass_mark(first)
    order.drop(first)
    assert order.add("handle", 2 << 12) == first
    assert not order.is_pending(first) and not order.any_pending()
    assert order.allows(LEGACY, first, 1) and not order.allows(LEGACY, first, order.batch)


@pytest.mark.parametrize("kind", ["gone", "capture", "spare"])
def test_what_is_no_stream_is_not_found_by_its_handle(kind):
    order = Order()
    order.add("handle", 1 << 12)
    order.add(kind, 2 << 12)
    assert order.find(1 << 12) == 2 and order.find(2 << 12) is None
