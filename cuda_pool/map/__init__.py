"""Pictures of a pool's memory: SVG, or one HTML page that needs nothing else.

``cuda-pool map`` and ``cuda-pool replay --map`` make them, and so does::

    picture = picture_of_snapshot(pool.snapshot(), "after the first epoch")
    write_map("pool.html", picture)
"""

import os

from .._atomic import open_atomically
from ..sizes import shown
from .extents import extents_of, fragmented
from .layout import Picture, Strip, picture_of_recording, picture_of_snapshot
from .page import page_of
from .palette import MODES
from .recording import Recording
from .svg import svg_of

__all__ = ["MODES", "Picture", "Recording", "Strip", "figures_of", "page_of", "picture_of_recording",
           "picture_of_snapshot", "require_map_name", "svg_of", "write_map"]

WRITERS = {".svg": svg_of, ".html": page_of}


def write_map(path, picture, by="tier"):
    """Write a picture: SVG or an HTML page, as the name of the file says.

    Parameters
    ----------
    path : str or os.PathLike
        Ends in ``.svg`` or ``.html``. An existing file is replaced only when all is written.
    picture : Picture
        What `picture_of_snapshot` or `picture_of_recording` made.
    by : str
        What the colours of live blocks stand for at first: ``"tier"``, ``"state"``, ``"stream"`` or ``"age"``.

    Raises
    ------
    ValueError
        The name ends otherwise, or `by` is none of these.
    OSError
        The file cannot be written.
    """
    writer = WRITERS[require_map_name(path)]
    if by not in MODES:
        raise ValueError(f"a map is coloured by one of {', '.join(MODES)}; got {shown(by)}")
    text = writer(picture, by)
    with open_atomically(path) as file:
        file.write(text.encode())


def require_map_name(path):
    """Return how the name of a map ends; raise ValueError if it is neither ``.svg`` nor ``.html``."""
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    if suffix not in WRITERS:
        raise ValueError(f"{shown(os.fspath(path))}: a map's name ends in .svg or .html")
    return suffix


def figures_of(picture):
    """Return the figures of a picture at its moment, as a dict: those of ``Picture.figures``, and ``fragmented``."""
    extents = extents_of(picture, picture.strips_now())
    return {**picture.figures(), "fragmented": fragmented(picture, extents)}
