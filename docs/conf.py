"""Sphinx configuration: ``sphinx-build -W -n docs docs/_build/html``, against the installed package."""

import inspect
from importlib.metadata import version as _version

project = "cuda_pool"
author = "The cuda_pool developers"
release = _version("cuda-pool")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "internals/sweep.md"]
nitpicky = True

html_theme = "furo"
html_title = "cuda_pool"
html_copy_source = False
html_show_copyright = False

myst_heading_anchors = 3

default_role = "py:obj"                     # `name` in a docstring is a link where there is such a name
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_preprocess_types = True
napoleon_type_aliases = {"Trace": "cuda_pool.trace.Trace", "ReplayResult": "cuda_pool.replay.ReplayResult",
                         "FitResult": "cuda_pool.replay.FitResult", "Device": "cuda_pool.sim.Device",
                         "TierStats": "cuda_pool.TierStats", "Fit": "cuda_pool.replay.Fit",
                         "Row": "cuda_pool.compare.Row", "Snapshot": "cuda_pool.readers.Snapshot",
                         "Segment": "cuda_pool.torch_format.Segment", "Block": "cuda_pool.torch_format.Block",
                         "Entry": "cuda_pool.torch_format.Entry"}
autodoc_default_options = {"members": True, "member-order": "bysource"}
autosummary_generate = False

# What docstrings name as a type and these pages do not describe; and, in single backquotes, a parameter.
nitpick_ignore_regex = [
    ("py:class", r"callable|iterable|sequence|sizes|object with __cuda_stream__|numpy\.ndarray|os\.PathLike"
                 r"|\(?(int|str)\)?"),
    ("py:obj", "[a-z_]+|False|GRID"),
]


def plain_property(app, what, name, thing, options, lines):
    """Put back what napoleon reads as a type: the text before a colon in the summary of a property."""
    text = inspect.getdoc(thing) or ""
    if what in ("property", "attribute") and "---" not in text:
        lines[:] = text.splitlines()


def setup(app):
    app.connect("autodoc-process-docstring", plain_property, priority=600)
