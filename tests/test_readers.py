"""Readers of PyTorch's memory snapshots and of RMM's logs."""

import gzip
import random
import time
import tracemalloc

import pytest

from cuda_pool.cli import main
from cuda_pool.errors import TraceError
from cuda_pool.readers import read_snapshot
from cuda_pool.replay import replay
from cuda_pool.trace import read_trace

from .snapshots import BASE, MIB, SHAPES, bare, block, complete, cut, entry, pickled, segment, two_devices

RMM_HEADER = b"Thread,Time,Action,Pointer,Size,Stream\n"
RMM = RMM_HEADER + (
    b"1,10:22:33.123456,allocate,0x7f0000000000,1000,0x0\n"
    b"1,10:22:33.123457,allocate,0x7f0000000400,24,0x2a\n"
    b"2,10:22:33.123458,allocate failure,0,99999999999,0\n"
    b"1,10:22:33.2,free,0x7f0000000000,1000,0x0\n"
    b"1,10:22:33.3,allocate,0x7f0000000000,77,(nil)\n"
    b"1,12.5,free,7f00ffff0000,512,7\n")


@pytest.fixture
def read(tmp_path):
    """Function from content to the trace in it."""

    def read(content, **options):
        path = tmp_path / "trace"           # no suffix: only the content tells
        path.write_bytes(content)
        return read_trace(path, **options)

    return read


def rows_of(trace):
    columns = (trace.is_free, trace.id, trace.size, trace.stream)
    return [("free" if is_free else "alloc", *rest) for is_free, *rest in zip(*(each.tolist() for each in columns))]


def live_at_end(trace):
    ends = trace.is_free & ~trace.is_orphan
    return (trace.preexisting_bytes + int(trace.size[~trace.is_free].sum())
            - int(trace.block_size[trace.block[ends]].sum()))


def test_complete_snapshot(read):
    trace = read(pickled(complete()))
    assert rows_of(trace) == [("alloc", 0, 3 * MIB - 5, 0), ("alloc", 1, 5 * MIB, 0), ("free", 0, 3 * MIB - 5, 0),
                              ("alloc", 2, 2 * MIB, 0)]
    assert trace.row.tolist() == [2, 3, 4, 6]
    assert (trace.peak_live, trace.orphan_frees, trace.preexisting) == (8 * MIB - 5, 0, 0)
    assert (trace.format, trace.gpu, trace.notes) == ("torch", 0, ())


def test_cut_snapshot(read):
    trace = read(pickled(cut()))
    assert rows_of(trace) == [("free", 1, MIB, 0), ("alloc", 2, 600_000, 0), ("free", 3, 999_999, 0)]
    assert trace.live_id.tolist() == [0] and trace.live["size"].tolist() == [2 * MIB + 1]
    assert (trace.orphan_frees, trace.preexisting) == (2, 3)
    assert trace.preexisting_bytes == trace.peak_live == MIB + 2 * MIB + 1 + 999_999
    assert live_at_end(trace) == 600_000 + 2 * MIB + 1


def test_snapshot_of_the_oldest_shape(read):
    trace = read(pickled(SHAPES["oldest"]()))
    assert rows_of(trace) == [("free", 1, 5, 0)] and trace.live["size"].tolist() == [MIB - 1]
    assert (trace.preexisting, trace.peak_live) == (2, MIB + 4)


def test_bare_list_of_segments(read):
    trace = read(pickled(bare()))
    assert (trace.events, trace.blocks, trace.preexisting, trace.peak_live) == (0, 2, 2, 3 * MIB - 3)
    assert trace.gpu == 1 and replay(trace).peak_requested == 3 * MIB - 3


