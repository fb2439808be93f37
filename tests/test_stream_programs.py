"""Random programs on several streams and threads: no race, all data intact, and the detector finds what would race.

A program keeps the contract of the pool and leans on all of it: whatever the pool hands out may be used at once on the
stream that it was asked for.
"""

import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import cuda_pool as cp
from cuda_pool import _testing, sim

from .models import GROWING, POOLS, REUSE, VIRTUAL_POOLS, BlocksModel, effort

THREADS = 3
# Handles 0 and 1 are one stream, handle 2 is one for each thread; the others are destroyed and made anew.
KINDS = ["object", "raw", "object, not blocking", "raw, not blocking", "held", "legacy", "thread 0", "thread 1",
         "thread 2"]
MADE = ("object", "raw", "held")
MADE = ("object", "raw", "held")


@pytest.fixture(scope="module")
def workers():
    """Functions that run a function in thread 0, which is this one, 1 or 2, and return what it returns."""
    executors = [ThreadPoolExecutor(1) for _ in range(THREADS - 1)]
    yield [lambda action: action()] + [lambda action, executor=executor: executor.submit(action).result()
                                       for executor in executors]
    for executor in executors:
        executor.shutdown()


class Lane:
    """A stream of a program. `mark` stands for all that was queued on one that is gone."""

    def __init__(self, device, kind, workers):
        self.device, self.kind, self.mark = device, kind, None
        self.thread = int(kind[-1]) if kind.startswith("thread") else None
        self.run = workers[self.thread or 0]
        self.stream, self.legacy = self.make(), itertools.cycle([0, 1])

    def make(self):
        if self.is_made:
            return self.device.stream(blocking="not blocking" not in self.kind)
        return self.device.default_stream(per_thread=self.thread is not None)

    @property
    def is_made(self):
        return self.kind.startswith(MADE)

    @property
    def name(self):
        """What the pool is told."""
        if self.kind.startswith("object"):
            return self.stream
        return next(self.legacy) if self.kind == "legacy" else self.stream.handle

    def record(self):
        return self.mark or self.run(self.stream.record)

    def wait(self, other):
        event = other.record()
        self.run(lambda: self.stream.wait(event))

    def synchronize(self):
        if self.mark:
            self.mark.synchronize()
        else:
            self.run(self.stream.synchronize)

    def work(self, ticks):
        self.run(lambda: self.stream.work(ticks))

    def write(self, block, value, ticks):
        self.run(lambda: self.stream.write(block.ptr, block.nbytes, value, ticks))

    def read(self, block, ticks):
        return self.run(lambda: self.stream.read(block.ptr, block.nbytes, ticks))

    def leave(self, destroy):
        """Let go of the stream: destroy it, or only refer to it no longer."""
        self.mark = self.stream.record()
        if destroy:
            self.stream.destroy()
        self.stream = None


class Block:
    """A live block. What comes after all that its `heads` have queued comes after all uses of it.

    `recorded` are the lanes of which the pool was told that they use it too.
    """

    def __init__(self, ptr, nbytes, home, value):
        self.ptr, self.nbytes, self.value = ptr, nbytes, value
        self.home = self.writer = home
        self.heads, self.recorded = [home], []

    def knows(self, lane):
        return lane is self.home or lane in self.recorded


class Step(NamedTuple):
    """What a program does, in which thread, and with which of its streams and live blocks; the rest as needed."""

    name: str
    who: int
    lane: int
    block: int
    share: float        # of the pool
    ticks: int
    flag: bool


