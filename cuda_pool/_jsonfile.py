"""Files of ours that are JSON, plain or compressed with gzip: read within bounds, written whole or not at all."""

import gzip
import io
import json
import os
import zlib
from dataclasses import dataclass

from ._atomic import open_atomically
from .sizes import format_size, is_index, shown

GZIP_MAGIC = b"\x1f\x8b"


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
        name = os.fspath(path)
        try:
            return make(self._parse(self._read(name)))
        except (TypeError, ValueError, RecursionError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self.error(name, str(error) or type(error).__name__) from None

    def save(self, path, values, **layout):
        """Write values; with a name that ends in ``.gz`` the file is compressed."""
        text = json.dumps(values, **layout).encode() + b"\n"
        if os.fsdecode(path).endswith(".gz"):
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

    def _read(self, path):
        with open(path, "rb") as file:
            data = file.read(self.bytes_max + 1)
        if data[:2] == GZIP_MAGIC:
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(self.bytes_max + 1)
        if len(data) > self.bytes_max:
            raise ValueError(f"a {self.what} is at most {format_size(self.bytes_max)} of text")
        return data

    def _parse(self, data):
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise ValueError(f"it is no text: a {self.what} is JSON, plain or gzip") from None
        try:
            return json.loads(text, object_pairs_hook=_unique, parse_int=self._number, parse_constant=self._refuse)
        except json.JSONDecodeError as error:
            raise ValueError(f"it is no JSON: {error}") from None
        except RecursionError:
            raise ValueError(f"its values are nested too deeply: a {self.what} has {self.levels} levels") from None

    def _number(self, text):
        """Convert an integer that may be as large as it looks; the rest would only take time."""
        if len(text) > len(str(self.number_max)) + 1:
            raise ValueError(f"{shown(text)} is too large: numbers are at most {self.number_max}")
        return int(text)

    def _refuse(self, text):
        raise ValueError(f"{text} is no number: numbers are integers from 0 to {self.number_max}")


def _unique(pairs):
    values = dict(pairs)
    if len(values) != len(pairs):
        seen = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {shown(twice)} is there twice")
    return values
