"""Real traces: counts and times equal to an independent sum over the file's own digits.

The captures shipped with the project are always tested. Set HTA_DSV4_EXTRA_TRACES to a folder of more to have
each of them checked in the same way.
"""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

import pytest

from hta_dsv4.trace.reader import read_trace

SHIPPED = Path(__file__).parents[1] / "traces"
KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
PROBE = SHIPPED / "h200_probe.trace.json.gz"


def traces() -> list[Path]:
    folders = [SHIPPED]
    if extra := os.environ.get("HTA_DSV4_EXTRA_TRACES"):
        folders.append(Path(extra))
    # Captures of over 1 MB are left to the reading benchmark, which checks the same totals.
    return [p for f in folders for p in sorted(f.glob("*.json.gz")) if p.stat().st_size < 1 << 20]


@pytest.mark.parametrize("path", traces(), ids=lambda p: p.name)
def test_every_activity_is_counted_to_the_nanosecond(path):
    """A real trace -> per kind the count, the summed time and the earliest start of the file, exactly."""
    body = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    want: dict[str, list[Decimal]] = defaultdict(lambda: [Decimal(0), Decimal(0)])
    starts = []
    for e in body["traceEvents"]:
        if e["ph"] == "X" and e.get("cat") in KINDS:
            entry = want[KINDS[e["cat"]]]
            entry[0] += 1
            entry[1] += Decimal(e["dur"]) * 1000
            starts.append(Decimal(e["ts"]) * 1000)
    for cpu in (True, False):
        trace = read_trace(path, cpu=cpu)
        got = trace.activities.groupby("kind", observed=True)["dur_ns"].agg(["size", "sum"])
        assert {k: list(map(Decimal, v)) for k, v in got.T.to_dict("list").items()} == dict(want)
        assert not starts or trace.activities["start_ns"].iloc[0] == min(starts)
        assert all("no GPU activity" in w for w in trace.warnings)


def test_the_probe_is_fully_linked():
    """Eager, Triton and graph sections of one capture -> each kernel has its launch; replays have no op."""
    trace = read_trace(PROBE)
    a = trace.activities
    assert a["launch_name"].notna().all()
    replayed = a[a["launch_name"] == "cudaGraphLaunch"]
    assert len(replayed) > 0
    assert replayed["op"].isna().all()
    assert replayed["external_id"].isna().all()
    triton = a[(a["name"] == "scale_add_k") & (a["launch_name"] != "cudaGraphLaunch")]
    assert set(triton["launch_name"]) == {"cuLaunchKernelEx"}
    assert triton["op"].isna().all()  # launched by no op: nothing around it, no External id
    assert (a["scope"].astype(str).str.startswith("ProfilerStep#")).all()
    ops = trace.events[trace.events["category"] == "cpu_op"]
    by_id = dict(zip(ops["external_id"], ops["name"], strict=True))
    eager = a[a["op"].notna() & a["external_id"].notna()]
    assert len(eager) > 100
    assert [by_id[i] for i in eager["external_id"]] == eager["op"].tolist()


def test_the_probe_says_what_it_is():
    """Top-level metadata of a capture -> device, versions, base time, flags."""
    meta = read_trace(PROBE, cpu=False).meta
    assert [(d.index, d.name, d.num_sms) for d in meta.devices] == [(0, "NVIDIA H200", 132)]
    assert meta.base_time_ns == 1790857026000000000
    assert meta.versions["cupti_version"] == 130001
    assert (meta.record_shapes, meta.with_stack, meta.rank_known) == (True, None, False)
