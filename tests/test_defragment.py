"""Pool.defragment(): what it joins and moves, when it starts by itself, and that nothing is lost by it."""

import itertools
import random
import threading
import time
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cuda_pool as cp
from cuda_pool import sim
from cuda_pool.errors import CudaError

from .models import POOLS, REUSE, VIRTUAL_POOLS, CheckedPool, comparable, effort

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.fixture
def backing():
    """Blocks are moved where pages cannot be."""
    return "malloc"


def address_of(block):
    with block.pin() as ptr:
        return ptr


def filled(device, block, value):
    """Write `value` over the first and the last bytes of a block."""
    with block.pin() as ptr:
        for start in (ptr, ptr + block.nbytes - min(block.nbytes, 4 * KIB)):
            device.memset(start, value, min(block.nbytes, 4 * KIB))


def verify(device, block, value):
    ptr, nbytes = address_of(block), min(block.nbytes, 4 * KIB)
    for start in (ptr, ptr + block.nbytes - nbytes):
        assert device.read(start, nbytes) == bytes([value]) * nbytes


def servable(pool):
    """The share of the capacity that is in use or can be had in one request."""
    stats = pool.stats()
    return (stats.used + stats.largest_free) / stats.capacity


def test_case_14_every_second_of_4096_movable_blocks(make_pool):
    """Of the free half nothing but 1 MiB can be had, and then all of it in one request."""
    pool = make_pool("4GiB")
    blocks = [pool.movable(MIB) for _ in range(4096)]
    for number, block in enumerate(blocks):
        filled(pool.device, block, number % 251)
    for block in blocks[::2]:
        block.free()
    assert pool.stats().free == 2 * GIB and pool.stats().largest_free == MIB and servable(pool) <= 0.55
    report = pool.defragment()
    pool.check()
    assert (report.before.largest_free, report.after.largest_free) == (MIB, 2 * GIB) and servable(pool) >= 0.95
    assert report.moved_bytes == GIB and report.completed and report.kept_blocks == 0
    ptr = pool.alloc("2GiB")
    assert pool.stats().free == 0
    for number, block in enumerate(blocks):
        if number % 2:
            verify(pool.device, block, number % 251)
            block.free()
    pool.free(ptr)
    assert pool.stats().used == 0 and pool.stats().alloc_count == pool.stats().free_count == 4097


@pytest.mark.parametrize("settings", [{}, {"mid_max": "1MiB"}, {"slab_max": 0}, {"mid_max": 0}])
def test_a_checkerboard(make_pool, settings):
    pool = make_pool("64MiB", **settings)
    blocks = [pool.movable(MIB) for _ in range(64)]
    for number, block in enumerate(blocks):
        filled(pool.device, block, number)
    for block in blocks[::2]:
        block.free()
    assert servable(pool) <= 0.55
    report = pool.defragment()
    pool.check()
    assert servable(pool) >= 0.95 and report.after.external_fragmentation <= 0.05 < report.before.external_fragmentation
    pool.free(pool.alloc("32MiB"))
    for number in range(1, 64, 2):
        verify(pool.device, blocks[number], number)
    again = pool.defragment()
    assert (again.moved_blocks, again.moved_bytes) == (0, 0) and again.completed


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("settings", [{}, {"mid_max": "1MiB"}])
def test_mixed_sizes(make_pool, settings, seed):
    """Sizes of no common measure, a random half of them freed."""
    rng = random.Random(seed)
    pool = make_pool("64MiB", **settings)
    blocks = []
    while True:
        try:
            blocks.append(pool.movable(rng.randrange(20 * KIB, MIB)))
        except cp.OutOfMemoryError:
            break
    rng.shuffle(blocks)
    for number, block in enumerate(blocks):
        filled(pool.device, block, number % 251)
    while len(blocks) > 10 and pool.stats().free < 32 * MIB:
        blocks.pop().free()
    assert servable(pool) < 0.7
    report = pool.defragment()
    pool.check()
    assert servable(pool) > 0.95, report
    for number, block in enumerate(blocks):
        verify(pool.device, block, number % 251)


def test_blocks_larger_than_any_gap(make_pool):
    """Each moves by less than its size: by way of another place, since copies may not overlap themselves."""
    pool = make_pool("64MiB")
    made = [(pool.movable(3 * MIB), pool.alloc(MIB)) for _ in range(16)]
    for number, (block, ptr) in enumerate(made):
        filled(pool.device, block, number)
        pool.free(ptr)
    made.pop()[0].free()
    report = pool.defragment()
    pool.check()
    assert report.after.largest_free == report.after.free == 19 * MIB
    for number, (block, _) in enumerate(made):
        verify(pool.device, block, number)


