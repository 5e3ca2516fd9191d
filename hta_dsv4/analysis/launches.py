"""What the launches of one kernel say where there are too few steps: thousands of durations, but few steps.

Two ways, the sharper one where it applies:

* **paired**: where a kernel is launched equally often in every step of both variants, launch i of one is compared with
  launch i of the other. That one launch takes 1 us and the next 10 ms (other tensors) is then no noise at all. Where
  the order of launches changed, pairing is only less sharp, not wrong: the mean difference is the same.
* **unpaired**: otherwise the two sets of durations are compared, and their whole variation counts.

Standard errors are those of the stationary bootstrap in closed form, so launches that follow each other may depend on
each other. None of it sees how steps or captures differ: a clock that was lower during one capture shows here as a
change, and the reason says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hta_dsv4.analysis.bootstrap import block_length, mean_variance, t_quantile
from hta_dsv4.analysis.stats import LEVEL, MIN_STEPS, standard_errors


@dataclass(frozen=True, slots=True)
class LaunchEvidence:
    """What the launches of one kernel say.

    Attributes:
        delta_ns: difference of the mean duration of one launch, other minus base.
        interval: of that difference, or ``None``.
        distinct: whether the interval leaves out 0.
        paired: whether launches were compared one by one.
        reason: what it does and does not cover.
    """

    delta_ns: float
    interval: tuple[float, float] | None
    distinct: bool
    paired: bool
    reason: str


def compare_launches(base: np.ndarray, other: np.ndarray, *, level: float = LEVEL) -> LaunchEvidence:
    """Compare the launches of one kernel in two variants.

    Args:
        base: durations in time order, ns: [launches], or [steps, launches per step] to compare launch by launch.
        other: the same of the other variant; both two-dimensional with equally many launches per step, or neither.
        level: of the interval.

    Returns:
        The evidence; it covers the variation between launches within these steps and not that between steps or runs.
    """
    a, b = np.asarray(base, dtype=float), np.asarray(other, dtype=float)
    paired = a.ndim == 2
    delta = float(b.mean() - a.mean()) if a.size and b.size else float("nan")
    fewest = min(a.shape[-1], b.shape[-1])
    if fewest < MIN_STEPS:
        return LaunchEvidence(delta, None, False, paired, f"too few launches for an interval: {fewest}")
    if paired:
        change = b.mean(axis=0) - a.mean(axis=0)
        block = block_length(change)
        dof = len(change) / block
        error = float(np.sqrt(mean_variance(change, block) * len(change) / (len(change) - block)))
    else:
        errors, dof = standard_errors(a[:, None], b[:, None])
        assert errors is not None
        error = float(errors[0])
    half = t_quantile(1 - (1 - level) / 2, dof) * error
    interval = (delta - half, delta + half)
    how = "launch by launch" if paired else "from the variation between launches"
    return LaunchEvidence(
        delta, interval, not interval[0] <= 0 <= interval[1], paired,
        f"{how}, within few steps; the variation between steps and captures is unknown",
    )  # fmt: skip
