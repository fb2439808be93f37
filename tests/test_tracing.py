"""Recording what a program allocates and frees: what is in the file, whatever happens to the program."""

import ctypes
import gzip
import json
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import cuda_pool as cp
from cuda_pool import _bench, capi, cli
from cuda_pool.trace import Trace

from .models import forked, optimised

KIB, MIB = 1 << 10, 1 << 20

C_ALLOC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p,
                           ctypes.POINTER(ctypes.c_void_p))(capi.functions["cuda_pool_alloc"].address)
C_FREE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(capi.functions["cuda_pool_free"].address)


@pytest.fixture
def pool(make_device):
    with cp.Pool("64MiB", device=make_device("256MiB")) as pool:
        yield pool
        pool.check()


def rows(trace):
    """Return the events of a trace, and the blocks that are live before them."""
    live = [("live", int(block["size"])) for block in trace.live]
    return live + [("free" if freed else "alloc", int(ident), int(size), int(stream)) for freed, ident, size, stream
                   in zip(trace.is_free, trace.id, trace.size, trace.stream)]


# What is in it

def test_every_kind_of_call_is_in_the_trace(pool, make_device):
    stream = pool.device.stream()
    with cp.record(pool) as tracing:
        a = pool.alloc(1000)
        b = pool.alloc("1MiB", stream)
        with pool.buffer(77):
            pass
        movable = pool.movable(300)
        c = ctypes.c_void_p()
        assert C_ALLOC(pool.handle, 500, 2, ctypes.byref(c)) == 0
        pool.free_async(b, stream)
        pool.free(a)
        movable.free()
        assert C_FREE(pool.handle, c) == 0
        trace = tracing.trace
    per_thread = int(trace.stream[5])
    assert per_thread >> 63 == 1
    assert rows(trace) == [
        ("alloc", 0, 1000, 0), ("alloc", 1, MIB, stream.handle), ("alloc", 2, 77, 0), ("free", 2, 77, 0),
        ("alloc", 3, 300, 0), ("alloc", 4, 500, per_thread), ("free", 1, MIB, stream.handle), ("free", 0, 1000, 0),
        ("free", 3, 300, 0), ("free", 4, 500, per_thread)]
    stream.destroy()


def test_calls_that_do_nothing_are_not(pool):
    with cp.record(pool) as tracing:
        pool.free(pool.alloc(0))
        pool.free_async(0)
        with pytest.raises(cp.OutOfMemoryError):
            pool.alloc("1GiB")
        for free in (pool.free, pool.free_async):
            with pytest.raises(cp.InvalidPointerError):
                free(123 << 40)
        with pytest.raises(ValueError):
            pool.alloc(1, alignment=3)
        assert tracing.trace.events == 0 and tracing.unknown == 0


@pytest.mark.parametrize("scrub", [False, True])
def test_a_free_that_is_refused_late_is_not_one_of_an_unknown_block(make_device, scrub):
    """The driver would be asked for a stream's name, or to overwrite the block."""
    with cp.Pool("4MiB", device=make_device("16MiB"), scrub=scrub) as pool:
        stream = pool.device.stream()
        ptr, movable = pool.alloc(700, stream.handle), pool.movable(20_000)
        with cp.record(pool) as tracing, movable.pin() as pinned:
            pool.free_async(ptr, stream.handle)
            for address in (ptr, ptr + 1, pinned):
                for free in (pool.free, lambda address: pool.free_async(address, stream.handle)):
                    with pytest.raises(cp.InvalidPointerError):
                        free(address)
            assert tracing.trace.events == 1 and tracing.unknown == 0
        movable.free()


def test_a_recording_that_has_just_begun_is_a_trace(pool):
    """The first one of a pool and the next: before the writer has come to anything."""
    kept = [pool.alloc(5000) for _ in range(3)]
    for _ in range(5):
        with cp.record(pool) as tracing:
            assert rows(tracing.trace) == 3 * [("live", 5000)]
    for ptr in kept:
        pool.free(ptr)


def test_blocks_that_are_live_at_the_beginning(pool):
    kept, freed = pool.alloc(700), pool.alloc(5000)
    movable = pool.movable(40_000)
    with cp.record(pool) as tracing:
        pool.free(freed)
        movable.free()
        trace = tracing.trace
    assert sorted(rows(trace)[:3]) == [("live", 700), ("live", 5000), ("live", 40_000)]
    assert [row[0] for row in rows(trace)[3:]] == ["free", "free"]
    assert trace.orphan_frees == 2 and trace.peak_live == 45_700
    pool.free(kept)


