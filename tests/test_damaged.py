"""Hundreds of damaged inputs: each is refused with a message that names the place, in little time and memory.

Every command that reads a format has its turn with it.
"""

import gzip
import json
import os
import pickle
import random
import re
import resource
import struct
import subprocess
import sys

import pytest

import cuda_pool as cp
from cuda_pool.cli import main
from cuda_pool.snapshot import Block, Segment, Snapshot, Stream

from .models import optimised
from .snapshots import SHAPES, pickled

ROOM = 1 << 30          # bytes that a refusal may take
SECONDS = 60            # that it may take, on a busy machine
PLACE = re.compile(r"(row \d+|entry \d+|byte \d+( of the unpacked file)?|snapshot|segments|device_traces)[^:]*: \S")
LINE = re.compile(r"(line \d+, column \d+|byte \d+( of the unpacked file)?): \S")
FLIPS = 300
SHARED = ("train_step_amp", "inference_truncated_ring", "oldest_schema", "bare_segment_list",
          "two_devices_expandable_oom", "segments_only")

CSV = b"event,id,size,stream\n" + b"".join(b"alloc,%d,%d,0\nfree,%d,%d,0\n" % (i, 37 * i, i, 37 * i) for i in range(50))
RMM = b"Thread,Time,Action,Pointer,Size,Stream\n" + b"".join(
    b"1,10:22:33.1,allocate,0x7f%04x00,%d,0x0\n1,10:22:33.2,free,0x7f%04x00,%d,0x0\n" % (i, i, i, i)
    for i in range(50))
SNAPSHOT = json.dumps(Snapshot(
    "virtual", 1 << 30, 8 << 20, 0, 3 << 20, 2 << 20, 65536, (Stream(0, 1, "default"), Stream(77, 5, "handle")),
    (Segment(1 << 44, 4 << 20, (
        Block(1 << 44, 2 << 20, 100, "live", "mid", 1, 9, True),
        Block((1 << 44) + (2 << 20), 1 << 20, 0, "free", "mid"),
        Block((1 << 44) + (3 << 20), 1 << 20, 0, "unmapped", "buddy", 0))),), "a test").as_dict()).encode()
PROFILE = json.dumps({
    "format": "cuda_pool profile", "version": 1, "created_by": "a test", "peak_requested": 900, "peak_used": 1000,
    "peak_reserved": 2000, "allocations": 7, "streams": [{"size_classes": {"256": 3, "512": 1}}, {"size_classes": {}}],
    "larger": {"65536": {"bytes": 70_000, "blocks": 1}},
    "settings": {"slab_max": 16384, "mid_max": 1 << 30, "min_block": 65536}}, indent=1).encode()

# What reads a format; IN is the damaged file, GOOD a trace that is whole.
OF_TRACES = [["replay", "IN"], ["fit", "IN", "--no-search"], ["compare", "IN"], ["convert", "IN", "out.csv"],
             ["map", "--trace", "IN", "--out", "out.svg"], ["replay", "IN", "--map", "out.html"],
             ["compare", "GOOD", "IN"]]
OF_SNAPSHOTS = [["map", "IN", "--out", "out.svg"], ["map", "IN", "--out", "out.html"]]
OF_PROFILES = [["replay", "GOOD", "--profile", "IN"],
               ["replay", "GOOD", "--profile", "IN", "--save-profile", "out.json"]]


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


