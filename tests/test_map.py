"""Maps without a browser: what a recording notes, what SVG and page are made of, and the command."""

import base64
import json
import random
import re
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import cuda_pool as cp
from cuda_pool import cli
from cuda_pool._replay import PoolReplay
from cuda_pool.map import (
    MODES, Recording, extents_of, figures_of, page_of, palette, picture_of_recording, picture_of_snapshot, svg_of,
    write_map)
from cuda_pool.map.page import column
from cuda_pool.replay import replay
from cuda_pool.trace import Trace, read_trace

from .models import optimised
from .snapshots import SHAPES, pickled

MIB = 1 << 20
SVG = "{http://www.w3.org/2000/svg}"
EXAMPLE = Path(__file__).parents[1] / "examples" / "resnet50_b64_train.csv.gz"


def trace():
    events = [("alloc", ident, size * MIB, ident % 2) for ident, size in enumerate((8, 4, 2, 16, 1, 3))]
    small = [("alloc", 100 + ident, 300, 1) for ident in range(50)]
    return Trace.from_events([("free", 77, 5 * MIB, 0), *events, *small, ("free", 1, 4 * MIB, 1),
                              ("free", 3, 16 * MIB, 1), ("alloc", 6, 5 * MIB, 0), ("alloc", 7, 0, 0)])


def recorded(played=None, until=None, **settings):
    recording = Recording(until)
    recording.result = replay(trace() if played is None else played, recording=recording, **settings)
    return recording


# Recording

@pytest.mark.parametrize("settings", [
    {}, {"growth": "dynamic"}, {"backing": "virtual"}, {"backing": "virtual", "growth": "dynamic"}, {"lag": 3},
    {"mid_max": "1MiB"}], ids=str)
def test_a_recording_has_every_block_where_the_pool_has_it(settings):
    for until in 0, 1, 30, None:
        recording = recorded(until=until, **settings)
        live = (recording.used > 0) & (recording.born <= recording.moment) & (recording.died > recording.moment)
        here = {block.address: (block.size, block.tier) for block in recording.snapshot.blocks if block.state == "live"}
        names = ("slab", "mid", "buddy")
        assert here == {int(address): (int(used), names[tier - 1]) for address, used, tier in zip(
            recording.address[live], recording.used[live], recording.tier[live])}
        assert recording.reserved[-1][1] == recording.snapshot.reserved
        assert recording.samples[-1][1] == recording.snapshot.largest_free


def busy_trace(seed=3):
    """Small and middle blocks that come and go in no order, so that caches have something to do."""
    rng, live, rows = random.Random(seed), [], []
    for number in range(20_000):
        if len(live) > 400 or live and rng.random() < 0.5:
            ident, size = live.pop(rng.randrange(len(live)))
            rows.append(("free", ident, size, ident % 3))
        else:
            live.append((number, rng.choice((300, 5000, 70_000, 300_000))))
            rows.append(("alloc", *live[-1], number % 3))
    return Trace.from_events(rows)


@pytest.mark.parametrize("settings", [
    {}, {"growth": "dynamic"}, {"growth": "dynamic", "backing": "virtual"}, {"lag": 30}, {"capacity": "30MiB"},
], ids=str)
def test_a_recording_changes_nothing_that_is_measured(settings):
    played = busy_trace()
    with_one, without = recorded(played, **settings).result, replay(played, **settings)
    assert {**with_one.as_dict(), "ns_per_event": 0} == {**without.as_dict(), "ns_per_event": 0}


def test_a_recording_changes_no_address():
    played, capacity = busy_trace(), 128 * MIB
    with cp.sim.Device(capacity) as device, cp.Pool(capacity, device=device) as pool:
        loop = PoolReplay(played, pool)
        loop.place()
        loop.run(15_000)
        without = offsets(pool.snapshot())
        loop.clear()
        loop.close()
    assert offsets(recorded(played, until=15_000, capacity=capacity).snapshot) == without


def offsets(snapshot):
    base = snapshot.segments[0].address
    return [(block.address - base, block.size, block.requested, block.state) for block in snapshot.blocks]


def test_the_snapshot_of_a_recording_names_events_and_streams():
    snapshot = recorded().snapshot
    born = {block.requested: (block.allocation, snapshot.streams[block.stream].handle) for block in snapshot.blocks
            if block.state == "live"}
    assert born[8 * MIB] == (2, 0) and born[3 * MIB] == (7, 1) and born[5 * MIB] == (60, 0)


