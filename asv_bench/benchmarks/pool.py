"""The whole pool: lock, statistics and pointer checks on."""

from cuda_pool import _bench, _bench_table

from . import PAIRS, ratio_to_malloc, simulated_pool, workload

ROUNDS = 101


class Pairs:
    """Without the interpreter."""

    params = list(_bench.WORKLOADS)
    param_names = ["workload"]

    def setup(self, name):
        self.pool = simulated_pool()
        self.loop = _bench.PoolLoop(workload(name), self.pool)
        self.loop.run()

    def time_pairs(self, name):
        self.loop.run()

    def track_ratio_to_malloc(self, name):
        return ratio_to_malloc(self.loop)

    track_ratio_to_malloc.unit = "x malloc"


class Live:
    """Ever more live blocks, of 64 bytes to 2 KiB."""

    params = list(_bench_table.LIVE)
    param_names = ["workload"]

    def setup(self, name):
        self.pool = simulated_pool()
        self.loop = _bench.PoolLoop(_bench_table.make_work(name, PAIRS), self.pool)
        self.loop.run()

    def time_pairs(self, name):
        self.loop.run()


class Threads:
    """The workload W2 in each of two threads, by the wall clock: it needs two idle processors."""

    def track_ratio_to_malloc(self):
        runs = _bench_table.make_runs("W6", ["pool", "malloc"], PAIRS)
        own, malloc = _bench.compare(list(runs.values()))
        return own / malloc

    track_ratio_to_malloc.unit = "x malloc"


class PythonCalls:
    """One block of 512 bytes, as a Python program takes and frees it.

    The repetition is inside: asv may repeat the setup before every call that it times, and then a pool is never warm.
    """

    def setup(self):
        self.pool = simulated_pool()

    def time_alloc_free(self):
        pool = self.pool
        for _ in range(PAIRS):
            pool.free(pool.alloc(512))

    def time_alloc_free_async(self):
        pool = self.pool
        for _ in range(PAIRS):
            pool.free_async(pool.alloc(512))

    def time_buffer(self):
        pool = self.pool
        for _ in range(PAIRS):
            pool.buffer(512)


class PythonRatios:
    """The same beside two calls of an empty method with one argument."""

    params = ["alloc free", "alloc free_async", "buffer", "empty none"]
    param_names = ["calls"]

    def track_ratio_to_empty_calls(self, what):
        calls = _bench.pool_calls(simulated_pool())
        own, empty = _bench.medians([calls[what].run, calls["empty one"].run], ROUNDS)
        return own / empty

    track_ratio_to_empty_calls.unit = "x two empty calls"


class Opening:
    """A pool that is opened, used once and closed."""

    def time_open_close(self):
        with simulated_pool("1GiB") as pool:
            pool.alloc(512)

    def track_metadata_share(self):
        with simulated_pool() as pool:
            return pool.metadata_bytes / pool.stats().capacity

    track_metadata_share.unit = "bytes per byte of capacity"
