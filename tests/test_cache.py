"""Caches of threads: nothing is ever missing, nothing is handed out twice, and most calls need nothing else."""

import ctypes
import gc
import os
import random
import threading

import cuda_pool as cp
import pytest
from cuda_pool import _bench, _testing, capi

from .models import optimised

MIB = 1 << 20

C_ALLOC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p,
                           ctypes.POINTER(ctypes.c_void_p))(capi.functions["cuda_pool_alloc"].address)
C_FREE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(capi.functions["cuda_pool_free"].address)


@pytest.fixture
def pool(make_device):
    with cp.Pool("256MiB", device=make_device("512MiB")) as pool:
        yield pool
        pool.check()


def in_thread(function):
    """Run a function in a thread that ends; its result."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join(60)
    assert found, "the thread failed"
    return found[0]


SIZES = [1, 512, 5000, 16_384, 20_000, 300_000, MIB, 2 * MIB]


@pytest.mark.parametrize("nbytes", SIZES)
def test_what_is_freed_is_reused(pool, nbytes):
    kept = pool.alloc(nbytes)                   # the last live block empties the caches
    first = pool.alloc(nbytes)
    pool.free(first)
    assert pool.alloc(nbytes) == first
    pool.free(first)
    pool.free(kept)
    assert pool.stats().used == 0


class InC:
    """What C calls of a pool: other functions than those that Python calls, up to the caches."""

    def __init__(self, pool):
        self.pool = pool

    def alloc(self, nbytes, stream=0):
        ptr = ctypes.c_void_p()
        assert C_ALLOC(self.pool.handle, nbytes, stream, ctypes.byref(ptr)) == 0
        return ptr.value

    def free(self, ptr):
        assert C_FREE(self.pool.handle, ptr) == 0


each_way = pytest.mark.parametrize("of", [lambda pool: pool, InC], ids=["python", "c"])


@each_way
@pytest.mark.parametrize("nbytes", [17_000, 300_000, MIB - 256, MIB])
@pytest.mark.parametrize("stream", [0, 2])
def test_the_block_that_was_freed_last_is_taken_first(pool, of, nbytes, stream):
    """Blocks of up to 1 MiB come from a cache, of each stream: of those in the tier the lowest would be taken first."""
    calls = of(pool)
    calls.free(calls.alloc(512, 2 - stream))    # a seat that has a cache, but of the other stream
    low, high = sorted(calls.alloc(nbytes, stream) for _ in range(5))[1:4:2]
    calls.free(low)
    calls.free(high)
    assert [calls.alloc(nbytes, stream) for _ in range(2)] == [high, low]


@each_way
@pytest.mark.parametrize("nbytes", [20 << 10, 256 << 10, MIB])
def test_a_cached_block_serves_what_needs_a_little_less(pool, of, nbytes):
    """The next bin is looked at: with all of the block, where the tier would cut off what is not needed."""
    calls = of(pool)
    block = sorted(calls.alloc(nbytes) for _ in range(3))[1]
    calls.free(block)
    assert calls.alloc(nbytes - nbytes // 16) == block
    assert pool.stats().used == 3 * nbytes and pool.stats().requested == 3 * nbytes - nbytes // 16


@each_way
@pytest.mark.parametrize("nbytes", SIZES)
def test_a_seat_without_a_cache_of_the_stream_while_calls_are_recorded(pool, of, nbytes):
    """Then it is asked for a slot or a block all the same."""
    calls = of(pool)
    calls.free(calls.alloc(512, 2))
    with cp.record(pool):
        calls.free(calls.alloc(nbytes))
    assert pool.stats().used == 0 and pool.stats().alloc_count == 2


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("stream", [0, 2])
def test_a_second_free_is_refused(pool, nbytes, stream):
    kept, ptr = pool.alloc(nbytes, stream), pool.alloc(nbytes, stream)
    for first in (pool.free, lambda ptr: pool.free_async(ptr, stream)):
        first(ptr)
        for again in (pool.free, lambda ptr: pool.free_async(ptr, stream)):
            with pytest.raises(cp.InvalidPointerError, match="already freed"):
                again(ptr)
        assert not pool.owns(ptr)
        assert pool.alloc(nbytes, stream) == ptr
    with pytest.raises(cp.InvalidPointerError):
        pool.free(ptr + 1)
    pool.free(ptr)
    pool.free(kept)


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_second_free_by_another_thread_is_refused(pool, nbytes):
    kept, other, ptr = (pool.alloc(nbytes) for _ in range(3))
    pool.free(ptr)

    def again():
        pool.free(other)                        # it has a cache, too
        with pytest.raises(cp.InvalidPointerError, match="already freed"):
            pool.free(ptr)
        return True

    assert in_thread(again)
    pool.free(kept)


def test_statistics_are_those_of_every_thread(pool):
    live = [in_thread(lambda: [pool.alloc(nbytes) for nbytes in SIZES]) for _ in range(3)]
    stats = pool.stats()
    assert stats.requested == 3 * sum(SIZES) and stats.alloc_count == 3 * len(SIZES)
    for ptr in (ptr for some in live for ptr in some):
        pool.free(ptr)                          # of threads that have ended
    stats = pool.stats()
    assert stats.used == stats.requested == 0 and stats.free_count == 3 * len(SIZES)
    assert stats.largest_free == stats.capacity


def test_marks_are_exact_on_one_thread(pool):
    generator, live, used, requested, highs = random.Random(5), {}, 0, 0, [0, 0]
    for _ in range(20_000):
        if live and generator.random() < 0.5:
            ptr = generator.choice(list(live)) if len(live) < 50 else next(iter(live))
            nbytes, size = live.pop(ptr)
            pool.free(ptr)
            used, requested = used - size, requested - nbytes
        else:
            nbytes = int(2 ** generator.uniform(0, 19))
            ptr = pool.alloc(nbytes)
            live[ptr] = nbytes, 0
            requested += nbytes
            highs[1] = max(highs[1], requested)
    assert pool.stats().requested == requested and pool.stats().requested_high == highs[1]
    for ptr in live:
        pool.free(ptr)


@pytest.mark.parametrize("nbytes", [512 << 10, 4 * MIB])        # below and above what is cached
def test_marks_see_what_another_thread_has_changed_since(pool, nbytes):
    kept = pool.alloc(nbytes)
    pool.free(pool.alloc(8 * nbytes))
    assert pool.stats().used_high == 9 * nbytes
    other = in_thread(lambda: pool.alloc(6 * nbytes))
    pool.free(pool.alloc(4 * nbytes))
    assert pool.stats().used_high == 11 * nbytes
    in_thread(lambda: pool.free(other) or True)
    pool.free(pool.alloc(10 * nbytes))
    pool.free(pool.alloc(9 * nbytes))
    assert pool.stats().used_high == 11 * nbytes
    pool.free(kept)


def test_marks_of_large_blocks_are_exact_on_one_thread(pool):
    """Blocks that come with the lock and blocks that come from a cache count in the same marks."""
    generator, live, used, high = random.Random(6), {}, 0, 0
    for _ in range(3_000):
        nbytes = generator.randint(1, 64) * (64 << 10)
        if used + nbytes > 200 * MIB or (live and generator.random() < 0.45):
            ptr = generator.choice(list(live))
            used -= live.pop(ptr)
            pool.free(ptr)
        else:
            ptr = pool.alloc(nbytes)
            live[ptr] = nbytes
            used += nbytes
            high = max(high, used)
    stats = pool.stats()
    assert stats.requested == used and stats.requested_high == high
    for ptr in live:
        pool.free(ptr)


def test_caches_are_there_for_other_threads_in_a_shortage(make_device):
    """What one thread has in its caches another one gets before the pool is out of memory."""
    with cp.Pool("64MiB", device=make_device("128MiB")) as pool:
        def fill(nbytes):
            blocks = []
            try:
                while True:
                    blocks.append(pool.alloc(nbytes))
            except cp.OutOfMemoryError:
                return blocks

        first = fill("100KiB")
        for ptr in first[1:]:
            pool.free(ptr)
        pool.free(first[0])
        kept = pool.alloc(100)
        pool.free(pool.alloc("100KiB"))
        assert len(in_thread(lambda: fill("100KiB"))) >= len(first) - 1
        assert pool.owns(kept)
        pool.check()


def test_steady_work_takes_no_memory_from_the_tiers(pool):
    """A cache holds what it may, and no more."""
    blocks = [pool.alloc(512) for _ in range(20_000)]
    for ptr in blocks:
        pool.free(ptr)
    assert pool.stats().largest_free == pool.stats().capacity


@pytest.mark.threads
def test_threads_come_and_go(pool):
    kept = pool.alloc(512)
    for _ in range(300):
        in_thread(lambda: [pool.free(pool.alloc(nbytes)) for nbytes in (512, 20_000)])
    pool.free(kept)
    assert pool.stats().used == 0


@pytest.mark.threads
def test_pools_come_and_go_while_a_thread_stays(make_device):
    """Seats of pools that are gone are not found, even where a new pool has the same address."""
    device = make_device("64MiB")
    for _ in range(200):
        with cp.Pool("4MiB", device=device) as pool:
            ptr = pool.alloc(512)
            pool.free(ptr)
            assert pool.stats().alloc_count == 1
        with pytest.raises(cp.InvalidPointerError, match="closed"):
            pool.free(ptr)
        del pool
    gc.collect()


def test_more_pools_than_places(make_device):
    """A thread finds its seats at many pools."""
    device = make_device("256MiB")
    pools = [cp.Pool("4MiB", device=device) for _ in range(20)]
    for _ in range(3):
        blocks = [pool.alloc(512) for pool in pools]
        for pool, ptr in zip(pools, blocks):
            pool.free(ptr)
    for pool in pools:
        assert pool.stats().alloc_count == pool.stats().free_count == 3
        pool.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_no_seat(pool):
    kept, ptr = pool.alloc(512), pool.alloc(512)
    pool.free(ptr)                              # it lies in a cache now
    child = os.fork()
    if child == 0:
        try:
            pool.alloc(512)
        except RuntimeError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert pool.alloc(512) == ptr
    pool.free(ptr)
    pool.free(kept)


@pytest.mark.threads
@pytest.mark.parametrize("workload", ["W1", "W2", "W3"])
def test_threads_on_one_stream_and_questions(make_device, workload):
    """Threads at their seats, and one that stops them all the time."""
    with cp.Pool("2GiB", device=make_device("4GiB", lazy=True)) as pool:
        work = _bench.Workload.named(workload, 3000)
        done = threading.Event()

        def play():
            loop = _bench.PoolLoop(work, pool)
            for _ in range(8):
                loop.run()

        def ask():
            while not done.is_set():
                pool.check()
                pool.stats()

        threads = [threading.Thread(target=play) for _ in range(2)]
        asking = threading.Thread(target=ask)
        for thread in (*threads, asking):
            thread.start()
        for thread in threads:
            thread.join(120)
        done.set()
        asking.join(60)
        gc.collect()
        stats = pool.stats()
        assert stats.used == 0 and stats.alloc_count == stats.free_count
        assert stats.largest_free == stats.capacity
        pool.check()


@pytest.mark.threads
@pytest.mark.parametrize("nbytes", [512, 50_000])
def test_one_thread_allocates_and_another_frees(pool, nbytes):
    given, faults = [], []
    ready, room = threading.Semaphore(0), threading.Semaphore(500)
    count = 5000

    def make():
        for number in range(count):
            room.acquire()
            given.append(pool.alloc(nbytes))
            ready.release()

    def drop():
        try:
            for number in range(count):
                ready.acquire()
                pool.free(given.pop())
                room.release()
        except Exception as fault:
            faults.append(fault)

    threads = [threading.Thread(target=make), threading.Thread(target=drop)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not faults and pool.stats().used == 0


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("second", range(4))
@pytest.mark.parametrize("another", [False, True])
def test_a_slot_that_was_freed_twice_at_one_time(pool, first, second, another):
    """It is handed out once, counted once, and goes back once, whichever cache is emptied first."""
    kept = [pool.alloc(512) for _ in range(2)]
    ptrs = [pool.alloc(500) for _ in range(4)]
    twice = ptrs[first]
    pool.free(twice)
    _testing.revive(pool, twice, 500)

    def free_again():
        pool.free(pool.alloc(512))              # it has a seat
        if second != first:
            pool.free(ptrs[second])
        pool.free(twice)
        some = [pool.alloc(512) for _ in range(2)]
        for ptr in some:
            pool.free(ptr)
        return len(set(some)) == 2

    assert in_thread(free_again) if another else free_again()
    live = [ptr for ptr in ptrs if ptr not in (twice, ptrs[second])] + [pool.alloc(512) for _ in range(70)]
    assert len({*kept, *live}) == 2 + len(live)
    for ptr in live:
        pool.free(ptr)
    pool.check()
    stats = pool.stats()
    assert stats.requested == stats.used == 1024 and stats.alloc_count - stats.free_count == 2
    assert stats.used_high < 100 * 512
    for ptr in kept:
        pool.free(ptr)


@pytest.mark.parametrize("another", [False, True])
def test_a_slab_goes_while_a_slot_of_it_is_in_two_places(pool, another):
    """Both places are looked at before the slab's memory goes."""
    nbytes = pool.settings.size_classes[-1]
    ptrs = [pool.alloc(nbytes) for _ in range(200)]
    for ptr in ptrs:
        pool.free(ptr)
        _testing.revive(pool, ptr, nbytes)
        if another:
            in_thread(lambda ptr=ptr: pool.free(ptr))
        else:
            pool.free(ptr)
    pool.check()
    stats = pool.stats()
    assert stats.used == stats.requested == 0 and stats.alloc_count == stats.free_count


