"""The page of a map in a real browser: what is drawn, said and counted there. Skipped where there is no Chromium."""

import random

import numpy as np
import pytest

import cuda_pool as cp
from cuda_pool.map import Recording, extents_of, palette, picture_of_recording, picture_of_snapshot, write_map
from cuda_pool.replay import replay
from cuda_pool.trace import Trace

from .browser import Browser

pytestmark = pytest.mark.browser
MIB = 1 << 20
PITCH = 31              # pixels from row to row of a map with twelve


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def no_errors(browser):
    browser.errors.clear()
    browser.requests.clear()
    yield
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith(("file:", "about:"))] == []


def small_trace():
    events = [("alloc", ident, size * MIB, ident % 2) for ident, size in enumerate((8, 4, 2, 16, 1, 3))]
    return Trace.from_events([*events, ("free", 1, 4 * MIB, 1), ("free", 3, 16 * MIB, 1), ("alloc", 6, 5 * MIB, 0)])


def film(trace, **settings):
    recording = Recording()
    replay(trace, recording=recording, **settings)
    return picture_of_recording(recording, "a film")


def random_trace(events, seed=0):
    rng, live, rows = random.Random(seed), [], []
    for number in range(events):
        if live and rng.random() < 0.5:
            ident, size = live.pop(rng.randrange(len(live)))
            rows.append(("free", ident, size, ident % 4))
        else:
            live.append((number, rng.choice((512, 4096, 100_000, 3 * MIB))))
            rows.append(("alloc", *live[-1], number % 4))
    return Trace.from_events(rows)


def live_bytes(trace, moment):
    """What a trace has live after so many events, by the trace alone."""
    sign = np.where(trace.is_free, -1, 1)[:moment]
    return int((trace.size[:moment].astype(np.int64) * sign).sum())


def data(browser, name):
    return int(browser.value(f"document.documentElement.dataset.{name}"))


def show(browser, moment):
    """Put the slider to a moment as a user does."""
    browser.value(f"(() => {{ const s = document.getElementById('slider'); s.value = {moment}; "
                  "s.dispatchEvent(new Event('input')); })()")
    browser.wait(f"document.documentElement.dataset.moment === '{moment}'")


def point(browser, row, share):
    """Move the mouse to a share of the width of a row of the map."""
    x, y = browser.value("(() => { const c = document.getElementById('strips'); c.scrollIntoView(); "
                         "const b = c.getBoundingClientRect(); return [b.left, b.top]; })()")
    width = browser.value("document.getElementById('strips').clientWidth") - 92
    browser.move(x + 92 + share * width, y + 6 + row * PITCH)
    return browser.value("document.getElementById('tip').hidden ? null : document.getElementById('tip').textContent")


def colour(browser, row, share):
    """Return the colour of a pixel of the map."""
    red, green, blue, _ = browser.value(
        "(() => { const c = document.getElementById('strips');"
        f"const x = 92 + Math.floor({share} * Math.floor(c.clientWidth - 92));"
        f"return Array.from(c.getContext('2d').getImageData(x, {6 + row * PITCH}, 1, 1).data); }})()")
    return f"#{red:02x}{green:02x}{blue:02x}"


@pytest.mark.parametrize("backing", ["malloc", "virtual"])
def test_the_slider_shows_any_moment(browser, tmp_path, backing):
    trace = random_trace(2000)
    picture = film(trace, backing=backing)
    write_map(tmp_path / "film.html", picture)
    browser.open(tmp_path / "film.html")
    assert data(browser, "moment") == picture.moment and data(browser, "live") == trace.peak_live
    for moment in 0, 1, 777, 1234, 2000, 50:
        show(browser, moment)
        picture.moment = moment
        assert data(browser, "live") == live_bytes(trace, moment) == picture.figures()["live"]
        assert data(browser, "used") == picture.figures()["used"]
        assert data(browser, "reserved") == picture.figures()["reserved"]
        assert data(browser, "drawn") >= picture.figures()["blocks"]       # a block at the end of a row is drawn twice
        assert data(browser, "drawn") <= picture.figures()["blocks"] + 12


def test_figures_are_of_the_moment_that_is_shown(browser, tmp_path):
    """Of a trace that is longer than the page is wide, on four streams that are behind, each event changes them."""
    picture = film(random_trace(30_000, seed=9), lag=40)
    write_map(tmp_path / "film.html", picture)
    browser.open(tmp_path / "film.html")
    for moment in 17, 9_999, 21_111, 29_998, 30_000:
        show(browser, moment)
        picture.moment = moment
        assert data(browser, "largest") == picture.figures()["largest_free"]
        assert data(browser, "pending") == next(each[2] for each in reversed(picture.samples) if each[0] <= moment)
        assert data(browser, "pending") <= data(browser, "reserved") - data(browser, "used")


@pytest.mark.parametrize("backing", ["malloc", "virtual"])
@pytest.mark.parametrize("growth", ["static", "dynamic"])
def test_what_is_too_small_is_the_same_in_page_and_image(browser, tmp_path, backing, growth):
    from cuda_pool.map import figures_of
    picture = film(random_trace(1500, seed=4), backing=backing, growth=growth)
    write_map(tmp_path / "film.html", picture)
    browser.open(tmp_path / "film.html")
    for moment in 100, 900, 1500:
        show(browser, moment)
        picture.moment = moment
        assert data(browser, "fragments") == figures_of(picture)["fragmented"]


