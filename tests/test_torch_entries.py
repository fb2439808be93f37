"""Entries of a snapshot's trace, packed while the pickle is read: they are those of the pickle, however it is made."""

import pickle
import random
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_pool._torch_entries import Entries
from cuda_pool._torch_unpickle import loads
from cuda_pool._trace import TraceBuilder
from cuda_pool._trace_torch import EntryTaker
from cuda_pool.errors import TraceError
from cuda_pool.torch_format import ACTIONS, BLOCK_ACTIONS, Entry
from cuda_pool.trace import TraceTable

from .snapshots import BASE, MIB, SHAPES, complete, entry, parsed, pickled


# A pickle by hand: every function returns the instructions that push a value.

def text(value):
    return b"\x8c" + bytes([len(value)]) + value.encode()


def number(value):
    return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)


def items(values):
    return b"}(" + b"".join(text(name) + value for name, value in values.items()) + b"u"


def entries(*each):
    return b"](" + b"".join(each) + b"e"


def one(action="alloc", addr=BASE, size=100):
    return items({"action": text(action), "addr": number(addr), "size": number(size)})


def put(value, at):
    return value + b"q" + bytes([at])


def get(at):
    return b"h" + bytes([at])


def snapshot(*traces, **more):
    return b"\x80\x04" + items({"segments": b"]", **more, "device_traces": entries(*traces)}) + b"."


def read(pickled, device=None):
    """Entries of a device as tuples, which are those that CPython's own unpickler finds."""
    found = parsed(pickled, device)
    plain = pickle.loads(pickled)["device_traces"][found.device]
    assert list(found.entries) == [expected(each) for each in plain]
    return [(each.action, each.addr, each.size) for each in found.entries]


def expected(found):
    place = "device_free" if found["action"] == "oom" else "addr"
    return Entry(found["action"], found.get(place, 0), found.get("size", 0), found.get("stream", 0))


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "bare"])
def test_entries_are_those_of_the_pickle(shape, protocol):
    assert read(pickled(SHAPES[shape](), protocol))


def test_all_entries_side_by_side_are_one_object():
    made = complete()
    made["device_traces"] = [[entry("alloc", BASE + MIB * index, index) for index in range(5000)]]
    [[found]] = loads(pickled(made))["device_traces"]
    assert type(found) is Entries and len(found) == 5000


def test_sequence():
    found = Entries()
    for index in range(5):
        found.append(ACTIONS[index], 10 + index, 20 + index, 30 + index)
    assert len(found) == 5 and found[1] == found[-4] == Entry("free_requested", 11, 21, 31)
    assert found[1:3] == [found[1], found[2]] and [each.addr for each in reversed(found)] == [14, 13, 12, 11, 10]
    assert found == list(found) and list(found) == found and found != list(found)[:-1] and found != 5
    other = Entries()
    other.extend(found)
    assert other == found and other.tally("alloc") == 1 and other.tally("oom") == 0
    other.append("oom", 2**64 - 1, 2**63 - 1, 2**64 - 1)
    assert other != found and other[5] == Entry("oom", 2**64 - 1, 2**63 - 1, 2**64 - 1)
    other.extend(other)
    assert len(other) == 12 and other[6:] == other[:6]
    for index in 5, -6:
        with pytest.raises(IndexError, match="there are 5 entries"):
            found[index]
    with pytest.raises(KeyError):
        found.append("malloc", 1, 1, 1)


@pytest.mark.parametrize("most", [100_000, 300_000])
def test_a_trace_of_several_strips(most):
    found = Entries()
    for index in range(300_000):
        found.append("alloc", index, 1 + index, index % 3)
    assert all(found[index].addr == index for index in (0, 131_071, 131_072, 262_144)) and found[-1].addr == 299_999
    other = Entries()
    other.extend(found)
    builder = TraceBuilder(most)
    if most == 300_000:
        EntryTaker(builder).take(found)
        assert TraceTable(builder).size.tolist() == [each.size for each in other] == list(range(1, 300_001))
    else:
        with pytest.raises(TraceError, match="more than 100000 events"):
            EntryTaker(builder).take(found)
    assert len(found) == 0 and list(found) == [] and found == []


def test_optional_fields():
    assert read(snapshot(entries(
        items({"action": text("snapshot")}), items({"action": text("oom"), "device_free": number(7)}),
        items({"action": text("user_defined"), "size": number(3)}), one()))) == [
        ("snapshot", 0, 0), ("oom", 7, 0), ("user_defined", 0, 3), ("alloc", BASE, 100)]


@pytest.mark.parametrize("field, value", [
    ("addr", 2**64), ("addr", -1), ("size", 2**63), ("size", -1), ("stream", 2**64), ("stream", True), ("addr", 1.5),
    ("size", None), ("addr", "7"), ("action", "malloc"), ("action", 5), ("action", [])])
