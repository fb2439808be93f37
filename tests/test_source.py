"""Files as they come: compressed, through pipes, and written to while they are read."""

import contextlib
import gzip
import os
import pickle
import tempfile
import threading

import pytest

from cuda_pool import readers
from cuda_pool._source import KEPT, open_source
from cuda_pool.errors import TraceError
from cuda_pool.trace import read_trace

from .snapshots import BASE, SHAPES, complete, entry, pickled

CSV = b"event,id,size,stream\n"


def long_snapshot(entries):
    """A snapshot of so many entries, and nothing that is kept in it twice."""
    made = complete()
    made["device_traces"] = [[entry("alloc", BASE + 512 * index, 512, time_us=2**40 + index, frames=[str(index)])
                              for index in range(entries)]]
    return pickled(made)


@pytest.fixture
def piped(tmp_path):
    """Function from content to the path of a pipe out of which it comes."""
    threads = []

    def pour(path, content):
        with contextlib.suppress(BrokenPipeError):      # the reader may have seen enough
            path.write_bytes(content)

    def pipe(content):
        path = tmp_path / f"pipe{len(threads)}"
        os.mkfifo(path)
        threads.append(threading.Thread(target=pour, args=(path, content)))
        threads[-1].start()
        return path

    yield pipe
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


class Changing:
    """A source whose file is changed before it is read the second time."""

    def __init__(self, source, change):
        self.source, self.change, self.passes = source, change, 0
        self.has_changed = source.has_changed

    def from_start(self):
        self.passes += 1
        if self.passes == 2:
            self.change()
        return self.source.from_start()


def changed_between(path, content, second):
    """Entries of a file that has `content` when it is looked at and `second` when it is read."""
    path.write_bytes(content)
    os.utime(path, (0, 0))          # the clock of the file system may stand still for some milliseconds
    with open_source(path) as source:
        return len(readers._snapshot(Changing(source, lambda: path.write_bytes(second)), None).entries)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("entries", [3, 120_000])
def test_snapshot_through_a_pipe(piped, pack, entries):
    content = pack(long_snapshot(entries))
    assert entries == 3 or pack is gzip.compress or len(content) > 1.2 * KEPT
    trace = read_trace(piped(content))
    assert (trace.format, trace.events) == ("torch", entries)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_text_of_a_pipe_is_not_kept(piped, pack, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    lines = CSV + b"".join(b"alloc,%d,%d,0\n" % (ident, 1 + ident % 7) for ident in range(500_000))
    assert len(lines) > KEPT and len(read_trace(piped(pack(lines)))) == 500_000
    with pytest.raises(FileNotFoundError):
        read_trace(piped(long_snapshot(120_000)))


def test_damaged_snapshot_through_a_pipe(piped):
    content = long_snapshot(120_000)
    with pytest.raises(TraceError, match="truncated") as caught:
        read_trace(piped(content[:-1000]))
    assert caught.value.place.startswith("byte ")
    with pytest.raises(TraceError, match="the gzip data is truncated"):
        read_trace(piped(gzip.compress(content)[:-1000]))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_file_that_grows(tmp_path, pack):
    short, long = long_snapshot(100), long_snapshot(101)
    path = tmp_path / "growing"
    assert changed_between(path, pack(short), pack(short + short)) == 100
    with pytest.raises(TraceError, match="written to while it was read"):
        changed_between(path, pack(short), pack(long))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_file_that_shrinks(tmp_path, pack):
    content, path = pack(long_snapshot(100)), tmp_path / "shrinking"
    for second in content[:-100], content[:1], b"":
        with pytest.raises(TraceError, match="written to while it was read"):
            changed_between(path, content, second)


@pytest.mark.parametrize("second", [CSV + b"alloc,1,5,0\n" * 3, b"{}", bytes(100_000), gzip.compress(bytes(1 << 20)),
                                    pickle.dumps([5] * 10_000), pickled(SHAPES["two_devices"]())])
def test_file_that_becomes_another(tmp_path, second):
    with pytest.raises(TraceError, match="written to while it was read"):
        changed_between(tmp_path / "other", long_snapshot(100), second)


def test_file_that_is_damaged_and_stays_so(tmp_path):
    path = tmp_path / "damaged"
    path.write_bytes(long_snapshot(5)[:-1])
    with pytest.raises(TraceError, match="the pickle is truncated"):
        read_trace(path)


def test_gzip_of_several_members(tmp_path):
    content, path = long_snapshot(1000), tmp_path / "members"
    parts = [gzip.compress(content[first:first + 5000]) for first in range(0, len(content), 5000)]
    path.write_bytes(b"".join(parts))
    assert len(parts) > 3 and len(read_trace(path)) == 1000
    path.write_bytes(b"".join(parts[:-1]))
    with pytest.raises(TraceError, match="the pickle is truncated"):
        read_trace(path)
    path.write_bytes(b"".join(parts)[:-4])
    with pytest.raises(TraceError, match="the gzip data is truncated"):
        read_trace(path)


def test_what_follows_the_end(tmp_path):
    content, path = long_snapshot(10), tmp_path / "more"
    for packed in content + b"x", gzip.compress(content + b"x"), gzip.compress(content) + gzip.compress(b"x"):
        path.write_bytes(packed)
        with pytest.raises(TraceError, match="there is more after the end of the pickle") as caught:
            read_trace(path)
        assert caught.value.place == f"byte {len(content)}"
    path.write_bytes(gzip.compress(content) + bytes(100))       # gzip takes zeros for padding
    assert len(read_trace(path)) == 10
    path.write_bytes(gzip.compress(content) + b"x" * 100)
    with pytest.raises(TraceError, match="the gzip data is damaged"):
        read_trace(path)
