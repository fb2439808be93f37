"""Snapshots: that blocks tile the memory, agree with the statistics, and come back from a file."""

import dataclasses
import gzip
import json
import pickle
import random
import re

import pytest

import cuda_pool as cp
from cuda_pool import snapshot as snapshots
from cuda_pool.readers import read_snapshot
from cuda_pool.snapshot import FIELDS, FILE_MAX, STATES, Block, Segment, Snapshot, Stream
from cuda_pool.torch_format import ALLOCATED, INACTIVE, PENDING, segments_of
from cuda_pool.trace import read_trace

from .models import GROWING, POOLS, VIRTUAL_POOLS

MIB = 1 << 20
GROWING_PAGES = {f"{name}_pages": (capacity, {**settings, "backing": "virtual"})
                 for name, (capacity, settings) in GROWING.items() if "release_threshold" not in settings}
ALL_POOLS = {**POOLS, **VIRTUAL_POOLS, **GROWING, **GROWING_PAGES}
SIZES = (1, 100, 256, 700, 5000, 30_000, 200_000, 700_000)


def audited(pool, live):
    """Return the snapshot of a pool; it must say what the statistics say, and name the live blocks."""
    snapshot, stats = pool.snapshot(), pool.stats()
    for name in ("capacity", "reserved", "used", "requested", "pending", "free", "largest_free"):
        assert getattr(snapshot, name) == getattr(stats, name), name
    for tier in ("slab", "mid", "buddy"):
        blocks = [block for block in snapshot.blocks if block.state == "live" and block.tier == tier]
        counted = getattr(stats, tier)
        assert (len(blocks), sum(block.size for block in blocks)) == (counted.blocks, counted.used)
    assert {block.address: block.requested for block in snapshot.blocks if block.state == "live"} == live
    return snapshot


def play(pool, streams, steps, seed):
    """Allocate and free at random; yield the live blocks after each step."""
    rng, live, home = random.Random(seed), {}, {}
    for _ in range(steps):
        if live and rng.random() < 0.45:
            ptr = rng.choice(list(live))
            del live[ptr]
            if rng.random() < 0.4:
                pool.free(ptr)
            else:
                pool.free_async(ptr, rng.choice((home[ptr], home[ptr], rng.choice(streams))))
        else:
            size, stream = rng.choice(SIZES), rng.choice(streams)
            try:
                ptr = pool.alloc(size, stream)
            except cp.OutOfMemoryError:
                continue
            live[ptr], home[ptr] = size, stream
        yield dict(live)


@pytest.mark.parametrize("name", list(ALL_POOLS))
def test_blocks_tile_the_memory_and_add_up_to_the_statistics(name, make_device):
    capacity, settings = ALL_POOLS[name]
    device = make_device("64MiB", granularity="4KiB")
    streams = [0, *(device.stream() for _ in range(2))]
    with cp.Pool(capacity, device=device, **settings) as pool:
        audited(pool, {})
        for step, live in enumerate(play(pool, streams, 160, seed=1)):
            if step % 4 == 0:
                audited(pool, live)
        pool.check()


def test_every_state_but_busy_is_seen(make_device):
    device = make_device("1GiB", granularity="64KiB")
    stream, seen = device.stream(), set()
    for backing in "malloc", "virtual":
        with cp.Pool("1MiB", device=device, backing=backing, growth="predictive", max_capacity="256MiB") as pool:
            for _ in play(pool, (0, stream), 400, seed=3):
                seen |= {block.state for block in pool.snapshot().blocks}
    with cp.Pool("16MiB", device=device, growth="predictive", max_capacity="16MiB",
                 profile=cp.Profile(MIB, MIB, MIB, 1, [[(256, 20_000), (5120, 1)]], [], {
                     "slab_max": 16384, "mid_max": 1 << 30, "min_block": 65536}, "a test")) as pool:
        pool.free(pool.alloc(100))
        seen |= {block.state for block in pool.snapshot().blocks}
    assert seen == set(STATES) - {"busy"}


def test_a_snapshot_names_streams_tiers_and_movable_blocks(make_device):
    device = make_device()
    stream = device.stream()
    with cp.Pool("16MiB", device=device, mid_max="1MiB") as pool:
        small, middle, large = pool.alloc(100, stream), pool.alloc(100_000), pool.alloc(3 * MIB)
        movable = pool.movable(300_000, stream)
        blocks = {block.address: block for block in pool.snapshot().blocks if block.state == "live"}
        streams = pool.snapshot().streams
        assert [blocks[ptr].tier for ptr in (small, middle, large)] == ["slab", "mid", "buddy"]
        assert streams[blocks[small].stream][:2] == (stream.handle, stream.id)
        assert streams[0].kind == "default" and blocks[middle].stream is None
        assert [block.requested for block in blocks.values() if block.movable] == [300_000]
        movable.free()


