"""Draw the figures of the documentation as SVG, most of them from the structures that they show.

    python docs/figures.py [--out FOLDER]

The default folder is docs/images. The same build gives the same files.
"""

import argparse
import re
from concurrent.futures import ThreadPoolExecutor
from html import escape
from pathlib import Path

import cuda_pool as cp
from cuda_pool import _driver, _testing, settings, sim
from cuda_pool._atomic import open_atomically
from cuda_pool.sizes import format_size

DOCS = Path(__file__).resolve().parent
KIB, MIB = 1 << 10, 1 << 20
WIDTH = 760
MARGIN = 20

INK, FAINT = "#1a1a1a", "#767676"
WHITE = "#ffffff"
# Blue, orange and sky blue stay apart for the colour-blind, and differ in lightness for print; every area has a label
# or a pattern as well.
BLUE, ORANGE, SKY, GREY = "#0072b2", "#e69f00", "#8ecaf0", "#e8e8e8"
LABEL_ON = {BLUE: WHITE}            # any other fill takes ink
TIER_FILL = {"slab": ORANGE, "mid": SKY, "buddy": BLUE}

PATTERNS = f"""<defs>
<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
<path d="M0 0L8 4L0 8z" fill="{INK}"/></marker>
<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<rect width="6" height="6" fill="{WHITE}"/><path d="M0 0V6" stroke="{INK}" stroke-width="1.4"/></pattern>
<pattern id="slots" width="5" height="5" patternUnits="userSpaceOnUse">
<rect width="5" height="5" fill="{ORANGE}"/><path d="M1 0V5" stroke="{INK}"/></pattern>
</defs>"""


class Picture:
    """An SVG image of fixed width on a white ground, which print and a dark page leave as it is."""

    def __init__(self, title, height, width=WIDTH):
        self.title = title
        self.size = width, height
        self.parts = []

    def box(self, x, y, width, height, fill=WHITE, label="", *, dashed=False, size=13):
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" '
                          f'stroke="{INK}"{dash}/>')
        lines = label.split("\n") if label else []
        for number, line in enumerate(lines):
            middle = y + height / 2 + (number - (len(lines) - 1) / 2) * (size + 4) + size * 0.35
            self.text(x + width / 2, middle, line, anchor="middle", fill=LABEL_ON.get(fill, INK), size=size)

    def text(self, x, y, text, *, anchor="start", fill=INK, size=13, bold=False, mono=False):
        weight = ' font-weight="bold"' if bold else ""
        family = ' font-family="DejaVu Sans Mono, Consolas, monospace"' if mono else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" '
                          f'fill="{fill}"{weight}{family}>{escape(text)}</text>')

    def line(self, *points, arrow=False, both=False, dashed=False, colour=INK):
        path = "L".join(f"{x:g} {y:g}" for x, y in points)
        marks = (' marker-end="url(#tip)"' if arrow or both else "") + (' marker-start="url(#tip)"' if both else "")
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.2"{dash}{marks}/>')

    def dot(self, x, y, radius, fill):
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{fill}" stroke="{INK}"/>')

    def legend(self, y, entries, x=MARGIN):
        for fill, label in entries:
            self.box(x, y, 14, 14, fill)
            self.text(x + 20, y + 11.5, label, size=12)
            x += 44 + 6.4 * len(label)

    def save(self, path):
        width, height = self.size
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
                f'font-family="Helvetica, Arial, sans-serif">\n<title>{escape(self.title)}</title>\n{PATTERNS}\n'
                f'<rect width="{width}" height="{height}" rx="6" fill="{WHITE}"/>\n')
        with open_atomically(path) as file:
            file.write((head + "\n".join(self.parts) + "\n</svg>\n").encode())


# Layers and the driver table

def draw_layers():
    picture = Picture("Layers: Python over the pool, the pool over the tiers and over the driver table", 384)
    layers_above(picture)
    layers_of_offsets(picture)
    layers_of_calls(picture)
    return picture


def layers_above(picture):
    picture.box(20, 20, 720, 56, GREY, "Python: Pool, Buffer, replay, fit, cuda-pool\n"
                                       "arguments, exceptions, protocols")
    picture.line((250, 76), (250, 116), arrow=True)
    picture.text(258, 101, "nogil functions that return a status", size=12)
    picture.line((560, 116), (560, 76), arrow=True)
    picture.text(568, 101, "pool gate: status to exception", size=12)
    picture.box(20, 116, 720, 56, GREY, "pool: lock, statistics, asynchronous frees\n"
                                        "the only caller of both sides below")
    picture.line((200, 172), (200, 206), arrow=True)
    picture.line((610, 172), (610, 206), arrow=True)
    picture.text(208, 194, "offsets", size=12)
    picture.text(602, 194, "never under the lock", size=12, anchor="end")