def test_a_preexisting_block_is_there_from_the_start():
    recording = recorded(until=0)
    assert [block.requested for block in recording.snapshot.blocks if block.state == "live"] == [5 * MIB]


@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_that_no_event_is_about_are_drawn_with_their_size_and_stream(shape, tmp_path):
    (tmp_path / "a.pickle").write_bytes(pickled(SHAPES[shape]()))
    played = read_trace(tmp_path / "a.pickle")
    recording = recorded(played)
    film = picture_of_recording(recording, "film")
    assert film.figures()["live"] == played.peak_live
    still = picture_of_snapshot(recording.snapshot, "still")
    film.moment = film.events
    assert film.figures()["live"] == still.figures()["live"]
    names = {ident: film.streams[stream] for ident, stream in zip(*(
        film.blocks[name].tolist() for name in ("ident", "stream")))}
    for ident, stream in zip(played.live_id.tolist(), played.live["stream"].tolist()):
        assert names[ident] == f"stream {stream}"


def test_a_recording_ends_where_the_memory_does():
    recording = recorded(capacity="32MiB")
    assert recording.failure["row"] == recording.result.failed_row and recording.moment < len(trace())
    assert recording.failure["requested"] == recording.result.failure["requested"]


def test_regions_that_come_and_go_are_noted():
    events = [("alloc", 0, 40 * MIB, 0), ("free", 0, 0, 0), ("alloc", 1, 90 * MIB, 0), ("free", 1, 0, 0)]
    recording = recorded(Trace.from_events(events), growth="dynamic")
    assert len(recording.regions) >= 2
    ends = [died for _, _, _, died in recording.regions]
    assert all(born < died for _, _, born, died in recording.regions) and max(ends) == 0xFFFFFFFF


@pytest.mark.parametrize("until, error", [(-1, ValueError), (1.5, TypeError), ("all", TypeError)])
def test_a_moment_is_a_number_of_events(until, error):
    with pytest.raises(error, match="until is a number"):
        Recording(until)


def test_a_moment_behind_the_end_is_refused():
    with pytest.raises(ValueError, match="has 61 events"):
        recorded(until=62)


# Pictures

def pictures():
    film = picture_of_recording(recorded(mid_max="6MiB"), "film")
    paged = picture_of_recording(recorded(backing="virtual", growth="dynamic"), "paged")
    still = picture_of_snapshot(recorded(until=58, growth="dynamic").snapshot, "still", now=58)
    failed = recorded(capacity="32MiB")
    return {"film": film, "paged": paged, "still": still,
            "failed": picture_of_snapshot(failed.snapshot, "failed", failure=failed.failure, now=failed.moment)}


