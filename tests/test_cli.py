"""The command line: what it prints, what it writes, and what it answers to bad input."""

import gzip
import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cuda_pool import Pool, __version__
from cuda_pool.cli import main, output
from cuda_pool.sizes import parse_size

from .models import OPTIMISED, optimised

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
RESNET = str(EXAMPLES / "resnet50_b64_train.csv.gz")
SERVING = str(EXAMPLES / "llama_serve_growing_kv.csv.gz")
HEADER = b"event,id,size,stream\n"
GOOD = HEADER + b"".join(b"alloc,%d,%d,0\nfree,%d,%d,0\n" % (i, 37 * i, i, 37 * i) for i in range(2000))
PACKED = gzip.compress(GOOD, mtime=0)
MIB = 1 << 20


def flipped(content, position, bit=0):
    changed = bytearray(content)
    changed[position] ^= 1 << bit
    return bytes(changed)


def rows(*lines):
    return HEADER + b"alloc,1,256,0\n" + b"".join(line + b"\n" for line in lines)


# Content of the file, and the row that is at fault: None where it depends on how far the decompression gets.
DAMAGED = {
    "empty": (b"", 1),
    "one newline": (b"\n", 1),
    "blank": (b"   \n\n", 1),
    "no header": (GOOD[len(HEADER):], 1),
    "header of three": (b"event,id,size\n", 1),
    "header of five": (b"event,id,size,stream,time\n", 1),
    "header in another order": (b"id,event,size,stream\n", 1),
    "header in capitals": (b"EVENT,ID,SIZE,STREAM\n", 1),
    "header with semicolons": (b"event;id;size;stream\n", 1),
    "header with a NUL": (b"event,id,size,stream\0\n", 1),
    "header cut": (b"event,id,si", 1),
    "other log": (b"Thread,Time,Action,Address,Size,Stream\n", 1),
    "json": (b'{"segments": []}', 1),
    "utf-16": (GOOD.decode().encode("utf-16"), 1),
    "zip": (b"PK\x03\x04" + bytes(60), 1),
    "zeros": (bytes(5000), 1),
    "lone carriage returns": (GOOD.replace(b"\n", b"\r"), 1),
    "one field": (rows(b"alloc"), 3),
    "three fields": (rows(b"alloc,2,256"), 3),
    "five fields": (rows(b"alloc,2,256,0,0"), 3),
    "row cut": (GOOD[:GOOD.rindex(b",")], 4001),
    "commas": (rows(b",,,"), 3),
    "second header": (rows(b"event,id,size,stream"), 3),
    "comment": (rows(b"# a comment"), 3),
    "unknown event": (rows(b"realloc,2,256,0"), 3),
    "event in capitals": (rows(b"ALLOC,2,256,0"), 3),
    "event quoted": (rows(b'"alloc",2,256,0'), 3),
    "event empty": (rows(b",2,256,0"), 3),
    "event of another log": (rows(b"allocate,2,256,0"), 3),
    "id empty": (rows(b"alloc,,256,0"), 3),
    "id negative": (rows(b"alloc,-2,256,0"), 3),
    "id with a plus": (rows(b"alloc,+2,256,0"), 3),
    "id hexadecimal": (rows(b"alloc,0x2f,256,0"), 3),
    "id fractional": (rows(b"alloc,2.0,256,0"), 3),
    "id text": (rows(b"alloc,two,256,0"), 3),
    "id beyond 64 bits": (rows(b"alloc,18446744073709551616,256,0"), 3),
    "id of 400 digits": (rows(b"alloc," + b"9" * 400 + b",256,0"), 3),
    "size empty": (rows(b"alloc,2,,0"), 3),
    "size negative": (rows(b"alloc,2,-256,0"), 3),
    "size minus zero": (rows(b"alloc,2,-0,0"), 3),
    "size fractional": (rows(b"alloc,2,256.5,0"), 3),
    "size with exponent": (rows(b"alloc,2,1e9,0"), 3),
    "size with unit": (rows(b"alloc,2,256KiB,0"), 3),
    "size with separators": (rows(b"alloc,2,1_000,0"), 3),
    "size not a number": (rows(b"alloc,2,nan,0"), 3),
    "size infinite": (rows(b"alloc,2,inf,0"), 3),
    "size with a gap": (rows(b"alloc,2,25 6,0"), 3),
    "size of 2**63": (rows(b"alloc,2,9223372036854775808,0"), 3),
    "size of 2**64 + 1": (rows(b"alloc,2,18446744073709551617,0"), 3),
    "size of 4000 digits": (rows(b"alloc,2," + b"1" * 4000 + b",0"), 3),
    "size of a free negative": (rows(b"free,1,-1,0"), 3),
    "stream empty": (rows(b"alloc,2,256,"), 3),
    "stream negative": (rows(b"alloc,2,256,-1"), 3),
    "stream text": (rows(b"alloc,2,256,main"), 3),
    "digits of another script": (rows("alloc,2,٢٥٦,0".encode()), 3),
    "NUL in a field": (rows(b"alloc,2,2\x0056,0"), 3),
    "NUL bytes at the end": (GOOD + bytes(4096), 4002),
    "high bytes": (rows(b"\xff\xfe\xfd\xfc"), 3),
    "id allocated twice": (rows(b"alloc,2,256,0", b"alloc,1,256,0"), 4),
    "id allocated again after its free": (rows(b"free,1,256,0", b"\r", b"alloc,1,256,0"), 5),
    "too much live": (rows(b"alloc,2,9223372036854775807,0"), 3),
    "too much live before": (rows(b"free,8,9223372036854775807,0", b"free,9,1,0"), 4),
    "line without an end": (HEADER + b"a" * 3_000_000, 2),
    "line too long": (rows(b"alloc,2,256," + b" " * 5000 + b"0"), 3),
    "fault in a late piece": (GOOD + HEADER * 200_000, 4002),
    "gzip of nothing": (gzip.compress(b""), 1),
    "gzip of other text": (gzip.compress(b"hello\n"), 1),
    "gzip of a bad row": (gzip.compress(rows(b"alloc,2,x,0")), 3),
    "gzip of gzip": (gzip.compress(PACKED), 1),
    "gzip magic only": (PACKED[:2], 1),
    "gzip header only": (PACKED[:10], 1),
    "gzip cut at a quarter": (PACKED[:len(PACKED) // 4], None),
    "gzip cut in the middle": (PACKED[:len(PACKED) // 2], None),
    "gzip cut before its checksum": (PACKED[:-8], None),
    "gzip cut by one byte": (PACKED[:-1], None),
    "gzip with a method that does not exist": (flipped(PACKED, 2), 1),
    "gzip with a bit flipped early": (flipped(PACKED, 40), None),
    "gzip with a bit flipped in the middle": (flipped(PACKED, len(PACKED) // 2, 3), None),
    "gzip with a wrong checksum": (flipped(PACKED, len(PACKED) - 6), 4002),
    "gzip with a wrong length": (flipped(PACKED, len(PACKED) - 2), 4002),
    "gzip with bytes after it": (PACKED + b"more", 4002),
    "gzip with a cut second member": (PACKED + gzip.compress(b"free,1,2,0\n" * 1000)[:-9], None),
}


def shell(*arguments, cwd, **options):
    """Run the command in a process of its own, away from the source tree."""
    return subprocess.run([sys.executable, "-m", "cuda_pool", *arguments], cwd=cwd, capture_output=True, text=True,
                          timeout=120, **options)


def refused(capsys, *arguments):
    """Run the command, which has to answer 2 and leave stdout alone; return its message."""
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "Traceback" not in captured.err
    return captured.err


@pytest.fixture
def short(tmp_path):
    path = tmp_path / "short.csv"
    path.write_bytes(HEADER + b"alloc,1,3000000,0\nalloc,2,9000000,0\nfree,1,3000000,0\n")
    return str(path)


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_trace(tmp_path, capsys, kind):
    content, row = DAMAGED[kind]
    path = tmp_path / "damaged.csv"
    path.write_bytes(content)
    for command in ("replay", "fit"):
        message = refused(capsys, command, str(path), "--json", str(tmp_path / "out.json"))
        assert message.startswith(f"cuda-pool: {path}: row ") and message.count("\n") == 1 and len(message) < 500
        found = int(message.removeprefix(f"cuda-pool: {path}: row ").split(":")[0])
        assert 1 <= found if row is None else found == row
    assert os.listdir(tmp_path) == ["damaged.csv"]


def test_damaged_trace_in_a_process(tmp_path):
    (tmp_path / "bad.csv").write_bytes(DAMAGED["size negative"][0])
    done = shell("replay", "bad.csv", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ("cuda-pool: bad.csv: row 3: '-256' is no size: "
                           "expected an integer from 0 to 9223372036854775807 (bytes)\n")


def test_missing_trace_and_folder(tmp_path, capsys):
    assert "No such file" in refused(capsys, "replay", str(tmp_path / "none.csv"))
    assert "Is a directory" in refused(capsys, "fit", str(tmp_path))


def test_case_44_orphans_are_replayed_and_counted(tmp_path, capsys):
    path = tmp_path / "ring.csv"
    path.write_bytes(HEADER + b"free,70,1234567,0\nalloc,1,4097,0\nfree,71,0,0\nfree,1,4097,0\nfree,1,4097,0\n")
    assert main(["replay", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("orphan frees" in line and " 3 " in line for line in lines)
    assert any("preexisting" in line and " 1 block" in line and "1234567 bytes" in line for line in lines)
    assert main(["replay", str(path), "--json", "-"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["orphan_frees"], values["preexisting"], values["peak_live"]) == (3, 1, 1234567)


def test_case_45_failed_replay_ends_with_1_and_names_the_row(short, tmp_path, capsys):
    assert main(["replay", short, "--capacity", "8MiB", "--json", str(tmp_path / "out.json")]) == 1
    text = capsys.readouterr().out
    assert "row 3" in text and "9000000 bytes" in text and "cuda-pool fit" in text and "largest free" in text
    values = json.loads((tmp_path / "out.json").read_text())
    assert values["failed_row"] == 3 and values["failure"]["requested"] == 9000000
    assert values["ns_per_event"] is None


def test_a_failure_is_explained_and_the_advice_tried(short, tmp_path, capsys):
    assert main(["replay", short, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["diagnosis"] is None
    assert main(["replay", short, "--capacity", "8MiB", "--json", str(tmp_path / "out.json")]) == 1
    text = capsys.readouterr().out
    diagnosis = json.loads((tmp_path / "out.json").read_text())["diagnosis"]
    assert [cause["kind"] for cause in diagnosis["causes"]] == ["small"]
    assert "the pool is too small (certain)" in text
    assert diagnosis["advice"][0]["setting"] == 'capacity="12MiB"'
    for advice in diagnosis["advice"]:
        assert advice["helps"] and advice["setting"] in " ".join(text.split())
        growth = advice["options"].get("growth", "static")
        assert main(["replay", short, "--capacity", str(advice["capacity"]), "--growth", growth]) == 0


def test_a_failure_is_explained_on_a_terminal(short, tmp_path):
    pytest.importorskip("rich")
    code, text = on_a_terminal("-m", "cuda_pool", "replay", short, "--capacity", "8MiB", cwd=tmp_path)
    assert code == 1 and "Why" in text and "What has the memory" in text and "the pool is too small" in text


def test_case_45_in_a_process(short, tmp_path):
    done = shell("replay", short, "--capacity", "8MiB", cwd=tmp_path)
    assert done.returncode == 1 and "row 3" in done.stdout and done.stderr == ""


def test_case_45_trace_that_no_pool_can_serve(tmp_path, capsys):
    path = tmp_path / "huge.csv"
    path.write_bytes(HEADER + b"alloc,1,100,0\nalloc,2,9000000000000000000,0\n")
    for command in ("replay", "fit"):
        assert main([command, str(path)]) == 1
        assert "row 3" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["1e3MB", "", "12 bananas", "-1", "1.2.3GiB", "GiB", "1 GiB 2", "0x10", "nan"])
def test_case_46_text_that_is_no_size(short, capsys, text):
    for option in ("--capacity", "--slab-max", "--mid-max", "--min-block"):
        message = refused(capsys, "replay", short, f"{option}={text}")
        assert option in message
        assert all(accepted in message for accepted in ("512KiB", "8GiB", "1GB"))


def test_case_46_text_that_is_a_size(short, capsys):
    assert parse_size("1TiB") == 1_099_511_627_776
    assert main(["replay", short, "--capacity", "0.0625GiB", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["capacity"] == 64 * MIB


def test_replay_prints_a_summary(capsys):
    assert main(["replay", RESNET]) == 0
    text = capsys.readouterr().out
    for part in ("simulated", "35754", "5779181712", "1.25 x peak live", "ratio", "ns per event", "malloc"):
        assert part in text
    assert "orphan" not in text


def test_the_time_of_a_few_events_is_not_told(short, capsys):
    assert main(["replay", short]) == 0
    text = capsys.readouterr().out
    assert "fewer than 1,000 events" in text and " ns " not in text
    assert main(["replay", short, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["ns_per_event"] > 0


def test_a_result_is_not_written_over_the_trace(short, tmp_path, capsys):
    before = Path(short).read_bytes()
    for command in ("convert", short, short), ("replay", short, "--save-profile", short), (
            "replay", short, "--json", short):
        assert refused(capsys, *command).endswith(
            f"cuda-pool: {short}: that is the trace, which the result would replace: expected another file\n")
    assert Path(short).read_bytes() == before


@pytest.mark.parametrize("options", [
    ("--map", "a.svg", "--json", "a.svg"), ("--save-profile", "p", "--json", "./p"),
    ("--map", "link.html", "--json", "p")])
def test_two_results_in_one_file(short, tmp_path, capsys, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    Path("p").write_text("before")
    Path("link.html").symlink_to("p")
    assert "two results would go there: expected another file for one of them" in refused(
        capsys, "replay", short, *options)
    assert Path("p").read_text() == "before" and not Path("a.svg").exists()


def test_results_that_nobody_wants_go_to_one_place(short, capsys):
    assert main(["replay", short, "--save-profile", "/dev/null", "--json", "/dev/null"]) == 0
    assert "replayed" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["x", "1.5", "", "9" * 5000])
def test_numbers_say_what_is_accepted(short, capsys, text):
    for command, option in ("replay", "--lag"), ("replay", "--seed"), ("compare", "--lag"):
        message = refused(capsys, command, short, option, text)
        assert "is no such number: expected an integer" in message and len(message) < 1500


def test_a_profile_that_cannot_be_written_is_refused_beforehand(short, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("cuda_pool._rounds.Pool", None)      # which a replay would need
    assert "No such file or directory" in refused(
        capsys, "replay", short, "--save-profile", str(tmp_path / "none" / "p.json"))


def test_replay_as_json(capsys):
    assert main(["replay", RESNET, "--repeats", "2", "--json", "-"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["events"] == 35754 and values["peak_live"] == values["peak_requested"] == 5779181712
    assert values["ratio"] == values["peak_reserved"] / values["peak_live"]
    assert values["ratio_to_malloc"] == values["ns_per_event"] / values["malloc_ns_per_event"]
    assert values["failed_row"] is None and values["repeats"] == 2 and values["simulated"] is True


def test_settings_reach_the_pool(capsys):
    assert main(["replay", RESNET, "--capacity", "12GiB", "--mid-max", "1MiB", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["mid_max"] == MIB


def test_fit_prints_and_writes(tmp_path, capsys):
    path = tmp_path / "fit.json"
    assert main(["fit", RESNET, "--no-search", "--json", str(path)]) == 0
    values = json.loads(path.read_text())
    assert str(values["min_capacity"]) in capsys.readouterr().out
    assert values["ratio"] == values["min_capacity"] / values["peak_live"] >= 1
    assert values["best"] is None and set(values["settings"]) == {"slab_max", "mid_max", "min_block"}
    assert main(["replay", RESNET, "--capacity", str(values["min_capacity"])]) == 0


def test_fit_searches(capsys):
    assert main(["fit", RESNET, "--json", "-"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["best"]["min_capacity"] <= values["min_capacity"]
    assert set(values["best"]) == {"min_capacity", "ratio", "settings", "cross_stream_waits", "host_waits"}


def test_info(capsys):
    assert main(["info"]) == 0
    assert __version__ in capsys.readouterr().out
    assert main(["info", "--json", "-"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["version"] == __version__ and isinstance(values["devices"], list)
    assert values["devices"] or "sim.Device" in values["error"]


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"cuda-pool {__version__}\n"


def test_help_names_the_exit_codes(capsys):
    assert main(["--help"]) == 0
    assert "exit codes" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [
    [], ["replay"], ["frobnicate"], ["replay", "a", "b"], ["replay", "a", "--lag", "x"],
    ["replay", "a", "--seed", "x"], ["replay", "a", "--reuse", "maybe"], ["fit", "a", "--reuse", "maybe"],
    ["replay", "a", "--repeats", "0"],
    ["replay", "a", "--repeats", "-3"], ["replay", "a", "--device", "gpu"], ["replay", "a", "--device", "-1"],
    ["replay", "a", "--json"], ["fit", "a", "--capacity", "1GiB"], ["info", "a"],
], ids=" ".join)
def test_bad_arguments(capsys, arguments):
    assert "cuda-pool" in refused(capsys, *arguments)


def test_values_that_are_not_accepted(short, capsys):
    assert "from 0 to 2**40" in refused(capsys, "replay", short, "--lag", "-3")
    assert "from 0 to 2**40" in refused(capsys, "fit", short, "--lag", str(2**40 + 1))
    assert "accepted on a CUDA device: 0" in refused(capsys, "replay", short, "--lag", "3", "--device", "0")
    assert "malloc" in refused(capsys, "replay", short, "--backing", "paper")
    assert "malloc" in refused(capsys, "fit", short, "--backing", "paper")
    assert "static" in refused(capsys, "replay", short, "--growth", "wild")


@pytest.mark.parametrize("capacity", ["0", "255", "513GiB", "100TiB"])
def test_capacity_that_no_pool_has(short, capsys, capacity):
    for command in (["replay", short], ["map", "--trace", short]):
        assert "capacity is from 256 bytes to 512.00 GiB, got " in refused(capsys, *command, "--capacity", capacity)


def test_a_share_is_no_capacity_of_a_replay(short, capsys):
    assert "--capacity: capacity is from 256 bytes to 512.00 GiB, got '0.75', which is 0 bytes" in refused(
        capsys, "replay", short, "--capacity", "0.75")


def test_capacity_of_too_many_digits(short, capsys):
    message = refused(capsys, "replay", short, "--capacity", "9" * 5000)
    assert "at most 40 digits" in message and len(message) < 1500


WITH_LITTLE_MEMORY = """
import re, resource, sys
from cuda_pool.cli import main
room = 8 << 20
taken = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (taken + room, taken + room))
sys.exit(main(sys.argv[1:]))
"""


@optimised                      # a sanitizer takes terabytes of addresses
@pytest.mark.parametrize("command", ["replay", "fit"])
def test_host_without_memory(tmp_path, command):
    (tmp_path / "long.csv").write_bytes(HEADER + b"free,1,0,0\n" * 1_000_000)
    done = subprocess.run([sys.executable, "-c", WITH_LITTLE_MEMORY, command, "long.csv"], cwd=tmp_path,
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stdout == "", done.stderr
    assert re.fullmatch(r"cuda-pool: (row \d+: )?(no host memory|the host has too little memory).*\n", done.stderr)


@pytest.mark.parametrize("backing", ["malloc", "virtual"])
@pytest.mark.parametrize("command", ["replay", "fit"])
def test_host_that_limits_addresses(tmp_path, command, backing):
    (tmp_path / "large.csv").write_bytes(HEADER + b"alloc,1,8000000000,0\n")
    done = subprocess.run([sys.executable, "-c", WITH_LITTLE_MEMORY.replace("8 << 20", "1 << 30"), command, "large.csv",
                           "--backing", backing], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stderr.endswith("which may have a limit (ulimit -v) or be full\n")


def test_host_without_memory_and_without_words(monkeypatch, capsys):
    """The interpreter's own MemoryError has no text."""
    def info():
        raise MemoryError

    monkeypatch.setattr("cuda_pool._cuda.info", info)
    assert refused(capsys, "info") == "cuda-pool: the host has too little memory\n"


def test_streams_that_are_not_played_are_no_secret(tmp_path, capsys):
    path = tmp_path / "two.csv"
    path.write_bytes(HEADER + b"alloc,1,4096,0\nalloc,2,4096,1\nfree,1,4096,0\n")
    assert main(["replay", str(path)]) == 0
    assert any(line.split()[:2] == ["streams", "2;"] and "program order" in line
               for line in capsys.readouterr().out.splitlines())
    assert main(["replay", str(path), "--json", "-"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["streams"], values["cross_stream_waits"]) == (2, 0)


@pytest.fixture
def two_streams(tmp_path):
    path = tmp_path / "two.csv"
    path.write_bytes(HEADER + b"alloc,1,6000000,0\nfree,1,6000000,0\nalloc,2,6000000,1\nfree,2,6000000,1\n")
    return str(path)


def test_replay_with_a_lag(two_streams, capsys):
    arguments = ["replay", two_streams, "--capacity", "8MiB", "--lag", "100", "--seed", "3"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "2, the device 100 events behind the host" in text and "program order" not in text
    assert "between streams" in text and "races" not in text
    assert main(["replay", SERVING, "--lag", "3"]) == 0
    assert "ns per event, the simulated device included" in capsys.readouterr().out
    assert main([*arguments, "--json", "-"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["lag"], values["seed"], values["reuse"], values["streams"]) == (100, 3, None, 2)
    assert (values["races"], values["misuses"], values["findings"]) == (0, 0, [])
    assert values["cross_stream_waits"] + values["host_waits"] == 1
    assert values["malloc_ns_per_event"] is None and values["ratio_to_malloc"] is None


def test_fit_with_a_lag(two_streams, capsys):
    assert main(["fit", two_streams, "--no-search", "--lag", "100"]) == 0
    text = capsys.readouterr().out
    assert "100 events behind the host" in text and "between streams" in text
    assert main(["fit", two_streams, "--no-search", "--lag", "100", "--seed", "1", "--json", "-"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["lag"], values["seed"], values["races"], values["misuses"]) == (100, 1, 0, 0)
    assert values["cross_stream_waits"] + values["host_waits"] == 1


class Disturbed(Pool):
    """A pool whose region something else uses as well."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        [(region, nbytes)] = self.device.live.items()
        self.device.stream(blocking=False).write(region, nbytes, 1)


@pytest.mark.parametrize("command", [["replay"], ["fit", "--no-search"]], ids=" ".join)
def test_races_end_with_1_and_are_shown(two_streams, monkeypatch, capsys, command):
    monkeypatch.setattr("cuda_pool._rounds.Pool", Disturbed)
    assert main([*command, two_streams, "--lag", "100"]) == 1
    text = capsys.readouterr().out
    assert "races" in text and "nothing orders write on stream" in text and "defect of cuda_pool" in text
    assert main([*command, two_streams]) == 0


def test_device_that_is_not_there(short, capsys):
    main(["info", "--json", "-"])
    devices = json.loads(capsys.readouterr().out)["devices"]
    message = refused(capsys, "replay", short, "--device", str(len(devices) + 5))
    assert devices or "cp.sim.Device" in message


@pytest.mark.gpu
def test_replay_on_a_device(short, capsys, cuda_device):
    assert main(["replay", short, "--device", "0", "--json", "-"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["simulated"] is False and values["failed_row"] is None


def test_json_that_cannot_be_written(short, tmp_path, capsys):
    for target in (tmp_path, tmp_path / "none" / "out.json", Path(short) / "out.json"):
        assert "--json" in refused(capsys, "replay", short, "--json", str(target))


def test_json_to_a_full_device(short, capsys):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    assert main(["replay", short, "--json", "/dev/full"]) == 2
    assert "No space left" in capsys.readouterr().err


def test_old_json_is_kept_when_the_trace_is_bad(tmp_path, capsys):
    path, target = tmp_path / "bad.csv", tmp_path / "out.json"
    path.write_bytes(b"nonsense")
    target.write_text("old")
    refused(capsys, "replay", str(path), "--json", str(target))
    assert target.read_text() == "old"


def test_output_in_a_pipe_has_no_progress_and_no_escapes(tmp_path):
    done = shell("replay", SERVING, "--repeats", "3" if OPTIMISED else "1", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == "" and "\x1b" not in done.stdout


def on_a_terminal(*arguments, cwd, **environment):
    """Run the command with stdout and stderr on a terminal; return the exit code and what it wrote."""
    process, terminal = start_on_a_terminal(*arguments, cwd=cwd, **environment)
    written = "".join(pieces_from(terminal))
    os.close(terminal)
    return process.wait(120), written


def heed_interrupts():
    """In a child: a background job of a shell starts with SIGINT ignored, and hands that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start_on_a_terminal(*arguments, cwd, **environment):
    """Start the command with stdout and stderr on a terminal; return the process and the end that reads."""
    terminal, other_end = pty.openpty()
    process = subprocess.Popen([sys.executable, *arguments], cwd=cwd, stdout=other_end, stderr=other_end,
                               env={**os.environ, "TERM": "xterm", "COLUMNS": "100", **environment},
                               preexec_fn=heed_interrupts)
    os.close(other_end)
    return process, terminal


def pieces_from(terminal):
    """Yield what is written to a terminal until the other end is closed."""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:         # how Linux says that the other end is closed
            return
        yield piece.decode(errors="replace")


def test_progress_on_a_terminal(tmp_path):
    pytest.importorskip("rich")
    repeats = "20" if OPTIMISED else "1"
    code, text = on_a_terminal("-m", "cuda_pool", "replay", SERVING, "--repeats", repeats, cwd=tmp_path)
    assert code == 0 and "%" in text and "\x1b[" in text and "peak live" in text


@pytest.mark.parametrize("arguments, labels", [
    (["compare", SERVING], ["read", "llama_serve_growing_kv.csv.gz"]),
    (["convert", SERVING, "out.pickle"], ["read", "write"]),
    (["map", "--trace", SERVING, "--out", "out.html"], ["read", "map", "draw"]),
    (["compare", "some [red]b.csv"], ["read", "some [red]b.csv"])], ids=["compare", "convert", "map", "markup"])
def test_every_command_shows_progress(tmp_path, arguments, labels):
    pytest.importorskip("rich")
    (tmp_path / "some [red]b.csv").write_bytes(GOOD)
    code, text = on_a_terminal("-m", "cuda_pool", *arguments, cwd=tmp_path)
    assert code == 0 and "%" in text and "Traceback" not in text
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)
    assert all(re.search(rf"{re.escape(label)} +[━╺╸]", shown) for label in labels)


def test_a_comparison_fits_into_80_columns(tmp_path):
    pytest.importorskip("rich")
    code, text = on_a_terminal("-m", "cuda_pool", "compare", RESNET, cwd=tmp_path, COLUMNS="80")
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)
    assert code == 0 and re.search(r"cuda_pool_virtual_growing +│ +\d\.\d{4} +[\d.]+ GiB \(\d+ bytes\) +│", shown)
    assert "resnet50_b64_train.csv.gz" in re.sub(r"\s|│", "", shown)


@optimised
@pytest.mark.untraced
@pytest.mark.parametrize("before, after, seconds", [
    (["compare"], [], 60), (["map", "--trace"], ["--out", "map.html"], 10), (["convert"], ["out.csv"], 10),
    (["convert"], ["out.pickle"], 10), (["convert"], ["out.log.gz"], 10)])
def test_181_430_events_are_done_in_time(tmp_path, monkeypatch, before, after, seconds):
    monkeypatch.chdir(tmp_path)
    started = time.process_time()
    assert main([*before, SERVING, *after]) == 0
    assert time.process_time() - started < seconds


def test_progress_of_a_fit_on_a_terminal(tmp_path):
    pytest.importorskip("rich")
    code, text = on_a_terminal("-m", "cuda_pool", "fit", SERVING, cwd=tmp_path)
    assert code == 0 and "%" in text and "\x1b[" in text and "Why" in text


# Seconds of processor time for 181,430 events; what is measured is a third of it or less.
@optimised
@pytest.mark.parametrize("seconds, arguments", [
    (1, ["replay", SERVING]), (1.5, ["replay", SERVING, "--capacity", "5.95GiB"]), (10, ["fit", SERVING])],
    ids=["replay", "replay that fails", "fit"])
def test_a_long_trace_takes_no_time(tmp_path, seconds, arguments):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = shell(*arguments, cwd=tmp_path)
    assert done.returncode == (1 if "--capacity" in arguments else 0)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < seconds


WITHOUT_RICH = """
import sys
sys.modules["rich"] = None
from cuda_pool.cli import main
sys.exit(main(sys.argv[1:]))
"""


@optimised
def test_without_rich(tmp_path):
    code, text = on_a_terminal("-c", WITHOUT_RICH, "replay", RESNET, cwd=tmp_path)
    assert code == 0 and "peak live" in text and "\x1b" not in text
    assert "cuda-pool[cli]" in text
    for command in ("replay", "fit"):
        done = subprocess.run([sys.executable, "-c", WITHOUT_RICH, command, RESNET, "--json", "-"], cwd=tmp_path,
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and done.stderr == "" and json.loads(done.stdout)["events"] == 35754


def test_reader_that_goes_away(tmp_path):
    process = subprocess.Popen([sys.executable, "-m", "cuda_pool", "replay", RESNET], cwd=tmp_path,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(120) == 141


def test_interrupt(tmp_path):
    """The progress bar is the sign that the replay runs."""
    pytest.importorskip("rich")
    process, terminal = start_on_a_terminal("-m", "cuda_pool", "replay", SERVING, "--repeats", "1000000", cwd=tmp_path)
    pieces = pieces_from(terminal)
    shown = ""
    while "%" not in shown:
        shown += next(pieces)
    process.send_signal(signal.SIGINT)
    written = "".join(pieces)
    os.close(terminal)
    assert process.wait(120) == 130
    assert written.endswith("cuda-pool: interrupted\r\n") and "peak live" not in written


def test_interrupt_while_the_trace_is_read(tmp_path):
    """The command has opened the pipe when this end can be opened too, and then waits for the rest of the trace."""
    path = tmp_path / "trace.csv"
    os.mkfifo(path)
    process = subprocess.Popen([sys.executable, "-m", "cuda_pool", "replay", str(path)], cwd=tmp_path,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts)
    with open(path, "wb"):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "cuda-pool: interrupted\n")


def test_long_rows_and_odd_names_are_shown_as_text(capsys):
    summary = output.Summary("[bold]not markup[/bold]")
    summary.add("label", "[red]neither[/red]")
    output._show(summary)
    text = capsys.readouterr().out
    assert "[bold]not markup[/bold]" in text and "[red]neither[/red]" in text


def in_shell(line, cwd):
    """Run a line of bash, in which $POOL is the command."""
    return subprocess.run(["bash", "-c", line], cwd=cwd, capture_output=True, text=True, timeout=120,
                          env={**os.environ, "POOL": f"{sys.executable} -m cuda_pool"})


# The runtime of a sanitizer has to have its standard streams.
@optimised
@pytest.mark.parametrize("arguments", ["info", "info --json -", "replay short.csv", "replay short.csv --json -",
                                       "fit short.csv --no-search"])
def test_closed_stdout(short, tmp_path, arguments):
    done = in_shell(f"$POOL {arguments} >&-", tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == ("cuda-pool: stdout is closed, and the result goes there: open it, or name a file with "
                           "--json\n")


@optimised
def test_closed_stdout_with_the_result_in_a_file(short, tmp_path):
    done = in_shell("$POOL replay short.csv --json out.json >&-", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((tmp_path / "out.json").read_text())["events"] == 3


@optimised
def test_closed_stderr(short, tmp_path):
    done = in_shell("$POOL replay short.csv 2>&-", tmp_path)
    assert done.returncode == 0 and "peak live" in done.stdout
    for arguments in ("replay none.csv", "replay", "replay short.csv --json -  >&-"):
        done = in_shell(f"$POOL {arguments} 2>&-", tmp_path)
        assert (done.returncode, done.stdout) == (2, "")


@optimised
@pytest.mark.parametrize("line", [
    "$POOL replay short.csv --json /dev/stdout | cat", "$POOL replay short.csv --json /dev/stdout",
    "$POOL replay short.csv --json /dev/stdout > out; cat out",
    "{ $POOL replay short.csv --json >(cat >&2) >/dev/null; } 2>&1 | cat",
    "$POOL replay short.csv --json /dev/stderr 2>&1 >/dev/null | cat",
    "mkfifo pipe; $POOL replay short.csv --json pipe >/dev/null & cat pipe; wait",
])
def test_json_in_a_pipe_is_written_as_it_is(short, tmp_path, line):
    done = in_shell(f"set -o pipefail; {line}", tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    assert json.loads(done.stdout)["events"] == 3


@pytest.mark.parametrize("link", [None, os.symlink, os.link], ids=["itself", "symbolic link", "hard link"])
def test_json_does_not_replace_the_trace(short, tmp_path, capsys, link):
    before, name = Path(short).read_bytes(), short
    if link:
        name = str(tmp_path / "link.csv")
        link(short, name)
    for command in ("replay", "fit"):
        assert "is the trace" in refused(capsys, command, short, "--json", name)
    assert Path(short).read_bytes() == before


def test_json_without_a_name(short, capsys):
    for command in (["replay", short], ["fit", short], ["info"]):
        assert "'' is no name of a file" in refused(capsys, *command, "--json", "")


def test_json_with_a_long_name(short, tmp_path, capsys):
    path = tmp_path / ("n" * 250 + ".json")
    assert main(["replay", short, "--json", str(path)]) == 0
    assert json.loads(path.read_text())["events"] == 3
    capsys.readouterr()
    assert "File name too long" in refused(capsys, "replay", short, "--json", str(path) + "x")
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, "short.csv"])


@pytest.mark.parametrize("digits", [40, 400])
def test_settings_of_too_many_digits(short, capsys, digits):
    for option in ("--slab-max", "--min-block"):
        for command in ("replay", "fit"):
            assert len(refused(capsys, command, short, option, "9" * digits)) < 1500


def test_a_map_of_nothing_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("event,id,size,stream\nalloc,0,5000,0\nfree,0,5000,0\n")
    assert main(["map", "--trace", "t.csv", "--at", "end", "--out", "t.svg"]) == 0
    shown = capsys.readouterr().out
    assert "Nothing is live after 2 events: --at peak" in shown and "a request of 0 B" not in shown
    assert main(["map", "--trace", "t.csv", "--at", "1", "--out", "t.svg"]) == 0
    shown = capsys.readouterr().out
    assert "Nothing is live" not in shown and "a request of 4.88 KiB" in shown and "after 1 event\n" in shown
    Path("t.csv").write_text("event,id,size,stream\nalloc,0,0,0\nfree,0,0,0\n")
    assert main(["map", "--trace", "t.csv", "--out", "t.svg"]) == 0
    assert "Nothing is live at any moment of the trace." in capsys.readouterr().out
