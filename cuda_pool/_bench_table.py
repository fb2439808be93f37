"""What ``cuda-pool bench`` times: works, the allocators that do them, and the rows of its table."""

import statistics
import threading
import time
from dataclasses import asdict, dataclass

from . import _bench, sim
from ._api import Pool
from .trace import Trace

CAPACITY = "16GiB"
PAIRS = 100_000
BASE = "malloc"             # what ratios are to
THREADS = {"W6": "W2"}      # the work that each of two threads does
THREAD_REPEATS = 5          # rounds of a thread in one, so that its start does not count for much
CALLS = "Python"            # the workload whose rows are calls from Python, and its base
CALLS_BASE = "empty one"

# Smallest and largest size in bytes, and live blocks: what a pair costs as their number grows.
LIVE = {f"L{power}": (64, 2048, 10 ** power) for power in range(2, 7)}

ALONE = {"slab": _bench.SlabLoop, "mid": _bench.MidLoop, "buddy": _bench.BuddyLoop, "malloc": _bench.MallocLoop,
         "empty": _bench.EmptyLoop}
TIERS = {"W1": "slab", "W2": "slab", "W3": "mid", "W4": "buddy"}


@dataclass(frozen=True)
class Row:
    """What a pair costs in one workload.

    Attributes
    ----------
    workload, what : str
        The work, and what does it.
    ns : float
        Median of the nanoseconds per pair.
    spread : float
        Distance of the quartiles of the same.
    instructions : float or None
        Instructions per pair; None where they are not counted.
    ratio_to_malloc : float or None
        ns, as a multiple of malloc's in the same rounds; None for calls from Python.
    ratio_to_empty : float
        ns, as a multiple of that of two empty calls in the same rounds.
    """

    workload: str
    what: str
    ns: float
    spread: float
    instructions: float | None
    ratio_to_malloc: float | None
    ratio_to_empty: float

    def as_dict(self):
        """Return the row as a dict of plain values."""
        return asdict(self)


class ThreadLoops:
    """Loops that run at once, each in a thread of its own.

    Parameters
    ----------
    loops : list of Loop
        They do the same work.
    """

    def __init__(self, loops):
        self.loops = loops
        for loop in loops:
            loop.run()          # what comes first is made now

    def run(self):
        """Play one round; return the nanoseconds per pair of each thread, by the wall clock: waiting counts."""
        threads = [threading.Thread(target=self._repeat, args=(loop,)) for loop in self.loops]
        start = time.perf_counter_ns()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return (time.perf_counter_ns() - start) / (THREAD_REPEATS * self.loops[0].workload.pairs)

    @staticmethod
    def _repeat(loop):
        for _ in range(THREAD_REPEATS):
            loop.run()


def open_pool(**settings):
    """Return a pool on a simulated device of its own."""
    return Pool(CAPACITY, device=sim.Device(CAPACITY), **settings)


def make_work(name, pairs=PAIRS):
    """Return the work of a name: of `_bench.WORKLOADS`, of `LIVE`, or a trace's file."""
    drawn = {**_bench.WORKLOADS, **LIVE}.get(name)
    return _bench.TraceWork(Trace.read(name)) if drawn is None else _bench.Workload(*drawn, pairs)


def make_loop(what, work, **settings):
    """Return the loop of an allocator.

    Parameters
    ----------
    what : str
        ``pool``, a name of `ALONE`, or ``LIBRARY:ALLOC:FREE``, as for `_bench.LibraryLoop`.
    work : Work
    **settings
        Of the pool.
    """
    if what == "pool":
        return _bench.PoolLoop(work, open_pool(**settings))
    if what in ALONE:
        return ALONE[what](work)
    return _bench.LibraryLoop(work, *what.rsplit(":", 2))


def make_runs(name, whats, pairs=PAIRS, **settings):
    """Return what is timed for a workload: objects whose run() returns nanoseconds per pair, by what they time.

    Parameters
    ----------
    name : str
        Of a workload: as for `make_work`, of `THREADS`, or `CALLS`.
    whats : list of str
        As for `make_loop`; names of `_bench.CALLS` for `CALLS`.
    pairs : int
        Pairs in a round of a drawn workload.
    **settings
        Of the pool.
    """
    if name == CALLS:
        calls = _bench.pool_calls(open_pool(**settings))
        return {what: calls[what] for what in whats}
    if name in THREADS:
        return {what: make_threads(what, make_work(THREADS[name], pairs), **settings) for what in whats}
    work = make_work(name, pairs)
    return {what: make_loop(what, work, **settings) for what in whats}


def make_threads(what, work, **settings):
    """Return two loops for two threads, in one pool if it is a pool."""
    if what != "pool":
        return ThreadLoops([make_loop(what, work) for _ in range(2)])
    pool = open_pool(**settings)
    return ThreadLoops([_bench.PoolLoop(work, pool) for _ in range(2)])


def time_workload(name, runs, rounds=_bench.ROUNDS, counts=None, label=None):
    """Time a workload's runs in turn.

    Parameters
    ----------
    name : str
        Of the workload.
    runs : dict
        As from `make_runs`, with the base of its ratios.
    rounds : int
        Rounds of each, after one that is not counted.
    counts : dict, optional
        Instructions per pair, by what was counted.
    label : str, optional
        What the rows call the workload; its name otherwise.

    Returns
    -------
    list of Row
    """
    columns = dict(zip(runs, _bench.in_turn([run.run for run in runs.values()], rounds)))
    empty = columns[CALLS_BASE if name == CALLS else "empty"]
    return [Row(workload=label or name, what=what, ns=statistics.median(column), spread=_spread(column),
                instructions=(counts or {}).get(what), ratio_to_empty=_ratio(column, empty),
                ratio_to_malloc=None if name == CALLS else _ratio(column, columns[BASE]))
            for what, column in columns.items()]


def _ratio(column, base):
    return statistics.median(column) / statistics.median(base)


def _spread(column):
    if len(column) < 2:
        return 0.0
    first, _, third = statistics.quantiles(column, n=4, method="inclusive")
    return third - first
