"""A report as a comment for a pull request: short, GitHub-flavoured Markdown, names escaped."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from hta_dsv4.analysis import diff as d
from hta_dsv4.analysis.launch_changes import LaunchChanges
from hta_dsv4.analysis.why import Why
from hta_dsv4.present.captures import captures_grid
from hta_dsv4.present.compact_grid import compact_grid
from hta_dsv4.present.diff_words import signed
from hta_dsv4.present.falls import falls
from hta_dsv4.present.findings_grid import findings_grid
from hta_dsv4.present.grid import Grid, us
from hta_dsv4.present.launch_grid import launch_grid
from hta_dsv4.present.report import Report
from hta_dsv4.present.text import markdown, printable, shorten

MOVERS = 8
NAME_WIDTH = 70
ATTACKED = 5
_BAR = 36
LIMIT = 65_536
"""Characters a GitHub comment may have."""


def report_md(report: Report) -> str:
    """A report as Markdown: share table, waterfalls as text, top movers, caveats, captures.

    Args:
        report: what to write.

    Returns:
        Markdown below :data:`LIMIT` characters; of very many variants the last changes are left out, and it says so.
    """
    head = [_title(report), *map(markdown, report.lead), markdown(_summary(report))]
    head.append(markdown(compact_grid(report.comparison)))
    tail = [markdown(findings_grid(f, ATTACKED)) for f in report.findings[-1:]]
    tail += [_bullets("caveats", report.caveats)] if report.caveats else []
    tail += [_folded("captures", markdown(captures_grid(report.captures)))] if report.captures else []
    pairs = list(report.explanation.pairs) if report.explanation is not None else []
    if report.explanation is not None and not pairs:
        head.append(f"Not explained: {printable(report.explanation.reason)}.\n")
    changes = [_change(w, found) for w, found in zip_longest(pairs, report.launches)]
    room = LIMIT - sum(len(part) + 1 for part in (*head, *tail)) - 200
    kept: list[str] = []
    for change in changes:
        if sum(len(k) + 1 for k in (*kept, change)) > room:
            break
        kept.append(change)
    if len(kept) < len(changes):
        left = len(changes) - len(kept)
        kept.append(f"{left} of {len(changes)} changes left out: a comment may have {LIMIT:,} characters\n")
    return "\n".join([*head, *kept, *tail])


def _title(report: Report) -> str:
    return markdown(Grid(f"hta-dsv4: {report.title}", (), (), left=0))


def _summary(report: Report) -> Grid:
    return Grid("in short", (), (), notes=report.summary, left=0)


def waterfall_text(why: Why) -> str:
    """A waterfall in fixed-width characters.

    Args:
        why: the change.

    Returns:
        One line a bar: what, its time in ms per step with its sign, and a bar from where it starts to where it ends.
        The times add up from the first line to the last.
    """
    parts = why.decomposition
    before, after = parts.base.per_step.own_ns, parts.other.per_step.own_ns
    bars: list[tuple[str, str, int, int]] = [(parts.base.label, f"{before / 1e6:,.3f}", 0, before)]
    at = before
    for fall in falls(parts):
        bars.append((fall.label, f"{fall.ns / 1e6:+,.3f}", min(at, at + fall.ns), max(at, at + fall.ns)))
        at += fall.ns
    bars.append((parts.other.label, f"{after / 1e6:,.3f}", 0, after))
    reach = max(end for *_, end in bars) or 1
    names = [shorten(printable(label), 34) for label, *_ in bars]
    wide, digits = max(map(len, names)), max(len(text) for _, text, *_ in bars)
    lines = []
    for name, (_, text, begin, end) in zip(names, bars, strict=True):
        left, right = round(_BAR * begin / reach), round(_BAR * end / reach)
        block = "█" * (right - left) if right > left else "▏" if end > begin else ""
        lines.append(f"{name:<{wide}}  {text:>{digits}} ms  {' ' * left}{block}".rstrip())
    return "\n".join(lines)


def _change(why: Why, launches: LaunchChanges | None) -> str:
    parts = why.decomposition
    title = markdown(Grid(f"{parts.base.label} → {parts.other.label}, GPU time per step", (), (), left=0))
    # a line of backticks longer than any inside cannot be closed by a name
    text = waterfall_text(why)
    fence = "`" * max(3, max((len(run) for run in _runs(text)), default=0) + 1)
    folded = [_folded("top movers", markdown(_movers(why)))]
    if launches is not None and launches.changes:
        folded.append(
            _folded(
                "launch configurations that changed", markdown(launch_grid(launches).off_the_command_line)
            )
        )
    return "\n".join([title, f"{fence}text", text, f"{fence}\n", *folded])


def _movers(why: Why) -> Grid:
    parts = why.decomposition
    table = why.kernels[why.kernels[d.DELTA_NS] != 0].head(MOVERS)
    rows = []
    for _, row in table.iterrows():
        a, b = row[d.BASE_LAUNCHES] / parts.base.steps, row[d.OTHER_LAUNCHES] / parts.other.steps
        times = (us(int(row[d.BASE_NS])), us(int(row[d.OTHER_NS])), signed(row[d.DELTA_NS]))
        rows.append((shorten(str(row["kernel"]), NAME_WIDTH), *times, f"{a:g} → {b:g}"))
    headers = ("kernel", f"{parts.base.label} us/step", parts.other.label, "change", "launches/step")
    return Grid("kernels that moved most", headers, tuple(rows), left=1)


def _folded(summary: str, body: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{body}\n</details>\n"


def _bullets(title: str, sentences: Sequence[str]) -> str:
    return markdown(Grid(title, (), (), notes=tuple(sentences), left=0))


def _runs(text: str) -> list[str]:
    """Runs of backticks in a text."""
    out, run = [], ""
    for char in text + " ":
        if char == "`":
            run += char
        elif run:
            out.append(run)
            run = ""
    return out
