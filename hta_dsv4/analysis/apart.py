"""What variants put side by side differ in, besides their times: another workload, what was changed, another run.

A step of 32 requests beside one of a single request, or of another GPU, is other work: its change is not the code's.
What was meant to change (a switch; the static maximum where nothing else differs) is no warning, and is said plainly.
Only what captures say counts: silence is no difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from hta_dsv4.analysis.comparability import Conditions, Fact

WORKLOAD = ("model", "gpu", "ranks", "concurrency", "context")
"""Facts that are the work of a step and who does it."""
MAXIMUM, LAUNCH, SWITCH = "max_context", "launch", "switches."
COMMIT, CAPTURED_AT = "commit", "captured_at"
RUN_MINUTES = 10
"""Captures of one run follow each other within this many minutes."""
SHOWN = 4
_COMMIT = 7


@dataclass(frozen=True, slots=True)
class Apart:
    """What several captures differ in.

    Attributes:
        workload: facts of the work itself that differ, e.g. ``concurrency``; empty where the work is the same.
        changed: what was meant to change: switches, how the step is launched, a static maximum alone.
        notes: all of it and whether the captures are of different runs, one sentence each, the workload first.
    """

    workload: tuple[str, ...]
    changed: tuple[str, ...]
    notes: tuple[str, ...]


def work_differs(one: Mapping[str, Fact], other: Mapping[str, Fact]) -> tuple[str, ...]:
    """Facts of the work that both say, and say differently.

    Args:
        one: fact -> value, as of :class:`~hta_dsv4.analysis.comparability.Conditions`.
        other: the same of another capture.
    """
    return tuple(f for f in WORKLOAD if f in one and f in other and one[f] != other[f])


def apart(captures: Sequence[Conditions], parameter: str = "") -> Apart:
    """What captures differ in.

    Args:
        captures: in the order of the comparison; of their facts also ``commit`` and ``captured_at`` (ISO 8601).
        parameter: the fact that is varied on purpose, where there is one.

    Returns:
        The differences, and the sentences that say them.
    """
    work = [f for f in WORKLOAD if f != parameter and len(_known(captures, f)) > 1]
    names = {f for c in captures for f in c.facts if f.startswith(SWITCH)}
    if f"{SWITCH}{LAUNCH}" not in names:
        names.add(LAUNCH)
    changed = [f for f in sorted(names) if f != parameter and len(_known(captures, f)) > 1]
    if parameter != MAXIMUM and len(_known(captures, MAXIMUM)) > 1:
        (work if work or changed else changed).append(MAXIMUM)
    notes = []
    if work:
        said = "; ".join(f"{f} is {_by_value(captures, f)}" for f in work)
        notes.append(
            f"not the same workload: {said}: steps do different work, and a change is not the code's alone"
        )
    if changed:
        said = "; ".join(f"{f.removeprefix(SWITCH)} {_in_order(captures, f)}" for f in changed)
        notes.append(f"what was changed: {said}")
    return Apart(tuple(work), tuple(changed), (*notes, *_runs(captures)))


def _known(captures: Sequence[Conditions], fact: str) -> set[Fact]:
    return {c.facts[fact] for c in captures if fact in c.facts}


def _text(value: Fact) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _by_value(captures: Sequence[Conditions], fact: str) -> str:
    """``32 in split_k and 1 in split_k_c1``."""
    groups: dict[Fact, list[str]] = {}
    for c in captures:
        if fact in c.facts:
            groups.setdefault(c.facts[fact], []).append(c.label)
    return " and ".join(f"{_text(v)} in {_labels(labels)}" for v, labels in groups.items())


def _labels(labels: Sequence[str]) -> str:
    several = list(dict.fromkeys(labels))
    more = len(several) - SHOWN
    return ", ".join(several[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _in_order(captures: Sequence[Conditions], fact: str) -> str:
    """``simt → mma → split_k``: the values in the order of the comparison, each where it is new."""
    values = [c.facts[fact] for c in captures if fact in c.facts]
    return " → ".join(_text(v) for v in values[:1] + [b for a, b in pairwise(values) if a != b])


def _runs(captures: Sequence[Conditions]) -> tuple[str, ...]:
    """That captures are of different runs: of other commits, or far apart in time."""
    tail = "times also differ by machine and moment, that of a waiting host most"
    commits: dict[str, list[str]] = {}
    for c in captures:
        if commit := str(c.facts.get(COMMIT, "")):
            commits.setdefault(commit, []).append(c.label)
    if len(commits) > 1:
        said = "; ".join(f"{_labels(labels)} of commit {_short(c)}" for c, labels in commits.items())
        return (f"captured in different runs ({said}): {tail}",)
    moments = [(m, c.label) for c in captures if (m := _moment(c.facts.get(CAPTURED_AT))) is not None]
    if len(moments) > 1:
        (first, one), (last, other) = min(moments), max(moments)
        minutes = (last - first) / 60
        if minutes > RUN_MINUTES:
            return (f"captured in different runs ({other} {minutes:,.0f} minutes after {one}): {tail}",)
    return ()


def _short(commit: str) -> str:
    """The first digits of a commit, and what follows its hash (``-dirty``)."""
    digits, dash, more = commit.partition("-")
    return digits[:_COMMIT] + dash + more


def _moment(said: Fact | None) -> float | None:
    """Seconds since the epoch; ``None`` for what is no time."""
    try:
        return datetime.fromisoformat(str(said)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
