"""Files of JSON: where a fault is, and what is refused before it takes memory."""

import gzip
import json

import pytest

from cuda_pool._jsonfile import JsonFormat

FORMAT = JsonFormat("thing", "a thing", 1, 4096, 99, "three", KeyError)


@pytest.fixture
def reason(tmp_path):
    """Function from the bytes of a file to the reason for which it is refused."""

    def refused(data):
        (tmp_path / "a.json").write_bytes(data)
        with pytest.raises(KeyError) as error:
            FORMAT.load(tmp_path / "a.json", lambda values: values)
        assert error.value.args[0] == str(tmp_path / "a.json")
        return error.value.args[1]

    return refused


@pytest.mark.parametrize("data, place", [
    (b"", "line 1, column 1: it is no JSON: Expecting value"),
    (b'{"a": 1,\n "b": }', "line 2, column 7: it is no JSON: Expecting value"),
    (b'{"a": 1}\n x', "line 2, column 2: it is no JSON: Extra data"),
    (b'{"a": "NaN \\" NaN",\n"b": NaN}', "line 2, column 6: 'NaN' is no number"),
    (b'["\\\\", -Infinity]', "line 1, column 8: '-Infinity' is no number"),
    (b"[1, Infinity5]", "line 1, column 5: 'Infinity' is no number"),
    (b'{"1234567": 1,\n\n  "b": [1, 1234567]}', "line 3, column 12: '1234567' is no number"),
    (b"[1, 2, \xff]", "byte 7: it is no text"),
    (b"\n" + b"[" * 1100, "line 2, column 1093: its values are nested too deeply"),
    (b"[1" + b", [2]" * 1200, "at most 4.00 KiB"),
    (b"{}" + b" " * 4095, "byte 4096: the text goes on: expected at most 4.00 KiB"),
    (gzip.compress(b"[1, 2, 3]")[:-3], "byte 9 of the unpacked file: the gzip data is truncated"),
    (gzip.compress(b" " * 5000), "byte 4096 of the unpacked file: the text goes on"),
    (b'{"a": {"b": 1, "b": 2}}', "the key 'b' is there twice"),
])
def test_the_place_of_a_fault(reason, data, place):
    assert place in reason(data)


def test_values_that_are_nested_more_deeply_than_any_reader_goes(tmp_path):
    text = b'{"a": "[[[",\n "b":' + b"[                " * 100_000
    (tmp_path / "a.json").write_bytes(text)
    long = JsonFormat("thing", "a thing", 1, 1 << 30, 99, "three", KeyError)
    with pytest.raises(KeyError) as error:
        long.load(tmp_path / "a.json", lambda values: values)
    assert error.value.args[1].startswith("line 2, column 125: its values are nested too deeply")


def test_what_is_saved_can_be_loaded(tmp_path):
    values = {"rows": [[number % 90] for number in range(400)], "text": "[{" * 40}
    for name in "a.json", "a.json.gz":
        FORMAT.save(tmp_path / name, values)
        assert FORMAT.load(tmp_path / name, dict) == values
    with pytest.raises(ValueError, match="the thing has 4.88 KiB of text: a file holds at most 4.00 KiB"):
        FORMAT.save(tmp_path / "b.json", {"text": "x" * 4987})
    assert not (tmp_path / "b.json").exists()
    assert json.loads((tmp_path / "a.json").read_text()) == values
