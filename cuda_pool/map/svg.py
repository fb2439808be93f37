"""A picture as SVG: the memory at one moment, for documents and print.

A column of the picture stands for an equal share of the memory. Blocks that are at least a column wide are areas with
a title of their own, which browsers show at the pointer; of smaller ones the shares of each kind are stacked.
"""

import math
from html import escape

import numpy as np

from ..sizes import counted, format_size
from ..snapshot import TIERS
from . import palette
from .extents import extents_of
from .layout import NO_STREAM

__all__ = ["svg_of"]

WIDTH, LEFT, RIGHT = 1000, 92, 12
ROWS, PITCH, ROW = 12, 36, 30
FAINT = "#5f6368"
AGES = (10, 100, 1_000, 10_000, 100_000)


def svg_of(picture, by="tier"):
    """Return a Picture at its moment as the text of an SVG image, coloured by one of ``cuda_pool.map.MODES``."""
    return "\n".join(_Drawing(picture, by).lines()) + "\n"


class _Drawing:
    """The strips in rows of equal bytes, with everything that is in them."""

    def __init__(self, picture, by):
        self.picture = picture
        self.by = by
        self.live_paints = palette.categories(by, picture.streams)
        self.paints = (*self.live_paints, *palette.PIECES.values())
        self.pieces = {name: len(self.live_paints) + at for at, name in enumerate(palette.PIECES)}
        self.rows = rows_of([sum(size for _, size in strip.parts) for strip in picture.strips_now()])
        self.columns = WIDTH - LEFT - RIGHT
        self.cover = np.zeros((len(self.rows), self.columns, len(self.paints)))
        self.areas = []
        self.bytes = [0] * len(self.paints)

    def lines(self):
        for extent in extents_of(self.picture, self.picture.strips_now()):
            self.add(extent)
        legend = list(self.legend())
        top = 66 + 18 * bool(self.picture.failure)
        height = top + len(self.rows) * PITCH + 24 * -(-len(legend) // 3) + 22
        yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-size="13" fill="#1a1a1a" '
               'font-family="Helvetica, Arial, sans-serif" role="img">')
        yield f"<title>{escape(self.picture.title)}</title>"
        yield f"<defs>{''.join(self.patterns())}</defs>"
        yield f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
        yield from self.head()
        yield f'<g transform="translate({LEFT} {top})">'
        yield from self.areas
        yield from self.stacks()
        yield from self.frames()
        yield "</g>"
        for at, entry in enumerate(legend):
            yield entry.format(x=LEFT + at % 3 * 300, y=top + len(self.rows) * PITCH + 14 + at // 3 * 24)
        yield "</svg>"

    def head(self):
        figures = self.picture.figures()
        yield f'<text x="12" y="24" font-size="17" font-weight="bold">{escape(self.picture.title)}</text>'
        yield (f'<text x="12" y="45">{format_size(figures["live"])} live in {counted(figures["blocks"], "block")}, '
               f'{format_size(figures["used"])} used, {format_size(figures["reserved"])} reserved, '
               f'{format_size(figures["free"])} free, largest free block {format_size(figures["largest_free"])}; '
               f'coloured by {self.by}</text>')
        failure = self.picture.failure
        if failure:
            yield (f'<text x="12" y="64" fill="{palette.VERMILION}" font-weight="bold">Row {failure["row"]}: '
                   f'no block of {format_size(failure["requested"])}</text>')

    def add(self, extent):
        """Note down an extent: its requested part and what rounding adds, cut at the ends of rows."""
        asked = extent.requested if extent.state == "live" else extent.size
        category = self.category(extent)
        self.bytes[category] += asked
        self.bytes[self.pieces["rounding"]] += extent.size - asked
        title = self.title(extent)
        self.spread(category, extent.position, asked, title)
        self.spread(self.pieces["rounding"], extent.position + asked, extent.size - asked, title)

    def spread(self, category, start, size, title):
        for number, (low, high, per_column) in enumerate(self.rows):
            first, end = (max(start, low) - low) / per_column, (min(start + size, high) - low) / per_column
            if first >= end:
                continue
            left, right = math.ceil(first - 1e-6), min(math.floor(end + 1e-6), self.columns)
            if right > left:
                self.areas.append(self.area(number, left, right, category, title))
            self.cover_columns(number, category, first, end, left, right)

    def cover_columns(self, row, category, first, end, left, right):
        """Add the parts of [first, end) that fill no whole column to the shares of theirs."""
        if left > right:
            self.cover[row, min(right, self.columns - 1), category] += end - first
            return
        if left > first + 1e-6:
            self.cover[row, left - 1, category] += left - first
        if end > right + 1e-6 and right < self.columns:
            self.cover[row, right, category] += end - right

    def area(self, row, first, end, category, title):
        edge = ' stroke="#1a1a1a" stroke-width="0.4"' if end - first > 3 else ""
        return (f'<rect x="{first}" y="{row * PITCH}" width="{end - first}" height="{ROW}" '
                f'fill="{fill(category, self.paints[category])}"{edge}><title>{title}</title></rect>')

    def stacks(self):
        """Yield a path for each category, of bars one column wide; bars on top of each other fill a column's share."""
        base = np.zeros(self.cover.shape[:2])
        for category, paint in enumerate(self.paints):
            heights = self.cover[:, :, category]
            bars = "".join(f"M{column} {row * PITCH + ROW * (1 - base[row, column]):.1f}"
                           f"h1v-{ROW * heights[row, column]:.1f}h-1z" for row, column in np.argwhere(heights > 0.01))
            base += heights
            if bars:
                yield f'<path fill="{fill(category, paint)}" shape-rendering="crispEdges" d="{bars}"/>'

    def frames(self):
        for row, (low, high, per_column) in enumerate(self.rows):
            yield (f'<rect y="{row * PITCH}" width="{(high - low) / per_column:.2f}" height="{ROW}" fill="none" '
                   'stroke="#444"/>')
            yield (f'<text x="-8" y="{row * PITCH + ROW / 2 + 4:g}" text-anchor="end" font-size="11" fill="{FAINT}">'
                   f'+{format_size(int(low))}</text>')

    def legend(self):
        whole = sum(self.bytes)
        for category, (paint, nbytes) in enumerate(zip(self.paints, self.bytes)):
            if nbytes:
                label = escape(f"{paint.label}: {format_size(nbytes)}, {100 * nbytes / whole:.1f} %")
                label = label.replace("{", "{{").replace("}", "}}")
                yield ('<g transform="translate({x} {y})">'
                       f'<rect width="22" height="14" fill="{fill(category, paint)}" stroke="#444"/>'
                       f'<text x="30" y="12">{label}</text></g>')

    def patterns(self):
        for category, paint in enumerate(self.paints):
            if paint.texture != "plain":
                width = 2 if paint.texture == "dots" else 1.2
                yield (f'<pattern id="p{category}" width="8" height="8" patternUnits="userSpaceOnUse">'
                       f'<rect width="8" height="8" fill="{paint.colour}"/><path d="{palette.TEXTURES[paint.texture]}" '
                       f'stroke="{paint.ink}" stroke-width="{width}" fill="none"/></pattern>')

    def category(self, extent):
        if extent.state != "live":
            return self.pieces[piece_of(extent)]
        if self.by == "tier":
            return extent.tier
        if self.by == "state":
            return int(extent.movable)
        if self.by == "stream":
            named = len(self.live_paints) - 2
            return named + 1 if extent.stream == NO_STREAM else min(extent.stream, named)
        if not self.picture.born_known:
            return len(self.live_paints) - 1
        return sum(self.picture.age_of(extent.born) > age for age in AGES)

    def title(self, extent):
        where = f"at {extent.address:#x} (+{format_size(int(extent.position))})"
        if extent.state != "live":
            return escape(f"{self.paints[self.category(extent)].label}: {extent.size} bytes {where}")
        stream = "" if extent.stream == NO_STREAM else f", {self.picture.streams[extent.stream]}"
        age = f", {counted(self.picture.age_of(extent.born), 'event')} old" if self.picture.born_known else ""
        return escape(f"{extent.requested} bytes live in {extent.size}, {TIERS[extent.tier]}{stream}{age}, {where}")


def piece_of(extent):
    if extent.state == "free" and extent.fragment:
        return "fragment"
    return "rounding" if extent.state == "tail" else extent.state


def fill(category, paint):
    return paint.colour if paint.texture == "plain" else f"url(#p{category})"


def rows_of(sizes):
    """Return (first position, end, bytes of a column) for each row; every strip begins one."""
    sizes = [size for size in sizes if size]
    most, per_row = max(ROWS, len(sizes)), max(sum(sizes) / max(ROWS, len(sizes)), 1)
    while sum(-(-size // per_row) for size in sizes) > most:
        per_row *= 1.02
    rows, start = [], 0
    for size in sizes:
        count = int(-(-size // per_row))
        rows += [(start + size * at / count, start + size * (at + 1) / count, per_row / (WIDTH - LEFT - RIGHT))
                 for at in range(count)]
        start += size
    return rows
