"""Which kernels became which: the launch sequences of one decode step, aligned between two variants.

A table by name says that five kernels are gone and one is new; the order says that the one stands where the five stood.
The two sequences are aligned by longest common subsequence, in three passes that each fill the gaps of the one before:

1. kernels with the same name, grid and number of launches per step on both sides: what nobody touched;
2. any kernel with the same (matched) name and grid;
3. any kernel with the same (matched) name.

Where launches carry layer scopes (``layer.7/...``) on both sides, each layer is aligned with the same layer. What lies
between two aligned kernels is a rewrite; equal rewrites (one per layer) are counted together.

The common subsequence is exact: bit-parallel (Crochemore et al. 2001), 8,000 x 6,000 kernels take well
under a second.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from hta_dsv4.analysis.counted import Counted
from hta_dsv4.analysis.diff import apportion
from hta_dsv4.analysis.names import Match
from hta_dsv4.analysis.shares import divide_half_even
from hta_dsv4.classify.names import normalise
from hta_dsv4.trace import activities as col

FUSED, SPLIT, REPLACED, REMOVED, ADDED, REWRITTEN = (
    "fused",
    "split",
    "replaced",
    "removed",
    "added",
    "rewritten",
)
MAX_CELLS = 2_000_000_000  # bits of working memory: 250 MB
_LAYER = re.compile(r"(?:^|[^A-Za-z])layers?[._/ \[](\d+)")
_COMBINES = ("combine", "merge", "splitkreduce", "reduce")


@dataclass(frozen=True)
class StepSequence:
    """The launches of a typical step, in order.

    Attributes:
        names, grids, roles: one per launch.
        layers: the layer's number from the scope, or ``None``.
        dur_ns: int64 [launches]: mean over the steps that run this very sequence, in whole ns that add up.
        alike, steps: how many of the counted steps run it.
    """

    names: tuple[str, ...]
    grids: tuple[tuple[int, int, int], ...]
    roles: tuple[str, ...]
    layers: tuple[str | None, ...]
    dur_ns: np.ndarray
    alike: int
    steps: int


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Kernels of the base that became others, at one or more places of the step.

    Attributes:
        kind: ``fused`` (n became 1), ``split`` (1 became n), ``replaced`` (1 became 1), ``removed``, ``added``,
            ``rewritten`` (n became m).
        base, other: names in order.
        times: places per step.
        base_ns, other_ns: time of all places, per step.
        layers: the layers it happens in, in order; empty where scopes do not say.
        confidence: 0..1: 0.9 where the new names speak of the old kernels or of fusing or combining, 0.6 where only
            the position says so; 1 for removed and added.
    """

    kind: str
    base: tuple[str, ...]
    other: tuple[str, ...]
    times: int
    base_ns: int
    other_ns: int
    layers: tuple[str, ...]
    confidence: float

    @property
    def saved_ns(self) -> int:
        """Time saved per step; negative where it costs."""
        return self.base_ns - self.other_ns

    @property
    def saved_launches(self) -> int:
        """Launches saved per step; negative where there are more."""
        return (len(self.base) - len(self.other)) * self.times


@dataclass(frozen=True)
class Alignment:
    """Two step sequences, aligned.

    Attributes:
        base, other: the sequences.
        pairs: positions ``(base, other)`` of kernels that are the same, increasing in both.
        rewrites: what is not the same, most time first. With ``kept_ns`` they add up to the difference of the steps.
        by_layer: whether layers were aligned with layers.
        reason: why there is no alignment, or ``""``.
    """

    base: StepSequence
    other: StepSequence
    pairs: tuple[tuple[int, int], ...]
    rewrites: tuple[Rewrite, ...]
    by_layer: bool
    reason: str = ""

    @property
    def kept_ns(self) -> int:
        """Change of time (other minus base) of the kernels that both run at the same place."""
        paired_in_split = sum(r.base_ns - r.other_ns for r in self.rewrites)
        return int(self.other.dur_ns.sum() - self.base.dur_ns.sum()) + paired_in_split


