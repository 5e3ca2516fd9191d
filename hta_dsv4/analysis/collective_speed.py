"""How near to its link's speed is each kind of collective, and is it bound by latency or by bandwidth?

Time is *transfer*, the wait for the last rank taken off (:mod:`hta_dsv4.analysis.waits`): by its whole duration a
collective that waited would look slow. So all ranks of a group must be loaded; else times hold waits that nobody can
tell apart, and no verdict is given. It is judged by two figures of the link (:mod:`hta_dsv4.analysis.links`): what the
bytes take at its bandwidth, and what NCCL takes for the smallest message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hta_dsv4.analysis.collective_calls import AT, UNNAMED, called
from hta_dsv4.analysis.communication import Communication
from hta_dsv4.analysis.costs.workload import Workload
from hta_dsv4.analysis.links import ONE_SHOT, Link
from hta_dsv4.analysis.messages import Messages, messages
from hta_dsv4.analysis.rank_parts import RankPart
from hta_dsv4.analysis.waits import GroupWaits
from hta_dsv4.analysis.wire import ALL_REDUCE, MODEL, Message, size_said, wire_bytes
from hta_dsv4.trace import activities as col

LATENCY, BANDWIDTH, NEITHER, NOT_BANDWIDTH = "latency", "bandwidth", "neither", "not bandwidth"
_NEAR = 2.0
"""Up to so many times the sum of both sides, the longer side is called the bound."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Collectives of one group that carry the same by the same kernel, over the counted steps.

    Attributes:
        group: the process group's name; empty where the trace says none.
        message: what each carries; of unequal parts, that of the rank with most bytes to send or receive.
        kernel: the kernel's name.
        ranks: of the group; 0 where unknown.
        collectives: how many in all; ``steps`` counted steps, 0 without.
        taken_ns: their transfer in all, ns; where ``upper``, their time with waits for ranks that are not loaded.
        upper: whether ranks are not loaded.
        link_gb_s: the link's bandwidth one way; ``None`` where it is not known.
        link_ns, latency_ns: of one collective: what its bytes take over the link, and what NCCL takes for the smallest
            message on so many ranks; ``None`` where not known.
        alone_ns: what NCCL takes at this size with nothing beside it; ``one_shot_ns`` an all-reduce in one shot.
    """

    group: str
    message: Message
    kernel: str
    ranks: int
    collectives: int
    steps: int
    taken_ns: int
    upper: bool
    link_gb_s: float | None = None
    link_ns: float | None = None
    latency_ns: float | None = None
    alone_ns: float | None = None
    one_shot_ns: float | None = None

    @property
    def per_step(self) -> float:
        """Collectives a step; all of them without steps."""
        return self.collectives / max(self.steps, 1)

    @property
    def each_ns(self) -> float:
        """Mean time of one, ns."""
        return self.taken_ns / self.collectives

    @property
    def algorithm_gb_s(self) -> float | None:
        """Size over time, 10^9 bytes/s; ``None`` where either is not known."""
        return self._rate(self.message.nbytes)

    @property
    def bus_gb_s(self) -> float | None:
        """What each GPU must send or receive over time: NCCL's bus bandwidth, 10^9 bytes/s."""
        return self._rate(self.message.wire)

    @property
    def link_share(self) -> float | None:
        """Bus bandwidth as a part of the link's."""
        bus = self.bus_gb_s
        return None if bus is None or self.link_gb_s is None else bus / self.link_gb_s

    @property
    def bound(self) -> str:
        """The side that bounds it; empty where that cannot be said.

        :data:`LATENCY`, :data:`BANDWIDTH`, :data:`NEITHER` (it takes more than twice what both add up to), or
        :data:`NOT_BANDWIDTH` (under half of the link's, and no latency was measured for so many ranks).
        """
        if self.upper or self.link_ns is None or not self.taken_ns:
            return ""
        if self.latency_ns is None:
            return BANDWIDTH if self.link_ns * _NEAR >= self.each_ns else NOT_BANDWIDTH
        if self.each_ns > _NEAR * (self.link_ns + self.latency_ns):
            return NEITHER
        return BANDWIDTH if self.link_ns >= self.latency_ns else LATENCY

    @property
    def sentence(self) -> str:
        """The verdict in words; empty where there is none."""
        bound, share = self.bound, self.link_share
        if not bound or self.link_ns is None or share is None or self.message.nbytes is None:
            return ""
        said = (
            f"{self.message.kind} of {size_said(self.message.nbytes)} in {self.each_ns / 1e3:,.1f} us is "
            f"{self.bus_gb_s:,.1f} GB/s, {100 * share:.0f} % of the link: "
        )
        at_speed = f"at the link's speed its bytes take {self.link_ns / 1e3:,.1f} us"
        if bound == NOT_BANDWIDTH:
            return f"{said}not bound by bandwidth ({at_speed}); the latency of {self.ranks} ranks was not measured"
        smallest = (
            "" if self.latency_ns is None else f", NCCL's smallest message {self.latency_ns / 1e3:,.1f} us"
        )
        alone = (
            ""
            if self.alone_ns is None
            else f"; with nothing beside it NCCL takes {self.alone_ns / 1e3:,.1f} us"
        )
        name = "bound by neither latency nor bandwidth" if bound == NEITHER else f"bound by {bound}"
        return f"{said}{name}; {at_speed}{smallest}{alone}"

    def _rate(self, nbytes: float | None) -> float | None:
        return None if nbytes is None or self.upper or not self.taken_ns else nbytes / self.each_ns