class Program:
    """Runs the steps of a program, one at a time, each in its thread."""

    def __init__(self, workers, device, pool, kinds):
        self.workers, self.device, self.pool = workers, device, pool
        before = pool.stats()
        self.whole = before.capacity // 256 * 256
        self.lanes = [self.lane(kind) for kind in kinds]
        self.blocks, self.model, self.reads = [], BlocksModel(), []
        self.values = itertools.cycle(range(1, 252))
        self.orphans = False        # frees on a stream that is gone, and that nobody can name, may be pending

    def lane(self, kind):
        made = Lane(self.device, kind, self.workers)
        if kind == "held":
            self.pool.hold_stream(made.name)
        return made

    def on_pool(self, who, lane, action):
        """Call the pool from thread `who`, or from the one thread in which the lane's name means the lane."""
        return self.workers[who if lane.thread is None else lane.thread](action)

    # Steps

    def alloc(self, step, lane):
        nbytes = max(1, int(self.whole * step.share))
        ptr = self.alloc_on(step, lane, nbytes)
        if ptr:
            self.model.add(ptr, nbytes, nbytes)
            self.blocks.append(Block(ptr, nbytes, lane, next(self.values)))
            lane.write(self.blocks[-1], self.blocks[-1].value, step.ticks)

    def alloc_in_vain(self, step, lane):
        """Free a block without having used it: what was queued for its memory before is not over for all that."""
        ptr = self.alloc_on(step, lane, max(1, int(self.whole * step.share)))
        if step.flag:
            self.on_pool(step.who, lane, lambda: self.pool.free_async(ptr, lane.name))
        else:
            self.workers[step.who](lambda: self.pool.free(ptr))

    def write(self, step, lane):
        block = self.used(step, lane)
        if block is not None:
            for head in block.heads:
                self.order(lane, head)
            block.value, block.writer, block.heads = next(self.values), lane, [lane]
            lane.write(block, block.value, step.ticks)

    def read(self, step, lane):
        block = self.used(step, lane)
        if block is not None:
            self.read_on(lane, block, step.ticks)

    def free(self, step, _):
        block = self.leaving(step)
        if block is not None:
            for head in block.heads:
                head.synchronize()
            self.workers[step.who](lambda: self.pool.free(block.ptr))

    def free_async(self, step, lane):
        """Free on a stream that was told to wait for all uses of the block, or for those that the pool is not told."""
        block = self.leaving(step)
        if block is None:
            return
        for head in block.heads:
            if step.flag or head.mark and head not in block.recorded:
                self.order(lane, head)
            elif head is not lane and head not in block.recorded:
                self.record_use(step.who, head, block)
        self.on_pool(step.who, lane, lambda: self.pool.free_async(block.ptr, lane.name))

    def trim(self, step, _):
        self.workers[step.who](lambda: self.pool.trim(int(self.whole * step.share) if step.flag else 0))

    def work(self, step, lane):
        lane.work(4 * step.ticks)

    def wait(self, _, lane):
        lane.synchronize()

    def advance(self, step, _):
        self.device.advance(step.ticks)

    def replace(self, step, old):
        """Have a stream forgotten, or not; destroy it, if it is no default stream, and make another.

        Not forgotten, an object is only let go of, and a handle is at once that of another stream. One that is held is
        always forgotten: that is what holding promises.
        """
        forget = step.flag or old.kind == "held"
        if forget:
            self.on_pool(step.who, old, lambda: self.pool.forget_stream(old.name))
        if not old.is_made:
            self.forgotten(old)
            return
        handle = old.stream.handle
        old.leave(destroy=forget or not old.kind.startswith("object"))
        self.lanes[self.lanes.index(old)] = new = self.lane(old.kind)
        self.orphans |= not forget
        assert forget or not old.kind.startswith("raw") or new.name == handle

    # Parts of steps

    def alloc_on(self, step, lane, nbytes):
        """Return an address, or 0 where the pool is full; then waiting for all streams makes no room either."""
        try:
            return self.on_pool(step.who, lane, lambda: self.pool.alloc(nbytes, lane.name))
        except cp.OutOfMemoryError:
            if not step.flag:
                return 0
        self.forget_all()
        with pytest.raises(cp.OutOfMemoryError):
            self.on_pool(step.who, lane, lambda: self.pool.alloc(nbytes, lane.name))
        return 0

    def used(self, step, lane):
        """Return the block that is going to be used on a lane; None if there is none."""
        if not self.blocks:
            return None
        block = self.blocks[step.block % len(self.blocks)]
        if not block.knows(lane):
            self.record_use(step.who, lane, block)
        return block

    def record_use(self, who, lane, block):
        self.on_pool(who, lane, lambda: self.pool.record_use(block.ptr, lane.name))
        block.recorded.append(lane)

    def read_on(self, lane, block, ticks):
        self.order(lane, block.writer)
        if lane not in block.heads:
            block.heads.append(lane)
        self.reads.append((lane.read(block, ticks), block.value, block.nbytes))

    def order(self, lane, before):
        if before is not lane:
            lane.wait(before)

    def leaving(self, step):
        """Take the block out, and verify it on the stream that used it last; None if there is none."""
        if not self.blocks:
            return None
        block = self.blocks.pop(step.block % len(self.blocks))
        last = block.heads[-1] if block.heads[-1].mark is None else self.lanes[0]
        if not block.knows(last):
            self.record_use(0, last, block)
        self.read_on(last, block, 1)
        self.model.remove(block.ptr)
        return block

    def forget_all(self):
        for lane in self.lanes:
            self.on_pool(0, lane, lambda lane=lane: self.pool.forget_stream(lane.name))
            self.forgotten(lane)

    def forgotten(self, lane):
        """A stream that goes on after it was forgotten is to be named again."""
        for block in self.blocks:
            if lane in block.recorded:
                block.recorded.remove(lane)
        if lane.kind == "held":
            self.pool.hold_stream(lane.name)

    # The whole

    def run(self, steps):
        for step in steps:
            getattr(self, step.name)(step, self.lanes[step.lane % len(self.lanes)])
            self.pool.check()
        for number in range(len(self.blocks)):
            step = Step(["free_async", "free"][number % 2], number % THREADS, number, 0, 0, 0, False)
            getattr(self, step.name)(step, self.lanes[step.lane % len(self.lanes)])
            self.pool.check()
        self.end()

    def end(self):
        """With nothing live all can be had again, and nothing of the driver's is left behind."""
        self.forget_all()
        self.pool.check()
        stats = self.pool.stats()
        assert stats.used == stats.requested == 0
        assert stats.pending == 0 or self.orphans
        lane = self.lanes[0]
        self.pool.free(self.on_pool(0, lane, lambda: self.pool.alloc(self.whole, lane.name)))
        self.forget_all()                       # memory of several owners became the lane's when it took the whole
        assert self.pool.stats().used == self.pool.stats().pending == 0
        self.device.synchronize()
        self.pool.close()
        assert self.device.calls["cudaEventCreateWithFlags"] == self.device.calls["cudaEventDestroy"]
        assert self.device.errors == [] and self.device.live == {}

    def verify(self):
        assert self.device.races == []
        for found, value, nbytes in self.reads:
            assert found.value == bytes([value]) * nbytes


