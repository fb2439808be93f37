"""A pool in code that Numba compiles: four threads allocate without the GIL."""

import ctypes
from ctypes import c_int, c_size_t, c_void_p
from threading import Thread

import cuda_pool as cp
import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

FUNCTIONS = cp.capi.functions
# Numba calls a ctypes function with its types directly. Results come through an array's address.
alloc = ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t, c_void_p, c_void_p)(FUNCTIONS["cuda_pool_alloc"].address)
free = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)(FUNCTIONS["cuda_pool_free"].address)


@intrinsic
def as_bytes(typing, address):
    """Make a pointer to bytes of an address."""
    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)
    return types.CPointer(types.uint8)(types.uintp), generate


@njit(nogil=True)
def work(pool, seed, rounds):
    """Replace one of 64 blocks so many times; return how many were damaged, or -1 when a call failed."""
    blocks, sizes = np.zeros(64, np.uintp), np.zeros(64, np.int64)
    out = np.zeros(1, np.uintp)
    damaged = 0
    for number in range(rounds + 64):
        at = number * 7 % 64
        if blocks[at] != 0:
            damaged += not (carray(as_bytes(blocks[at]), sizes[at]) == (seed + at) % 256).all()
            if free(pool, blocks[at]) != 0:
                return -1
            blocks[at] = 0
        if number < rounds:
            sizes[at] = 1 + (number * 7919 + seed) % 30000
            if alloc(pool, sizes[at], 0, out.ctypes.data) != 0:
                return -1
            blocks[at] = out[0]
            carray(as_bytes(blocks[at]), sizes[at])[:] = (seed + at) % 256
    return damaged


def main():
    pool = cp.Pool("32MiB", device=cp.sim.Device("64MiB"))      # memory that compiled code on the host can touch
    results = []
    work(pool.handle, 0, 1)                                     # compiles
    threads = [Thread(target=lambda seed=seed: results.append(work(pool.handle, seed, 20000))) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    pool.check()
    stats = pool.stats()
    print(f"faults {sum(map(abs, results))}, allocations {stats.alloc_count}, used {stats.used}")


if __name__ == "__main__":
    main()
