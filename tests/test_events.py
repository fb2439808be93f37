"""Functions that are called when something happens to a pool."""

import ctypes
import os
import sys
import threading
import time

import pytest

import cuda_pool as cp
from cuda_pool import capi

from .models import forked

MIB = 1 << 20

C_ALLOC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p,
                           ctypes.POINTER(ctypes.c_void_p))(capi.functions["cuda_pool_alloc"].address)


@pytest.fixture
def pool(make_device):
    with cp.Pool("2MiB", device=make_device("256MiB"), growth="dynamic", max_capacity="64MiB") as pool:
        yield pool
        pool.check()


@pytest.fixture
def seen(pool):
    """What the pool told: (kind, bytes, thread) of each event."""
    events = []
    pool.on_event(lambda event: events.append((event.kind, event.nbytes, threading.get_ident())))
    return events


def told(seen):
    """Return kinds and bytes; all of this thread's."""
    assert {thread for *_, thread in seen} <= {threading.get_ident()}
    return [(kind, nbytes) for kind, nbytes, _ in seen]


def wait_for(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen within ten seconds")


def test_grow_and_trim(pool, seen):
    ptr = pool.alloc(8 * MIB)
    assert told(seen) == [("grow", 8 * MIB)]
    pool.free(ptr)
    pool.trim()
    assert sorted(told(seen)[1:]) == [("trim", 2 * MIB), ("trim", 8 * MIB)]
    assert pool.stats().trim_count == 2


def test_oom(pool, seen):
    """Once for an allocation, however often it was tried; not where a callback helped."""
    for use in (pool.alloc, pool.buffer, pool.movable):
        with pytest.raises(cp.OutOfMemoryError):
            use("1GiB")
    with pytest.raises(cp.OutOfMemoryError):
        pool.alloc(10**5000)
    assert [kind for kind, _ in told(seen)] == ["oom"] * 4 and told(seen)[0] == ("oom", 1 << 30)
    seen.clear()
    blocks = [pool.alloc(60 * MIB)]
    pool.on_pressure(lambda nbytes: pool.free(blocks.pop()) if blocks else None)
    pool.alloc(50 * MIB)
    assert "oom" not in [kind for kind, _ in told(seen)]


def test_defragment(make_device, seen):
    with cp.Pool("64MiB", device=make_device("256MiB")) as pool:
        events = []
        pool.on_event(events.append)
        blocks = [pool.movable(MIB) for _ in range(16)]
        for block in blocks[::2]:
            block.free()
        report = pool.defragment()
        assert [(event.kind, event.nbytes, event.pool) for event in events] == [
            ("defragment", report.moved_bytes, pool)]
        for block in blocks:
            block.free()


@pytest.mark.threads
def test_what_c_does_is_told_by_another_thread(pool, seen):
    ptr = ctypes.c_void_p()
    assert C_ALLOC(pool.handle, 8 * MIB, None, ctypes.byref(ptr)) == 0
    assert C_ALLOC(pool.handle, 1 << 40, None, ctypes.byref(ptr)) == capi.Status.OUT_OF_MEMORY
    wait_for(lambda: len(seen) == 2)
    assert [(kind, nbytes) for kind, nbytes, _ in seen] == [("grow", 8 * MIB), ("oom", 1 << 40)]
    assert threading.get_ident() not in {thread for *_, thread in seen}


ONE = """
import ctypes, gc, time, weakref, cuda_pool as cp
from cuda_pool import capi
pool, seen = cp.Pool("2MiB", device=cp.sim.Device("64MiB"), growth="dynamic"), []
pool.on_event(lambda event: seen.append(event.kind))
alloc = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p,
                         ctypes.POINTER(ctypes.c_void_p))(capi.functions["cuda_pool_alloc"].address)
alloc(pool.handle, 8 << 20, None, ctypes.byref(ctypes.c_void_p()))
gone = weakref.ref(pool)
while not seen:
    time.sleep(0.01)
del pool
for _ in range(500):
    gc.collect()
    if gone() is None:
        break
    time.sleep(0.01)
print(seen, gone())
"""


def test_the_thread_that_tells_keeps_no_pool(run_python):
    assert run_python(ONE).stdout == "['grow'] None\n"


@pytest.mark.threads
def test_what_c_does_meanwhile_is_not_lost(make_device):
    """A function that is told something looks at the same queue when it uses the pool."""
    with cp.Pool("1MiB", device=make_device("512MiB"), growth="dynamic", max_capacity="500MiB") as pool:
        grown = []

        @pool.on_event
        def note(event):
            if event.kind == "grow":
                grown.append(event.nbytes)
            pool.defragment()

        def grow():
            for _ in range(100):
                assert C_ALLOC(pool.handle, 2 * MIB, None, ctypes.byref(ctypes.c_void_p())) == 0

        thread = threading.Thread(target=grow)
        thread.start()
        for _ in range(100):
            pool.alloc(2 * MIB)
        thread.join(60)
        wait_for(lambda: len(grown) == pool.stats().grow_count)


MANY = """
import sys, threading, cuda_pool as cp, cuda_pool._events
sys.setswitchinterval(1e-6)
device = cp.sim.Device("64MiB")
pools = [cp.Pool("4KiB", device=device) for _ in range(8)]
start = threading.Barrier(8)

def watch(pool):
    start.wait()
    pool.on_event(print)

threads = [threading.Thread(target=watch, args=(pool,)) for pool in pools]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sum(thread.name == "cuda_pool events" for thread in threading.enumerate()))
"""


@pytest.mark.threads
def test_one_thread_tells_however_many_ask_at_once(run_python):
    """With two of them the process would not end: each waits for what the other one was woken by."""
    for _ in range(5):
        done = run_python(MANY)
        assert done.returncode == 0 and done.stdout == "1\n", done.stderr


def test_a_forked_child_tells_nothing_of_its_parents_pools(make_device):
    """The call of the C interface keeps the GIL here, so that nobody can tell it before the fork."""
    pool, told = cp.Pool("2MiB", device=make_device("64MiB"), growth="dynamic"), []
    pool.on_event(lambda event: told.append(event.kind))
    alloc = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p,
                              ctypes.POINTER(ctypes.c_void_p))(capi.functions["cuda_pool_alloc"].address)

    def child():
        with cp.Pool("2MiB", device=cp.sim.Device("64MiB"), growth="dynamic") as own:
            seen = []
            own.on_event(lambda event: seen.append(event.kind))
            assert C_ALLOC(own.handle, 8 * MIB, None, ctypes.byref(ctypes.c_void_p())) == 0
            wait_for(lambda: seen == ["grow"])
            assert told == before

    assert alloc(pool.handle, 8 * MIB, None, ctypes.byref(ctypes.c_void_p())) == 0
    before = list(told)
    assert os.waitpid(forked(child), 0)[1] == 0
    wait_for(lambda: told == ["grow"])
    pool.close()


