import cuda_pool as cp

device = cp.sim.Device("1GiB")                  # or 0: the first GPU
with cp.Pool("256MiB", device=device) as pool:
    ptr = pool.alloc("1.5MiB")                  # an address, a multiple of 256
    pool.free(ptr)                              # reusable by anyone at once

    ptr = pool.alloc(300_000, stream=0)
    pool.free_async(ptr, stream=0)              # reusable on the stream at once, elsewhere after its work

    with pool.buffer("64KiB") as buffer:        # owns its block; has __cuda_array_interface__ and __dlpack__
        print(buffer, buffer.ptr % 256)

    try:
        pool.alloc("1GiB")
    except cp.OutOfMemoryError as error:        # after any error the pool is as it was
        print(error)

    stats = pool.stats()
    print(stats.used, stats.reserved, stats.upstream_calls)
