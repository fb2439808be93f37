"""Peers' policies, and the comparison with this pool."""

import json
import random
from pathlib import Path

import pytest

from cuda_pool.cli import main
from cuda_pool.compare import POOLS, compare
from cuda_pool.peers import POLICIES, BestFit, Buddy, FreeBlocks, PyTorch, peak_reserved, play
from cuda_pool.readers import read_snapshot
from cuda_pool.trace import Trace, read_trace

from .snapshots import SHAPES, pickled

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
MIB = 1 << 20
KIB = 1 << 10
TRACES = ("bert_serve_4stream", "gpt2_124m_train", "gpu_transformer_step", "gpu_zeroth_order", "llama_kv_cat_decode",
          "llama_serve_growing_kv", "moe_train_dynamic", "plan_pangu_2p6b", "resnet50_b64_train",
          "vit_b16_prefetch_2stream")


def trace_of(*events):
    """A trace of (size or -block, stream) pairs; blocks are numbered in the order of their allocation."""
    rows, sizes = [], []
    for number, stream in events:
        if number >= 0:
            rows.append(("alloc", len(sizes), number, stream))
            sizes.append(number)
        else:
            rows.append(("free", -number - 1, sizes[-number - 1], stream))
    return Trace.from_events(rows)


def reserved(*events, stream=0):
    """What each policy reserves for sizes, and negative numbers of blocks from 1 that are freed."""
    trace = trace_of(*((number, stream) for number in events))
    return {policy: peak_reserved(trace, policy) for policy in POLICIES}


def test_one_small_block():
    assert reserved(1) == {"pytorch": 2 * MIB, "pytorch_expandable": 2 * MIB, "cupy": 512, "coalescing_best_fit": 256,
                           "buddy_power_of_two": 4096}


def test_nothing():
    assert set(reserved().values()) == set(reserved(0).values()) == {0}


@pytest.mark.parametrize("size, pytorch, expandable", [
    (MIB, 2 * MIB, 2 * MIB), (MIB + 1, 20 * MIB, 20 * MIB), (10 * MIB - 512, 20 * MIB, 20 * MIB),
    (10 * MIB - 511, 10 * MIB, 20 * MIB), (21 * MIB, 22 * MIB, 40 * MIB)])
def test_segments_of_pytorch(size, pytorch, expandable):
    found = reserved(size)
    assert (found["pytorch"], found["pytorch_expandable"]) == (pytorch, expandable)


def test_large_segments_are_split_only_for_more_than_a_mebibyte():
    assert reserved(9 * MIB, 10 * MIB, MIB + 1)["pytorch"] == 40 * MIB      # a rest of 1 MiB stays with its block
    assert reserved(9 * MIB, 9 * MIB, MIB + 1)["pytorch"] == 20 * MIB


def test_small_and_large_blocks_are_apart():
    assert reserved(2 * MIB, 512)["pytorch"] == 22 * MIB
    assert reserved(2 * MIB, 512)["pytorch_expandable"] == 22 * MIB


def test_expandable_segment_grows_beside_its_free_end():
    assert reserved(15 * MIB, 10 * MIB, -2, 20 * MIB)["pytorch_expandable"] == 40 * MIB


def test_end_of_an_expandable_segment_is_taken_last():
    """After a block in its middle was freed, that is taken, although the rest at the end fits better."""
    free = FreeBlocks()
    free.add(0, 4096)
    free.add(8192, 1024)
    assert free.take_but(512, 9216) == (0, 4096)
    assert free.take_but(512, 9216) == (8192, 1024)
    assert free.take_but(512, 9216) is None


def test_streams_are_kept_apart_where_they_are():
    one = trace_of((4 * MIB, 0), (-1, 0), (4 * MIB, 0))
    two = trace_of((4 * MIB, 0), (-1, 0), (4 * MIB, 7))
    for policy in POLICIES:
        factor = 1 if policy in ("coalescing_best_fit", "buddy_power_of_two") else 2
        assert peak_reserved(two, policy) == factor * peak_reserved(one, policy)


def test_best_fit_takes_the_smallest_and_merges():
    found = BestFit()
    blocks = [found.alloc(size * KIB, 0) for size in (8, 1, 4, 1, 16, 1)]
    for block in (blocks[0], blocks[2], blocks[4]):
        found.free(block)
    assert found.alloc(3 * KIB, 0) == blocks[2] and found.reserved == 31 * KIB
    found.free(blocks[3])
    assert found.alloc(18 * KIB, 0)[1] == 12 * KIB        # what is left of the 4, the 1, and the 16


