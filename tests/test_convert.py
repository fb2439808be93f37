"""Converting traces between formats: there and back, what is lost, and what PyTorch's own tools make of it."""

import gzip
import json
import os
import pickle
import pickletools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_pool import Pool
from cuda_pool.cli import main
from cuda_pool.convert import FORMATS, convert, format_of
from cuda_pool.readers import read_snapshot
from cuda_pool.torch_format import INACTIVE, Block, Entry, Segment, write_snapshot
from cuda_pool.trace import Trace, read_trace

from .models import optimised
from .snapshots import SHAPES, pickled

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
HEADER = b"event,id,size,stream\n"
SUFFIX = {"csv": ".csv", "torch": ".pickle", "rmm": ".log"}
ODD = HEADER + (b"live,50,777,3\nlive,51,1,0\nalloc,7,1000,0\nalloc,8,0,1\nfree,60,4096,2\nfree,7,1000,0\n"
                b"free,7,1000,0\nfree,61,0,0\nalloc,9,123456789,18446744073709551615\nfree,8,0,0\n")


def picture(trace):
    """What is the same in traces that differ only in how blocks are called: kinds, sizes, streams, and who is who."""
    live = sorted((size, stream) for size, stream, *_ in trace.live.tolist())
    names = {}
    blocks = [names.setdefault(block, len(names)) for block in trace.block.tolist()]
    return (live, trace.is_free.tolist(), trace.is_orphan.tolist(), trace.size.tolist(), trace.stream.tolist(), blocks,
            trace.peak_live, trace.preexisting, trace.preexisting_bytes, trace.orphan_frees)


@st.composite
def tame_traces(draw):
    """Traces that every format can hold: blocks from before are freed, and each free is of a live block."""
    rows, live = [], {}
    for ident in range(draw(st.integers(0, 3))):
        live[100 + ident] = draw(st.integers(1, 2**40))
    for ident in range(draw(st.integers(0, 12))):
        size = draw(st.integers(0, 2**40) | st.just(0))
        rows.append(("alloc", ident, size, draw(st.integers(0, 3))))
        live[ident] = size
        while live and draw(st.booleans()):
            freed = draw(st.sampled_from(sorted(live)))
            rows.append(("free", freed, live.pop(freed), draw(st.integers(0, 3))))
    rows += [("free", ident, size, 0) for ident, size in live.items() if ident >= 100]
    return Trace.from_events(rows)


@settings(max_examples=60)
@given(trace=tame_traces(), to=st.sampled_from(FORMATS), further=st.sampled_from(FORMATS))
def test_there_and_back(tmp_path_factory, trace, to, further):
    folder = tmp_path_factory.mktemp("convert")
    path = folder / f"one{SUFFIX[to]}"
    assert convert(trace, path) == []
    once = read_trace(path)
    assert once.format == to and picture(once) == picture(trace)
    assert convert(once, folder / f"two{SUFFIX[further]}") == []
    assert picture(read_trace(folder / f"two{SUFFIX[further]}")) == picture(trace)


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.csv.gz")))
def test_bundled_trace_there_and_back_is_the_same_file(tmp_path, name):
    before = EXAMPLES / name
    for middle in ("a.pickle", "a.log.gz"):
        assert main(["convert", str(before), str(tmp_path / middle)]) == 0
        assert main(["convert", str(tmp_path / middle), str(tmp_path / "b.csv")]) == 0
        assert (tmp_path / "b.csv").read_bytes() == gzip.open(before).read()


@pytest.mark.parametrize("shape", SHAPES)
def test_snapshot_there_and_back(tmp_path, shape):
    path = tmp_path / "a.pickle"
    path.write_bytes(pickled(SHAPES[shape]()))
    trace = read_trace(path)
    for name in ("b.csv", "c.pickle"):
        assert convert(trace, tmp_path / name) == []
        assert picture(read_trace(tmp_path / name)) == picture(trace)
    lost = convert(trace, tmp_path / "d.log")
    again = read_trace(tmp_path / "d.log")
    assert again.peak_live == trace.peak_live and again.events == trace.events + len(trace.live)
    assert bool(lost) == bool(len(trace.live)) and all("written as allocations" in note for note in lost)


def test_odd_trace(tmp_path):
    path = tmp_path / "odd.csv"
    path.write_bytes(ODD)
    trace = read_trace(path)
    assert convert(trace, tmp_path / "b.csv") == [] and (tmp_path / "b.csv").read_bytes() == ODD
    [orphans] = convert(trace, tmp_path / "c.pickle")
    assert orphans == "left out: 2 frees of blocks that are not live; a snapshot has none"
    again = read_trace(tmp_path / "c.pickle")
    assert (again.peak_live, again.preexisting, again.orphan_frees) == (trace.peak_live, 3, 1)
    assert sorted(again.live["stream"].tolist()) == [0, 3]
    [live] = convert(trace, tmp_path / "d.log")
    assert live.startswith("written as allocations: 2 blocks live before")
    again = read_trace(tmp_path / "d.log")
    assert (again.peak_live, again.preexisting, again.orphan_frees) == (trace.peak_live, 1, trace.orphan_frees)


