"""Sizes in bytes, read from and written as text."""

import operator
import re
from fractions import Fraction

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGTP", start=1):
    _UNITS[_letter + "iB"] = 1024**_power
    _UNITS[_letter + "B"] = 1000**_power

_ACCEPTED = ('an int of bytes, or text such as "512KiB", "8GiB" (binary: KiB, MiB, GiB, TiB, PiB) '
             'or "1GB" (decimal: kB, MB, GB, TB, PB)')
_DIGITS = 40                    # on either side of the point; 2**64 has 20
_TEXT = re.compile(rf"\s*([0-9]{{1,{_DIGITS}}}(?:\.[0-9]{{0,{_DIGITS}}})?|\.[0-9]{{1,{_DIGITS}}})\s*([A-Za-z]*)\s*",
                   re.ASCII)
_SHOWN = 100                    # characters of a value in a message
_CANONICAL = {unit.lower(): unit for unit in _UNITS}


def parse_size(size):
    """Return a size in bytes.

    Parameters
    ----------
    size : int or str
        Bytes, or a number with a unit: ``"512KiB"``, ``"1.5GiB"``, ``"1GB"``. Case does not matter; there are at
        most 40 digits on either side of the point.

    Returns
    -------
    int
        Bytes; a fraction of a byte is cut off.

    Raises
    ------
    ValueError
        The text is no size, or the size is negative; the message shows what is accepted.
    TypeError
        `size` is neither an int nor a str.
    """
    if isinstance(size, str):
        return _parse_text(size)
    if not is_index(size):
        raise TypeError(f"a size is {_ACCEPTED}; got {shown(size)}")
    nbytes = operator.index(size)
    if nbytes < 0:
        raise ValueError(f"a size cannot be negative, got {shown(nbytes)}; it is {_ACCEPTED}")
    return nbytes


def format_size(nbytes):
    """Return `nbytes` in the largest binary unit that leaves a number of at least 1, such as ``"1.50 GiB"``.

    Beyond 2**64 bytes it says only that it is more.
    """
    if nbytes > 1 << 64:
        return f"more than {format_size(1 << 64)}"
    if nbytes < 1024:
        return f"{nbytes} B"
    power = min((nbytes.bit_length() - 1) // 10, 5)
    return f"{nbytes / 1024**power:.2f} {'KMGTP'[power - 1]}iB"


def counted(count, noun):
    """Return a count and a noun that agree, such as ``"1 block"`` or ``"1,000 blocks"``."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def is_index(value):
    """Return whether `value` is an integer of any type, a truth value not being one.

    An array has ``__index__`` too, which may refuse. That of numpy's truth values refuses from numpy 2.3 on only.
    """
    if isinstance(value, bool) or getattr(getattr(value, "dtype", None), "kind", None) == "b":
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def shown(value):
    """Return `value` as a message shows it: its repr, cut to a bearable length.

    An int of thousands of digits, which Python refuses to write, is described instead.
    """
    try:
        text = repr(value)
    except ValueError:
        if isinstance(value, int):
            return "an int of too many digits to show"
        return f"a {type(value).__name__} that holds too many digits to show"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _parse_text(text):
    match = _TEXT.fullmatch(text)
    unit = _CANONICAL.get(match[2].lower()) if match else None
    if unit is None:
        raise ValueError(f"{shown(text)} is not a size: expected {_ACCEPTED}, with at most {_DIGITS} digits on "
                         f"either side of the point")
    return int(Fraction(match[1]) * _UNITS[unit])
