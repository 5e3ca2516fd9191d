"""What launch counts say about the model: how many steps a profile holds, and which kernels run in which layers.

A profile's totals look arbitrary (231, 2541, 2783 launches) until they are divided by the steps (11): 21, 231 and 253
per step, and 21 is the number of c4 layers. The counts of the architecture are in ``model.toml``. Where a trace shows
its steps, the check says which kernels share a multiplicity; where only totals are known, it says how many steps
they fit, as a finding and not as a fact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from pathlib import Path
from typing import Any

import pandas as pd

from hta_dsv4.trace import activities as col
from hta_dsv4.trace.steps import Steps
from hta_dsv4.trace.toml_text import from_toml

_MOST_PER_LAYER = (
    16  # launches of one kernel in one layer; more would make any number a multiple of something
)
_MOST_EXTRA = 2  # launches outside the layers (embedding, head) that a multiple may come with
_EXACT, _MULTIPLE, _WITH_EXTRA = 1.0, 0.6, 0.2
_LIKELY = 0.4  # score from which counts are said to fit
_WITNESSES = 3  # kernels that must match before counts are said to fit
_MOST_STEPS = 4096
_SHOWN = 4  # kernels named in a sentence


@dataclass(frozen=True, slots=True)
class Count:
    """How often something happens per step: a name, the number, what it counts, and the origins that run so often.

    ``base`` counts are of layers, of which a kernel may run several times each.
    """

    name: str
    value: int
    what: str
    origins: tuple[str, ...]
    base: bool


@dataclass(frozen=True, slots=True)
class Model:
    """An architecture: its name and its counts."""

    name: str
    counts: tuple[Count, ...]

    def count(self, name: str) -> Count | None:
        """The count called ``name``, or ``None``."""
        return next((c for c in self.counts if c.name == name), None)


@dataclass(frozen=True, slots=True)
class Match:
    """One kernel's launches per step, as a multiple of a count of the model.

    Attributes:
        kernel: its name.
        launches: in the whole profile.
        per_step: ``launches / steps``.
        count: what it matches, ``None`` where nothing.
        factor: ``per_step = factor * count.value + extra``.
        extra: launches outside the layers.
    """

    kernel: str
    launches: int
    per_step: int
    count: Count | None
    factor: int
    extra: int

    @property
    def quality(self) -> float:
        """1 for the count itself, less for a multiple, least for a multiple with an extra, 0 for no match."""
        if self.count is None:
            return 0.0
        return _WITH_EXTRA if self.extra else (_EXACT if self.factor == 1 else _MULTIPLE)


@dataclass(frozen=True, slots=True)
class Reading:
    """Launch counts, read as so many steps of a model.

    Attributes:
        model: which.
        steps: how many.
        score: share of the weight that matches, weighted by how exactly, 0 to 1.
        matches: one per kernel whose launches divide by the steps, heaviest first.
        indivisible: kernels whose launches do not.
    """

    model: Model
    steps: int
    score: float
    matches: tuple[Match, ...]
    indivisible: tuple[str, ...]

    @property
    def likely(self) -> bool:
        """Whether the counts fit: enough weight and enough kernels match, one of them exactly.

        One kernel alone proves nothing: some divisor of its launches fits some model.
        """
        fitting = [m for m in self.matches if m.quality > 0]
        return (
            self.score >= _LIKELY
            and len(fitting) >= _WITNESSES
            and any(m.quality == _EXACT and m.per_step > 3 for m in fitting)
        )

    def sharing(self, name: str) -> tuple[Match, ...]:
        """The kernels that run once or several times in each of what a count counts, e.g. ``"c4 layers"``."""
        return tuple(m for m in self.matches if m.count is not None and m.count.name == name)

    def sentences(self) -> tuple[str, ...]:
        """The finding in words: the divisor first, then who shares which multiplicity."""
        out = [f"launch counts fit {self.steps} steps of {self.model.name} (score {self.score:.2f})"]
        for count in self.model.counts:
            kernels = self.sharing(count.name)
            if kernels and count.base:
                said = ", ".join(_product(m, self.steps) for m in kernels[:_SHOWN])
                more = f" and {len(kernels) - _SHOWN} more" if len(kernels) > _SHOWN else ""
                out.append(
                    f"{count.value}-fold, as the {count.value} {count.name} ({count.what}): {said}{more}"
                )
        return tuple(out)


def _product(m: Match, steps: int) -> str:
    count = m.count
    assert count is not None
    inner = f"{m.factor} x {count.value}" if m.factor > 1 else str(count.value)
    return f"{_short(m.kernel)} {m.launches} = {steps} x {f'({inner} + {m.extra})' if m.extra else inner}"


def _short(name: str) -> str:
    return name if len(name) <= 44 else name[:28] + "…" + name[-15:]


@lru_cache(maxsize=1)
def models() -> tuple[Model, ...]:
    """The architectures of ``model.toml``."""
    return tuple(
        Model(
            m["name"],
            tuple(
                Count(c["name"], c["value"], c["what"], tuple(c["origins"]), c.get("base", False))
                for c in m["count"]
            ),
        )
        for m in _document()["model"]
    )


@lru_cache(maxsize=1)
def inferences() -> dict[tuple[str, str], str]:
    """(bucket, count name) -> origin, for kernels whose multiplicity tells what they are for."""
    return {(i["bucket"], i["count"]): i["origin"] for i in _document()["inferred"]}


@lru_cache(maxsize=1)
def _document() -> dict[str, Any]:
    return from_toml(Path(__file__).with_name("model.toml").read_text(encoding="utf-8"))


def match(model: Model, per_step: int) -> tuple[Count | None, int, int]:
    """Which count of a model a number of launches per step is, or is a multiple of.

    Args:
        model: the architecture.
        per_step: launches per step.

    Returns:
        (count, factor, extra) with ``per_step = factor * count.value + extra``; ``(None, 0, 0)`` where none fits.
    """
    for extra in range(_MOST_EXTRA + 1):
        for count in model.counts:  # a count itself, then a multiple: the plainest explanation first
            if per_step - extra == count.value > 3 * bool(extra):
                return count, 1, extra
        fits = [
            (c, (per_step - extra) // c.value)
            for c in model.counts
            if c.base and per_step > extra and (per_step - extra) % c.value == 0
        ]
        fits = [(c, f) for c, f in fits if 1 < f <= _MOST_PER_LAYER]
        if fits:  # of several, the one that explains it with fewest launches per layer
            best, factor = min(fits, key=lambda pair: pair[1])
            return best, factor, extra
    return None, 0, 0


def read_counts(
    launches: Mapping[str, int],
    weights: Mapping[str, float] | None = None,
    steps: Iterable[int] | None = None,
) -> tuple[Reading, ...]:
    """How many steps of which model launch counts fit, best first.

    Args:
        launches: kernel -> launches in the whole profile.
        weights: kernel -> what it weighs (summed ns); by default every kernel weighs the same.
        steps: numbers of steps to try; by default every common divisor of the kernels that make up 7/10 of the
            weight.

    Returns:
        One reading per model and number of steps that matches anything.
    """
    launches = {k: n for k, n in launches.items() if n > 0}
    weight = {k: float(weights[k]) if weights is not None else 1.0 for k in launches}
    total = sum(weight.values())
    if not launches or total <= 0:
        return ()
    heaviest = sorted(launches, key=lambda k: (-weight[k], k))
    readings = []
    for n in steps if steps is not None else _divisors(launches, weight, total):
        divisible = [k for k in heaviest if launches[k] % n == 0]
        for model in models():
            matches = tuple(
                Match(k, launches[k], launches[k] // n, *match(model, launches[k] // n)) for k in divisible
            )
            score = sum(weight[m.kernel] * m.quality for m in matches) / total
            if score > 0:
                rest = tuple(k for k in heaviest if launches[k] % n)
                readings.append(Reading(model, n, score, matches, rest))
    return tuple(sorted(readings, key=lambda r: (-r.score, -r.steps)))


def _divisors(launches: Mapping[str, int], weight: Mapping[str, float], total: float) -> list[int]:
    """Numbers of steps that divide the launches of most of the weight."""
    found = set()
    for a in list(launches.values())[:200]:
        for b in list(launches.values())[:200]:
            found.add(gcd(a, b))
    candidates = {d for g in found for d in range(1, min(g, _MOST_STEPS) + 1) if g % d == 0}
    return sorted(
        n for n in candidates if sum(w for k, w in weight.items() if launches[k] % n == 0) >= 0.7 * total
    )


def read_activities(activities: pd.DataFrame, steps: Steps) -> Reading | None:
    """The best reading of a trace: at its own number of steps, or, where it shows none, at the number that fits.

    Args:
        activities: the activity table of one trace; the rank with most kernels is looked at.
        steps: its steps.

    Returns:
        The reading, ``None`` where nothing fits well enough to be said.
    """
    kernels = activities[activities[col.KIND] == col.KERNEL]
    if not len(kernels):
        return None
    rank = kernels[col.RANK].value_counts().index[0]
    kernels = kernels[kernels[col.RANK] == rank]
    counted = steps.counted
    counted = counted[counted[col.RANK] == rank]
    if len(counted):
        kernels = kernels[steps.of_activity[kernels.index].isin(counted.index)]
    grouped = kernels.groupby(col.NAME, observed=True)[col.DUR_NS].agg(["count", "sum"])
    names = [str(n) for n in grouped.index]
    readings = read_counts(
        dict(zip(names, (int(n) for n in grouped["count"]), strict=True)),
        dict(zip(names, (float(t) for t in grouped["sum"]), strict=True)),
        [len(counted)] if len(counted) else None,
    )
    return readings[0] if readings and readings[0].likely else None