def test_frees_that_no_log_can_hold(tmp_path):
    trace = Trace.from_events([("free", 1, 5, 0), ("alloc", 1, 5, 0), ("free", 1, 5, 0)])
    [early] = convert(trace, tmp_path / "a.log")
    assert "1 free before the allocation" in early
    again = read_trace(tmp_path / "a.log")
    assert (again.peak_live, again.preexisting, again.orphan_frees) == (5, 0, 1)


def test_sizes_of_frees(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(HEADER + b"alloc,1,5,0\nfree,1,,0\n")
    [sizes] = convert(read_trace(path), tmp_path / "b.pickle")
    assert sizes == "written with the size of the allocation: 1 free that gave another or none"
    assert convert(read_trace(path), tmp_path / "b.log") == []


@pytest.mark.parametrize("name, expected", [("a.csv", "csv"), ("a.csv.gz", "csv"), ("a.pickle", "torch"),
                                            ("a.b.pkl", "torch"), ("A.PKL", "torch"), ("a.CSV.GZ", "csv"),
                                            ("a.log", "rmm"), ("a.log.gz", "rmm")])
def test_format_by_suffix(name, expected):
    assert format_of(name) == expected


def test_command(tmp_path, capsys):
    source, out = tmp_path / "a.csv", tmp_path / "b.dat"
    source.write_bytes(ODD)
    assert main(["convert", str(source), str(out), "--to", "torch", "--json", "-"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["format"], values["to"], values["events"], values["preexisting"]) == ("csv", "torch", 8, 3)
    assert len(values["lost"]) == 1 and read_snapshot(out).segments
    assert main(["convert", str(source), str(tmp_path / "c.log")]) == 0
    assert "written as allocations" in capsys.readouterr().out


def test_bad_arguments(tmp_path, capsys):
    source = tmp_path / "a.csv"
    source.write_bytes(ODD)
    for arguments, message in ((["b.txt"], "has no suffix of a format"), (["b.pickle.gz"], "has no suffix"),
                               (["b.csv", "--to", "json"], "invalid choice"), (["a.csv"], "is the trace"),
                               (["b.csv", "--json", str(tmp_path / "b.csv")], "two results would go there"),
                               (["none/b.csv"], "No such file")):
        assert main(["convert", str(source), str(tmp_path / arguments[0]), *arguments[1:]]) == 2
        assert message in capsys.readouterr().err
    assert source.read_bytes() == ODD and [path.name for path in tmp_path.iterdir()] == ["a.csv"]
    with pytest.raises(ValueError, match="'json' is no format"):
        convert(read_trace(source), tmp_path / "b", "json")


def test_trace_beyond_addresses(tmp_path):
    trace = Trace.from_events([("alloc", 1, 2**62, 0), ("free", 1, 2**62, 0), ("alloc", 2, 2**62 + 4096, 1),
                               ("free", 2, 2**62 + 4096, 1), ("alloc", 3, 2**63 - 1, 2)])
    with pytest.raises(ValueError, match="64-bit"):
        convert(trace, tmp_path / "a.pickle")
    assert list(tmp_path.iterdir()) == []


def shell(command, cwd):
    """Run a shell's command line with `cuda-pool` in it."""
    command = command.replace("cuda-pool", f"{sys.executable} -m cuda_pool")
    return subprocess.run(["sh", "-c", command], cwd=cwd, capture_output=True, timeout=120)


@optimised                      # a shell does not start with a sanitizer before it
@pytest.mark.parametrize("out", ["-", "/dev/stdout"])
def test_a_trace_goes_to_stdout_and_nothing_else(tmp_path, out):
    (tmp_path / "a.csv").write_bytes(ODD)
    done = shell(f"cuda-pool convert a.csv {out} --to csv --json a.json", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, ODD, b"")
    assert json.loads((tmp_path / "a.json").read_text())["events"] == 8
    done = shell(f"cuda-pool convert a.csv {out} --to torch > a.pickle", tmp_path)
    assert done.returncode == 0 and done.stderr.startswith(b"cuda-pool: left out: 2 frees of blocks that are not live")
    assert read_snapshot(tmp_path / "a.pickle").entries
    done = shell(f"cuda-pool convert a.csv {out} --to csv | cuda-pool convert /dev/stdin - --to rmm", tmp_path)
    assert done.returncode == 0 and done.stdout.startswith(b"Thread,Time,Action")
    assert sorted(os.listdir(tmp_path)) == ["a.csv", "a.json", "a.pickle"]


@optimised
def test_stdout_that_is_taken_or_has_no_format(tmp_path):
    (tmp_path / "a.csv").write_bytes(ODD)
    for arguments, message in (("a.csv -", "expected --to"), ("a.csv - --to csv --json -", "stdout is for --json"),
                               ("a.csv - --to csv --json a.json >&-", "stdout is closed")):
        done = shell(f"cuda-pool convert {arguments}", tmp_path)
        assert done.returncode == 2 and message.encode() in done.stderr and done.stdout == b""
    assert os.listdir(tmp_path) == ["a.csv"]


# The format itself.

def test_written_snapshot_is_plain_and_consistent(tmp_path):
    path = tmp_path / "a.pickle"
    segments = [Segment(4096, [Block(4096, 512, 100), Block(4608, 3584, 0, INACTIVE)], device=2, stream=7)]
    write_snapshot(path, segments, {2: [Entry("alloc", 4096, 100, 7, 1), Entry("oom", 5, 10**9, 7, 2)]})
    content = path.read_bytes()
    assert content[:2] == b"\x80\x04"
    snapshot = pickle.loads(content)
    assert [len(trace) for trace in snapshot["device_traces"]] == [0, 0, 2]
    [segment] = snapshot["segments"]
    assert (segment["total_size"], segment["allocated_size"], segment["requested_size"]) == (4096, 512, 100)
    assert snapshot["device_traces"][2][1]["device_free"] == 5 and "addr" not in snapshot["device_traces"][2][1]
    back = read_snapshot(path)
    assert back.segments == segments and back.device == 2
    assert back.entries == [Entry("alloc", 4096, 100, 7), Entry("oom", 5, 10**9, 7)]


@pytest.mark.parametrize("segment, entry, message", [
    (Segment(0, [Block(512, 512, 1)]), None, "begins where"),
    (Segment(0, [Block(0, 0, 0)]), None, "at least 1 byte"),
    (Segment(0, [Block(0, 512, 513)]), None, "at most that"),
    (Segment(0, [Block(0, 512, 1, "idle")]), None, "no state"),
    (Segment(0), Entry("malloc", 0, 1), "no action"),
    (Segment(0, device=1024), None, "no number of a device"),
])
def test_snapshot_that_is_not_written(tmp_path, segment, entry, message):
    with pytest.raises(ValueError, match=message):
        write_snapshot(tmp_path / "a.pickle", [segment], {0: [entry] if entry else []})
    assert list(tmp_path.iterdir()) == []


# What the page's own unpickler knows; integers of more than 8 bytes become values that it cannot add to others.
PAGE_KNOWS = {
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1",
    "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE",
    "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "MEMOIZE", "BINPUT", "LONG_BINPUT",
    "BINGET", "LONG_BINGET"}


def test_the_page_knows_every_instruction(tmp_path, make_device):
    convert(read_trace(EXAMPLES / "resnet50_b64_train.csv.gz"), tmp_path / "a.pickle")
    with Pool("64MiB", device=make_device("128MiB", ordinal=3), backing="virtual") as pool:
        kept = [pool.alloc(nbytes) for nbytes in (100, 5000, 300_000, "20MiB")]
        pool.free_async(kept[1])
        pool.snapshot().save(tmp_path / "b.pickle")
    for name in "a.pickle", "b.pickle":
        for instruction, argument, _ in pickletools.genops((tmp_path / name).read_bytes()):
            assert instruction.name in PAGE_KNOWS
            assert instruction.name != "LONG1" or -2**63 <= argument < 2**63


def test_pytorch_opens_what_is_written(tmp_path, memory_viz):
    trace = read_trace(EXAMPLES / "resnet50_b64_train.csv.gz")
    convert(trace, tmp_path / "a.pickle")
    snapshot = pickle.loads((tmp_path / "a.pickle").read_bytes())
    reserved = sum(segment["total_size"] for segment in snapshot["segments"])
    assert f"total_reserved: {reserved / 2**30:.1f}GiB" in memory_viz.segsum(snapshot)
    text = memory_viz.trace(snapshot)
    assert f"{trace.events // 2 * 3} entries" in text and len(re.findall(r"^\w+ = \w+\[", text, re.M)) == trace.blocks
    assert re.search(r"^del [0-9]", text, re.M) is None         # a free of a block that it does not know
    for page in (memory_viz.trace_plot(snapshot), memory_viz.segment_plot(snapshot)):
        assert "add_local_files" in page


def test_blocks_lie_in_their_segments_at_every_step(tmp_path):
    """What the memory_viz page relies on: a block is in a segment, overlaps with none that is live, and is known."""
    path = tmp_path / "odd.csv"
    path.write_bytes(ODD)
    for source in (path, EXAMPLES / "resnet50_b64_train.csv.gz"):
        convert(read_trace(source), tmp_path / "a.pickle")
        snapshot = read_snapshot(tmp_path / "a.pickle")
        spans = [(each.address, each.address + each.total_size) for each in snapshot.segments]
        live = {block.address: block.size for each in snapshot.segments for block in each.blocks
                if block.state != INACTIVE}
        for entry in reversed(snapshot.entries):            # the page walks back from the end, too
            if entry.action == "free_completed":
                assert entry.addr not in live
                live[entry.addr] = max(entry.size, 1)
            elif entry.action == "alloc":
                live.pop(entry.addr)
            assert any(low <= entry.addr and entry.addr + entry.size <= high for low, high in spans)
        starts = sorted(live.items())
        assert all(address + size <= after for (address, size), (after, _) in zip(starts, starts[1:]))