@pytest.mark.parametrize("name", ["film", "paged", "still", "failed"])
def test_extents_tile_the_strips(name):
    picture = pictures()[name]
    for picture.moment in {0, picture.events // 2, picture.events}:
        strips = picture.strips_now()
        parts = [part for strip in strips for part in strip.parts]
        extents = extents_of(picture, strips)
        assert sum(extent.size for extent in extents) == sum(size for _, size in parts)
        position = 0
        for extent in extents:
            assert extent.position == position
            position += extent.size
        live = [extent for extent in extents if extent.state == "live"]
        assert len(live) == picture.figures()["blocks"]
        assert sum(extent.requested for extent in live) == picture.figures()["live"]


def test_film_and_still_agree():
    for settings in {}, {"backing": "virtual"}, {"growth": "dynamic"}, {"lag": 4}, {"lag": 4, "backing": "virtual"}:
        film = picture_of_recording(recorded(**settings), "film")
        for film.moment in range(62):
            still = picture_of_snapshot(recorded(until=film.moment, **settings).snapshot, "still")
            assert {**film.figures(), "largest_free": 0} == {**still.figures(), "largest_free": 0}
            assert film.figures()["largest_free"] <= still.figures()["largest_free"]    # whose caches are empty


def test_every_event_of_a_long_trace_is_looked_at():
    """With the device behind, what is largest and pending changes with nearly every event."""
    blocks = [(ident, 4096 + 256 * (ident * 7 % 97)) for ident in range(25_000)]
    events = [event for ident, size in blocks
              for event in (("alloc", ident, size, ident % 3), ("free", ident, size, 0))]
    recording = recorded(Trace.from_events(events), lag=50, capacity="16MiB")
    moments = [each[0] for each in recording.samples]
    assert len(moments) > 25_000 and sum(1 for one, other in zip(moments, moments[1:]) if other == one + 1) > 20_000
    film = picture_of_recording(recording, "film")
    for film.moment, largest, pending in recording.samples[::1000]:
        assert max(largest, pending) <= film.figures()["reserved"] - film.figures()["used"]


def test_what_is_too_small_for_the_largest_request():
    with cp.sim.Device("64MiB") as device, cp.Pool("16MiB", device=device) as pool:
        blocks = [pool.alloc(2 * MIB) for _ in range(8)]
        for ptr in sorted(blocks)[::2]:
            pool.free(ptr)
        assert figures_of(picture_of_snapshot(pool.snapshot(), ""))["fragmented"] == 0
        picture = picture_of_snapshot(pool.snapshot(), "", failure={"row": 1, "requested": 3 * MIB, "free": 8 * MIB,
                                                                    "largest_free": 2 * MIB})
        assert figures_of(picture)["fragmented"] == 8 * MIB
        pool.free(sorted(blocks)[1])
        picture = picture_of_snapshot(pool.snapshot(), "", failure=picture.failure)
        assert figures_of(picture)["fragmented"] == 4 * MIB


# SVG

@pytest.mark.parametrize("by", MODES)
@pytest.mark.parametrize("name", ["film", "paged", "still", "failed"])
def test_svg_is_well_formed_and_says_what_it_shows(name, by):
    picture = pictures()[name]
    root = ET.fromstring(svg_of(picture, by))
    text = " ".join("".join(each.itertext()) for each in root.iter(f"{SVG}text"))
    assert cp.format_size(picture.figures()["live"]) + " live" in text and f"coloured by {by}" in text
    patterns = {each.get("id") for each in root.iter(f"{SVG}pattern")}
    fills = {each.get("fill") for tag in ("rect", "path") for each in root.iter(SVG + tag)} - {"none", None}
    assert all(fill.startswith("#") or fill[5:-1] in patterns for fill in fills)
    largest = max(extent.requested for extent in extents_of(picture, picture.strips_now()))
    titles = [each.text for each in root.iter(f"{SVG}title")]
    assert any(title.startswith(f"{largest} bytes live") for title in titles)
    if picture.failure:
        assert f"Row {picture.failure['row']}: no block of" in text


def test_areas_of_an_svg_are_to_scale():
    picture = pictures()["film"]
    picture.moment = picture.events
    root = ET.fromstring(svg_of(picture, "tier"))
    whole = sum(size for strip in picture.strips for _, size in strip.parts)
    row = max(float(each.get("width")) for each in root.iter(f"{SVG}rect") if each.get("fill") == "none")
    width = sum(float(each.get("width")) for each in root.iter(f"{SVG}rect")
                if (title := each.find(f"{SVG}title")) is not None and title.text.startswith(f"{8 * MIB} bytes live"))
    assert abs(width / (12 * row) - 8 * MIB / whole) < 0.002


# Page

def model(page):
    text = re.search(r'<script type="application/json" id="model">(.*?)</script>', page, re.S)[1]
    return json.loads(text)


def decoded(values):
    numbers = np.frombuffer(base64.b64decode(values["data"]), f"<{values['kind']}").astype(np.uint64)
    if values["delta"]:
        return np.uint64(values["base"]) + np.cumsum(numbers) * np.uint64(values["scale"])
    return numbers * np.uint64(values["scale"]) + np.uint64(values["base"])


@pytest.mark.parametrize("name", ["film", "paged", "still", "failed"])
def test_the_page_has_all_blocks(name):
    picture = pictures()[name]
    values = model(page_of(picture))
    for each, numbers in picture.blocks.items():
        assert decoded(values["columns"][each]).tolist() == numbers.tolist(), each
    if picture.rows is not None:
        assert decoded(values["rows"]).tolist() == picture.rows[:picture.events].tolist()


@pytest.mark.parametrize("numbers", [[], [0], [7, 7], [1 << 47, (1 << 47) + 64], [0, 255], [0, 256], [5, 1 << 40]])
def test_columns_are_narrow_and_exact(numbers):
    encoded = column(np.array(numbers, np.uint64))
    assert decoded(encoded).tolist() == numbers
    assert encoded["kind"] in ("u1", "f8" if numbers == [5, 1 << 40] else "u1")


def test_the_page_needs_nothing_else():
    page = page_of(pictures()["film"])
    assert re.findall(r"""(?:src|href)\s*=|@import|url\(|https?:""", page) == []
    assert "default-src 'none'" in page and page.count("<script") == 2


def test_a_hostile_title_is_escaped():
    name = "</script><script>alert(1)</script>\"'&\u2028@MODEL@"
    picture = pictures()["film"]
    picture.title = picture.lead = name
    picture.streams = [name, name]
    page = page_of(picture, "stream")
    assert page.count("<script") == 2 and "alert(1)</script>" not in page
    assert model(page)["streams"] == [name, name]
    root = ET.fromstring(svg_of(picture, "stream"))
    assert root.find(f"{SVG}title").text == name and not list(root.iter(f"{SVG}script"))


def test_paints_of_a_mode_differ():
    for mode in MODES:
        paints = palette.categories(mode, [f"stream {at}" for at in range(20)])
        looks = [paint[1:] for paint in (*paints, *palette.PIECES.values())]
        assert len(set(looks)) == len(looks)


@pytest.mark.parametrize("kind", ["protan", "deutan", "tritan", "grey"])
def test_paints_of_one_texture_stay_apart_for_the_colour_blind_and_in_print(kind):
    """They differ by what is left of their colour; matrices of Machado et al., 2009, for full severity."""
    for mode in MODES:
        paints = [*palette.categories(mode, [f"stream {at}" for at in range(20)]), *palette.PIECES.values()]
        for texture in {paint.texture for paint in paints}:
            seen = [seen_as(paint.colour, kind) for paint in paints if paint.texture == texture]
            nearest = min((np.abs(one - other).max() for at, one in enumerate(seen) for other in seen[:at]), default=1)
            assert nearest > (0.05 if kind == "grey" else 0.1), (mode, texture)


MATRICES = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    "grey": [[0.2126, 0.7152, 0.0722]] * 3,
}