def paths_of(value):
    """Yield the way to every value inside of one of JSON, and that value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (key,), inner
        for path, innermost in paths_of(inner):
            yield (key, *path), innermost


def wrong_json(text):
    """Return a function that makes a copy of a file with one value that is never right there."""

    def damage(source):
        values = json.loads(text)
        path, right = source.choice([(path, value) for path, value in paths_of(values)
                                     if value is not None and path[0] != "fields"])
        wrong = [[], {}, -1, 2**64, 10**400, 1.5, float("nan"), float("-inf"), "", "nan", True, {"a": {}}, [[]] * 100]
        at = values
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = source.choice([each for each in wrong if type(each) is not type(right)
                                      or isinstance(right, int) and each in (-1, 2**64, 10**400)
                                      or isinstance(right, str) and path[-1] not in ("created_by", "kind")])
        return json.dumps(values).encode()

    return damage


def cut_text(text):
    return lambda source: text[:source.randrange(len(text.rstrip()))]


def cut_packed(text):
    packed = gzip.compress(text, mtime=0)
    return lambda source: packed[:source.randrange(2, len(packed))]


def foreign(source):
    """Something else than JSON of ours."""
    return source.choice((b"", b"\xff\xfe", b"{}", b"null", b"[]", b"\0" * 100, CSV, RMM, pickled(SHAPES["bare"]()),
                          b'{"format": "cuda_pool snapshot"}', b'{"format": "cuda_pool profile"}',
                          b'{"version": 1, "version": 1}', b'{"a": NaN5}', b"1" * 100_000, b"\xef\xbb\xbf{}"))


def json_bomb(source):
    """A compressed file of nothing but brackets, blanks, or values that take far more memory than text."""
    return gzip.compress(source.choice((b"[" * (32 << 20), b" " * (200 << 20), b"[" + b"[]," * (8 << 20),
                                        b'{"a":' * (4 << 20), b"[" + b"7" * (24 << 20))), 9, mtime=0)


REFUSED = {
    "csv cut in a row": (21, lambda source: cut_in_a_row(source, CSV, source.randrange(1, 3)), OF_TRACES),
    "log cut in a row": (21, lambda source: cut_in_a_row(source, RMM, source.randrange(1, 5)), OF_TRACES),
    "field": (35, wrong_field, OF_TRACES),
    "pickle cut": (35, cut_pickle, OF_TRACES),
    "gzip cut": (21, cut_gzip, OF_TRACES),
    "value": (84, damaged_snapshot, OF_TRACES),
    "hostile": (42, hostile_pickle, OF_TRACES),
    "bomb": (4, bomb, OF_TRACES),
    "snapshot cut": (12, cut_text(SNAPSHOT), OF_SNAPSHOTS),
    "snapshot packed and cut": (12, cut_packed(SNAPSHOT), OF_SNAPSHOTS),
    "snapshot value": (60, wrong_json(SNAPSHOT), OF_SNAPSHOTS),
    "snapshot foreign": (16, foreign, OF_SNAPSHOTS),
    "snapshot bomb": (4, json_bomb, OF_SNAPSHOTS),
    "profile cut": (12, cut_text(PROFILE), OF_PROFILES),
    "profile packed and cut": (12, cut_packed(PROFILE), OF_PROFILES),
    "profile value": (60, wrong_json(PROFILE), OF_PROFILES),
    "profile foreign": (16, foreign, OF_PROFILES),
    "profile bomb": (4, json_bomb, OF_PROFILES),
}


def names_a_place(kind, message):
    """Whether a message says where the fault is: a line or byte, or a key of the file."""
    if kind.startswith(("snapshot", "profile")):
        text = SNAPSHOT if kind.startswith("snapshot") else PROFILE
        keys = {key for path, _ in paths_of(json.loads(text)) for key in path if isinstance(key, str)}
        return LINE.match(message) or any(re.search(rf"\b{key}\b", message) for key in keys)
    return PLACE.match(message)


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
def refusal(tmp_path, capsys, monkeypatch):
    """Function from content and a command to the exit code and the message, without the file's name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "GOOD").write_bytes(CSV)

    def run(content, command=OF_TRACES[3]):
        (tmp_path / "IN").write_bytes(content)
        code = main(command)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        if code == 2:
            assert captured.out == "" and captured.err.startswith("cuda-pool: IN: ")
            assert sorted(os.listdir(tmp_path)) == ["GOOD", "IN"] and (tmp_path / "GOOD").read_bytes() == CSV
            assert captured.err.count("\n") == 1 and len(captured.err) < 600
        else:
            for path in tmp_path.glob("out.*"):
                path.unlink()
        return code, captured.err.removeprefix("cuda-pool: IN: ")

    return run


@pytest.mark.untraced
@pytest.mark.parametrize("kind", REFUSED)
def test_damaged_input_is_refused_with_its_place(refusal, little_memory, kind):
    count, damage, commands = REFUSED[kind]
    for number in range(count):
        code, message = refusal(damage(random.Random(f"{kind} {number}")), commands[number % len(commands)])
        assert code == 2, (number, message)
        assert names_a_place(kind, message), (number, message)


def gibibyte_at_most():
    resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))


@optimised                      # a sanitizer takes terabytes of addresses
@pytest.mark.untraced
@pytest.mark.parametrize("kind", REFUSED)
def test_a_refusal_takes_less_than_a_gibibyte_and_leaves_nothing(tmp_path, kind):
    """The whole process, for what it takes to find a fault; twice for what is made to take much."""
    _, damage, commands = REFUSED[kind]
    (tmp_path / "GOOD").write_bytes(CSV)
    for number in range(1 + 2 * ("bomb" in kind)):
        (tmp_path / "IN").write_bytes(damage(random.Random(f"child {kind} {number}")))
        done = subprocess.run([sys.executable, "-m", "cuda_pool", *commands[number % len(commands)]], cwd=tmp_path,
                              preexec_fn=gibibyte_at_most, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 2 and done.stdout == "", done.stderr
        assert done.stderr.startswith("cuda-pool: IN: ") and done.stderr.count("\n") == 1
        assert names_a_place(kind, done.stderr.removeprefix("cuda-pool: IN: "))
        assert sorted(os.listdir(tmp_path)) == ["GOOD", "IN"]


@pytest.mark.untraced
@pytest.mark.parametrize("kind", [kind for kind in REFUSED if kind.startswith("profile")])
def test_a_damaged_profile_makes_no_pool(tmp_path, make_device, kind):
    _, damage, _ = REFUSED[kind]
    path, device = tmp_path / "profile.json", make_device("64MiB")
    with cp.Pool("1MiB", device=device) as other:
        other.alloc(1000)
        before, calls, held = other.snapshot(), dict(device.calls), dict(device.live)
        for number in range(2 if "bomb" in kind else 20):
            path.write_bytes(damage(random.Random(f"pool {kind} {number}")))
            with pytest.raises(cp.ProfileError) as error:
                cp.Pool(device=device, growth="predictive", profile=path)
            assert error.value.path == str(path) and names_a_place(kind, error.value.reason)
        assert (other.snapshot(), dict(device.calls), dict(device.live)) == (before, calls, held)
        assert os.listdir(tmp_path) == ["profile.json"]
        other.check()


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
    traces = [CSV, RMM, gzip.compress(CSV, mtime=0), *(pickled(shape()) for shape in SHAPES.values())]
    sources = [*(("trace", content, OF_TRACES) for content in traces),
               *((kind, content, commands) for kind, text, commands in (
                   ("snapshot", SNAPSHOT, OF_SNAPSHOTS), ("profile", PROFILE, OF_PROFILES))
                 for content in (text, gzip.compress(text, mtime=0)))]
    refused = 0
    for number in range(FLIPS):
        kind, content, commands = source.choice(sources)
        code, message = refusal(flip(source, content, source.randrange(1, 4)), commands[number % len(commands)])
        assert code in (0, 1) or code == 2 and names_a_place(kind, message), message
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
