"""Rounds of a trace on one pool: what a replay and a search for the smallest capacity have in common."""

import contextlib
import operator

from . import sim
from ._api import Pool
from ._lag import LAG_MAX, LaggedReplay
from ._replay import PoolReplay
from .diagnosis import Moment
from .errors import OutOfMemoryError
from .settings import CAPACITY_MAX
from .sizes import is_index, shown
from .trace import require_trace

MIB = 1 << 20
PAGE = 2 * MIB              # of the virtual memory of simulated devices
SLICE = 1 << 14             # events played between two looks at the keyboard
GROWING_START = 2 * MIB     # what a pool that grows begins with
SETTINGS = ("slab_max", "mid_max", "min_block")
FINDINGS_MAX = 10           # races and misuses that a result quotes
NO_ADDRESSES = ("the simulated device takes its memory from the address space of this process, which may have a limit "
                "(ulimit -v) or be full")
HOST_WAITS = ("cudaEventSynchronize", "cudaStreamSynchronize", "cudaDeviceSynchronize")


class Run:
    """Rounds of a replay: the fastest time, or the first failure with the pool's state at that point."""

    def __init__(self, loop, pool=None, recording=None, explains=False):
        self.loop = loop if recording is None else recording.watch(loop)
        self.pool = pool
        self.recording = recording
        self.explains = explains
        self.events = len(loop.trace) if recording is None else recording.end_of(loop.trace)
        self.best_ns = None
        self.failed_row = None
        self.failed_at = None       # events before it
        self.failure = None
        self.moment = None          # of the pool at the failure, if it is to be explained
        self.stats = None           # the pool's, after the last event
        self.rounds_left = 0

    @property
    def ns_per_event(self):
        return self.best_ns / self.events if self.events and self.best_ns is not None else None

    def play(self, repeats=1, progress=None):
        total = self.events * repeats
        for round_ in range(repeats):
            self.rounds_left = repeats - round_ - 1
            report = progress and (lambda done, past=self.events * round_: progress(past + done, total))
            if not self._round(report):
                return

    def _round(self, report):
        loop = self.loop
        try:
            loop.place()
            while loop.position < self.events and not loop.failed:
                loop.run(min(SLICE, self.events - loop.position))
                if report:
                    report(loop.position)
            return self._note()
        finally:
            loop.clear()

    def _note(self):
        loop = self.loop
        loop.check()
        if self.recording is not None:
            self.recording.take(self.loop, self.pool)
        if self.pool and (loop.failed or self.rounds_left == 0):
            self.stats = self.pool.stats()
        if not loop.failed:
            self.best_ns = loop.ns if self.best_ns is None else min(self.best_ns, loop.ns)
            return True
        self.best_ns = None
        self.failed_row = loop.failed_row
        self.failed_at = loop.position
        self.failure = self.pool and _failure(loop, self.stats)
        if self.explains:
            self.moment = Moment.of(loop.moment())
        return False


def _failure(loop, stats):
    return {"requested": loop.failed_size, "free": stats.free, "largest_free": stats.largest_free,
            "reserved": stats.reserved, "capacity": stats.capacity}


class Findings:
    """What simulated devices found fault with in replays with a lag."""

    def __init__(self):
        self.races = 0
        self.misuses = 0
        self.texts = []

    @contextlib.contextmanager
    def watch(self, device):
        """Add what the device finds in the meantime."""
        races, misuses = device.race_count, len(device.errors)
        yield
        self.races += device.race_count - races
        self.misuses += len(device.errors) - misuses
        if self.races or self.misuses:
            self.texts += map(str, device.races[races:] + device.errors[misuses:])

    def as_dict(self):
        return {"races": self.races, "misuses": self.misuses, "findings": self.texts[:FINDINGS_MAX]}


@contextlib.contextmanager
def loop_of(trace, pool, lag, findings):
    """Make the loop for a replay, which is at its first event again in the end."""
    with contextlib.ExitStack() as stack:
        if lag:
            stack.enter_context(findings.watch(pool.device))
        loop = LaggedReplay(trace, pool, lag) if lag else PoolReplay(trace, pool)
        yield stack.enter_context(contextlib.closing(loop))


@contextlib.contextmanager
def pool_of(capacity, **parameters):
    """Open a pool that may hold `capacity` bytes; one that grows begins with its profile, or with little."""
    try:
        pool = _opened(capacity, **parameters)
    except OutOfMemoryError as error:
        if error.free >= error.requested and getattr(parameters["device"], "is_simulated", False):
            error.hint = error.hint or NO_ADDRESSES
        raise
    try:
        yield pool
    finally:
        pool.close()


def _opened(capacity, **parameters):
    if parameters.get("profile") is not None:
        return Pool(max_capacity=capacity, **parameters)
    if parameters.get("growth") != "static":
        return Pool(min(GROWING_START, capacity), max_capacity=capacity, **parameters)
    return Pool(capacity, **parameters)


def simulated(capacity, seed, backing):
    """Return a device that is just large enough; nobody looks at its memory."""
    if backing == "virtual":
        return sim.Device(-(-capacity // PAGE) * PAGE, seed=seed, granularity=PAGE, lazy=True)
    return sim.Device(capacity, seed=seed)


def default_capacity(trace, growth="static"):
    """Return 1.25 times the peak of a trace, or 2 times for a pool that grows, in bytes.

    It is rounded up to 2 MiB, and at most what a pool can hold.

    Raises
    ------
    TypeError
        `trace` is no trace.
    """
    require_trace(trace)
    quarters = 5 if growth == "static" else 8
    return min(max(-(-trace.peak_live * quarters // (8 * MIB)), 1) * 2 * MIB, CAPACITY_MAX)


def waits_of(stats):
    """Return how often a pool waited on the device and on the host, as a result has it."""
    calls = stats.upstream_calls
    return {"cross_stream_waits": calls.get("cudaStreamWaitEvent", 0),
            "host_waits": sum(calls.get(name, 0) for name in HOST_WAITS)}


def settings_dict(settings):
    """Return the settings that a result names."""
    return {name: getattr(settings, name) for name in SETTINGS}


def ratio_of(capacity, peak):
    """Return the ratio of two numbers of bytes; None if nothing was ever live."""
    return capacity / peak if peak else None


def not_none(**parameters):
    """Return the parameters that are not left to the pool's defaults."""
    return {name: value for name, value in parameters.items() if value is not None}


def checked_lag(lag):
    """Return a lag as an int, or raise what says which are accepted."""
    number = checked_integer(lag, "lag is a number of events, from 0 to 2**40")
    if not 0 <= number <= LAG_MAX:
        raise ValueError(f"lag is a number of events, from 0 to 2**40, got {shown(lag)}")
    return number


def checked_seed(seed):
    """Return a seed as an int, or None."""
    return None if seed is None else checked_integer(seed, "seed is an integer")


def checked_integer(value, accepted):
    """Return an int; TypeError, which says what is accepted, if `value` is no integer."""
    if not is_index(value):
        raise TypeError(f"{accepted}; got {shown(value)}")
    return operator.index(value)
