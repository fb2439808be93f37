"""Hundreds of damaged inputs: each is refused with a message that names the place, in little time and memory."""

import gzip
import os
import pickle
import random
import re
import resource
import struct

import pytest

from cuda_pool.cli import main

from .snapshots import SHAPES, pickled

ROOM = 1 << 30          # bytes that a refusal may take
PLACE = re.compile(r"(row \d+|entry \d+|byte \d+( of the unpacked file)?|snapshot|segments|device_traces)[^:]*: \S")
FLIPS = 300
SHARED = ("train_step_amp", "inference_truncated_ring", "oldest_schema", "bare_segment_list",
          "two_devices_expandable_oom", "segments_only")

CSV = b"event,id,size,stream\n" + b"".join(b"alloc,%d,%d,0\nfree,%d,%d,0\n" % (i, 37 * i, i, 37 * i) for i in range(50))
RMM = b"Thread,Time,Action,Pointer,Size,Stream\n" + b"".join(
    b"1,10:22:33.1,allocate,0x7f%04x00,%d,0x0\n1,10:22:33.2,free,0x7f%04x00,%d,0x0\n" % (i, i, i, i)
    for i in range(50))


def cut_in_a_row(source, text, commas):
    """Cut a text after so many commas of a random row, which leaves too few fields."""
    lines = text.splitlines(keepends=True)
    last = source.randrange(1, len(lines))
    return b"".join(lines[:last]) + b",".join(lines[last].split(b",")[:commas])


def wrong_value(source, value):
    """A value that is never right where `value` is."""
    wrong = [None, [], {}, -1, 2**64, 10**400, 1.5, "", "nan", (), {"a": {}}, True]
    kind = (list, tuple) if isinstance(value, list) else type(value)
    return source.choice([each for each in wrong if each in (-1, 2**64, 10**400, "nan") or not isinstance(each, kind)])


def damaged_snapshot(source):
    """A snapshot with one thing in it that is wrong: of another type, missing, or out of range."""
    snapshot = SHAPES[source.choice(("complete", "two_devices"))]()
    segment = snapshot["segments"][0]
    trace = snapshot["device_traces"][0] or snapshot["device_traces"][2]
    target, names = source.choice([
        (segment, ("address", "total_size", "blocks", "segment_type", "allocated_size", "stream", "device")),
        (source.choice(segment["blocks"]), ("size", "state", "address")),
        (source.choice([entry for entry in trace if entry["action"] in ("alloc", "free_requested")]),
         ("action", "addr", "size", "stream")),
        (snapshot, ("segments", "device_traces"))])
    name = source.choice(names)
    target[name] = wrong_value(source, target[name])
    return pickled(snapshot, source.randrange(1, 6))


def hostile_pickle(source):
    """A pickle that would run something, or take no end of memory, if it were believed."""
    number = struct.pack("<Q", source.randrange(2**33, 2**63))
    inside = b"\x80\x04}\x8c\x08segments" + source.choice([
        b"cos\nsystem\n\x8c\x04true\x85R", b"\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R", b"(cbuiltins\nexec\no",
        b"]r\xff\xff\xff\x7f", b"\x8d" + number, b"\x8e" + number, b"\x96" + number, b"\x95" + number,
        b"\x8b\xff\xff\xff\x7f", b"]" * source.randrange(1, 200_000), b"\x8f", b"}\x88Ns", b"P1\n", b"\x82\x07",
        b"]]2222b", b"I" + b"7" * 100_000 + b"\n", b"(((((u", b"h\xff", b"N\x81"])
    return inside + b"s."


def cut_pickle(source):
    text = pickled(SHAPES[source.choice(list(SHAPES))](), source.randrange(1, 6))
    return text[:source.randrange(2, len(text))]


def cut_gzip(source):
    text = gzip.compress(source.choice((CSV, RMM, pickled(SHAPES["complete"]()))), mtime=0)
    return text[:source.randrange(2, len(text))]


def bomb(source):
    """A compressed file of nothing but brackets, or of one endless line."""
    return gzip.compress(source.choice((b"\x80\x04" + b"]" * (48 << 20), b"a" * (1 << 20))), 9, mtime=0)


