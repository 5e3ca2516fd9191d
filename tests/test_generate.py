"""The generated traces contain exactly what the generator says they contain."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.generate import Expected, Plan, generate

GPU = ("kernel", "gpu_memcpy", "gpu_memset")


def _ns(us: Decimal) -> int:
    assert us * 1000 == int(us * 1000)
    return int(us * 1000)


def _load(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text(), parse_float=Decimal)["traceEvents"]
    return events


@pytest.mark.parametrize(
    "plan",
    [
        Plan(300, 4),
        Plan(300, 4, graph=True, overlap=0.3, graph_nodes=True),
        Plan(200, 3, compiled=True, python_frames=3, world_size=2, rank=1),
        Plan(1, 1),
    ],
    ids=["eager", "graph", "compiled", "smallest"],
)
def test_totals_are_exact(plan: Plan, tmp_path: Path) -> None:
    """A plan -> the file, read by the standard library, has the returned counts, sums and union."""
    path = tmp_path / "t.json"
    expected = generate(path, plan)
    events = _load(path)
    assert len(events) == expected.events
    counted = Expected(events=len(events), steps=plan.steps, step_kernel_sum_ns=expected.step_kernel_sum_ns)
    intervals = []
    for event in events:
        kind = event.get("cat")
        if kind not in GPU:
            continue
        start, dur = _ns(event["ts"]), _ns(event["dur"])
        intervals.append((start, start + dur))
        if kind == "kernel":
            counted.kernels += 1
            counted.kernel_sum_ns += dur
            name = event["name"]
            counted.sum_ns_by_name[name] = counted.sum_ns_by_name.get(name, 0) + dur
            counted.launches_by_name[name] = counted.launches_by_name.get(name, 0) + 1
        elif kind == "gpu_memcpy":
            counted.memcpys, counted.memcpy_sum_ns = counted.memcpys + 1, counted.memcpy_sum_ns + dur
        else:
            counted.memsets, counted.memset_sum_ns = counted.memsets + 1, counted.memset_sum_ns + dur
    intervals.sort()
    counted.start_ns, covered = intervals[0][0], 0
    for start, end in intervals:
        counted.busy_ns += max(0, end - max(start, covered))
        covered = max(covered, end)
    counted.span_ns = covered - counted.start_ns
    assert counted == expected
    assert sum(expected.step_kernel_sum_ns) == expected.kernel_sum_ns


def test_links_are_whole(tmp_path: Path) -> None:
    """An eager trace -> every correlation has one launch, every External id has one op."""
    generate(tmp_path / "t.json", Plan(100, 2))
    events = _load(tmp_path / "t.json")
    launches = [e["args"]["correlation"] for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")]
    ops = [e["args"]["External id"] for e in events if e.get("cat") in ("cpu_op", "user_annotation")]
    assert len(set(launches)) == len(launches)
    assert len(set(ops)) == len(ops)
    for event in events:
        if event.get("cat") in GPU:
            assert event["args"]["correlation"] in launches
            assert event["args"].get("External id", ops[0]) in ops


def test_seed_decides_everything(tmp_path: Path) -> None:
    """The same plan twice -> the same text; another seed -> another text of as many events."""
    one, two = generate(tmp_path / "a.json", Plan(50, 2)), generate(tmp_path / "b.json.gz", Plan(50, 2))
    other = generate(tmp_path / "c.json", Plan(50, 2, seed=1))
    assert one == two
    assert (tmp_path / "a.json").read_bytes() == gzip.decompress((tmp_path / "b.json.gz").read_bytes())
    assert other.kernel_sum_ns != one.kernel_sum_ns
    assert other.events == one.events


def test_bad_plan_is_refused() -> None:
    """A plan of no steps -> ValueError."""
    with pytest.raises(ValueError, match="steps >= 1"):
        Plan(steps=0)