def test_what_cannot_be_moved_stays(make_pool):
    """Ordinary blocks, pinned ones, and slabs."""
    pool = make_pool("64MiB")
    blocks, others = [], []
    for number in range(60):
        blocks.append(pool.movable(MIB))
        if number % 20 == 10:
            others += [pool.alloc(300 * KIB), pool.alloc(5000)]
    for number, block in enumerate(blocks):
        filled(pool.device, block, number)
    for block in blocks[::2]:
        block.free()
    blocks = blocks[1::2]
    with blocks[3].pin() as pinned:
        before = pool.stats()
        report = pool.defragment()
        pool.check()
        assert blocks[3].address == pinned and report.kept_blocks == 1
        assert report.after.largest_free > 15 * MIB > before.largest_free
    for number, block in enumerate(blocks):
        verify(pool.device, block, 2 * number + 1)
    assert comparable(pool.stats(), "largest_free", "pending", "defrag_count", "used_high") == comparable(
        before, "largest_free", "pending", "defrag_count", "used_high")
    for ptr in others:
        pool.free(ptr)


def test_pending_frees_are_completed_and_slabs_returned(make_pool):
    """Without a movable block: blocks of two streams merge, and empty slabs go back."""
    pool = make_pool("16MiB")
    blocks = [pool.alloc(MIB) for _ in range(15)]
    small = [pool.alloc(256) for _ in range(100)]
    for ptr in small:
        pool.free(ptr)
    for number, ptr in enumerate(blocks):
        pool.free_async(ptr, number % 2 * 2)
    report = pool.defragment()
    pool.check()
    assert pool.stats().pending == 0 and report.after.largest_free == report.after.free == 16 * MIB
    assert (report.moved_blocks, report.pages_moved, report.kept_blocks) == (0, 0, 0) and report.seconds > 0
    assert report.after.free_blocks <= 2 and pool.stats().defrag_count == 1


def every_second(pool, device, count):
    """Allocate so many blocks of 2 MiB, fill each with its number, and free every second; return all addresses."""
    blocks = [pool.alloc(2 * MIB) for _ in range(count)]
    for value, ptr in enumerate(blocks):
        device.memset(ptr, value, 2 * MIB)
    for ptr in blocks[::2]:
        pool.free(ptr)
    return blocks


def test_pages_are_moved_ahead_of_the_request(make_device):
    """Where pages can move, the largest request then makes no driver call; what is live stays where it is."""
    device = make_device("64MiB")
    with CheckedPool("64MiB", device=device, backing="virtual") as pool:
        blocks = every_second(pool, device, 32)
        report = pool.defragment()
        assert report.completed and 1 <= report.pages_moved <= 16 and report.moved_blocks == 0
        assert report.before.largest_free == report.after.largest_free == report.after.free == 32 * MIB
        assert pool.defragment().pages_moved == 0
        device.clear_log()
        ptr = pool.alloc(32 * MIB)
        assert not any(name.startswith("cuMem") for name in device.calls)
        device.memset(ptr, 99, 32 * MIB)
        assert all(device.read(ptr, 2 * MIB) == bytes([value]) * (2 * MIB)
                   for value, ptr in list(enumerate(blocks))[1::2])


def paging_calls(device):
    return sum(count for name, count in device.calls.items() if name.startswith("cuMem"))


