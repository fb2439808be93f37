"""Count instructions per pair: by valgrind's callgrind, or by ``perf stat`` where the processor's counters can be read.

Both run this module as a program of its own, with what it shall do as JSON in its argument: a list of [name of the
workload, what does it, pairs], and settings of the pool. After each round it calls `_bench.mark`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from . import _bench, _bench_table

PAIRS = 20_000
PERF = ("perf", "stat", "-x,", "-e", "instructions:u")
PERF_COUNT = re.compile(r"^(\d+),", re.M)
PERF_ROUNDS = 50
VALGRIND = ("valgrind", "--tool=callgrind", "--toggle-collect=*Loop_play*", "--toggle-collect=*__pyx_pw*Calls_*run*",
            "--dump-after=cuda_pool_mark*")
TOTALS = re.compile(rb"^totals: (\d+)", re.M)
HERE = Path(__file__).resolve().parent.parent


def find_counter():
    """Return which counter counts here, or None, and why none does.

    Returns
    -------
    counter : str or None
        ``"perf"`` or ``"valgrind"``.
    reason : str or None
        None where there is one.
    """
    if shutil.which("perf"):
        if PERF_COUNT.search(_run([*PERF, "true"]).stderr):
            return "perf", None
        perf = "perf cannot read the processor's counters here"
    else:
        perf = "perf is not installed"
    if shutil.which("valgrind"):
        return "valgrind", None
    return None, f"{perf}, valgrind is not installed"


def count(jobs, counter, settings=None):
    """Count instructions.

    Parameters
    ----------
    jobs : list of (str, str)
        Workloads and what does them, as for `_bench_table.make_runs`; none of two threads.
    counter : str
        As from `find_counter`.
    settings : dict, optional
        Of the pool.

    Returns
    -------
    dict of (str, str) to float
        Instructions per pair.

    Raises
    ------
    RuntimeError
        The counter did not count; its last words are in the message.
    """
    jobs = list(jobs)
    counts = _count_by_valgrind(jobs, settings) if counter == "valgrind" else [
        _count_by_perf(job, settings) for job in jobs]
    return dict(zip(jobs, counts))


def _count_by_valgrind(jobs, settings):
    """Return the counts of all jobs in one process: the second round of each."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "count")
        done = _run([*VALGRIND, f"--callgrind-out-file={out}", *_command(jobs, 2, settings)])
        found = [TOTALS.search(Path(f"{out}.{2 * job + 2}").read_bytes()) for job in range(len(jobs))
                 if Path(f"{out}.{2 * job + 2}").exists()]
    if done.returncode:
        raise RuntimeError(f"valgrind did not count: {_last_words(done)}")
    if len(found) < len(jobs) or not all(int(total[1]) for total in found):
        raise RuntimeError("valgrind did not count: it finds no symbols in the modules, which may have been stripped")
    return [int(total[1]) / pairs for total, pairs in zip(found, map(int, done.stdout.split()))]


def _count_by_perf(job, settings):
    """Return what more rounds add to a process, so that its start and end do not count."""
    totals = []
    for rounds in (1, 1 + PERF_ROUNDS):
        done = _run([*PERF, *_command([job], rounds, settings)])
        found = PERF_COUNT.search(done.stderr)
        if done.returncode or not found:
            raise RuntimeError(f"perf did not count: {_last_words(done)}")
        totals.append(int(found[1]))
    return (totals[1] - totals[0]) / (PERF_ROUNDS * int(done.stdout))


def _command(jobs, rounds, settings):
    return [sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv[1]); from cuda_pool import _bench_count; "
            "_bench_count.play(sys.argv[2])", str(HERE), json.dumps([jobs, rounds, settings or {}])]


def _run(command):
    return subprocess.run(command, text=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": "0"})


def _last_words(done):
    return " ".join(done.stderr.split()[-40:]) or f"exit code {done.returncode}"


def play(text):
    """Do what the counting process is told, and print the pairs in a round of each job."""
    jobs, rounds, settings = json.loads(text)
    for name, what in jobs:
        run = _bench_table.make_runs(name, [what], PAIRS, **settings)[what]
        for _ in range(rounds):
            run.run()
            _bench.mark()
        print(run.calls if name == _bench_table.CALLS else run.workload.pairs)
