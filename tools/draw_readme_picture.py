"""Draw docs/images/fragmentation.svg: one region under a power-of-two buddy system and under this pool.

    python tools/draw_readme_picture.py [TRACE] [--out FILE]

Both serve the same trace from regions of the same size, the smallest that the pool needs. The picture shows them
at the allocation where the buddy system fails first. The figures in it are measured, and printed as well.
"""

import argparse
import heapq
from dataclasses import dataclass
from pathlib import Path

from cuda_pool import Pool, sim
from cuda_pool._atomic import open_atomically
from cuda_pool.peers import peak_reserved
from cuda_pool.replay import fit
from cuda_pool.sizes import format_size
from cuda_pool.trace import Trace

ROOT = Path(__file__).resolve().parents[1]
TRACE = ROOT / "examples" / "gpt2_124m_train.csv.gz"
PICTURE = ROOT / "docs" / "images" / "fragmentation.svg"
MIN_BLOCK = 4096                # of the buddy system

COLUMNS = 900                   # each stands for an equal share of the region
STRIP = 64                      # height
LEFT, TOP, PITCH = 20, 58, 150
LIVE, WASTE = "#0072B2", "#E69F00"      # blue and orange stay apart for the colour-blind, dark and light in print


class PowerOfTwoBuddy:
    """A buddy system that hands out whole power-of-two blocks, the lowest free one of the smallest order that fits."""

    def __init__(self, size):
        self.free = {}                  # order -> set of offsets
        self.heaps = {}                 # order -> heap of offsets, some of them taken meanwhile
        self.live = {}                  # offset -> order
        offset = 0
        for order in reversed(range(size.bit_length())):
            if order >= MIN_BLOCK.bit_length() - 1 and size >> order & 1:
                self.put(offset, order)
                offset += 1 << order

    def alloc(self, nbytes):
        """Return an offset, or None."""
        order = (max(nbytes, MIN_BLOCK) - 1).bit_length()
        found = min((each for each, offsets in self.free.items() if offsets and each >= order), default=None)
        if found is None:
            return None
        offset = self.pop(found)
        for split in reversed(range(order, found)):
            self.put(offset + (1 << split), split)
        self.live[offset] = order
        return offset

    def release(self, offset):
        order = self.live.pop(offset)
        while offset ^ 1 << order in self.free.get(order, ()):
            self.free[order].remove(offset ^ 1 << order)
            offset &= ~(1 << order)
            order += 1
        self.put(offset, order)

    def put(self, offset, order):
        self.free.setdefault(order, set()).add(offset)
        heapq.heappush(self.heaps.setdefault(order, []), offset)

    def pop(self, order):
        while True:
            offset = heapq.heappop(self.heaps[order])
            if offset in self.free[order]:
                self.free[order].remove(offset)
                return offset

    def largest_free(self):
        return max((1 << order for order, offsets in self.free.items() if offsets), default=0)


@dataclass
class Strip:
    """A region at one moment: (offset, bytes asked for, bytes taken) of every live block."""

    title: str
    blocks: list
    size: int
    used: int
    largest_free: int

    @property
    def requested(self):
        return sum(asked for _, asked, _ in self.blocks)

    def text(self):
        wasted, free = self.used - self.requested, self.size - self.used
        return (f"{format_size(self.requested)} live, {format_size(wasted)} lost to rounding, "
                f"{format_size(free)} free, largest free block {format_size(self.largest_free)}")

    def columns(self):
        """Return for each column the shares of it that are live and lost."""
        width = self.size / COLUMNS
        live, lost = [0.0] * COLUMNS, [0.0] * COLUMNS
        for offset, asked, taken in self.blocks:
            spread(live, offset / width, (offset + asked) / width)
            spread(lost, (offset + asked) / width, (offset + taken) / width)
        return live, lost


def spread(columns, start, end):
    """Add the length of [start, end) to the columns that it crosses."""
    for column in range(int(start), min(int(end) + 1, COLUMNS)):
        columns[column] += max(0.0, min(end, column + 1) - max(start, column))


def events(trace):
    """Yield (row, block, size, whether it is a free) of the events that change something."""
    arrays = (trace.row, trace.block, trace.size, trace.is_free, trace.is_orphan)
    for row, block, size, is_free, orphan in zip(*(array.tolist() for array in arrays)):
        if not orphan:
            yield row, block, size, is_free


def first_failure(trace, capacity):
    """Return (buddy strip, row, size) where the buddy system fails first; None if it serves the whole trace."""
    buddy, blocks = PowerOfTwoBuddy(capacity), {}
    for row, block, size, is_free in events(trace):
        if is_free:
            buddy.release(blocks.pop(block)[0])
            continue
        offset = buddy.alloc(size)
        if offset is None:
            used = sum(1 << order for order in buddy.live.values())
            placed = [(start, asked, 1 << buddy.live[start]) for start, asked in blocks.values()]
            return Strip("Power-of-two buddy", placed, capacity, used, buddy.largest_free()), row, size
        blocks[block] = offset, size
    return None


