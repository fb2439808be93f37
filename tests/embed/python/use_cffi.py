"""A pool through cffi, without a compiler: the addresses are cast to the types that the package names."""

from threading import Thread

import cffi
import cuda_pool as cp

ffi = cffi.FFI()
ffi.cdef("typedef struct cuda_pool cuda_pool_t;")


def function(name):
    address, signature = cp.capi.functions[name]        # such as "int (*)(cuda_pool_t *, void *)"
    return ffi.cast(signature, address)


alloc = function("cuda_pool_alloc")
free = function("cuda_pool_free")
size_of = function("cuda_pool_size_of")
status_name = function("cuda_pool_status_name")


def require(status):
    if status != cp.capi.Status.OK:
        raise RuntimeError(ffi.string(status_name(status)).decode())


def work(pool, seed, faults):
    """Replace one of 16 blocks, 500 times; note those whose bytes are not the ones that were written."""
    blocks, out = {}, ffi.new("void **")
    for number in range(500):
        at, nbytes = number * 7 % 16, 1 + (number * 7919 + seed) % 30000
        if at in blocks:
            give_back(pool, *blocks.pop(at), faults)
        require(alloc(pool, nbytes, ffi.NULL, out))     # cffi lets other threads run meanwhile
        data = bytes([seed + at]) * nbytes
        ffi.memmove(out[0], data, nbytes)               # the simulated device's memory is the host's
        blocks[at] = out[0], data
    for block, data in blocks.values():
        give_back(pool, block, data, faults)


def give_back(pool, block, data, faults):
    nbytes = ffi.new("size_t *")
    require(size_of(pool, block, nbytes))
    if nbytes[0] != len(data) or ffi.buffer(block, len(data))[:] != data:
        faults.append(block)
    require(free(pool, block))


def main():
    pool = cp.Pool("32MiB", device=cp.sim.Device("64MiB"))      # or device=0: the first GPU
    handle = ffi.cast("cuda_pool_t *", pool.handle)             # valid as long as `pool` is
    too_much = alloc(handle, 1 << 40, ffi.NULL, ffi.new("void **"))
    print("too much:", ffi.string(status_name(too_much)).decode())

    faults = []
    threads = [Thread(target=work, args=(handle, seed, faults)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    pool.check()
    stats = pool.stats()
    print(f"faults {len(faults)}, allocations {stats.alloc_count}, used {stats.used}")


if __name__ == "__main__":
    main()
