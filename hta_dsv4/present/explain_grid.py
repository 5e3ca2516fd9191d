"""Why kernel names are where they are, as a grid."""

from __future__ import annotations

from collections.abc import Sequence

from hta_dsv4.classify.results import Explanation
from hta_dsv4.present.grid import ABSENT, Grid


def explain_grid(found: Sequence[Explanation]) -> Grid:
    """Which rule won for each name, which others matched, and where a name alone cannot tell."""
    rows, notes = [], []
    for e in found:
        others = ", ".join(f"{c.rule} ({c.bucket})" for c in e.candidates[1:]) or ABSENT
        rows.append((e.name, e.bucket, e.role, e.rule, others))
        if e.ambiguous:
            notes.append(f"{e.name}: {e.ambiguous}")
        if len(found) == 1 and e.comment:
            notes.append(f"{e.rule}: {e.comment}")
    title = f"{len(found)} name" + ("s" if len(found) > 1 else "")
    return Grid(
        title, ("name", "bucket", "role", "rule", "also matched"), tuple(rows), notes=tuple(notes), left=5
    )