@pytest.mark.threads
def test_two_threads_free_one_block_at_one_time(pool):
    """One of them is told; the block is not handed out twice."""
    for nbytes in (512, 50_000):
        for _ in range(200):
            ptr, told, start = pool.alloc(nbytes), [], threading.Barrier(2)

            def free():
                own = pool.alloc(nbytes)
                pool.free(own)
                start.wait(30)
                try:
                    pool.free(ptr)
                except cp.InvalidPointerError:
                    told.append(True)

            threads = [threading.Thread(target=free) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            some = [pool.alloc(nbytes) for _ in range(4)]
            assert len(set(some)) == 4
            for other in some:
                pool.free(other)
            pool.check()


@pytest.mark.threads
@optimised
def test_threads_do_not_stop_each_other_for_ever(make_device):
    """After a question that stops both, calls are served at the seats again: they do not go on as questions do."""
    device = make_device("64MiB")
    with cp.Pool("32MiB", device=device) as pool:
        work = _bench.Workload.named("W1", 200_000)
        loops = [_bench.StreamLoop(work, pool, device.stream()) for _ in range(2)]
        for loop in loops:
            loop.run()
        alone = min(loops[0].run() for _ in range(3))
        times = [[], []]

        def play(at):
            for _ in range(5):
                times[at].append(loops[at].run())

        threads = [threading.Thread(target=play, args=(at,)) for at in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            pool.stats()
        for thread in threads:
            thread.join(60)
        assert max(min(some) for some in times) < 5 * alone     # time of the processor; with all locks it is 10 times


def test_what_was_taken_ahead_is_not_counted_as_needed(make_device, tmp_path):
    """Slots that lay in a cache and were never handed out do not get into a profile, spilled or not."""
    with cp.Pool("200MiB", device=make_device("256MiB")) as pool:
        for count in (1, 7, 300, 301):
            blocks = [pool.alloc(1000) for _ in range(count)]
            for ptr in blocks:
                pool.free(ptr)
            pool.save_profile(tmp_path / "profile.json")
            assert dict(cp.Profile.load(tmp_path / "profile.json").size_classes) == {1024: count}


@pytest.mark.threads
def test_questions_about_live_blocks_let_other_threads_go_on(make_device):
    with cp.Pool("16MiB", device=make_device("64MiB")) as pool:
        threads = [threading.Thread(target=_testing.churn, args=(pool, 60_000, 100, 100, 5, seed),
                                    kwargs={"alone": False}) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        stats = pool.stats()
        assert stats.used == 0 and stats.largest_free == stats.capacity
        pool.check()
