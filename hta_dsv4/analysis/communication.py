"""Collectives of all process groups of a run as tables: by collective, by rank, by layer, by cause.

Times are ns over the counted steps (over everything where there are no steps); callers divide by the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hta_dsv4.analysis import segments as seg
from hta_dsv4.analysis.clocks import ClockFit
from hta_dsv4.analysis.collective_calls import ELEMENTS
from hta_dsv4.analysis.collective_layers import spell
from hta_dsv4.analysis.collectives import Unaligned
from hta_dsv4.analysis.rank_parts import Ints, RankPart
from hta_dsv4.analysis.stragglers import Straggler
from hta_dsv4.analysis.waits import GroupWaits, find_waits


@dataclass(frozen=True, slots=True, eq=False)
class Communication:
    """What the ranks of a run say to each other.

    Attributes:
        label: the variant's name.
        ranks: those loaded.
        groups: the process groups whose collectives were aligned, taken apart.
        failed: those that were not, with the reason.
        notes: what the reader should know, one sentence each.
    """

    label: str
    ranks: tuple[int, ...]
    groups: tuple[GroupWaits, ...]
    failed: tuple[Unaligned, ...]
    notes: tuple[str, ...] = ()

    @property
    def table(self) -> pd.DataFrame:
        """One row per collective and rank, all groups (:func:`waits_table`)."""
        return _joined([waits_table(g) for g in self.groups])

    @property
    def stragglers(self) -> tuple[tuple[GroupWaits, Straggler], ...]:
        """What is blamed, the most costly first, with the group it was found in."""
        found = [(g, s) for g in self.groups for s in g.stragglers]
        return tuple(sorted(found, key=lambda x: -x[1].late_ns))

    @property
    def hidden(self) -> tuple[tuple[GroupWaits, Straggler], ...]:
        """More work of a rank that nobody, or not mainly, waited for, the most first."""
        found = [(g, s) for g in self.groups for s in g.hidden]
        return tuple(sorted(found, key=lambda x: -x[1].extra_ns))

    @property
    def clocks(self) -> tuple[tuple[str, ClockFit], ...]:
        """Every clock fit, with the name of the group it was made from; the reference ranks left out."""
        return tuple((g.aligned.group, c) for g in self.groups for c in g.clocks if c.rank != c.reference)

    @property
    def by_rank(self) -> pd.DataFrame:
        """Collectives, transfer and wait of each rank (:func:`rank_table`)."""
        return _joined([rank_table(g) for g in self.groups])

    @property
    def by_layer(self) -> pd.DataFrame:
        """Transfer and wait of each layer's halves (:func:`layer_table`)."""
        return _joined([layer_table(g) for g in self.groups])

    @property
    def causes(self) -> pd.DataFrame:
        """What late ranks had more of (:func:`causes_table`)."""
        return _joined([causes_table(g) for g in self.groups])


def communication(label: str, parts: Sequence[RankPart], notes: Sequence[str] = ()) -> Communication:
    """Align the collectives of a run's ranks and take them apart.

    Args:
        label: the variant's name.
        parts: its ranks.
        notes: what is known already, one sentence each.

    Returns:
        The result; without groups, and with the reason, where there is nothing to align.
    """
    groups, failed, more = find_waits(parts)
    ranks = tuple(p.rank for p in parts)
    said = [*notes, *more]
    if len(parts) < 2:
        said.append("one rank: what its collectives waited for shows only beside the others' traces")
    elif not groups and not failed:
        said.append("no collective kernel in any rank")
    for g in groups:
        if g.aligned.absent:
            absent = ", ".join(map(str, g.aligned.absent))
            said.append(
                f"{named(g)}: ranks {absent} are not loaded, so transfer may hold waits for them (an upper bound)"
            )
        for rank, alone in g.aligned.alone.items():
            said.append(f"{named(g)}: {alone} collectives of rank {rank} are not on every rank and left out")
    return Communication(label, ranks, tuple(groups), tuple(failed), tuple(said))


def named(group: GroupWaits | Unaligned) -> str:
    """``group 1 of ranks 0, 1``; a group that the trace does not name goes by its ranks alone."""
    name, ranks = (
        (group.group, group.ranks) if isinstance(group, Unaligned) else (group.aligned.group, group.ranks)
    )
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"{f'group {name}' if name else 'the group'} of ranks {shown}"


def place_name(group: GroupWaits, place: int) -> str:
    """Where in the step a collective is: ``layer 17 attention``, else ``collective 35 of 87``."""
    at = np.flatnonzero(group.aligned.place == place)
    known = spell(group.layers.layer[int(at[0])], group.layers.half[int(at[0])]) if len(at) else None
    return known or f"collective {place + 1} of {group.aligned.places}"


def rank_table(group: GroupWaits) -> pd.DataFrame:
    """Per rank over the counted collectives.

    Args:
        group: a group, taken apart.

    Returns:
        ``group, rank, steps, collectives, dur_ns, transfer_ns, wait_ns, last`` (collectives that it came last to, by
        more than the noise) and ``late_ns`` (by how much, added).
    """
    which, late = group.counted, group.late
    by = group.lateness[late, np.arange(len(late))]
    beyond = which & (by > group.noise_ns)
    rows = []
    for i, rank in enumerate(group.ranks):
        mine = beyond & (late == i)
        rows.append((
            group.aligned.group, rank, group.steps, int(which.sum()), int(group.dur[i, which].sum()),
            int(group.transfer[which].sum()), int(group.wait[i, which].sum()), int(mine.sum()), int(by[mine].sum()),
        ))  # fmt: skip
    columns = ["group", "rank", "steps", "collectives", "dur_ns", "transfer_ns", "wait_ns", "last", "late_ns"]
    return pd.DataFrame(rows, columns=columns)


