"""The launches of a typical decode step, in order, with their mean own times: what alignment compares."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from hta_dsv4.analysis.counted import Counted, own_by_run
from hta_dsv4.analysis.places import layer_of
from hta_dsv4.analysis.profile import apportion
from hta_dsv4.analysis.shares import divide_half_even
from hta_dsv4.trace import activities as col


@dataclass(frozen=True)
class StepSequence:
    """The launches of a typical step, in order.

    Attributes:
        names, grids, roles: one per launch.
        layers: the layer's number from the scope, or ``None``.
        dur_ns: int64 [launches]: own time, mean over the steps that run this very sequence, in whole ns that add up.
        alike, steps: how many of the counted steps run it.
    """

    names: tuple[str, ...] = field(repr=False)
    grids: tuple[tuple[int, int, int], ...] = field(repr=False)
    roles: tuple[str, ...] = field(repr=False)
    layers: tuple[str | None, ...] = field(repr=False)
    dur_ns: np.ndarray = field(repr=False)
    alike: int
    steps: int


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
    dur = own_by_run(acts, part.run[part.step])[order]
    total = sum((dur[s] for s in alike), np.zeros(alike[0].stop - alike[0].start, dtype=np.int64))
    mean = apportion(divide_half_even(int(total.sum()), len(alike)), [int(t) for t in total], len(alike))
    rows = order[alike[0]]
    scopes = acts[col.SCOPE].iloc[rows] if col.SCOPE in acts else pd.Series([None] * len(rows))
    layers = {s: layer_of(str(s)) for s in scopes.unique() if isinstance(s, str)}
    return StepSequence(
        names=_texts(acts[col.NAME], rows),
        grids=tuple((int(x), int(y), int(z)) for x, y, z in grid[rows]),
        roles=_texts(acts[col.ROLE], rows),
        layers=tuple(layers.get(s) for s in scopes),
        dur_ns=np.array(mean, dtype=np.int64),
        alike=len(alike),
        steps=part.steps,
    )


def _texts(column: pd.Series[Any], rows: np.ndarray) -> tuple[str, ...]:
    """A category column at some rows; "nan" where it is missing."""
    labels = [*(str(x) for x in column.cat.categories), "nan"]
    return tuple(labels[c] for c in column.cat.codes.to_numpy()[rows].tolist())
