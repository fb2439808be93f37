"""Faults that users of other GPU pools reported, each a test; the number is that of the case."""

import gc
import inspect
import random
import re
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

import cuda_pool as cp
from cuda_pool import _testing, sim
from cuda_pool.trace import Trace

from .models import CheckedPool, TrieModel, comparable, forked

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

# The defaults, the textbook pool, and pools in which one tier does it all.
ROUTES = [{}, {"mid_max": "1MiB"}, {"mid_max": 0}, {"slab_max": 0}, {"slab_max": 0, "mid_max": 0}]


@pytest.fixture
def make_pool(device):
    """Function from the arguments of Pool to a pool on `device` that is closed after the test."""
    made = []

    def make(capacity, **settings):
        made.append(CheckedPool(capacity, device=device, **settings))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def state(pool):
    """Return the statistics without what asking, or being refused, changes."""
    return comparable(pool.stats(), "oom_count")


def filled(pool, device, nbytes, value):
    """Allocate a block and write `value` over its first and last 64 KiB."""
    ptr = pool.alloc(nbytes)
    assert ptr % 256 == 0 and pool.size_of(ptr) == nbytes
    for start in (ptr, ptr + nbytes - min(nbytes, 64 * KIB)):
        device.memset(start, value, min(nbytes, 64 * KIB))
    return ptr


def verify(pool, device, ptr, value):
    nbytes = pool.size_of(ptr)
    for start in (ptr, ptr + nbytes - min(nbytes, 64 * KIB)):
        assert device.read(start, min(nbytes, 64 * KIB)) == bytes([value]) * min(nbytes, 64 * KIB)


# Sizes and limits

def test_case_01_size_0(make_pool):
    pool = make_pool("1MiB")
    before = state(pool)
    for _ in range(1000):
        assert pool.alloc(0) == 0
        pool.free(0)
        pool.free_async(0)
        assert pool.buffer(0).ptr == 0
    assert state(pool) == before and pool.stats().oom_count == 0


@pytest.mark.parametrize("settings", ROUTES)
def test_case_02_sizes_that_no_device_has(make_pool, settings):
    pool = make_pool("1MiB", **settings)
    pool.alloc(1000)
    before = state(pool)
    for call in (pool.alloc, pool.buffer):
        with pytest.raises(ValueError, match="negative"):
            call(-1)
        for nbytes in (2**63, 2**64 - 512, 2**64 - 1, 2**64, 2**100):
            with pytest.raises(cp.OutOfMemoryError) as caught:
                call(nbytes)
            assert caught.value.requested == nbytes
    with pytest.raises(cp.OutOfMemoryError):
        pool.alloc(2**64 - 1, alignment=2**63)
    assert state(pool) == before