def layer_table(group: GroupWaits) -> pd.DataFrame:
    """Per layer and half, over the counted collectives.

    Args:
        group: a group, taken apart.

    Returns:
        ``group, layer, half, steps, collectives, transfer_ns, wait_ns`` (mean over ranks, rounded), ``most_wait_ns``
        and ``most_wait_rank``; layers in order, what is in none first. Empty where no layer is known.
    """
    which = np.flatnonzero(group.counted)
    columns = [
        "group", "layer", "half", "steps", "collectives", "transfer_ns", "wait_ns", "most_wait_ns", "most_wait_rank",
    ]  # fmt: skip
    layers = group.layers
    keys: dict[tuple[int, str], list[int]] = {}
    for k in which.tolist():
        layer, half = layers.layer[k], layers.half[k]
        if layer is not None or half is not None:
            keys.setdefault((-1 if layer is None else layer, half or ""), []).append(k)
    rows = []
    for (layer, half), ks in sorted(keys.items(), key=lambda x: (x[0][0], x[1][0])):
        waits = group.wait[:, ks].sum(axis=1)
        most = int(waits.argmax())
        rows.append((
            group.aligned.group, pd.NA if layer < 0 else layer, half, group.steps, len(ks),
            int(group.transfer[ks].sum()), round(float(waits.mean())), int(waits[most]), group.ranks[most],
        ))  # fmt: skip
    return pd.DataFrame(rows, columns=columns).astype({"layer": "Int64"})


def waits_table(group: GroupWaits) -> pd.DataFrame:
    """One row per collective and rank.

    Args:
        group: a group, taken apart.

    Returns:
        ``group, k, step, place, layer, half, what, elements, rank, start_ns`` (on the first rank's clock), ``dur_ns,
        transfer_ns, wait_ns, late_rank, lateness_ns`` (of the late rank), ``beyond_noise`` (whether that exceeds the
        clock fit's residual). int64 or Int64; step and place are NA outside counted steps.
    """
    a, n, ranks = group.aligned, len(group.aligned), len(group.ranks)
    late = group.late
    by = group.lateness[late, np.arange(n)]
    once = pd.DataFrame({
        "group": a.group, "k": np.arange(n), "step": _known(a.step), "place": _known(a.place),
        "layer": pd.array(list(group.layers.layer), dtype="Int64"),
        "half": pd.Series(list(group.layers.half), dtype="str"),
        "what": list(a.what), ELEMENTS: _known(a.elements), "transfer_ns": group.transfer,
        "late_rank": np.array(group.ranks)[late], "lateness_ns": by, "beyond_noise": by > group.noise_ns,
    })  # fmt: skip
    table = once.loc[np.repeat(np.arange(n), ranks)].reset_index(drop=True)
    table["rank"] = np.tile(np.array(group.ranks), n)
    table["start_ns"], table["dur_ns"], table["wait_ns"] = (
        x.T.reshape(-1) for x in (group.arrival, group.dur, group.wait)
    )
    order = [
        "group", "k", "step", "place", "layer", "half", "what", ELEMENTS, "rank", "start_ns", "dur_ns",
        "transfer_ns", "wait_ns", "late_rank", "lateness_ns", "beyond_noise",
    ]  # fmt: skip
    return table[order]


def causes_table(group: GroupWaits) -> pd.DataFrame:
    """What late ranks had more of, over the counted collectives whose lateness exceeds the noise.

    Each collective's lateness is divided among what its late rank had more of than the others' average, in
    proportion: an estimate, as what it had less of made good for part of it.

    Args:
        group: a group, taken apart.

    Returns:
        ``late_rank, bucket, origin, late_ns, collectives``, most time first; bucket ``idle`` is the host's, and
        ``no difference`` what no longer work or idle time of the late rank explains (the first collective of a run of
        steps, or a lateness from before).
    """
    a, late = group.aligned, group.late
    by = group.lateness[late, np.arange(len(a))]
    which = group.counted & (by > group.noise_ns)
    columns = ["late_rank", "bucket", "origin", "late_ns", "collectives"]
    if not which.any():
        return pd.DataFrame(
            {c: pd.Series([], dtype="str" if c in columns[1:3] else "int64") for c in columns}
        )
    keys = ("bucket", "origin")
    more = seg.excess(group.segments, late, which & a.follows, keys)
    more = more[more[seg.NS] > 0]
    share = more[seg.NS] / more.groupby(seg.K)[seg.NS].transform("sum")
    more = more.assign(late_ns=share * by[more[seg.K].to_numpy(dtype=np.int64)])
    rest = np.setdiff1d(np.flatnonzero(which), more[seg.K].to_numpy(dtype=np.int64))
    nothing = pd.DataFrame(
        {seg.K: rest, "bucket": "no difference", "origin": "", "late_ns": by[rest].astype(float)}
    )
    both = pd.concat([more[[seg.K, *keys, "late_ns"]], nothing], ignore_index=True)
    both["late_rank"] = np.array(group.ranks)[late][both[seg.K].to_numpy(dtype=np.int64)]
    table = both.groupby(["late_rank", *keys], as_index=False).agg(
        late_ns=("late_ns", "sum"), collectives=(seg.K, "nunique")
    )
    table["late_ns"] = table["late_ns"].round().astype("int64")
    table = table.sort_values(["late_ns", "late_rank"], ascending=[False, True], kind="stable")
    return table[columns].reset_index(drop=True)


def _known(values: Ints) -> pd.arrays.IntegerArray:
    return pd.arrays.IntegerArray(np.maximum(values, 0), values < 0)


def _joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    full = [t for t in tables if len(t)] or list(tables[:1])
    return pd.concat(full, ignore_index=True) if full else pd.DataFrame()
