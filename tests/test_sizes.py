"""Sizes as text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_pool import format_size, parse_size
from cuda_pool.sizes import is_index, shown

from .models import effort


HUGE = 10**5000                 # Python writes no int of more than 4,300 digits


@pytest.mark.parametrize("text, nbytes", [
    ("0", 0), ("1", 1), ("12345", 12345), ("1B", 1), ("1b", 1), ("512KiB", 512 << 10), ("8GiB", 8 << 30),
    ("1GB", 10**9), ("1kB", 1000), ("1KB", 1000), ("1TiB", 1_099_511_627_776), ("2PiB", 2 << 50), ("3PB", 3 * 10**15),
    ("1.5GiB", 3 << 29), (".5KiB", 512), ("1.KiB", 1024), (" 7 MiB ", 7 << 20), ("1mib", 1 << 20), ("0.1kB", 100),
    ("1.9999B", 1), ("0.3GB", 300_000_000), ("00012", 12),
])
def test_text(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", " ", "12 bananas", "1e3MB", "-1", "-1GiB", "+5", "1 2", "GiB", "1,000", "1_000",
                                  "0x10", "1.2.3", ".", "1EiB", "1Gi", "1 G B", "inf", "nan", "\u0663", "1\u212bB"])
def test_text_that_is_no_size(text):
    with pytest.raises(ValueError) as caught:
        parse_size(text)
    assert repr(text) in str(caught.value)
    for accepted in ("int of bytes", '"512KiB"', '"8GiB"', "binary", '"1GB"', "decimal", "TiB"):
        assert accepted in str(caught.value)


@pytest.mark.parametrize("value", [0, 1, 1 << 200, np.int64(5), np.uint8(255)])
def test_ints(value):
    size = parse_size(value)
    assert size == int(value) and type(size) is int


@pytest.mark.parametrize("value", [1.0, None, True, False, b"1KiB", ["1"], np.float64(2)])
def test_other_types(value):
    with pytest.raises(TypeError, match="a size is an int of bytes"):
        parse_size(value)


@pytest.mark.parametrize("text", ["9" * 41, "9" * 5000, "." + "9" * 41, "0." + "9" * 5000 + "GiB", "1" * 5000 + "."])
def test_text_of_too_many_digits(text):
    with pytest.raises(ValueError, match="is not a size: .* at most 40 digits") as caught:
        parse_size(text)
    assert len(str(caught.value)) < 400 and "limit" not in str(caught.value)


def test_text_of_as_many_digits_as_are_accepted():
    assert parse_size("9" * 40) == 10**40 - 1 and parse_size("0." + "9" * 40) == 0


@pytest.mark.parametrize("value", [np.array([256]), np.array([1, 2]), np.array(1.5), np.array("1KiB")])
def test_arrays_are_no_sizes(value):
    with pytest.raises(TypeError, match="a size is an int of bytes"):
        parse_size(value)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [True, np.bool_(True), np.bool_(False), np.array(True), np.array([True])])
def test_truth_values_are_no_integers(value):
    """Not even where numpy still takes its own for one, with a warning."""
    assert not is_index(value)
    with pytest.raises(TypeError, match="a size is an int of bytes"):
        parse_size(value)


@pytest.mark.parametrize("value", [0, -5, 10**5000, np.int8(3), np.array(256)], ids=type)
def test_integers(value):
    assert is_index(value)


def test_a_negative_size_too_long_to_show():
    with pytest.raises(ValueError, match="cannot be negative, got an int"):
        parse_size(-HUGE)


@pytest.mark.parametrize("value, text", [
    ("a", "'a'"), ([1, "2"], "[1, '2']"), pytest.param(HUGE, "an int of too many digits to show", id="huge"),
    ([HUGE], "a list that holds too many digits to show"), ("x" * 200, "'" + "x" * 99 + "...")])
def test_shown(value, text):
    assert shown(value) == text


@pytest.mark.parametrize("value", [-1, np.int8(-5), -(1 << 100)])
def test_negative(value):
    with pytest.raises(ValueError, match="cannot be negative, got -"):
        parse_size(value)


@pytest.mark.parametrize("nbytes, text", [
    (0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1536, "1.50 KiB"), (1 << 20, "1.00 MiB"), ((1 << 20) - 1, None),
    (3 << 29, "1.50 GiB"), (1 << 40, "1.00 TiB"), (5 << 50, "5.00 PiB"), (1 << 64, "16384.00 PiB"),
    (1 << 70, "more than 16384.00 PiB"), pytest.param(HUGE, "more than 16384.00 PiB", id="huge")])
def test_format(nbytes, text):
    assert format_size(nbytes) == text or text is None


@given(st.integers(0, 1 << 60))
@effort(200)
def test_format_and_parse_agree(nbytes):
    """What is shown is the size, to two decimals of its unit."""
    shown = format_size(nbytes)
    assert abs(parse_size(shown) - nbytes) <= 0.005 * parse_size("1" + shown.split()[1]) + 1


@given(st.integers(0, 10**6), st.sampled_from(["", "B", "KiB", "kB", "MiB", "MB", "GiB", "GB", "TiB", "TB"]))
@effort(200)
def test_case_does_not_matter(number, unit):
    spellings = f"{number}{unit}", f" {number} {unit.upper()} ", f"{number}{unit.lower()}"
    assert len({parse_size(spelling) for spelling in spellings}) == 1


@given(st.text(max_size=12))
@effort(300)
def test_any_text_is_a_size_or_a_value_error(text):
    try:
        assert parse_size(text) >= 0
    except ValueError as error:
        assert "is not a size" in str(error)
