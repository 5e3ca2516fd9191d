"""What does a further request cost, and which tokens per second does that forbid? Step time over concurrency as a line.

A decode step gives each of its C requests one token, so with a step of ``a + b C`` throughput is ``C / (a + b C)``,
below ``1/b`` at any C. The GPU time of the traces says what of ``b`` is whose; the step without the profiler, where
manifests have it, holds what the host costs as well, and is the one to be believed for throughput.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hta_dsv4.analysis.step_line import CLOSE, Ceiling, StepLine, ceiling_of, step_line

if TYPE_CHECKING:
    from hta_dsv4.analysis.scaling import Fit, Point

CONCURRENCY = "concurrency"


@dataclass(frozen=True, slots=True)
class RequestCost:
    """Step time as ``a + b C``; ns.

    Attributes:
        fixed_ns, per_request_ns: ``a`` and ``b`` of the GPU time.
        per_request_interval: of ``b``; ``None`` with two values of C.
        parts: row -> its part of ``b``, largest first; they add up to ``b``.
        ceiling: tokens per second that the GPU time permits at any C.
        unprofiled: the same line through the steps without the profiler; ``None`` unless every capture's manifest has
            its step.
    """

    fixed_ns: float
    per_request_ns: float
    per_request_interval: tuple[float, float] | None
    parts: tuple[tuple[str, float], ...]
    ceiling: Ceiling
    unprofiled: StepLine | None

    @property
    def straight(self) -> bool:
        """Whether the steps without the profiler lie on their line, so that its ceiling may be believed."""
        line = self.unprofiled
        return line is not None and line.fits is not False and abs(line.worst) <= CLOSE


def request_cost(
    parameter: str, points: Sequence[Point], total: Fit, rows: Sequence[Fit]
) -> RequestCost | None:
    """What a request costs, from fits over concurrency.

    Args:
        parameter: what the captures differ in.
        points: the captures.
        total: the fit of the whole step.
        rows: the fits of its rows.

    Returns:
        The cost; ``None`` where the parameter is not the concurrency in whole requests.
    """
    if parameter != CONCURRENCY or any(p.x < 1 or not float(p.x).is_integer() for p in points):
        return None
    parts = sorted(((r.name, r.slope_ns) for r in rows), key=lambda r: (-r[1], r[0]))
    plain = [p.unprofiled_ns for p in points]
    line = None
    if all(ns is not None and ns > 0 for ns in plain):
        line = step_line([int(p.x) for p in points], [ns for ns in plain if ns is not None])
    return RequestCost(
        total.intercept_ns, total.slope_ns, total.slope_interval, tuple(parts),
        ceiling_of(total.slope_ns, total.slope_interval), line,
    )  # fmt: skip