def test_pixels_have_the_colours_of_their_blocks(browser, tmp_path):
    picture = film(small_trace(), capacity="64MiB", mid_max="6MiB")
    picture.moment = picture.events
    write_map(tmp_path / "film.html", picture)
    browser.open(tmp_path / "film.html")
    rows = browser.value("document.getElementById('strips').clientHeight") // PITCH
    assert rows == 12
    extents = extents_of(picture, picture.strips_now())
    per_row, seen = 64 * MIB / rows, set()
    for extent in extents:
        middle = extent.position + extent.size / 2
        if extent.size < MIB:
            continue
        at = int(middle // per_row), middle % per_row / per_row
        for mode, paint in (("tier", palette.TIERS[extent.tier]), ("state", palette.LIVE),
                            ("stream", palette.STREAMS[extent.stream if extent.state == "live" else 0])):
            browser.value(f"document.querySelector('input[value={mode}]').click()")
            if extent.state == "live":
                assert colour(browser, *at) == paint.colour
                seen.add((mode, paint.colour))
            elif not extent.fragment:
                assert colour(browser, *at) == palette.WHITE
    assert len(seen) >= 5


def test_pointing_at_a_block_tells_what_it_is(browser, tmp_path):
    picture = film(small_trace(), capacity="64MiB")
    picture.moment = picture.events
    write_map(tmp_path / "film.html", picture)
    browser.open(tmp_path / "film.html")
    block = next(extent for extent in extents_of(picture, picture.strips_now()) if extent.requested == 8 * MIB)
    middle, per_row = block.position + block.size / 2, 64 * MIB / 12
    text = point(browser, int(middle // per_row), middle % per_row / per_row)
    assert "8.00 MiB live" in text and "(8,388,608 B)" in text and f"{block.address:#x}" in text
    assert "stream     stream 0" in text and "tier       mid" in text and "block id   0" in text
    assert "8 events, from event 1 on (row 2)" in text
    browser.move(1, 1)


def test_the_keyboard_reaches_every_block(browser, tmp_path):
    picture = film(small_trace(), capacity="64MiB")
    picture.moment = picture.events
    write_map(tmp_path / "film.html", picture)
    browser.open(tmp_path / "film.html")
    browser.value("document.getElementById('strips').focus()")
    texts = []
    for _ in extents_of(picture, picture.strips_now()):
        browser.press("ArrowRight")
        texts.append(browser.value("document.getElementById('details').textContent"))
    assert len(set(texts)) == len(texts)
    assert sum(" live;" in text for text in texts) == picture.figures()["blocks"]
    before = browser.value("document.getElementById('overview').hidden")
    browser.press("+")
    assert before and not browser.value("document.getElementById('overview').hidden")
    browser.press("0")
    assert browser.value("document.getElementById('overview').hidden")
    browser.press(",")
    assert data(browser, "moment") == picture.events - 1


def test_a_failed_request_is_marked(browser, tmp_path):
    picture = film(small_trace(), capacity="32MiB")
    write_map(tmp_path / "film.html", picture)
    browser.open(tmp_path / "film.html")
    assert data(browser, "moment") == picture.events < len(small_trace())
    text = browser.value("document.querySelector('.failure').textContent")
    assert f"Row {picture.failure['row']}: no block of" in text
    rows = browser.value("document.getElementById('strips').clientHeight")
    show(browser, 1)
    assert browser.value("document.getElementById('strips').clientHeight") < rows     # the request has its own row


def test_a_snapshot_shows_every_state(browser, tmp_path, make_device):
    device = make_device("64MiB", granularity="64KiB")
    one, other = device.stream(), device.stream()
    with cp.Pool("16MiB", device=device, backing="virtual") as pool:
        live = pool.alloc(3 * MIB, one)
        pending = pool.alloc(2 * MIB, one)
        pool.record_use(pending, other)
        pool.free_async(pending, one)
        write_map(tmp_path / "still.html", picture_of_snapshot(pool.snapshot(), "a still"), "state")
        browser.open(tmp_path / "still.html", f"#at={live}")
    legend = browser.value("document.getElementById('legend').textContent")
    assert "live" in legend and "pending" in legend and "free" in legend
    assert browser.value("document.getElementById('time').hidden")
    assert "3.00 MiB live" in browser.value("document.getElementById('details').textContent")


def test_a_hostile_name_is_only_text(browser, tmp_path):
    name = "</script><img src=x onerror=document.title='owned'><script>document.title='owned'</script>@MODEL@"
    recording = Recording()
    replay(small_trace(), recording=recording)
    picture = picture_of_recording(recording, name)
    picture.streams = [name] * 2
    write_map(tmp_path / "film.html", picture, "stream")
    browser.open(tmp_path / "film.html")
    assert browser.value("document.title") == name == browser.value("document.querySelector('h1').textContent")
    assert browser.value("document.querySelectorAll('img').length") == 0
    assert name in browser.value("document.getElementById('legend').textContent")


def test_an_empty_pool_and_an_empty_trace_can_be_drawn(browser, tmp_path, make_device):
    with cp.Pool("1MiB", device=make_device()) as pool:
        write_map(tmp_path / "still.html", picture_of_snapshot(pool.snapshot(), "empty"))
    browser.open(tmp_path / "still.html")
    assert data(browser, "live") == data(browser, "drawn") == 0
    write_map(tmp_path / "film.html", film(Trace.from_events([])))
    browser.open(tmp_path / "film.html")
    assert data(browser, "live") == 0


@pytest.mark.slow
def test_200_000_events_open_in_two_seconds(browser, tmp_path):
    write_map(tmp_path / "film.html", film(random_trace(200_000)))
    times = []
    for _ in range(3):
        browser.open(tmp_path / "film.html")
        times.append(data(browser, "ready"))
    assert min(times) < 2000, f"ready after {times} ms"
