"""Checks of what the simulated device is given."""

import operator

from ._sim_error import ERRORS
from .sizes import is_index, parse_size, shown

# The address space of a 64-bit process is 128 TiB; this leaves half of it to everything else.
_MEMORY_MAX = 1 << 46
_CODES = {name.decode(): code for code, *names, _ in ERRORS if code for name in names if name}


def memory_size(memory):
    nbytes = parse_size(memory)
    if not 1 <= nbytes <= _MEMORY_MAX:
        raise ValueError(f"memory is from 1 byte to 64 TiB, got {shown(memory)}")
    return nbytes


def alignment(base_alignment):
    if base_alignment is None:
        return 0
    if base_alignment not in (256, 512, 1024, 2048):
        raise ValueError(f"base_alignment is 256, 512, 1024, 2048 or None, got {shown(base_alignment)}")
    return base_alignment


def granule(granularity):
    nbytes = parse_size(granularity)
    if nbytes & (nbytes - 1) or nbytes != 0 and not 4096 <= nbytes <= 1 << 30:
        raise ValueError(f"granularity is a power of two from 4 KiB to 1 GiB, or 0, got {shown(granularity)}")
    return nbytes


def flag(what, value):
    if not isinstance(value, bool):
        raise TypeError(f"{what} is True or False, got {shown(value)}")
    return value


def seed_state(seed):
    """Return the first state of the address generator; 0, which it never reaches, means that there is no seed."""
    if seed is None:
        return 0
    # Knuth's multiplier (The Art of Computer Programming 2, 3.3.4) tells small seeds apart.
    return (operator.index(seed) * 6364136223846793005 & (1 << 64) - 1) | 1


def integer(what, value, low, high):
    if not is_index(value):
        raise TypeError(f"{what} is an int, got {shown(value)}")
    number = operator.index(value)
    if not low <= number <= high:
        raise ValueError(f"{what} is from {low} to {high}, got {shown(number)}")
    return number


def code_of(code):
    if code in _CODES:
        return _CODES[code]
    if code in _CODES.values():
        return operator.index(code)
    accepted = ", ".join(f"{name} ({number})" for name, number in _CODES.items())
    raise ValueError(f"no CUDA error {shown(code)} here; accepted are {accepted}")


def nanoseconds(seconds):
    if not 0 <= seconds <= 86400:
        raise ValueError(f"seconds is from 0 to 86400, got {shown(seconds)}")
    return int(seconds * 1e9)
