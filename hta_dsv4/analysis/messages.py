"""Which message does each collective of a trace carry?

A size is known from the trace's arguments of the kernel, or from the shapes of the op that launched an all-reduce which
is not NCCL's; else from its counterpart's in a companion; else from the model where the step is the bundled one, whose
collectives are known. Where ranks give unequal parts, the wire is of what the trace says of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from hta_dsv4.analysis.costs.shapes import operands
from hta_dsv4.analysis.costs.workload import Workload
from hta_dsv4.analysis.wire import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    COMPANION,
    MODEL,
    OTHER,
    REDUCE_SCATTER,
    SEND,
    TRACE,
    Message,
    kind_of,
    wire_bytes,
)
from hta_dsv4.classify.origin_columns import replayed
from hta_dsv4.trace import activities as col

_SWITCH = re.compile(r"NVLS|multimem|STMC", re.IGNORECASE)
_NCCL = re.compile(r"nccl(Dev)?Kernel", re.IGNORECASE)
_BYTES = {
    "bfloat16": 2, "half": 2, "float": 4, "double": 8, "byte": 1, "char": 1, "short": 2, "int": 4, "long": 8, "bool": 1,
    "float16": 2, "float32": 4, "float64": 8, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "uint16": 2, "uint32": 4, "uint64": 8, "complexfloat": 8, "complexdouble": 16, "qint8": 1, "quint8": 1,
    "float8e4m3fn": 1, "float8e5m2": 1, "float8e4m3fnuz": 1, "float8e5m2fnuz": 1, "float8e8m0fnu": 1,
}  # fmt: skip
_STAGES = re.compile(r"cross_device_reduce_\d?stage<[^,<>]+,\s*(\d{1,3})>")  # its ranks are in its template
_LIST = re.compile(r"\[\s*\d{1,18}(\s*,\s*\d{1,18})*\s*\]")


@dataclass(frozen=True)
class Messages:
    """What the collectives of a table carry.

    Attributes:
        rows: int64 [k], their rows.
        code: int64 [k], place of each among :attr:`distinct`.
        distinct: the different messages.
    """

    rows: np.ndarray
    code: np.ndarray
    distinct: tuple[Message, ...]

    def at(self, rows: np.ndarray) -> list[Message]:
        """The messages of certain rows; of no collective, one of which nothing is known.

        Args:
            rows: int64 [n], rows of the table.
        """
        place = dict(zip(self.rows.tolist(), self.code.tolist(), strict=True))
        nothing = Message(OTHER)
        return [self.distinct[place[r]] if r in place else nothing for r in rows.tolist()]


def messages(
    acts: pd.DataFrame, step: np.ndarray, steps: int, rows: np.ndarray, w: Workload | None, rank: int = -1
) -> Messages:
    """What collectives carry.

    Args:
        acts: classified activities of one rank.
        step: int64 [activities], counted step of each; -1 outside.
        steps: how many there are.
        rows: int64 [k], the collectives among them.
        w: what was decoded, for the bundled step's sizes.
        rank: this rank's number, for its own part of unequal splits.
    """
    names = acts[col.NAME].iloc[rows].astype(str).to_numpy()
    texts = [_texts(acts, c, rows) for c in (col.COLLECTIVE, col.COMPANION_COLLECTIVE)]
    asked = _asked(acts, names, rows)
    model = _model(names, step[rows], steps, w) if w is not None else {}
    inside = step[rows] >= 0
    index: dict[Message, int] = {}
    seen: dict[tuple[Any, ...], int] = {}
    code = np.empty(len(rows), np.int64)
    for i, key in enumerate(zip(names.tolist(), *texts, asked, inside.tolist(), strict=True)):
        if key not in seen:
            name, own, other, op, counted = key
            found = _said(own, name, TRACE, rank) or _said(other, name, COMPANION, rank) or _of_op(name, op)
            kind = kind_of(name)
            if found is None and counted:
                found = model.get(kind)
            found = found or Message(kind, nccl=_plain(name), switch=bool(_SWITCH.search(name)))
            seen[key] = index.setdefault(found, len(index))
        code[i] = seen[key]
    return Messages(rows, code, tuple(index))


def _texts(acts: pd.DataFrame, column: str, rows: np.ndarray) -> list[str]:
    if column not in acts:
        return [""] * len(rows)
    values = acts[column].iloc[rows].astype(object)
    return [str(x) for x in values.where(values.notna(), "")]


def _asked(acts: pd.DataFrame, names: np.ndarray, rows: np.ndarray) -> list[tuple[str, str, str] | None]:
    """Shapes and dtypes of the ops behind all-reduces that are not NCCL's, and where they come from.

    A replayed kernel has those of its counterpart in a companion; another grid may be another size.
    """
    custom = np.array([kind_of(n) == ALL_REDUCE and not _NCCL.search(n) for n in names], dtype=bool)
    if not custom.any() or col.OP not in acts:
        return [None] * len(rows)
    op, shapes, dtypes = (_texts(acts, c, rows) for c in (col.OP, col.OP_SHAPES, col.OP_DTYPES))
    again = replayed(acts)[rows]
    exact = acts[col.COMPANION_EXACT].to_numpy()[rows] if col.COMPANION_EXACT in acts else ~again
    told = custom & (~again | exact) & [kind_of(o.rpartition(":")[2]) == ALL_REDUCE for o in op]
    return [
        (s, d, COMPANION if g else TRACE) if t else None
        for s, d, g, t in zip(shapes, dtypes, again.tolist(), told.tolist(), strict=True)
    ]


def _of_op(name: str, op: tuple[str, str, str] | None) -> Message | None:
    """The message of an all-reduce that is not NCCL's: its op's first tensor."""
    first = (
        None
        if op is None
        else next((o for o in operands(op[0], op[1]) if o is not None and o.shape and o.nbytes), None)
    )
    if op is None or first is None or first.nbytes >= 1 << 62:
        return None
    ranks = int(found[1]) if (found := _STAGES.search(name)) else 0
    switch = bool(_SWITCH.search(name))
    wire = None if switch else wire_bytes(ALL_REDUCE, ranks, first.nbytes)
    return Message(ALL_REDUCE, ranks, first.nbytes, wire, op[2], switch=switch)


def _said(text: str, name: str, how: str, rank: int) -> Message | None:
    """The message that arguments of a collective describe; ``None`` where they give no size."""
    try:
        said = msgspec.json.decode(text) if text else None
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    if not isinstance(said, Mapping):
        return None
    kind = kind_of(str(said.get("name", "")))
    kind = kind_of(name) if kind == OTHER else kind
    each = _BYTES.get(str(said.get("dtype", "")).lower().replace("_", "").removeprefix("torch."))
    given, got = _whole(said.get("elements")), _whole(said.get("elements_out"))
    if each is None or (given is None and got is None):
        return None
    members = _numbers(said.get("ranks"))
    ranks = _whole(said.get("size")) or (len(set(members)) if members else 0)
    if members and len(set(members)) != ranks:
        ranks = 0  # which of the two is right cannot be told
    size = _size(kind, ranks, given, got)
    if size is None or size * each >= 1 << 62:  # beyond what a table holds, and any memory
        return None
    wire = wire_bytes(kind, ranks, size)
    if kind == ALL_GATHER and given is not None and got is not None and got >= given:
        wire = got - given  # what this rank has not
    elif kind == REDUCE_SCATTER and given is not None and got is not None and given >= got:
        wire = given - got  # its sums for others
    elif kind == ALL_TO_ALL and ("split_in" in said or "split_out" in said):
        wire = _uneven(said, members, rank, given, got)
    if _SWITCH.search(name):
        return Message(kind, ranks, size * each, None, how, switch=True)
    return Message(
        kind, ranks, size * each, None if wire is None else wire * each, how, _plain(name)
    )  # fmt: skip


def _size(kind: str, ranks: int, given: int | None, got: int | None) -> int | None:
    """Elements of a collective by NCCL's convention, from what a rank gives and gets."""
    if kind == ALL_GATHER:
        return got if got is not None else given * ranks if given is not None and ranks else None
    if kind == REDUCE_SCATTER:
        return given if given is not None else got * ranks if got is not None and ranks else None
    return (
        max(x for x in (given, got, 0) if x is not None)
        if kind == SEND
        else given
        if given is not None
        else got
    )