def test_two_devices(read):
    trace = read(pickled(two_devices()))
    assert (trace.gpu, trace.events, trace.peak_live) == (2, 2, 2 * MIB)
    assert trace.notes == ("device 2 of the snapshot, which also holds device 1 (3 entries): --trace-device, or "
                           "device= of read_trace, chooses another",)
    other = read(pickled(two_devices()), device=1)
    assert (other.gpu, other.events, other.peak_live) == (1, 1, MIB)
    assert any("left out: 1 allocation that failed" in note for note in other.notes)
    with pytest.raises(ValueError, match="nothing of device 0 .* expected 1, 2"):
        read(pickled(two_devices()), device=0)
    with pytest.raises(ValueError, match="only snapshots"):
        read(RMM, device=0)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("shape", SHAPES)
def test_every_protocol_and_compression(read, shape, protocol):
    whole = read(pickled(SHAPES[shape]()))
    for content in (pickled(SHAPES[shape](), protocol), gzip.compress(pickled(SHAPES[shape](), protocol))):
        trace = read(content)
        assert rows_of(trace) == rows_of(whole) and trace.peak_live == whole.peak_live


def test_missing_free_and_second_free(read):
    snapshot = complete()
    snapshot["device_traces"] = [[entry("alloc", BASE, 100), entry("alloc", BASE, 200, 3),
                                  entry("free_requested", BASE, 200), entry("free_requested", BASE, 200)]]
    trace = read(pickled(snapshot))
    assert rows_of(trace) == [("alloc", 1, 100, 0), ("free", 1, 100, 3), ("alloc", 2, 200, 3), ("free", 2, 200, 0),
                              ("free", 2, 200, 0)]
    assert trace.orphan_frees == 1 and any("missing: 1 free;" in note for note in trace.notes)


def test_segments_of_a_snapshot(tmp_path):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickled(cut()))
    snapshot = read_snapshot(path)
    [found] = snapshot.segments
    assert (found.address, found.total_size, len(found.blocks)) == (BASE, 20 * MIB, 3)
    assert found.blocks[1].address == BASE + MIB and found.blocks[1].requested_size == 2 * MIB + 1
    assert [each.action for each in snapshot.entries][:2] == ["free_requested", "free_completed"]


def changed(change, shape=complete):
    snapshot = shape()
    change(snapshot)
    return snapshot


def first(snapshot):
    return snapshot["segments"][0]


