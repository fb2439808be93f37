"""Pools whose pages move: backing="virtual"."""

import random
import threading

import cuda_pool as cp
import pytest

from .models import CheckedPool, comparable

MIB = 1 << 20
PAGE = 2 * MIB


@pytest.fixture
def device(make_device):
    return make_device("64MiB")


@pytest.fixture
def pool(device):
    with CheckedPool("32MiB", device=device, backing="virtual") as made:
        yield made
        made.check()


def moved(device):
    """Pages that were moved since the log was cleared."""
    return device.calls["cuMemUnmap"]


def fill(device, ptr, nbytes, value):
    device.memset(ptr, value, nbytes)
    return ptr, nbytes, value


def intact(device, blocks):
    return all(device.read(ptr, nbytes) == bytes([value]) * nbytes for ptr, nbytes, value in blocks)


# Opening and closing

def test_all_pages_are_there_from_the_start(device, pool):
    assert (pool.stats().reserved, pool.stats().capacity, pool.stats().largest_free) == (32 * MIB,) * 3
    assert device.calls["cuMemCreate"] == device.calls["cuMemMap"] == 16 and device.calls["cuMemSetAccess"] == 1
    assert device.calls["cudaMalloc"] == 0
    device.clear_log()
    pool.free(pool.alloc(32 * MIB))
    assert not device.calls


def test_everything_is_given_back(device):
    pool = cp.Pool("32MiB", device=device, backing="virtual")
    blocks = [pool.alloc(3 * MIB) for _ in range(8)]
    for ptr in blocks[::2]:
        pool.free(ptr)
    pool.alloc(9 * MIB)
    pool.close()
    assert (device.allocated, device.reserved, device.mapped) == (0, {}, {})


def test_close_waits_for_what_is_queued(device):
    pool, stream = cp.Pool("8MiB", device=device, backing="virtual"), device.stream()
    ptr = pool.alloc(MIB, stream)
    stream.work(10)
    stream.write(ptr, MIB, 1)
    pool.close()
    assert device.now >= 10


@pytest.mark.parametrize("capacity, pages", [(1, None), (256, 1), (1_000_031, 1), (PAGE, 1), (PAGE + 1, 2), (0.5, 16)])
def test_capacity_in_whole_pages(device, capacity, pages):
    if pages is None:
        with pytest.raises(ValueError, match="capacity is from 256 bytes"):
            cp.Pool(capacity, device=device, backing="virtual")
        return
    with cp.Pool(capacity, device=device, backing="virtual") as pool:
        assert pool.stats().capacity == pool.stats().reserved == pages * PAGE


def test_a_device_without_virtual_memory(make_device):
    device = make_device(granularity=0)
    with pytest.raises(ValueError, match="has no virtual memory.*backing='malloc' does not"):
        cp.Pool("1MiB", device=device, backing="virtual")
    assert device.allocated == 0


def test_more_than_the_device_has(device):
    with pytest.raises(cp.OutOfMemoryError):
        cp.Pool("66MiB", device=device, backing="virtual")
    assert (device.allocated, device.reserved) == (0, {})


# Moving pages

def test_case_14_every_second_block_is_freed(make_device):
    device = make_device("4GiB", lazy=True)
    with cp.Pool("4GiB", device=device, backing="virtual") as pool:
        blocks = [pool.alloc(2 * MIB) for _ in range(2048)]
        for ptr in blocks[::2]:
            pool.free(ptr)
        stats = pool.stats()
        assert stats.free == stats.largest_free == 2048 * MIB
        for nbytes in (4 * MIB, 64 * MIB, (2048 - 68) * MIB):
            assert pool.alloc(nbytes)
            pool.check()
        assert (pool.stats().free, pool.stats().largest_free) == (0, 0)
        with pytest.raises(cp.OutOfMemoryError):
            pool.alloc(1)


def test_live_data_stays_where_it_is(device, pool):
    blocks = [fill(device, pool.alloc(2 * MIB), 2 * MIB, value) for value in range(16)]
    for ptr, *_ in blocks[::2]:
        pool.free(ptr)
    del blocks[::2]
    device.clear_log()
    blocks.append(fill(device, pool.alloc(12 * MIB), 12 * MIB, 99))
    assert 0 < moved(device) <= 6
    assert intact(device, blocks)


