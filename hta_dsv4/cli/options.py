"""What the commands share: options, loading the traces named, writing in the form asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from hta_dsv4.classify.rules import RuleSet
from hta_dsv4.classify.rules_file import default_rules, load_rules
from hta_dsv4.cli.files import parquet_target, write_whole
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present.grid import Grid
from hta_dsv4.present.machine import Table, table_csv
from hta_dsv4.present.parquet import parquet_bytes
from hta_dsv4.present.progress import reading
from hta_dsv4.present.text import console, markdown, print_grid
from hta_dsv4.runs.loading import load
from hta_dsv4.runs.run import Run
from hta_dsv4.shipped import label_of, presentable, resolve


class Form(str, Enum):
    """How results are written."""

    TEXT, JSON, CSV, MD, PARQUET = "text", "json", "csv", "md", "parquet"


@dataclass(frozen=True, slots=True)
class Output:
    """The form asked for, and the file of the one form that is not for standard output."""

    form: Form = Form.TEXT
    path: Path | None = None


AsJson = Annotated[bool, typer.Option("--json", help='JSON for other programs ("schema": 1, times in ns).')]
AsCsv = Annotated[bool, typer.Option("--csv", help="CSV, one line per variant and row.")]
AsMd = Annotated[bool, typer.Option("--md", help="A Markdown table.")]
AsParquet = Annotated[
    Path | None,
    typer.Option("--parquet", metavar="FILE", help="Write the table of --csv as Parquet, typed, to FILE."),
]
By = Annotated[
    str, typer.Option("--by", help="What a row is: bucket, role, origin, kernel; several with commas.")
]
ShareBy = Annotated[
    str,
    typer.Option(
        "--by",
        help="What a row is: bucket, role, origin, kernel, layer, scope; for shares also step; several with commas.",
    ),
]
Top = Annotated[
    int,
    typer.Option(
        "--top", help="Rows to print, the rest as one line; 0 for all, small ones too. Text and --md.", min=0
    ),
]
Full = Annotated[
    bool, typer.Option("--full", help="Never shorten names; diff: every row, kernel and rewrite.")
]
RulesFile = Annotated[
    list[Path] | None,
    typer.Option("--rules", help="Your own rules (TOML), before the bundled ones; repeatable."),
]
Salvage = Annotated[
    bool, typer.Option("--salvage", help="Read what is whole of a cut file; all output is partial.")
]
Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="[LABEL=]TRACE", help="A trace file, a folder of ranks, or the name of a shipped trace."
    ),
]

Companions = Annotated[
    list[str] | None,
    typer.Option(
        "--companion",
        metavar="[LABEL=]TRACE",
        help="An eager or capture trace of the same program: kernels in graph replays take op, scope and origin from "
        "it. LABEL where several variants are given; repeatable.",
    ),
]
Frames = Annotated[
    bool,
    typer.Option(
        "--frames", help="Read modules and Python functions of traces recorded with stacks, for the origin."
    ),
]
Again = Annotated[
    list[str] | None,
    typer.Option(
        "--again",
        metavar="LABEL=TRACE",
        help="A further capture of a variant: how much repeated captures differ; repeatable.",
    ),
]
Points = Annotated[
    list[str],
    typer.Argument(
        metavar="[X=]TRACE",
        help="A capture and the parameter's value; without X its manifest says it (--param).",
    ),
]


def form(
    as_json: bool = False, as_csv: bool = False, as_md: bool = False, parquet: Path | None = None
) -> Output:
    """The one form asked for; text by default.

    Raises:
        HtaDsv4Error: several are, or the Parquet file is none to write to.
    """
    asked = {Form.JSON: as_json, Form.CSV: as_csv, Form.MD: as_md, Form.PARQUET: parquet is not None}
    chosen = [f for f, on in asked.items() if on]
    if len(chosen) > 1:
        raise HtaDsv4Error("--json, --csv, --md and --parquet exclude each other; give one")
    if parquet is not None:
        return Output(Form.PARQUET, parquet_target(parquet))
    return Output(chosen[0]) if chosen else Output()


def rule_set(files: Sequence[Path] | None) -> RuleSet:
    """The bundled rules, with the user's own before them."""
    return load_rules(*files) if files else default_rules()


def load_runs(
    inputs: Sequence[str],
    rules: Sequence[Path] | None,
    salvage: bool,
    companions: Sequence[str] | None = None,
    frames: bool = False,
) -> list[Run]:
    """Load each ``[LABEL=]TRACE``, with a progress bar on long reads.

    Args:
        inputs: as given on the command line.
        rules: the user's rule files.
        salvage: read what is whole of cut files.
        companions: ``[LABEL=]TRACE`` of eager traces beside graph traces; without a label only for a single input.
        frames: read Python frames.

    Raises:
        HtaDsv4Error: a trace that cannot be read, a companion of no variant, or a second one of a variant.
    """
    chosen = rule_set(rules)
    # a shipped trace's name is its label too, but here only LABEL= says which variant is meant
    found = [(text, *resolve(text)) for text in companions or ()]
    beside = [(of if of and text.startswith(f"{of}=") else None, path) for text, of, path in found]
    named = [(label, path) for label, path in map(resolve, inputs)]
    labels = [label or label_of(path) for label, path in named]
    companion_of = _companions(beside, labels)
    runs = []
    for (label, path), name in zip(named, labels, strict=True):
        with reading(path.name) as progress:
            runs.append(
                load(
                    path, label=label, rules=chosen, salvage=salvage, frames=frames, progress=progress,
                    companion=companion_of.get(name),
                )
            )  # fmt: skip
    return runs


def _companions(beside: Sequence[tuple[str | None, Path]], labels: Sequence[str]) -> dict[str, Path]:
    """The companion of each variant; checked before anything is read, as reading takes long."""
    out: dict[str, Path] = {}
    for of, path in beside:
        if of is None and len(labels) == 1:
            of = labels[0]
        if of is None or of not in labels:
            given = f"no variant is called {of!r}" if of is not None else "several variants are given"
            raise HtaDsv4Error(
                f"--companion {path}: {given}; write LABEL=TRACE with one of {', '.join(labels)}"
            )
        if of in out:
            raise HtaDsv4Error(
                f"--companion {path}: {of} has {out[of]} already; give one, a folder for several ranks"
            )
        out[of] = path
    return out


def write(
    chosen: Output,
    document: Callable[[], str],
    table: Callable[[], Table],
    grids: Callable[[], Sequence[Grid]],
    full: bool,
) -> None:
    """Write a result to stdout, or to the Parquet file; only what the form needs is made.

    Args:
        chosen: the form.
        document: makes the JSON.
        table: makes columns and rows, for CSV and Parquet.
        grids: makes the grids, for text and Markdown.
        full: never shorten names.
    """
    if chosen.path is not None:
        columns, rows = table()
        write_whole(chosen.path, parquet_bytes(columns, rows), "--parquet")
        print(f"wrote {presentable(str(chosen.path))}, {len(rows):,} rows", file=sys.stderr)
        return
    if chosen.form in (Form.JSON, Form.CSV):
        text = document() if chosen.form is Form.JSON else table_csv(*table())
        sys.stdout.write(text.rstrip("\n") + "\n")
        return
    if chosen.form is Form.MD:
        sys.stdout.write("\n".join(markdown(g) for g in grids()))
        return
    out = console()
    for i, one in enumerate(grids()):
        if i:
            out.print()
        print_grid(one, out, full=full)
