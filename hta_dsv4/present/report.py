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
from hta_dsv4.analysis.launch_changes import LaunchChanges
from hta_dsv4.analysis.scaling import Scaling
from hta_dsv4.analysis.shares import Shares
from hta_dsv4.analysis.throughput import Throughput
from hta_dsv4.analysis.why import Explanation, Why
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present.captures import Capture, captures_grid
from hta_dsv4.present.compact_grid import compact_grid
from hta_dsv4.present.coverage_grid import coverage_grid, owners_grid
from hta_dsv4.present.cross_grid import cross_grid, telling
from hta_dsv4.present.diff_grid import explanation_grids
from hta_dsv4.present.diff_words import shared_notes
from hta_dsv4.present.findings_grid import finding_grids, findings_grid, title
from hta_dsv4.present.grid import Grid
from hta_dsv4.present.idle_grid import idle_grid
from hta_dsv4.present.launch_grid import launch_grid
from hta_dsv4.present.roofline_grid import roofline_grid
from hta_dsv4.present.scaling_grid import scaling_grid
from hta_dsv4.present.shares_grid import comparison_grid, shares_grid
from hta_dsv4.present.standing_grid import change_in_words, standing_grid
from hta_dsv4.runs import comparing
from hta_dsv4.runs.apart import apart
from hta_dsv4.runs.companions import companion_notes
from hta_dsv4.runs.launching import launch_changes
from hta_dsv4.runs.run import Run
from hta_dsv4.runs.standing import Standing, standings

if TYPE_CHECKING:
    import plotly.graph_objects as go

TOP = 25
"""Rows of a table; the rest is one line that keeps the sum exact."""
WIDE = 2
"""Of more variants than this a table has one column each."""
POINTS = 10.0
"""Percent of the GPU time from which on what a table by bucket hides is worth a sentence."""
LARGE = 0.02
"""A change of the GPU time of less than this part is drawn on demand."""
ROW = 0.02
"""Part of a step's summed durations from which on an origin has a row of its own in its timeline."""