def test_a_movable_block_that_moves_is_one_block(pool):
    blocks = [pool.movable(MIB) for _ in range(16)]
    with cp.record(pool) as tracing:
        for block in blocks[::2]:
            block.free()
        assert pool.defragment().moved_blocks > 0
        for block in blocks[1::2]:
            block.free()
        trace = tracing.trace
    assert trace.events == 16 and trace.preexisting == 16 and len(set(trace.id.tolist())) == 16


def test_only_what_is_done_while_it_is_under_way(pool):
    before = pool.alloc(1)
    with cp.record(pool) as first:
        assert pool.tracing is first
        pool.free(pool.alloc(2))
    pool.free(pool.alloc(3))
    with cp.record(pool) as second:
        pool.free(before)
    assert pool.tracing is None
    assert rows(first.trace) == [("live", 1), ("alloc", 1, 2, 0), ("free", 1, 2, 0)]
    assert rows(second.trace) == [("live", 1), ("free", 0, 1, 0)]


@pytest.mark.parametrize("settings", [{}, {"scrub": True}, {"slab_max": 0}, {"growth": "dynamic"},
                                      {"backing": "virtual"}])
@pytest.mark.parametrize("size", ["256KiB", "64MiB"], ids=["without caches", "with caches"])
def test_random_program(make_device, settings, size):
    """What the trace says is live is live, in every kind of pool; pools below 1 MiB have no caches."""
    randomly = random.Random(1)
    device = make_device("256MiB", granularity="4KiB")
    streams = [device.stream(), device.stream(), 0]
    with cp.Pool(size, device=device, **settings) as pool, cp.record(pool) as tracing:
        live = {}
        for _ in range(1500):
            if live and randomly.random() < 0.5:
                ptr = randomly.choice(list(live))
                del live[ptr]
                if randomly.random() < 0.5:
                    pool.free(ptr)
                else:
                    pool.free_async(ptr, randomly.choice(streams))
            else:
                nbytes = int(2 ** randomly.uniform(0, 14))
                try:
                    live[pool.alloc(nbytes, randomly.choice(streams))] = nbytes
                except cp.OutOfMemoryError:
                    pass
        device.synchronize()
        pool.check()
        trace = tracing.trace
        assert tracing.unknown == tracing.lost == 0
        assert trace.orphan_frees == 0
        left = {}
        for freed, ident, nbytes in zip(trace.is_free.tolist(), trace.id.tolist(), trace.size.tolist()):
            if freed:
                assert left.pop(ident) == nbytes
            else:
                left[ident] = nbytes
        assert sorted(left.values()) == sorted(live.values())
        assert trace.peak_live == pool.stats().requested_high
    for stream in streams[:2]:
        stream.destroy()


