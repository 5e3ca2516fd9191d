"""``--cluster``: who reads the traces. Runs for a command, from this process, local processes or a cluster."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from hta_dsv4.cli.options import load_runs, rule_set
from hta_dsv4.cluster.choice import AUTO, OFF, cluster_for
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.runs.run import Run
from hta_dsv4.shipped import label_of, resolve

ClusterOption = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="WHERE",
        help="Who reads: off (this process), local or local:N (processes), tcp://HOST:PORT (a Dask scheduler); auto: "
        "local where many large files make it pay.",
    ),
]


@contextlib.contextmanager
def runs_from(
    cluster: str,
    inputs: Sequence[str],
    by: str,
    rules: Sequence[Path] | None,
    salvage: bool,
    companions: Sequence[str] | None = None,
    frames: bool = False,
) -> Iterator[list[Run]]:
    """Load each ``[LABEL=]TRACE``, where ``--cluster`` says; the workers stay until the block ends.

    Args:
        cluster: the option.
        inputs: as given on the command line.
        by: the share tables that will be asked for.
        rules: the user's rule files.
        salvage: read what is whole of cut files.
        companions: eager traces beside graph traces; only without a cluster.
        frames: read Python frames.

    Raises:
        HtaDsv4Error: as :func:`hta_dsv4.cli.options.load_runs`, :func:`hta_dsv4.cluster.choice.cluster_for`; a
            companion and a cluster.
    """
    if companions and cluster not in (AUTO, OFF):
        raise HtaDsv4Error("--companion with --cluster: not together; leave one out")
    paths = [] if companions or cluster == OFF else [resolve(text) for text in inputs]
    with cluster_for(
        cluster if paths else OFF, [p for _, p in paths], rule_set(rules) if rules else None
    ) as found:
        if found is None:
            yield load_runs(inputs, rules, salvage, companions, frames)
            return
        yield [
            found.load(
                path,
                label=label or label_of(path),
                by=[by, "bucket"],
                salvage=salvage,
                frames=frames,
                progress=_said,
            )
            for label, path in paths
        ]


def _said(done: int, total: int) -> None:
    """Files read, on one line of a terminal."""
    if sys.stderr is not None and sys.stderr.isatty() and total > 1:
        end = "\r" if done < total else "\r\x1b[K"
        print(f"{done:,} of {total:,} traces read", end=end, file=sys.stderr, flush=True)