def test_buddy_is_halved_and_merged():
    found = Buddy()
    one, two, three = (found.alloc(4096, 0) for _ in range(3))
    assert (one, two, three) == (0, 4096, 8192)
    assert found.alloc(5000, 0) == 16384 and found.reserved == 24576
    found.free(one)
    found.free(two)
    assert found.alloc(8192, 0) == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_blocks_never_overlap(policy):
    """Random allocations; a policy's places are distinct ranges, and its own figure bounds them."""
    source, allocator = random.Random(5), POLICIES[policy]()
    live, requested = {}, 0
    for _ in range(4000):
        if live and source.random() < 0.5:
            place = source.choice(list(live))
            requested -= live.pop(place)
            allocator.free(place)
        else:
            size = int(2 ** source.uniform(0, 26))
            place = allocator.alloc(size, source.randrange(3))
            assert place not in live
            live[place] = size
            requested += size
            assert requested <= allocator.reserved
    keys = {}
    for place, size in live.items():
        key, address = place if isinstance(place, tuple) else (None, place)
        keys.setdefault(key, []).append((address, size))
    for spans in keys.values():
        spans.sort()
        assert all(a + size <= b for (a, size), (b, _) in zip(spans, spans[1:]))


def test_blocks_before_the_first_event_are_placed_first(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_bytes(b"event,id,size,stream\nlive,9,3000000,2\nfree,8,5000000,1\nalloc,1,5000000,1\n")
    trace = read_trace(path)
    assert play(trace, PyTorch()).reserved == 40 * MIB
    assert peak_reserved(trace, "coalescing_best_fit") == 3_000_064 + 5_000_192


def test_unknown_policy():
    with pytest.raises(ValueError, match="'tlsf' is no policy: expected pytorch, "):
        peak_reserved(trace_of(), "tlsf")


@pytest.mark.parametrize("name", TRACES)
def test_figures_that_were_published_with_the_traces(shared_path, name):
    published = json.loads(shared_path("traces", "peers.json").read_text())[name]
    trace = read_trace(shared_path("traces", f"{name}.csv.gz"))
    for policy, ratio in published["peak_reserved_over_peak_live"].items():
        assert peak_reserved(trace, policy) / trace.peak_live == pytest.approx(ratio, rel=0.0005)


@pytest.mark.parametrize("name", ["train_step_amp", "inference_truncated_ring"])
def test_pytorch_reserves_what_it_did_when_the_snapshot_was_taken(shared_path, name):
    path = shared_path("snapshots", f"{name}.pickle")
    snapshot = read_snapshot(path)
    assert peak_reserved(read_trace(path), "pytorch") == sum(each.total_size for each in snapshot.segments)


def test_compare():
    trace = read_trace(EXAMPLES / "resnet50_b64_train.csv.gz")
    seen = []
    rows = compare(trace, progress=lambda done, total: seen.append((done, total)))
    assert [row.policy for row in rows] == [*POOLS, *POLICIES]
    assert seen == sorted(seen) and {(done, 9) for done in range(1, 10)} < set(seen) and seen[-1] == (9, 9)
    for row in rows:
        assert row.ratio == row.peak_reserved / trace.peak_live >= 1 and row.failed_row is None
    assert rows[1].peak_reserved < rows[4].peak_reserved


def test_compare_on_the_command_line(tmp_path, capsys):
    short = tmp_path / "short.csv"
    short.write_bytes(b"event,id,size,stream\nalloc,1,3000000,0\nfree,1,3000000,0\nalloc,2,3000000,1\n")
    empty = tmp_path / "empty.csv"
    empty.write_bytes(b"event,id,size,stream\n")
    assert main(["compare", str(short), str(empty), "--lag", "10"]) == 0
    text = capsys.readouterr().out
    assert text.count("pytorch_expandable") == 2 and "10 events behind" in text and "no GPU involved" in text
    assert main(["compare", str(short), str(empty), "--json", "-"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert main(["compare", str(short), str(short)]) == 0
    text = capsys.readouterr().out
    assert text.count("pytorch_expandable") == 2 and text.count("2.86 MiB (3000000 bytes)") == 2
    assert len(values["rows"]) == 18 and set(values["rows"][0]) == {"trace", "policy", "peak_reserved", "ratio",
                                                                   "failed_row"}
    assert values["traces"][0]["peak_live"] == 3_000_000 and values["rows"][-1]["ratio"] is None
    assert main(["compare", str(short), str(tmp_path / "none.csv")]) == 2
    assert main(["compare", str(short), "--json", str(short)]) == 2


def test_compare_names_the_file_of_a_note(tmp_path, capsys):
    for name in "one.pickle", "other.pickle":
        (tmp_path / name).write_bytes(pickled(SHAPES["two_devices"]()))
    assert main(["compare", str(tmp_path / "one.pickle"), str(tmp_path / "other.pickle")]) == 0
    assert f"{tmp_path / 'other.pickle'}: device 2 of the snapshot" in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "one.pickle"), "--trace-device", "7"]) == 2
    assert capsys.readouterr().err.startswith(f"cuda-pool: {tmp_path / 'one.pickle'}: nothing of device 7")


def test_compare_when_no_pool_can_serve(tmp_path, capsys):
    path = tmp_path / "huge.csv"
    path.write_bytes(b"event,id,size,stream\nalloc,1,100,0\nalloc,2,9000000000000000000,0\n")
    assert main(["compare", str(path)]) == 1
    assert "FAILED at row 3" in capsys.readouterr().out
