"""Files of ours that are JSON, plain or compressed with gzip: read within bounds, written whole or not at all."""

import gzip
import json
import os
import re
from dataclasses import dataclass

from ._atomic import open_atomically
from ._source import open_source
from .sizes import format_size, is_index, shown

BYTES_PER_BRACKET = 16      # of text, at least: a list takes four times that in memory
BRACKETS_MIN = 1024
NESTED_MAX = 8              # levels, below which no reader of JSON gives up
BRACKETS = re.compile(r"[\[{]")
TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]|[-\w.+]+', re.S)


@dataclass(frozen=True)
class JsonFormat:
    """What such a file is, and what it may hold.

    Attributes
    ----------
    what : str
        What the messages call it.
    name : str
        Value of its key ``format``.
    version : int
        The one that is read and written.
    bytes_max : int
        Of text.
    number_max : int
        Largest integer.
    levels : str
        How deeply its values are nested, in words.
    error : type
        Is raised with the path and the reason.
    """

    what: str
    name: str
    version: int
    bytes_max: int
    number_max: int
    levels: str
    error: type

    def load(self, path, make):
        """Return what `make` makes of a file's values; what is wrong with them is raised as ``error``."""
        try:
            with open_source(path) as source:
                data = source.at_most(self.bytes_max)
            return make(self._parse(data))
        except (TypeError, ValueError) as error:
            raise self.error(os.fspath(path), str(error)) from None

    def save(self, path, values, **layout):
        """Write values; with a name that ends in ``.gz`` the file is compressed. What ``load`` would refuse for its
        length is a ValueError.
        """
        text = json.dumps(values, **layout).encode() + b"\n"
        if len(text) > self.bytes_max:
            raise ValueError(f"the {self.what} has {format_size(len(text))} of text: a file holds at most "
                             f"{format_size(self.bytes_max)}")
        if os.fsdecode(path).lower().endswith(".gz"):
            text = gzip.compress(text, mtime=0)
        with open_atomically(path) as file:
            file.write(text)

    def require(self, values):
        """Raise unless values are of this format and version."""
        if not isinstance(values, dict) or values.get("format") != self.name:
            raise ValueError(f'it is no {self.what}: that is an object with "format": "{self.name}"')
        if "version" not in values:
            raise ValueError(f"the {self.what} has no version")
        version = values["version"]
        if not is_index(version):
            raise TypeError(f"version is an integer, got {shown(version)}")
        if version != self.version:
            by = values.get("created_by")
            raise ValueError(f"version is {self.version} for this package, got {version}" + (
                f"; the file was made by {shown(by)}" if isinstance(by, str) else ""))

    def _parse(self, data):
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"byte {error.start}: it is no text: a {self.what} is JSON, plain or gzip") from None
        self._require_room(text)
        try:
            return json.loads(text, object_pairs_hook=_unique, parse_int=self._number, parse_constant=_refuse)
        except json.JSONDecodeError as error:
            raise ValueError(f"{_line(text, error.pos)}: it is no JSON: {error.msg}") from None
        except _NoNumber as error:
            raise ValueError(f"{_line(text, _found(text, error.token))}: {shown(error.token)} is no number that is "
                             f"accepted: expected an integer from 0 to {self.number_max}") from None
        except RecursionError:
            raise self._too_deep(text, _depth(text, NESTED_MAX)) from None

    def _require_room(self, text):
        """Refuse what would take much more memory than text: hardly anything but brackets."""
        if text.count("[") + text.count("{") > _room(len(text)):
            raise self._too_deep(text, next(match.start() for count, match in enumerate(BRACKETS.finditer(text), 1)
                                            if count > _room(match.start())))

    def _too_deep(self, text, position):
        return ValueError(f"{_line(text, position)}: its values are nested too deeply, or there is hardly anything but "
                          f"brackets: a {self.what} has {self.levels} levels")

    def _number(self, text):
        """Convert an integer that may be as large as it looks; the rest would only take time."""
        if len(text) > len(str(self.number_max)) + 1:
            raise _NoNumber(text)
        return int(text)


class _NoNumber(Exception):
    def __init__(self, token):
        self.token = token
        super().__init__(token)


def _refuse(token):
    raise _NoNumber(token)


def _room(length):
    """Return how many brackets a text of some length may have."""
    return length // BYTES_PER_BRACKET + BRACKETS_MIN


def _line(text, position):
    """Say where a position of a text is."""
    return f"line {text.count(chr(10), 0, position) + 1}, column {position - text.rfind(chr(10), 0, position)}"


def _found(text, token):
    """Return where a token is for the first time outside of strings."""
    return next(match.start() for match in TOKENS.finditer(text) if match[0].startswith(token))


def _depth(text, most):
    """Return where lists and objects are nested more deeply than that."""
    depth = 0
    for match in TOKENS.finditer(text):
        depth += (match[0] in ("[", "{")) - (match[0] in ("]", "}"))
        if depth > most:
            return match.start()
    return len(text)


def _unique(pairs):
    values = dict(pairs)
    if len(values) != len(pairs):
        seen = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {shown(twice)} is there twice")
    return values
