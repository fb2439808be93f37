"""Recorded traces, with the default settings."""

from cuda_pool import _bench
from cuda_pool import replay as player     # names that start with time_ would be taken for benchmarks here
from cuda_pool.trace import Trace

from . import example, ratio_to_malloc, simulated_pool

CAPACITY = "64GiB"
ROUNDS = 5


class Replay:
    params = ["gpt2_124m_train", "llama_serve_growing_kv", "resnet50_b64_train"]
    param_names = ["trace"]

    def setup(self, name):
        self.trace = Trace.read(example(name))

    def time_replay(self, name):
        player.replay(self.trace)

    def track_ns_per_event(self, name):
        return player.replay(self.trace, repeats=ROUNDS).ns_per_event

    def track_ratio_to_malloc(self, name):
        return ratio_to_malloc(_bench.PoolLoop(_bench.TraceWork(self.trace), simulated_pool(CAPACITY)))

    track_ns_per_event.unit = "ns"
    track_ratio_to_malloc.unit = "x malloc"


class Footprint:
    """Exact counts: the same on every machine."""

    params = [Replay.params, ["malloc", "virtual"], ["static", "dynamic"]]
    param_names = ["trace", "backing", "growth"]

    def setup(self, name, backing, growth):
        self.trace = Trace.read(example(name))
        self.settings = {"backing": backing, "growth": growth}

    def track_driver_calls(self, name, backing, growth):
        return sum(player.replay(self.trace, **self.settings).upstream_calls.values())

    def track_min_capacity(self, name, backing, growth):
        return player.fit(self.trace, search=False, **self.settings).ratio

    track_driver_calls.unit = "calls"
    track_min_capacity.unit = "min_capacity / peak_live"


class Growth:
    """What a pool that grows comes to hold."""

    params = [Replay.params, ["malloc", "virtual"]]
    param_names = ["trace", "backing"]

    def setup(self, name, backing):
        self.trace = Trace.read(example(name))

    def track_peak_reserved(self, name, backing):
        return player.replay(self.trace, backing=backing, growth="dynamic").ratio

    track_peak_reserved.unit = "peak_reserved / peak_live"
