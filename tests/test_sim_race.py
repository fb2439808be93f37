"""The race detector: single cases, and any program against a plain model of what happens before what."""

import os
import threading

import pytest
from hypothesis import assume, given, settings, strategies as st

from cuda_pool import sim

EFFORT = float(os.environ.get("CUDA_POOL_TEST_EFFORT", "1"))
SEEDS = [None, 0, 1, 2, 3, 4]


@pytest.fixture
def racing(make_device):
    """A device on which streams may race."""
    return make_device(races=True)


# --- single cases -------------------------------------------------------------------------------------------------

def test_race_names_both_accesses(racing):
    ptr = racing.malloc(100)
    first, second = racing.stream(), racing.stream()
    first.write(ptr, 60, 1, ticks=5)
    second.read(ptr + 50, 50, ticks=9)
    racing.synchronize()
    [race] = racing.races
    assert race == sim.Race(sim.Access(first.id, "write", ptr, 60, 5, True),
                            sim.Access(second.id, "read", ptr + 50, 50, 9, False))
    assert str(race) == (f"nothing orders write on stream {first.id} at tick 5 writes 60 bytes at {ptr:#x} and "
                         f"read on stream {second.id} at tick 9 reads 50 bytes at {ptr + 50:#x}")
    assert racing.race_count == 1


@pytest.mark.parametrize("kinds, count", [("rr", 0), ("rw", 1), ("wr", 1), ("ww", 1)])
@pytest.mark.parametrize("gap, touching", [(-1, True), (0, False), (5, False)])
def test_what_conflicts(racing, kinds, count, gap, touching):
    ptr = racing.malloc(100)
    for stream, kind, start in zip([racing.stream(), racing.stream()], kinds, [ptr, ptr + 10 + gap]):
        if kind == "r":
            stream.read(start, 10)
        else:
            stream.write(start, 10, 1)
    racing.synchronize()
    assert len(racing.races) == count * touching


def ways_to_order(device):
    """Yield functions that order what is on `first` before what comes on `second`."""
    yield "event", lambda first, second: second.wait(first.record())
    yield "stream synchronized", lambda first, second: first.synchronize()
    yield "event synchronized", lambda first, second: first.record().synchronize()
    yield "device synchronized", lambda first, second: device.synchronize()
    yield "legacy stream between", lambda first, second: device.default_stream().work(1)
    yield "wait on the legacy stream", lambda first, second: device.default_stream().wait(device.event())
    yield "query of the stream", lambda first, second: (device.advance(200), first.query())
    yield "query of an event", lambda first, second: (event := first.record(), device.advance(200), event.query())
    yield "over a third stream", over_a_third
    yield "memory freed", lambda first, second: device.free(device.malloc(1))


def over_a_third(first, second):
    third = first.device.stream(blocking=False)
    third.wait(first)
    second.wait(third)


def ways_that_do_not(device):
    yield "nothing", lambda first, second: None
    yield "time alone", lambda first, second: device.advance(50)
    yield "the other way round", lambda first, second: first.wait(second)
    yield "an event that is asked too early", lambda first, second: first.record().query()
    yield "an event of before", lambda first, second: second.wait(device.event())
    yield "the second stream synchronized", lambda first, second: second.synchronize()
    yield "allocation", lambda first, second: device.malloc(1)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_orders_and_what_does_not(make_device, seed):
    device = make_device(seed=seed, races=True)
    for ways, expected in ((ways_to_order(device), 0), (ways_that_do_not(device), 1)):
        for name, order in ways:
            before = device.race_count
            ptr = device.malloc(8)
            first, second = device.stream(), device.stream()
            first.write(ptr, 8, 1, ticks=5)
            order(first, second)
            second.write(ptr, 8, 2)
            device.synchronize()
            assert device.race_count - before == expected, name
            device.check()


