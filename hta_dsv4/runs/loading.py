"""A path -> the :class:`~hta_dsv4.runs.run.Run` that stands for it."""

from __future__ import annotations

from pathlib import Path

from hta_dsv4.classify.rules import RuleSet
from hta_dsv4.classify.rules_file import default_rules
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.runs.run import Run
from hta_dsv4.shipped import label_of
from hta_dsv4.trace.container import Progress
from hta_dsv4.trace.reader import read_traces


def load(
    path: str | Path,
    *,
    label: str | None = None,
    rules: RuleSet | None = None,
    salvage: bool = False,
    companion: str | Path | None = None,
    frames: bool = False,
    progress: Progress | None = None,
) -> Run:
    """Load one variant: a trace file, or a folder of ranks.

    Args:
        path: a Kineto JSON trace (plain, gzip, zstd, zip: told by content) or a folder with one per rank.
        label: the variant's name; by default the file's name without its suffixes.
        rules: classification rules; by default the bundled ones.
        salvage: read what is whole of a cut file; the result is labelled partial.
        companion: an eager or capture trace of the same program (a folder for several ranks), from which kernels in
            graph replays take their op, scope and origin.
        frames: read modules and Python functions of traces recorded with stacks, for the origin; takes longer.
        progress: called with the number of bytes read and the total, on long reads.

    Returns:
        The run.

    Raises:
        TraceError: a file that cannot be read, with place and remedy.
    """
    if path == "":
        raise HtaDsv4Error("an empty path where a trace belongs; give a file or a folder")  # not this folder
    path = Path(path)
    rules = rules or default_rules()
    traces = tuple(read_traces(path, python_frames=frames, salvage=salvage, progress=progress))
    beside = None if companion is None else load(companion, rules=rules, frames=frames, progress=progress)
    return Run(label or label_of(path), traces, rules, companion=beside)
