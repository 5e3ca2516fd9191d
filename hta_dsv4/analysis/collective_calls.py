"""Which kernels are collectives, and what does the trace say of each?

Kineto writes process group, name, elements and sequence number on NCCL kernels launched eagerly. Kernels of CUDA
graphs and custom all-reduces carry none of it; they are known as communication by their name, and told apart by it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from hta_dsv4.analysis.rank_parts import RankPart
from hta_dsv4.trace import activities as col

COMMUNICATION = "communication"
UNNAMED = ""
"""The group of collectives whose trace says no process group."""

# columns of the table of one rank's collectives
AT = "at"  # int64: row in the rank's activities
WHAT, GROUP, MEMBERS, ELEMENTS, DTYPE, SEQ = "what", "group", "members", "elements", "dtype", "seq"

_ONE_TO_ONE = frozenset({"send", "recv", "isend", "irecv"})
# What leaves some ranks early: the root of a broadcast does not wait for the others.
_ROOTED = re.compile(r"Kernel_(?:Broadcast|Reduce)_|^_?(?:broadcast|reduce|gather|scatter)(?:_oop)?$")


def is_symmetric(what: str) -> bool:
    """Whether no rank leaves such a collective before all have come (all-reduce, all-gather, ..., barrier)."""
    return _ROOTED.search(what) is None


def called(part: RankPart) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The collectives of one rank.

    Args:
        part: the rank.

    Returns:
        (collectives, sends and receives), one row each in time order, with the columns of this module.
    """
    acts = part.activities
    comm = ((acts[col.BUCKET] == COMMUNICATION) & (acts[col.KIND] == col.KERNEL)).to_numpy()
    said = acts[col.COLLECTIVE] if col.COLLECTIVE in acts else pd.Series(pd.NA, acts.index, dtype="category")
    rows = np.flatnonzero(comm | said.notna().to_numpy())
    known = [_said(text) for text in said.cat.categories] + [{}]
    names = [*(str(n) for n in acts[col.NAME].cat.categories), ""]
    of_said, of_name = said.cat.codes.to_numpy()[rows], acts[col.NAME].cat.codes.to_numpy()[rows]
    table = []
    for row, s, n in zip(rows.tolist(), of_said.tolist(), of_name.tolist(), strict=True):
        fields = known[s]
        what = str(fields.get("name", names[n]))
        members = str(fields.get("ranks", ""))
        table.append((
            row, what, str(fields.get("group", UNNAMED)), members, _number(fields.get("elements")),
            str(fields.get("dtype", "")), _number(fields.get("seq")),
        ))  # fmt: skip
    frame = pd.DataFrame(table, columns=[AT, WHAT, GROUP, MEMBERS, ELEMENTS, DTYPE, SEQ])
    pair = frame[WHAT].isin(list(_ONE_TO_ONE))
    return frame[~pair].reset_index(drop=True), frame[pair].reset_index(drop=True)


def _said(text: str) -> dict[str, Any]:
    """What the trace says of one collective; nothing where it is no object."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _number(value: Any) -> int:
    """A number from 0 that fits int64; -1 for anything else."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if 0 <= number < 1 << 63 else -1


def members_of(text: str) -> tuple[int, ...] | None:
    """Ranks of a process group as Kineto writes them, ``[0, 1, 2]``; ``None`` where unknown or shortened."""
    if not re.fullmatch(r"\[\s*\d{1,9}(\s*,\s*\d{1,9})*\s*\]", text):
        return None
    return tuple(sorted({int(x) for x in re.findall(r"\d+", text)}))