def test_non_blocking_stream_races_with_the_legacy_default_stream(racing, raw):
    sim.set_current_device(racing)
    ptr, stream = racing.malloc(8), racing.stream(blocking=False)
    assert raw(racing).cudaMemsetAsync(ptr, 1, 8, 0) == 0
    stream.read(ptr, 8)
    racing.synchronize()
    [race] = racing.races
    assert race.first.operation == "cudaMemsetAsync" and race.first.stream == racing.default_stream().id


def test_copies_read_and_write(racing, raw):
    sim.set_current_device(racing)
    source, destination = racing.malloc(8), racing.malloc(8)
    copier, writer, reader = (racing.stream(blocking=False) for _ in range(3))
    assert raw(racing).cudaMemcpyAsync(destination, source, 8, 3, copier.handle) == 0
    writer.write(source, 8, 1, ticks=1)
    reader.read(destination, 8, ticks=2)
    reader.read(source, 8, ticks=2)
    racing.synchronize()
    assert [(race.first.stream, race.second.stream) for race in racing.races] == [
        (copier.id, writer.id), (copier.id, reader.id), (writer.id, reader.id)]


def test_free_races_with_use(racing, raw):
    """cudaFreeAsync writes to all of an allocation, as far as others are concerned."""
    sim.set_current_device(racing)
    ptr, user, other = racing.malloc(8), racing.stream(), racing.stream()
    user.write(ptr, 8, 1)
    other.work(5)
    assert raw(racing).cudaFreeAsync(ptr, other.handle) == 0
    racing.synchronize()
    [race] = racing.races
    assert (race.second.operation, race.second.stream) == ("cudaFreeAsync", other.id)


def test_memory_that_was_freed_races_with_nothing_new(make_device, raw):
    device = make_device()
    sim.set_current_device(device)
    calls, streams = raw(device), [device.stream(blocking=False) for _ in range(2)]
    for i in range(300):
        ptr = device.malloc(8192)       # often at an address that was just freed
        streams[i % 2].write(ptr, 8192, 1, ticks=0)
        assert calls.cudaFreeAsync(ptr, streams[i % 2].handle) == 0
    assert device.races == []


def test_successor_of_a_stream_is_another_stream(racing):
    ptr, old = racing.malloc(8), racing.stream(blocking=False)
    old.write(ptr, 8, 1, ticks=1)
    handle, old_id = old.handle, old.id
    old.destroy()
    racing.advance(10)
    new = racing.stream(blocking=False)
    assert new.handle == handle
    new.write(ptr, 8, 2)
    racing.synchronize()
    [race] = racing.races
    assert (race.first.stream, race.second.stream) == (old_id, new.id)


def test_threads_with_their_default_streams_race(racing):
    ptr, stream = racing.malloc(8), racing.default_stream(per_thread=True)
    stream.write(ptr, 8, 1)
    thread = threading.Thread(target=stream.write, args=(ptr, 8, 2))
    thread.start()
    thread.join()
    racing.synchronize()
    assert len(racing.races) == 1


@pytest.mark.parametrize("joined, count", [(True, 0), (False, 1)])
def test_branches_of_a_graph(racing, joined, count):
    ptr, origin, side = racing.malloc(8), racing.stream(), racing.stream()
    origin.begin_capture()
    side.wait(origin)
    side.write(ptr, 8, 1)
    if joined:
        origin.wait(side)
    origin.write(ptr, 8, 2)
    origin.wait(side)
    graph = origin.end_capture()
    assert racing.races == []
    for launches in (1, 2):
        graph.launch(origin)
        racing.synchronize()
        assert racing.race_count == count * launches


def test_graph_races_with_what_is_beside_it(racing):
    ptr, stream, other = racing.malloc(8), racing.stream(), racing.stream()
    stream.begin_capture()
    stream.write(ptr, 8, 1)
    graph = stream.end_capture()
    graph.launch(stream)
    other.wait(stream)
    other.write(ptr, 8, 2)
    racing.synchronize()
    assert racing.races == []
    graph.launch(stream)
    other.read(ptr, 8)
    racing.synchronize()
    assert len(racing.races) == 1


