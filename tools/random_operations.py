"""Allocate and free at random from pools with different settings; meant to run under valgrind (tools/valgrind.sh).

    python tools/random_operations.py [OPERATIONS]
"""

import sys

from cuda_pool import Pool, _testing, sim

SETTINGS = (
    {},
    {"mid_max": "1MiB"},
    {"slab_max": 0, "min_block": "4KiB"},
    {"mid_max": 0, "size_classes": 64},
    {"size_classes": ["4KiB"], "debug": True},
)
# (smallest size, doublings, slots): small blocks, all sizes, and so many that the pool is full at times
LOADS = ((1, 14, 2000), (16, 20, 400), (1 << 10, 14, 1000))


def main():
    operations = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    share = -(-operations // (len(SETTINGS) * len(LOADS)))
    with sim.Device("256MiB") as device:
        for settings in SETTINGS:
            for seed, (smallest, doublings, slots) in enumerate(LOADS):
                with Pool("128MiB", device=device, **settings) as pool:
                    done = _testing.churn(pool, share, slots, smallest, doublings, seed, check_every=share // 20 + 1)
                    assert pool.stats().used == 0
                print(settings, done, flush=True)


if __name__ == "__main__":
    main()
