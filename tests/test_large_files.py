"""A file of any length is read in the memory that its events take, and what a snapshot has beside them, packed."""

import gzip
import json
import re
import subprocess
import sys

import pytest

from .models import EFFORT, OPTIMISED

MIB = 1 << 20
EVENTS = 100_000 * min(EFFORT, 5)
LINE = 2000                     # bytes, most of them blanks: 200 MB of text, or up to a gigabyte with more effort
TAKEN = 16 * MIB                # beyond what the command takes for the same events in short lines
PICKLE = 30 * MIB if EFFORT == 1 else 200 * MIB * min(EFFORT, 5)
FRAMES = 20                     # of every entry

# Bytes that a process takes for what is packed while it is read: an entry, a segment and a block in it.
ENTRY, SEGMENT, PIECE = 32, 64, 24
# And afterwards, with a replay: for an event, for a block of one, and for one that is live all the time.
EVENT, BLOCK, LIVE = 32, 68, 115


def rows(kind):
    """Yield the lines of a file, without blanks: blocks that come and go."""
    if kind == "csv":
        yield "event,id,size,stream"
        for ident in range(EVENTS // 2):
            yield f"alloc,{ident},{512 + ident % 99},0"
            yield f"free,{ident},{512 + ident % 99},0"
    else:
        yield "Thread,Time,Action,Pointer,Size,Stream"
        for ident in range(EVENTS // 2):
            row = f"0x7f{ident % 997:04x}00,{512 + ident % 99},0x0"
            yield f"1,10:22:33.1,allocate,{row}"
            yield f"1,10:22:33.2,free,{row}"


def write(path, kind, width):
    with gzip.open(path, "wt", 1) if path.suffix == ".gz" else open(path, "w") as file:
        file.writelines(f"{row.replace(',', ',' + ' ' * max(width - len(row), 0), 1)}\n" for row in rows(kind))


def played(path, out):
    """Replay a file in a process of its own; return the result and the process's peak of memory in bytes."""
    command = "from cuda_pool.cli import main; code = main(); print(open('/proc/self/status').read()); exit(code)"
    done = subprocess.run([sys.executable, "-c", command, "replay", str(path), "--json", str(out)],
                          cwd=path.parent, capture_output=True, text=True, timeout=600, check=True)
    return json.loads(out.read_text()), int(re.search(r"VmHWM:\s+(\d+) kB", done.stdout)[1]) << 10


@pytest.mark.slow
@pytest.mark.untraced
@pytest.mark.parametrize("kind", ["csv", "rmm"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_text_is_read_in_pieces(tmp_path, kind, suffix):
    short, long = tmp_path / f"short.csv{suffix}", tmp_path / f"long.csv{suffix}"
    write(short, kind, 0)
    write(long, kind, LINE)
    one, little = played(short, tmp_path / "one.json")
    other, taken = played(long, tmp_path / "other.json")
    assert taken < little + TAKEN
    assert other["events"] == one["events"] == EVENTS
    for name in "peak_live", "peak_requested", "peak_used", "format":
        assert other[name] == one[name]


def text(value):
    return b"\x8c" + bytes([len(value)]) + value.encode()


def integer(value):
    return b"\x8a\x07" + value.to_bytes(7, "little")


def frame(name):
    return b"}\x94(" + b"".join(each + text(f"{name} of {each}") for each in (b"h\x00", b"h\x01")) + b"u"


class LongSnapshot:
    """Write a snapshot as PyTorch and pickle would, part by part: keys, words and some of the frames are shared.

    Attributes
    ----------
    parts : int
        Entries or blocks so far.
    needed : int
        Bytes that what it holds may take.
    events, live : int
        Events of its trace, and bytes that are live at the end of it.
    """

    NAMES = ("name", "filename", "action", "alloc", "free_requested", "free_completed", "addr", "size", "stream",
             "time_us", "frames", "address", "total_size", "allocated_size", "requested_size", "segment_type", "large",
             "blocks", "state", "active_allocated", "inactive")

    def __init__(self, file, kind):
        self.file, self.kind = file, kind
        self.parts = self.needed = self.events = self.live = 0
        file.write(b"\x80\x04" + b"".join(text(name) + b"\x940" for name in self.NAMES))
        self.key = {name: b"h" + bytes([at]) for at, name in enumerate(self.NAMES)}
        self.shared = b"h" + bytes([len(self.NAMES)])
        file.write(b"]\x94(" + b"".join(frame(f"shared {index}") for index in range(FRAMES)) + b"e0")

    def fill(self, length):
        """Write until the file has that many bytes."""
        is_trace = self.kind in ("shared frames", "own frames")
        self.file.write(b"}(" + text("segments") + b"]")
        if is_trace:
            self.file.write(text("device_traces") + b"](]")
        self.file.write(b"(")
        while self.file.tell() < length:
            for _ in range(300):
                self.file.write(self.history() if is_trace else self.segment())
            self.file.write(b"e(")
        self.file.write((b"ee" if is_trace else b"e") + b"u.")

    def fields(self, **values):
        return b"}\x94(" + b"".join(self.key[name] + value for name, value in values.items()) + b"u"

    def history(self):
        """The entries of one block: it comes and goes."""
        ident = self.parts // 3
        frames = self.frames(ident)
        made = b""
        for action in "alloc", "free_requested", "free_completed":
            made += self.fields(action=self.key[action], addr=integer(0x7F0000000000 + (ident % 997 << 20)),
                                size=integer(512 + ident % 99), stream=b"K\x00",
                                time_us=integer(1_700_000_000_000_000 + self.parts), frames=frames)
            self.parts += 1
        self.events += 2
        self.needed += max(3 * ENTRY, 2 * EVENT + BLOCK)
        return made

    def segment(self):
        """A segment behind the one before, with a block that is live or with many, of which every third is free."""
        count = 1 if self.kind == "segments of a block" else 99
        address = integer(0x7F0000000000 + 512 * self.parts)
        states = ["inactive" if index % 3 == 1 else "active_allocated" for index in range(count)]
        blocks = b"".join(self.fields(address=integer(0x7F0000000000 + 512 * (self.parts + index)), size=integer(512),
                                      requested_size=integer(500), state=self.key[state], frames=self.shared)
                          for index, state in enumerate(states))
        live = states.count("active_allocated")
        self.parts += count
        self.live += 500 * live
        self.needed += max(SEGMENT + count * PIECE, live * LIVE)
        return self.fields(address=address, total_size=integer(512 * count), allocated_size=integer(512 * live),
                           stream=b"K\x00", segment_type=self.key["large"], frames=self.shared,
                           blocks=b"]\x94(" + blocks + b"e")

    def frames(self, ident):
        if self.kind == "shared frames":
            return self.shared
        return b"]\x94(" + b"".join(frame(f"{ident} {index}") for index in range(FRAMES)) + b"e"


@pytest.mark.slow
@pytest.mark.untraced
@pytest.mark.skipif(not OPTIMISED, reason="an instrumented build takes memory of its own")
@pytest.mark.parametrize("kind", ["shared frames", "own frames", "segments", "segments of a block"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_snapshot_is_read_in_pieces(tmp_path, kind, suffix):
    paths = tmp_path / f"short.pickle{suffix}", tmp_path / f"long.pickle{suffix}"
    for path, length in zip(paths, (0, PICKLE)):
        with gzip.open(path, "wb", 1) if suffix else open(path, "wb") as file:
            snapshot = LongSnapshot(file, kind)
            snapshot.fill(length)
            written = file.tell()
    _, little = played(paths[0], tmp_path / "short.json")
    result, taken = played(paths[1], tmp_path / "long.json")
    paths[1].unlink()               # which may have a gigabyte
    print(f"{kind}{suffix}: {written} bytes, {snapshot.parts} parts; {(taken - little) / written:.3f} bytes a byte, "
          f"{(taken - little) / snapshot.parts:.1f} bytes a part, {snapshot.needed / snapshot.parts:.1f} expected")
    assert result["events"] == snapshot.events and result["peak_live"] == (snapshot.live or 610)
    assert written >= PICKLE and taken < little + snapshot.needed + TAKEN