def pool_until(trace, capacity, last_row):
    """Return the pool's strip just before the event at `last_row`, having served that event too."""
    with sim.Device(capacity + (64 << 20)) as device, Pool(capacity, device=device) as pool:
        blocks = {}
        for row, block, size, is_free in events(trace):
            if row == last_row:
                break
            if is_free:
                pool.free(blocks.pop(block))
            else:
                blocks[block] = pool.alloc(size)
        base, = device.live
        stats = pool.stats()
        placed = [(ptr - base, pool.size_of(ptr), pool.size_of(ptr)) for ptr in blocks.values() if ptr]
        pool.alloc(size)
        return Strip("cuda_pool", placed, capacity, stats.used, stats.largest_free)


def smallest_for_buddy(trace, low, step):
    """Return the smallest capacity, to `step`, with which the buddy system serves the trace."""
    high = 2 * low
    while high - low > step:
        middle = (low + high) // 2
        low, high = (middle, high) if first_failure(trace, middle) else (low, middle)
    return high


def draw(strips, captions, capacity):
    height = TOP + PITCH + STRIP + 60
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS + 2 * LEFT} {height}" '
           'font-family="Helvetica, Arial, sans-serif" font-size="14" fill="#222">')
    yield ('<defs><pattern id="lost" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
           f'<rect width="6" height="6" fill="{WASTE}"/><path d="M0 0V6" stroke="#222" stroke-width="1.2"/>'
           '</pattern></defs>')
    yield '<rect width="100%" height="100%" fill="white"/>'
    yield from legend(capacity)
    for number, (strip, caption) in enumerate(zip(strips, captions)):
        yield from draw_strip(strip, caption, TOP + number * PITCH)
    yield "</svg>"


def legend(capacity):
    entries = ((LIVE, "live: what was asked for"), ("url(#lost)", "lost: rounding inside blocks"), ("white", "free"))
    x = LEFT
    for fill, label in entries:
        yield f'<rect x="{x}" y="14" width="16" height="16" fill="{fill}" stroke="#222" stroke-width="0.7"/>'
        yield f'<text x="{x + 23}" y="27">{label}</text>'
        x += 40 + 7 * len(label)
    yield (f'<text x="{LEFT + COLUMNS}" y="27" text-anchor="end">the region: {format_size(capacity)}, left to right'
           '</text>')


def draw_strip(strip, caption, y):
    live, lost = strip.columns()
    yield f'<text x="{LEFT}" y="{y + 16}"><tspan font-weight="bold">{strip.title}</tspan> {caption}</text>'
    y += 26
    yield f'<path fill="{LIVE}" d="{bars(live, [0.0] * COLUMNS, y)}"/>'
    yield f'<path fill="url(#lost)" d="{bars(lost, live, y)}"/>'
    yield (f'<rect x="{LEFT}" y="{y}" width="{COLUMNS}" height="{STRIP}" fill="none" stroke="#222" '
           'stroke-width="1"/>')
    yield f'<text x="{LEFT}" y="{y + STRIP + 20}">{strip.text()}</text>'


def bars(shares, below, y):
    """Return a path of one bar a column, from the bottom, on top of what is below; equal neighbours are joined."""
    path, column = [], 0
    while column < COLUMNS:
        height, base = round(shares[column] * STRIP, 1), round(below[column] * STRIP, 1)
        end = column + 1
        while end < COLUMNS and (round(shares[end] * STRIP, 1), round(below[end] * STRIP, 1)) == (height, base):
            end += 1
        if height:
            path.append(f"M{LEFT + column} {y + STRIP - base:.1f}h{end - column}v-{height}h-{end - column}z")
        column = end
    return "".join(path)


def main():
    parser = argparse.ArgumentParser(description="Draw the picture of the README.")
    parser.add_argument("trace", nargs="?", type=Path, default=TRACE, help="CSV, plain or gzip")
    parser.add_argument("--out", metavar="FILE", type=Path, default=PICTURE, help="SVG (default: the README's)")
    arguments = parser.parse_args()
    trace = Trace.read(arguments.trace)
    fitted = fit(trace, search=False, reasons=False)
    capacity = -(-fitted.min_capacity // MIN_BLOCK) * MIN_BLOCK
    failure = first_failure(trace, capacity)
    if failure is None:
        raise SystemExit("the buddy system serves this trace with as little: nothing to show")
    buddy, row, size = failure
    pool = pool_until(trace, capacity, row)
    captions = (f"fails to allocate {format_size(size)}", "serves it, and the rest of the trace")
    with open_atomically(arguments.out) as file:
        file.write("\n".join(draw((buddy, pool), captions, capacity)).encode() + b"\n")
    need = smallest_for_buddy(trace, capacity, fitted.resolution)
    print(f"region {format_size(capacity)}, after {row - 2} events; allocation of {format_size(size)}")
    print(f"buddy system: {buddy.text()}; needs {format_size(need)}, {need / trace.peak_live:.2f} times peak live; "
          f"with room without end it uses {format_size(peak_reserved(trace, 'buddy_power_of_two'))}")
    print(f"pool: {pool.text()}; needs {format_size(capacity)}, {capacity / trace.peak_live:.2f} times peak live")


if __name__ == "__main__":
    main()