def wrong_field(source):
    text, count = source.choice(((CSV, 4), (RMM, 6)))
    lines = text.splitlines(keepends=True)
    at = source.randrange(1, len(lines))
    fields = lines[at].rstrip().split(b",")
    column = source.randrange(count) if count == 4 else source.randrange(1, count)
    fields[column] = source.choice((b"-1", b"9" * 50, b"0x", b"nan", b"\xff\xfe", b"1 2", b"\0", b"alloc free"))
    lines[at] = b",".join(fields) + b"\n"
    return b"".join(lines)


REFUSED = {
    "csv cut in a row": (20, lambda source: cut_in_a_row(source, CSV, source.randrange(1, 3))),
    "log cut in a row": (20, lambda source: cut_in_a_row(source, RMM, source.randrange(1, 5))),
    "field": (30, wrong_field),
    "pickle cut": (30, cut_pickle),
    "gzip cut": (20, cut_gzip),
    "value": (80, damaged_snapshot),
    "hostile": (40, hostile_pickle),
    "bomb": (4, bomb),
}


@pytest.fixture
def little_memory():
    """Let this process take at most a gibibyte more than it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/status") as file:
        taken = int(re.search(r"VmSize:\s+(\d+)", file.read())[1]) << 10
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture
def refusal(tmp_path, capsys):
    """Function from content to the exit code and the message of a command that reads it."""

    def run(content):
        path = tmp_path / "input"
        path.write_bytes(content)
        code = main(["convert", str(path), str(tmp_path / "out.csv")])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        if code == 2:
            assert captured.out == "" and captured.err.startswith(f"cuda-pool: {path}: ")
            assert os.listdir(tmp_path) == ["input"] and captured.err.count("\n") == 1 and len(captured.err) < 600
        else:
            os.unlink(tmp_path / "out.csv")
        return code, captured.err.removeprefix(f"cuda-pool: {path}: ")

    return run


@pytest.mark.untraced
@pytest.mark.parametrize("kind", REFUSED)
def test_damaged_input_is_refused_with_its_place(refusal, little_memory, kind):
    count, damage = REFUSED[kind]
    for number in range(count):
        code, message = refusal(damage(random.Random(f"{kind} {number}")))
        assert code == 2, number
        assert PLACE.match(message), (number, message)


def flip(source, content, count):
    """Change so many bits of some bytes."""
    changed = bytearray(content)
    for _ in range(count):
        changed[source.randrange(len(changed))] ^= 1 << source.randrange(8)
    return bytes(changed)


@pytest.mark.untraced
def test_flipped_bits(refusal, little_memory):
    """What a flip leaves readable, such as another time or address, is read; the rest is refused with its place."""
    source = random.Random(44)
    sources = [CSV, RMM, gzip.compress(CSV, mtime=0), *(pickled(shape()) for shape in SHAPES.values())]
    refused = 0
    for _ in range(FLIPS):
        code, message = refusal(flip(source, source.choice(sources), source.randrange(1, 4)))
        assert code == 0 or code == 2 and PLACE.match(message), message
        refused += code == 2
    assert refused > FLIPS / 3


@pytest.mark.untraced
@pytest.mark.parametrize("name", SHARED)
def test_damaged_shared_snapshot(refusal, little_memory, shared_path, name):
    content = shared_path("snapshots", f"{name}.pickle").read_bytes()
    source = random.Random(name)
    for _ in range(12):
        code, message = refusal(content[:source.randrange(2, len(content))])
        assert code == 2 and PLACE.match(message)
    for _ in range(12):
        code, message = refusal(flip(source, content, 5))
        assert code == 0 or code == 2 and PLACE.match(message), message
    snapshot = pickle.loads(content)
    segment = (snapshot if isinstance(snapshot, list) else snapshot["segments"])[0]
    for field in ("address", "total_size", "blocks"):
        kept = segment.pop(field)
        code, message = refusal(pickle.dumps(snapshot))
        assert code == 2 and message.startswith(f"segments[0]: '{field}' is missing")
        segment[field] = kept
