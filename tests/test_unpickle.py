"""The reader of plain pickles: what it reads, and what it refuses without running it."""

import pickle
import pickletools
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_pool._unpickle import loads
from cuda_pool.errors import TraceError

KEYS = st.text(max_size=5) | st.integers(-2**63, 2**63 - 1)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=5) | st.tuples(inner)
    | st.tuples(inner, inner) | st.lists(inner, max_size=6).map(tuple), max_leaves=20)
SAMPLE = pickle.dumps({"segments": [{"address": 2**40, "blocks": [{"size": 512, "state": "inactive"}] * 3}]}, 4)


@given(PLAIN, st.integers(0, 5))
def test_reads_what_pickle_wrote(value, protocol):
    if protocol == 0:
        pickled = pickle.dumps(value, 0) if max_digits(value) <= 40 else pickle.dumps(None, 0)
        value = pickle.loads(pickled)
    else:
        pickled = pickle.dumps(value, protocol)
    assert loads(pickled) == value
    assert loads(pickletools.optimize(pickled)) == value


def max_digits(value):
    """Digits of the longest integer in a value."""
    if isinstance(value, dict):
        return max((max_digits(item) for pair in value.items() for item in pair), default=0)
    if isinstance(value, (list, tuple)):
        return max(map(max_digits, value), default=0)
    return len(str(abs(value))) if isinstance(value, int) else 0


def test_shared_and_recursive_objects_stay_so():
    shared = ["x"]
    value = loads(pickle.dumps([shared, shared]))
    assert value[0] is value[1]
    shared.append(shared)
    value = loads(pickle.dumps(shared))
    assert value[1] is value


@given(st.lists(st.lists(st.integers(0, 50), max_size=4), max_size=40), st.integers(0, 4), st.booleans())
def test_objects_that_are_asked_for_again(program, protocol, optimize):
    """Lists that hold earlier ones, some of them once, some many times and some never."""
    made = []
    for numbers in program:
        made.append([made[number % len(made)] for number in numbers if made] + [len(made)])
    pickled = pickle.dumps(made, protocol)
    found = loads(pickletools.optimize(pickled) if optimize else pickled)
    assert found == made
    place = {id(one): index for index, one in enumerate(made)}
    for one, other in zip(found, made):
        assert all(inner is found[place[id(same)]] for inner, same in zip(one[:-1], other[:-1]))


def test_an_object_that_is_asked_for_often():
    value = loads(b"\x80\x02(]q\x00" + b"h\x00" * 1000 + b"t.")
    assert len(value) == 1001 and all(each is value[0] for each in value)


def test_a_number_that_is_given_anew():
    assert loads(b"(K\x01q\x00h\x00K\x02q\x00h\x00K\x03q\x00t.") == (1, 1, 2, 2, 3)
    with pytest.raises(TraceError, match="no object 0"):
        loads(b"(h\x00K\x01q\x00t.")


def test_text_may_be_in_any_buffer():
    for kind in bytes, bytearray, memoryview:
        assert loads(kind(SAMPLE)) == pickle.loads(SAMPLE)


LET_GO = {
    "never asked for": b"]\x940" * 500_000,
    "asked for once": b"".join(b"]\x94j" + struct.pack("<I", number) + b"00" for number in range(200_000)),
    "long": (b"\x8c\xfa" + b"x" * 250 + b"\x940") * 4000,
}


@pytest.mark.parametrize("kind", LET_GO)
def test_objects_are_let_go_of(kind):
    """A pickle that makes objects, takes them off again and does not ask for them later holds none of them."""
    text = b"\x80\x04" + LET_GO[kind] + b"N."
    tracemalloc.start()
    try:
        assert loads(text) is None
        assert tracemalloc.get_traced_memory()[1] < 3_000_000       # of which 8 bytes a number that is asked for
    finally:
        tracemalloc.stop()


def test_python_2_strings():
    assert loads(b"U\x03abc.") == loads(b"T\x03\0\0\0abc.") == loads(b"S'abc'\n.") == "abc"