def test_held_blocks_are_pending(make_device):
    device = make_device()
    one, other = device.stream(), device.stream()
    with cp.Pool("4MiB", device=device) as pool:
        kept, slot, block = pool.alloc(100, one), pool.alloc(100, one), pool.alloc(100_000, one)
        for ptr in slot, block:
            pool.record_use(ptr, other)
            pool.free_async(ptr, one)
        states = {found.address: found.state for found in audited(pool, {kept: 100}).blocks}
        assert states[slot] == states[block] == "pending"


def test_a_closed_pool_has_no_snapshot(make_device):
    pool = cp.Pool("1MiB", device=make_device())
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        pool.snapshot()


@pytest.mark.gpu
def test_snapshot_on_a_device(cuda_device):
    with cp.Pool("64MiB", device=cuda_device) as pool:
        for live in play(pool, (0,), 40, seed=2):
            audited(pool, live)


# The file

def small():
    blocks = (Block(4096, 256, 100, "live", "slab", 0, 7), Block(4352, 768, 0, "free", "slab"),
              Block(5120, 3072, 0, "pending", "mid", 1, None, False))
    return Snapshot("malloc", 1 << 20, 8192, 0, 3072, 0, 256, (Stream(0, 1, "default"), Stream(99, 7, "handle")),
                    (Segment(4096, 4096, blocks), Segment(1 << 47, 256, (
                        Block(1 << 47, 256, 200, "live", "buddy", 1, 9, True),))), "a test")


@pytest.mark.parametrize("name", ["s.json", "s.json.gz"])
def test_what_is_saved_is_loaded(name, tmp_path):
    small().save(tmp_path / name)
    assert Snapshot.load(tmp_path / name) == small()
    assert (tmp_path / name).read_bytes()[:2] == (b"\x1f\x8b" if name.endswith("gz") else b'{"')


def test_a_pool_comes_back(tmp_path, make_device):
    with cp.Pool("4MiB", device=make_device()) as pool:
        pool.free_async(pool.alloc(1000))
        kept = pool.alloc(70_000)
        pool.snapshot().save(tmp_path / "pool.json.gz")
        loaded = Snapshot.load(tmp_path / "pool.json.gz")
        assert loaded == pool.snapshot() and kept in {block.address for block in loaded.blocks}


def changed(path, value):
    values = small().as_dict()
    at = values
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return json.dumps(values)


ROW = ("segments", 0, "blocks", 0)