def test_no_more_pages_move_than_are_missing(device, pool):
    """A hole of two pages serves two thirds of a request of three."""
    blocks = [pool.alloc(2 * MIB) for _ in range(16)]
    for index in (3, 4, 9):
        pool.free(blocks[index])
    device.clear_log()
    pool.alloc(6 * MIB)
    assert moved(device) <= 3
    device.clear_log()
    with pytest.raises(cp.OutOfMemoryError):
        pool.alloc(2 * MIB)
    assert not device.calls["cuMemUnmap"]


def test_pages_stay_mapped_until_they_are_needed(device, pool):
    for nbytes in (MIB, 5 * MIB, 20 * MIB, 31 * MIB):
        pool.free(pool.alloc(nbytes))
    assert not moved(device)


def test_small_blocks_share_pages(device, pool):
    """A page that one small block holds cannot go; all others can."""
    blocks = [pool.alloc(100_000) for _ in range(330)]
    kept = blocks[::33]
    for ptr in set(blocks) - set(kept):
        pool.free(ptr)
    held = len({ptr // PAGE for ptr in kept} | {(ptr + 99_999) // PAGE for ptr in kept})
    largest = pool.stats().largest_free
    assert largest >= (16 - held) * PAGE
    pool.alloc(largest)


@pytest.mark.parametrize("settings", [{}, {"slab_max": 0}, {"mid_max": "8MiB"}, {"mid_max": "3MiB"}, {"mid_max": 0}])
def test_what_is_said_to_be_free_can_be_had(device, settings):
    rng = random.Random(1)
    with CheckedPool("32MiB", device=device, backing="virtual", **settings) as pool:
        live = []
        for _ in range(300):
            if live and rng.random() < 0.5:
                pool.free(live.pop(rng.randrange(len(live))))
            else:
                try:
                    live.append(pool.alloc(int(2 ** rng.uniform(8, 23.5))))
                except cp.OutOfMemoryError as error:
                    assert error.largest_free < error.requested
            if rng.random() < 0.1 and pool.stats().largest_free:
                pool.free(pool.alloc(pool.stats().largest_free))


@pytest.mark.parametrize("sizes", [(8, 6), (6, 8)], ids=["large_first", "large_last"])
def test_large_blocks_are_in_nobodys_way(device, sizes):
    """Virtual blocks of the buddy tier leave the pages to whoever needs them, whichever tier had them first."""
    with CheckedPool("32MiB", device=device, backing="virtual", mid_max="6MiB") as pool:
        for first, second in (sizes, reversed(sizes)):
            blocks = [pool.alloc(first * MIB) for _ in range(16 // first)]
            while pool.stats().free >= second * MIB:
                assert pool.stats().largest_free >= second * MIB
                blocks.append(pool.alloc(second * MIB))
            for ptr in blocks:
                pool.free(ptr)


def test_pages_are_moved_under_virtual_blocks_of_the_buddy_tier(make_device):
    """Where nothing of 33 MiB is mapped: a block of 64 MiB of addresses, and 17 pages."""
    device = make_device("102MiB")
    with CheckedPool("102MiB", device=device, backing="virtual", mid_max="32MiB") as pool:
        small = [fill(device, pool.alloc(2 * MIB), 2 * MIB, value) for value in range(51)]
        for ptr, *_ in small[::2]:
            pool.free(ptr)
        device.clear_log()
        ptr = pool.alloc("33MiB")
        assert moved(device) == device.calls["cuMemMap"] == 17
        block = next(block for block in pool.snapshot().blocks if block.address == ptr)
        assert (block.tier, block.size) == ("buddy", 34 * MIB)
        pool.free(ptr)
        device.clear_log()
        again = [pool.alloc("33MiB"), pool.alloc("16MiB")]
        assert again[0] == ptr and moved(device) == 8          # what was freed stays mapped
        assert intact(device, small[1::2])


@pytest.mark.parametrize("nbytes, tier", [(1 << 30, "mid"), ((1 << 30) + 1, "buddy")])
def test_where_the_tiers_meet_is_the_same_on_both_backings(make_device, nbytes, tier):
    device = make_device("3GiB", lazy=True)
    with cp.Pool("3GiB", device=device, backing="virtual") as pool:
        for ptr in [pool.alloc("512MiB") for _ in range(6)][::2]:
            pool.free(ptr)
        ptr = pool.alloc(nbytes)
        assert next(block for block in pool.snapshot().blocks if block.address == ptr).tier == tier


def test_case_16_no_creep(device, pool):
    """The same 10,000 events fifty times need no more memory, nor more calls from some round on."""
    rng = random.Random(2)
    events, live = [], []
    for turn in range(5000):
        live.append(turn)
        events.append((turn, int(2 ** rng.uniform(8, 20))))
        if len(live) > 60:
            events.append((live.pop(rng.randrange(len(live))), None))
    plain, calls = cp.Pool("32MiB", device=device, backing="virtual"), []
    for _ in range(50):
        device.clear_log()
        ptrs = {}
        for block, nbytes in events:
            if nbytes is None:
                plain.free(ptrs.pop(block))
            else:
                ptrs[block] = plain.alloc(nbytes)
        for ptr in ptrs.values():
            plain.free(ptr)
        calls.append(sum(device.calls.values()))
        stats = plain.stats()
        assert stats.used == 0 and stats.reserved == stats.largest_free == 32 * MIB
    assert max(calls[1:]) <= max(10, calls[0])
    plain.check()
    plain.close()


# Growth and return

@pytest.fixture
def growing(device):
    with CheckedPool("2MiB", device=device, backing="virtual", growth="dynamic", max_capacity="32MiB") as made:
        yield made
        made.check()


def test_pages_are_got_as_they_are_needed(device, growing):
    assert (growing.stats().reserved, growing.stats().capacity) == (PAGE, 32 * MIB)
    blocks = [growing.alloc(3 * MIB) for _ in range(8)]
    assert growing.stats().reserved == 24 * MIB == growing.stats().reserved_high
    assert 0 < growing.stats().grow_count <= 8
    with pytest.raises(cp.OutOfMemoryError) as caught:
        growing.alloc(9 * MIB)
    assert caught.value.capacity == 32 * MIB
    assert growing.alloc(8 * MIB)
    assert all(growing.owns(ptr) for ptr in blocks)


def test_the_largest_request_does_without_growing(make_device):
    """Two pages are half used at places apart: what is free in one of them is not beside the rest."""
    device = make_device("4MiB", granularity="4KiB")
    with CheckedPool("64KiB", device=device, backing="virtual", growth="dynamic", max_capacity="1MiB",
                     slab_max=0) as pool:
        blocks = [pool.alloc(nbytes) for nbytes in (2048, 2048, 4096, 2048, 2048)]
        pool.free(blocks[0])
        pool.free(blocks[4])
        stats, report = pool.stats(), pool.defragment()
        assert stats.largest_free == report.before.largest_free == report.after.largest_free == stats.free - 2048
        assert pool.snapshot().largest_free == stats.largest_free
        pool.alloc(stats.largest_free)
        assert pool.stats().reserved == stats.reserved


def test_what_is_there_at_the_low_end_of_a_free_block_counts(make_device):
    """Beside it there are addresses without memory, so its size is neither that of the block nor of whole pages."""
    device = make_device("1MiB", granularity="4KiB")
    with CheckedPool("64KiB", device=device, backing="virtual", slab_max=0) as pool:
        blocks = [pool.alloc(20_480), pool.alloc(6144)]
        pool.free(blocks[0])
        pool.alloc(pool.stats().largest_free)
        pool.free(blocks[1])
        largest = pool.stats().largest_free
        with pytest.raises(cp.OutOfMemoryError):
            pool.alloc(largest + 256)
        assert pool.alloc(largest)


def test_case_05_eight_blocks_of_8_mib(make_device):
    with CheckedPool(1_000_000, device=make_device("64MiB"), backing="virtual", growth="dynamic",
                     max_capacity="64MiB") as pool:
        assert len({pool.alloc(8 * MIB) for _ in range(8)}) == 8


def test_free_pages_are_used_before_more_are_got(device, growing):
    blocks = [growing.alloc(2 * MIB) for _ in range(8)]
    for ptr in blocks[::2]:
        growing.free(ptr)
    growing.alloc(8 * MIB)
    assert growing.stats().reserved == 16 * MIB


def test_a_device_that_has_less(make_device):
    device = make_device("16MiB")
    with CheckedPool("2MiB", device=device, backing="virtual", growth="dynamic", max_capacity="64MiB") as pool:
        blocks = [pool.alloc(4 * MIB) for _ in range(4)]
        with pytest.raises(cp.OutOfMemoryError):
            pool.alloc(1 * MIB)
        pool.free(blocks.pop())
        pool.alloc(1 * MIB)


@pytest.mark.parametrize("keep, left", [(0, 2), (PAGE, 2), (5 * MIB, 3), ("10MiB", 5), ("1GiB", 8), ("8PiB", 8),
                                        (10**30, 8)])
def test_case_18_trim_gives_pages_back(device, growing, keep, left):
    blocks = [growing.alloc(2 * MIB) for _ in range(8)]
    kept = [fill(device, blocks[index], 2 * MIB, index) for index in (1, 6)]
    for index in (0, 2, 3, 4, 5, 7):
        growing.free(blocks[index])
    assert growing.trim(keep) == (8 - left) * PAGE
    assert growing.stats().reserved == device.allocated == left * PAGE
    assert intact(device, kept)
    growing.alloc(12 * MIB)
    assert intact(device, kept)


def test_case_17_everything_goes_back(device, growing):
    blocks = [growing.alloc(100_000) for _ in range(100)]
    for ptr in blocks:
        growing.free(ptr)
    growing.trim()
    assert growing.stats().reserved == device.allocated == 0
    growing.free(growing.alloc(MIB))


def test_case_31_pages_in_use_are_not_given_back(device, growing):
    stream = device.stream()
    ptr = growing.alloc(8 * MIB, stream)
    stream.work(10)
    stream.write(ptr, 8 * MIB, 1)
    growing.free_async(ptr, stream)
    growing.trim()
    assert device.now == 0 and growing.stats().reserved >= 8 * MIB
    device.synchronize()
    growing.trim()
    assert growing.stats().reserved == 0


def test_release_threshold(device):
    with CheckedPool("2MiB", device=device, backing="virtual", growth="dynamic", max_capacity="64MiB",
                     release_threshold="4MiB") as pool:
        blocks = [pool.alloc(4 * MIB) for _ in range(10)]
        for ptr in blocks:
            pool.free(ptr)
        assert pool.stats().reserved <= 8 * MIB


def test_a_static_pool_keeps_its_pages(device, pool):
    assert pool.trim() == 0 and pool.stats().reserved == 32 * MIB


@pytest.mark.parametrize("call", ["cuMemUnmap", "cuMemRelease"])
def test_case_40_trim_fails(make_device, call):
    for after in range(4):
        device = make_device("32MiB")
        with CheckedPool("2MiB", device=device, backing="virtual", growth="dynamic", max_capacity="32MiB") as pool:
            blocks = [pool.alloc(2 * MIB) for _ in range(8)]
            for ptr in blocks[::2]:
                pool.free(ptr)
            device.fail(call, after=after)
            with pytest.raises(cp.CudaError, match=call):
                pool.trim()
            pool.check()
            assert pool.stats().reserved == device.allocated
            pool.alloc(8 * MIB)
            pool.trim()
            assert pool.stats().reserved == device.allocated == 16 * MIB


@pytest.mark.parametrize("call", ["cuMemUnmap", "cuMemRelease"])
def test_close_gives_back_what_it_can(make_device, call):
    device = make_device("32MiB")
    pool = cp.Pool("8MiB", device=device, backing="virtual")
    device.fail(call, after=1)
    with pytest.raises(cp.CudaError, match=call):
        pool.close()
    assert pool.closed and device.allocated == 2 * MIB


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemMap", "cuMemSetAccess"])
def test_case_40_growth_fails(make_device, call):
    for after in range(3):
        device = make_device("32MiB")
        with CheckedPool("2MiB", device=device, backing="virtual", growth="dynamic", max_capacity="32MiB") as pool:
            first = fill(device, pool.alloc(2 * MIB), 2 * MIB, 5)
            device.fail(call, code="cudaErrorLaunchFailure", after=after if call != "cuMemSetAccess" else 0, times=50)
            with pytest.raises(cp.CudaError, match=call):
                pool.alloc(8 * MIB)
            device.clear_faults()
            ptr = pool.alloc(8 * MIB)
            second = fill(device, ptr, 8 * MIB, 6)
            assert intact(device, [first, second]) and pool.stats().reserved == device.allocated == 10 * MIB


# Streams

def test_pages_move_only_once_their_work_is_over(device, pool):
    stream = device.stream()
    blocks = [pool.alloc(2 * MIB, stream) for _ in range(16)]
    stream.work(10)
    for ptr in blocks[::2]:
        stream.write(ptr, 2 * MIB, 7)
        pool.free_async(ptr, stream)
    assert pool.alloc(4 * MIB, 0)
    assert device.now >= 10             # the host had to wait; the simulator would have reported anything else


def test_the_streams_own_memory_moves_only_once_its_work_is_over(device, pool):
    stream = device.stream()
    blocks = [pool.alloc(2 * MIB, stream) for _ in range(16)]
    for ptr in blocks[::2]:
        stream.write(ptr, 2 * MIB, 7, ticks=3)
        pool.free_async(ptr, stream)
    assert pool.alloc(2 * MIB, stream) in blocks[::2]
    assert not moved(device) and device.now == 0
    assert pool.alloc(4 * MIB, stream)
    assert moved(device) and device.now > 0


def test_nothing_moves_during_a_capture(device, pool):
    stream = device.stream()
    blocks = [pool.alloc(2 * MIB) for _ in range(16)]
    for ptr in blocks[::2]:
        pool.free(ptr)
    with pool.capture(stream) as graph:
        stream.begin_capture()
        device.clear_log()
        with pytest.raises(cp.OutOfMemoryError):
            pool.alloc(4 * MIB, stream)
        assert not moved(device)
        stream.end_capture()
    graph.release()
    assert pool.alloc(4 * MIB, stream)


# Faults

CALLS = ("cuMemUnmap", "cuMemMap", "cuMemSetAccess")


@pytest.mark.parametrize("call", CALLS)
def test_case_40_every_call_of_a_move_fails_once(make_device, call):
    """Whichever call fails, nothing is lost or in two places, and the next try succeeds."""
    for after in range(100):
        device = make_device("32MiB")
        with CheckedPool("32MiB", device=device, backing="virtual") as pool:
            blocks = [fill(device, pool.alloc(2 * MIB), 2 * MIB, value) for value in range(16)]
            for ptr, *_ in blocks[::2]:
                pool.free(ptr)
            del blocks[::2]
            before = pool.stats()
            device.fail(call, after=after)
            try:
                ptr = pool.alloc(12 * MIB)
            except cp.CudaError as error:
                assert error.call == call
                changed = ("upstream_calls", "largest_free", "device_free")
                assert comparable(pool.stats(), *changed) == comparable(before, *changed)
                device.clear_faults()
                ptr = pool.alloc(12 * MIB)
                blocks.append(fill(device, ptr, 12 * MIB, 99))
                assert intact(device, blocks)
                blocks.append(fill(device, pool.alloc(4 * MIB), 4 * MIB, 98))
                assert intact(device, blocks) and pool.stats().free == 0
                continue
            assert after > 0
            device.clear_faults()
            return
    pytest.fail("never got through")


@pytest.mark.parametrize("call", ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"])
def test_opening_fails(make_device, call):
    for after in (0, 1, 5):
        device = make_device("32MiB")
        device.fail(call, after=after)
        try:
            cp.Pool("16MiB", device=device, backing="virtual").close()
            assert after >= device.calls[call]
        except (cp.CudaError, cp.OutOfMemoryError):
            pass
        device.clear_faults()
        assert (device.allocated, device.reserved) == (0, {})
        with cp.Pool("32MiB", device=device, backing="virtual") as pool:
            pool.alloc(32 * MIB)


def test_a_slow_move_delays_nobody_else(make_device):
    """What is ready is served while another thread's pages are on their way."""
    device = make_device("64MiB")
    with cp.Pool("64MiB", device=device, backing="virtual") as pool:
        blocks = [pool.alloc(2 * MIB) for _ in range(32)]
        for ptr in blocks[2::2]:
            pool.free(ptr)
        device.delay("cuMemMap", seconds=0.2)
        mover = threading.Thread(target=pool.alloc, args=(8 * MIB,))
        mover.start()
        while not device.calls["cuMemUnmap"]:
            pass
        served = 0
        while mover.is_alive():
            pool.free(pool.alloc(MIB))
            served += 1
        mover.join()
        assert served > 50
        pool.check()


@pytest.mark.threads
def test_threads_that_move_pages(make_device):
    device = make_device("64MiB")
    with cp.Pool("64MiB", device=device, backing="virtual") as pool:
        faults = []

        def work(seed):
            rng, live = random.Random(seed), []
            try:
                for turn in range(300):
                    if len(live) > 6 or (live and rng.random() < 0.4):
                        ptr, nbytes, value = live.pop(rng.randrange(len(live)))
                        assert device.read(ptr, 64) == bytes([value]) * 64
                        assert device.read(ptr + nbytes - 64, 64) == bytes([value]) * 64
                        pool.free(ptr)
                        continue
                    nbytes = int(2 ** rng.uniform(10, 22.5))
                    try:
                        ptr = pool.alloc(nbytes)
                    except cp.OutOfMemoryError:
                        continue
                    live.append((ptr, nbytes, turn % 251))
                    device.memset(ptr, turn % 251, nbytes)
                for ptr, *_ in live:
                    pool.free(ptr)
            except BaseException as fault:
                faults.append(fault)
                raise

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []
        pool.check()
        assert pool.stats().used == 0 and pool.stats().largest_free == 64 * MIB
