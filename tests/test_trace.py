"""Reading and writing allocation traces."""

import gzip
import os
import pickle
import random
import stat
import tempfile
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_pool._atomic import open_atomically, require_writable
from cuda_pool._trace import EVENTS_MAX
from cuda_pool._trace_csv import CsvParser
from cuda_pool.errors import TraceError
from cuda_pool.trace import Trace

from .models import optimised

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
HEADER = b"event,id,size,stream\n"
LARGEST = 2**64 - 1

BUNDLED = {
    "gpt2_124m_train.csv.gz": (55762, 27881, 30083202056),
    "llama_serve_growing_kv.csv.gz": (181430, 90715, 6305890304),
    "resnet50_b64_train.csv.gz": (35754, 17877, 5779181712),
}

SAMPLE = HEADER + b"alloc,7,1000,0\nalloc,3,24,1\nfree,7,1000,0\nalloc,9,0,0\nfree,3,24,1\nfree,9,0,0\n"


def read(tmp_path, content, name="trace.csv"):
    path = tmp_path / name
    path.write_bytes(content)
    return Trace.read(path)


def rows_of(trace):
    """The events of a trace as from_events() takes them."""
    columns = (trace.is_free, trace.id, trace.size, trace.stream)
    return [("free" if freed else "alloc", *rest) for freed, *rest in zip(*(column.tolist() for column in columns))]


class Model:
    """What a trace should say of itself, in plain Python."""

    def __init__(self, events):
        allocated = {ident for event, ident, _, _ in events if event == "alloc"}
        self.preexisting = {}
        for event, ident, size, _ in events:
            if event == "free" and ident not in allocated:
                self.preexisting.setdefault(ident, size)
        self.preexisting = {ident: size for ident, size in self.preexisting.items() if size}
        live = dict(self.preexisting)
        borne = set()
        self.orphan_frees = 0
        self.peak_live = sum(live.values())
        for event, ident, size, _ in events:
            if event == "alloc":
                live[ident] = size
                borne.add(ident)
            else:
                self.orphan_frees += ident not in borne
                borne.discard(ident)
                live.pop(ident, None)
            self.peak_live = max(self.peak_live, sum(live.values()))


@st.composite
def event_lists(draw):
    """Events that a trace may have: every id is allocated at most once, frees come as they like."""
    ids = draw(st.lists(st.integers(0, LARGEST) | st.integers(0, 8), unique=True, max_size=20))
    numbers = st.integers(0, 2**40) | st.just(0)
    events = [("alloc", ident, draw(numbers), draw(st.integers(0, LARGEST))) for ident in ids]
    frees = draw(st.lists(st.sampled_from(ids or [0]) | st.integers(0, LARGEST), max_size=30))
    events += [("free", ident, draw(numbers), draw(st.integers(0, 3))) for ident in frees]
    return draw(st.permutations(events))


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_trace(name):
    trace = Trace.read(EXAMPLES / name)
    assert (trace.events, trace.blocks, trace.peak_live) == BUNDLED[name]
    assert (len(trace), trace.streams, trace.orphan_frees, trace.preexisting) == (trace.events, 1, 0, 0)
    assert trace.row[0] == 2 and trace.row[-1] == trace.events + 1


def test_columns(tmp_path):
    trace = read(tmp_path, SAMPLE)
    assert trace.is_free.tolist() == [False, False, True, False, True, True]
    assert trace.id.tolist() == [7, 3, 7, 9, 3, 9]
    assert trace.block.tolist() == [0, 1, 0, 2, 1, 2]
    assert trace.size.tolist() == [1000, 24, 1000, 0, 24, 0]
    assert trace.stream.tolist() == [0, 1, 0, 0, 1, 0]
    assert (trace.peak_live, trace.blocks, trace.streams) == (1024, 3, 2)


def test_columns_are_read_only_and_outlive_the_trace(tmp_path):
    sizes = read(tmp_path, SAMPLE).size
    assert sizes.tolist() == [1000, 24, 1000, 0, 24, 0]
    with pytest.raises(ValueError):
        sizes[0] = 1


