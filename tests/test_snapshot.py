"""Snapshots: that blocks tile the memory, agree with the statistics, and come back from a file."""

import dataclasses
import gzip
import json
import random

import pytest

import cuda_pool as cp
from cuda_pool import snapshot as snapshots
from cuda_pool.snapshot import FIELDS, FILE_MAX, STATES, Block, Segment, Snapshot, Stream

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
    (changed(["reserved"], 1).replace('"reserved": 1', '"reserved": NaN'), "NaN is no number"),
    (changed(["reserved"], 1).replace('"reserved": 1', '"reserved": ' + "9" * 5000), "too large"),
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
    assert FILE_MAX == 1 << 30
    monkeypatch.setattr(snapshots, "SNAPSHOT", dataclasses.replace(snapshots.SNAPSHOT, bytes_max=100))
    path = tmp_path / "long.json"
    small().save(path)
    with pytest.raises(cp.SnapshotError, match="at most"):
        Snapshot.load(path)


def test_unknown_keys_are_passed_over(tmp_path):
    values = {**small().as_dict(), "colour": "blue"}
    assert Snapshot.from_dict(values) == small()