@pytest.mark.threads
def test_round_trip_of_threads(make_device, tmp_path, capsys):
    """The recording of several threads is one that can be played, with the peaks that the pool had."""
    path, threads = tmp_path / "trace.csv.gz", 4
    barrier = threading.Barrier(threads)
    device = make_device("256MiB")

    def work(number):
        randomly, live = random.Random(number), []
        for _ in range(1500):
            if len(live) > 40:
                pool.free(live.pop(randomly.randrange(len(live))))
            live.append(pool.alloc(randomly.choice((64, 500, 5000, 100_000))))
        barrier.wait()
        high = pool.alloc("10MiB")                  # all of them together are the peak
        barrier.wait()
        stats = pool.stats()
        barrier.wait()
        for ptr in (high, *live):
            c = ctypes.c_void_p(ptr)
            assert C_FREE(pool.handle, c) == 0
        return stats.requested

    with cp.Pool("128MiB", device=device, trace=path) as pool, ThreadPoolExecutor(threads) as executor:
        peaks = set(executor.map(work, range(threads)))
        pool.check()
        counts = pool.stats()
        assert len(peaks) == 1 and counts.requested_high >= max(peaks)
    trace = Trace.read(path)
    assert trace.events == counts.alloc_count + counts.free_count and trace.orphan_frees == 0
    assert trace.peak_live == max(peaks)
    assert cli.main(["replay", str(path), "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["peak_requested"] == result["peak_live"] == max(peaks)
    assert result["events"] == trace.events and result["orphan_frees"] == 0


@pytest.mark.threads
def test_a_full_ring_is_waited_for(pool):
    """The loops put events into the ring faster than they can be written, with the GIL and without."""
    work = _bench.Workload.named("W1", 100_000)
    loop = _bench.PoolLoop(work, pool)
    with cp.record(pool) as tracing:
        loop.run()
        before = pool.stats().alloc_count
        assert before >= 100_000
        trace = tracing.trace
        assert tracing.lost == tracing.unknown == 0
        stats = pool.stats()
        assert trace.events == tracing.events == stats.alloc_count + stats.free_count


@pytest.mark.threads
def test_begun_and_ended_while_threads_go_on(pool):
    """Calls that are under way at the beginning may be left out, and are never half in it."""
    stop = threading.Event()

    def work():
        while not stop.is_set():
            for ptr in [pool.alloc(nbytes) for nbytes in (10, 1000, 50_000)]:
                pool.free(ptr)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        with cp.record(pool) as tracing:
            time.sleep(0.005)
        assert tracing.trace.orphan_frees <= tracing.trace.preexisting
        assert tracing.unknown <= 3
    stop.set()
    for thread in threads:
        thread.join()


# Files

@pytest.mark.parametrize("name, packed", [("t.csv", False), ("t.csv.gz", True), ("new name", False)])
def test_path(make_device, tmp_path, name, packed):
    path = tmp_path / name
    path.write_text("what was there")
    with cp.Pool("1MiB", device=make_device(), trace=path) as pool:
        pool.free(pool.alloc(5))
        assert path.read_text() == "what was there"
        assert rows(pool.tracing.trace) == [("alloc", 0, 5, 0), ("free", 0, 5, 0)]
        assert len(os.listdir(tmp_path)) == 2
    assert os.listdir(tmp_path) == [name]
    text = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    assert text == b"event,id,size,stream\nalloc,0,5,0\nfree,0,5,0\n"
    assert pool.tracing.closed and rows(pool.tracing.trace) == rows(Trace.read(path))


def test_save(pool, tmp_path):
    with cp.record(pool) as tracing:
        pool.alloc(5)
        tracing.save(tmp_path / "a.csv")
        pool.alloc(6)
    tracing.save(tmp_path / "b.csv.gz")
    assert Trace.read(tmp_path / "a.csv").events == 1 and Trace.read(tmp_path / "b.csv.gz").events == 2
    with pytest.raises(FileNotFoundError):
        tracing.save(tmp_path / "no" / "folder")


@pytest.mark.parametrize("use", [lambda pool, path: cp.record(pool, path),
                                 lambda pool, path: cp.Pool("1MiB", device=pool.device, trace=path)],
                         ids=["record", "Pool"])
@pytest.mark.parametrize("path, error", [
    (3, TypeError), (True, TypeError), (np.array([1, 2]), TypeError), (10**5000, TypeError),
    ("/no/folder/t.csv", FileNotFoundError), ("/", IsADirectoryError)], ids=lambda value: type(value).__name__)
def test_path_that_is_not_accepted(pool, use, path, error):
    live = dict(pool.device.live)
    with pytest.raises(error):
        use(pool, path)
    assert pool.tracing is None and pool.device.live == live


@pytest.mark.parametrize("stacks, error", [(-1, ValueError), (1001, ValueError), ("yes", TypeError),
                                           (None, TypeError), (1.5, TypeError)])
def test_stacks_that_are_not_accepted(pool, stacks, error):
    with pytest.raises(error, match="stacks is True, False or a number of frames"):
        cp.record(pool, stacks=stacks)


def test_stacks_without_a_trace(make_device):
    with pytest.raises(ValueError, match="stacks is for a pool that is recorded"):
        cp.Pool("1MiB", device=make_device(), stacks=True)


def test_one_recording_at_a_time(pool):
    with cp.record(pool):
        with pytest.raises(ValueError, match="recorded already"):
            cp.record(pool)
    cp.record(pool).close()
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        cp.record(pool)
    with pytest.raises(TypeError):
        cp.record(None)


VAIN = """
import resource, threading
import cuda_pool as cp
pool = cp.Pool("64MiB", device=cp.sim.Device("64MiB"))
going, refused = True, 0

def work():
    while going:
        pool.free(pool.alloc(1000))

worker = threading.Thread(target=work)
worker.start()
before = resource.getrlimit(resource.RLIMIT_AS)
for attempt in range(40):
    taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + (6 << 20), before[1]))      # a thread's stack needs 8 MiB
    try:
        cp.record(pool).close()
    except OSError as error:
        refused += "no thread can be started" in str(error)
    except MemoryError:
        pass
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
going = False
worker.join()
with cp.record(pool, "last.csv"):
    pool.free(pool.alloc(77))
print(refused)
"""


@optimised                      # a sanitizer takes terabytes of addresses
def test_what_was_noted_in_vain_is_not_the_next_recordings(run_python, tmp_path):
    """Nobody could write it, while another thread went on."""
    done = run_python(VAIN)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
    assert (tmp_path / "last.csv").read_text().splitlines() == ["event,id,size,stream", "alloc,0,77,0", "free,0,77,0"]


def test_a_pool_that_is_closed_first(make_device, tmp_path):
    pool = cp.Pool("1MiB", device=make_device())
    tracing = cp.record(pool, tmp_path / "t.csv")
    pool.alloc(1)
    pool.close()
    assert tracing.closed and Trace.read(tmp_path / "t.csv").events == 1
    tracing.close()


@pytest.mark.parametrize("drop", ["pool", "tracing"])
def test_what_nobody_closes(make_device, tmp_path, drop):
    """A pool that dies ends its recording; a recording that dies ends."""
    pool = cp.Pool("1MiB", device=make_device(), trace=tmp_path / "t.csv" if drop == "pool" else None)
    tracing = pool.tracing or cp.record(pool, tmp_path / "t.csv")
    pool.alloc(9)
    del tracing
    if drop == "pool":
        del pool
    assert Trace.read(tmp_path / "t.csv").events == 1 and os.listdir(tmp_path) == ["t.csv"]


def test_a_device_that_is_full(make_device):
    """What is no regular file is written at the end."""
    pool = cp.Pool("1MiB", device=make_device(), trace="/dev/full")
    pool.alloc(1)
    with pytest.raises(OSError, match="No space left"):
        pool.close()
    assert pool.closed and pool.tracing.trace.events == 1


LIMITED = """
import os, resource, signal, cuda_pool as cp
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
pool = cp.Pool("1MiB", device=cp.sim.Device("64MiB"), trace="t.csv.gz")
for _ in range(3):
    for _ in range(2000):
        pool.free(pool.alloc(1))
    try:
        pool.tracing.trace
    except OSError:
        pass
tracing = pool.tracing
pool.check()
try:
    pool.close()
except OSError as error:
    print(error)
print(pool.closed, tracing.events, tracing.lost)
"""


def test_rows_of_live_blocks_that_cannot_be_written_are_counted(run_python):
    done = run_python("""
import resource, signal, cuda_pool as cp
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
pool = cp.Pool("64MiB", device=cp.sim.Device("128MiB"))
kept = [pool.alloc(256) for _ in range(20_000)]
tracing = cp.record(pool, "t.csv")
try:
    tracing.close()
except OSError:
    print(tracing.lost + open("t.csv.part").read().count("live"))
""")
    assert done.stdout == "20000\n", done.stderr


def test_a_file_that_gets_too_large(run_python, tmp_path):
    done = run_python(LIMITED)
    assert done.returncode == 0, done.stderr
    message, last = done.stdout.splitlines()
    closed, events, lost = last.split()
    part = Trace.read(tmp_path / "t.csv.gz.part")
    assert message.startswith("[Errno 27] File too large: the recording lacks ") and "t.csv.gz.part" in message
    assert closed == "True" and int(events) == 12_000 == part.events + int(lost)
    assert not (tmp_path / "t.csv.gz").exists()


CRASH = """
import os, signal, time, cuda_pool as cp
pool = cp.Pool("1MiB", device=cp.sim.Device("64MiB"), trace="t.csv.gz")
for _ in range(1000):
    pool.free(pool.alloc(1))
time.sleep({})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_crash_leaves_what_was_written(run_python, tmp_path):
    assert run_python(CRASH.format(1)).returncode == -9
    assert Trace.read(tmp_path / "t.csv.gz.part").events == 2000


EXIT = """
import atexit, sys, cuda_pool as cp
atexit.register(lambda: pool.free(ptr))
pool = cp.Pool("1MiB", device=cp.sim.Device("64MiB"), trace="t.csv.gz")
ptr = pool.alloc(1)
sys.exit(3)
"""


def test_an_exit_loses_nothing(run_python, tmp_path):
    done = run_python(EXIT)
    assert done.returncode == 3 and done.stderr == ""
    assert Trace.read(tmp_path / "t.csv.gz").events == 2 and os.listdir(tmp_path) == ["t.csv.gz"]


def test_an_exit_says_what_it_could_not_write(run_python):
    done = run_python(EXIT.replace("t.csv.gz", "/dev/full"))
    assert done.returncode == 3 and "No space left" in done.stderr


def test_fork(make_device, tmp_path):
    pool = cp.Pool("1MiB", device=make_device(), trace=tmp_path / "t.csv")
    pool.alloc(1)
    tracing = pool.tracing

    def child():
        for use in (lambda: pool.alloc(1), lambda: tracing.trace, lambda: tracing.save(tmp_path / "c.csv")):
            with pytest.raises(RuntimeError, match="belongs to the parent"):
                use()
        tracing.close()
        pool.close()

    assert os.waitpid(forked(child), 0)[1] == 0
    pool.alloc(2)
    pool.close()
    assert Trace.read(tmp_path / "t.csv").events == 2 and os.listdir(tmp_path) == ["t.csv"]


def test_two_recordings_do_not_share_a_file(make_device, tmp_path):
    path = tmp_path / "t.csv"
    device = make_device("256MiB")
    with cp.Pool("1MiB", device=device, trace=path) as one:
        one.alloc(10)
        with pytest.raises(BlockingIOError, match="another recording is written there"):
            cp.Pool("1MiB", device=device, trace=path)
        with pytest.raises(BlockingIOError), cp.Pool("1MiB", device=device) as other:
            cp.record(other, path)
        one.alloc(20)
    assert [size for _, _, size, _ in rows(Trace.read(path))] == [10, 20]
    assert os.listdir(tmp_path) == ["t.csv"]
    with cp.Pool("1MiB", device=device, trace=path):
        pass
    assert Trace.read(path).events == 0


def test_another_process_does_not_take_the_file(make_device, run_python, tmp_path):
    program = 'import cuda_pool as cp; cp.Pool("1MiB", device=cp.sim.Device("64MiB"), trace="t.csv.gz")'
    with cp.Pool("1MiB", device=make_device("64MiB"), trace=tmp_path / "t.csv.gz") as pool:
        pool.alloc(10)
        done = run_python(program)
        assert done.returncode == 1 and "another recording is written there: " in done.stderr
    assert Trace.read(tmp_path / "t.csv.gz").events == 1
    assert run_python(program).returncode == 0


def test_a_new_recording_empties_what_a_crash_has_left(run_python, tmp_path):
    assert run_python(CRASH.format(1)).returncode == -9
    assert run_python(EMPTY).returncode == 0
    assert Trace.read(tmp_path / "t.csv.gz").events == 0 and not (tmp_path / "t.csv.gz.part").exists()


EMPTY = 'import cuda_pool as cp; cp.Pool("1MiB", device=cp.sim.Device("64MiB"), trace="t.csv.gz").close()'


def test_a_path_without_a_name(make_device, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        cp.Pool("1MiB", device=make_device("64MiB"), trace="")
    assert not list(tmp_path.parent.glob("*.part"))


ORPHAN = """
import os, signal, time, cuda_pool as cp
pool = cp.Pool("1MiB", device=cp.sim.Device("64MiB"), trace="t.csv.gz")
child = os.fork()
if child == 0:
    os.closerange(0, 3)
    time.sleep(60)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_child_does_not_keep_the_file_of_a_parent_that_crashed(run_python):
    crashed = run_python(ORPHAN)
    try:
        assert crashed.returncode == -9
        done = run_python(EMPTY)
        assert done.returncode == 0, done.stderr
    finally:
        os.kill(int(crashed.stdout), 9)