def test_no_events(tmp_path):
    for content in (HEADER, HEADER.strip(), HEADER + b"\n \n"):
        trace = read(tmp_path, content)
        assert (len(trace), trace.peak_live, trace.streams, trace.blocks) == (0, 0, 0, 0)
        assert trace.row.tolist() == trace.id.tolist() == []


@pytest.mark.parametrize("change", [
    lambda text: text.replace(b"\n", b"\r\n"),
    lambda text: text.replace(b",", b" ,\t"),
    lambda text: text.rstrip(b"\n"),
    lambda text: text + b"\n\r\n   \n",
    gzip.compress,
    lambda text: gzip.compress(text[:50]) + gzip.compress(text[50:]),
    lambda text: gzip.compress(text) + bytes(512),
], ids=["crlf", "blanks", "no newline at the end", "blank lines at the end", "gzip", "gzip members", "gzip padding"])
def test_other_ways_to_write_the_same(tmp_path, change):
    trace = read(tmp_path, change(SAMPLE))
    assert rows_of(trace) == rows_of(read(tmp_path, SAMPLE))
    assert trace.row.tolist() == [2, 3, 4, 5, 6, 7]


def test_gzip_is_told_by_content_not_by_name(tmp_path):
    assert len(read(tmp_path, SAMPLE, "plain.csv.gz")) == len(read(tmp_path, gzip.compress(SAMPLE), "packed.csv")) == 6


def test_blank_lines_count_as_rows(tmp_path):
    trace = read(tmp_path, HEADER + b"\nalloc,1,5,0\n\n\r\nfree,1,5,0\n")
    assert trace.row.tolist() == [3, 6]
    with pytest.raises(TraceError) as caught:
        read(tmp_path, HEADER + b"\nalloc,1,5,0\n\nmalloc,2,5,0\n")
    assert caught.value.row == 5


def test_free_without_a_size(tmp_path):
    trace = read(tmp_path, HEADER + b"alloc,1,5,0\nfree,1,,0\nfree,2,,0\n")
    assert (trace.peak_live, trace.orphan_frees, trace.preexisting) == (5, 1, 0)


def test_free_with_another_size_is_tolerated(tmp_path):
    trace = read(tmp_path, HEADER + b"alloc,1,5,0\nfree,1,50,0\nalloc,2,7,0\n")
    assert (trace.peak_live, trace.orphan_frees) == (7, 0)


def test_limits_are_accepted(tmp_path):
    trace = read(tmp_path, HEADER + b"alloc,%d,%d,%d\n" % (LARGEST, 2**63 - 1, LARGEST))
    assert rows_of(trace) == [("alloc", LARGEST, 2**63 - 1, LARGEST)]
    assert trace.peak_live == 2**63 - 1


def test_too_much_live_at_once(tmp_path):
    half = 2**62
    for events in (b"alloc,1,%d,0\nalloc,2,%d,0\n", b"free,1,%d,0\nfree,2,%d,0\n"):
        with pytest.raises(TraceError, match="live at once") as caught:
            read(tmp_path, HEADER + events % (half, half))
        assert caught.value.row == 3


@pytest.mark.parametrize("stride", [1, 256, 2**16, 2**32, 2**40, 0x9E3779B97F4A7C15])
def test_ids_in_any_order(stride):
    ids = [index * stride % 2**64 for index in range(20000)]
    random.Random(stride).shuffle(ids)
    started = time.thread_time()
    trace = Trace.from_events([("alloc", ident, 1, 0) for ident in ids] + [("free", ident, 1, 0) for ident in ids])
    assert time.thread_time() - started < 5         # ids that all fell into one slot would take minutes
    assert trace.id.tolist() == ids * 2
    assert (trace.blocks, trace.peak_live, trace.orphan_frees) == (20000, 20000, 0)


def test_second_free_is_an_orphan():
    trace = Trace.from_events([("alloc", 1, 5, 0), ("free", 1, 5, 0), ("free", 1, 5, 0)])
    assert (trace.orphan_frees, trace.preexisting) == (1, 0)
    assert trace.is_orphan.tolist() == [False, False, True]