def test_another_pool_gives_way(make_device):
    device = make_device("64MiB")
    with (cp.Pool("2MiB", device=device, growth="dynamic", max_capacity="60MiB") as one,
          cp.Pool("2MiB", device=device, growth="dynamic", max_capacity="60MiB") as other):
        events = []
        other.on_event(events.append)
        other.free(other.alloc(40 * MIB))
        one.alloc(50 * MIB)
        assert [event.kind for event in events][-1] == "trim" and events[-1].pool is other


def test_phases(pool):
    events = []
    pool.on_event(lambda event: events.append((event.kind, event.phase)), phases=True)
    ptr = pool.alloc(8 * MIB)
    assert events == [("alloc", "begin"), ("grow", None), ("alloc", "end")]
    events.clear()
    pool.free(ptr)
    pool.free(pool.alloc(100))
    assert events == []
    pool.trim("4MiB")
    pool.defragment()
    assert events == [("trim", "begin"), ("trim", None), ("trim", "end"),
                      ("defragment", "begin"), ("defragment", None), ("defragment", "end")]
    events.clear()
    with pytest.raises(cp.OutOfMemoryError):
        pool.alloc("1GiB")
    assert events == [("alloc", "begin"), ("oom", None), ("alloc", "end")]


def test_a_callback_that_fails(pool, monkeypatch):
    """The others are called, and the allocation goes on."""
    raised, events = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: raised.append(unraisable.exc_value))
    pool.on_event(lambda event: 1 / 0)
    pool.on_event(events.append)
    assert pool.alloc(8 * MIB)
    assert [type(error) for error in raised] == [ZeroDivisionError] and len(events) == 1


def test_a_callback_that_uses_the_pool(pool):
    """What it does there is not told again, and the pool's locks are free."""
    events = []

    @pool.on_event
    def note(event):
        events.append((event.kind, pool.stats().grow_count))
        pool.free(pool.alloc(16 * MIB))
        pool.check()

    pool.alloc(8 * MIB)
    assert events == [("grow", 1)] and pool.stats().grow_count == 2
    pool.off_event(note)


def test_off(pool, seen):
    twice = []
    for _ in range(2):
        assert pool.on_event(twice.append) == twice.append
    pool.off_event(twice.append)
    pool.alloc(8 * MIB)
    assert len(twice) == 1 and len(seen) == 1
    pool.off_event(twice.append)
    with pytest.raises(ValueError, match="not registered"):
        pool.off_event(twice.append)
    with pytest.raises(TypeError, match="a callback takes an event"):
        pool.on_event(None)
    pool.alloc(30 * MIB)
    assert len(twice) == 1 and len(seen) == 2


def test_exit_with_callbacks(run_python):
    done = run_python("""
import cuda_pool as cp
pool = cp.Pool("2MiB", device=cp.sim.Device("64MiB"), growth="dynamic")
pool.on_event(print)
pool.alloc("8MiB")
""")
    assert done.returncode == 0 and done.stderr == "" and "kind='grow'" in done.stdout


def test_what_a_callback_raises_is_printed_once(run_python):
    done = run_python("""
import cuda_pool as cp
pool = cp.Pool("2MiB", device=cp.sim.Device("64MiB"), growth="dynamic", max_capacity="32MiB")
@pool.on_event
def note(event):
    raise LookupError("of mine")
pool.alloc("8MiB")
""")
    assert done.returncode == 0 and done.stderr.count("LookupError: of mine") == 1
    assert "<function note at " in done.stderr.splitlines()[0]
