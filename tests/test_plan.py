"""Which moves bring free memory together: every move is possible, none makes it worse, and what can be reached is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_pool import _testing

from .models import effort


class Range:
    """Pieces in a range of units: the simplest thing that can carry moves out."""

    def __init__(self, pieces, low, floor, high):
        self.low, self.floor, self.high = low, floor, high
        self.fixed = [(offset, offset + size) for offset, size, movable, _, _ in pieces if not movable]
        self.at = {movable: (offset, offset + size) for offset, size, movable, _, _ in pieces if movable}
        self.align = {movable: align for _, _, movable, _, align in pieces if movable}

    def move(self, movable, source, target, needs, bias=0):
        assert self.at[movable][0] == source and self.floor <= target and target + needs <= self.high
        assert (target + bias) % (1 << self.align[movable]) == 0
        for start, end in [*self.fixed, *self.at.values()]:
            assert end <= target or target + needs <= start, "the target is not free"
        self.at[movable] = (target, target + needs)

    def largest(self, run):
        at, largest = self.low, 0
        for start, end in [*sorted([*self.fixed, *self.at.values()]), (self.high, self.high)]:
            largest, at = max(largest, self.worth(at, start, run)), end
        return largest

    def worth(self, start, end, run):
        """Return what a gap can hold; one that does not touch the floor only aligned powers of two."""
        if end >= self.floor:
            return end - start
        return max((1 << order for order in range(12) if 1 << order >= run
                    and -(-start >> order << order) + (1 << order) <= end), default=0)


def carried_out(pieces, low, floor, high, bias=0, run=1):
    """Return (largest gap before, what was said to be possible, largest gap afterwards, moves)."""
    largest, reach, moves = _testing.plan(pieces, low, floor, high, bias, run)
    made = Range(pieces, low, floor, high)
    assert made.largest(run) == largest <= reach
    for move in moves:
        made.move(*move, bias=bias)
    return largest, reach, made.largest(run), moves


def laid_out(row, low=0):
    """Return pieces for a row of (kind, size): "." for a gap, "m" for a movable piece, "f" for one that stays."""
    pieces, at = [], low
    for kind, size in row:
        if kind != ".":
            pieces.append((at, size, len(pieces) + 1 if kind == "m" else 0, size if kind == "m" else 0, 0))
        at += size
    return pieces, at


def test_a_checkerboard():
    """A quarter of the pieces moves, each once; no other plan moves fewer."""
    pieces, high = laid_out([("m", 4), (".", 4)] * 64)
    largest, reach, after, moves = carried_out(pieces, 0, 0, high)
    assert (largest, reach, after, len(moves)) == (4, 256, 256, 32)
    assert len({movable for movable, *_ in moves}) == len(moves)


def test_one_stray_piece_is_all_that_moves():
    pieces, high = laid_out([("m", 8)] * 10 + [(".", 50), ("m", 8), (".", 50)] + [("m", 8)] * 3 + [(".", 8), ("m", 8)])
    assert carried_out(pieces, 0, 0, high)[1:3] == (108, 108)       # the gap of 8 takes the stray piece
    assert len(_testing.plan(pieces, 0, 0, high)[2]) == 1


def test_nothing_is_moved_where_all_is_free_in_one_piece():
    for row in ([("m", 8), (".", 50)], [(".", 50), ("m", 8)], [("m", 5), (".", 9), ("m", 7)], [(".", 9)], [("f", 9)]):
        pieces, high = laid_out(row)
        assert carried_out(pieces, 0, 0, high)[3] == []


def test_pieces_larger_than_any_gap_slide():
    """Each has to make way once, so that no copy overlaps itself; then the others find room."""
    pieces, high = laid_out([("m", 10), (".", 4)] * 5 + [(".", 8)])
    largest, reach, after, moves = carried_out(pieces, 0, 0, high)
    assert (largest, reach, after) == (12, 28, 28)


def test_a_gap_that_no_piece_can_reach_without_overlapping_stays():
    pieces, high = laid_out([(".", 4), ("m", 10), (".", 5)])
    assert carried_out(pieces, 0, 0, high) == (5, 9, 5, [])


def test_pieces_that_stay_divide_the_range():
    """The longest stretch is emptied into the gaps of the others, as far as they reach."""
    pieces, high = laid_out([("m", 4), (".", 4), ("f", 1), ("m", 4), (".", 2), ("m", 4), (".", 2), ("f", 1), (".", 4)])
    assert carried_out(pieces, 0, 0, high)[1:3] == (12, 12)


def test_below_the_floor_nothing_ends():
    """There lie runs of the buddy tier: they move up where that makes room."""
    pieces, high = laid_out([("m", 8), (".", 8), ("m", 8), (".", 8), ("m", 4), (".", 4)])
    largest, reach, after, moves = carried_out(pieces, 0, 32, high)
    assert all(target >= 32 for _, _, target, _ in moves) and after >= largest


def test_alignment_is_that_of_the_addresses():
    pieces, high = laid_out([("m", 3), (".", 5)] * 16)
    pieces = [(offset, size, movable, needs, 2) for offset, size, movable, needs, _ in pieces]
    largest, _, after, moves = carried_out([(o, s, m, n, a) for o, s, m, n, a in pieces], 0, 0, high)
    assert moves and after > largest
    shifted = [(offset + 3, size, movable, needs, align) for offset, size, movable, needs, align in pieces]
    assert carried_out(shifted, 3, 3, high + 3, bias=1)[2] > largest


ROWS = st.lists(st.tuples(st.sampled_from("..mmmf"), st.one_of(st.integers(1, 8), st.integers(1, 64))), max_size=60)


@effort(1500)
@given(row=ROWS, low=st.integers(0, 9), floor=st.integers(0, 200), bias=st.integers(0, 15), align=st.integers(0, 3),
       run=st.sampled_from([1, 4]))
def test_any_plan_can_be_carried_out_and_makes_nothing_worse(row, low, floor, bias, align, run):
    pieces, high = laid_out(row, low)
    pieces = [(offset, size, movable, needs, align if movable and movable % 3 == 0 and (offset + bias) % 8 == 0 else 0)
              for offset, size, movable, needs, _ in pieces]
    largest, reach, after, moves = carried_out(pieces, low, min(low + floor, high), high, bias, run)
    assert after >= largest and reach <= high - low
    assert len(moves) <= 3 * len(pieces)
    assert len(_testing.plan(pieces, low, min(low + floor, high), high, bias, run)[2]) == len(moves)


@effort(300)
@given(kinds=st.lists(st.sampled_from(".m"), max_size=80), size=st.integers(1, 9))
def test_pieces_of_one_size_are_packed_without_a_splinter(kinds, size):
    pieces, high = laid_out([(kind, size) for kind in kinds])
    _, reach, after, moves = carried_out(pieces, 0, 0, high)
    assert after == reach == size * kinds.count(".")
    assert len({movable for movable, *_ in moves}) == len(moves) <= len(pieces)


@pytest.mark.parametrize("seed", range(3))
def test_mixed_sizes_leave_little_outside(seed):
    """With a fifth of the range free: what is left in splinters is at most a 32nd of it."""
    import random
    rng = random.Random(seed)
    row = [("m" if rng.random() < 0.8 else ".", rng.randrange(50, 400)) for _ in range(400)]
    pieces, high = laid_out(row)
    _, reach, after, _ = carried_out(pieces, 0, 0, high)
    assert after >= reach * 31 // 32
