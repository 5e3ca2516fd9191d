"""Made launches that findings are tried on: subjects, copies, kernels of a size, and what a finding would save."""

from __future__ import annotations

from hta_dsv4.analysis.costs.geometry import FLASH
from hta_dsv4.analysis.costs.workload import Workload
from hta_dsv4.analysis.devices import ceilings
from hta_dsv4.analysis.findings import subject
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.model import Device, TraceMeta
from tests.gpu_frames import H200 as LIMITS
from tests.gpu_frames import sized
from tests.speed import counted_of

H200 = ceilings("NVIDIA H200")
PRO6000 = ceilings("NVIDIA RTX PRO 6000 Blackwell Workstation Edition")
META = TraceMeta(devices=(Device(0, "NVIDIA H200", LIMITS),))
FLOATS, PRODUCT = '["float","float","Scalar"]', '["float","float"]'
INDEXER = {col.ORIGIN: "indexer"}
BMM = {
    col.OP: "aten::bmm", col.OP_DTYPES: PRODUCT, col.OP_SHAPES: "[[2,262144,128],[2,128,64]]",
    col.BUCKET: "fp32_simt_gemm", col.ROLE: "gemm_fp32_simt", **INDEXER,
}  # fmt: skip
SMALL = ("small", 900_000_000, 1_000, {})  # so that "a small launch here" is 1,000 ns
W = Workload(FLASH, 2, 4096, 1 << 20)

FULL = 4275 * 20_000 // 8  # a copy of so many floats takes 20 us at the copy bandwidth of 4,275 GB/s


def subject_of(rows, step=None, w=None, device=H200, **more):
    return subject("made", counted_of(rows, step), w or Workload(), device, META, **more)


def copy_of(n, source="float", target="float", **more):
    return {
        col.OP: "aten::copy_", col.OP_SHAPES: f"[[{n}],[{n}],[]]", col.OP_DTYPES: f'["{target}","{source}","Scalar"]',
        col.BUCKET: "glue", col.ROLE: "copy_cast", **more,
    }  # fmt: skip


def gpu(name, start, dur, ctas, **more):
    row = sized(name, start, dur, ctas)
    size = {c: row[c] for c in (col.GRID_X, col.GRID_Y, col.GRID_Z, col.BLOCK_X, col.BLOCK_Y, col.BLOCK_Z,
                                col.REGISTERS, col.SHARED_MEM)}  # fmt: skip
    return name, start, dur, {**size, **more}


def saved(finding):
    r = finding.recoverable
    return (r.low, r.mid, r.high)
