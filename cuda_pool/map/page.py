"""A picture as one HTML page that needs nothing else: no network, no further file.

The blocks are columns of little-endian numbers in base64, each as narrow as its values allow; the script draws them on
a canvas. Whatever comes from outside is escaped, and the content security policy lets no other script run.
"""

import base64
import hashlib
import json
from html import escape
from importlib import resources

import numpy as np

from ..sizes import format_size
from ..snapshot import TIERS
from . import palette

__all__ = ["page_of"]

SCRIPTS = ("data.js", "memory.js", "drawing.js", "pointing.js", "charts.js", "controls.js")      # in this order
SAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def page_of(picture, by="tier"):
    """Return a Picture as the text of an HTML page, coloured by one of ``cuda_pool.map.MODES`` at first."""
    script = '"use strict";\n(() => {\n' + "".join(map(source, SCRIPTS)) + "})();\n"
    parts = {
        "CSP": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest(script)}'; base-uri 'none'; "
               "form-action 'none'",
        "TITLE": escape(picture.title), "LEAD": escape(picture.lead), "FAILURE": failure_text(picture),
        "STYLE": source("page.css"), "MODEL": json.dumps(model_of(picture, by)).translate(SAFE),
        "SCRIPT": script, "FOOTER": f"Made by {escape(_writer())}. Nothing in this page is loaded from elsewhere.",
    }
    first, *rest = source("page.html").split("@")       # what is put in may have the mark in it
    return first + "".join(parts.get(piece, piece) for piece in rest)


def failure_text(picture):
    """Return a paragraph on the request that was not served, or nothing."""
    if not picture.failure:
        return ""
    failure = picture.failure
    return escape_paragraph(f"Row {failure['row']}: no block of {format_size(failure['requested'])} "
                            f"({failure['requested']} bytes). {format_size(failure['free'])} are free; the largest "
                            f"free block has {format_size(failure['largest_free'])}.")


def escape_paragraph(text):
    return f'<p class="failure" role="alert">{escape(text)}</p>'


def model_of(picture, by):
    """Return what the script draws, as plain values."""
    blocks = picture.blocks
    return {
        "columns": {name: column(blocks[name]) for name in blocks},
        "rows": None if picture.rows is None else column(picture.rows[:picture.events], ascending=True),
        "strips": [{"born": strip.born, "died": strip.died, "parts": strip.parts} for strip in picture.strips],
        "streams": picture.streams, "tiers": TIERS, "textures": palette.TEXTURES, "isWhole": picture.is_whole,
        "bornKnown": picture.born_known,
        "largest": picture.largest, "page": picture.page, "events": picture.events, "moment": picture.moment,
        "now": picture.now,
        "peak": int(max((pair[1] for pair in picture.reserved), default=0)), "failure": picture.failure,
        "reserved": picture.reserved, "looks": looks_of(picture.samples), "pages": picture.pages, "mode": by,
        "modes": {mode: [paint._asdict() for paint in palette.categories(mode, picture.streams)]
                  for mode in palette.MODES},
        "pieces": {name: paint._asdict() for name, paint in palette.PIECES.items()},
    }


def looks_of(samples):
    """Encode looks at the pool's statistics, of which there may be one for each event."""
    values = np.array(samples, np.uint64).reshape(-1, 3)
    return {"moment": column(values[:, 0], ascending=True), "largest": column(values[:, 1]),
            "pending": column(values[:, 2])}


def column(values, ascending=False):
    """Encode whole numbers: ``number * scale + base``, or, ascending, the sum of such steps.

    A block's address less that of the first one, in units of the largest common divisor, needs few bits.
    """
    values = np.asarray(values).astype(np.uint64)
    if len(values) == 0:
        return {"kind": "u1", "scale": 1, "base": 0, "delta": False, "data": ""}
    base = int(values.min())
    if ascending:
        base = int(values[0])
        numbers = np.diff(values, prepend=values[:1])
    else:
        numbers = values - np.uint64(base)
    scale = int(np.gcd.reduce(numbers)) or 1
    numbers //= np.uint64(scale)
    kind = next(kind for kind, most in (("u1", 1 << 8), ("u2", 1 << 16), ("u4", 1 << 32), ("f8", 1 << 64))
                if int(numbers.max()) < most)
    data = base64.b64encode(numbers.astype(f"<{kind}").tobytes()).decode()
    return {"kind": kind, "scale": scale, "base": base, "delta": ascending, "data": data}


def source(name):
    """Return the text of one of the page's own files."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def digest(script):
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _writer():
    from cuda_pool import __version__
    return f"cuda_pool {__version__}"