@pytest.mark.parametrize("before", [0, 1, 1001])
def test_wrong_entry_is_named(field, value, before):
    made = complete()
    wrong = {**entry("alloc", BASE, 100), field: value}
    made["device_traces"] = [[entry("alloc", BASE, 100) for _ in range(before)] + [wrong, entry("alloc", BASE, 5)]]
    with pytest.raises(TraceError) as caught:
        parsed(pickled(made))
    assert caught.value.place == f"device_traces[0][{before}].{field}"


def test_a_trace_that_contains_itself():
    with pytest.raises(TraceError, match="a list: expected a dict") as caught:
        parsed(snapshot(b"]q\x00(" + one() + get(0) + b"e"))
    assert caught.value.place == "device_traces[0][1]"


def test_an_entry_that_contains_its_trace():
    within = items({"action": text("alloc"), "addr": number(BASE), "size": number(5), "frames": get(0)})
    assert read(snapshot(b"]q\x00(" + within + b"e")) == [("alloc", BASE, 5)]


def test_one_entry_many_times():
    repeated = b"](" + put(one("free_requested"), 0) + get(0) * 999_999 + b"e"
    found = parsed(snapshot(repeated)).entries
    assert len(found) == 1_000_000 and found[0] == found[-1] == Entry("free_requested", BASE, 100)


def test_one_entry_in_two_lists_and_twice_on_the_stack():
    assert read(snapshot(entries(put(one(size=1), 0), one(size=2), get(0)), entries(get(0))), 0) == [
        ("alloc", BASE, 1), ("alloc", BASE, 2), ("alloc", BASE, 1)]
    assert read(snapshot(b"](" + one() + b"2" + one(size=3) + b"e")) == [
        ("alloc", BASE, 100), ("alloc", BASE, 100), ("alloc", BASE, 3)]


def test_an_entry_that_is_changed_after_it_was_appended():
    changed = b"]" + put(one(), 0) + b"a" + get(0) + text("size") + number(77) + b"s0"
    assert read(snapshot(changed)) == [("alloc", BASE, 77)]


def test_entries_in_several_pieces():
    pieces = b"](" + one(size=1) + b"e(" + one(size=2) + one(size=3) + b"e" + one(size=4) + b"a(e"
    assert read(snapshot(pieces)) == [("alloc", BASE, size) for size in (1, 2, 3, 4)]
    assert read(snapshot(b"(" + one(size=1) + one(size=2) + b"l" + one(size=3) + b"a")) == [
        ("alloc", BASE, size) for size in (1, 2, 3)]
    assert read(snapshot(b"(" + one(size=1) + one(size=2) + b"t")) == [("alloc", BASE, 1), ("alloc", BASE, 2)]


def test_what_is_no_entry_among_entries():
    for wrong, at in (entries(one(), number(5), one()), 1), (entries(one(), b"]"), 1), (b"](" + one() + b"e]a", 1):
        with pytest.raises(TraceError, match="expected a dict") as caught:
            parsed(snapshot(wrong))
        assert caught.value.place == f"device_traces[0][{at}]"


def test_entries_that_are_popped():
    assert read(snapshot(entries(one(size=1)) + b"0" + entries(one(size=2)))) == [("alloc", BASE, 2)]
    assert read(snapshot(b"(" + entries(one(size=1)) + b"1" + entries(one(size=2)))) == [("alloc", BASE, 2)]


def test_one_list_in_two_places():
    shared = put(entries(one(size=1), one(size=2)), 0)
    text = snapshot(shared, get(0), entries(one(size=3)), more=b"]")
    assert parsed(text).devices == {0: 2, 1: 2, 2: 1}
    assert read(text, 0) == read(text, 1) == [("alloc", BASE, 1), ("alloc", BASE, 2)]
    text = snapshot(shared + get(0) + one(size=4) + b"a0", get(0))      # and it grows in between
    assert read(text, 0) == read(text, 1) == [("alloc", BASE, 1), ("alloc", BASE, 2), ("alloc", BASE, 4)]


def test_one_long_list_for_many_devices():
    """A small file that means 10**9 entries; only those of one device are looked at."""
    shared = put(b"](" + put(one("snapshot"), 1) + get(1) * 499_999 + b"e", 0)
    started = time.thread_time()
    found = parsed(snapshot(shared, *[get(0)] * 1023))
    assert time.thread_time() - started < 30
    assert len(found.entries) == found.devices[1023] == 500_000


