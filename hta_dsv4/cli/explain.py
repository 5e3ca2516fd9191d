"""``hta-dsv4 explain``: which rule puts a kernel name in which bucket."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from hta_dsv4.cli.options import AsCsv, AsJson, AsMd, AsParquet, Full, RulesFile, form, rule_set, write
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present import machine
from hta_dsv4.present.explain_grid import explain_grid


def explain(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="Kernel names; - reads one a line from stdin.")
    ],
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_md: AsMd = False,
    parquet: AsParquet = None,
    full: Full = False,
    rules: RulesFile = None,
) -> None:
    """Which rule puts a kernel name in which bucket, and which other rules matched.

    Example: hta-dsv4 explain cutlass_80_simt_sgemm_64x128_8x5_tn_align1
    """
    chosen = form(as_json, as_csv, as_md, parquet)
    loaded = rule_set(rules)
    wanted: list[str] = []
    for name in names:
        wanted += _names_on_stdin() if name == "-" else [name]
    found = [loaded.explain(n) for n in wanted if n.strip()]
    if not found:
        raise HtaDsv4Error("no kernel name given: every line of the input is empty")
    write(
        chosen,
        lambda: machine.explain_lines(found),
        lambda: machine.explain_rows(found),
        lambda: [explain_grid(found)],
        full,
    )


def _names_on_stdin() -> list[str]:
    """Lines of stdin: UTF-8, as in traces, whatever the terminal's encoding; other bytes are shown as escapes."""
    if sys.stdin is None:
        raise HtaDsv4Error("stdin is closed; give names as arguments, or pipe them in")
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(encoding="utf-8", errors="backslashreplace")
    return [line.rstrip("\r\n") for line in sys.stdin]