WEIGHTS = {"alloc": 8, "free_async": 6, "work": 4, "read": 3, "write": 3, "replace": 3, "alloc_in_vain": 2,
           "advance": 1, "free": 1, "wait": 1,
           "trim": 1}
# A few sizes that are asked for again and again, most of them so large that the pool is soon full, and any other size.
SHARES = st.one_of(st.sampled_from([1 / 4, 1 / 8, 1 / 2, 1 / 5, 1 / 3, 1 / 16, 1 / 16, 1 / 100, 1 / 1000, 1 / 30_000]),
                   st.integers(0, 160).map(lambda number: 2 ** (-number / 8)))
STEPS = st.lists(st.builds(
    Step, name=st.sampled_from([name for name, weight in WEIGHTS.items() for _ in range(weight)]),
    who=st.integers(0, THREADS - 1), lane=st.integers(0, 3), block=st.integers(0, 7), share=SHARES,
    ticks=st.integers(0, 40), flag=st.booleans()), min_size=20, max_size=60)


def distinct(kinds):
    """Leave out the second of two that are one stream."""
    return [kind for number, kind in enumerate(kinds) if kind not in kinds[:number] or kind.startswith(MADE)]


ALL_POOLS = {**POOLS, **GROWING, **VIRTUAL_POOLS,
             "virtual_growing": ("4KiB", {"backing": "virtual", "growth": "dynamic", "max_capacity": "1MiB"})}
PROGRAMS = {"steps": STEPS, "name": st.sampled_from(sorted(ALL_POOLS)),
            "seed": st.sampled_from([None, 0, 1, 2, 3]),
            "kinds": st.lists(st.sampled_from(KINDS), min_size=2, max_size=4)
            .map(distinct).filter(lambda kinds: len(kinds) > 1)}


def run_program(workers, steps, name, seed, kinds, pool_settings, prepare=lambda pool: None):
    capacity, more = ALL_POOLS[name]
    with (sim.Device("16MiB", seed=seed, granularity="4KiB") as device,
          cp.Pool(capacity, device=device, **more, **pool_settings) as pool):
        prepare(pool)
        program = Program(workers, device, pool, kinds)
        program.run(steps)
        return program


@pytest.mark.parametrize("reuse", REUSE)
def test_programs_do_not_race_and_keep_their_data(workers, reuse):
    """1,050 programs; 2,100 with CUDA_POOL_TEST_EFFORT=2."""

    @effort(350)
    @given(**PROGRAMS)
    def try_one(steps, name, seed, kinds):
        run_program(workers, steps, name, seed, kinds, {"reuse": reuse}).verify()

    try_one()


