"""Calls that take one heap's lock, the pool's lock, or all of them, side by side."""

import threading
import time

import cuda_pool as cp
import pytest
from cuda_pool import _bench

MIB = 1 << 20
SECONDS = 0.5

pytestmark = pytest.mark.threads


def run_all(*functions):
    """Run each in a thread of its own; the exceptions they ended with."""
    faults = []

    def run(function):
        try:
            function()
        except Exception as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return faults


def until(event, function):
    def loop():
        while not event.is_set():
            function()
    return loop


def timed(event, function):
    """Call a function for some time, then set the event."""
    def loop():
        end = time.monotonic() + SECONDS
        try:
            while time.monotonic() < end:
                function()
        finally:
            event.set()
    return loop


@pytest.mark.parametrize("workload", ["W1", "W2"])
def test_questions_while_streams_are_at_work(make_device, workload):
    device, done = make_device("1GiB"), threading.Event()
    with cp.Pool("512MiB", device=device) as pool:
        work = _bench.Workload.named(workload, 2000)
        loops = [_bench.StreamLoop(work, pool, device.stream()) for _ in range(2)]

        def ask():
            pool.check()
            stats = pool.stats()
            assert stats.requested <= stats.used <= stats.used_high <= stats.reserved
            assert 0 <= stats.alloc_count - stats.free_count <= 3 * work.live
            assert stats.slab.used + stats.mid.used + stats.buddy.used == stats.used

        assert run_all(timed(done, ask), *(until(done, loop.run) for loop in loops)) == []
        del loops
        assert (pool.stats().used, pool.stats().requested) == (0, 0)
        pool.check()


def test_others_free_what_a_stream_has(make_device):
    device, done = make_device("1GiB"), threading.Event()
    with cp.Pool("256MiB", device=device) as pool:
        streams = [device.stream() for _ in range(3)]
        handed = [[] for _ in streams]

        def hand_on(index):
            def turn():
                for nbytes in (100, 5000, 30_000) if len(handed[index]) < 1000 else ():
                    handed[index].append(pool.alloc(nbytes, streams[index]))
                taken = handed[index - 1]
                while len(taken) > 10:
                    address = taken.pop(0)
                    if address // 256 % 2:
                        pool.free(address)
                    else:
                        pool.free_async(address, streams[index])
            return turn

        assert run_all(timed(done, hand_on(0)), *(until(done, hand_on(index)) for index in (1, 2))) == []
        for address in sum(handed, []):
            pool.free(address)
        assert pool.stats().used == 0
        pool.check()


def test_close_while_threads_are_at_work(make_device):
    for _ in range(20):
        device = make_device("64MiB")
        pool, start = cp.Pool("16MiB", device=device), threading.Barrier(4)

        def work(stream):
            start.wait(10)
            while True:
                pool.free(pool.alloc(256, stream))
                pool.free_async(pool.alloc(300_000, stream), stream)

        def close():
            start.wait(10)
            time.sleep(0.002)
            pool.close()

        faults = run_all(close, *(lambda on=device.stream(): work(on) for _ in range(3)))
        assert len(faults) == 3
        assert all("the pool is closed" in str(fault) for fault in faults)
        assert device.allocated == 0


def test_threads_come_and_go_on_their_own_default_stream(make_device):
    """Each of them makes a record for its stream while others use theirs."""
    device = make_device("256MiB")
    with cp.Pool("64MiB", device=device) as pool:
        def work():
            for nbytes in (1, 700, 20_000, 300_000):
                pool.free_async(pool.alloc(nbytes, 2), 2)

        for _ in range(30):
            assert run_all(*[work] * 8) == []
        assert pool.stats().used == 0
        pool.check()


def test_the_high_water_mark_sees_all_streams(make_device):
    """Slots of several streams are added up when one of them needs memory, and when somebody asks."""
    device = make_device("64MiB")
    with cp.Pool("16MiB", device=device) as pool:
        first = [pool.alloc(1000, 0) for _ in range(100)]
        stream = device.stream()
        second = [pool.alloc(1000, stream) for _ in range(100)]
        assert pool.stats().requested_high == 200_000
        for address in first + second:
            pool.free(address)
        pool.alloc(MIB)
        assert pool.stats().requested_high == MIB


def test_a_mark_of_slots_makes_an_event(make_device):
    """Frees of slots count towards the event of a stream that can vanish, though they take no lock but their heap's."""
    device = make_device("64MiB")
    with cp.Pool("1MiB", device=device) as pool:
        other = device.stream()
        pool.free_async(pool.alloc(100, other), other)
        pool.free_async(pool.alloc(100, 0), 0)
        before = device.calls["cudaEventRecord"]
        for _ in range(1000):                   # 1 MiB / 64 is exceeded 15 times
            pool.free_async(pool.alloc(256, 2), 2)
        assert 0 < device.calls["cudaEventRecord"] - before <= 20