def test_two_launches_of_one_graph_on_two_streams_race(racing):
    ptr, stream, other = racing.malloc(8), racing.stream(), racing.stream()
    stream.begin_capture()
    stream.write(ptr, 8, 1)
    graph = stream.end_capture()
    graph.launch(stream)
    graph.launch(other)
    racing.synchronize()
    assert len(racing.races) == 1


def test_list_of_races_is_bounded_and_their_number_is_not(racing):
    ptr, a, b = racing.malloc(8), racing.stream(), racing.stream()
    for _ in range(600):
        a.write(ptr, 8, 1)
        b.write(ptr, 8, 2)
    racing.synchronize()
    assert len(racing.races) == 1000 and racing.race_count == 1199
    racing.close()
    assert len(racing.races) == 1000


# --- what is kept -------------------------------------------------------------------------------------------------

def test_nothing_is_kept_once_the_host_knows_all(make_device):
    device = make_device()
    ptr, streams = device.malloc(1000), [device.stream() for _ in range(4)]
    for i, stream in enumerate(streams):
        stream.write(ptr + 100 * i, 100, 1)
    device.advance(5)
    assert device.tracked == 4
    for stream in streams:
        assert stream.query()
    assert device.tracked == 0


def test_what_is_kept_is_bounded_by_what_is_queued(make_device):
    """A program that never waits for everything, but always for what is a hundred operations old."""
    device = make_device("1GiB")
    base, streams, events = device.malloc(1 << 20), [device.stream() for _ in range(3)], []
    for i in range(5000):
        stream = streams[i % 3]
        stream.write(base + i % 4096 * 256, 256, 1)
        events.append(stream.record())
        if len(events) > 100:
            events.pop(0).synchronize()
        assert device.tracked <= 600
    assert device.races == []
    device.check()


def busy_elsewhere(device, stream):
    """Make the detector look for accesses to drop, again and again."""
    base = device.malloc(1 << 20)
    for i in range(4096):
        stream.write(base + 256 * i, 256, 1, ticks=0)
        if i % 512 == 511:
            stream.synchronize()


def test_nothing_is_dropped_that_the_host_does_not_know(racing):
    ptr, first, busy, last = racing.malloc(8), *(racing.stream() for _ in range(3))
    first.write(ptr, 8, 1, ticks=0)
    busy_elsewhere(racing, busy)
    assert racing.tracked < 2000
    last.read(ptr, 8)
    racing.synchronize()
    assert [(race.first.stream, race.second.stream) for race in racing.races] == [(first.id, last.id)]


def test_nothing_is_dropped_that_queued_work_may_race_with(racing):
    ptr, first, busy, last = racing.malloc(8), *(racing.stream() for _ in range(3))
    last.work(1 << 30)
    last.read(ptr, 8)
    first.write(ptr, 8, 1, ticks=0)
    first.synchronize()
    busy_elsewhere(racing, busy)
    racing.synchronize()
    assert [(race.first.stream, race.second.stream) for race in racing.races] == [(first.id, last.id)]


def test_later_accesses_of_a_stream_replace_those_they_cover(make_device):
    device = make_device()
    ptr, stream = device.malloc(1 << 16), device.stream()
    for i in range(256):
        stream.write(ptr + 256 * i, 256, 1, ticks=0)
    assert device.tracked == 256
    stream.read(ptr, 1 << 16, ticks=0)
    assert device.tracked == 257        # a read does not stand for a write
    stream.write(ptr, 1 << 16, 2, ticks=0)
    assert device.tracked == 1


# --- any program against a model ------------------------------------------------------------------------------------

AREA = 2048
STREAMS = 6                             # legacy, per-thread, two blocking, two not