@pytest.mark.parametrize("reuse", REUSE)
def test_the_same_programs_race_when_dependencies_are_ignored(workers, reuse):
    """The detector works, and the programs need the pool's care: a free_async that is a free is found out."""
    outcomes = []

    @settings(effort(40), derandomize=True, database=None, phases=[Phase.generate])
    @given(**{**PROGRAMS, "name": st.sampled_from(sorted(POOLS))})      # those that do not grow are full soon
    def try_one(steps, name, seed, kinds):
        program = run_program(workers, steps, name, seed, kinds, {"reuse": reuse}, _testing.ignore_streams)
        outcomes.append(program.device.race_count > 0)

    try_one()
    assert sum(outcomes) >= 0.3 * len(outcomes), f"races in {sum(outcomes)} of {len(outcomes)} programs"


# Threads that really run at once

class Stress:
    """Threads with streams of their own that hand blocks to each other."""

    def __init__(self, device, pool):
        self.device, self.pool, self.lock = device, pool, threading.Lock()
        self.offered, self.reads, self.failures = [], [], []

    def run(self, number, operations):
        try:
            sim.set_current_device(self.device)
            random_operations(self, random.Random(number), operations)
        except BaseException as error:      # noqa: BLE001 - reported by the main thread
            self.failures.append(error)
            raise

    def offer(self, *block):
        with self.lock:
            self.offered.append(block)

    def taken(self, rng):
        with self.lock:
            return self.offered.pop(rng.randrange(len(self.offered))) if self.offered else None

    def keep(self, read, value, nbytes):
        with self.lock:
            self.reads.append((read, value, nbytes))


def random_operations(stress, rng, operations):
    """Allocate on one stream, use and free on another, now and then make the streams anew."""
    device, pool = stress.device, stress.pool
    own = device.default_stream(per_thread=True)
    streams = [(own, 2), *made_streams(device)]
    for turn in range(operations):
        stream, name = rng.choice(streams)
        if rng.random() < 0.5:
            offer_block(stress, rng, stream, name)
        else:
            free_offered(stress, rng, stream, name)
        if turn % 50 == 49:
            for _, name in streams[1:]:
                pool.forget_stream(name)
            streams = [(own, 2), *made_streams(device)]
        if turn % 7 == 0:
            stream.synchronize()
    pool.forget_stream(2)
    for _, name in streams[1:]:
        pool.forget_stream(name)


def made_streams(device):
    first, second = device.stream(), device.stream(blocking=False)
    return [(first, first), (second, second.handle)]


def offer_block(stress, rng, stream, name):
    nbytes, value = int(2 ** rng.uniform(0, 18)), rng.randrange(256)
    try:
        ptr = stress.pool.alloc(nbytes, name)
    except cp.OutOfMemoryError:
        stress.device.advance(5)
        return
    stream.write(ptr, nbytes, value, ticks=rng.randrange(10))
    stress.offer(ptr, nbytes, value, stream.record())


def free_offered(stress, rng, stream, name):
    block = stress.taken(rng)
    if block is None:
        return
    ptr, nbytes, value, written = block
    stream.wait(written)
    stress.keep(stream.read(ptr, nbytes, ticks=rng.randrange(10)), value, nbytes)
    if rng.random() < 0.2:
        stream.synchronize()
        stress.pool.free(ptr)
        return
    if rng.random() < 0.3:
        stress.pool.record_use(ptr, name)
    stress.pool.free_async(ptr, name)


@pytest.mark.threads
@pytest.mark.slow
@pytest.mark.parametrize("reuse", REUSE)
@pytest.mark.parametrize("seed", [None, 1])
def test_threads_that_run_at_once(make_device, reuse, seed):
    device = make_device("64MiB", seed=seed)
    with cp.Pool("1MiB", device=device, reuse=reuse) as pool:
        stress = Stress(device, pool)
        threads = [threading.Thread(target=stress.run, args=(number, 20_000)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            pool.check()
            threads[0].join(0.01)
        assert stress.failures == []
        device.synchronize()
        for ptr, *_ in stress.offered:
            pool.free(ptr)
        assert pool.stats().used == pool.stats().pending == 0
        pool.check()
        assert all(read.value == bytes([value]) * nbytes for read, value, nbytes in stress.reads)