def test_free_before_the_allocation_is_an_orphan():
    trace = Trace.from_events([("free", 1, 5, 0), ("alloc", 1, 5, 0), ("free", 1, 5, 0)])
    assert (trace.orphan_frees, trace.preexisting, trace.peak_live) == (1, 0, 5)
    assert trace.is_orphan.tolist() == [True, False, False]


def test_preexisting_blocks():
    trace = Trace.from_events([("alloc", 1, 5, 0), ("free", 8, 100, 0), ("free", 8, 100, 0), ("free", 9, 0, 0),
                               ("alloc", 2, 60, 0)])
    assert (trace.orphan_frees, trace.preexisting, trace.preexisting_bytes, trace.peak_live) == (3, 1, 100, 105)
    assert trace.is_orphan.tolist() == [False, False, True, True, False]


@given(event_lists())
def test_agrees_with_the_model(events):
    trace, model = Trace.from_events(events), Model(events)
    assert rows_of(trace) == events
    assert trace.orphan_frees == model.orphan_frees
    assert trace.preexisting == len(model.preexisting)
    assert trace.preexisting_bytes == sum(model.preexisting.values())
    assert trace.peak_live == model.peak_live
    assert trace.streams == len({stream for *_, stream in events})


@given(events=event_lists(), suffix=st.sampled_from([".csv", ".csv.gz"]))
def test_round_trip(tmp_path_factory, events, suffix):
    path = tmp_path_factory.mktemp("round") / f"trace{suffix}"
    trace = Trace.from_events(events)
    trace.write(path)
    again = Trace.read(path)
    assert rows_of(again) == events
    assert np.array_equal(np.frombuffer(again, np.uint8), np.frombuffer(trace, np.uint8))
    assert path.read_bytes().startswith(b"\x1f\x8b") == (suffix == ".csv.gz")


@given(cuts=st.lists(st.integers(0, len(SAMPLE)), max_size=8))
def test_pieces_of_any_length(cuts):
    parser = CsvParser()
    bounds = [0, *sorted(cuts), len(SAMPLE)]
    for start, stop in zip(bounds, bounds[1:]):
        parser.feed(SAMPLE[start:stop])
    assert rows_of(Trace(parser)) == rows_of(Trace.from_events(
        [("alloc", 7, 1000, 0), ("alloc", 3, 24, 1), ("free", 7, 1000, 0), ("alloc", 9, 0, 0), ("free", 3, 24, 1),
         ("free", 9, 0, 0)]))


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda rest: HEADER + rest))
def test_any_bytes_are_a_trace_or_a_trace_error(content):
    parser = CsvParser()
    try:
        parser.feed(content)
        Trace(parser)
    except TraceError as error:
        assert error.row >= 1 and error.reason


