"""Sizes in bytes, read from and written as text."""

import re
from fractions import Fraction

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGTP", start=1):
    _UNITS[_letter + "iB"] = 1024**_power
    _UNITS[_letter + "B"] = 1000**_power

_ACCEPTED = 'an int of bytes, or text such as "512KiB", "8GiB" (binary: KiB, MiB, GiB, TiB, PiB) or "1GB" (decimal: kB, MB, GB, TB, PB)'
_TEXT = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*", re.ASCII)
_CANONICAL = {unit.lower(): unit for unit in _UNITS}


def parse_size(size):
    """Return a size in bytes.

    Parameters
    ----------
    size : int or str
        Bytes, or a number with a unit: ``"512KiB"``, ``"1.5GiB"``, ``"1GB"``. Case does not matter.

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
    if isinstance(size, bool) or not hasattr(size, "__index__"):
        raise TypeError(f"a size is {_ACCEPTED}; got {size!r}")
    nbytes = size.__index__()
    if nbytes < 0:
        raise ValueError(f"a size cannot be negative, got {nbytes}; it is {_ACCEPTED}")
    return nbytes


def format_size(nbytes):
    """Return `nbytes` in the largest binary unit that leaves a number of at least 1, such as ``"1.50 GiB"``."""
    if nbytes < 1024:
        return f"{nbytes} B"
    power = min((nbytes.bit_length() - 1) // 10, 5)
    return f"{nbytes / 1024**power:.2f} {'KMGTP'[power - 1]}iB"


def _parse_text(text):
    match = _TEXT.fullmatch(text)
    unit = _CANONICAL.get(match[2].lower()) if match else None
    if unit is None:
        raise ValueError(f"{text!r} is not a size: expected {_ACCEPTED}")
    return int(Fraction(match[1]) * _UNITS[unit])
