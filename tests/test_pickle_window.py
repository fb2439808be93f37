"""Pickles in pieces: the result, or the error, is that of the pickle in one piece, wherever the pieces end."""

import functools
import itertools
import pickle
import random
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_pool._pickle_window import PIECE, pieces_of
from cuda_pool._unpickle import PlainUnpickler, loads
from cuda_pool.errors import TraceError
from cuda_pool.readers.torch_snapshot import parse_snapshot

from .snapshots import MIB, SHAPES, pickled

SIZES = [1, 2, 3, 5, 8, 9, 10, 64]
SHARED = ["bare_segment_list", "inference_truncated_ring", "oldest_schema", "segments_only", "train_step_amp",
          "two_devices_expandable_oom"]
INSTRUCTIONS = b"}]()\x94h\x00j\x8d\x8cXTUgpqIVSFLu.aet2\x95\x80\x8a\x8bJMKGN\n0123"
LINES = b"(I01\nL-77L\nF1.5\nV\\u00e4\nS'x\\ty'\np5\ng5\nl."


def in_pieces(text, size, read=parse_snapshot):
    """What is in a pickle, or what is wrong with it, in one comparable value."""
    try:
        return read(functools.partial(pieces_of, text, size))
    except TraceError as error:
        return error.place, error.reason


def plain(pieces):
    return PlainUnpickler(pieces).load()


def damaged(text, source):
    """A pickle with something in it that is wrong, most probably."""
    at = source.randrange(len(text))
    return source.choice([text[:at], text[:at] + text[at + source.randrange(1, 9):],
                          text[:at] + bytes(source.choices(INSTRUCTIONS, k=3)) + text[at:],
                          text[:at] + bytes([source.randrange(256)]) + text[at + 1:]])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("shape", SHAPES)
def test_wherever_the_pieces_end(shape, protocol, size):
    whole, source = pickled(SHAPES[shape](), protocol), random.Random(size)
    assert plain(functools.partial(pieces_of, whole, size)) == pickle.loads(whole)
    for text in whole, *(damaged(whole, source) for _ in range(20)):
        assert in_pieces(text, size) == in_pieces(text, PIECE)
        assert repr(in_pieces(text, size, plain)) == repr(in_pieces(text, PIECE, plain))


@pytest.mark.parametrize("size", [1, 64, 4096])
@pytest.mark.parametrize("name", SHARED)
def test_shared_snapshots_in_pieces(shared_path, name, size):
    whole, source = shared_path("snapshots", f"{name}.pickle").read_bytes(), random.Random(size)
    assert plain(functools.partial(pieces_of, whole, size)) == pickle.loads(whole)
    for text in whole, *(damaged(whole, source) for _ in range(2 if size == 1 else 10)):
        assert in_pieces(text, size) == in_pieces(text, PIECE)


@given(st.lists(st.sampled_from(INSTRUCTIONS), max_size=60).map(bytes), st.integers(1, 12))
def test_any_instructions_in_pieces(text, size):
    for whole in text, b"\x80\x04" + text, LINES[:5] + text:
        assert repr(in_pieces(whole, size, plain)) == repr(in_pieces(whole, PIECE, plain))


@pytest.mark.parametrize("size", SIZES)
def test_values_of_every_kind(size):
    value = [None, True, 5, 70_000, -1, 2**31, -2**40, 2**300, 1.5, "x" * 100, "ä" * 300, "z" * 70_000, (), (1, 2, 3)]
    for protocol in range(6):
        text = pickle.dumps([value, value] if protocol > 1 else [each for each in value if each != 2**300], protocol)
        assert plain(functools.partial(pieces_of, text, size)) == pickle.loads(text)
    assert plain(functools.partial(pieces_of, LINES, size)) == [True, -77, 1.5, "ä", "x\ty", "x\ty"]
    assert plain(functools.partial(pieces_of, b"T\x02\0\0\0ab.", size)) == "ab"


def test_pieces_may_be_empty():
    text = pickled(SHAPES["complete"]())
    with_empty = [piece for each in pieces_of(text, 7) for piece in (b"", each, bytearray())]
    assert plain(lambda: with_empty) == pickle.loads(text)
    assert list(pieces_of(b"")) == [] and [*pieces_of(b"abcde", 2)] == [b"ab", b"cd", b"e"]


@pytest.mark.parametrize("instruction", [b"\x8d", b"X", b"T", b"\x8b"])
@pytest.mark.parametrize("length", [2**31 - 1, 2**62, 2**64 - 1])
def test_an_announced_length_takes_nothing(instruction, length):
    width = 8 if instruction == b"\x8d" else 4
    text = b"\x80\x04" + instruction + struct.pack("<Q", min(length, 256**width - 1))[:width] + b"x" * 1000
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match="truncated: it ends within an instruction") as caught:
            loads(text)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert caught.value.place == "byte 2"


def test_memory_of_a_long_pickle():
    """Its length does not count: 100 MiB of it are read in the memory of a few pieces."""
    piece = (b"\x8c\xfa" + b"x" * 250 + b"\x940") * (PIECE // 254)

    def pieces():
        yield from itertools.repeat(piece, 100)
        yield b"N."

    tracemalloc.start()
    try:
        assert plain(pieces) is None and tracemalloc.get_traced_memory()[1] < 3 * PIECE
    finally:
        tracemalloc.stop()


def test_a_long_string_leaves_a_small_window():
    long = b"X" + struct.pack("<I", 40 * MIB) + b"a" * (40 * MIB) + b"0"
    rest = b"K\x010" * 700_000

    def pieces():
        yield b"\x80\x04"
        yield from pieces_of(long)
        yield from itertools.repeat(rest, 3)
        tops.append(tracemalloc.get_traced_memory()[0])
        yield b"N."

    tops = []
    tracemalloc.start()
    try:
        assert plain(pieces) is None
        assert tracemalloc.get_traced_memory()[1] < 2.3 * 40 * MIB and max(tops) < 8 * MIB
    finally:
        tracemalloc.stop()


@given(st.integers(0, 2**32), st.sampled_from(sorted(SHAPES)), st.integers(1, 4))
def test_another_pickle_the_second_time(seed, shape, protocol):
    """Whatever the first look saw: the result is what is in the second one, or an error."""
    source = random.Random(seed)
    first = pickled(SHAPES[shape](), protocol)
    second = source.choice([damaged(first, source), pickled(SHAPES["complete"](), protocol), first + first,
                            first[:source.randrange(len(first))]])
    passes = iter((first, second))
    try:
        found = plain(lambda: pieces_of(next(passes), 50))
    except TraceError as error:
        assert error.reason and error.place.startswith("byte ")
    else:
        assert found == loads(second[:len(first)])