class Model:
    """What happens before what: each stream, event and the host as the set of the operations that come before.

    An operation is (number, stream, kind, start, nbytes); `before[number]` is what comes before it.
    """

    def __init__(self):
        self.operations, self.before = [], []
        self.streams = [{"blocking": i < 4, "set": set()} for i in range(STREAMS)]
        self.gone, self.host, self.events = [], set(), []

    def prepare(self, stream):
        own = self.streams[stream]
        own["set"] |= self.host | self.extent(stream)
        if own["blocking"]:
            own["set"] |= self.streams[0]["set"]

    def extent(self, stream):
        """Return what to wait for the stream is to wait for: with the legacy one, all blocking ones."""
        over = self.streams + self.gone if stream == 0 else []
        return self.streams[stream]["set"].union(*(other["set"] for other in over if other["blocking"]))

    def access(self, stream, ident, kind, start, nbytes):
        self.prepare(stream)
        number = len(self.operations)
        self.operations.append((number, ident, kind, start, nbytes))
        self.before.append(frozenset(self.streams[stream]["set"]))
        self.streams[stream]["set"].add(number)

    def record(self, stream):
        self.prepare(stream)
        self.events.append(frozenset(self.streams[stream]["set"]))

    def wait(self, stream, event):
        self.prepare(stream)
        self.streams[stream]["set"] |= self.events[event]

    def know_stream(self, stream):
        self.host |= self.extent(stream)

    def conflicts_with(self, ident, kind, start, nbytes):
        return [number for number, other, other_kind, first, count in self.operations
                if other != ident and "write" in (kind, other_kind)
                and first < start + nbytes and start < first + count]

    def races(self):
        """Return the pairs of operations that conflict with nothing to order them."""
        return {(a, number) for number, ident, kind, start, nbytes in self.operations
                for a in self.conflicts_with(ident, kind, start, nbytes)
                if a < number and a not in self.before[number]}


class Program:
    """Does the same on a device and in the model."""

    def __init__(self, seed, safe, left_out=0):
        self.device = sim.Device("1MiB", seed=seed)
        self.base = self.device.malloc(AREA)
        self.streams = [self.device.default_stream(), self.device.default_stream(per_thread=True),
                        *(self.device.stream(blocking=i < 4) for i in range(2, STREAMS))]
        self.model, self.events, self.safe = Model(), [], safe
        self.data, self.reads = bytearray(AREA), []
        self.waits, self.left_out = 0, left_out

    def do(self, step):
        name, *arguments = step
        getattr(self, name)(*arguments)

    def access(self, index, kind, start, size, ticks):
        """Touch a range whose length tells the operation: the rest of the division by 64 is its number."""
        number = len(self.model.operations)
        start, nbytes, stream = min(start, AREA - 64 * size - number), 64 * size + number, self.streams[index]
        if nbytes == 0:
            return
        if self.safe:
            self.order(index, kind, start, nbytes)
        self.model.access(index, stream.id, kind, start, nbytes)
        if kind == "write":
            stream.write(self.base + start, nbytes, number + 1, ticks)
            self.data[start:start + nbytes] = bytes([number + 1]) * nbytes
        else:
            self.reads.append((stream.read(self.base + start, nbytes, ticks), bytes(self.data[start:start + nbytes])))

    def order(self, index, kind, start, nbytes):
        """Wait for what the next access conflicts with, where nothing else has put that before it."""
        for number in self.model.conflicts_with(self.streams[index].id, kind, start, nbytes):
            self.model.prepare(index)
            if number not in self.model.streams[index]["set"]:
                owner = self.owner(number)
                if owner is None:
                    self.synchronize()
                else:
                    self.record(owner)
                    self.wait(index, len(self.events) - 1)

    def owner(self, number):
        ident = self.model.operations[number][1]
        return next((i for i, stream in enumerate(self.streams) if stream.id == ident), None)

    def record(self, index):
        self.events.append(self.streams[index].record())
        self.model.record(index)

    def wait(self, index, event):
        self.waits += 1
        if event < len(self.events) and self.waits != self.left_out:
            self.streams[index].wait(self.events[event])
            self.model.wait(index, event)

    def wait_for_event(self, event):
        if event < len(self.events):
            self.events[event].synchronize()
            self.model.host |= self.model.events[event]

    def ask_event(self, event):
        if event < len(self.events) and self.events[event].query():
            self.model.host |= self.model.events[event]

    def wait_for_stream(self, index):
        self.streams[index].synchronize()
        self.model.know_stream(index)

    def ask_stream(self, index):
        if self.streams[index].query():
            self.model.know_stream(index)

    def synchronize(self):
        self.device.synchronize()
        self.model.host |= set(range(len(self.model.operations)))

    def advance(self, ticks):
        self.device.advance(ticks)

    def replace(self, index):
        if index >= 2:
            self.streams[index].destroy()
            self.streams[index] = self.device.stream(index < 4)
            self.model.gone.append(self.model.streams[index])
            self.model.streams[index] = {"blocking": index < 4, "set": set(self.model.host)}

    def reported(self):
        """Return the races that the device found, as pairs of operation numbers, the one that ran later last."""
        return [(race.first.nbytes % 64, race.second.nbytes % 64) for race in self.device.races]

    def run(self, steps):
        for step in steps:
            self.do(step)
            self.device.check()
        self.device.synchronize()
        assert self.device.errors == [] and self.device.tracked == 0


