"""Slow paths as NVTX ranges."""

import pytest

import cuda_pool as cp

nvtx = pytest.importorskip("nvtx")


@pytest.fixture
def calls(monkeypatch):
    """What is handed to nvtx, which goes on to do what it does: without a profiler that cannot be seen."""
    made = []

    def spy(name):
        real = getattr(nvtx, name)

        def call(*arguments, **options):
            made.append((name, *arguments[:1], options.get("domain")))
            return real(*arguments, **options)

        monkeypatch.setattr(nvtx, name, call)

    for name in ("start_range", "end_range", "mark"):
        spy(name)
    return made


@pytest.fixture
def pool(make_device):
    with cp.Pool("2MiB", device=make_device("256MiB"), growth="dynamic", max_capacity="64MiB") as pool:
        yield pool


def test_ranges(pool, calls):
    from cuda_pool.nvtx_ranges import NvtxRanges
    with NvtxRanges(pool, "train"):
        pool.free(pool.alloc("8MiB"))
        pool.free(pool.alloc(100))
        assert [(name, message) for name, message, _ in calls[:2]] == [
            ("start_range", "train: alloc 8388608"), ("mark", "train: grow 8388608")]
        assert [name for name, *_ in calls] == ["start_range", "mark", "end_range"]
        assert {domain for name, _, domain in calls if name != "end_range"} == {"cuda_pool"}
        pool.trim()
        pool.defragment()
    names = [name for name, *_ in calls[3:]]
    assert names == ["start_range", "mark", "mark", "end_range", "start_range", "mark", "end_range"]
    pool.alloc("20MiB")
    assert len(calls) == 10


@pytest.mark.parametrize("pool", [5, None, "pool"])
def test_what_is_no_pool(pool):
    from cuda_pool.nvtx_ranges import NvtxRanges
    with pytest.raises(TypeError, match="pool is a cuda_pool.Pool, got "):
        NvtxRanges(pool)


def test_closed_twice(pool):
    from cuda_pool.nvtx_ranges import NvtxRanges
    ranges = NvtxRanges(pool)
    ranges.close()
    ranges.close()
