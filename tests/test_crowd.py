"""Caches hold more while several threads come to the pool's lock, and not otherwise."""

import threading

import cuda_pool as cp
import pytest
from cuda_pool import _bench, _testing

from .models import optimised
from .test_side import play_together

MIB = 1 << 20
ALONE = 24 * MIB                # 1/128 of 3 GiB
SHARED = 128 * MIB              # a third of an eighth: the main thread has a seat, too


@pytest.fixture
def pool(make_device):
    with cp.Pool("3GiB", device=make_device("4GiB")) as pool:
        yield pool
        pool.check()


def many(pool, count=40, nbytes=MIB // 2):
    """Free so many blocks that a cache has no room for all of them."""
    for ptr in [pool.alloc(nbytes) for _ in range(count)]:
        pool.free(ptr)


def test_one_thread_keeps_little(pool):
    kept = pool.alloc(MIB)
    for _ in range(5):
        many(pool)
    assert _testing.seat(pool)["blocks_most"] == ALONE and _testing.seat(pool)["entries"] == 16
    assert 0 < _testing.seat(pool)["blocks_bytes"] <= 16 * MIB // 2
    pool.free(kept)


def in_turns(pool, work, rounds):
    """Let two threads work in turns, and tell what their seats have then."""
    turn, found = [threading.Semaphore(1), threading.Semaphore(0)], [None, None]

    def play(at):
        kept = pool.alloc(MIB)
        for _ in range(rounds):
            turn[at].acquire(timeout=60)
            work()
            turn[1 - at].release()
        turn[at].acquire(timeout=60)
        found[at] = _testing.seat(pool)
        turn[1 - at].release()
        pool.free(kept)

    play_together([lambda: play(0), lambda: play(1)])
    return found


@pytest.mark.threads
def test_two_threads_keep_more(pool):
    kept = pool.alloc(MIB)
    for _ in range(3):
        for seat in in_turns(pool, lambda: many(pool), 4):
            assert seat["blocks_most"] == SHARED and seat["entries"] == 64
            assert 16 * MIB // 2 < seat["blocks_bytes"] <= 40 * MIB // 2
        pool.stats()                            # empties the caches: their share is free again
    pool.free(kept)


@pytest.mark.threads
def test_a_full_bin_is_returned_by_halves(pool):
    kept = pool.alloc(MIB)
    for seat in in_turns(pool, lambda: many(pool, 70, 100_000), 4):
        assert 32 * 100_000 <= seat["blocks_bytes"] <= 64 * 101_000
    pool.check()
    pool.free(kept)


@pytest.mark.threads
def test_a_full_cache_returns_some_of_what_it_has(pool):
    """More than 128 MiB in bins none of which is full."""
    kept = pool.alloc(MIB)
    sizes = [MIB - MIB // 9 * (at % 5) for at in range(300)]

    def work():
        for ptr in [pool.alloc(nbytes) for nbytes in sizes]:
            pool.free(ptr)

    for seat in in_turns(pool, work, 4):
        assert 0 < seat["blocks_bytes"] <= SHARED
    pool.check()
    pool.free(kept)


@pytest.mark.threads
def test_all_caches_together_hold_an_eighth_of_the_capacity(make_device):
    """Threads with many streams: their caches get what is left of the share."""
    device = make_device("4GiB")
    with cp.Pool("3GiB", device=device) as pool:
        streams = [device.stream() for _ in range(8)]
        for stream in streams:
            pool.hold_stream(stream)
        kept = pool.alloc(MIB)

        def work():
            for stream in streams:
                for ptr in [pool.alloc(MIB // 2, stream) for _ in range(40)]:
                    pool.free_async(ptr, stream)
            found = [_testing.seat(pool, owner) for owner in range(20)]
            limits[threading.get_ident()] = [seat["blocks_most"] for seat in found if seat["entries"] == 64]

        limits = {}
        in_turns(pool, work, 6)
        assert sum(map(sum, limits.values())) <= 3 << 30 >> 3
        assert any(limits.values())
        pool.check()
        pool.free(kept)


@pytest.mark.threads
def test_what_is_returned_stays_in_its_streams_order(make_device):
    """Blocks of streams whose work is not over are pending, whether they are in a cache or were returned from it."""
    device = make_device("4GiB")
    with cp.Pool("3GiB", device=device) as pool:
        kept = pool.alloc(MIB)
        streams = {}

        def work():
            stream = streams.setdefault(threading.get_ident(), device.stream())
            stream.work(1000)
            for ptr in [pool.alloc(100_000, stream) for _ in range(200)]:
                pool.free_async(ptr, stream)

        in_turns(pool, work, 4)
        assert pool.stats().pending >= 2 * 200 * 100_000
        device.synchronize()
        pool.check()
        pool.free(kept)


@pytest.mark.threads
def test_it_is_over_when_the_caches_are_emptied(pool):
    kept, seats = pool.alloc(MIB), []

    def look():
        pool.stats()
        seats.append(_testing.seat(pool))

    turn = threading.Barrier(2)

    def play():
        for _ in range(4):
            many(pool)
            turn.wait(60)
        with lock:
            look()
        turn.wait(60)

    lock = threading.Lock()
    play_together([play, play])
    assert {(seat["blocks_most"], seat["entries"], seat["blocks_bytes"]) for seat in seats} == {(ALONE, 16, 0)}
    pool.free(kept)


@pytest.mark.threads
def test_it_is_over_for_a_thread_that_is_left_alone(pool):
    """Another one that has a seat, and does nothing, is in nobody's way."""
    kept = pool.alloc(MIB)
    going, done = threading.Event(), threading.Event()

    def idle():
        pool.free(pool.alloc(MIB))
        going.set()
        done.wait(60)

    thread = threading.Thread(target=idle)
    thread.start()
    going.wait(60)
    for _ in range(10):
        many(pool)                              # more than 64 frees with the lock
    pool.stats()
    many(pool)
    assert _testing.seat(pool)["blocks_most"] == ALONE
    done.set()
    thread.join()
    pool.free(kept)


@pytest.mark.threads
@pytest.mark.parametrize("growth", ["static", "predictive"])
def test_pools_that_watch_their_blocks_keep_none(make_device, growth):
    arguments = {"release_threshold": "64MiB", "growth": "dynamic"} if growth == "static" else {"growth": "predictive"}
    with cp.Pool("256MiB", device=make_device("1GiB"), **arguments) as pool:
        for seat in in_turns(pool, lambda: many(pool, 20), 3):
            assert seat["blocks_most"] == 0 and seat["blocks_bytes"] == 0
        pool.check()


@pytest.mark.threads
@pytest.mark.parametrize("streams", [False, True])
def test_what_is_cached_is_there_for_a_request_that_needs_it(make_device, streams):
    """Two threads' caches have an eighth of the pool; a third one is given nearly all."""
    device = make_device("2GiB")
    with cp.Pool("1GiB", device=device) as pool:
        kept = pool.alloc(MIB)

        def work(stream):
            for _ in range(6):
                pointers = [pool.alloc(MIB - 1000 * at, stream=stream) if stream is not None
                            else pool.alloc(MIB - 1000 * at) for at in range(100)]
                for ptr in pointers:
                    pool.free_async(ptr, stream) if stream is not None else pool.free(ptr)

        on = [device.stream() if streams else None for _ in range(2)]
        play_together([lambda: work(on[0]), lambda: work(on[1])])
        large = pool.alloc(1000 * MIB)
        pool.check()
        pool.free(large)
        pool.free(kept)
        assert pool.stats().used == 0
        pool.check()


@pytest.mark.threads
@pytest.mark.parametrize("workload", ["W2", "W3"])
@pytest.mark.parametrize("own", [False, True])
def test_random_work_of_threads_on_one_stream_and_on_several(make_device, workload, own):
    device = make_device("8GiB")
    with cp.Pool("6GiB", device=device) as pool:
        work = _bench.Workload.named(workload, 30_000 if optimised() else 3_000)
        loops = [_bench.StreamLoop(work, pool, device.stream()) if own else _bench.PoolLoop(work, pool)
                 for _ in range(3)]
        play_together([lambda loop=loop: (loop.run(), pool.check()) for loop in loops], rounds=3)
        del loops
        pool.check()
        assert pool.stats().used == 0
