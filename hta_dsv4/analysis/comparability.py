"""May two captures be compared at all? What each was recorded under -> what differs, and what nobody knows.

A regression of 4 % between two GPUs, two batches or two engine switches is no regression of the code. Facts come from
the trace and from the manifest beside it. A fact counts as different where two captures say different things, or where
one says it and another does not: then they were not recorded alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

Fact = str | int | float

CLOCK = "clock_sm_mhz"
CLOCK_TOLERANCE = 0.02
"""SM clocks are sampled while steps run; readings that differ by less say the same."""
TOLD = ("versions.*", "driver", "with_stack", "record_shapes", "captured_steps")
"""Facts whose difference is told but makes nothing incomparable: a new compiler may be what is being tested."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What one capture was recorded under.

    Attributes:
        label: of the capture.
        facts: ``gpu, sms, ranks, model, concurrency, context, max_context, launch, step_method, switches.NAME,
            versions.NAME, ...``; what is not known is absent.
        partial: whether the trace was cut and salvaged, or lacks steps: why it must not be compared; ``""`` else.
        overhead_percent: what the profiler added to a step, from the manifest; ``None`` where unknown.
        knows_origin: whether most of the time has an origin.
    """

    label: str
    facts: Mapping[str, Fact] = field(default_factory=dict)
    partial: str = ""
    overhead_percent: float | None = None
    knows_origin: bool = True


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact in which captures differ.

    Attributes:
        fact: its name.
        values: what each capture says, by label; ``None`` where it does not say.
        said: in a sentence, with the remedy.
    """

    fact: str
    values: tuple[tuple[str, Fact | None], ...]
    said: str


@dataclass(frozen=True, slots=True)
class Comparability:
    """Whether captures may be compared.

    Attributes:
        reasons: why not against each other; empty where they may.
        unfit: why a capture must not be judged even by itself (cut, other conditions than the budgets').
        notes: what differs or is unknown without forbidding anything.
        same: facts that all captures agree in.
    """

    reasons: tuple[Difference, ...]
    unfit: tuple[str, ...]
    notes: tuple[str, ...]
    same: Mapping[str, Fact]


def comparability(
    base: Sequence[Conditions],
    candidate: Sequence[Conditions],
    *,
    may_differ: Sequence[str] = (),
    must_be_known: Sequence[str] = (),
    conditions: Mapping[str, Fact] | None = None,
) -> Comparability:
    """Compare what captures were recorded under.

    Args:
        base: of the baseline; none where there is no baseline.
        candidate: of the candidate, one or more.
        may_differ: names or patterns of facts that may differ: what is being tested.
        must_be_known: facts without which nothing is compared.
        conditions: facts that every capture must have.

    Returns:
        What differs and what is unknown.
    """
    every = [*base, *candidate]
    names = sorted({f for c in every for f in c.facts})
    reasons, notes = [], []
    same: dict[str, Fact] = {}
    for name in names:
        values = tuple((c.label, c.facts.get(name)) for c in every)
        if _alike(name, [v for _, v in values]):
            same[name] = next(v for _, v in values if v is not None)
            continue
        said = f"{name} differs: {_values(values)}"
        if any(fnmatchcase(name, p) for p in may_differ):
            notes.append(f"{said} (may differ)")
        elif any(fnmatchcase(name, p) for p in TOLD):
            notes.append(said)
        else:
            remedy = f'capture both alike, or allow it: may_differ = ["{name}"]'
            reasons.append(Difference(name, values, f"{said}; {remedy}"))
    unfit = [f"{c.label}: {c.partial}" for c in every if c.partial]
    for name in must_be_known:
        silent = [c.label for c in every if name not in c.facts]
        if silent:
            unfit.append(
                f"{name} is not known of {', '.join(dict.fromkeys(silent))}; capture with a manifest beside the trace"
            )
    for name, wanted in (conditions or {}).items():
        for c in every:
            found = c.facts.get(name)
            if not _alike(name, [wanted, found]):
                said = "is not known" if found is None else f"is {found}"
                unfit.append(f"{c.label}: {name} {said}, and the budgets hold for {wanted}")
    unknown = [f for f in ("gpu", "concurrency", "max_context", "launch") if f not in names]
    if unknown and len(every) > 1:
        notes.append(f"not known of any capture, so not compared: {', '.join(unknown)}")
    return Comparability(tuple(reasons), tuple(dict.fromkeys(unfit)), tuple(notes), same)


def _alike(name: str, values: Sequence[Fact | None]) -> bool:
    if name == CLOCK:  # sampled, and not by every producer: silence is no other clock
        read = [float(v) for v in values if isinstance(v, int | float)]
        return not read or max(read) - min(read) <= CLOCK_TOLERANCE * max(read)
    return len(set(values)) == 1


def _values(values: Sequence[tuple[str, Fact | None]]) -> str:
    """``main 32, candidate 16``; captures of one label that agree are named once."""
    shown = dict.fromkeys(f"{label} {'says nothing' if v is None else v}" for label, v in values)
    text = list(shown)
    return ", ".join(text[:4]) + (f" and {len(text) - 4} more" if len(text) > 4 else "")
