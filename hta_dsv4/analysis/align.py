"""Which kernels became which: the launch sequences of one decode step, aligned between two variants.

A table by name says that five kernels are gone and one is new; the order says that the one stands where the five stood.
The two sequences are aligned by longest common subsequence, in three passes that each fill the gaps of the one before:

1. kernels with the same name, grid and number of launches per step on both sides: what nobody touched;
2. any kernel with the same (matched) name and grid;
3. any kernel with the same (matched) name.

Where launches carry layer scopes (``layer.7/...``) on both sides, each layer is aligned with the same layer. What lies
between two aligned kernels is a rewrite; equal rewrites (one per layer) are counted together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hta_dsv4.analysis.names import Match
from hta_dsv4.analysis.sequences import StepSequence
from hta_dsv4.classify.names import normalise
from hta_dsv4.trace.subsequence import common_subsequence

FUSED, SPLIT, REPLACED, REMOVED, ADDED, REWRITTEN = (
    "fused",
    "split",
    "replaced",
    "removed",
    "added",
    "rewritten",
)
MAX_CELLS = 2_000_000_000  # bits of working memory: 250 MB
_COMBINES = ("combine", "merge", "splitkreduce", "reduce")


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

    base: StepSequence = field(repr=False)
    other: StepSequence = field(repr=False)
    pairs: tuple[tuple[int, int], ...] = field(repr=False)
    rewrites: tuple[Rewrite, ...]
    by_layer: bool
    reason: str = ""

    @property
    def kept_ns(self) -> int:
        """Change of time (other minus base) of the kernels that both run at the same place."""
        paired_in_split = sum(r.base_ns - r.other_ns for r in self.rewrites)
        return int(self.other.dur_ns.sum() - self.base.dur_ns.sum()) + paired_in_split


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
