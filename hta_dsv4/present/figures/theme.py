"""How every figure looks: light and dark, fonts, number formats, and how names from traces are made safe.

Plotly reads a small HTML dialect in all text, so a kernel name goes through :func:`plain` before it is shown.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

import plotly.graph_objects as go

from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present import colours
from hta_dsv4.present.text import printable, shorten

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
NAME_WIDTH = 60
"""Characters of a kernel name in a hover; the middle of longer ones is cut."""
THEMES = ("light", "dark")
_PAGE = {"light": ("#ffffff", "#1f2328", "#d9dde3"), "dark": ("#14171c", "#e6e9ee", "#343a43")}


def template(theme: str = "light") -> go.layout.Template:
    """The layout defaults of a theme.

    Args:
        theme: ``light`` or ``dark``.

    Returns:
        A Plotly template.

    Raises:
        HtaDsv4Error: no such theme.
    """
    if theme not in THEMES:
        raise HtaDsv4Error(f"theme {theme!r}: choose from {', '.join(THEMES)}")
    page, ink, grid = _PAGE[theme]
    scale = colours.SEQUENTIAL if theme == "light" else colours.SEQUENTIAL_DARK
    axis = {
        "gridcolor": grid, "linecolor": grid, "zerolinecolor": grid, "automargin": True, "ticks": "",
        "title": {"font": {"size": 12}}, "tickfont": {"size": 11},
    }  # fmt: skip
    return go.layout.Template(
        layout={
            "font": {"family": FONT, "size": 12, "color": ink},
            "paper_bgcolor": page, "plot_bgcolor": page,
            "title": {"font": {"size": 15}, "x": 0.01, "xanchor": "left"},
            "xaxis": axis, "yaxis": axis,
            "hoverlabel": {"align": "left", "font": {"family": FONT, "size": 12}},
            "coloraxis": {"colorscale": [list(s) for s in scale], "showscale": False},
            "legend": {
                "orientation": "h", "yref": "container", "yanchor": "bottom", "y": 0, "x": 0, "font": {"size": 11},
                "traceorder": "normal",
            },
            "margin": {"l": 8, "r": 16, "t": 48, "b": 8},
        }
    )  # fmt: skip


def figure(title: str, height: int, theme: str, **layout: object) -> go.Figure:
    """An empty figure in a theme.

    Args:
        title: one line above; made safe here.
        height: pixels.
        theme: ``light`` or ``dark``.
        layout: more of Plotly's layout.

    Returns:
        The figure.
    """
    return go.Figure(
        layout={"template": template(theme), "title": {"text": plain(title)}, "height": height, **layout}
    )


def plain(text: str) -> str:
    """Text that Plotly shows as written: its markup escaped, control characters made visible."""
    return html.escape(printable(text), quote=False)


def name(text: str, width: int = NAME_WIDTH) -> str:
    """A kernel's name for a label or hover: cut in the middle, then made safe."""
    return plain(shorten(text, width))


def hover(title: str, *lines: str) -> str:
    """The text of one hover box: a bold first line, then the others; already safe text."""
    return "<br>".join((f"<b>{title}</b>", *lines))


def ms(ns: float) -> str:
    """Nanoseconds as milliseconds, three significant digits for labels: ``374``, ``1.93``, ``0.041``."""
    value = ns / 1e6
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"


def rows_height(rows: int, *, each: int = 44, around: int = 150) -> int:
    """Height of a figure with horizontal bars, pixels."""
    return around + each * max(rows, 1)


def present_order(wanted: Sequence[str]) -> list[str]:
    """Buckets in the order of the tables, those of a user's own rules after them and ``unknown`` last."""
    known = [b for b in colours.BUCKET_COLOURS if b in wanted and b != "unknown"]
    own = sorted({b for b in wanted if b not in colours.BUCKET_COLOURS})
    return [*known, *own, *(["unknown"] if "unknown" in wanted else [])]