@pytest.mark.parametrize("pickled, place", [
    (b"\x80\x04" + entries(one(), one()) + b".", "segments[0]"),
    (b"\x80\x04" + items({"segments": entries(one())}) + b".", "segments[0]"),
    (b"\x80\x04" + items({"segments": entries(b"}", one())}) + b".", "segments[0]"),
    (b"\x80\x04" + items({"segments": b"]", "device_traces": entries(one(), one())}) + b".", "device_traces[0]"),
    (b"\x80\x04" + items({"segments": b"]", "device_traces": one()}) + b".", "device_traces"),
    (snapshot(entries(entries(one()))), "device_traces[0][0]"),
])
def test_entries_at_odd_places(pickled, place):
    with pytest.raises(TraceError, match="expected a |missing") as caught:
        parsed(pickled)
    assert caught.value.place == place


def test_entries_for_blocks():
    made = complete()
    made["segments"][0]["blocks"] = [entry("alloc", BASE, 100)]
    with pytest.raises(TraceError, match="an entry of a trace: expected a dict") as caught:
        parsed(pickled(made))
    assert caught.value.place == "segments[0].blocks[0]"


def test_segments_that_look_like_entries_stay_segments():
    made = complete()
    made["segments"][0].update(action="alloc", addr=1, size=1)
    assert parsed(pickled(made)).segments == parsed(pickled(complete())).segments


@given(st.lists(st.sampled_from([
    b"]", b"(", b"e", b"a", b"0", b"1", b"2", b"}", b"u", b"s", b"l", b"t", b"d", b"\x94", get(0), get(1), get(2),
    put(b"", 0), one(), one("oom"), put(one(), 1), put(b"]", 2), entries(one(), one("snapshot")), number(3),
    text("action")]), max_size=40))
def test_any_instructions(program):
    text = b"\x80\x04" + b"".join(program) + b"."
    for whole in text, snapshot(b"".join(program)):
        try:
            parsed(whole)
        except TraceError as error:
            assert error.reason and error.place


def test_memory_of_entries_with_frames_of_their_own():
    frames = entries(*(items({"name": text(f"name {index}"), "line": number(index)}) for index in range(9)))
    each = items({"action": text("alloc"), "addr": number(BASE), "size": number(9), "frames": frames})
    pickled = snapshot(b"]" + (b"(" + each * 100 + b"e") * 200)
    tracemalloc.start()
    try:
        found = parsed(pickled)
        assert len(found.entries) == 20_000 and tracemalloc.get_traced_memory()[1] < 3 * MIB < len(pickled) / 2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("between", [b"e](", b"N"], ids=["lists", "none"])
def test_memory_of_entries_that_are_alone(between):
    each = b"}(" + get(0) + get(1) + b"u"
    keys = put(text("action"), 0) + b"0" + put(text("snapshot"), 1) + b"0"
    pickled = b"\x80\x04" + keys + b"](](" + (each + between) * 500_000 + b"ee."
    tracemalloc.start()
    try:
        with pytest.raises(TraceError):
            parsed(pickled)
        assert tracemalloc.get_traced_memory()[1] < 1.5 * ((64 << 20) + 24 * len(pickled))
    finally:
        tracemalloc.stop()


class Blocks:
    """Which block is at an address: a model of what is made of a trace, in (kind, id, size, stream)."""

    def __init__(self):
        self.events, self.latest, self.live, self.pending = [], {}, {}, set()
        self.blocks = self.lost = 0

    def begin(self, address):
        self.latest[address] = self.blocks
        self.blocks += 1

    def take(self, each):
        if each.action == "alloc":
            if each.addr in self.live:
                self.lost += 1
                self.events.append(("free", self.latest[each.addr], self.live[each.addr], each.stream))
            self.begin(each.addr)
            self.pending.discard(each.addr)
            self.live[each.addr] = each.size
            self.events.append(("alloc", self.latest[each.addr], each.size, each.stream))
        elif each.action == "free_completed" and each.addr in self.pending:
            self.pending.discard(each.addr)
        elif each.action in BLOCK_ACTIONS:
            if each.addr not in self.latest:
                self.begin(each.addr)
            self.live.pop(each.addr, None)
            self.events.append(("free", self.latest[each.addr], each.size, each.stream))
            if each.action == "free_requested":
                self.pending.add(each.addr)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("addresses", [3, 40, 5000])
def test_events_against_a_model(seed, addresses):
    source, model, found = random.Random(seed), Blocks(), Entries()
    for _ in range(3000):
        each = Entry(source.choice(ACTIONS + BLOCK_ACTIONS * 3), source.randrange(addresses) << 9,
                     source.randrange(10_000), source.randrange(3))
        model.take(each)
        found.append(each.action, each.addr, each.size, each.stream)
    builder = TraceBuilder()
    taker = EntryTaker(builder)
    taker.take(found)
    trace = TraceTable(builder)
    columns = (each.tolist() for each in (trace.is_free, trace.id, trace.size, trace.stream))
    assert [("free" if freed else "alloc", *rest) for freed, *rest in zip(*columns)] == model.events
    assert taker.lost_frees == model.lost
