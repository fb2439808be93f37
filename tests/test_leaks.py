"""What is live, and where it came from."""

import os
import sys

import pytest

import cuda_pool as cp

from .models import forked


@pytest.fixture
def pool(make_device):
    with cp.Pool("64MiB", device=make_device("256MiB")) as pool:
        yield pool


def test_nothing(pool):
    leaks = pool.leaks()
    assert (len(leaks), leaks.nbytes, leaks.groups, str(leaks)) == (0, 0, (), "no live block")


def test_without_a_recording(pool):
    """Every tier, and a movable block; what was freed, or is pending, is not in it."""
    stream = pool.device.stream()
    sizes = {pool.alloc(nbytes, stream): nbytes for nbytes in (1, 300, 100_000, 5 << 20)}
    movable = pool.movable(70_000)
    pool.free(pool.alloc(17))
    pool.free_async(pool.alloc(18, stream), stream)
    leaks = pool.leaks()
    with movable.pin() as address:
        sizes[address] = 70_000
    assert {block.address: block.nbytes for block in leaks.blocks} == sizes
    assert leaks.nbytes == sum(sizes.values()) == pool.stats().requested and len(leaks) == 5
    assert len(leaks.groups) == 1 and leaks.groups[0].stack == ()
    assert [block.nbytes for block in leaks.blocks] == sorted(sizes.values(), reverse=True)
    assert all(block.age is None for block in leaks.blocks)
    assert {block.stream for block in leaks.blocks} <= {0, stream.handle, None}
    for ptr in set(sizes) - {address}:
        pool.free(ptr)
    stream.destroy()


def test_age_and_stream(pool):
    stream = pool.device.stream()
    old = pool.alloc(1)
    with cp.record(pool):
        young = pool.alloc(2, stream)
        pool.free(pool.alloc(3))
        blocks = {block.address: block for block in pool.leaks().blocks}
        assert (blocks[old].age, blocks[young].age) == (3, 3)
        assert (blocks[old].stream, blocks[young].stream) == (0, stream.handle)
        pool.alloc(4)
        assert max(block.age for block in pool.leaks().blocks) == 4
    assert all(block.age is None for block in pool.leaks().blocks)
    stream.destroy()


def inner(pool, nbytes):
    return pool.alloc(nbytes)


def outer(pool, nbytes):
    return inner(pool, nbytes)


def test_stacks(pool):
    with cp.record(pool, stacks=True) as recording:
        for _ in range(7):
            outer(pool, 1000)
        buffer = pool.buffer("1MiB")
        movable = pool.movable(100)
        leaks = pool.leaks()
    assert recording.depth == 32
    assert [group.nbytes for group in leaks.groups] == [1 << 20, 7000, 100]
    first, second, _ = leaks.groups
    assert first.stack[0].function.endswith("test_stacks") and first.stack[0].file == __file__
    assert [frame.function.split(".")[-1] for frame in second.stack[:3]] == ["inner", "outer", "test_stacks"]
    assert second.stack[0].line == inner.__code__.co_firstlineno + 1
    text = str(leaks)
    assert text.startswith("9 live blocks, 1.01 MiB\n1.00 MiB in 1 block\n    File ")
    assert "and 2 more" in text and f"0x{buffer.ptr:x}: 1.00 MiB, stream 0x0, 2 events old" in text
    del movable


def test_depth(pool):
    with cp.record(pool, stacks=1):
        outer(pool, 1000)
        (block,) = pool.leaks().blocks
    assert len(block.stack) == 1


def test_a_stack_where_the_driver_is_asked(make_device):
    """An allocation that makes the pool grow lets go of the GIL, and has its stack all the same."""
    with cp.Pool("2MiB", device=make_device(), growth="dynamic") as pool, cp.record(pool, stacks=True):
        outer(pool, 8 << 20)
        (block,) = pool.leaks().blocks
        assert pool.stats().grow_count == 1 and block.stack[0].function == "inner"


def test_what_a_stack_costs_is_nothing_without_one(pool):
    with cp.record(pool):
        assert pool.leaks().groups == () and outer(pool, 1)
        (block,) = pool.leaks().blocks
        assert block.stack == ()


def test_a_hook_that_fails(pool, monkeypatch):
    """What goes wrong while the stack is looked at goes to sys.unraisablehook; the block is there."""
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: seen.append(unraisable.exc_type))
    with cp.record(pool, stacks=True):
        monkeypatch.setattr(sys, "_getframe", None)
        ptr = pool.alloc(5)
        monkeypatch.undo()
        (block,) = pool.leaks().blocks
    assert seen == [TypeError] and block.address == ptr and block.stack == ()


def test_refused(pool):
    def child():
        with pytest.raises(RuntimeError, match="belongs to the parent"):
            pool.leaks()

    assert os.waitpid(forked(child), 0)[1] == 0
    pool.close()
    with pytest.raises(ValueError, match="the pool is closed"):
        pool.leaks()
