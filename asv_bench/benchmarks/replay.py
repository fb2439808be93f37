"""Recorded traces, with the default settings."""

from pathlib import Path

from cuda_pool import replay as player     # names that start with time_ would be taken for benchmarks here
from cuda_pool.trace import Trace

TRACES = Path(__file__).resolve().parents[2] / "examples"
ROUNDS = 5


class Replay:
    params = ["gpt2_124m_train", "llama_serve_growing_kv", "resnet50_b64_train"]
    param_names = ["trace"]

    def setup(self, name):
        path = TRACES / f"{name}.csv.gz"
        if not path.exists():
            raise NotImplementedError(f"no {path}")
        self.trace = Trace.read(path)

    def time_replay(self, name):
        player.replay(self.trace)

    def track_ns_per_event(self, name):
        return player.replay(self.trace, repeats=ROUNDS).ns_per_event

    def track_ratio_to_malloc(self, name):
        pairs = [(player.replay(self.trace).ns_per_event, player.time_malloc(self.trace)) for _ in range(ROUNDS)]
        own, malloc = map(min, zip(*pairs))
        return own / malloc

    def track_driver_calls(self, name):
        return sum(player.replay(self.trace).upstream_calls.values())

    def track_footprint(self, name):
        return player.fit(self.trace, search=False).ratio

    track_ns_per_event.unit = "ns"
    track_ratio_to_malloc.unit = "x malloc"
    track_driver_calls.unit = "calls"
    track_footprint.unit = "min_capacity / peak_live"
