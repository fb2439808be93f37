"""Draw the pictures of docs/guide/map.md: pages as Chromium shows them, and an SVG image.

    python tools/draw_map_pictures.py [--out FOLDER]
"""

import argparse
import dataclasses
import shutil
import subprocess
import tempfile
from pathlib import Path

from cuda_pool.map import Recording, picture_of_recording, picture_of_snapshot, write_map
from cuda_pool.replay import replay
from cuda_pool.trace import Trace

ROOT = Path(__file__).resolve().parents[1]
TRACE = ROOT / "examples" / "gpt2_124m_train.csv.gz"
PEAK = 3578                     # events up to the first moment with the most live bytes
BASE = 0x7F0000000000           # where the memory of the SVG begins, so that the same build gives the same file
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def film(**settings):
    recording = Recording()
    replay(Trace.read(TRACE), recording=recording, **settings)
    return picture_of_recording(recording, TRACE.name)


def still(moment):
    recording = Recording(moment)
    replay(Trace.read(TRACE), recording=recording)
    return picture_of_snapshot(moved(recording.snapshot), f"{TRACE.name} after {moment:,} events", now=moment)


def moved(snapshot):
    """Return a snapshot of one segment as if that began at BASE."""
    [segment] = snapshot.segments
    blocks = tuple(block._replace(address=block.address - segment.address + BASE) for block in segment.blocks)
    return dataclasses.replace(snapshot, segments=(segment._replace(address=BASE, blocks=blocks),))


def photograph(page, target, height):
    """Save what a browser shows of a page as PNG."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit(f"no browser: expected one of {', '.join(BROWSERS)} on PATH")
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                        f"--user-data-dir={profile}", f"--window-size=1200,{height}", f"--screenshot={target}",
                        page.as_uri()], check=True, capture_output=True, timeout=120)


def main():
    parser = argparse.ArgumentParser(description="Draw the pictures of docs/guide/map.md.")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", help="folder (default: docs/images)")
    out = parser.parse_args().out.resolve()
    write_map(out / "map.svg", still(PEAK), "age")
    with tempfile.TemporaryDirectory() as folder:
        for name, height, settings in ("map_page", 1120, {}), ("map_failure", 760, {"capacity": "26GiB"}):
            page = Path(folder, f"{name}.html")
            write_map(page, film(**settings))
            photograph(page, out / f"{name}.png", height)


if __name__ == "__main__":
    main()