class Call:
    """Pickled as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


HOSTILE = {
    "os.system": (pickle.dumps(Call(__import__("os").system, "touch /tmp/never"), 4), "posix.system"),
    "os.system, protocol 0": (pickle.dumps(Call(__import__("os").system, "touch /tmp/never"), 0), "posix.system"),
    "eval": (pickle.dumps({"segments": [Call(eval, "1")]}, 2), "eval"),
    "class": (pickle.dumps(int, 4), "builtins.int"),
    "inst": (b"(S'x'\nios\nsystem\n.", "os.system"),
    "obj": (b"(cos\nsystem\nS'x'\no.", "os.system"),
    "reduce without a name": (b"K\x01)R.", "REDUCE"),
    "build": (b"}}b.", "BUILD"),
    "extension": (b"\x82\x01.", "EXT1"),
    "persistent id": (b"P0\n.", "PERSID"),
    "persistent object": (b"K\x00Q.", "BINPERSID"),
    "bytes": (pickle.dumps(b"x", 4), "SHORT_BINBYTES"),
    "bytearray": (pickle.dumps(bytearray(b"x"), 5), "BYTEARRAY8"),
    "set": (pickle.dumps({1}, 4), "EMPTY_SET"),
    "float as a key": (pickle.dumps({1.5: 1}), "key of type float"),
    "tuple as a key": (pickle.dumps({(1,): 1}), "key of type tuple"),
    "large integer as a key": (pickle.dumps({2**63: 1}), "key of type int"),
    "endless string": (b"\x8d" + struct.pack("<Q", 2**62) + b"x.", "truncated"),
    "endless integer": (b"\x8b\xff\xff\xff\x7fx.", "truncated"),
    "endless frame": (b"\x80\x04\x95" + struct.pack("<Q", 2**60) + b".", "frame"),
    "memo number": (b"\x80\x04Nr\xff\xff\xff\xff.", "beyond all"),
    "memo that is not there": (b"h\x05.", "no object 5"),
    "memo with a gap": (b"NNNNq\x020000h\x01.", "no object 1"),
    "digits": (b"I" + b"9" * 5000 + b"\n.", "at most 40 digits"),
    "no mark": (b"u.", "mark is missing"),
    "no value": (b".", "finds no value"),
    "mark for a value": (b"(.", "finds no value"),
    "items of a list": (b"](NNu.", "sets items of a list"),
    "items that are no pairs": (b"}(Nu.", "sets items"),
    "appends to None": (b"NNa.", "appends to a NoneType"),
    "values left over": (b"NN.", "belong to nothing"),
    "more after the end": (b"N.N", "more after the end"),
    "protocol": (b"\x80\x06N.", "newer than 5"),
    "no such instruction": (b"\xff.", "0xff"),
    "no utf-8": (b"X\x01\0\0\0\xff.", "not UTF-8"),
    "nothing": (b"", "truncated"),
    "line without an end": (b"I5", "no end"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_pickle(kind):
    text, reason = HOSTILE[kind]
    with pytest.raises(TraceError, match=reason.replace(".", r"\.")) as caught:
        loads(text)
    assert caught.value.place.startswith("byte ") and 0 <= int(caught.value.place[5:]) <= len(text)
    assert caught.value.row is None and len(str(caught.value)) < 400


def test_every_truncation_is_refused():
    for length in range(len(SAMPLE)):
        with pytest.raises(TraceError):
            loads(SAMPLE[:length])


@given(st.binary(max_size=300) | st.binary(max_size=50).map(lambda text: b"\x80\x04" + text + b"."))
def test_any_bytes_are_plain_data_or_a_trace_error(text):
    try:
        loads(text)
    except TraceError as error:
        assert error.reason and error.place


@pytest.mark.parametrize("text", [b"}" * 4_000_000 + b".", b"]" * 4_000_000 + b".", b"N" + b"2" * 4_000_000 + b"."],
                         ids=["dicts", "lists", "copies"])
def test_memory_is_bounded(text):
    tracemalloc.start()
    try:
        with pytest.raises(TraceError):
            loads(text)
        assert tracemalloc.get_traced_memory()[1] < 1.5 * ((64 << 20) + 24 * len(text))
    finally:
        tracemalloc.stop()


def test_deep_nesting_takes_no_stack():
    value = loads(b"]" * 300_000 + b"a" * 299_999 + b".")
    depth = 0
    while value:
        value, depth = value[0], depth + 1
    assert depth == 299_999


def test_doubling_tuples_are_shared_not_copied():
    value = loads(b")" + b"2\x86" * 200 + b".")
    for _ in range(200):
        assert value[0] is value[1]
        value = value[0]
    assert value == ()
