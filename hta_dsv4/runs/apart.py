"""What several runs differ in besides their times, from their traces and the manifests beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hta_dsv4.analysis.apart import CAPTURED_AT, COMMIT, Apart
from hta_dsv4.analysis.apart import apart as find_apart
from hta_dsv4.analysis.comparability import Conditions, Fact
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.runs.run import Run
from hta_dsv4.trace import activities as col
from hta_dsv4.trace import steps as steps_module

_MANIFEST = ("launch", "context", "max_context")
_DEVICE = ("driver", "clock_sm_mhz", "power_limit_w")


def facts_of(run: Run) -> dict[str, Fact]:
    """The facts of :class:`Conditions` that a run's trace and manifest tell, of the rank that stands for it.

    Args:
        run: one capture.

    Raises:
        HtaDsv4Error: no GPU activity, or a broken manifest.
    """
    entry: Mapping[str, Any] = run.manifest
    facts: dict[str, Fact] = {}
    devices = [d for t in run.traces for d in t.meta.devices]
    names = sorted({d.name for d in devices if d.name})
    device = entry.get("device", {})
    _say(facts, "gpu", " and ".join(names) or device.get("name"))
    sms = sorted({d.num_sms for d in devices if d.num_sms})
    _say(facts, "sms", sms[0] if len(sms) == 1 else device.get("sms"))
    facts["ranks"] = len(run.ranks)
    work = run.workload()
    batches = sorted({int(b) for s in run.steps for b in s.counted["batch"].dropna()})
    _say(facts, "model", entry.get("config") or (work.geometry.name if work.geometry else None))
    said = entry.get("concurrency") or work.batch
    _say(
        facts,
        "concurrency",
        said or (batches[0] if len(batches) == 1 else "/".join(map(str, batches)) or None),
    )
    for key in _MANIFEST:
        _say(facts, key, entry.get(key))
    if "launch" not in facts:
        _say(facts, "launch", _launch(run))
    for key in _DEVICE:
        _say(facts, key, device.get(key))
    for table in ("switches", "versions"):
        for key, value in entry.get(table, {}).items():
            _say(facts, f"{table}.{key}", value)
    methods = sorted({s.method for s in run.steps})
    facts["step_method"] = " and ".join(methods)
    trace = run.traces[0].meta
    for name, flag in (("record_shapes", trace.record_shapes), ("with_stack", trace.with_stack)):
        _say(facts, name, None if flag is None else str(flag).lower())
    return facts


def _say(facts: dict[str, Fact], name: str, value: object) -> None:
    if isinstance(value, str | int | float) and not isinstance(value, bool) and value != "":
        facts[name] = value


def _launch(run: Run) -> str | None:
    """How most kernels of the counted steps were launched, in a manifest's words."""
    acts = run.counted.activities
    if col.LAUNCH_NAME not in acts or not acts[col.LAUNCH_NAME].notna().any():
        return None
    graph = acts[col.LAUNCH_NAME].astype(str).str.contains("GraphLaunch", regex=False)
    return "cuda_graph" if float(graph.mean()) > 0.5 else "eager"


def recorded_under(run: Run) -> dict[str, Fact]:
    """What a run was recorded under, with its commit and its time.

    Args:
        run: one variant.

    Returns:
        Fact -> value; only what the trace itself says, where its manifest cannot be read: that is told elsewhere.
    """
    try:
        facts = facts_of(run)
        for key in (COMMIT, CAPTURED_AT):
            value = run.manifest.get(key)
            facts |= {key: str(value)} if value else {}
        return facts
    except HtaDsv4Error:
        gpus = sorted({d.name for t in run.traces for d in t.meta.devices if d.name})
        batches = {int(b) for s in run.steps for b in s.counted[steps_module.BATCH].dropna()}
        out: dict[str, Fact] = {"gpu": " and ".join(gpus)} if gpus else {}
        return out | ({"concurrency": batches.pop()} if len(batches) == 1 else {})


def apart(runs: Sequence[Run], parameter: str = "") -> Apart:
    """What runs differ in: their workload, what was changed, when they were captured.

    Args:
        runs: in the order of the comparison.
        parameter: the fact that is varied on purpose, where there is one.
    """
    return find_apart([Conditions(r.label, recorded_under(r)) for r in runs], parameter)
