"""``hta-dsv4 gate``: does a candidate keep its budgets? For CI: the verdict is the exit code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from hta_dsv4.analysis.budget_file import read_budgets
from hta_dsv4.classify.rules import RuleSet
from hta_dsv4.cli.options import (
    AsCsv,
    AsJson,
    AsMd,
    AsParquet,
    Frames,
    Full,
    RulesFile,
    Salvage,
    form,
    rule_set,
    write,
)
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present import machine
from hta_dsv4.present.gate_grid import EXIT_CODES, gate_body, gate_grid, gate_rows
from hta_dsv4.present.progress import reading
from hta_dsv4.present.text import markdown
from hta_dsv4.runs.gating import gate as judge
from hta_dsv4.runs.loading import load
from hta_dsv4.runs.run import Run
from hta_dsv4.shipped import label_of, resolve

_NO_TRACES = (".toml", ".md", ".txt", ".csv", ".parquet", ".yaml", ".yml", ".log")
"""Files that may lie beside traces."""
_SUMMARY_ROWS = 12


class Folders(str, Enum):
    """What the traces of a folder are to each other."""

    RANKS, REPEATS = "ranks", "repeats"


def gate(
    candidate: Annotated[
        list[str],
        typer.Argument(
            metavar="[LABEL=]TRACE", help="The candidate: a trace or a folder; several are repeats."
        ),
    ],
    budget: Annotated[
        Path, typer.Option("--budget", metavar="FILE", help="The budgets (TOML); see docs/gate.md.")
    ],
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            "--baseline",
            metavar="[LABEL=]TRACE",
            help="What relative budgets are against; several are repeats.",
        ),
    ] = None,
    folders: Annotated[
        Folders | None,
        typer.Option(
            "--folders",
            help="What the traces of a folder are: the ranks of one capture, or repeated captures.",
        ),
    ] = None,
    summary: Annotated[
        Path | None,
        typer.Option(
            "--summary", metavar="FILE", help='Also append a Markdown summary: "$GITHUB_STEP_SUMMARY".'
        ),
    ] = None,
    companion: Annotated[
        str | None,
        typer.Option(
            "--companion", metavar="TRACE", help="Eager trace of the candidate, for origins in graph replays."
        ),
    ] = None,
    baseline_companion: Annotated[
        str | None, typer.Option("--baseline-companion", metavar="TRACE", help="The same of the baseline.")
    ] = None,
    top: Annotated[
        int,
        typer.Option("--top", help="Checks to print; failed and inconclusive ones always. 0 for all.", min=0),
    ] = 25,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_md: AsMd = False,
    parquet: AsParquet = None,
    full: Full = False,
    rules: RulesFile = None,
    salvage: Salvage = False,
    frames: Frames = False,
) -> int:
    """Does a candidate keep its budgets? Exit code 0: yes; 1: no; 3: the captures cannot tell; 2: a mistake.

    A budget fails only where it is exceeded by more than noise, and only between captures made alike.

    Example: hta-dsv4 gate --budget budgets.toml --baseline main/ candidate/ --folders repeats
    """
    chosen = form(as_json, as_csv, as_md, parquet)
    budgets = read_budgets(budget)
    loaded = rule_set(rules)
    sides = [_captures(baseline or [], folders), _captures(candidate, folders)]
    beside = [None if c is None else resolve(c)[1] for c in (baseline_companion, companion)]
    runs = [
        _load(paths, loaded, salvage, frames, other) for (_, paths), other in zip(sides, beside, strict=True)
    ]
    found = judge(budgets, *runs, labels=(sides[0][0], sides[1][0]))
    if summary is not None:
        _append(summary, markdown(gate_grid(found, _SUMMARY_ROWS)))
    write(
        chosen,
        lambda: machine.dumps("gate", gate_body(found)),
        lambda: gate_rows(found),
        lambda: [gate_grid(found, top)],
        full,
    )
    return EXIT_CODES[found.verdict]


def _captures(inputs: Sequence[str], folders: Folders | None) -> tuple[str, list[tuple[str, Path]]]:
    """One side's label, and label and path of each of its captures."""
    named = [resolve(text) for text in inputs]
    out: list[tuple[str, Path]] = []
    for label, path in named:
        name = label or label_of(path)
        entries = _entries(path) if path.is_dir() else []
        if len(entries) > 1 and folders is None:
            raise HtaDsv4Error(
                f"{path}: holds {len(entries)} traces; say what they are: --folders ranks (of one capture) or "
                "--folders repeats (captures of the same code)"
            )
        if entries and folders is Folders.REPEATS:
            out += [(f"{name}/{e.name}", e) for e in entries]
        else:
            out.append((name, path))
    if not named:
        return "", []
    label = named[0][0] or label_of(named[0][1])
    if len(named) > 1:  # repeats given one by one are told apart by their files
        out = [(n if "/" in n else f"{label}/{p.name}", p) for n, p in out]
    return label, out


def _entries(folder: Path) -> list[Path]:
    """What may be captures in a folder: its files but for notes and manifests, and its sub-folders."""
    try:
        found = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    except OSError as error:
        raise HtaDsv4Error(
            f"{folder}: cannot be looked at ({error.strerror}); check its permissions"
        ) from error
    return [p for p in found if p.is_dir() or p.suffix.lower() not in _NO_TRACES]


def _load(
    captures: Sequence[tuple[str, Path]], rules: RuleSet, salvage: bool, frames: bool, companion: Path | None
) -> Iterator[Run]:
    """One capture at a time, so that repeats need the memory of one."""
    for label, path in captures:
        with reading(path.name) as progress:
            run = load(
                path,
                label=label,
                rules=rules,
                salvage=salvage,
                frames=frames,
                companion=companion,
                progress=progress,
            )
        yield run


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as f:
            f.write(text + "\n")
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise HtaDsv4Error(f"{path}: cannot be written ({said}); name another with --summary") from error
