"""Instructions per pair, where valgrind, or perf with access to the processor's counters, counts them."""

from cuda_pool import _bench, _bench_count, _bench_table

from . import example

SERVING = "llama_serve_growing_kv"
DRAWN = [*_bench.WORKLOADS, *_bench_table.LIVE]


class Instructions:
    """Of the pool, without the interpreter; L2 to L6 have 10^2 to 10^6 live blocks."""

    params = [*DRAWN, SERVING]
    param_names = ["workload"]
    timeout = 600

    def setup_cache(self):
        counter, _ = _bench_count.find_counter()
        if counter is None:
            return {}
        files = {name: name for name in DRAWN}
        try:
            files[SERVING] = str(example(SERVING))
        except NotImplementedError:
            pass
        counts = _bench_count.count([(file, "pool") for file in files.values()], counter)
        return {name: counts[file, "pool"] for name, file in files.items()}

    setup_cache.timeout = 600

    def setup(self, counts, name):
        if name not in counts:
            raise NotImplementedError("nothing counts instructions here, or the trace is missing")

    def track_pair(self, counts, name):
        return counts[name]

    track_pair.unit = "instructions"