def step_sequence(part: Counted) -> StepSequence:
    """The most frequent launch sequence of the counted steps (of equally frequent ones, the earliest).

    Args:
        part: the counted part of one rank, classified, at least one step.

    Returns:
        The sequence, in launch order where launches are known, else in order of start.
    """
    acts = part.activities
    start = acts[col.START_NS].to_numpy()
    launch = start
    if col.LAUNCH_START_NS in acts:
        known = acts[col.LAUNCH_START_NS].to_numpy(dtype="float64", na_value=np.nan)
        if not np.isnan(known).any():
            launch = acts[col.LAUNCH_START_NS].to_numpy(dtype=np.int64)
    order = np.lexsort((np.arange(len(start)), start, launch, part.step))
    grid = np.stack(
        [acts[c].fillna(0).to_numpy(dtype=np.int64) for c in (col.GRID_X, col.GRID_Y, col.GRID_Z)], axis=1
    )
    name_codes = acts[col.NAME].cat.codes.to_numpy()
    token = pd.factorize(pd.MultiIndex.from_arrays([name_codes, *grid.T]))[0][order]
    bounds = np.searchsorted(part.step[order], np.arange(part.steps + 1))
    spans = [slice(a, b) for a, b in pairwise(bounds)]
    seen = Counter(token[s].tobytes() for s in spans)
    typical = max(
        seen, key=lambda t: (seen[t], -next(i for i, s in enumerate(spans) if token[s].tobytes() == t))
    )
    alike = [s for s in spans if token[s].tobytes() == typical]
    dur = acts[col.DUR_NS].to_numpy()[order]
    total = sum((dur[s] for s in alike), np.zeros(alike[0].stop - alike[0].start, dtype=np.int64))
    mean = apportion(divide_half_even(int(total.sum()), len(alike)), [int(t) for t in total], len(alike))
    rows = order[alike[0]]
    scopes = acts[col.SCOPE].iloc[rows] if col.SCOPE in acts else pd.Series([None] * len(rows))
    layer_of = {s: _layer(str(s)) for s in scopes.unique() if isinstance(s, str)}
    return StepSequence(
        names=tuple(acts[col.NAME].iloc[rows].astype(str)),
        grids=tuple((int(x), int(y), int(z)) for x, y, z in grid[rows]),
        roles=tuple(acts[col.ROLE].iloc[rows].astype(str)),
        layers=tuple(layer_of.get(s) for s in scopes),
        dur_ns=np.array(mean, dtype=np.int64),
        alike=len(alike),
        steps=part.steps,
    )


def _layer(scope: str) -> str | None:
    found = _LAYER.search(scope)
    return found[1] if found else None