@given(position=st.integers(0, 8 * len(SAMPLE) - 1))
def test_bit_flip_in_text(position):
    content = bytearray(SAMPLE)
    content[position // 8] ^= 1 << position % 8
    parser = CsvParser()
    try:
        parser.feed(bytes(content))
        trace = Trace(parser)
    except TraceError as error:
        assert 1 <= error.row <= 8
    else:
        assert rows_of(trace) != rows_of(Trace.from_events([])) and len(trace) <= 6


def test_bit_flips_in_gzip(tmp_path):
    packed = gzip.compress(SAMPLE, mtime=0)
    whole = rows_of(read(tmp_path, packed))
    refused = 0
    for position in range(8 * len(packed)):
        content = bytearray(packed)
        content[position // 8] ^= 1 << position % 8
        try:
            assert rows_of(read(tmp_path, bytes(content))) == whole     # a flip in a time stamp does no harm
        except TraceError as error:
            refused += 1
            assert error.row >= 1 and error.reason
    assert refused > 8 * len(packed) * 0.75


def test_every_truncation_of_gzip_is_refused(tmp_path):
    packed = gzip.compress(SAMPLE)
    for length in range(len(packed)):
        with pytest.raises(TraceError):
            read(tmp_path, packed[:length])


def test_truncated_gzip_names_the_row_reached(tmp_path):
    lines = [b"alloc,%d,%d,0\n" % (index, random.Random(index).randrange(2**40)) for index in range(20000)]
    packed = gzip.compress(HEADER + b"".join(lines))
    reached = []
    for part in (4, 2, 1):
        with pytest.raises(TraceError, match="truncated") as caught:
            read(tmp_path, packed[:len(packed) // part - 10])
        reached.append(caught.value.row)
    assert 4000 < reached[0] < 6000 and 9000 < reached[1] < 11000 and reached[2] > 19000


def test_every_truncation_of_text_is_a_prefix_or_refused(tmp_path):
    whole = rows_of(read(tmp_path, SAMPLE))
    for length in range(len(HEADER), len(SAMPLE)):
        try:
            part = rows_of(read(tmp_path, SAMPLE[:length]))
        except TraceError as error:
            assert error.row == SAMPLE[:length].count(b"\n") + 1
        else:
            assert [row[:2] for row in part] == [row[:2] for row in whole[:len(part)]]


@pytest.mark.untraced
def test_memory_does_not_grow_with_blank_text(tmp_path):
    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(HEADER)
        for _ in range(64):
            file.write(b" \n" * (1 << 19))
    tracemalloc.start()
    try:
        assert len(Trace.read(path)) == 0
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_line_without_an_end_is_not_collected(tmp_path):
    path = tmp_path / "line.csv.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(HEADER)
        for _ in range(64):
            file.write(b"1" * (1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match="longer than") as caught:
            Trace.read(path)
        assert caught.value.row == 2
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_long_line_is_refused_wherever_the_pieces_end():
    line = b"alloc,1,2," + b" " * 5000 + b"3\n"
    for cut in (0, 10, 3000, 5000):
        parser = CsvParser()
        with pytest.raises(TraceError, match="longer than"):
            parser.feed(HEADER + line[:cut])
            parser.feed(line[cut:])


@optimised
def test_large_trace_is_read_quickly():
    """In less processor time than Python takes to split its rows: a quarter of it on an idle machine."""
    path = EXAMPLES / "llama_serve_growing_kv.csv.gz"

    def split():
        with gzip.open(path) as file:
            return [line.split(b",") for line in file]

    assert min(timed(lambda: Trace.read(path)) for _ in range(5)) < min(timed(split) for _ in range(5))


def timed(call):
    started = time.thread_time()
    call()
    return time.thread_time() - started


def test_from_events_refuses_what_a_file_may_not_hold():
    for events, row in (([("alloc", 1, -1, 0)], 2), ([("alloc", 1, 1, 0), ("alloc", 1, 1, 0)], 3),
                        ([("alloc", 1.0, 1, 0)], 2), ([("realloc", 1, 1, 0)], 2), ([("alloc", True, 1, 0)], 2),
                        ([("alloc", 0, "5,0\nalloc,1,7", 0)], 2), ([("alloc", 0, 5, "0\nalloc,1,7,0")], 2),
                        ([("alloc,0,5,0\nfree", 0, 5, 0)], 2), ([("alloc", 1, 1, 0), ("alloc", 2, 3)], 3),
                        ([("alloc", 1, 1, 0, 0)], 2), ([("free", 1, "", 0)], 2), ([7], 2), ([b"free"], 2),
                        ([(["alloc"], 1, 1, 0)], 2)):
        with pytest.raises(TraceError) as caught:
            Trace.from_events(events)
        assert caught.value.row == row


def test_error_can_be_pickled():
    error = pickle.loads(pickle.dumps(TraceError(3, "why")))
    assert (error.row, error.reason, str(error)) == (3, "why", "row 3: why")
    assert isinstance(error, ValueError)


def test_parser_is_empty_once_its_trace_is_made():
    parser = CsvParser()
    parser.feed(SAMPLE)
    Trace(parser)
    with pytest.raises(TraceError, match="empty"):
        Trace(parser)


def test_parser_is_as_new_once_its_trace_is_made():
    parser = CsvParser()
    for content, ids in ((SAMPLE, [7, 3, 7, 9, 3, 9]), (HEADER + b"alloc,9,5,0\nfree,9,5,0\n", [9, 9])):
        parser.feed(content)
        trace = Trace(parser)
        assert (trace.blocks, trace.id.tolist(), parser.row) == (len(set(ids)), ids, 1)
        del trace                   # its memory is that of the next one, in all likelihood


@pytest.mark.parametrize("fault", [b"alloc,1,%s,0\n" % (b"x" * 4000), b"alloc,1,1,0\nalloc,1,1,0\n", b"a\n",
                                   b"alloc,1,\xff,0\n", b"1" * 10_000,
                                   b"alloc,1,%d,0\nalloc,2,%d,0\n" % (2**62, 2**62)],
                         ids=["size", "twice", "fields", "not text", "endless line", "too much live"])
def test_parser_with_a_fault_raises_it_again(fault):
    parser = CsvParser()
    with pytest.raises(TraceError) as first:
        parser.feed(HEADER + fault)
        Trace(parser)
    for use in (lambda: parser.feed(b"alloc,5,5,0\n"), lambda: parser.feed(b""), lambda: Trace(parser)) * 3:
        rest = [b"y" * 4096 for _ in range(100)]        # what would lie where the piece lay
        with pytest.raises(TraceError) as again:
            use()
        assert (again.value.row, again.value.reason) == (first.value.row, first.value.reason)
        del rest


def test_numbers_that_python_does_not_write():
    with pytest.raises(TraceError, match="row 3: an integer has more digits") as caught:
        Trace.from_events([("alloc", 1, 1, 0), ("alloc", 2, 10**5000, 0)])
    assert caught.value.row == 3


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(FileNotFoundError):
        Trace.read(tmp_path / "none.csv")
    with pytest.raises(IsADirectoryError):
        Trace.read(tmp_path)


def test_written_gzip_is_the_same_every_time(tmp_path):
    trace = Trace.read(EXAMPLES / "resnet50_b64_train.csv.gz")
    for name in ("a.csv.gz", "b.csv.gz"):
        trace.write(tmp_path / name)
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
    assert gzip.open(tmp_path / "a.csv.gz").read() == gzip.open(EXAMPLES / "resnet50_b64_train.csv.gz").read()


def test_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "out"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError):
        with open_atomically(path) as file:
            file.write(b"half")
            1 / 0
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out"]


def test_write_into_a_missing_folder(tmp_path):
    path = tmp_path / "none" / "trace.csv"
    with pytest.raises(FileNotFoundError) as caught:
        Trace.from_events([]).write(path)
    assert caught.value.filename == path        # and not the draft's


def test_written_file_has_ordinary_permissions(tmp_path):
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    path = tmp_path / "trace.csv"
    Trace.from_events([]).write(path)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(ordinary.stat().st_mode)
    path.chmod(0o640)
    Trace.from_events([]).write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_write_follows_a_link_and_spares_a_device(tmp_path):
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    target.write_text("old")
    link.symlink_to(target)
    Trace.from_events([]).write(link)
    assert link.is_symlink() and target.read_bytes() == HEADER
    Trace.from_events([]).write(os.devnull)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@settings(max_examples=30)
@given(st.integers(0, 2**70), st.sampled_from(["id", "size", "stream"]))
def test_numbers_beyond_the_limit(number, field):
    values = {"id": 1, "size": 1, "stream": 1, field: number}
    limit = 2**63 - 1 if field == "size" else LARGEST
    row = [("alloc", values["id"], values["size"], values["stream"])]
    if number <= limit:
        assert rows_of(Trace.from_events(row)) == row
    else:
        with pytest.raises(TraceError, match=f"from 0 to {limit}"):
            Trace.from_events(row)


def test_from_events_takes_integers_of_any_type():
    trace = Trace.from_events([("alloc", np.uint64(LARGEST), np.int32(5), np.uint8(1)), ["free", LARGEST, 5, 1]])
    assert rows_of(trace) == [("alloc", LARGEST, 5, 1), ("free", LARGEST, 5, 1)]


@pytest.mark.parametrize("content", [SAMPLE, gzip.compress(SAMPLE)], ids=["plain", "gzip"])
def test_pipe_that_starts_with_one_byte(tmp_path, content):
    path = tmp_path / "pipe"
    os.mkfifo(path)

    def write():
        with open(path, "wb", buffering=0) as pipe:
            for piece in (content[:1], content[1:2], content[2:7], content[7:]):
                pipe.write(piece)
                time.sleep(0.05)            # what was written before is read first

    writer = threading.Thread(target=write)
    writer.start()
    trace = Trace.read(path)
    writer.join()
    assert trace.id.tolist() == [7, 3, 7, 9, 3, 9]


@pytest.mark.parametrize("content", [b"", b"\x1f", b"e"], ids=repr)
def test_file_of_less_than_two_bytes(tmp_path, content):
    with pytest.raises(TraceError, match="row 1: .*(the first line must be|the ASCII lines of)"):
        read(tmp_path, content)


def test_too_many_events_are_refused_by_row(tmp_path):
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(SAMPLE))
    assert len(Trace.read(path, max_events=6)) == 6
    for limit in (0, 1, 5):
        with pytest.raises(TraceError, match=f"more than {limit} events.*max_events") as caught:
            Trace.read(path, max_events=limit)
        assert caught.value.row == limit + 2


def test_limit_holds_for_every_trace_of_a_parser():
    parser = CsvParser(1)
    parser.feed(HEADER + b"alloc,1,1,0\n")
    assert len(Trace(parser)) == 1
    with pytest.raises(TraceError, match="more than 1 events"):
        parser.feed(HEADER + b"alloc,1,1,0\nfree,1,1,0\n")


def test_limit_that_is_none():
    assert EVENTS_MAX == 20_000_000
    for limit in (-1, 2**63, 10**400):
        with pytest.raises(ValueError, match="max_events is from 0 to"):
            CsvParser(limit)
    for limit in (1.5, "5", None, True):
        with pytest.raises(TypeError, match="max_events is an integer"):
            CsvParser(limit)


def unmixed(number):
    """The id that two rounds of a multiplicative mix with this constant, common and without a seed, turn to `number`.

    Its bits below 32 are the slot in a hash table of any size here.
    """
    inverse = pow(0xD6E8FEB86659FD93, -1, 2**64)
    for _ in range(2):
        number ^= number >> 32
        number = number * inverse % 2**64
    return number ^ number >> 32


@optimised
def test_ids_that_were_chosen_to_share_a_slot():
    count = 30_000
    ordinary = HEADER + b"".join(b"alloc,%d,1,0\n" % (i * 2**40 % 2**64 + i) for i in range(count))
    crafted = HEADER + b"".join(b"alloc,%d,1,0\n" % unmixed(i << 32) for i in range(count))

    def parse(text):
        parser = CsvParser()
        parser.feed(text)
        assert len(Trace(parser)) == count

    assert min(timed(lambda: parse(crafted)) for _ in range(3)) < 20 * max(timed(lambda: parse(ordinary))
                                                                           for _ in range(3))


def test_long_names_are_written(tmp_path):
    path = tmp_path / ("n" * 251 + ".csv")
    require_writable(path)
    for _ in range(2):
        Trace.from_events([]).write(path)
        assert path.read_bytes() == HEADER and os.listdir(tmp_path) == [path.name]
    with pytest.raises(OSError, match="too long"):
        require_writable(tmp_path / ("n" * 256))


@pytest.fixture
def fixed():
    """An old file that this process may write, in a folder that it may not."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "out")
        path.write_text("something old and long")
        path.chmod(0o666)
        os.chmod(folder, 0o555)
        if user == 0:
            os.seteuid(65534)
        try:
            yield path
        finally:
            os.seteuid(user)
            os.chmod(folder, 0o755)


def test_old_file_in_a_folder_that_is_not_writable(fixed):
    require_writable(fixed)
    with pytest.raises(ZeroDivisionError):
        with open_atomically(fixed) as file:
            file.write(b"half")
            1 / 0
    assert fixed.read_text() == "something old and long"
    with open_atomically(fixed) as file:
        file.write(b"new")
    assert fixed.read_text() == "new" and os.listdir(fixed.parent) == ["out"]


def test_new_file_in_a_folder_that_is_not_writable(fixed):
    other = fixed.with_name("other")
    with pytest.raises(PermissionError):
        require_writable(other)
    with pytest.raises(PermissionError):
        with open_atomically(other) as file:
            file.write(b"new")
    assert os.listdir(fixed.parent) == ["out"]
