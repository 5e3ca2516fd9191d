"""What ``X=TRACE``, or ``TRACE`` with ``--param NAME``, means: a value of a parameter and a capture taken at it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.shipped import label_of, resolve
from hta_dsv4.trace.manifest import manifest_for

PARAMETERS = ("max_context", "context", "concurrency")
"""Parameters that the manifest of a capture states."""


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One capture of a sweep.

    Attributes:
        x: the parameter's value.
        label: how the capture is called.
        path: where it is.
    """

    x: float
    label: str
    path: Path


def sweep_point(text: str, parameter: str | None) -> SweepPoint:
    """Read one argument of ``hta-dsv4 scaling``.

    Args:
        text: ``X=TRACE`` with a number, or a trace whose manifest states the parameter.
        parameter: the name given with ``--param``, or ``None``.

    Returns:
        The point.

    Raises:
        HtaDsv4Error: no number and no manifest that says it.
    """
    label, path = resolve(text)
    if label is not None and (x := _number(label)) is not None:
        return SweepPoint(x, f"{parameter or 'x'}={label}", path)
    if parameter is None:
        raise HtaDsv4Error(f"{text!r}: give the parameter's value as X=TRACE, or its name as --param NAME")
    manifest = manifest_for(path) if path.is_file() else None
    value = getattr(manifest, parameter, None) if parameter in PARAMETERS else None
    if value is None:
        why = "no manifest beside it" if manifest is None else f"its manifest states no {parameter}"
        if parameter not in PARAMETERS:
            why = f"manifests state only {', '.join(PARAMETERS)}"
        raise HtaDsv4Error(f"{path}: {parameter} unknown ({why}); give it as VALUE={path.name}")
    return SweepPoint(float(value), label or label_of(path), path)


def _number(text: str) -> float | None:
    try:
        return float(text.replace("_", "").replace(",", ""))
    except ValueError:
        return None