def _uneven(
    said: Mapping[str, Any], members: list[int] | None, rank: int, given: int | None, got: int | None
) -> float | None:
    """Elements that an all-to-all of unequal parts sends or receives, the larger; ``None`` where not all is known."""
    if members is None or rank not in members:
        return None
    out = []
    for key, whole in (("split_in", given), ("split_out", got)):
        if whole is None:
            return None
        parts = _numbers(said.get(key)) if key in said else [1] * len(members)
        if parts is None or len(parts) != len(members):
            return None
        total = sum(parts)
        out.append(whole * (total - parts[members.index(rank)]) / total if total else 0.0)
    return max(out)


def _model(names: np.ndarray, step: np.ndarray, steps: int, w: Workload) -> dict[str, Message]:
    """Kind -> message of the bundled step, where its collectives are exactly as many as that step has."""
    if not w.bundled or w.ranks < 2 or w.geometry is None or w.batch is None or not steps:
        return {}
    kinds = np.array([kind_of(n) for n in names], dtype=object)
    nccl = np.array([_plain(n) for n in names], dtype=bool)
    if any(_SWITCH.search(n) for n in set(names.tolist())):
        return {}
    sizes = {  # bf16: one for the embedding and two per layer; the logits of all ranks' parts of the vocabulary
        ALL_REDUCE: (2 * len(w.geometry.layers) + 1, w.batch * w.geometry.hidden * 2),
        ALL_GATHER: (1, w.batch * w.geometry.vocab * w.ranks * 2),
    }
    expected = {k: n for k, (n, _) in sizes.items()}
    for s in range(steps):
        mine = kinds[step == s]
        if {k: int((mine == k).sum()) for k in set(mine)} != expected:
            return {}
    return {
        k: Message(k, w.ranks, size, wire_bytes(k, w.ranks, size), MODEL, bool(nccl[kinds == k].all()))
        for k, (_, size) in sizes.items()
    }


def _plain(name: str) -> bool:
    """Whether a kernel is one of NCCL's that leaves the adding to GPUs."""
    return bool(_NCCL.search(name)) and not _SWITCH.search(name)


def _whole(value: Any) -> int | None:
    """A whole number from 0 that fits int64; ``None`` for anything else."""
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        return None
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 <= number < 1 << 63 else None


def _numbers(text: Any) -> list[int] | None:
    """Numbers of a list as Kineto writes it; ``None`` where there is none or it was shortened."""
    if not isinstance(text, str) or not _LIST.fullmatch(text):
        return None
    return [int(x) for x in re.findall(r"\d+", text)]
