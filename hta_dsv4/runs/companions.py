"""What an eager companion would tell of variants whose kernels run in graph replays, where no op or stack tells."""

from __future__ import annotations

from collections.abc import Sequence

from hta_dsv4.runs.notes import IN_REPLAYS
from hta_dsv4.runs.run import Run


def companion_notes(runs: Sequence[Run], keys: Sequence[str]) -> tuple[str, ...]:
    """The hint at ``--companion``, for output that shows origins although it has no rows of them.

    Args:
        runs: the variants.
        keys: what rows are; where ``origin`` is among them the tables say it themselves.

    Returns:
        One sentence per variant of which much has no origin and most of that runs in graph replays.
    """
    if "origin" in keys:
        return ()
    return tuple(f"{run.label}: {note}" for run in runs for note in run.origin_notes if IN_REPLAYS in note)
