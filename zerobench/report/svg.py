"""SVG: a matplotlib figure as markup for a page: deterministic, in the page's colours, with a text for screen
readers."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

#: Lines of this colour take the page's own colour, in light and dark mode.
INK = "#010203"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name may hold dollar signs
    "svg.hashsalt": "zerobench",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.0,
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
}


@contextmanager
def style() -> Iterator[None]:
    """Draw and write figures in the report's style within the block; the caller's style is restored after it."""
    with mpl.rc_context(_STYLE):
        yield


def markup(figure: Figure, name: str, title: str, description: str) -> str:
    """The figure as an ``svg`` element; its ids begin with ``name``, so that one page can hold several."""
    written = io.StringIO()
    figure.savefig(written, format="svg", transparent=True)
    text = written.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text).replace(INK, "currentColor")
    labels = f'role="img" aria-labelledby="{name}-title {name}-description"'
    texts = (
        f'<title id="{name}-title">{escape(title)}</title>\n<desc id="{name}-description">{escape(description)}</desc>'
    )
    return re.sub(
        r"<svg ([^>]*)>", lambda found: f"<svg {labels} {_unsized(found[1])}>\n{texts}", text, count=1
    ).strip()


def _unsized(attributes: str) -> str:
    """The attributes without width and height: the page's style gives the size, the viewBox gives the shape."""
    return re.sub(r'\b(?:width|height)="[^"]*"\s*', "", attributes)
