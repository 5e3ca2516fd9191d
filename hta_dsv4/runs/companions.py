"""What an eager companion would tell of variants whose kernels run in graph replays, where no op or stack tells."""

from __future__ import annotations

from collections.abc import Sequence

from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.runs.notes import IN_REPLAYS
from hta_dsv4.runs.run import Run


def companion_notes(runs: Sequence[Run], keys: Sequence[str]) -> tuple[str, ...]:
    """The hint at ``--companion``, for output that shows origins although it has no rows of them.

    Args:
        runs: the variants.
        keys: what rows are; where ``origin`` is among them the tables say it themselves.

    Returns:
        One sentence per variant of which much has no origin and most of that runs in graph replays; none for a run
        of which only tables are at hand, to which no companion can be given.
    """
    if "origin" in keys:
        return ()
    notes = []
    for run in runs:
        try:
            said = run.shares("origin").notes
        except HtaDsv4Error:
            continue
        notes += [f"{run.label}: {note}" for note in said if IN_REPLAYS in note]
    return tuple(notes)