@pytest.mark.parametrize("capacity", [1_000_192, 1_000_031])
@pytest.mark.parametrize("settings", ROUTES)
def test_case_03_odd_capacities(make_pool, device, capacity, settings):
    pool = make_pool(capacity, **settings)
    assert pool.stats().capacity == capacity
    whole = capacity // 256 * 256
    for nbytes in (whole, 1, 256, 100_000, whole):
        ptr = pool.alloc(nbytes)
        device.memset(ptr, 1, nbytes)
        with pytest.raises(cp.OutOfMemoryError):
            pool.alloc(whole - nbytes + 1)
        pool.free(ptr)
    with pytest.raises(cp.OutOfMemoryError):
        pool.alloc(capacity // 256 * 256 + 1)


@pytest.mark.parametrize("settings", ROUTES)
def test_case_08_a_freed_half_and_three_quarters(make_pool, device, settings):
    pool = make_pool("1GiB", **settings)
    half = filled(pool, device, 512 * MIB, 1)
    assert pool.stats().largest_free == 512 * MIB
    verify(pool, device, half, 1)
    pool.free(half)
    assert pool.stats().largest_free == GIB
    large = filled(pool, device, 768 * MIB, 2)
    assert (pool.stats().used, pool.stats().free, pool.stats().largest_free) == (768 * MIB, 256 * MIB, 256 * MIB)
    verify(pool, device, large, 2)
    pool.free(large)
    assert pool.stats().largest_free == GIB


@pytest.mark.parametrize("settings", ROUTES)
def test_case_09_two_of_300_and_one_of_600(make_pool, device, settings):
    pool = make_pool(1000 * MIB, **settings)
    first, second = two_of_300(pool, device)
    pool.free(second)
    one_of_600(pool, device, first, 1)


@pytest.mark.parametrize("settings", [{"mid_max": "1MiB"}, {"mid_max": 0}, {"slab_max": 0, "mid_max": 0}])
def test_case_09_the_first_is_freed(make_pool, device, settings):
    pool = make_pool(1000 * MIB, **settings)
    first, second = two_of_300(pool, device)
    pool.free(first)
    one_of_600(pool, device, second, 2)


@pytest.mark.parametrize("settings", [{}, {"slab_max": 0}])
def test_case_09_the_first_is_freed_by_default(make_pool, device, settings):
    """The block that is left has 400 MiB below it and 300 above: on this backing, live memory never moves."""
    pool = make_pool(1000 * MIB, **settings)
    first, second = two_of_300(pool, device)
    pool.free(first)
    before = state(pool)
    assert (before["free"], before["largest_free"]) == (700 * MIB, 400 * MIB)
    with pytest.raises(cp.OutOfMemoryError) as caught:
        pool.alloc(600 * MIB)
    assert caught.value.largest_free == 400 * MIB and state(pool) == before
    largest, rest = filled(pool, device, 400 * MIB, 3), filled(pool, device, 300 * MIB, 4)
    for ptr, value in (second, 2), (largest, 3), (rest, 4):
        verify(pool, device, ptr, value)
    assert pool.stats().free == 0


def two_of_300(pool, device):
    blocks = [filled(pool, device, 300 * MIB, value) for value in (1, 2)]
    assert (pool.stats().used, pool.stats().largest_free) == (600 * MIB, 400 * MIB)
    return blocks


def one_of_600(pool, device, kept, value):
    assert (pool.stats().free, pool.stats().largest_free) == (700 * MIB, 700 * MIB)
    large = filled(pool, device, 600 * MIB, 3)
    assert (pool.stats().used, pool.stats().free) == (900 * MIB, 100 * MIB)
    verify(pool, device, kept, value)
    verify(pool, device, large, 3)


@pytest.mark.parametrize("settings", ROUTES)
def test_case_10_growing_sizes(make_pool, device, settings):
    pool = make_pool("64MiB", **settings)
    for number in range(1, 65):
        ptr = filled(pool, device, number * MIB, number)
        assert (pool.stats().used, pool.stats().free) == (number * MIB, (64 - number) * MIB)
        verify(pool, device, ptr, number)
        pool.free(ptr)
        assert (pool.stats().used, pool.stats().largest_free) == (0, 64 * MIB)


@pytest.mark.parametrize("settings", ROUTES + [{"debug": True}, {"size_classes": 64}])
@pytest.mark.parametrize("base_alignment", [None, 256])
def test_case_11_every_alignment(make_device, settings, base_alignment):
    device = make_device("64MiB", base_alignment=base_alignment)
    for order in range(22):
        pool = CheckedPool("4MiB", device=device, **settings)
        ptr = pool.alloc(32, alignment=1 << order)
        assert ptr % (1 << order) == 0
        device.memset(ptr, order, 32)
        pool.free(ptr)
        assert pool.alloc("4MiB")
        pool.close()


@pytest.mark.parametrize("settings", [{}, {"mid_max": "1MiB"}, {"slab_max": 0}, {"debug": True}, {"size_classes": 64}])
@pytest.mark.parametrize("base_alignment", [None, 256])
@pytest.mark.parametrize("orders", [range(22), range(21, -1, -1), [5, 21, 0, 13, 9, 21, 8, 21]])
def test_case_11_blocks_of_all_alignments_at_once(make_device, settings, base_alignment, orders):
    device = make_device("64MiB", base_alignment=base_alignment)
    pool = CheckedPool("32MiB", device=device, **settings)
    live = []
    for order in orders:
        live.append(pool.alloc(32, alignment=1 << order))
        assert live[-1] % (1 << order) == 0
        device.memset(live[-1], order, 32)
    for ptr, order in zip(live, orders):
        assert device.read(ptr, 32) == bytes([order]) * 32
        pool.free(ptr)
    assert pool.stats().largest_free == pool.stats().free


@pytest.mark.parametrize("settings", ROUTES)
def test_case_12_100_live_blocks(make_pool, device, settings):
    pool = make_pool("640MiB", **settings)
    rng = random.Random(12)
    live = {}
    for number in range(100):
        nbytes = rng.randint(1, 5 * MIB)
        ptr = pool.alloc(nbytes)
        assert ptr % 256 == 0
        assert all(ptr + nbytes <= other or other + length <= ptr for other, (length, _) in live.items())
        device.memset(ptr, number, nbytes)
        live[ptr] = nbytes, number
    for ptr, (nbytes, number) in live.items():
        assert device.read(ptr, nbytes) == bytes([number]) * nbytes
        pool.free(ptr)


def test_case_13_text_of_an_out_of_memory_error(make_pool):
    pool = make_pool(12 * MIB)
    pool.alloc(3 * MIB)
    with pytest.raises(cp.OutOfMemoryError) as caught:
        pool.alloc(10 * MIB)
    assert str(caught.value) == (
        "out of memory: requested 10485760 bytes (10.00 MiB), free 9437184 bytes (9.00 MiB), "
        "largest free 9437184 bytes (9.00 MiB), reserved 12582912 bytes (12.00 MiB), "
        "capacity 12582912 bytes (12.00 MiB); report() says why")


# Fragmentation

def random_events(count, seed):
    """Return (id, size) pairs, size None for a free: log-uniform sizes up to 4 MiB, nothing live at the end."""
    rng = random.Random(seed)
    live, events = [], []
    while len(events) + len(live) < count:
        if live and rng.random() < 0.45:
            events.append((live.pop(rng.randrange(len(live))), None))
        else:
            live.append(len(events))
            events.append((live[-1], int(2 ** rng.uniform(0, 22))))
    return events + [(number, None) for number in live]


def recorded_events(count, name):
    """Return the first events of a trace, and frees of what is live then; `count` in all."""
    trace = Trace.read(EXAMPLES / name)
    live, events = {}, []
    for block, size, is_free in zip(trace.block.tolist(), trace.size.tolist(), trace.is_free.tolist()):
        if len(events) + len(live) >= count:
            break
        events.append((block, None if is_free else size))
        if is_free:
            del live[block]
        else:
            live[block] = size
    return events + [(block, None) for block in live]


def peak_live(events):
    sizes, live, peak = {}, 0, 0
    for block, size in events:
        live += size if size is not None else -sizes[block]
        sizes[block] = size
        peak = max(peak, live)
    return peak


def play(pool, events):
    """Play events; return the addresses handed out."""
    live, addresses = {}, []
    for block, size in events:
        if size is None:
            pool.free(live.pop(block))
        else:
            live[block] = pool.alloc(size)
            addresses.append(live[block])
    return addresses


EVENTS = {"random": (random_events, 1), "resnet": (recorded_events, "resnet50_b64_train.csv.gz"),
          "gpt2": (recorded_events, "gpt2_124m_train.csv.gz"),
          "llama": (recorded_events, "llama_serve_growing_kv.csv.gz")}


@pytest.mark.parametrize("name", EVENTS)
def test_case_16_fifty_times_the_same_trace(make_device, name):
    """A pool a fifth larger than the peak serves every round, and is one free region after each."""
    maker, argument = EVENTS[name]
    events = maker(10_000, argument)
    assert len(events) == 10_000
    pool = cp.Pool(peak_live(events) * 6 // 5, device=make_device("64GiB"))
    for turn in range(50):
        play(pool, events)
        pool.check()
        stats = pool.stats()
        layout = (stats.used, stats.requested, stats.free, stats.largest_free, stats.reserved)
        assert layout == (0, 0, stats.capacity // 256 * 256, stats.free, stats.capacity)
        if turn == 0:
            first_high = stats.used_high
    assert stats.used_high <= first_high * 1.01
    assert stats.requested_high == peak_live(events)
    assert stats.upstream_calls["cudaMalloc"] == 1


@pytest.mark.parametrize("settings", [{"slab_max": 0}, {"slab_max": 0, "mid_max": 0}])
@pytest.mark.parametrize("name", ["random", "resnet", "llama"])
def test_case_16_the_same_addresses(make_device, name, settings):
    """Without slabs, of which an empty one is kept, every round after the second hands out the same addresses."""
    maker, argument = EVENTS[name]
    events = maker(10_000, argument)
    pool = cp.Pool("8GiB", device=make_device("8GiB"), **settings)
    play(pool, events)
    second = play(pool, events)
    assert all(play(pool, events) == second for _ in range(48))
    pool.check()


@pytest.mark.parametrize("settings", ROUTES)
def test_case_19_one_upstream_allocation(device, settings):
    with cp.Pool("64MiB", device=device, **settings) as pool:
        for _ in range(1000):
            pool.free(pool.alloc(5 * MIB))
            pool.free(pool.alloc(100))
            device.synchronize()
        calls = pool.stats().upstream_calls
        assert calls["cudaMalloc"] == 1 and set(calls) == {"cudaMalloc", "cudaMemGetInfo"}
        pool.check()


@pytest.mark.parametrize("settings", [settings for settings in ROUTES if settings.get("mid_max") != 0])
def test_case_20_a_million_operations(make_device, settings):
    """The counters stay sane throughout, and twice the peak is enough for the same operations."""
    a_million_operations(make_device, settings, factor=2)


@pytest.mark.parametrize("settings", [settings for settings in ROUTES if settings.get("mid_max") == 0])
def test_a_million_operations_without_a_mid_tier(make_device, settings):
    """Where large requests go to the buddy tier alone it takes four times the peak: its holes are powers of two."""
    a_million_operations(make_device, settings, factor=4)


def a_million_operations(make_device, settings, factor):
    load = {"operations": 1_000_000, "slots": 2000, "smallest": 1, "doublings": 22, "seed": 20}
    with cp.Pool("8GiB", device=make_device("8GiB"), **settings) as pool:
        figures = _testing.churn(pool, check_every=20_000, **load)
        assert pool.stats().used == pool.stats().requested == 0
    assert figures["refused"] == 0 and figures["allocs"] == figures["frees"] > 450_000
    with cp.Pool(factor * figures["requested_high"], device=make_device("8GiB"), **settings) as pool:
        again = _testing.churn(pool, check_every=20_000, **load)
        assert again == figures
        assert pool.stats().largest_free == pool.stats().free


def test_case_20_a_million_operations_in_too_small_a_pool(make_device):
    """The same where one request in ten is refused."""
    with cp.Pool("64MiB", device=make_device("64MiB")) as pool:
        figures = _testing.churn(pool, 1_000_000, 2000, 1, 22, 20, check_every=20_000)
        assert figures["refused"] > 50_000
        assert pool.stats().used == 0 and pool.stats().largest_free == pool.stats().free


FREE_BLOCKS = 100_000


def equal_sizes(rng):
    return [7] * FREE_BLOCKS


def sizes_of_one_bin(rng):
    return [rng.randint(4096, 4223) for _ in range(FREE_BLOCKS)]


def arithmetic_progression(rng):
    return [3 + 5 * (number % 4000) for number in range(FREE_BLOCKS)]


def powers_of_two(rng):
    return [1 << rng.randrange(14) for _ in range(FREE_BLOCKS)]


def one_bit_apart(rng):
    """Sizes that differ in one bit of a bin's width: each hangs below the last."""
    return [(1 << 13) + (1 << rng.randrange(8)) for _ in range(FREE_BLOCKS)]


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("make_sizes", [equal_sizes, sizes_of_one_bin, arithmetic_progression, powers_of_two,
                                        one_bit_apart])
def test_case_21_a_search_that_fails_looks_at_64_blocks(make_sizes, shuffled):
    """A walk down a trie along the wanted key, and one down the side of a subtree: 64 blocks at most in both.

    The tries have the shape of their model, and the search finds what the model's finds, so it visits as many.
    """
    rng = random.Random(21)
    sizes = make_sizes(rng)
    mid, taken = fragmented(sizes, rng if shuffled else None)
    model = model_of(mid, taken)
    assert sum(model.counts.values()) == FREE_BLOCKS
    for size in {1, max(sizes), max(sizes) + 1, 2 * max(sizes), *rng.sample(sizes, 500)}:
        best, visited = model.find(size)
        found = mid.find(size)
        assert best == (None if found is None else mid.block(found)[1::-1])
        assert visited <= 64 and (best is None) == (size > max(sizes))


def test_case_21_offsets_that_are_powers_of_two():
    """Equal blocks at the powers of two of a region of 512 GiB make the longest chain of offsets."""
    mid = _testing.Mid(1 << 31, 1 << 31)
    offsets, at = [1 << order for order in reversed(range(1, 31))], 1 << 31
    taken = []
    for offset in offsets:
        mid.extend(at - offset - 1)
        mid.take(mid.find(at - offset - 1), at - offset - 1)
        mid.extend(1)
        taken.append(mid.take(mid.find(1), 1))
        at = offset
    for index in taken:
        mid.free(index)
    mid.check()
    model = model_of(mid, taken)
    assert max(model.depths.values()) >= 30
    for size in (1, 2):
        best, visited = model.find(size)
        assert (best is None) == (mid.find(size) is None) == (size == 2) and visited <= 64


def model_of(mid, taken):
    """Return the model of the tries of a Mid whose blocks were freed in this order and have not merged."""
    model = TrieModel(mid.end)
    for index in taken:
        offset, size, state = mid.block(index)
        assert state == "free"
        model.put(size, offset)
    assert mid.tries() == {bin: (model.counts[bin], model.depths[bin]) for bin in model.roots}
    return model


def fragmented(sizes, rng):
    """Return a Mid in which blocks of these sizes are free, a live unit between them, and the order of the frees."""
    end = sum(sizes) + len(sizes)
    mid = _testing.Mid(end, end)
    taken = []
    for size in sizes:
        mid.extend(size)
        taken.append(mid.take(mid.find(size), size))
        mid.extend(1)
        mid.take(mid.find(1), 1)
    if rng is not None:
        rng.shuffle(taken)
    for index in taken:
        mid.free(index)
    mid.check()
    return mid, taken


def test_case_21_a_pool_of_100_000_free_blocks_fails_fast(make_device):
    """A request that fails takes at most ten times the processor time that it takes among 100 free blocks."""

    def seconds(blocks):
        pool = cp.Pool(blocks * 64 * KIB, device=make_device("8GiB"), slab_max=0)
        live = [pool.alloc(32 * KIB) for _ in range(2 * blocks)]
        for ptr in live[::2]:
            pool.free(ptr)
        assert pool.stats().largest_free == 32 * KIB
        return min(fail(pool) for _ in range(200))

    def fail(pool):
        started = time.thread_time()
        with pytest.raises(cp.OutOfMemoryError):
            pool.alloc(32 * KIB + 1)
        return time.thread_time() - started

    assert seconds(FREE_BLOCKS) < 10 * seconds(100)


# Processes and exit

EXIT = """
import cuda_pool as cp
from cuda_pool._sim_log import NAMES

device = cp.sim.Device("64MiB")
pool = cp.Pool("32MiB", device=device, **{settings})
streams = [device.stream() for _ in range(3)]
pool.free_async(pool.alloc(1000), streams[0])   # pending: another stream has to wait for it
live = [pool.alloc(100 + 997 * number, streams[0]) for number in range(50)]
live += [pool.buffer(100 + 997 * number, streams[number % 3 * {streams}]) for number in range(50)]
{more}
for name in NAMES:
    device.delay(name, 3600)                    # any driver call from here on makes the process hang
"""


@pytest.mark.parametrize("number", range(20))
def test_case_36_exit_with_100_live_blocks(run_python, number):
    settings = [{}, {"scrub": True}, {"debug": True}, {"mid_max": 0}][number % 4]
    more = ["", "cycle = [live, pool]; cycle.append(cycle)", "import builtins; builtins.kept = live",
            "import sys; sys.kept = live", "import gc; gc.disable()"][number // 4]
    done = run_python(EXIT.format(settings=settings, streams=int(number >= 4), more=more))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


FORK = "import os, sys\n" + inspect.getsource(forked) + """
import cuda_pool as cp

device = cp.sim.Device("64MiB")
pool = cp.Pool("16MiB", device=device)
ptr, buffer, empty = pool.alloc(1000), pool.buffer(1000), pool.buffer(0)
scrubbing = cp.Pool("1MiB", device=device, scrub=True)
scrubbed, plain = scrubbing.buffer(100), scrubbing.alloc(100)
calls = device.calls

def child():
    uses = [lambda: pool.alloc(1), lambda: pool.alloc(0), lambda: pool.alloc(1, 5), lambda: pool.free(ptr),
            lambda: pool.free_async(ptr), lambda: pool.free_async(ptr, 5), lambda: pool.size_of(ptr),
            lambda: pool.owns(ptr), lambda: pool.stats(), lambda: pool.buffer(1), lambda: pool.forget_stream(0),
            lambda: buffer.ptr, lambda: buffer.free(), lambda: buffer.__dlpack__(stream=5),
            lambda: scrubbed.free(), lambda: scrubbing.free(plain)]
    for number, use in enumerate(uses):
        try:
            use()
        except RuntimeError as error:
            assert "before the process forked" in str(error) and "make a new one in the child" in str(error)
        else:
            raise AssertionError(f"use {number} of the parent's pool was accepted")
    globals().update(buffer=None, scrubbed=None, empty=None)
    pool.close()
    assert device.calls == calls, device.calls - calls
    with cp.Pool("1MiB", device=device) as own:
        own.free(own.alloc(1000))
        own.check()
"""

FORK_ONCE = FORK + """
assert os.waitpid(forked(child), 0)[1] == 0
assert device.calls == calls
pool.free(ptr)
pool.alloc(1000)
pool.check()
assert pool.owns(buffer.ptr)
"""

FORK_WHILE_THREADS_RUN = FORK + """
import threading
from cuda_pool import _testing
threads = [threading.Thread(target=_testing.churn, args=(pool, 3_000_000, 100, 100, 5, seed),
                            kwargs={"alone": False}) for seed in range(2)]
for thread in threads:
    thread.start()
pids = [forked(child) for _ in range(30)]
assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 30
for thread in threads:
    thread.join()
pool.check()
"""


@pytest.mark.parametrize("code", [pytest.param(FORK_ONCE, id="once"),
                                  pytest.param(FORK_WHILE_THREADS_RUN, id="while_threads_run",
                                               marks=pytest.mark.threads)])
def test_case_37_fork(run_python, code):
    done = run_python("import warnings; warnings.simplefilter('ignore')\n" + code)
    assert (done.returncode, done.stderr) == (0, "")


def test_case_38_every_call_runs_on_the_device_of_the_pool(make_device):
    first, second = make_device("64MiB", 0), make_device("64MiB", 1)
    sim.set_current_device(second)
    pool = CheckedPool("1MiB", device=first, scrub=True)
    ptr, other = pool.alloc(1000), pool.alloc(1000)
    five, six, seven = (first.stream() for _ in range(3))
    with_buffer = pool.buffer(100, five)
    uses = [
        lambda: pool.free_async(ptr, five), lambda: pool.alloc(1000, six), lambda: pool.free(other), pool.stats,
        lambda: pool.forget_stream(five), lambda: with_buffer.__dlpack__(stream=seven.handle), with_buffer.free,
        pool.close,
        lambda: CheckedPool(0.5, device=first), lambda: pytest.raises(cp.OutOfMemoryError, cp.Pool, "65MiB", first),
    ]
    for use in uses:
        use()
        assert sim.current_device() is second
        gc.collect()
    assert sim.current_device() is second
    assert set(second.calls) <= {"cudaGetDevice", "cudaSetDevice"}
    ran = [(name, current) for name, _, current in first.log if name not in ("cudaGetDevice", "cudaSetDevice")]
    assert {name for name, _ in ran} == {"cudaMalloc", "cudaFree", "cudaMemGetInfo", "cudaMemsetAsync",
                                         "cudaStreamSynchronize", "cudaStreamGetId"}
    assert {current for _, current in ran} == {0}


@pytest.mark.parametrize("call", ["cudaMalloc", "cudaFree", "cudaMemGetInfo", "cudaMemsetAsync",
                                  "cudaStreamSynchronize", "cudaSetDevice"])
def test_case_38_the_device_is_restored_when_a_call_fails(make_device, call):
    first, second = make_device("64MiB", 0), make_device("64MiB", 1)
    pool = cp.Pool("1MiB", device=first, scrub=True)
    ptr = pool.alloc(1000)
    sim.set_current_device(second)
    first.fail(call, code="cudaErrorIllegalAddress")
    uses = {"cudaMalloc": lambda: cp.Pool("1MiB", device=first), "cudaFree": pool.close}
    with pytest.raises(cp.CudaError, match=call):
        uses.get(call, pool.stats if call == "cudaMemGetInfo" else lambda: pool.free(ptr))()
    assert sim.current_device() is second
    assert pool.closed or pool.owns(ptr)


def test_case_39_the_pool_is_dropped_while_buffers_live(make_device):
    device = make_device()
    pool = CheckedPool("1MiB", device=device)
    buffers = [pool.buffer(1000) for _ in range(100)]
    array = np.from_dlpack(buffers[0])
    gone = weakref.ref(pool)
    del pool
    gc.collect()
    device.memset(buffers[0].ptr, 1, 1000)
    assert (array == 1).all()
    device.memset(buffers[99].ptr, 2, 1000)
    del buffers[50:]
    buffers.clear()
    gc.collect()
    assert gone() is not None and device.calls["cudaFree"] == 0
    del array
    gc.collect()
    assert gone() is None and device.calls["cudaFree"] == 1 and device.live == {}


def test_case_39_reference_cycles(make_device):
    device = make_device()
    for number in range(20):
        pool = CheckedPool("1MiB", device=device)
        pool.buffers = [pool.buffer(100 + at) for at in range(5)]
        pool.buffers[0].free()
        pool.itself = pool
        if number % 2:
            pool.close()
        del pool
        gc.collect()
    assert device.calls["cudaMalloc"] == device.calls["cudaFree"] == 20 and device.live == {}


# Faults

@pytest.mark.parametrize("settings", ROUTES + [{"scrub": True}, {"debug": True}])
@pytest.mark.parametrize("nbytes", [100, 20_000, 3 * MIB])
def test_case_41_invalid_pointers(make_pool, device, settings, nbytes):
    pool, other = make_pool("32MiB", **settings), make_pool("32MiB", **settings)
    ptr, keep, foreign = pool.alloc(nbytes), pool.alloc(nbytes), other.alloc(nbytes)
    own = device.malloc(4096)
    device.memset(keep, 7, nbytes)
    pool.free(ptr)
    before = state(pool)
    faults = {ptr: "already freed", keep + 1: "inside a live block", keep + nbytes - 1: "inside a live block",
              foreign: "not an address of this pool", own: "not an address of this pool", 12345: "not an address",
              2**63: "not an address"}
    for address, text in faults.items():
        for free in (pool.free, pool.free_async, lambda ptr: pool.free_async(ptr, 2), pool.size_of):
            with pytest.raises(cp.InvalidPointerError, match=text) as caught:
                free(address)
            assert hex(address) in str(caught.value)
        assert state(pool) == before
    assert other.owns(foreign) and pool.owns(keep) and not pool.owns(foreign)
    assert device.read(keep, nbytes) == b"\7" * nbytes
    device.free(own)
    pool.close()
    for free in (pool.free, pool.free_async, pool.size_of):
        with pytest.raises(cp.InvalidPointerError, match="the pool is closed"):
            free(keep)


def test_case_42_an_address_that_is_live_already(make_device):
    device = make_device("64MiB", misuse=True)
    pool = CheckedPool("8MiB", device=device, debug=True)
    ptr = pool.alloc(1000)
    device.memset(ptr, 7, 1000)
    device.alias()
    with pytest.raises(RuntimeError, match=re.escape(f"overlaps a live region from 0x{min(device.live):x}")):
        cp.Pool("4MiB", device=device, debug=True)
    assert device.read(ptr, 1000) == b"\7" * 1000 and pool.owns(ptr)
    pool.free(ptr)
    assert device.calls["cudaFree"] == 0
    cp.Pool("4MiB", device=device, debug=True).close()
    pool.close()


NO_DRIVER = """
import sys
for name in [name for name in sys.modules if name.startswith("cuda.")]:
    del sys.modules[name]           # cuda-bindings 12.9.0 has a .pth file that imports it in every process
sys.modules["cuda"] = None          # cuda-python cannot even be imported
import cuda_pool as cp
from cuda_pool.cli import main
pool = cp.Pool("1MiB", device=cp.sim.Device("1MiB"))
pool.free(pool.alloc(100))
code = main(["replay", {trace!r}, "--json", "-"])
assert "cuda.bindings" not in sys.modules
sys.exit(code)
"""


def test_case_43_without_a_driver(run_python):
    trace = str(EXAMPLES / "resnet50_b64_train.csv.gz")
    done = run_python(NO_DRIVER.format(trace=trace))
    assert done.returncode == 0, done.stderr
    assert '"failed_row": null' in done.stdout


# Traces

def test_case_46_sizes_as_text(make_pool):
    assert cp.parse_size("1TiB") == 1_099_511_627_776
    pool = make_pool("1MiB")
    for text in ("1e3MB", "", "12 bananas"):
        for use in (cp.parse_size, pool.alloc, pool.buffer, make_pool):
            with pytest.raises(ValueError) as caught:
                use(text)
            assert '"512KiB"' in str(caught.value) and '"1GB"' in str(caught.value) and repr(text) in str(caught.value)