@pytest.mark.parametrize("text, message", [
    ("", "no JSON"), ("[]", "no snapshot"), ("{}", "no snapshot"), ("[" * 100_000, "too deeply|no JSON"),
    (changed(["version"], 2), "version is 1"), (changed(["backing"], "paper"), "malloc, virtual"),
    (changed(["reserved"], -1), "reserved is an integer"), (changed(["page"], 1.5), "page is an integer"),
    (changed(["capacity"], True), "capacity is an integer"), (changed(["fields"], list(FIELDS[::-1])), "fields is"),
    (changed(["streams"], {}), "streams is a list"), (changed(["streams", 0], {"handle": 1}), "has no id"),
    (changed(["segments", 0, "size"], 5), "tile|its size"), (changed(["segments", 0, "address"], 1 << 47), "overlap"),
    (changed([*ROW, 0], 0), "has no size"), (changed([*ROW, 0], "1"), "size is an integer"),
    (changed([*ROW, 1], 257), "from 0 to 256"), (changed([*ROW, 2], "lost"), "state is one of live"),
    (changed([*ROW, 3], "huge"), "tier is one of slab"), (changed([*ROW, 4], 2), "index of streams"),
    (changed([*ROW, 5], -1), "allocation is an integer"), (changed([*ROW, 6], 1), "true or false"),
    (changed(ROW, [1, 2]), "list of 7 values"),
    (changed(["reserved"], 1).replace('"reserved": 1', '"reserved": NaN'), "'NaN' is no number"),
    (changed(["reserved"], 1).replace('"reserved": 1', '"reserved": ' + "9" * 5000), "is no number that is accepted"),
    (json.dumps({key: value for key, value in small().as_dict().items() if key != "segments"}), "no segments"),
])
def test_a_damaged_file_is_refused_with_what_is_accepted(text, message, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(cp.SnapshotError, match=message) as caught:
        Snapshot.load(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_cut_off_or_no_text_is_refused(tmp_path):
    path = tmp_path / "cut.json.gz"
    small().save(path)
    whole = path.read_bytes()
    for data in whole[:-9], whole[:20], gzip.compress(b"\xff\xfe"), b"\x80":
        path.write_bytes(data)
        with pytest.raises(cp.SnapshotError):
            Snapshot.load(path)


def test_a_file_that_is_too_long_is_refused(tmp_path, monkeypatch):
    assert FILE_MAX == 48 << 20
    monkeypatch.setattr(snapshots, "SNAPSHOT", dataclasses.replace(snapshots.SNAPSHOT, bytes_max=100))
    path = tmp_path / "long.json"
    path.write_text(json.dumps(small().as_dict()))
    with pytest.raises(ValueError, match="a file holds at most 100 B"):
        small().save(tmp_path / "other.json")
    assert not (tmp_path / "other.json").exists()
    with pytest.raises(cp.SnapshotError, match="at most"):
        Snapshot.load(path)


def test_unknown_keys_are_passed_over(tmp_path):
    values = {**small().as_dict(), "colour": "blue"}
    assert Snapshot.from_dict(values) == small()


# In PyTorch's format

def requested_now(snapshot):
    return {block.address: block.requested for block in snapshot.blocks if block.state == "live"}


@pytest.mark.parametrize("name", list(ALL_POOLS))
def test_a_pickle_says_what_the_snapshot_does(name, tmp_path, make_device):
    capacity, settings = ALL_POOLS[name]
    device, path = make_device("64MiB", granularity="4KiB", ordinal=2), tmp_path / "pool.pickle"
    streams = [0, *(device.stream() for _ in range(2))]
    with cp.Pool(capacity, device=device, **settings) as pool:
        for step, _ in enumerate(play(pool, streams, 120, seed=5)):
            if step % 12:
                continue
            snapshot = pool.snapshot()
            snapshot.save(path)
            segments = read_snapshot(path).segments         # which checks that blocks tile them, and every sum
            blocks = [block for segment in segments for block in segment.blocks]
            live = [block for block in blocks if block.state == ALLOCATED]
            assert {block.address: block.requested_size for block in live} == requested_now(snapshot)
            assert sum(block.size for block in live) == snapshot.used
            held = sum(segment.total_size for segment in segments)
            assert held == sum(block.size for block in snapshot.blocks if block.state != "unmapped")
            assert held <= snapshot.reserved - snapshot.spare
            without_memory = sum(block.size for block in snapshot.blocks
                                 if block.state == "unmapped" and block.stream is not None)
            assert sum(block.size for block in blocks if block.state == PENDING) == snapshot.pending - without_memory
            assert {segment.device for segment in segments} <= {2} and snapshot.device == 2
            assert all(segment.is_expandable == (settings.get("backing") == "virtual") for segment in segments)


def test_a_segment_of_one_stream_is_its(tmp_path):
    small().save(tmp_path / "s.pkl")
    mixed, own = read_snapshot(tmp_path / "s.pkl").segments
    assert (mixed.stream, own.stream) == (0, 99)
    assert [block.state for block in mixed.blocks] == [ALLOCATED, INACTIVE, PENDING]


def test_a_saved_pool_is_a_trace_of_its_live_blocks(tmp_path, make_device):
    with cp.Pool("4MiB", device=make_device()) as pool:
        kept = [pool.alloc(nbytes) for nbytes in (100, 70_000, 300_000)]
        pool.free(pool.alloc(5000))
        pool.snapshot().save(tmp_path / "pool.pickle")
        assert kept
    trace = read_trace(tmp_path / "pool.pickle")
    assert (trace.preexisting, trace.peak_live, trace.events) == (3, 370_100, 0)


def test_a_device_that_pytorch_has_no_number_for(tmp_path):
    snapshot = dataclasses.replace(small(), device=1024)
    with pytest.raises(ValueError, match="1024 is no number of a device"):
        snapshot.save(tmp_path / "s.pickle")
    assert list(tmp_path.iterdir()) == []
    snapshot.save(tmp_path / "s.json")
    assert Snapshot.load(tmp_path / "s.json").device == 1024
    assert Snapshot.from_dict({key: value for key, value in snapshot.as_dict().items() if key != "device"}).device == 0


@pytest.mark.parametrize("backing", ["malloc", "virtual"])
def test_pytorch_opens_the_pickle(tmp_path, make_device, memory_viz, backing):
    device = make_device("1GiB")
    with cp.Pool("256MiB", device=device, backing=backing) as pool:
        for _ in play(pool, (0, device.stream()), 500, seed=6):
            pass
        pool.alloc("48MiB")
        snapshot = pool.snapshot()
        snapshot.save(tmp_path / "pool.pickle")
    found = pickle.loads((tmp_path / "pool.pickle").read_bytes())
    totals = dict(re.findall(r"^(total_\w+|segments): (\S+)", memory_viz.segsum(found), re.M))
    assert totals["segments"] == str(len(segments_of(snapshot)))
    assert totals["total_reserved"] == in_words(snapshot.reserved - snapshot.spare)
    assert totals["total_allocated"] == in_words(snapshot.requested)
    counted = dict.fromkeys((ALLOCATED, PENDING, INACTIVE), 0)
    for state, size in re.findall(r";(\w+);<non-python> (\d+)$", memory_viz.memory(found, str), re.M):
        counted[state] += int(size)
    assert counted[ALLOCATED] == snapshot.requested
    assert memory_viz.trace(found) == ""
    for page in (memory_viz.trace_plot(found), memory_viz.segment_plot(found)):
        assert "add_local_files" in page


def in_words(nbytes):
    """A size as PyTorch writes it."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.1f}{unit}"
        nbytes /= 1024
    return f"{nbytes:.1f}GiB"
