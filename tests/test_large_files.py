"""Files of any length are read in the memory that their events take, which is far less than their text."""

import gzip
import json
import re
import subprocess
import sys

import pytest

from .models import EFFORT

MIB = 1 << 20
EVENTS = 100_000 * min(EFFORT, 5)
LINE = 2000                     # bytes, most of them blanks: 200 MB of text, or up to a gigabyte with more effort
TAKEN = 16 * MIB                # beyond what the command takes for the same events in short lines


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