@dataclass(frozen=True, slots=True)
class CollectiveSpeeds:
    """The collectives of a run by what they carry.

    Attributes:
        label: the variant's name.
        rows: most time first.
        link: what joins the GPUs; ``None`` where that is not known.
        notes: what the reader should know, one sentence each.
    """

    label: str
    rows: tuple[Speed, ...]
    link: Link | None = None
    notes: tuple[str, ...] = ()


def collective_speeds(
    said: Communication, parts: Sequence[RankPart], w: Workload | None, link: Link | None, *, missing: bool = False,
    no_link: str = "",
) -> CollectiveSpeeds:  # fmt: skip
    """Bytes, bandwidth and bound of the collectives of a run.

    Args:
        said: its collectives, transfer and wait apart.
        parts: its ranks.
        w: what was decoded, for the sizes of the bundled step.
        link: what joins its GPUs.
        missing: whether ranks of the run are not loaded.
        no_link: why there is no link, a sentence.

    Returns:
        The rows. With one rank they have its times with its waits, no bandwidth and no verdict.
    """
    if len(parts) == 1:
        rows = _of_one(parts[0], w, link)
    else:
        by_rank = {p.rank: p for p in parts}
        # All of a rank's collectives at once: whether they are the model's is told by how many a step has.
        told = {p.rank: _messages(p, w) for p in parts} if said.groups else {}
        rows = [s for g in said.groups for s in _of_group(g, by_rank, told, link, missing)]
    rows.sort(key=lambda s: (-s.taken_ns, s.group, s.message.kind, s.kernel))
    return CollectiveSpeeds(said.label, tuple(rows), link, tuple(_notes(rows, link, no_link, len(parts))))


def _messages(part: RankPart, w: Workload | None) -> Messages:
    """What the collectives of one rank carry."""
    rows = called(part)[0][AT].to_numpy(dtype=np.int64)
    return messages(part.activities, part.step, part.steps, rows, w, part.rank)


