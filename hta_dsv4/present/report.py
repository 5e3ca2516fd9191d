"""What a report says, before it is known whether HTML or Markdown shows it: sections of grids and figures.

A part that cannot be made from these traces is not left out silently: its section says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hta_dsv4.analysis.compare import Comparison
from hta_dsv4.analysis.coverage import Coverage
from hta_dsv4.analysis.findings import Findings
from hta_dsv4.analysis.launch_bound import IdleTime
from hta_dsv4.analysis.scaling import Scaling
from hta_dsv4.analysis.throughput import Throughput
from hta_dsv4.analysis.why import Explanation
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present.captures import Capture, captures_grid
from hta_dsv4.present.coverage_grid import coverage_grid, owners_grid
from hta_dsv4.present.cross_grid import cross_grid
from hta_dsv4.present.diff_grid import explanation_grids
from hta_dsv4.present.diff_words import shared_notes
from hta_dsv4.present.falls import in_words
from hta_dsv4.present.findings_grid import finding_grids, findings_grid, title
from hta_dsv4.present.grid import Grid
from hta_dsv4.present.idle_grid import idle_grid
from hta_dsv4.present.roofline_grid import roofline_grid
from hta_dsv4.present.scaling_grid import scaling_grid
from hta_dsv4.present.shares_grid import comparison_grid, shares_grid
from hta_dsv4.runs import comparing
from hta_dsv4.runs.run import Run

if TYPE_CHECKING:
    import plotly.graph_objects as go

TOP = 25
"""Rows of a table; the rest is one line that keeps the sum exact."""


@dataclass(frozen=True)
class Section:
    """One part of a report.

    Attributes:
        title: its heading.
        text: sentences below the heading.
        figures: what draws each figure, given a theme.
        grids: tables.
        folded: tables that open on demand: summary -> tables.
    """

    title: str
    text: tuple[str, ...] = ()
    figures: tuple[Callable[[str], go.Figure], ...] = ()
    grids: tuple[Grid, ...] = ()
    folded: Mapping[str, tuple[Grid, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """A report on one variant or several.

    Attributes:
        title: its first line.
        summary: what to know first, one sentence each.
        sections: its parts, in reading order.
        caveats: what makes its figures weaker than they look, said once.
        captures: the files it was made from.
        comparison, explanation, findings: what the tables come from.
    """

    title: str
    summary: tuple[str, ...]
    sections: tuple[Section, ...]
    caveats: tuple[str, ...]
    captures: tuple[Capture, ...]
    comparison: Comparison
    explanation: Explanation | None
    findings: tuple[Findings, ...] = ()


def build(
    runs: Sequence[Run],
    captures: Sequence[Capture] = (),
    sweep: Scaling | None = None,
    explanation: Explanation | None = None,
    notes: Sequence[str] = (),
    throughput: Sequence[Throughput] = (),
) -> Report:
    """Put a report together.

    Args:
        runs: one variant or several, in the order in which the changes were made.
        captures: the files behind them (:func:`hta_dsv4.present.captures.capture_files`).
        sweep: fits over a parameter, where captures at several of its values are at hand.
        explanation: why each variant differs from the one before, where it has been worked out already.
        notes: what the caller knows that weakens the figures (what the profiler added).
        throughput: the same variants over concurrency, where they were captured or measured at several.

    Returns:
        The report.

    Raises:
        HtaDsv4Error: no variant, two of one name, or no GPU activity in one.
    """
    comparison = comparing.compare(runs, "bucket")
    if explanation is None and len(runs) > 1:
        explanation = comparing.why(runs, "bucket")
    pairs = explanation.pairs if explanation is not None else ()
    crosses = [cross_grid(r.shares("bucket,origin")) for r in runs]
    summary = [in_words(w.decomposition) for w in pairs]
    if explanation is not None and explanation.whole is not None and len(pairs) > 1:
        summary.append(in_words(explanation.whole.decomposition))
    summary += [f"{r.label}: {note}" for r, g in zip(runs, crosses, strict=True) for note in g.notes]
    found, without = _found(runs)
    summary += [f"{f.label}, attack next: {title(f.ranked[0].finding)}" for f in found[-1:] if f.ranked]
    sections = [_shares(runs, comparison)]
    if explanation is not None:
        sections.append(_changes(explanation))
    sections += [_origins(runs, crosses), _timelines(runs), _full(runs)]
    sections.append(_attack(found, without))
    if sweep is not None:
        sections.append(_sweep(sweep))
        summary += scaling_grid(sweep).notes[: max(1, len(sweep.flagged))]
    if throughput:
        from hta_dsv4.present.throughput_page import throughput_section

        sections.append(throughput_section(throughput))
    sections.append(_kernels(runs))
    if captures:
        sections.append(Section("What this was made from", grids=(captures_grid(captures),)))
    caveats = [*notes, *comparison.notes]
    common = shared_notes(explanation) if explanation is not None and pairs else []
    caveats += common
    for why in pairs:
        change = f"{why.decomposition.base.label} → {why.decomposition.other.label}"
        caveats += [f"{change}: {note}" for note in why.notes if note not in common]
    name = " → ".join(r.label for r in runs)
    return Report(
        name, tuple(dict.fromkeys(summary)), tuple(sections), tuple(dict.fromkeys(caveats)), tuple(captures),
        comparison, explanation, tuple(found),
    )  # fmt: skip


def _shares(runs: Sequence[Run], comparison: Comparison) -> Section:
    from hta_dsv4.present import figures

    shares = comparison.variants
    drawn: list[Callable[[str], go.Figure]] = [lambda theme: figures.share_bars(shares, theme)]
    text: list[str] = []
    stepped = {bool(s.median_rank.steps) for s in shares}
    if len(stepped) == 1:
        drawn.append(lambda theme: figures.time_bars(shares, theme))
    else:
        text.append(
            "Some variants show no steps: their times cover other amounts of work, so only shares are drawn"
        )
    table = comparison_grid(comparison, TOP) if len(runs) > 1 else shares_grid(shares[0], TOP)
    roles = comparing.compare(runs, "role")
    by_role = comparison_grid(roles, TOP) if len(runs) > 1 else shares_grid(roles.variants[0], TOP)
    return Section(
        "Where the GPU time goes",
        tuple(text),
        tuple(drawn),
        (_bare(table),),
        {"the same by role": (_bare(by_role),)},
    )


def _changes(explanation: Explanation) -> Section:
    from hta_dsv4.present import figures

    if not explanation.pairs:
        return Section("Why it changed", (f"Not explained: {explanation.reason}.",))
    whys = list(explanation.pairs)
    if explanation.whole is not None and len(whys) > 1:
        whys.append(explanation.whole)
    drawn = tuple((lambda theme, w=w: figures.waterfall(w, theme)) for w in whys)
    return Section(
        "Why it changed",
        ("Each change of the sum is divided exactly into kernels that are gone, kernels that appeared, launches more "
         "or less, and launches that take longer or shorter.",),
        drawn,
        (),
        {"tables of every change": tuple(explanation_grids(explanation, TOP))},
    )  # fmt: skip


def _origins(runs: Sequence[Run], crosses: Sequence[Grid]) -> Section:
    from hta_dsv4.present import figures

    last = runs[-1].shares("bucket,origin")
    others = {f"{g.title}": (g,) for g in crosses}
    return Section(
        "What asked for it",
        ("A bucket says what a kernel is; an origin says which part of the model launched it.",),
        (lambda theme: figures.heatmap(last, theme),),
        (),
        others,
    )


def _timelines(runs: Sequence[Run]) -> Section:
    from hta_dsv4.present import figures

    text, drawn = [], []
    for run in runs:
        if not run.counted.steps:
            text.append(f"{run.label} shows no decode steps, so there is no step to draw.")
            continue
        drawn.append(lambda theme, r=run: figures.timeline(r.counted, r.label, theme=theme))
    text.append("Empty is idle: a GPU that waits for its launches shows thin bars with nothing between them.")
    return Section("One step on the GPU's clock", tuple(text), tuple(drawn))


def _full(runs: Sequence[Run]) -> Section:
    """SM coverage and idle time; where one variant lacks what they need, the others are still shown."""
    from hta_dsv4.present import figures

    text: list[str] = []
    coverages: list[Coverage] = []
    idles: list[IdleTime] = []
    for run in runs:
        try:
            coverages.append(run.coverage())
        except HtaDsv4Error as error:
            text.append(f"{run.label}: {error}.")
        idles.append(run.idle())
    floors = []
    for run in runs:
        try:
            floors.append(roofline_grid(run.roofline("origin"), TOP))
        except HtaDsv4Error as error:
            text.append(f"{run.label}, floors: {error}.")
    drawn = (lambda theme: figures.coverage(coverages, theme),) if coverages else ()
    grids = [idle_grid(idles), *(owners_grid(c, TOP) for c in coverages)]
    if coverages:
        grids.insert(0, coverage_grid(coverages))
    folded = {"coverage, idle time and who leaves SMs empty": tuple(grids)}
    folded |= {"how far each part is from what the GPU permits": tuple(floors)} if floors else {}
    return Section("How full the GPU is, and how fast it could be", tuple(text), drawn, (), folded)


def _found(runs: Sequence[Run]) -> tuple[list[Findings], list[str]]:
    """The findings of each variant, and why some have none."""
    found, without = [], []
    for run in runs:
        try:
            found.append(run.findings())
        except HtaDsv4Error as error:
            without.append(f"{run.label}: {error}.")
    return found, without


def _attack(found: Sequence[Findings], without: Sequence[str]) -> Section:
    """What to attack next in the last variant; the others' and all evidence on demand."""
    folded = {f"{f.label}: what to attack": (findings_grid(f), *finding_grids(f)) for f in found[:-1]}
    folded |= {f"{f.label}: the evidence": tuple(finding_grids(f)) for f in found[-1:]}
    table = tuple(findings_grid(f) for f in found[-1:])
    return Section("What to attack next", tuple(without), (), table, folded)


def _sweep(sweep: Scaling) -> Section:
    from hta_dsv4.present import figures

    return Section(
        f"What grows with {sweep.parameter}", (), (lambda theme: figures.scaling(sweep, theme),),
        (scaling_grid(sweep, TOP),),
    )  # fmt: skip


def _kernels(runs: Sequence[Run]) -> Section:
    try:
        tables = {r.label: (_bare(shares_grid(r.shares("kernel"), TOP)),) for r in runs}
    except HtaDsv4Error as error:
        return Section("Kernels", (str(error),))
    return Section("Kernels", (), (), (), tables)


def _bare(grid: Grid) -> Grid:
    """A grid without its notes, which the report says once, as caveats."""
    return replace(grid, notes=())
