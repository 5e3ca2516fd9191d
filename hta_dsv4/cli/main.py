"""The command line: every command under one name, and how the process ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated

import typer

from hta_dsv4.cli.cache import NoCache, cache, leave_cache, no_cache_first, say_unusable
from hta_dsv4.cli.capture import capture
from hta_dsv4.cli.diff import diff
from hta_dsv4.cli.exit import run_and_exit
from hta_dsv4.cli.explain import explain
from hta_dsv4.cli.findings import findings
from hta_dsv4.cli.gate import gate
from hta_dsv4.cli.gpu import coverage, fill, idle
from hta_dsv4.cli.guard import guarded
from hta_dsv4.cli.info import info
from hta_dsv4.cli.ranks import ranks
from hta_dsv4.cli.report import annotate, report
from hta_dsv4.cli.scaling import scaling
from hta_dsv4.cli.shares import shares
from hta_dsv4.cli.speed import roofline, whatif
from hta_dsv4.cli.sweep import sweep
from hta_dsv4.cli.words import refuse_empty

app = typer.Typer(
    name="hta-dsv4",
    help="Profile-driven bottleneck analysis for DeepSeek-V4 decode: exact kernel shares from Kineto traces.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hta-dsv4 {metadata.version('hta-dsv4')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
    no_cache: NoCache = False,
) -> None:
    """What may stand before a command."""
    leave_cache(no_cache)
    say_unusable(context.invoked_subcommand)


for command in (  # in the order of --help
    shares, diff, scaling, info, explain, fill, coverage, idle, roofline, whatif, findings, ranks,
    gate, report, annotate, capture, sweep, cache,
):  # fmt: skip
    app.command()(guarded(command))


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2.

    Args:
        args: the words after the command's name; by default the process's own.
    """
    words = no_cache_first(sys.argv[1:] if args is None else args)

    def run() -> int | None:
        refuse_empty(words)
        code: int | None = app(words, standalone_mode=False, prog_name="hta-dsv4")
        return code

    run_and_exit(run)
