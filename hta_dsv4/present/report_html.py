"""A report as one HTML file: works from disk without a network, on a phone, in the dark and on paper."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

import plotly.graph_objects as go
import plotly.io
import plotly.offline
from markupsafe import Markup

from hta_dsv4.present.captures import report_hash
from hta_dsv4.present.colours import BUCKET_COLOURS, colour
from hta_dsv4.present.figures import theme as th
from hta_dsv4.present.grid import Grid
from hta_dsv4.present.html import environment, grid_html
from hta_dsv4.present.report import Report, Section
from hta_dsv4.present.text import printable

_KEYED = 3
"""Differently coloured buckets from which a section shows a key; its figures then carry none of their own."""


@dataclass(frozen=True, slots=True)
class _Plot:
    id: str
    height: int
    wide: bool


@dataclass(frozen=True, slots=True)
class _Part:
    title: str
    text: tuple[str, ...]
    key: list[tuple[str, str]]
    figures: list[_Plot]
    grids: list[Markup]
    folded: list[tuple[str, list[Markup]]]
    drawers: list[tuple[str, list[_Plot]]]


def own_version() -> str:
    """The installed version, or ``unknown`` in a checkout that was never installed."""
    try:
        return version("hta-dsv4")
    except PackageNotFoundError:
        return "unknown"


def report_html(report: Report) -> str:
    """A report as one self-contained HTML document.

    Args:
        report: what to write.

    Returns:
        HTML with Plotly's script, styles and data inside; it requests nothing, and its content security policy forbids
        it to. The same report gives the same text.
    """
    below = f"GPU time per decode step, exact to the nanosecond; hta-dsv4 {own_version()}"
    if report.captures:
        below += f", captures {report_hash(report.captures)[:12]}"
    return page_html(report.title, below, report.sections, report.summary, report.caveats, report.lead)


def page_html(
    title: str,
    below: str,
    sections: Sequence[Section],
    summary: Sequence[str] = (),
    caveats: Sequence[str] = (),
    lead: Sequence[Grid] = (),
) -> str:
    """Sections as one self-contained HTML document.

    Args:
        title: its first line.
        below: small print under the title.
        sections: its parts, in reading order.
        summary: what to know first, one sentence each.
        caveats: what makes its figures weaker than they look.
        lead: tables before everything else.

    Returns:
        HTML as :func:`report_html` describes it.
    """
    drawn: list[dict[str, Any]] = []
    parts = [_part(s, drawn) for s in sections]
    templates = {name: _plain(th.template(name)) for name in th.THEMES}
    env = environment()
    css, script = (_source(f"report.{kind}") for kind in ("css", "js"))
    return env.get_template("report.html.j2").render(
        title=printable(title),
        below=printable(below),
        version=own_version(),
        lead=[_table(g) for g in lead],
        summary=[printable(s) for s in summary],
        sections=parts,
        caveats=[printable(s) for s in caveats],
        css=Markup(css),
        script=Markup(script),
        plotly=Markup(plotly.offline.get_plotlyjs().replace("</script", "<\\/script")),
        templates=_json(templates),
        figures=_json(drawn),
    )


def _source(name: str) -> str:
    return files("hta_dsv4.present").joinpath("templates", name).read_text(encoding="utf-8")


def _part(section: Section, drawn: list[dict[str, Any]]) -> _Part:
    made = [draw("light") for draw in section.figures]
    hidden = {summary: [draw("light") for draw in draws] for summary, draws in section.drawers.items()}
    key = _key([*made, *(f for figures in hidden.values() for f in figures)])
    return _Part(
        section.title,
        tuple(printable(t) for t in section.text),
        key,
        [_plot(f, drawn, bool(key)) for f in made],
        [_table(g) for g in section.grids],
        [(printable(s), [_table(g) for g in grids]) for s, grids in section.folded.items()],
        [(printable(s), [_plot(f, drawn, bool(key)) for f in figures]) for s, figures in hidden.items()],
    )


def _table(grid: Grid) -> Markup:
    """A grid on a page, which has no options."""
    return Markup(grid_html(grid.off_the_command_line))


def _plot(figure: go.Figure, drawn: list[dict[str, Any]], keyed: bool) -> _Plot:
    """A place for a figure; what is drawn there is added to ``drawn``."""
    body = _plain(figure)
    layout = body["layout"]
    layout.pop("template", None)  # the page puts in its own, which follows light and dark
    if keyed:
        layout["showlegend"] = False
    name, height = f"figure-{len(drawn)}", int(layout.get("height", 400))
    drawn.append({"id": name, "data": body["data"], "layout": layout})
    return _Plot(name, height, _wide(figure))


def _key(figures: list[go.Figure]) -> list[tuple[str, str]]:
    """Bucket and colour of every bar series of a section, in the order of the tables."""
    names = {t.name for f in figures for t in f.data if t.type == "bar" and t.name}
    if len(names) < _KEYED or not names <= {"unknown", *BUCKET_COLOURS}:
        return []
    return [(n, colour(n)) for n in th.present_order(sorted(names))]


def _wide(figure: go.Figure) -> bool:
    """Whether a figure needs more columns than a phone has: it scrolls sideways there."""
    panels = any(getattr(t, "xaxis", None) == "x2" for t in figure.data)
    return panels or figure.layout.barmode == "overlay" or any(t.type == "heatmap" for t in figure.data)


def _plain(value: Any) -> Any:
    """A figure or template as plain data."""
    return json.loads(
        plotly.io.to_json(value, validate=False) if isinstance(value, go.Figure) else value.to_json()
    )


def _json(value: object) -> Markup:
    """JSON that is safe inside a script element, whatever strings it holds."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