def seen_as(colour, kind):
    channels = np.array([int(colour[at:at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.clip(np.array(MATRICES[kind]) @ channels ** 2.2, 0, 1) ** (1 / 2.2)


# Files and the command

@pytest.mark.parametrize("name", ["map.png", "map", "svg"])
def test_a_map_is_svg_or_html(name, tmp_path):
    with pytest.raises(ValueError, match=".svg or .html"):
        write_map(tmp_path / name, pictures()["still"])
    with pytest.raises(ValueError, match="tier, state, stream, age"):
        write_map(tmp_path / "map.svg", pictures()["still"], by="size")


def test_a_recording_that_nothing_was_played_to():
    with pytest.raises(ValueError, match="the recording is empty"):
        picture_of_recording(Recording(), "nothing")


def run(*arguments):
    return cli.main(["map", *map(str, arguments)])


def test_the_command_draws_a_snapshot(tmp_path, capsys, make_device, monkeypatch):
    with cp.Pool("4MiB", device=make_device()) as pool:
        pool.alloc(100_000)
        pool.snapshot().save(tmp_path / "pool.json.gz")
    monkeypatch.chdir(tmp_path)
    assert run("pool.json.gz", "--json", "-") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["map"] == "pool.html" and values["live"] == 100_000 and values["blocks"] == 1
    assert (tmp_path / "pool.html").read_text().startswith("<!DOCTYPE html>")
    assert run("pool.json.gz", "--out", "pool.svg", "--by", "state") == 0
    assert "written to pool.svg" in capsys.readouterr().out


def test_the_command_draws_a_moment_of_a_trace(tmp_path, capsys):
    trace().write(tmp_path / "trace.csv")
    assert run("--trace", tmp_path / "trace.csv", "--at", 7, "--out", tmp_path / "a.svg", "--json", "-") == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["at"], values["moment"], values["failed_row"]) == (7, "event", None) and values["live"] == 34 * MIB
    assert "trace.csv after 7 events, row 8" in (tmp_path / "a.svg").read_text()


def test_the_command_draws_the_peak_of_a_trace_unless_told_otherwise(tmp_path, capsys):
    trace().write(tmp_path / "trace.csv")
    drawn = {}
    for at in None, "peak", "end":
        arguments = ["--trace", tmp_path / "trace.csv", "--out", tmp_path / "a.svg", *(["--at", at] if at else [])]
        assert run(*arguments, "--json", "-") == 0
        drawn[at] = json.loads(capsys.readouterr().out)
        assert ("at the peak of live bytes" in (tmp_path / "a.svg").read_text()) == (at != "end")
    assert drawn[None] == drawn["peak"] and drawn["peak"]["moment"] == "peak"
    assert drawn["peak"]["live"] == trace().peak_live and 0 < drawn["peak"]["at"] < trace().events
    assert drawn["end"]["moment"] == "end" and drawn["end"]["at"] == trace().events
    assert run(*arguments[:-2]) == 0
    assert f"after {drawn['peak']['at']} events, the peak of live bytes" in capsys.readouterr().out


def test_a_failure_after_the_peak_is_what_is_drawn(tmp_path, capsys):
    """All of the trace is played, not only what comes before the peak."""
    mibs = [(number, MIB) for number in range(8)]
    events = [("alloc", *block, 0) for block in mibs] + [("free", *block, 0) for block in mibs[::2]] + [
        ("alloc", 8, 2 * MIB, 0)]
    cp.trace.Trace.from_events(events).write(tmp_path / "trace.csv")
    assert run("--trace", tmp_path / "trace.csv", "--capacity", "8MiB", "--out", tmp_path / "a.svg") == 1
    assert "after 12 events, where it failed" in capsys.readouterr().out


def test_the_command_draws_the_device_that_is_asked_for(tmp_path, capsys):
    (tmp_path / "a.pickle").write_bytes(pickled(SHAPES["two_devices"]()))
    for device, live in (1, MIB), (2, 2 * MIB):
        arguments = "--trace", tmp_path / "a.pickle", "--trace-device", device, "--out", tmp_path / "a.svg"
        assert run(*arguments, "--json", "-") == 0
        assert json.loads(capsys.readouterr().out)["live"] == live


def test_the_command_names_the_row_that_failed(tmp_path, capsys):
    trace().write(tmp_path / "trace.csv")
    arguments = "--trace", tmp_path / "trace.csv", "--capacity", "32MiB", "--out", tmp_path / "a.svg"
    assert run(*arguments) == 1
    assert "FAILED at row" in capsys.readouterr().out
    assert "no block of" in (tmp_path / "a.svg").read_text()


def test_replay_writes_a_page(tmp_path, capsys):
    out = tmp_path / "film.html"
    assert cli.main(["replay", str(EXAMPLE), "--map", str(out), "--json", "-"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["map"] == str(out) and model(out.read_text())["events"] == values["events"]
    assert f"<title>{EXAMPLE.name}" in out.read_text() and str(EXAMPLE.parent) not in out.read_text()


@pytest.mark.parametrize("arguments, message", [
    ([], "expected one of the two"), (["s.json", "--trace", "t.csv"], "expected one of the two"),
    (["s.json", "--at", "3"], "expected --trace"), (["s.json", "--capacity", "1GiB"], "--capacity is for a trace"),
    (["s.json", "--mid-max", "1MiB"], "--mid-max is for a trace"), (["s.json", "--lag", "3"], "--lag is for a trace"),
    (["s.json", "--growth", "dynamic"], "expected --trace"), (["--trace", "t.csv", "--at=-1"], "is no moment"),
    (["--trace", "t.csv", "--at", "x"], "expected peak, end, or a number"),
    (["s.json", "--out", "x.png"], ".svg or .html"),
    (["s.json", "--out", "no/x.svg"], "No such file"), (["missing.json"], "missing.json"),
    (["--trace", "t.csv", "--at", "9999"], "has 61 events"),
    (["t.csv"], "no JSON: Expecting value; a trace is drawn with --trace TRACE"),
    (["t.pickle"], "no text: a snapshot is JSON, plain or gzip; a trace is drawn with --trace TRACE"),
    (["s.json", "--trace-device", "0"], "expected --trace"), (["--trace", "s.json"], "`cuda-pool map FILE` draws"),
    (["s.json", "--by", "size"], "invalid choice"), (["s.svg", "--out", "s.svg"], "that is the snapshot"),
])
def test_bad_arguments_are_refused(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trace().write("t.csv")
    recorded().snapshot.save("t.pickle")
    recorded().snapshot.save("s.json")
    recorded().snapshot.save("s.svg")
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err


@optimised
def test_the_largest_traces_are_drawn_quickly(tmp_path, shared_path):
    source = shared_path("traces", "bert_serve_4stream.csv.gz")
    started = time.process_time()
    assert cli.main(["replay", str(source), "--map", str(tmp_path / "film.html")]) == 0
    assert time.process_time() - started < 10