@dataclass(frozen=True)
class Section:
    """One part of a report.

    Attributes:
        title: its heading.
        text: sentences below the heading.
        figures: what draws each figure, given a theme.
        grids: tables.
        folded: tables that open on demand: summary -> tables.
        drawers: figures that open on demand: summary -> what draws each.
    """

    title: str
    text: tuple[str, ...] = ()
    figures: tuple[Callable[[str], go.Figure], ...] = ()
    grids: tuple[Grid, ...] = ()
    folded: Mapping[str, tuple[Grid, ...]] = field(default_factory=dict)
    drawers: Mapping[str, tuple[Callable[[str], go.Figure], ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """A report on one variant or several.

    Attributes:
        title: its first line.
        lead: the table that comes first: where each variant stands.
        summary: what to know first, one sentence each.
        sections: its parts, in reading order.
        caveats: what makes its figures weaker than they look, said once.
        captures: the files it was made from.
        comparison, explanation, findings, launches: what the tables come from.
    """

    title: str
    lead: tuple[Grid, ...]
    summary: tuple[str, ...]
    sections: tuple[Section, ...]
    caveats: tuple[str, ...]
    captures: tuple[Capture, ...]
    comparison: Comparison
    explanation: Explanation | None
    findings: tuple[Findings, ...] = ()
    launches: tuple[LaunchChanges, ...] = ()


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
    launches = launch_changes(runs, explanation) if explanation is not None else ()
    stands, other = standings(runs), apart(runs)
    by_origin = [r.shares("bucket,origin") for r in runs]
    summary = _in_words(explanation, stands) + _hidden(by_origin)
    found, without = _found(runs)
    summary += [f"{f.label}, attack next: {title(f.ranked[0].finding)}" for f in found[-1:] if f.ranked]
    sections = [_shares(runs, comparison)]
    if explanation is not None:
        sections.append(_changes(explanation, launches))
    sections += [_origins(by_origin, runs[-1]), _timelines(runs), _full(runs)]
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
    said = other.notes if stands else ()
    caveats = [*notes, *companion_notes(runs, ()), *(n for n in comparison.notes if n not in said)]
    common = shared_notes(explanation) if explanation is not None and pairs else []
    caveats += common
    for why in pairs:
        change = f"{why.decomposition.base.label} → {why.decomposition.other.label}"
        caveats += [f"{change}: {note}" for note in why.notes if note not in common]
    name = " → ".join(r.label for r in runs)
    return Report(
        name, (standing_grid(stands, other.notes),) if stands else (), tuple(dict.fromkeys(summary)), tuple(sections),
        tuple(dict.fromkeys(caveats)), tuple(captures), comparison, explanation, tuple(found), launches,
    )  # fmt: skip


def _in_words(explanation: Explanation | None, stands: Sequence[Standing]) -> list[str]:
    """Each change, and the whole of several, in a sentence that leads with the step."""
    if explanation is None:
        return []
    at = {s.label: s for s in stands}
    whole = explanation.whole if len(explanation.pairs) > 1 else None
    changes = (*explanation.pairs, *((whole,) if whole is not None else ()))
    return [
        change_in_words(w, at.get(w.decomposition.base.label), at.get(w.decomposition.other.label))
        for w in changes
    ]


def _hidden(by_origin: Sequence[Shares]) -> list[str]:
    """What a table by bucket hides, once for neighbours of which the same is true, and only where it is much."""
    runs: list[tuple[str, str, list[tuple[str, float]]]] = []
    for shares in by_origin:
        cell = telling(shares, own=True)
        if cell is None or cell.points < POINTS or cell.unknown > cell.points:
            continue
        if not runs or runs[-1][:2] != (cell.row, cell.column):
            runs.append((cell.row, cell.column, []))
        runs[-1][2].append((shares.label, cell.points))
    out = []
    for row, column, cells in runs:
        low, high = min(p for _, p in cells), max(p for _, p in cells)
        points = f"{low:.1f}" if len(cells) == 1 else f"{low:.1f} to {high:.1f}"
        who = ", ".join(label for label, _ in cells)
        out.append(f"{who}: {points} % of the GPU time is {row} that belongs to {column}")
    return out


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
    folded = {"the same by role": (_bare(by_role),)}
    if len(runs) > WIDE:  # a column each, not four
        folded = {"the same with launches, and each change against the first": (_bare(table),), **folded}
        table = compact_grid(comparison)
    return Section("Where the GPU time goes", tuple(text), tuple(drawn), (_bare(table),), folded)


def _changes(explanation: Explanation, launches: Sequence[LaunchChanges]) -> Section:
    from hta_dsv4.present import figures

    if not explanation.pairs:
        return Section("Why it changed", (f"Not explained: {explanation.reason}.",))
    whys = list(explanation.pairs)
    if explanation.whole is not None and len(whys) > 1:
        whys.append(explanation.whole)
    large = [w for w in whys if len(whys) == 1 or _size(w) >= LARGE]
    small = [w for w in whys if w not in large]
    drawn = tuple((lambda theme, w=w: figures.waterfall(w, theme)) for w in large)
    hidden = tuple((lambda theme, w=w: figures.waterfall(w, theme)) for w in small)
    names = ", ".join(f"{w.decomposition.base.label} → {w.decomposition.other.label}" for w in small)
    said = f"changes of the GPU time of less than {100 * LARGE:g} %: {names}"
    return Section(
        "Why it changed",
        ("Each change of the GPU time is divided exactly into kernels that are gone, kernels that appeared, launches "
         "more or less, and launches that take longer or shorter.",),
        drawn,
        tuple(launch_grid(found) for found in launches[-1:]),
        {"tables of every change": tuple(explanation_grids(explanation, TOP, launches=launches))},
        {said: hidden} if hidden else {},
    )  # fmt: skip


def _size(why: Why) -> float:
    """A change as a part of what was before; 1 where nothing was."""
    before, after = why.decomposition.base.per_step.own_ns, why.decomposition.other.per_step.own_ns
    return abs(after - before) / before if before else 1.0


def _origins(by_origin: Sequence[Shares], last: Run) -> Section:
    """Buckets by origin of every variant, and of the last its layers and steps."""
    from hta_dsv4.present import figures

    text = ["A bucket says what a kernel is; an origin says which part of the model launched it."]
    # one word for one thing: of variants without early starts own time and the sum are the same
    own = any(s.median_rank.extent.early_ns for s in by_origin)
    folded = {f"{g.title}": (g,) for g in (cross_grid(s, own=own) for s in by_origin)}
    for keys in ("layer,bucket", "step,bucket") if last.counted.steps else ():
        try:
            made = _bare(cross_grid(last.shares(keys), own=own))
        except HtaDsv4Error as error:
            text.append(f"{error}.")
        else:
            folded[made.title] = (made,)
    return Section(
        "What asked for it",
        tuple(text),
        (lambda theme: figures.heatmap(by_origin[-1], theme, own),),
        (),
        folded,
    )


def _timelines(runs: Sequence[Run]) -> Section:
    """One step of each variant: all on one clock, then each by origin, those of more than two variants on demand."""
    from hta_dsv4.present import figures

    text = [
        f"{run.label} shows no decode steps, so there is no step to draw."
        for run in runs
        if not run.counted.steps
    ]
    stepped = [run for run in runs if run.counted.steps]
    text.append("Empty is idle: a GPU that waits for its launches shows thin bars with nothing between them.")
    each: list[Callable[[str], go.Figure]] = []
    for run in stepped:
        each.append(
            lambda theme, r=run: figures.timeline(r.counted, r.label, theme=theme, least=ROW)  # type: ignore[misc]
        )
    if len(stepped) < 2:
        return Section("One step on the GPU's clock", tuple(text), tuple(each))
    text.append("On one clock a column is many launches: it is empty where the GPU was idle for most of it.")
    pairs = [(run.label, run.counted) for run in stepped]
    drawers = {f"{r.label}: one step by origin": (draw,) for r, draw in zip(stepped, each, strict=True)}
    return Section(
        "One step on the GPU's clock", tuple(text), (lambda theme: figures.steps_together(pairs, theme=theme),),
        drawers=drawers,
    )  # fmt: skip


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
