"""A pool through ctypes: addresses of C functions, called without the GIL."""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from threading import Thread

import cuda_pool as cp

FUNCTIONS = cp.capi.functions
# A call of a CFUNCTYPE lets other threads run; nothing in the pool needs the GIL.
alloc = ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t, c_void_p, POINTER(c_void_p))(FUNCTIONS["cuda_pool_alloc"].address)
free = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)(FUNCTIONS["cuda_pool_free"].address)
get_stats = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)(FUNCTIONS["cuda_pool_get_stats"].address)
status_name = ctypes.CFUNCTYPE(c_char_p, c_int)(FUNCTIONS["cuda_pool_status_name"].address)


class Stats(ctypes.Structure):
    """The first members of cuda_pool_stats_t: `size` tells the pool how many there are."""

    _fields_ = [(name, c_uint64) for name in ("size", "capacity", "reserved", "reserved_high", "used")]


def require(status):
    if status != cp.capi.Status.OK:
        raise RuntimeError(status_name(status).decode())


def work(handle, seed, faults):
    """Replace one of 16 blocks, 500 times; note those whose bytes are not the ones that were written."""
    blocks = {}
    for number in range(500):
        at, nbytes = number * 7 % 16, 1 + (number * 7919 + seed) % 30000
        if at in blocks:
            give_back(handle, *blocks.pop(at), faults)
        block = c_void_p()
        require(alloc(handle, nbytes, None, byref(block)))
        data = bytes([seed + at]) * nbytes
        ctypes.memmove(block, data, nbytes)         # the simulated device's memory is the host's
        blocks[at] = block, data
    for block, data in blocks.values():
        give_back(handle, block, data, faults)


def give_back(handle, block, data, faults):
    if ctypes.string_at(block, len(data)) != data:
        faults.append(block.value)
    require(free(handle, block))


def main():
    pool = cp.Pool("32MiB", device=cp.sim.Device("64MiB"))      # or device=0: the first GPU
    too_much = alloc(pool.handle, 1 << 40, None, byref(c_void_p()))
    print("too much:", status_name(too_much).decode())

    faults = []
    threads = [Thread(target=work, args=(pool.handle, seed, faults)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    stats = Stats(size=ctypes.sizeof(Stats))
    require(get_stats(pool.handle, byref(stats)))
    pool.check()
    print(f"faults {len(faults)}, allocations {pool.stats().alloc_count}, used {stats.used}")


if __name__ == "__main__":
    main()
