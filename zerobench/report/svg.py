"""SVG: a matplotlib figure as markup that can stand in a page: deterministic, in the page's colours, with a text for
those who do not see it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

#: Drawn in this colour is what takes the page's own, on light and dark.
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
    """Within it, figures are drawn and written in the report's style; the caller's own stays as it was."""
    with mpl.rc_context(_STYLE):
        yield


def markup(figure: Figure, name: str, title: str, description: str) -> str:
    """The figure as an ``svg`` element whose ids begin with ``name``, so that several can stand in one page."""
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
    """The attributes without width and height: the page's style sizes the drawing, and its viewBox gives the shape."""
    return re.sub(r'\b(?:width|height)="[^"]*"\s*', "", attributes)
