"""Colours and textures that stay apart for colour-blind readers and in print.

The colours are those of Okabe and Ito, "Color Universal Design" (2008). What is not live has a texture as well, and
streams have one wherever print in black and white would make two colours the same, so that nothing depends on hue.
"""

from typing import NamedTuple

__all__ = ["AGES", "MODES", "PIECES", "STREAMS", "TEXTURES", "TIERS", "UNKNOWN", "Paint", "categories"]

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (
    "#000000", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7")
WHITE, PALE, GREY, INK = "#ffffff", "#e8e8e8", "#9a9a9a", "#1a1a1a"

# Paths on a tile of eight by eight.
TEXTURES = {
    "rising": "M-1 9L9-1M-1 1L1-1M7 9L9 7", "falling": "M-1-1L9 9M-1 7L1 9M7-1L9 1",
    "upright": "M2.5 0V8M6.5 0V8", "level": "M0 2.5H8M0 6.5H8", "pluses": "M2 4.5H7M4.5 2V7",
    "grid": "M0 4.5H8M4.5 0V8", "crossed": "M0 0L8 8M8 0L0 8", "dots": "M2 2.5H4M6 6.5H8",
}

MODES = ("tier", "state", "stream", "age")
STREAMS_MOST = 14               # further ones share one paint


class Paint(NamedTuple):
    """How one category is drawn: a colour, and a texture on it in another."""

    label: str
    colour: str
    texture: str = "plain"
    ink: str = INK


TIERS = (Paint("slab", GREEN), Paint("mid", SKY), Paint("buddy", BLUE))
LIVE = Paint("live", BLUE)
MOVABLE = Paint("live and movable", SKY, "grid", BLUE)
# Steps of viridis, whose lightness falls evenly (Smith and van der Walt, SciPy 2015).
AGES = (
    Paint("at most 10 events old", "#fde725"), Paint("to 100", "#7ad151"), Paint("to 1,000", "#22a884"),
    Paint("to 10,000", "#2a788e"), Paint("to 100,000", "#414487"), Paint("older", "#440154"))
UNKNOWN = Paint("not known", GREY, "crossed")
# What is not the requested part of a live block, in every mode.
PIECES = {
    "rounding": Paint("lost to rounding", ORANGE, "rising"),
    "pending": Paint("pending", YELLOW, "falling", "#6b6400"),
    "ready": Paint("ready slabs", PURPLE, "grid", WHITE),
    "free": Paint("free", WHITE),
    "fragment": Paint("free, in pieces that are too small", WHITE, "dots", VERMILION),
    "unmapped": Paint("addresses without memory", PALE, "crossed", GREY),
    "busy": Paint("being taken or given back", BLACK),
}
# Blue, orange, green and yellow differ in lightness, and so do vermilion, purple and sky blue.
STREAMS = tuple(Paint("", hue, bold if hue in (BLUE, ORANGE, GREEN, YELLOW) else fine)
                for bold, fine in (("plain", "level"), ("upright", "pluses"))
                for hue in (BLUE, ORANGE, GREEN, SKY, VERMILION, PURPLE, YELLOW))
OTHERS = Paint("other streams", GREY, "upright")


def categories(mode, streams):
    """Return the paints of live blocks in a mode; `streams` are the names of the streams."""
    if mode == "tier":
        return TIERS
    if mode == "age":
        return (*AGES, UNKNOWN)
    if mode == "state":
        return LIVE, MOVABLE
    named = tuple(paint._replace(label=name) for paint, name in zip(STREAMS, streams))
    return (*named, OTHERS, UNKNOWN._replace(label="no stream's"))