@pytest.mark.parametrize("capacity", ["2MiB", "128MiB"])
@pytest.mark.parametrize("nbytes", [64 * MIB, 32 * MIB, 5 * MIB, 2 * MIB, 300 * KIB])
def test_pages_of_a_pool_that_grows_go_where_requests_do(make_device, capacity, nbytes):
    """Not to the start of a place as large as all that it may grow to."""
    device = make_device("1GiB", lazy=True)
    with CheckedPool(capacity, device=device, backing="virtual", growth="dynamic", max_capacity="1GiB") as pool:
        for ptr in [pool.alloc(2 * MIB) for _ in range(64)][::2]:
            pool.free(ptr)
        report = pool.defragment()
        assert report.before.largest_free == report.after.largest_free == report.after.free == 64 * MIB
        assert report.after.external_fragmentation == 0
        device.clear_log()
        for _ in range(64 * MIB // nbytes):
            pool.alloc(nbytes)
        assert paging_calls(device) == 0 and pool.stats().reserved == 128 * MIB


def test_pages_go_to_a_place_that_has_enough_with_them(make_device):
    """That is not always the one that lacks the fewest: another shares a page with what is used beside it."""
    device = make_device("1MiB", granularity="4KiB")
    with CheckedPool("64KiB", device=device, backing="virtual", slab_max=0) as pool:
        blocks = [pool.alloc(nbytes * KIB) for nbytes in (8, 8, 8, 12)]
        pool.free(blocks[2])
        for nbytes in (10, 20):
            pool.alloc(nbytes * KIB)
        assert pool.defragment().completed
        device.clear_log()
        pool.alloc(pool.stats().largest_free)
        assert paging_calls(device) == 0


def test_pages_go_to_the_buddy_tier_where_the_mid_tier_has_no_room(make_device):
    """Nor do any move as long as the largest request has a place, in whichever tier."""
    device = make_device("4MiB", granularity="4KiB", lazy=True)
    with CheckedPool("4MiB", device=device, backing="virtual", mid_max="64KiB", slab_max=0) as pool:
        assert pool.defragment().pages_moved == 0
        for _ in range(8):          # the 16 MiB of addresses
            pool.alloc(256, alignment=2 * MIB)
        report = pool.defragment()
        assert report.completed and report.pages_moved > 0 and report.after.largest_free > 3 * MIB
        device.clear_log()
        ptr = pool.alloc(report.after.largest_free)
        assert paging_calls(device) == 0
        assert next(block for block in pool.snapshot().blocks if block.address == ptr).tier == "buddy"
        pool.free(ptr)
        assert pool.defragment().pages_moved == 0


def test_pages_do_not_move_during_a_capture_of_another_pool(make_device):
    device = make_device("64MiB")
    with cp.Pool("32MiB", device=device, backing="virtual") as pool, cp.Pool("1MiB", device=device) as other:
        stream = device.stream()
        for ptr in [pool.alloc(2 * MIB) for _ in range(16)][::2]:
            pool.free(ptr)
        with other.capture(stream) as graph:
            stream.begin_capture()
            report = pool.defragment()
            assert report.pages_moved == 0 and not report.completed
            stream.end_capture().release()
        graph.release()
        report = pool.defragment()
        assert report.pages_moved > 0 and report.completed


def test_pages_are_moved_64_at_a_time(make_device):
    """Who needs a driver call waits for one step: `slow` is free between two."""
    device = make_device("1GiB", lazy=True)
    with cp.Pool("1GiB", device=device, backing="virtual", mid_max="1GiB") as pool:
        for ptr in [pool.alloc(2 * MIB) for _ in range(512)][::2]:
            pool.free(ptr)
        device.clear_log()
        report = pool.defragment()
        assert report.pages_moved > 200
        steps = "".join("u" if name == "cuMemUnmap" else "m" for name, *_ in device.log
                        if name in ("cuMemUnmap", "cuMemMap")).replace("mu", "m u").split()
        assert max(map(len, steps)) <= 128 and sum(step.count("m") for step in steps) == report.pages_moved


@pytest.mark.parametrize("call", ["cuMemUnmap", "cuMemMap", "cuMemSetAccess"])
def test_case_40_moving_pages_fails(make_device, call):
    """Whichever call fails, nothing is lost, and the next pass goes on."""
    for after in range(20):
        device = make_device("32MiB")
        with CheckedPool("32MiB", device=device, backing="virtual") as pool:
            blocks = every_second(pool, device, 16)
            device.fail(call, code="cudaErrorLaunchFailure", after=after)
            try:
                pool.defragment()
            except CudaError as error:
                assert error.call == call
            else:
                assert after > 0
                break
            finally:
                device.clear_faults()
            assert pool.stats().largest_free == pool.stats().free == 16 * MIB
            assert pool.defragment().completed
            pool.alloc(16 * MIB)
            assert all(device.read(ptr, 2 * MIB) == bytes([value]) * (2 * MIB)
                       for value, ptr in list(enumerate(blocks))[1::2])
    else:
        pytest.fail("the pass never went through")


def test_pages_do_not_move_during_a_capture(make_device):
    device = make_device("32MiB")
    with CheckedPool("32MiB", device=device, backing="virtual") as pool:
        stream = device.stream()
        for ptr in [pool.alloc(2 * MIB) for _ in range(16)][::2]:
            pool.free(ptr)
        with pool.capture(stream) as graph:
            stream.begin_capture()
            report = pool.defragment()
            assert report.pages_moved == 0 and not report.completed
            stream.end_capture()
        graph.release()
        assert pool.defragment().pages_moved > 0


def test_others_allocate_while_pages_move(make_device):
    device = make_device("256MiB", lazy=True)
    with cp.Pool("256MiB", device=device, backing="virtual") as pool:
        kept = [pool.alloc(2 * MIB) for _ in range(128)]
        for ptr in kept[::2]:
            pool.free(ptr)
        going, faults = True, []

        def work(seed):
            rng = random.Random(seed)
            while going:
                try:
                    ptrs = [pool.alloc(int(2 ** rng.uniform(8, 22))) for _ in range(8)]
                    for ptr in ptrs:
                        pool.free(ptr)
                except Exception as error:
                    faults.append(error)
                    return

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(30):
            pool.defragment()
        going = False
        for thread in threads:
            thread.join()
        assert not faults
        pool.check()
        assert pool.stats().free == 128 * MIB and pool.defragment().after.largest_free == 128 * MIB


@pytest.mark.threads
def test_a_pass_ends_though_another_thread_undoes_it(make_device):
    """It moves no more than all pages there are, and the last step: here each step finds another largest place."""
    device, pages = make_device("8MiB", granularity="4KiB", lazy=True), 2048
    with cp.Pool("8MiB", device=device, backing="virtual") as pool:
        device.delay("cuMemSetAccess", 0.001)
        over, reports = threading.Event(), []

        def undo():
            """Divide what is gathered, and join it again, after each step."""
            while not over.is_set() and device.calls["cuMemMap"] < 4 * pages:
                ptr = pool.alloc(4 * KIB, alignment=4 * MIB)
                wait_for_step()
                pool.free(ptr)
                wait_for_step()

        def wait_for_step():
            before = device.calls["cuMemMap"]
            while not over.is_set() and device.calls["cuMemMap"] == before:
                time.sleep(0.0001)

        thread = threading.Thread(target=undo)
        thread.start()
        while device.calls["cuMemMap"] < 3 * pages and len(reports) < 1000:
            reports.append(pool.defragment())
        over.set()
        thread.join()
        assert all(report.pages_moved <= pages + 64 for report in reports)
        assert all(report.completed for report in reports if report.pages_moved <= pages)
        assert pool.defragment().completed
        pool.check()


def test_an_empty_pool(make_pool):
    pool = make_pool("1MiB")
    report = pool.defragment()
    assert report.before == report.after and report.completed
    assert report.before == cp.FreeSpace(free=MIB, largest_free=MIB, free_blocks=report.before.free_blocks)
    assert report.before.external_fragmentation == 0 == cp.FreeSpace(0, 0, 0).external_fragmentation


def test_blocks_of_the_buddy_tier_move_up(make_pool):
    """They get there when the mid tier cannot grow: an ordinary run of the buddy tier lies below it."""
    pool = make_pool("16MiB", mid_max="1MiB")
    blocks = [pool.movable(512 * KIB) for _ in range(8)]
    run = pool.alloc("6MiB")
    more = [pool.movable(512 * KIB) for _ in range(8)]
    assert pool.stats().buddy.blocks + pool.stats().mid.blocks == 17
    for block in [*blocks[::2], *more[::2]]:
        block.free()
    pool.defragment()
    pool.check()
    pool.free(run)
    report = pool.defragment()
    pool.check()
    assert report.after.largest_free >= 0.95 * report.after.free


# Regions

@pytest.mark.parametrize("reuse", REUSE)
def test_blocks_move_between_regions(make_device, reuse):
    """No free piece is larger than a region; one that is emptied can be given back."""
    device = make_device("64MiB")
    with cp.Pool("4MiB", device=device, growth="dynamic", max_capacity="32MiB", reuse=reuse) as pool:
        streams = [device.stream(), device.stream(blocking=False)]
        blocks = [pool.movable(512 * KIB, streams[number % 2]) for number in range(48)]
        for number, block in enumerate(blocks):
            filled(device, block, number)
        regions = len(device.live)
        assert regions > 2
        for number in range(48):
            if number % 4:
                blocks[number].free()
        pool.check()
        report = pool.defragment()
        pool.check()
        assert report.moved_blocks and report.after.largest_free > report.before.largest_free
        assert pool.trim() > 0 and len(device.live) < regions
        pool.check()
        for number in range(0, 48, 4):
            verify(device, blocks[number], number)


def test_a_pool_that_may_grow_does_so_before_it_moves(make_device):
    device = make_device("64MiB")
    with cp.Pool("8MiB", device=device, growth="dynamic", max_capacity="12MiB") as pool:
        kept = checkerboard(pool, 8)
        pool.free(pool.alloc("4MiB"))
        assert pool.stats().grow_count == 1 and pool.stats().defrag_count == 0
        large = pool.alloc(pool.stats().largest_free)
        pool.free(pool.alloc("4MiB"))
        assert pool.stats().defrag_count == 1 and kept
        pool.free(large)


# By itself

def checkerboard(pool, count, nbytes=MIB, stream=0):
    blocks = [pool.movable(nbytes, stream) for _ in range(count)]
    for block in blocks[::2]:
        block.free()
    return blocks[1::2]


def test_every_so_many_allocations(make_device):
    device = make_device("64MiB")
    with cp.Pool("32MiB", device=device, defrag_interval=100) as pool:
        kept = checkerboard(pool, 20)
        assert pool.stats().defrag_count == 0
        for _ in range(79):
            pool.free(pool.alloc("100KiB"))
        assert pool.stats().defrag_count == 0
        pool.free(pool.alloc("100KiB"))
        pool.free(pool.alloc("100KiB"))
        assert pool.stats().defrag_count == 1
        pool.check()
        for _ in range(1000):
            pool.free(pool.alloc("100KiB"))
        assert 10 <= pool.stats().defrag_count <= 11 and len(kept) == 10
        assert device.calls["cudaStreamSynchronize"] == device.calls["cudaDeviceSynchronize"] == 0


def test_allocations_from_slabs_count_and_do_not_look(make_device):
    device = make_device("64MiB")
    with cp.Pool("32MiB", device=device, defrag_interval=100) as pool:
        kept = pool.alloc(256)
        for _ in range(1000):
            pool.free(pool.alloc(256))
        assert pool.stats().defrag_count == 0
        pool.free(pool.alloc("100KiB"))
        pool.free(pool.alloc("100KiB"))
        assert pool.stats().defrag_count == 1
        pool.free(kept)


def test_above_a_number_of_free_blocks(make_device):
    device = make_device("64MiB")
    with cp.Pool("32MiB", device=device, defrag_threshold=8) as pool:
        blocks = [pool.movable(MIB) for _ in range(32)]
        for number, block in enumerate(blocks):
            filled(device, block, number)
        for number in range(0, 14, 2):
            blocks[number].free()
        for _ in range(5):
            pool.free(pool.alloc("500KiB"))
        assert pool.stats().defrag_count == 0
        for number in range(14, 32, 2):
            blocks[number].free()
        pool.free(pool.alloc("500KiB"))
        pool.free(pool.alloc("500KiB"))
        assert pool.stats().defrag_count == 1 and pool.stats().largest_free == 16 * MIB
        for number in range(1, 32, 2):
            verify(device, blocks[number], number)


def test_a_pass_that_cannot_help_is_not_repeated_at_once(make_device):
    """Ordinary blocks keep the number of free ones high."""
    device = make_device("64MiB")
    with cp.Pool("32MiB", device=device, defrag_threshold=8) as pool:
        blocks = [pool.alloc(256 * KIB) for _ in range(100)]
        for ptr in blocks[::2]:
            pool.free(ptr)
        for _ in range(100):
            pool.free(pool.alloc("500KiB"))
        assert pool.stats().defrag_count == 1


def test_not_on_a_captured_stream(make_device):
    device = make_device("64MiB")
    with cp.Pool("32MiB", device=device, defrag_interval=1) as pool:
        stream = device.stream()
        kept = checkerboard(pool, 20, stream=stream)
        count = pool.stats().defrag_count
        with pool.capture(stream) as graph:
            stream.begin_capture()
            before = +device.calls
            for _ in range(10):
                pool.free_async(pool.alloc("100KiB", stream), stream)
            asked = +device.calls - before
            assert set(asked) <= {"cudaGetDevice", "cudaSetDevice", "cudaStreamGetId"} and kept
            assert pool.stats().defrag_count == count
            stream.end_capture().release()
        graph.release()


@pytest.mark.parametrize("inside", [True, False])
def test_the_memory_of_a_graph_is_not_part_of_the_largest_piece(make_device, inside):
    """Blocks beside it move only where that makes the largest free piece larger that there is without it."""
    device = make_device("64MiB")
    with cp.Pool("3MiB", slab_max=0, device=device) as pool:
        stream = device.stream()
        early = None if inside else pool.alloc("2MiB", stream)
        with pool.capture(stream) as graph:
            stream.begin_capture()
            pool.free_async(early or pool.alloc("2MiB", stream), stream)
            captured = stream.end_capture()
        blocks = [pool.alloc(8 * KIB) for _ in range(100)]
        kept = pool.movable(4 * KIB)
        for ptr in blocks:
            pool.free(ptr)
        report = pool.defragment()
        assert report.after.largest_free >= report.before.largest_free
        pool.free(pool.alloc(report.after.largest_free))
        captured.release()
        graph.release()
        assert pool.defragment().after.largest_free > 2 * MIB and kept


@pytest.mark.parametrize("name, bad, error", [
    ("defrag_threshold", 0, ValueError), ("defrag_interval", -1, ValueError), ("defrag_interval", 1.5, TypeError),
    ("defrag_threshold", "8", TypeError), ("defrag_interval", True, TypeError),
    ("defrag_interval", 1 << 64, ValueError)])
def test_settings_that_are_refused(make_device, name, bad, error):
    device = make_device()
    with pytest.raises(error, match=f"{name} is an int of at least 1, or None"):
        cp.Pool("1MiB", device=device, **{name: bad})
    assert device.live == {}


# In a shortage

@pytest.mark.parametrize("reuse", REUSE)
@pytest.mark.parametrize("name", ["legacy", "object"])
def test_a_request_that_finds_no_room_moves_blocks_first(make_device, reuse, name):
    device = make_device("64MiB")
    with cp.Pool("32MiB", device=device, reuse=reuse) as pool:
        stream = device.stream(blocking=False) if name == "object" else 0
        kept = checkerboard(pool, 32, stream=stream)
        for number, block in enumerate(kept):
            filled(device, block, number)
        ptr = pool.alloc("16MiB")
        pool.check()
        device.memset(ptr, 99, 16 * MIB)
        for number, block in enumerate(kept):
            verify(device, block, number)
        assert pool.stats().oom_count == 0 and pool.stats().defrag_count == 1
        pool.free(ptr)
        with pool.movable("16MiB"), pytest.raises(cp.OutOfMemoryError):
            pool.alloc("64KiB")
        assert pool.stats().oom_count == 1


def test_a_hopeless_request_moves_nothing(make_device):
    device = make_device("64MiB")
    with cp.Pool("32MiB", device=device) as pool:
        kept = checkerboard(pool, 32)
        with pytest.raises(cp.OutOfMemoryError):
            pool.alloc("17MiB")
        with kept[5].pin(), kept[10].pin(), pytest.raises(cp.OutOfMemoryError):
            pool.alloc("16MiB")                 # between the two, and on either side, there is less
        assert device.calls["cudaMemcpyAsync"] == 0 and pool.stats().oom_count == 2
        pool.check()


# Threads

@pytest.mark.threads
def test_others_wait_for_one_step_at_most(make_device):
    """Each copy takes the driver 5 ms to queue. Meanwhile nobody waits who needs no driver call."""
    device = make_device("1GiB")
    with cp.Pool("512MiB", device=device) as pool:
        kept = checkerboard(pool, 300)
        device.delay("cudaMemcpyAsync", 0.005)
        times, moved = [], []

        def passes():
            """One pass, or more: there is nothing to move while the other thread's largest block divides the region."""
            while sum(moved) < 50 and len(moved) < 100:
                moved.append(pool.defragment().moved_blocks)

        thread = threading.Thread(target=passes)
        thread.start()
        while thread.is_alive():
            for nbytes in (500, 100_000, 3 * MIB):
                started = time.perf_counter()
                ptr = pool.alloc(nbytes)
                times.append(time.perf_counter() - started)
                pool.free(ptr)
            time.sleep(0.0005)
        thread.join()
        device.clear_faults()
        pool.check()
        assert sum(moved) >= 50 and len(times) > 100 and kept
        assert sorted(times)[int(len(times) * 0.99)] < 0.001


@pytest.mark.threads
def test_a_block_may_be_pinned_at_any_time(make_device):
    device = make_device("64MiB")
    with cp.Pool("32MiB", device=device) as pool:
        failures, over = [], threading.Event()

        def work(number):
            rng, streams = random.Random(number), [device.stream(), device.stream(blocking=False)]
            sim.set_current_device(device)
            try:
                blocks = {}
                while not over.is_set():
                    turn(rng, streams, blocks)
                for block, value in blocks.items():
                    check_block(block, value, streams[0])
            except BaseException as error:      # noqa: BLE001 - reported by the main thread
                failures.append(error)

        def turn(rng, streams, blocks):
            if rng.random() < 0.4:
                try:
                    block = pool.movable(rng.randrange(10_000, MIB), streams[0])
                except cp.OutOfMemoryError:
                    return
                blocks[block] = value = rng.randrange(256)
                with block.pin() as ptr:
                    streams[0].write(ptr, block.nbytes, value, ticks=rng.randrange(9))
            elif blocks:
                block = rng.choice(list(blocks))
                check_block(block, blocks[block], rng.choice(streams), streams[0])
                if rng.random() < 0.4:
                    del blocks[block]
                    block.free()

        def check_block(block, value, stream, home=None):
            with block.pin(stream) as ptr:
                if home is not None and stream is not home:
                    stream.wait(home)
                read = stream.read(ptr, block.nbytes)
                stream.synchronize()
                assert read.value == bytes([value]) * block.nbytes

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        moved, until = 0, time.monotonic() + 60
        while moved < 100 and failures == [] and time.monotonic() < until:
            moved += pool.defragment().moved_blocks
            pool.check()
        over.set()
        for thread in threads:
            thread.join()
        assert failures == [] and moved >= 100


@pytest.mark.threads
def test_two_passes_at_once_and_a_close(make_device):
    device = make_device("64MiB")
    pool = cp.Pool("32MiB", device=device)
    kept = checkerboard(pool, 32)
    device.delay("cudaMemcpyAsync", 0.1)
    outcomes = []

    def run():
        try:
            outcomes.append(pool.defragment())
        except (ValueError, RuntimeError) as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    while device.calls["cudaMemcpyAsync"] == 0:
        time.sleep(0.01)
    pool.close()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 2 and all("closed" in str(outcome) for outcome in outcomes) and kept
    device.clear_faults()


# Random programs

GROWING = {"grows": ("2MiB", {"growth": "dynamic", "max_capacity": "12MiB"}),
           "grows_at_random": ("1MiB", {"growth": "dynamic", "max_capacity": "9MiB", "release_threshold": "2MiB",
                                        "mid_max": "1MiB"})}

class Step(NamedTuple):
    name: str
    lane: int
    block: int
    share: float
    ticks: int
    flag: bool


STEP_WEIGHTS = {"movable": 8, "use": 6, "free": 4, "defragment": 4, "alloc": 2, "release": 2, "work": 3, "advance": 1,
                "pin": 1, "unpin": 1, "replace": 1}
STEPS = st.lists(st.builds(
    Step, name=st.sampled_from([name for name, weight in STEP_WEIGHTS.items() for _ in range(weight)]),
    lane=st.integers(0, 3), block=st.integers(0, 11),
    share=st.one_of(st.sampled_from([1 / 8, 1 / 12, 1 / 16, 1 / 24, 1 / 100]), st.integers(16, 90).map(
        lambda number: 2 ** (-number / 8))), ticks=st.integers(0, 30), flag=st.booleans()), min_size=15, max_size=60)
KINDS = ["object", "raw", "object, not blocking", "held", "legacy", "per thread"]


class Lane:
    """A stream, and what the pool is told of it."""

    def __init__(self, device, pool, kind):
        self.kind = kind
        self.is_made = not kind.startswith(("legacy", "per"))
        self.stream = (device.stream(blocking="not" not in kind) if self.is_made
                       else device.default_stream(per_thread=kind == "per thread"))
        self.name = self.stream if kind.startswith("object") else self.stream.handle
        if kind == "held":
            pool.hold_stream(self.name)


class Block:
    def __init__(self, handle, home, value, writer):
        self.handle, self.home, self.value = handle, home, value
        self.writer, self.readers, self.pins = writer, [], []


class Program:
    """Movable and ordinary blocks on several streams, used as the contract says, with passes in between."""

    def __init__(self, device, pool, kinds):
        self.device, self.pool = device, pool
        self.whole = pool.stats().free
        self.lanes = [Lane(device, pool, kind) for kind in kinds]
        self.blocks, self.others, self.reads = [], [], []
        self.values = itertools.cycle(range(1, 252))

    def movable(self, step, lane):
        try:
            handle = self.pool.movable(max(1, int(self.whole * step.share)), lane.name)
        except cp.OutOfMemoryError:
            return
        block = Block(handle, lane, next(self.values), lane)
        self.blocks.append(block)
        with handle.pin() as ptr:
            lane.stream.write(ptr, handle.nbytes, block.value, step.ticks)

    def use(self, step, lane):
        """Read or write on any stream; only what the user's own data depends on is ordered here."""
        if not self.blocks:
            return
        block = self.blocks[step.block % len(self.blocks)]
        with block.handle.pin(None if lane is block.home else lane.name) as ptr:
            self.wait(lane, block.writer)
            if step.flag:
                for reader in block.readers:
                    self.wait(lane, reader)
                block.value, block.writer, block.readers = next(self.values), lane, []
                lane.stream.write(ptr, block.handle.nbytes, block.value, step.ticks)
            else:
                block.readers.append(lane)
                self.reads.append((lane.stream.read(ptr, block.handle.nbytes, step.ticks), block.value))

    def wait(self, lane, other):
        if lane is not other:
            lane.stream.wait(other.stream)

    def free(self, step, _):
        block = self.blocks.pop(step.block % len(self.blocks)) if self.blocks else None
        if block is not None:
            for pin in block.pins:
                pin.__exit__()
            block.handle.free()

    def pin(self, step, _):
        if self.blocks:
            block = self.blocks[step.block % len(self.blocks)]
            block.pins.append(block.handle.pin())
            block.pins[-1].__enter__()

    def unpin(self, step, _):
        pinned = [block for block in self.blocks if block.pins]
        if pinned:
            pinned[step.block % len(pinned)].pins.pop().__exit__()

    def alloc(self, step, lane):
        try:
            ptr = self.pool.alloc(max(1, int(self.whole * step.share)), lane.name)
        except cp.OutOfMemoryError:
            return
        lane.stream.write(ptr, 1, 9, step.ticks)
        self.others.append((ptr, lane))

    def release(self, step, _):
        if self.others:
            ptr, lane = self.others.pop(step.block % len(self.others))
            self.pool.free_async(ptr, lane.name)

    def work(self, step, lane):
        lane.stream.work(3 * step.ticks)

    def advance(self, step, _):
        self.device.advance(step.ticks)

    def defragment(self, step, _):
        before = self.pool.stats()
        report = self.pool.defragment()
        stats = self.pool.stats()
        assert (stats.requested, stats.alloc_count, stats.free_count) == (
            before.requested, before.alloc_count, before.free_count)
        assert report.after.largest_free >= report.before.largest_free

    def replace(self, step, old):
        """Let a stream be forgotten and destroyed, and another one take its part."""
        if not old.is_made or any(lane is old for _, lane in self.others):
            return
        self.pool.forget_stream(old.name)
        old.stream.synchronize()
        kept = self.lanes[0] if self.lanes[0] is not old else None
        new = Lane(self.device, self.pool, old.kind)
        for block in self.blocks:               # its work is done, and blocks that it was the home of are at stream 0
            block.readers = [reader for reader in block.readers if reader is not old]
            if block.home is old:
                block.home = None
            if block.writer is old:
                block.writer = new
        self.lanes[self.lanes.index(old)] = new
        assert kept is not old
        old.stream.destroy()

    def run(self, steps):
        for step in steps:
            getattr(self, step.name)(step, self.lanes[step.lane % len(self.lanes)])
            self.pool.check()
        for block in self.blocks:
            lane = block.home or self.lanes[0]
            with block.handle.pin(lane.name) as ptr:
                self.wait(lane, block.writer)
                self.reads.append((lane.stream.read(ptr, block.handle.nbytes), block.value))
        while self.blocks:
            self.free(Step("free", 0, 0, 0, 0, False), None)
            self.pool.check()
        while self.others:
            self.release(Step("release", 0, 0, 0, 0, False), None)
        self.pool.defragment()
        self.pool.check()
        stats = self.pool.stats()
        assert stats.used == stats.pending == 0
        assert stats.largest_free == stats.free or self.pool.stats().grow_count != 0
        self.device.synchronize()
        self.pool.close()
        assert self.device.calls["cudaEventCreateWithFlags"] == self.device.calls["cudaEventDestroy"]
        assert self.device.errors == [] and self.device.races == [] and self.device.live == {}
        assert all(read.value == bytes([value]) * len(read.value) for read, value in self.reads)


def distinct(kinds):
    """Leave out the second of two default streams that are one."""
    return [kind for number, kind in enumerate(kinds)
            if kind not in kinds[:number] or not kind.startswith(("legacy", "per thread"))]


@pytest.mark.parametrize("reuse", REUSE)
@pytest.mark.parametrize("by_itself", [{}, {"defrag_interval": 3}, {"defrag_threshold": 4}], ids=str)
def test_programs_do_not_race_and_keep_their_data(reuse, by_itself):
    @effort(120)
    @given(steps=STEPS, name=st.sampled_from(sorted(POOLS) + 3 * sorted(GROWING)),
           seed=st.sampled_from([None, 0, 1, 2, 3]),
           kinds=st.lists(st.sampled_from(KINDS), min_size=2, max_size=4).map(distinct))
    def try_one(steps, name, seed, kinds):
        capacity, more = {**POOLS, **GROWING}[name]
        with sim.Device("32MiB", seed=seed) as device:
            with cp.Pool(capacity, device=device, reuse=reuse, **more, **by_itself) as pool:
                Program(device, pool, kinds).run(steps)

    try_one()


VIRTUAL_GROWING = {
    "grows": ("64KiB", {"backing": "virtual", "growth": "dynamic", "max_capacity": "3MiB"}),
    "grows_and_shrinks": ("4KiB", {"backing": "virtual", "growth": "dynamic", "max_capacity": "2MiB",
                                   "release_threshold": "64KiB"}),
    "grows_textbook": ("512KiB", {"backing": "virtual", "growth": "dynamic", "max_capacity": "3MiB",
                                  "mid_max": "100KiB"}),
}


class PagesProgram(Program):
    """The same where pages move: after a pass the largest request needs no driver call and no growth."""

    def defragment(self, step, lane):
        super().defragment(step, lane)
        report, stats = self.pool.defragment(), self.pool.stats()
        assert report.completed and report.pages_moved == 0
        assert report.after.largest_free == stats.largest_free <= stats.free
        if stats.largest_free:
            calls = paging_calls(self.device)
            ptr = self.pool.alloc(stats.largest_free, lane.name)
            assert paging_calls(self.device) == calls and self.pool.stats().reserved == stats.reserved
            lane.stream.write(ptr, stats.largest_free, 9, step.ticks)
            self.others.append((ptr, lane))
            if step.flag:
                self.release(step._replace(block=len(self.others) - 1), lane)


@pytest.mark.parametrize("by_itself", [{}, {"defrag_interval": 3}], ids=str)
def test_programs_on_pages_that_move(by_itself):
    @effort(60)
    @given(steps=STEPS, name=st.sampled_from(sorted(VIRTUAL_POOLS) + sorted(VIRTUAL_GROWING)),
           seed=st.sampled_from([None, 0, 1, 2, 3]), reuse=st.sampled_from(REUSE),
           kinds=st.lists(st.sampled_from(KINDS), min_size=2, max_size=4).map(distinct))
    def try_one(steps, name, seed, reuse, kinds):
        capacity, more = {**VIRTUAL_POOLS, **VIRTUAL_GROWING}[name]
        with sim.Device("8MiB", seed=seed, granularity="4KiB") as device:
            with cp.Pool(capacity, device=device, reuse=reuse, **more, **by_itself) as pool:
                PagesProgram(device, pool, kinds).run(steps)

    try_one()
