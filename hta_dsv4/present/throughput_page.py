"""A sweep as a page that works offline, as a section of a report, or as an image."""

from __future__ import annotations

from collections.abc import Sequence

from hta_dsv4.analysis.throughput import Throughput
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present import figures
from hta_dsv4.present.report import Section
from hta_dsv4.present.report_html import own_version, page_html
from hta_dsv4.present.throughput_grid import throughput_grids

IMAGES = ("svg", "png", "pdf")


def throughput_section(found: Sequence[Throughput]) -> Section:
    """Figure and tables as one section.

    Args:
        found: the variants.
    """
    return Section(
        "Throughput over concurrency",
        (
            "Where step time is a line over C, throughput has a ceiling: 1 / (time that each request adds). More "
            "requests then give more tokens per second, but never beyond it.",
        ),
        (lambda theme: figures.throughput(found, theme),),
        tuple(throughput_grids(found)),
    )


def throughput_page(found: Sequence[Throughput]) -> str:
    """One self-contained HTML document; it requests nothing.

    Args:
        found: the variants.
    """
    title = "Throughput over concurrency: " + ", ".join(t.sweep.label for t in found)
    return page_html(title, f"no profiler ran; hta-dsv4 {own_version()}", [throughput_section(found)])


def figure_image(found: Sequence[Throughput], form: str) -> bytes:
    """The figure alone.

    Args:
        found: the variants.
        form: one of :data:`IMAGES`.

    Raises:
        HtaDsv4Error: another form, or no kaleido or browser to draw it with.
    """
    if form not in IMAGES:
        raise HtaDsv4Error(f"--figure: .{form} is no form of a figure; name it .html, .svg, .png or .pdf")
    try:
        return bytes(figures.throughput(found).to_image(form, width=1000, height=440))
    except Exception as error:  # kaleido raises what its browser gives it
        said = " ".join(str(error).split())[:200]
        raise HtaDsv4Error(
            f"--figure: cannot draw .{form} ({said}); .html needs nothing, images need pip install kaleido and Chromium"
        ) from error