def _of_group(
    g: GroupWaits,
    by_rank: Mapping[int, RankPart],
    told: Mapping[int, Messages],
    link: Link | None,
    missing: bool,
) -> Iterable[Speed]:
    """The collectives of a group, by message and kernel."""
    which = np.flatnonzero(g.counted)
    each = [told[r].at(rows) for r, rows in zip(g.ranks, g.aligned.rows[:, which], strict=True)]
    first = by_rank[g.ranks[0]]
    names = first.activities[col.NAME].iloc[g.aligned.rows[0, which]].astype(str)
    loaded = len(g.ranks) + len(g.aligned.absent)
    several = missing and g.aligned.group == UNNAMED
    found: dict[tuple[Message, str], list[int]] = {}
    for k, name in enumerate(names.tolist()):
        most = max((m[k] for m in each), key=lambda m: (m.wire or -1, m.nbytes or -1))
        found.setdefault((most, name), []).append(k)
    for (message, name), ks in found.items():
        ranks = message.ranks or (0 if several else loaded)
        if message.wire is None and not message.ranks and message.nbytes is not None and not message.switch:
            message = replace(message, wire=wire_bytes(message.kind, ranks, message.nbytes))
        upper = ranks > len(g.ranks) or bool(g.aligned.absent) or not ranks
        taken = int(g.transfer[which[ks]].sum())
        yield _speed(g.aligned.group, message, name, ranks, len(ks), g.steps, taken, upper, link)


def _of_one(part: RankPart, w: Workload | None, link: Link | None) -> list[Speed]:
    """The collectives of one rank alone: their sizes, and times that hold its waits."""
    found_of = _messages(part, w)
    rows = found_of.rows
    told = found_of.at(rows)
    counted = part.step[rows] >= 0 if part.steps else np.ones(len(rows), bool)
    names = part.activities[col.NAME].iloc[rows].astype(str).to_numpy()
    dur = part.end[rows] - part.start[rows]
    found: dict[tuple[Message, str], list[int]] = {}
    for k in np.flatnonzero(counted).tolist():
        found.setdefault((told[k], names[k]), []).append(k)
    return [
        _speed("", m, name, m.ranks, len(ks), part.steps, int(dur[ks].sum()), True, link)
        for (m, name), ks in found.items()
    ]


def _speed(
    group: str, message: Message, name: str, ranks: int, collectives: int, steps: int, taken: int, upper: bool,
    link: Link | None,
) -> Speed:  # fmt: skip
    made = Speed(group, message, name, ranks, collectives, steps, taken, upper)
    if link is None or not link.joins(ranks):
        return made
    kind, nbytes = message.kind, message.nbytes
    known = message.nccl and nbytes is not None
    return replace(
        made,
        link_gb_s=link.gb_s,
        link_ns=None if message.wire is None else link.wire_ns(message.wire),
        latency_ns=link.latency_ns(kind, ranks) if message.nccl else None,
        alone_ns=link.alone_ns(kind, ranks, nbytes) if known and nbytes is not None else None,
        one_shot_ns=link.alone_ns(ONE_SHOT, ranks, nbytes)
        if kind == ALL_REDUCE and nbytes is not None
        else None,
    )


def _notes(rows: Sequence[Speed], link: Link | None, no_link: str, loaded: int) -> Iterable[str]:
    if not rows:
        return
    if loaded == 1:
        yield (
            "one rank: its time in a collective holds its wait for the others, which cannot be told from transfer "
            "here, so there is no bandwidth and no verdict"
        )
    elif any(s.upper for s in rows):
        yield "ranks of a group are not loaded: times hold waits for them, so there is no bandwidth and no verdict"
    if link is None:
        yield no_link or "the links of this GPU are not known, so nothing is held against them"
    elif any(s.link_ns is not None and not s.upper for s in rows):
        yield from link.sentences()
        yield "all GPUs of a group are taken to be of one host"
    beyond = sorted({s.ranks for s in rows if link is not None and s.ranks > link.gpus})
    if link is not None and beyond:
        many = ", ".join(map(str, beyond))
        yield f"groups of {many} ranks: {link.name} joins at most {link.gpus} GPUs of one host, so no share of it"
    if any(s.message.how == MODEL for s in rows):
        yield "sizes come from the model's shapes: this is the bundled step, with exactly its collectives"
    lost = sum(s.collectives for s in rows if s.message.nbytes is None)
    if lost:
        yield (
            f"{lost:,} collectives have no size: a graph's kernels carry none; an eager capture of the same step does "
            "(--companion)"
        )
    if any(s.message.switch for s in rows):
        yield "collectives that a switch adds up or copies may send less than usual: no bandwidth for them"