def layers_of_offsets(picture):
    picture.box(20, 206, 380, 50, WHITE, "segment: routing and address map")
    for number, (tier, fill) in enumerate(TIER_FILL.items()):
        picture.line((80 + 130 * number, 256), (80 + 130 * number, 290), arrow=True)
        picture.box(20 + 130 * number, 290, 120, 50, fill, tier)
    picture.text(210, 366, "no CUDA, no Python, no device memory touched", anchor="middle", size=12)


def layers_of_calls(picture):
    picture.box(440, 206, 300, 50, WHITE, "driver table: CUDA's own signatures")
    picture.line((510, 290), (510, 256), arrow=True)
    picture.line((670, 290), (670, 256), arrow=True)
    picture.box(440, 290, 140, 50, WHITE, "cuda: filled from\ncuda-python")
    picture.box(600, 290, 140, 50, WHITE, "sim: filled from\nthe simulator")
    picture.text(590, 366, "nothing above can tell which", anchor="middle", size=12)


def draw_driver():
    shown = ("cudaGetDevice", "cudaMalloc", "cudaFree", "cudaMemGetInfo", "cudaStreamSynchronize")
    with cp.sim.Device("1MiB") as device:
        assert all(_driver.call_address(device, name) for name in shown)
    picture = Picture("The driver table and its two fillings", 90 + 40 * len(shown))
    picture.text(20, 30, "__pyx_capi__ of cyruntime, cydriver", bold=True)
    picture.text(380, 30, "driver_t", bold=True, anchor="middle")
    picture.text(740, 30, "_sim_calls", bold=True, anchor="end")
    for number, name in enumerate(shown):
        y = 46 + 40 * number
        picture.box(20, y, 200, 28, WHITE, "capsule", size=12)
        picture.line((220, y + 14), (280, y + 14), arrow=True)
        picture.box(280, y, 200, 28, GREY, name, size=12)
        picture.line((540, y + 14), (480, y + 14), arrow=True)
        picture.box(540, y, 200, 28, WHITE, "sim_" + re.sub("([A-Z])", r"_\1", name[4:]).lower().strip("_"), size=12)
    y = 46 + 40 * len(shown)
    picture.text(380, y + 14, f"… {len(_driver.CALLS)} calls in all", anchor="middle", size=12)
    picture.text(20, y + 14, "its name is the C signature", size=12)
    picture.text(740, y + 14, "locked, logged, failed on demand", anchor="end", size=12)
    return picture


# Segment