def common_subsequence(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """A longest common subsequence.

    Args:
        a: tokens; ``None`` equals nothing.
        b: the same of the other side.

    Returns:
        Positions ``(in a, in b)``, increasing in both.
    """
    head = 0
    while head < min(len(a), len(b)) and a[head] == b[head] and a[head] is not None:
        head += 1
    tail = 0
    while tail < min(len(a), len(b)) - head and a[-1 - tail] == b[-1 - tail] and a[-1 - tail] is not None:
        tail += 1
    pairs = [(i, i) for i in range(head)]
    rows, columns = a[head : len(a) - tail], b[head : len(b) - tail]
    where: dict[Hashable, int] = {}
    for j, token in enumerate(columns):
        if token is not None:
            where[token] = where.get(token, 0) | (1 << j)
    full = state = (1 << len(columns)) - 1
    # Bit j of a row is 0 where the common subsequence of the prefixes grows at column j.
    states: list[int] = []
    for token in rows:
        hit = state & where.get(token, 0)
        state = ((state + hit) | (state - hit)) & full
        states.append(state)
    middle: list[tuple[int, int]] = []
    i, j = len(rows), len(columns)
    while i and j:
        if states[i - 1] >> (j - 1) & 1:
            j -= 1
        elif i > 1 and not states[i - 2] >> (j - 1) & 1:
            i -= 1
        else:
            i, j = i - 1, j - 1
            middle.append((head + i, head + j))
    pairs += reversed(middle)
    return pairs + [(len(a) - k, len(b) - k) for k in range(tail, 0, -1)]


def align(base: StepSequence, other: StepSequence, matches: Sequence[Match]) -> Alignment:
    """Align two step sequences.

    Args:
        base: one typical step.
        other: one typical step of the other variant.
        matches: which kernel is which, as :func:`hta_dsv4.analysis.names.match_names` gives it.

    Returns:
        The alignment; with a reason and without pairs where the sequences are too long.
    """
    n, m = len(base.names), len(other.names)
    if n * m > MAX_CELLS:
        reason = f"{n:,} and {m:,} launches per step are too many to align"
        return Alignment(base, other, (), (), False, reason)
    left = {x: k for k, match in enumerate(matches) for x in match.base}
    right = {x: k for k, match in enumerate(matches) for x in match.other}
    a, b = [left[x] for x in base.names], [right[x] for x in other.names]
    with_grid = (list(zip(a, base.grids, strict=True)), list(zip(b, other.grids, strict=True)))
    counts = Counter(with_grid[0]), Counter(with_grid[1])
    untouched = tuple([t if counts[0][t] == counts[1][t] else None for t in side] for side in with_grid)
    passes: list[tuple[Sequence[Hashable], Sequence[Hashable]]] = [
        (untouched[0], untouched[1]),
        with_grid,
        (a, b),
    ]

    areas, by_layer = _areas(base, other)
    pairs: list[tuple[int, int]] = []
    for area in areas:
        pairs += _fill(area, passes)
    return Alignment(base, other, tuple(pairs), _rewrites(base, other, pairs, by_layer), by_layer)


_Area = tuple[int, int, int, int]  # base from, to, other from, to


def _fill(
    area: _Area, passes: Sequence[tuple[Sequence[Hashable], Sequence[Hashable]]]
) -> list[tuple[int, int]]:
    a0, a1, b0, b1 = area
    if not passes or a0 == a1 or b0 == b1:
        return []
    a, b = passes[0]
    found = [(a0 + i, b0 + j) for i, j in common_subsequence(a[a0:a1], b[b0:b1])]
    out: list[tuple[int, int]] = []
    at = (a0, b0)
    for i, j in [*found, (a1, b1)]:
        out += _fill((at[0], i, at[1], j), passes[1:])
        if i < a1:
            out.append((i, j))
        at = (i + 1, j + 1)
    return out


def _areas(base: StepSequence, other: StepSequence) -> tuple[list[_Area], bool]:
    """One area per layer and per stretch between layers, where both sides run the same layers in the same order."""
    whole = [(0, len(base.names), 0, len(other.names))]
    left, right = _layer_spans(base.layers), _layer_spans(other.layers)
    if left is None or right is None or list(left) != list(right):
        return whole, False
    areas: list[_Area] = []
    a, b = 0, 0
    for layer, (a0, a1) in left.items():
        b0, b1 = right[layer]
        areas += [(a, a0, b, b0), (a0, a1, b0, b1)]
        a, b = a1, b1
    return [*areas, (a, len(base.names), b, len(other.names))], True


def _layer_spans(layers: Sequence[str | None]) -> dict[str, tuple[int, int]] | None:
    """Layer -> first and last position + 1; ``None`` where there are no layers or they interleave."""
    spans: dict[str, tuple[int, int]] = {}
    for i, layer in enumerate(layers):
        if layer is not None:
            spans[layer] = (spans[layer][0] if layer in spans else i, i + 1)
    ends = list(spans.values())
    apart = all(x[1] <= y[0] for x, y in pairwise(ends))
    return spans if spans and apart else None


def _rewrites(
    base: StepSequence, other: StepSequence, pairs: Sequence[tuple[int, int]], by_layer: bool
) -> tuple[Rewrite, ...]:
    groups: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[tuple[range, range]]] = {}
    at = (0, 0)
    for i, j in [*pairs, (len(base.names), len(other.names))]:
        gone, new = range(at[0], i), range(at[1], j)
        if gone or new:
            # A combine behind a kernel that kept its name: that kernel was split in two.
            if not gone and at[0] and _is_combine(other, new):
                gone, new = range(at[0] - 1, i), range(at[1] - 1, j)
            kind = _kind(len(gone), len(new))
            key = (kind, tuple(base.names[k] for k in gone), tuple(other.names[k] for k in new))
            groups.setdefault(key, []).append((gone, new))
        at = (i + 1, j + 1)
    out = []
    for (kind, old, now), places in groups.items():
        layers = dict.fromkeys(
            layer
            for gone, new in places
            for layer in [*(base.layers[k] for k in gone), *(other.layers[k] for k in new)]
            if by_layer and layer is not None
        )
        out.append(
            Rewrite(
                kind, old, now, len(places),
                int(sum(base.dur_ns[g.start : g.stop].sum() for g, _ in places)),
                int(sum(other.dur_ns[n.start : n.stop].sum() for _, n in places)),
                tuple(layers), _confidence(kind, old, now),
            )
        )  # fmt: skip
    return tuple(sorted(out, key=lambda r: (-abs(r.saved_ns), -abs(r.saved_launches), r.base, r.other)))


def _is_combine(sequence: StepSequence, new: range) -> bool:
    first = new.start - 1
    return (
        len(new) == 1
        and "combine" in sequence.roles[new[0]]
        and sequence.roles[first].rsplit("_", 1)[0] == sequence.roles[new[0]].rsplit("_", 1)[0]
    )


def _kind(old: int, new: int) -> str:
    if not old:
        return ADDED
    if not new:
        return REMOVED
    if old == 1:
        return REPLACED if new == 1 else SPLIT
    return FUSED if new == 1 else REWRITTEN


def _confidence(kind: str, old: Sequence[str], new: Sequence[str]) -> float:
    if kind in (REMOVED, ADDED):
        return 1.0
    before = {w for name in old for w in _words(name)}
    after = {w for name in new for w in _words(name)}
    if kind == FUSED and (before & after or any(w.startswith("fuse") for w in after)):
        return 0.9
    if kind == SPLIT and (before & after or any(w in _COMBINES for w in after)):
        return 0.9
    return 0.9 if kind in (REPLACED, REWRITTEN) and before & after else 0.6


def _words(name: str) -> set[str]:
    plain = {
        "kernel",
        "void",
        "at",
        "native",
        "cutlass",
        "gemm",
        "elementwise",
        "fused",
        "triton",
        "poi",
        "red",
    }
    return {w for w in normalise(name).path.strip("_").split("_") if len(w) > 2 and w not in plain}