WRONG = {
    "no dict": (5, "snapshot"),
    "no segments": ({"device_traces": []}, "snapshot"),
    "segments no list": ({"segments": 5}, "segments"),
    "segment no dict": ({"segments": [5]}, "segments[0]"),
    "list in itself": (changed(lambda s: s.update(segments=[[]])), "segments[0]"),
    "no blocks": (changed(lambda s: first(s).pop("blocks")), "segments[0]"),
    "no address": (changed(lambda s: first(s).pop("address")), "segments[0]"),
    "address a string": (changed(lambda s: first(s).update(address="x")), "segments[0].address"),
    "address true": (changed(lambda s: first(s).update(address=True)), "segments[0].address"),
    "address huge": (changed(lambda s: first(s).update(address=2**64)), "segments[0].address"),
    "size negative": (changed(lambda s: first(s).update(total_size=-1)), "segments[0].total_size"),
    "size huge": (changed(lambda s: first(s).update(total_size=10**30)), "segments[0].total_size"),
    "size of 100,000 digits": (changed(lambda s: first(s).update(total_size=1 << 400_000)), "segments[0].total_size"),
    "size a float": (changed(lambda s: first(s).update(total_size=1e6)), "segments[0].total_size"),
    "sum wrong": (changed(lambda s: first(s).update(total_size=21 * MIB)), "segments[0].total_size"),
    "allocated wrong": (changed(lambda s: first(s).update(allocated_size=1)), "segments[0].allocated_size"),
    "active wrong": (changed(lambda s: first(s).update(active_size=1)), "segments[0].active_size"),
    "stream negative": (changed(lambda s: first(s).update(stream=-1)), "segments[0].stream"),
    "device negative": (changed(lambda s: first(s).update(device=-1)), "segments[0].device"),
    "device huge": (changed(lambda s: first(s).update(device=2**40)), "segments[0].device"),
    "type unknown": (changed(lambda s: first(s).update(segment_type="tiny")), "segments[0].segment_type"),
    "pool id": (changed(lambda s: first(s).update(segment_pool_id="x")), "segments[0].segment_pool_id"),
    "block no dict": (changed(lambda s: first(s)["blocks"].__setitem__(1, 0)), "segments[0].blocks[1]"),
    "block moved": (changed(lambda s: first(s)["blocks"][1].update(address=BASE)), "segments[0].blocks[1].address"),
    "block empty": (changed(lambda s: first(s)["blocks"][1].update(size=0)), "segments[0].blocks[1].size"),
    "state unknown": (changed(lambda s: first(s)["blocks"][1].update(state="idle")), "segments[0].blocks[1].state"),
    "state no text": (changed(lambda s: first(s)["blocks"][1].update(state=None)), "segments[0].blocks[1].state"),
    "requested above size": (changed(lambda s: first(s)["blocks"][0].update(requested_size=3 * MIB)),
                             "segments[0].blocks[0].requested_size"),
    "segments overlap": ({"segments": [segment([block(MIB)]), segment([block(MIB)], BASE + 4096)]}, "segments[1]"),
    "segment twice": ({"segments": [segment([block(MIB)])] * 2}, "segments[1]"),
    "traces no list": (changed(lambda s: s.update(device_traces=7)), "device_traces"),
    "trace no list": (changed(lambda s: s.update(device_traces=[{"a": 1}])), "device_traces[0]"),
    "devices without end": (changed(lambda s: s.update(device_traces=[[]] * 5000)), "device_traces"),
    "entry no dict": (changed(lambda s: s["device_traces"][0].append(None)), "device_traces[0][6]"),
    "no action": (changed(lambda s: s["device_traces"][0][1].pop("action")), "device_traces[0][1]"),
    "action unknown": (changed(lambda s: s["device_traces"][0][1].update(action="malloc")),
                       "device_traces[0][1].action"),
    "action a list": (changed(lambda s: s["device_traces"][0][1].update(action=[])), "device_traces[0][1].action"),
    "no addr": (changed(lambda s: s["device_traces"][0][1].pop("addr")), "device_traces[0][1]"),
    "addr None": (changed(lambda s: s["device_traces"][0][1].update(addr=None)), "device_traces[0][1].addr"),
    "size of an entry negative": (changed(lambda s: s["device_traces"][0][1].update(size=-5)),
                                  "device_traces[0][1].size"),
    "size of an entry huge": (changed(lambda s: s["device_traces"][0][1].update(size=2**63)),
                              "device_traces[0][1].size"),
    "stream a string": (changed(lambda s: s["device_traces"][0][1].update(stream="0")), "device_traces[0][1].stream"),
    "too much live": (changed(lambda s: s["device_traces"][0][1].update(size=2**63 - 1)), "row 3"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_snapshot(tmp_path, capsys, kind):
    snapshot, place = WRONG[kind]
    path = tmp_path / "wrong.pickle"
    path.write_bytes(pickled(snapshot))
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert caught.value.place == place and len(str(caught.value)) < 400
    assert main(["replay", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith(f"cuda-pool: {path}: {place}: ")


def test_blocks_that_many_segments_share(read):
    """A small file that means 10**9 blocks."""
    shared = [{"size": 1, "state": "inactive"}] * 30_000
    segments = [{"address": BASE + index * MIB, "total_size": 30_000, "segment_type": "small",
                 "blocks": shared} for index in range(30_000)]
    started = time.thread_time()
    with pytest.raises(TraceError, match="more blocks than"):
        read(pickled({"segments": segments}))
    assert time.thread_time() - started < 60


def test_entries_are_limited(read):
    snapshot = complete()
    with pytest.raises(TraceError, match="more than 3 events") as caught:
        read(pickled(snapshot), max_events=3)
    assert caught.value.place == "entry 6" and caught.value.row == 6
    assert len(read(pickled(snapshot), max_events=4)) == 4


def test_compressed_bomb(read):
    bomb = gzip.compress(b"\x80\x04" + bytes(300 << 20), 9)
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match="unpacks to more"):
            read(bomb)
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()


# Totals of the shared files: events, blocks before them, peak, and PyTorch's own sum of what is requested in the end.
SHARED = {
    "bare_segment_list": (0, 139, 250_019_840, 250_019_840),
    "inference_truncated_ring": (3332, 223, 1_949_343_744, 1_701_482_496),
    "oldest_schema": (1, 1, 2_224_128, 0),
    "segments_only": (0, 543, 25_483_614_352, 25_483_614_352),
    "train_step_amp": (8646, 0, 977_167_528, 420_198_612),
    "two_devices_expandable_oom": (598, 0, 21_564_645_800, None),
}


@pytest.mark.parametrize("name", SHARED)
def test_shared_snapshot(shared_path, name):
    path = shared_path("snapshots", f"{name}.pickle")
    events, before, peak, requested = SHARED[name]
    trace = read_trace(path)
    assert (trace.events, trace.preexisting, trace.peak_live) == (events, before, peak)
    snapshot = read_snapshot(path)
    held = sum(each.requested_size for part in snapshot.segments if part.device == trace.gpu for each in part.blocks
               if each.state != "inactive")
    assert live_at_end(trace) == held and requested in (held, None)
    assert replay(trace).peak_requested == peak


@pytest.mark.parametrize("text", [b'{"format": "cuda_pool snapshot"}', b"\n [1, 2]", gzip.compress(b"{}")])
def test_json_is_no_trace(read, text):
    with pytest.raises(TraceError, match="row 1: JSON is no trace: .*cuda-pool map FILE"):
        read(text)


def test_a_mark_of_the_encoding_is_passed_over(read):
    text = b"\xef\xbb\xbfevent,id,size,stream\r\nalloc,1,100,0\r\n"
    for content in text, gzip.compress(text):
        assert rows_of(read(content)) == [("alloc", 1, 100, 0)]


def test_rmm_log(read):
    for content in (RMM, RMM.replace(b"\n", b"\r\n"), gzip.compress(RMM), RMM.replace(b",", b" , "), RMM.rstrip()):
        trace = read(content)
        assert rows_of(trace) == [("alloc", 0, 1000, 0), ("alloc", 1, 24, 42), ("free", 0, 1000, 0),
                                  ("alloc", 2, 77, 0), ("free", 3, 512, 7)]
        assert trace.row.tolist() == [2, 3, 5, 6, 7]
        assert (trace.format, trace.preexisting, trace.orphan_frees, trace.peak_live) == ("rmm", 1, 1, 1536)
        assert trace.notes == ("left out: 1 allocation that failed when the log was written",)


def test_rmm_log_without_a_free(read):
    trace = read(RMM_HEADER + b"1,1,allocate,0x10,5,0\n1,2,allocate,0x10,6,0\n1,3,free,0x10,6,0\n1,4,free,0x10,6,0\n")
    assert rows_of(trace) == [("alloc", 0, 5, 0), ("free", 0, 5, 0), ("alloc", 1, 6, 0), ("free", 1, 6, 0),
                              ("free", 1, 6, 0)]
    assert trace.orphan_frees == 1 and trace.preexisting == 0 and "missing: 1 free;" in trace.notes[0]


def test_rmm_log_of_empty_blocks(read):
    trace = read(RMM_HEADER + b"1,1,allocate,0x0,0,0\n1,2,allocate,(nil),0,0\n1,3,free,0,0,0\n")
    assert rows_of(trace) == [("alloc", 0, 0, 0), ("alloc", 1, 0, 0), ("free", 1, 0, 0)] and trace.notes == ()


def test_rmm_log_against_a_model(read):
    """Random allocations at few addresses, which come back many times."""
    source, at, lines, rows, names = random.Random(3), {}, [], [], 0
    for _ in range(20_000):
        address = source.randrange(1, 5000) << 8
        if address in at:
            name, size = at.pop(address)
            rows.append(("free", name, size, 1))
            lines.append(f"9,1.5,free,{address:#x},{size},1\n")
        else:
            at[address] = names, source.randrange(10_000)
            rows.append(("alloc", *at[address], 2))
            lines.append(f"9,1.5,allocate,{address:#x},{at[address][1]},2\n")
            names += 1
    assert rows_of(read(RMM_HEADER + "".join(lines).encode())) == rows


@pytest.mark.parametrize("line, reason", [
    (b"1,1,allocate,0x10,5", "has 5 fields: expected the six"),
    (b"1,1,alloc,0x10,5,0", "expected allocate, allocate failure or free"),
    (b"1,noon,allocate,0x10,5,0", "no time"),
    (b"1,,allocate,0x10,5,0", "no time"),
    (b"1,1,allocate,pointer,5,0", "no pointer"),
    (b"1,1,allocate,0x11112222333344445,5,0", "no pointer"),
    (b"1,1,allocate,,5,0", "no pointer"),
    (b"1,1,allocate,0x10,-5,0", "no size"),
    (b"1,1,allocate,0x10,9223372036854775808,0", "no size"),
    (b"1,1,free,0x10,,0", "no size"),
    (b"1,1,allocate,0x10,5,main", "no stream"),
    (b"1,1,allocate,0x10,5,18446744073709551616", "no stream"),
    (b"1,1,allocate,0x10,5,\xff", "ASCII lines of an RMM log"),
    (b"1,1,allocate,0x10,5,0" + b" " * 5000, "longer than"),
])
def test_wrong_rmm_log(read, line, reason):
    with pytest.raises(TraceError, match=reason) as caught:
        read(RMM_HEADER + b"1,1,allocate,0x20,5,0\n" + line + b"\n")
    assert caught.value.row == 3


def test_long_rmm_log_takes_little_memory(tmp_path):
    path = tmp_path / "log.csv"
    with open(path, "wb") as file:
        file.write(RMM_HEADER)
        for start in range(0, 400_000, 1000):
            file.write(b"".join(b"140000000000000,10:22:33.123456,allocate,0x7f00%08x,1000,0x0\n"
                                b"140000000000000,10:22:33.123456,free,0x7f00%08x,1000,0x0\n" % (i, i)
                                for i in range(start, start + 1000)))
    tracemalloc.start()
    try:
        assert len(read_trace(path)) == 800_000
        assert tracemalloc.get_traced_memory()[1] < 16 << 20        # the arrays of C are not in it: 32 bytes an event
    finally:
        tracemalloc.stop()


def test_live_rows_of_csv(read):
    content = b"event,id,size,stream\nlive,7,100,3\nlive,8,50,0\nalloc,1,25,0\nfree,8,50,0\nfree,8,50,0\n"
    trace = read(content)
    assert (trace.events, trace.preexisting, trace.preexisting_bytes, trace.peak_live) == (3, 2, 150, 175)
    assert (trace.orphan_frees, trace.streams, trace.live_id.tolist()) == (2, 2, [7, 8])
    assert replay(trace).peak_requested == replay(trace, lag=5).peak_requested == 175
    failed = replay(read(b"event,id,size,stream\nlive,1,1000000,0\nlive,2,9000000,0\n"), capacity="8MiB")
    assert failed.failed_row == 3


@pytest.mark.parametrize("rows, row, reason", [
    (b"alloc,1,5,0\nlive,2,5,0\n", 3, "before the first event"),
    (b"live,1,5,0\nlive,1,5,0\n", 3, "second time"),
    (b"live,1,5,0\nalloc,1,5,0\n", 3, "second time"),
    (b"live,1,0,0\n", 2, "at least 1"),
    (b"live,1,,0\n", 2, "no size"),
    (b"live,1,9223372036854775807,0\nlive,2,1,0\n", 3, "live at once"),
])
def test_wrong_live_rows(read, rows, row, reason):
    with pytest.raises(TraceError, match=reason) as caught:
        read(b"event,id,size,stream\n" + rows)
    assert caught.value.row == row