def draw_segment():
    region, size_class = 16 * MIB, 64 * KIB
    requests = (3 * MIB // 2, size_class, MIB, 2 * MIB + 100 * KIB, 900 * KIB, 300 * KIB, 600 * KIB)
    with cp.sim.Device("64MiB") as device, cp.Pool(region, device=device, mid_max=MIB, slab_max=size_class) as pool:
        start, = device.live
        placed = []
        for nbytes in requests:
            before = pool.stats()
            placed.append((pool.alloc(nbytes) - start, nbytes, tier_that_grew(before, pool.stats())))
        pool.free(start + placed[5][0])
        del placed[5]
        step = pool.settings.growth_step
    lowest = min(offset for offset, _, tier in placed if tier != "buddy")
    return segment_picture(region, sorted(placed), lowest // step * step)


def tier_that_grew(before, after):
    """Return the name of the tier that an allocation went to."""
    return next(tier for tier in TIER_FILL if getattr(after, tier).blocks > getattr(before, tier).blocks)


def segment_picture(region, placed, boundary):
    picture = Picture("A region of 16 MiB, its tiers and its address map", 250)
    scale = (WIDTH - 2 * MARGIN) / region
    picture.legend(16, ((BLUE, "buddy run"), (SKY, "mid block"), ("url(#slots)", "slab"), (WHITE, "free")))
    picture.box(MARGIN, 70, region * scale, 56)
    segment_blocks(picture, placed, scale)
    picture.box(MARGIN, 178, region * scale, 18, "none")
    segment_captions(picture, region, MARGIN + boundary * scale)
    return picture


def segment_blocks(picture, placed, scale):
    for offset, nbytes, tier in placed:
        length = 8 * nbytes if tier == "slab" else nbytes
        x, width = MARGIN + offset * scale, length * scale
        if tier == "slab":
            picture.box(x, 70, width, 56, "url(#slots)")
            picture.box(x, 178, width, 18, "url(#slots)")
        else:
            picture.box(x, 70, width, 56, TIER_FILL[tier], size_label(nbytes) if width > 50 else "", size=12)
            picture.line((x, 178), (x, 196))
        picture.line((x, 128), (x, 176), dashed=True, colour=FAINT)


def segment_captions(picture, region, x):
    picture.line((x, 56), (x, 140), dashed=True)
    picture.text(x - 6, 62, "buddy tier grows up", anchor="end", size=12)
    picture.text(x + 6, 62, "mid tier grows down", size=12)
    picture.text(MARGIN, 216, "address map: a tag where a live block starts, and in each granule of a slab", size=12)
    picture.text(MARGIN, 236, "offset 0", size=12, fill=FAINT)
    picture.text(WIDTH - MARGIN, 236, format_size(region), anchor="end", size=12, fill=FAINT)


def size_label(nbytes):
    return f"{nbytes / MIB:.2f} MiB"


# Buddy

def draw_buddy():
    buddy = _testing.Buddy(22)
    rows = [("a region of 22 units: the largest aligned blocks", {}, buddy.free_blocks())]
    eleven = buddy.alloc(11)
    rows.append(("11 units: the tail of a block of 16 goes back", {eleven: 11}, buddy.free_blocks()))
    three = buddy.alloc(3)
    rows.append(("3 units, from the smallest block that holds them", {eleven: 11, three: 3}, buddy.free_blocks()))
    buddy.free(eleven, 11)
    rows.append(("the 11 are freed piece by piece, and merge", {three: 3}, buddy.free_blocks()))
    buddy.check()
    picture = Picture("A buddy system of 22 units in four states", 44 + 92 * len(rows))
    picture.legend(16, ((BLUE, "live run"), (WHITE, "free block, with its order")))
    for number, (caption, live, free) in enumerate(rows):
        buddy_row(picture, 50 + 92 * number, caption, live, free)
    return picture


def buddy_row(picture, y, caption, live, free):
    unit = (WIDTH - 2 * MARGIN) / 22
    picture.text(MARGIN, y + 14, caption)
    orders = sum(1 << order for order in {order for _, order in free})
    picture.text(WIDTH - MARGIN, y + 14, f"nonempty = {orders:#07b}", anchor="end", size=12, mono=True)
    for block, units in live.items():
        picture.box(MARGIN + block * unit, y + 22, units * unit, 34, BLUE, f"{units} units", size=12)
    for block, order in free:
        picture.box(MARGIN + block * unit, y + 22, (1 << order) * unit, 34, WHITE, str(order), size=12)
    for at in range(23):
        length = 6 if at % 2 == 0 else 3
        picture.line((MARGIN + at * unit, y + 56), (MARGIN + at * unit, y + 56 + length), colour=FAINT)


# Mid

MID_UNITS = 8192
MID_ALLOCATIONS = (144, 1152, 48, 1163, 64, 320, 80, 1177, 32, 1170, 96, 1182, 48, 320, 112)
MID_STEPS = 32


def draw_mid():
    mid = _testing.Mid(0, MID_UNITS)
    made = []
    for size in MID_ALLOCATIONS:
        mid.reserve(2)
        made.append(mid.take(mid.find(size), size))
    for index, size in zip(made, MID_ALLOCATIONS):
        if size >= 320:
            mid.free(index)
    mid.check()
    blocks = {index: mid.block(index) for index in mid.blocks()}
    picture = Picture("Blocks of the mid tier, the bitmap of bins, and the trie of one bin", 384)
    mid_strip(picture, blocks)
    mid_bins(picture, mid)
    fullest = max(mid.tries(), key=lambda bin: mid.tries()[bin])
    freed = [blocks[index][1::-1] for index in made if blocks[index][2] == "free"]
    places = trie_places([key for key in freed if bin_of(key[0]) == fullest], fullest[0])
    assert mid.tries()[fullest] == (len(places), max(map(len, places)) + 1)
    mid_trie(picture, fullest, places)
    return picture


def bin_of(size):
    row = size.bit_length() - 1
    return row, (size * MID_STEPS >> row) % MID_STEPS


def mid_strip(picture, blocks):
    scale = (WIDTH - 2 * MARGIN) / MID_UNITS
    picture.legend(16, ((SKY, "used block"), (WHITE, "free block, with its size in units of 256 bytes")))
    for offset, size, state in blocks.values():
        label = str(size) if state == "free" and size * scale > 20 else ""
        picture.box(MARGIN + offset * scale, 44, size * scale, 36, WHITE if state == "free" else SKY, label, size=12)
    picture.text(MARGIN, 96, "blocks tile [start, end); no two free ones are neighbours", size=12)


def mid_bins(picture, mid):
    picture.text(MARGIN, 132, "bins: rows 7 to 12 of 32", bold=True)
    picture.text(MARGIN, 150, "a bin holds the sizes that agree in", size=12)
    picture.text(MARGIN, 166, "the highest bit (row) and the next five (column)", size=12)
    top, width, height = 190, 7.5, 26
    for row in range(7, 13):
        y = top + (row - 7) * height
        picture.text(MARGIN, y + 17, f"{1 << row} to {(2 << row) - 1}", size=12)
        for column in range(MID_STEPS):
            fill = SKY if (row, column) in mid.tries() else WHITE
            picture.box(MARGIN + 90 + column * width, y, width, height, fill)
    picture.text(MARGIN + 90, top + 6 * height + 18, "shaded: a block is there, its bit is set", size=12)


def trie_places(keys, row):
    """Return where keys of one bin stand that were inserted in this order: {bits of the way down: key}."""
    places = {}
    for size, offset in keys:
        bits = f"{size:032b}{offset:032b}"[32 - row + min(row, 5):]         # behind those that the bin shares
        depth = next(depth for depth in range(len(bits)) if bits[:depth] not in places)
        places[bits[:depth]] = size, offset
    return places


def mid_trie(picture, bin, places):
    row, column = bin
    low, high = ((MID_STEPS + column + at << row) // MID_STEPS - at for at in range(2))
    left, right, top = 400, WIDTH - MARGIN, 190
    picture.text(left, 132, f"trie of the bin for {low} to {high} units", bold=True)
    picture.text(left, 150, "a node is a free block: size @ offset; a link follows the", size=12)
    picture.text(left, 166, "next bit of the key (size, offset), 0 left and 1 right", size=12)
    spots = {}
    for prefix in sorted(places, key=len):
        middle = sum((1 if bit == "1" else -1) / 2 ** (2 + depth) for depth, bit in enumerate(prefix)) + 0.5
        spots[prefix] = left + middle * (right - left), top + 24 + 58 * len(prefix)
    for prefix, (x, y) in spots.items():
        if prefix:
            above = spots[prefix[:-1]]
            picture.line((above[0], above[1] + 15), (x, y - 15), arrow=True)
            beside = 7 if prefix[-1] == "1" else -14
            picture.text((above[0] + x) / 2 + beside, (above[1] + y) / 2, prefix[-1], size=12)
        size, offset = places[prefix]
        picture.box(x - 40, y - 15, 80, 30, WHITE, f"{size} @ {offset}", size=11)


# Slab

def draw_slab():
    size, wanted = 1280, 11
    slabs = _testing.Slabs([size])
    index = slabs.make(0, 0, wanted * size)
    slots = [slabs.take(index, 1200) // size for _ in range(8)]
    returned = [slots[2], slots[5], slots[1]]
    for slot in returned:
        slabs.give_back(index, slot)
    slabs.check()
    state = slabs.slab(index)
    live = [slabs.is_live(index, slot) for slot in range(state["slots"])]
    chain = [slabs.take(index, 1200) // size for _ in returned]
    assert chain == returned[::-1]
    return slab_picture(state, live, chain, size)


def slab_picture(state, live, chain, size):
    picture = Picture("A slab of eleven slots, its live bits and its chain of returned slots", 250)
    width = (WIDTH - 2 * MARGIN) / state["slots"]
    picture.legend(16, ((ORANGE, "used slot"), (WHITE, "returned slot"), ("url(#hatch)", "never handed out")))
    for slot, is_live in enumerate(live):
        x = MARGIN + slot * width
        fill = ORANGE if is_live else WHITE if slot < state["fresh"] else "url(#hatch)"
        picture.box(x, 46, width, 44, fill, str(slot) if slot < state["fresh"] else "")
        picture.box(x, 112, width, 24, GREY if is_live else WHITE, str(int(is_live)), size=12)
    picture.text(MARGIN, 152, "live: one bit per slot", size=12)
    x = MARGIN + state["fresh"] * width
    picture.line((x, 174), (x, 140), arrow=True)
    picture.text(x + 6, 172, f"fresh = {state['fresh']}", size=12)
    slab_chain(picture, chain)
    fresh = state["slots"] - state["fresh"]
    picture.text(MARGIN, 236, f"{state['used']} used + {len(chain)} on the chain + {fresh} fresh == "
                              f"{state['slots']} slots of {size} bytes", size=12)
    return picture


def slab_chain(picture, chain):
    picture.text(MARGIN, 204, "free", bold=True)
    for number, slot in enumerate(chain):
        picture.line((MARGIN + 40 + number * 100, 200), (MARGIN + 78 + number * 100, 200), arrow=True)
        picture.box(MARGIN + 80 + number * 100, 186, 60, 28, WHITE, f"slot {slot}", size=12)
    x = MARGIN + 40 + len(chain) * 100
    picture.line((x, 200), (x + 38, 200), arrow=True)
    picture.text(x + 44, 204, "end: the last one returned is the first one reused", size=12)


# Pool

def draw_pool():
    picture = Picture("What holds the lock and what holds the GIL during an allocation", 330)
    picture.legend(16, ((SKY, "lock held"), (GREY, "only the GIL held"), (WHITE, "neither")))
    picture.text(20, 62, "Pool.alloc, the usual case", bold=True)
    flow(picture, 74, (("arguments", GREY), ("pool_try_alloc_as", SKY), ("address", GREY)))
    picture.text(20, 140, "on return the lock is free again; the GIL was never released", size=12)
    picture.text(20, 182, "Pool.alloc, in a shortage while another stream's frees are pending", bold=True)
    flow(picture, 194, (("arguments", GREY), ("pool_try_alloc_as:\nWOULD_WAIT", SKY), ("release\nthe GIL", GREY),
                        ("slow: events,\nwaits", WHITE), ("alloc_locked", SKY), ("address", GREY)))
    picture.text(20, 264, "the driver is called between two sections under the lock, never inside one", size=12)
    picture.text(20, 302, "pool_alloc from C or Cython takes the same path without the GIL; both take the lock at most "
                          "for the bookkeeping", size=12)
    return picture


def flow(picture, y, steps):
    width, gap = 100, 22
    for number, (label, fill) in enumerate(steps):
        x = MARGIN + number * (width + gap)
        picture.box(x, y, width, 46, fill, label, size=12)
        if number:
            picture.line((x - gap, y + 23), (x, y + 23), arrow=True)


# Simulator

def draw_simulator():
    picture = Picture("One call of the simulated device, and the memory behind it", 300)
    picture.text(20, 34, "a call", bold=True)
    flow(picture, 46, (("take the\nlock", WHITE), ("write it\ninto the log", SKY), ("delay it,\nif asked", WHITE),
                       ("fail it,\nif asked", ORANGE), ("carry it out", SKY), ("give the\nlock back", WHITE)))
    picture.text(20, 122, "a delay is waited for without the lock; a failure leaves the device as it was", size=12)
    picture.text(20, 164, "an allocation", bold=True)
    x = MARGIN
    for width, fill, label in ((90, "url(#hatch)", ""), (500, SKY, "host memory, paged in where it is touched"),
                               (90, "url(#hatch)", "")):
        picture.box(x, 178, width, 44, fill, label)
        x += width
    picture.text(MARGIN, 240, "guard page", size=12)
    picture.text(MARGIN + 590, 240, "guard page", size=12)
    picture.line((MARGIN + 90, 262), (MARGIN + 590, 262), both=True)
    picture.text(MARGIN + 340, 282, "a page boundary, or base_alignment bytes past one, up to the size",
                 anchor="middle", size=12)
    return picture


# Settings: the sweep's table

def draw_settings():
    """Draw what the default and the textbook setting need on each trace, from the table of the sweep."""
    names, remarked = sweep_table()
    picture = Picture("Capacity needed over peak live, by default and with the textbook setting",
                      92 + 30 * len(names))
    left, right = 210, WIDTH - 60
    top = max(remarked["textbook"] + [1.4])

    def x_of(ratio):
        return left + (ratio - 1) / (top - 1) * (right - left)

    picture.dot(MARGIN + 7, 23, 6, BLUE)
    picture.text(MARGIN + 20, 27.5, "default", size=12)
    picture.box(MARGIN + 85, 17, 12, 12, ORANGE)
    picture.text(MARGIN + 104, 27.5, 'textbook: mid_max="1MiB"', size=12)
    for number, name in enumerate(names):
        y = 62 + 30 * number
        picture.text(left - 14, y + 4, name, anchor="end", size=12)
        settings_row(picture, y, remarked["default"][number], remarked["textbook"][number], x_of)
    settings_axis(picture, left, 62 + 30 * len(names) - 8, x_of, top)
    return picture


def sweep_table():
    """Return the names of the traces, and the ratios of the rows that carry a remark by that remark."""
    rows = [[cell.strip() for cell in line.strip("|\n ").split("|")]
            for line in (DOCS / "internals" / "sweep.md").read_text().splitlines() if line.startswith("|")]
    return rows[0][6:16], {row[-1]: [float(cell) for cell in row[6:16]]
                           for row in rows if row[-1] in ("default", "textbook")}


def settings_row(picture, y, default, textbook, x_of):
    picture.line((x_of(min(default, textbook)), y), (x_of(max(default, textbook)), y), colour=FAINT)
    picture.box(x_of(textbook) - 6, y - 6, 12, 12, ORANGE)
    picture.dot(x_of(default), y, 6, BLUE)
    picture.text(x_of(max(default, textbook)) + 12, y + 4, f"{textbook:.3f}", size=11, fill=FAINT)


def settings_axis(picture, left, bottom, x_of, top):
    picture.line((left, 46), (left, bottom))
    picture.line((left, bottom), (x_of(top), bottom))
    for half in range(2, int(2 * top) + 1):
        x = x_of(half / 2)
        picture.line((x, bottom), (x, bottom + 5))
        picture.text(x, bottom + 20, f"{half / 2:.1f}", anchor="middle", size=12)


# Streams: what each picture claims is run on a simulated device first

LANE, TICK = 120, 10            # where the lanes of a stream picture begin, and the width of a step


def stream_picture(title, lanes, arrows=(), notes=()):
    """Draw lanes of boxes (at, length, label, fill) and arrows between (lane, at) and (lane, at), in steps of time."""
    picture = Picture(title, 24 + 52 * len(lanes) + 20 * len(notes))
    for number, (name, boxes) in enumerate(lanes):
        y = 18 + 52 * number
        picture.text(MARGIN, y + 22, name, bold=True, size=12)
        picture.line((LANE - 10, y + 18), (WIDTH - MARGIN, y + 18), colour=FAINT)
        for at, length, label, fill in boxes:
            picture.box(LANE + at * TICK, y, length * TICK, 36, fill, label, size=11)
    for (lane, at), (other, later) in arrows:
        down = other > lane
        picture.line((LANE + at * TICK, 18 + 52 * lane + (36 if down else 0)),
                     (LANE + later * TICK, 18 + 52 * other + (0 if down else 36)), arrow=True)
    for number, note in enumerate(notes):
        picture.text(MARGIN, 32 + 52 * len(lanes) + 20 * number, note, size=12)
    return picture


class Scene:
    """A pool of 1 MiB, or a few, on a simulated device that must see no race."""

    def __init__(self, reuse="wait", nbytes=MIB):
        self.device = cp.sim.Device("64MiB")
        self.pool = cp.Pool(nbytes, device=self.device, slab_max=0, reuse=reuse)

    def __enter__(self):
        return self

    def __exit__(self, kind, *exception):
        if kind is None:
            self.device.synchronize()
            assert self.device.races == [] and self.device.errors == []
        self.pool.close()
        self.device.close()

    def streams(self, count):
        return [self.device.stream() for _ in range(count)]

    def busy(self, stream, ptr, ticks=10, nbytes=MIB):
        stream.write(ptr, nbytes, 1, ticks=ticks)

    def waits(self, stream):
        return sum(name == "cudaStreamWaitEvent" and arguments[0] == stream.handle
                   for name, arguments, _ in self.device.log)

    def taken(self, stream, nbytes=MIB):
        """Allocate and write at once on a stream; return (address, waits that were put on it, tick)."""
        before = self.waits(stream)
        ptr = self.pool.alloc(nbytes, stream)
        self.busy(stream, ptr, 1, nbytes)
        return ptr, self.waits(stream) - before, self.device.now


def draw_stream_own():
    with Scene() as scene:
        a, = scene.streams(1)
        ptr = scene.pool.alloc(MIB, a)
        scene.busy(a, ptr)
        scene.pool.free_async(ptr, a)
        assert scene.taken(a) == (ptr, 0, 0)
    return stream_picture("A stream reuses at once what was freed on it", (
        ("host", ((0, 9, "alloc: X", GREY), (11, 12, "free_async(X, A)", GREY), (25, 9, "alloc: X", GREY))),
        ("stream A", ((10, 26, "uses X", BLUE), (36, 18, "uses X again", ORANGE)))),
        notes=("work on one stream runs in its order: no event, no wait, no driver call",))


def draw_stream_event():
    with Scene("query") as scene:
        a, b = scene.streams(2)
        ptr = scene.pool.alloc(MIB, a)
        scene.busy(a, ptr)
        scene.pool.free_async(ptr, a)
        scene.device.advance(10)
        assert scene.taken(b) == (ptr, 0, 10) and scene.device.calls["cudaEventQuery"]
    return stream_picture("Another stream gets memory whose event is over", (
        ("host", ((0, 9, "alloc: X", GREY), (11, 12, "free_async(X, A)", GREY),
                  (40, 21, "alloc on B: query, then X", GREY))),
        ("stream A", ((10, 25, "uses X", BLUE), (35, 4, "E", WHITE))),
        ("stream B", ((48, 13, "uses X", ORANGE),))),
        (((1, 37), (0, 46)),),
        ("E: an event of the pool behind the work that uses X. It is over when it is asked, so B waits for nothing.",))


def draw_stream_wait():
    with Scene() as scene:
        a, b = scene.streams(2)
        ptr = scene.pool.alloc(MIB, a)
        scene.busy(a, ptr)
        scene.pool.free_async(ptr, a)
        assert scene.taken(b) == (ptr, 1, 0)
    return stream_picture("Another stream gets memory behind an inserted wait", (
        ("host", ((0, 9, "alloc: X", GREY), (11, 12, "free_async(X, A)", GREY), (25, 15, "alloc on B: X", GREY))),
        ("stream A", ((10, 32, "uses X", BLUE), (42, 4, "E", WHITE))),
        ("stream B", ((41, 8, "wait", "url(#hatch)"), (49, 12, "uses X", ORANGE)))),
        (((1, 44), (2, 48)),),
        ("the host goes on at once; the wait for E (cudaStreamWaitEvent) is in front of whatever B does next",))


def draw_stream_uses():
    with Scene() as scene:
        a, b, c = scene.streams(3)
        ptr = scene.pool.alloc(MIB, a)
        scene.busy(a, ptr, 5)
        b.wait(a)
        b.read(ptr, MIB, ticks=20)
        scene.pool.record_use(ptr, b)
        scene.pool.free_async(ptr, a)
        assert scene.taken(c) == (ptr, 2, 0)
    return stream_picture("A block with a recorded use waits for both streams", (
        ("host", ((0, 9, "alloc: X", GREY), (10, 15, "record_use(X, B)", GREY), (26, 13, "free_async(X, A)", GREY),
                  (40, 13, "alloc on C: X", GREY))),
        ("stream A", ((6, 14, "writes X", BLUE), (20, 4, "E1", WHITE))),
        ("stream B", ((20, 24, "reads X", SKY), (44, 4, "E2", WHITE))),
        ("stream C", ((44, 8, "waits", "url(#hatch)"), (52, 9, "uses X", ORANGE)))),
        (((1, 22), (3, 45)), ((2, 46), (3, 50))),
        ("A alone may not have X back at once either: it gets X behind B's event, or other memory first",))


def draw_stream_merge():
    with Scene(nbytes=3 * MIB) as scene:
        a, b, c = scene.streams(3)
        first, second, third = sorted(scene.pool.alloc(MIB, stream) for stream in (a, a, a))
        scene.busy(a, first)
        scene.busy(b, third)
        scene.pool.free_async(first, a)
        scene.pool.free_async(third, b)
        scene.pool.free(second)
        assert scene.taken(c) == (second, 0, 0)
        c.synchronize()
        scene.pool.free(second)
        assert scene.taken(c, 3 * MIB)[:2] == (first, 2)
    picture = Picture("Free neighbours of several owners, and who waits for whom", 236)
    strip(picture, 20, "free, by owner", (("1 MiB: A's, behind E1", BLUE), ("1 MiB: nobody's", WHITE),
                                          ("1 MiB: B's, behind E2", SKY)))
    strip(picture, 86, "1 MiB for C", (("", WHITE), ("taken: no wait", ORANGE), ("", WHITE)))
    strip(picture, 142, "3 MiB for C", (("taken: C waits for E1 and E2", ORANGE),))
    picture.text(MARGIN, 206, "free neighbours merge where they have one owner; those of several owners are joined for "
                              "a request", size=12)
    picture.text(MARGIN, 224, "that fits no single one of them, which then waits for all of these owners", size=12)
    return picture


def strip(picture, y, name, parts):
    width = (WIDTH - MARGIN - LANE) / len(parts)
    picture.text(MARGIN, y + 22, name, bold=True, size=12)
    for number, (label, fill) in enumerate(parts):
        picture.box(LANE + number * width, y, width, 36, fill, label, size=12)


def draw_stream_unused():
    with Scene() as scene:
        a, b, c = scene.streams(3)
        ptr = scene.pool.alloc(MIB, a)
        scene.busy(a, ptr)
        scene.pool.free_async(ptr, a)
        assert scene.pool.alloc(MIB, b) == ptr and scene.waits(b) == 1
        scene.pool.free(ptr)
        assert scene.taken(c) == (ptr, 1, 0)
    return stream_picture("A block that was taken behind a wait and never used keeps its dependency", (
        ("host", ((0, 13, "free_async(X, A)", GREY), (14, 13, "alloc on B: X", GREY), (28, 9, "free(X)", GREY),
                  (38, 13, "alloc on C: X", GREY))),
        ("stream A", ((0, 44, "uses X", BLUE), (44, 4, "E", WHITE))),
        ("stream B", ((28, 21, "wait", "url(#hatch)"),)),
        ("stream C", ((40, 11, "wait", "url(#hatch)"), (51, 10, "uses X", ORANGE)))),
        (((1, 45), (2, 47)), ((1, 47), (3, 50))),
        ("free says that B's work does not use X; that A's work is done with it, nobody has said",))


def draw_stream_destroyed():
    with Scene() as scene:
        old, = scene.streams(1)
        handle = old.handle
        ptr = scene.pool.alloc(MIB, handle)
        scene.busy(old, ptr)
        scene.pool.free_async(ptr, handle)
        identity = old.id
        old.destroy()
        new, = scene.streams(1)
        assert new.handle == handle and new.id != identity
        got = scene.pool.alloc(MIB, handle)
        assert got == ptr and scene.device.now >= 10
        scene.busy(new, got, 1)
    return stream_picture("A new stream with the handle of a destroyed one", (
        ("host", ((0, 13, "free_async(X, h)", GREY), (14, 11, "destroy h", GREY), (26, 11, "create: h", GREY),
                  (38, 23, "alloc on h: the host waits", GREY))),
        ("h with id 5", ((0, 48, "uses X; its work goes on after cudaStreamDestroy", BLUE),)),
        ("h with id 9", ((53, 8, "uses X", ORANGE),))),
        (((1, 48), (0, 59)),),
        ("cudaStreamGetId says that h is another stream now. No event can be recorded on the old one, so its memory",
         "comes last, and takes a wait for the device. forget_stream before the destruction avoids all of this."))


def draw_stream_threads():
    with Scene() as scene, ThreadPoolExecutor(1) as other:
        mine = scene.device.default_stream(per_thread=True)
        ptr = scene.pool.alloc(MIB, 2)
        scene.busy(mine, ptr)
        scene.pool.free_async(ptr, 2)

        def take():
            sim.set_current_device(scene.device)
            got = scene.pool.alloc(MIB, 2)
            scene.busy(scene.device.default_stream(per_thread=True), got, 1)
            return got

        assert other.submit(take).result() == ptr
    return stream_picture("Handle 2 is another stream in each thread", (
        ("thread 1, host", ((0, 9, "alloc: X", GREY), (11, 12, "free_async(X, 2)", GREY))),
        ("its stream 2", ((8, 34, "uses X", BLUE),)),
        ("thread 2, host", ((18, 28, "alloc on 2: waits for the device", GREY),)),
        ("its stream 2", ((47, 14, "uses X", ORANGE),))),
        (((1, 42), (2, 45)),),
        ("thread 1 has X again at once; an event on its stream can be recorded only by thread 1 itself",))


def draw_stream_capture():
    with Scene() as scene:
        a, b = scene.streams(2)
        with scene.pool.capture(a) as kept:
            a.begin_capture()
            ptr = scene.pool.alloc(MIB, a)
            scene.busy(a, ptr, 5)
            scene.pool.free_async(ptr, a)
            assert scene.pool.alloc(MIB, a) == ptr
            scene.pool.free_async(ptr, a)
            graph = a.end_capture()
        for _ in range(2):
            graph.launch(a)
            try:
                raise AssertionError(scene.pool.alloc(MIB, b))
            except cp.OutOfMemoryError:
                pass
        kept.release(a)
        graph.release()
        assert scene.taken(b) == (ptr, 1, 0)
    return stream_picture("What a captured stream allocates and frees is the graph's until the release", (
        ("host", ((0, 24, "with pool.capture(A): X is allocated,\nfreed, and allocated there again", GREY),
                  (25, 8, "launch", GREY), (34, 8, "launch", GREY), (43, 9, "release(A)", GREY),
                  (53, 8, "B: X", GREY))),
        ("stream A", ((27, 13, "graph: uses X", BLUE), (41, 13, "graph: uses X", BLUE))),
        ("stream B", ((47, 8, "wait", "url(#hatch)"), (55, 7, "uses X", ORANGE)))),
        (((1, 54), (2, 54.6)),),
        ("between the launches X looks free, and is not: nobody else gets it before the graph is gone",))


FIGURES = {
    "layers": draw_layers, "driver": draw_driver, "segment": draw_segment, "buddy": draw_buddy, "mid": draw_mid,
    "slab": draw_slab, "pool": draw_pool, "simulator": draw_simulator, "settings": draw_settings,
    "stream_own": draw_stream_own, "stream_event": draw_stream_event, "stream_wait": draw_stream_wait,
    "stream_uses": draw_stream_uses, "stream_merge": draw_stream_merge, "stream_unused": draw_stream_unused,
    "stream_destroyed": draw_stream_destroyed, "stream_threads": draw_stream_threads,
    "stream_capture": draw_stream_capture,
}


def main():
    parser = argparse.ArgumentParser(description="Draw the figures of the documentation.")
    parser.add_argument("--out", type=Path, default=DOCS / "images", help="folder (default: docs/images)")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        draw().save(out / f"{name}.svg")


if __name__ == "__main__":
    main()
