"""Which layer, and which half of it, does each collective of a step serve?

Annotations around the launch say it (``layer.17/attention/out_proj``). Where there are none, as in CUDA graphs without
a companion, the number of collectives may: tensor parallelism needs one all-reduce for the embedding and two per layer,
behind attention and behind MoE. That reading is taken only where the count is exactly that of a known model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from hta_dsv4.analysis.collectives import Aligned
from hta_dsv4.analysis.rank_parts import RankPart
from hta_dsv4.classify.architecture import models
from hta_dsv4.trace import activities as col

EMBEDDING, ATTENTION, MOE, HEAD = "embedding", "attention", "moe", "head"
BY_SCOPE, BY_COUNT, UNTOLD = "scope", "count", "none"

_LAYER = re.compile(r"(?:^|[^A-Za-z])layers?[._/ \[]([0-9]{1,6})(?!_?\d)")
_ALL_REDUCE = re.compile(r"all_?reduce|cross_device_reduce", re.IGNORECASE)
# The part of the path behind the layer decides first: attention holds an MoE in no model, but names vary.
_HALVES = (
    (ATTENTION, re.compile(r"attn|attention", re.IGNORECASE)),
    (MOE, re.compile(r"moe|mlp|ffn|expert", re.IGNORECASE)),
)
_OUTSIDE = (
    (EMBEDDING, re.compile(r"embed", re.IGNORECASE)),
    (HEAD, re.compile(r"(?:^|[^A-Za-z])(?:lm_)?head|logits", re.IGNORECASE)),
)


@dataclass(frozen=True, slots=True)
class Layers:
    """Where each collective belongs.

    Attributes:
        layer: by collective, the layer's number; ``None`` outside layers and where it is not known.
        half: by collective, ``embedding, attention, moe, head``, or ``None``.
        how: ``scope``, ``count`` (inferred from how many there are in a step), or ``none``.
    """

    layer: tuple[int | None, ...]
    half: tuple[str | None, ...]
    how: str


def layers_of(part: RankPart, rows: np.ndarray, aligned: Aligned) -> Layers:
    """Read the layers of a group's collectives.

    Args:
        part: one rank.
        rows: int64 [collectives], their rows in its activities.
        aligned: the group.

    Returns:
        The layers; by scope where at least half of the collectives say one.
    """
    n = len(aligned)
    if col.SCOPE in part.activities:
        scopes = part.activities[col.SCOPE]
        told = [layer_of_scope(str(s)) for s in scopes.cat.categories] + [(None, None)]
        found = [told[c] for c in scopes.cat.codes.to_numpy()[rows].tolist()]
        if 2 * sum(layer is not None for layer, _ in found) >= n > 0:
            return Layers(tuple(x for x, _ in found), tuple(h for _, h in found), BY_SCOPE)
    return _by_count(aligned) or Layers((None,) * n, (None,) * n, UNTOLD)


def layer_of_scope(scope: str) -> tuple[int | None, str | None]:
    """Layer and half that a path of annotations names, e.g. ``layer.17/moe/experts`` -> (17, "moe")."""
    layers = list(_LAYER.finditer(scope))
    if not layers:
        return None, next((half for half, pattern in _OUTSIDE if pattern.search(scope)), None)
    found = layers[-1]  # the innermost
    hits = [(m.start(), half) for half, p in _HALVES if (m := p.search(scope, found.end()))]
    return int(found[1]), min(hits)[1] if hits else None


def _by_count(aligned: Aligned) -> Layers | None:
    """Collective k of the all-reduces of a step: the embedding's, then two per layer."""
    reduces = np.array([bool(_ALL_REDUCE.search(w)) for w in aligned.what], bool)
    inside = aligned.place >= 0
    if not inside.any():
        return None
    step = aligned.step
    per_step = {int(reduces[inside & (step == s)].sum()) for s in np.unique(step[inside])}
    known = {2 * c.value + 1 for m in models() if (c := m.count("layers")) is not None}
    if len(per_step) != 1 or not per_step <= known:
        return None
    layer: list[int | None] = [None] * len(aligned)
    half: list[str | None] = [None] * len(aligned)
    seen: dict[int, int] = {}
    for i in np.flatnonzero(inside & reduces).tolist():
        k = seen.get(int(step[i]), 0)
        seen[int(step[i])] = k + 1
        if k:
            layer[i], half[i] = (k - 1) // 2, (ATTENTION, MOE)[(k - 1) % 2]
        else:
            half[i] = EMBEDDING
    return Layers(tuple(layer), tuple(half), BY_COUNT)


def spell(layer: int | None, half: str | None) -> str | None:
    """``layer 17 attention``, ``embedding``; ``None`` where nothing is known."""
    if layer is None:
        return half
    return f"layer {layer}" + (f" {half}" if half else "")
