"""Sides: threads that write next to each other's words wait for each other, so each has lines of its own."""

import threading

import cuda_pool as cp
import pytest
from cuda_pool import _bench, _testing
from cuda_pool._testing import Mid, Slabs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from .models import effort

SIDES = 4
LINE = 16               # slots, and records of the mid tier
SIDE = st.integers(0, SIDES - 1)


class SidesMachine(RuleBasedStateMachine):
    """A slab of one class, against a chain for each side and a side for each line."""

    @initialize(slots=st.integers(1, 70))
    def start(self, slots):
        self.slots, self.fresh, self.live = slots, 0, set()
        self.sides, self.chains = {}, [[] for _ in range(SIDES)]
        self.slabs = Slabs([256])
        self.slab = self.slabs.make(0, 0, 256 * slots)

    @precondition(lambda self: len(self.live) < self.slots)
    @rule(side=SIDE, count=st.integers(1, 20))
    def take(self, side, count):
        """Of the side's own that was returned last; else one never handed out; else of the first other side."""
        for _ in range(min(count, self.slots - len(self.live))):
            chain = self.chains[side]
            if not chain and self.fresh == self.slots:
                chain = next(other for other in self.chains if other)
            if chain:
                slot = chain.pop()
            else:
                slot, self.fresh = self.fresh, self.fresh + 1
                self.sides.setdefault(slot // LINE, side)
            self.live.add(slot)
            assert self.slabs.take(self.slab, 100, side) == 256 * slot

    @precondition(lambda self: self.live)
    @rule(data=st.data(), count=st.integers(1, 20))
    def give_back(self, data, count):
        for slot in data.draw(st.permutations(sorted(self.live)))[:count]:
            self.slabs.give_back(self.slab, slot)
            self.live.remove(slot)
            self.chains[self.sides[slot // LINE]].append(slot)

    @precondition(lambda self: self.fresh % LINE != 0 and self.fresh < self.slots)
    @rule()
    def leave_line(self):
        """The lowest slot of the rest is the first to be taken."""
        end = min(self.slots, (self.fresh // LINE + 1) * LINE)
        self.chains[self.sides[self.fresh // LINE]] += range(end - 1, self.fresh - 1, -1)
        self.fresh = end
        self.slabs.leave_line(self.slab)

    @rule(side=SIDE)
    def adopt(self, side):
        for other in range(SIDES):
            if other != side:
                self.chains[side] += reversed(self.chains[other])
                self.chains[other] = []
        self.sides = dict.fromkeys(self.sides, side)
        self.slabs.adopt(self.slab, side)

    @invariant()
    def agrees(self):
        self.slabs.check()
        record = self.slabs.slab(self.slab)
        assert (record["used"], record["fresh"]) == (len(self.live), self.fresh)
        for slot in range(self.fresh):
            assert self.slabs.side(self.slab, slot) == self.sides[slot // LINE]
        for side in range(SIDES):
            assert self.slabs.has_on(self.slab, side) == (bool(self.chains[side]) or self.fresh < self.slots)


TestSides = SidesMachine.TestCase
TestSides.settings = effort(60, steps=40)


def test_a_slab_that_has_slots_of_the_side_is_found():
    slabs = Slabs([256])
    assert slabs.available_on(0, 0) is None
    made = []
    for number in range(10):
        made.append(slabs.make(0, number << 20, 256 * LINE))
        for _ in range(LINE):
            slabs.take(made[-1], 100, number % 2)
    for slab in made:                   # the last one is the first on the list
        slabs.give_back(slab, 3)
    assert slabs.available_on(0, 1) == made[9] and slabs.available_on(0, 0) == made[8]
    assert slabs.available_on(0, 2) == made[9]          # of another side; the first is as good as any
    for slab in made[2::2]:             # side 0 has the oldest slab alone: the tenth
        slabs.take(slab, 100, 0)
    assert slabs.available_on(0, 0) == made[0]
    slabs.check()


def test_the_rest_of_a_line_is_behind_what_the_slab_is_behind():
    """What is left to another side was never handed out: its batch is that of the memory."""
    slabs = Slabs([256])
    slab = slabs.make(0, 0, 256 * 2 * LINE, owner=1, batch=5)
    slabs.take(slab, 100, 2)
    slabs.leave_line(slab)
    slabs.check()
    assert [slabs.slot_batch(slab, slot) for slot in range(LINE)] == [5] * LINE
    assert slabs.slab(slab)["fresh"] == LINE
    assert slabs.take(slab, 100, 0) == LINE * 256 and slabs.take(slab, 100, 2) == 256
    assert slabs.take_allowed(slab, 2, 10, {1: 4}, 100) is None
    assert slabs.take_allowed(slab, 2, 10, {1: 5}, 100) == 2 * 256


def test_only_the_first_slabs_are_looked_at():
    slabs = Slabs([256])
    made = [slabs.make(0, number << 20, 256 * LINE) for number in range(9)]
    for number, slab in enumerate(made):
        for _ in range(LINE):
            slabs.take(slab, 100, number != 0)
        slabs.give_back(slab, 0)
    assert slabs.available_on(0, 0) == made[8] and not slabs.has_on(made[8], 0)
    slabs.take(made[8], 100, 1)
    assert slabs.available_on(0, 0) == made[0]


def test_a_line_of_other_owners_slots_is_searched_too():
    slabs = Slabs([256])
    slab = slabs.make(0, 0, 256 * 2 * LINE, owner=1)
    for slot in range(2 * LINE):
        slabs.take(slab, 100, slot // LINE)
    slabs.note_batch(slab, 20, 7)
    slabs.give_back(slab, 3)
    slabs.give_back(slab, 20)
    slabs.note_batch(slab, 3, 9)
    slabs.note_batch(slab, 20, 7)
    assert slabs.take_allowed(slab, 2, 10, {1: 6}, 100) is None
    assert slabs.take_allowed(slab, 2, 10, {1: 7}, 100) == 20 * 256
    assert slabs.take_allowed(slab, 2, 10, {1: 9}, 100) == 3 * 256
    slabs.check()


def test_a_ready_slab_has_no_sides():
    slabs = Slabs([256])
    slab = slabs.make(0, 0, 256 * LINE)
    slabs.give_back(slab, slabs.slot(slab, slabs.take(slab, 100, 3)))
    slabs.shelve(slab)
    slabs.check()
    slabs.activate(slab)
    assert slabs.take(slab, 100, 2) == 0 and slabs.side(slab, 0) == 2
    slabs.check()


def test_blocks_of_two_sides_have_records_in_different_groups():
    mid = Mid(0, 1 << 20)
    blocks = {0: [], 1: []}
    for number in range(200):
        mid.side = number % 2
        mid.reserve(2)
        blocks[mid.side].append(mid.take(mid.find(10), 10))
    groups = {side: {index // LINE for index in taken} for side, taken in blocks.items()}
    assert not groups[0] & groups[1] and len(groups[0]) <= 200 // 2 // LINE + 2
    assert all(mid.record_side(index) == side for side, taken in blocks.items() for index in taken)
    mid.check()
    for taken in blocks.values():
        for index in taken:
            mid.free(index)
    mid.check()
    mid.side = 1                        # what is not used any more is used first
    records = mid.records
    taken = []
    for _ in range(100):
        mid.reserve(2)
        taken.append(mid.take(mid.find(10), 10))
    assert mid.records == records and {mid.record_side(index) for index in taken[:90]} == {1}
    mid.check()


def test_the_last_records_are_for_every_side():
    mid = Mid(0, 1 << 21)               # twice as many units as there are records
    taken = []
    with pytest.raises(MemoryError):
        while True:
            mid.reserve(2)
            taken.append(mid.take(mid.find(1), 1))
    for index in taken[:40]:
        mid.free(index)
    mid.side = 3
    mid.reserve(2)
    assert mid.record_side(mid.take(mid.find(1), 1)) == 0
    mid.check()


@pytest.fixture
def pool(make_device):
    with cp.Pool("3GiB", device=make_device("4GiB")) as pool:
        yield pool
        pool.check()


def play_together(functions, rounds=1):
    """Run functions at the same time, each in a thread of its own that ends with the last round."""
    barrier = threading.Barrier(len(functions))
    failed = []

    def work(function):
        try:
            for _ in range(rounds):
                barrier.wait(60)
                function()
            barrier.wait(60)
        except BaseException as error:
            failed.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed, failed


def test_the_first_slot_of_a_slab_is_the_first_to_be_handed_out(pool):
    pointers = [pool.alloc(512) for _ in range(40)]
    lines = [_testing.slot_line(pool, ptr)[:2] for ptr in pointers]
    assert lines == sorted(lines)
    for slab in {slab for slab, _ in lines}:
        of_slab = [ptr for ptr, line in zip(pointers, lines) if line[0] == slab]
        assert of_slab == sorted(of_slab)


@pytest.mark.threads
def test_threads_have_different_sides(pool):
    sides = []
    play_together([lambda: (pool.alloc(512), sides.append(_testing.seat(pool)["side"]))] * SIDES)
    assert sorted(sides) == list(range(SIDES))
    pool.stats()                        # all are gone
    play_together([lambda: (pool.alloc(512), sides.append(_testing.seat(pool)["side"]))])
    assert sides[-1] == 0


@pytest.mark.threads
@pytest.mark.parametrize("nbytes", [200, 512])
def test_slots_of_two_threads_share_no_lines(pool, nbytes):
    """In turns, so that without sides each line would have slots of both. Of such sizes a new slab costs little."""
    turn = threading.Barrier(2)
    lines = [set(), set()]

    def play(at):
        kept = []
        for number in range(400):
            turn.wait(60)
            kept.append(pool.alloc(nbytes))
            if number % 3 == 2:
                pool.free(kept.pop(number * 7919 % len(kept)))
        turn.wait(60)
        lines[at] = {_testing.slot_line(pool, ptr)[:2] for ptr in kept}
        turn.wait(60)

    play_together([lambda: play(0), lambda: play(1)])
    assert min(map(len, lines)) > 10 and not lines[0] & lines[1]


@pytest.mark.threads
@pytest.mark.parametrize("nbytes", [256, 512, 4096])
def test_the_first_slots_of_two_threads_share_no_line(pool, nbytes):
    """Those that come with a new slab, or from it while it is new, too."""
    turn = threading.Barrier(2)
    found = [None, None]

    def play(at):
        for step in range(2):
            turn.wait(60)
            if step == at:
                found[at] = _testing.slot_line(pool, pool.alloc(nbytes))
        turn.wait(60)

    play_together([lambda: play(0), lambda: play(1)])
    assert found[0][:2] != found[1][:2] and found[0][2] != found[1][2]


@pytest.mark.threads
def test_the_first_slots_share_no_line_if_both_come_at_once(make_device):
    """One makes the slab between the other one's look for a slab and its request for a new one; without the GIL."""
    device, turn = make_device("4GiB"), threading.Barrier(2)
    work = _bench.Workload(512, 512, 1, 1)
    at_hand = {}

    def play(at):
        for _ in range(300):
            if at == 0:
                at_hand["pool"] = cp.Pool("64MiB", device=device)
            turn.wait(60)
            loop = _bench.PoolLoop(work, at_hand["pool"])
            turn.wait(60)
            loop.run()
            turn.wait(60)
            if at == 0:
                live = [block for block in at_hand["pool"].snapshot().blocks if block.state == "live"]
                lines = [_testing.slot_line(at_hand["pool"], block.address)[:2] for block in live]
                assert len(lines) == len(set(lines)) == 2
            turn.wait(60)
            del loop
            turn.wait(60)
            if at == 0:
                at_hand.pop("pool").close()

    play_together([lambda: play(0), lambda: play(1)])


@pytest.mark.threads
def test_blocks_of_two_threads_share_no_lines(pool):
    turn = threading.Barrier(2)
    groups = [set(), set()]

    def play(at):
        kept = []
        for _ in range(100):
            turn.wait(60)
            kept.append(pool.alloc(50_000))
        groups[at] = {_testing.block_line(pool, ptr) for ptr in kept}
        turn.wait(60)

    play_together([lambda: play(0), lambda: play(1)])
    assert not groups[0] & groups[1] and {side for _, side in groups[0] | groups[1]} == {0, 1}


@pytest.mark.threads
def test_random_work_of_two_threads_stays_apart(pool):
    """A slot that a thread has of another one's line is the exception, also after all of them were used many times."""
    loops = [_bench.PoolLoop(_bench.Workload(256, 4096, 2000, 200_000, seed), pool) for seed in (1, 2)]
    kept = [[], []]

    def play(at):
        loops[at].run()
        kept[at] = [pool.alloc(2000) for _ in range(200)]

    play_together([lambda: play(0), lambda: play(1)], rounds=3)
    lines = [[_testing.slot_line(pool, ptr)[:2] for ptr in pointers] for pointers in kept]
    shared = set(lines[0]) & set(lines[1])
    assert sum(line in shared for line in lines[0] + lines[1]) < 100    # of 400; 330 and more without sides


@pytest.mark.threads
def test_what_another_side_has_is_used_before_a_request_fails(make_device):
    """A pool that one thread has filled and emptied serves another one."""
    with cp.Pool("4MiB", device=make_device("8MiB"), slab_max="64KiB") as pool:
        def fill():
            taken = []
            try:
                while True:
                    taken.append(pool.alloc(1024))
            except cp.OutOfMemoryError:
                pass
            for ptr in taken[1:]:
                pool.free(ptr)
            counts.append(len(taken))

        counts = []
        play_together([fill])
        play_together([fill, lambda: None])
        fill()
        assert min(counts) >= counts[0] - 3
        pool.check()


@pytest.mark.threads
def test_a_thread_that_stays_alone_takes_over_the_lines(pool):
    """After another one has gone, its slots come to the one that is left, with their lines."""
    kept = [pool.alloc(8000)]

    def fill(keep=0):
        pointers = [pool.alloc(8000) for _ in range(2000)]
        own = sum(_testing.slot_line(pool, ptr)[2] == _testing.seat(pool)["side"] for ptr in pointers)
        for number, ptr in enumerate(pointers):
            if keep and number % keep == 0:
                kept.append(ptr)
            else:
                pool.free(ptr)
        return own

    play_together([lambda: fill(40)])           # no slab of its is empty
    for _ in range(3):
        own = fill()
    assert own > 1900
    for ptr in kept:
        pool.free(ptr)