index = st.integers(0, STREAMS - 1)
event = st.integers(0, 7)
STEPS = st.lists(st.one_of(
    st.tuples(st.just("access"), index, st.sampled_from(["read", "write"]), st.integers(0, AREA), st.integers(0, 8),
              st.integers(0, 4)),
    st.tuples(st.just("access"), index, st.sampled_from(["read", "write"]), st.integers(0, AREA), st.integers(0, 8),
              st.integers(0, 40)),
    st.tuples(st.just("record"), index),
    st.tuples(st.just("wait"), index, event),
    st.tuples(st.sampled_from(["wait_for_event", "ask_event"]), event),
    st.tuples(st.sampled_from(["wait_for_stream", "ask_stream", "replace"]), index),
    st.tuples(st.just("advance"), st.integers(0, 30)),
    st.tuples(st.just("synchronize")),
), min_size=10, max_size=50)


@settings(max_examples=int(1000 * EFFORT), deadline=None)
@given(steps=STEPS, seed=st.sampled_from(SEEDS))
def test_races_are_those_of_the_model(steps, seed):
    """Every race reported is one, and every pair that races is reported, or a later one of the same two streams is."""
    program = Program(seed, safe=False)
    program.run(steps)
    expected, reported = program.model.races(), program.reported()
    assert {tuple(sorted(pair)) for pair in reported} <= expected
    ident = {number: stream for number, stream, *_ in program.model.operations}
    # (stream of the earlier, number of the later) of every report; which of two ran later only the device knows
    seen = {(ident[first], second) for first, second in reported}
    for a, b in expected:
        assert (ident[a], b) in seen or (ident[b], a) in seen
    program.device.close()


@settings(max_examples=int(200 * EFFORT), deadline=None)
@given(steps=STEPS)
def test_ordered_programs_do_not_race_and_keep_their_data_at_any_seed(steps):
    for seed in SEEDS:
        program = Program(seed, safe=True)
        program.run(steps)
        assert program.model.races() == set() and program.device.races == []
        for read, value in program.reads:
            assert read.value == value
        assert program.device.read(program.base, AREA) == program.data
        program.device.close()


@settings(max_examples=int(200 * EFFORT), deadline=None)
@given(steps=STEPS, data=st.data())
def test_a_program_that_lacks_one_wait_is_found_out_at_any_seed(steps, data):
    """The same programs, with one of the waits that order them left out."""
    whole = Program(None, safe=True)
    whole.run(steps)
    assume(whole.waits > 0)
    left_out = data.draw(st.integers(1, whole.waits))
    for seed in SEEDS:
        program = Program(seed, safe=True, left_out=left_out)
        program.run(steps)
        assert (program.device.race_count > 0) == (program.model.races() != set())
        program.device.close()
