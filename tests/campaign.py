"""A decode trace with the published campaign's totals, built as frames: what a reader of that profile should see.

The split-K profile of the campaign is known by three rows and a total: 231, 2541 and 2783 launches with 1004.64,
923.16 and 682.07 ms of 5240.5258 ms. They divide by 11, and 231 = 11 x 21 where 21 is the number of c4 layers. The
trace here has 11 steps of 43 layers (2 sliding-window, 21 c4, 20 c128) whose kernels add up to exactly those numbers;
everything else in it (names, order, the split of the remaining time) is made up in the spirit of the real step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from hta_dsv4.trace import activities as col
from hta_dsv4.trace.model import Trace, TraceMeta
from tests.frames import event_table

STEPS = 11
TOTAL_NS = 5_240_525_800
SGEMM = "cutlass_80_simt_sgemm_64x128_8x5_tn_align1"
COPY = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::"
    "{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul>, 4>"
)
MULTIPLY = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<float, "
    "float, float, at::native::binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&)::{lambda(int)#1}>"
)
PUBLISHED = {SGEMM: (231, 1_004_640_000), COPY: (2541, 923_160_000), MULTIPLY: (2783, 682_070_000)}
"""name -> launches, ns over the whole capture, as published (ms with two decimals)."""

_SPLIT, _COMBINE = "_sparse_mla_split_kernel", "_sparse_mla_combine_kernel"
_MOE = "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<nvfp4_grouped_moe> >"
_ATEN = "void at::native::vectorized_elementwise_kernel<4, at::native::"
_REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, sum_functor> >"
_DIVIDE = _ATEN + "BinaryFunctor<float, float, float, DivFunctor<float> > >"
_ADD = _ATEN + "CUDAFunctor_add<c10::BFloat16> >"
_FILL = _ATEN + "FillFunctor<float> >"
_CAST = _ATEN + "bfloat16_copy_kernel_cuda >"
_NORM = "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>"
_DENSE = "void deep_gemm::sm120_fp8_gemm_1d2d_impl<0u, 4096u, 1024u>"
_MHC = "mhc_pre_big_fuse_kernel"
_TOPK = "void topk_transform_decode_kernel<512>"

# Time of what was published as a bucket's share, and of the rest by weight per launch.
_KNOWN_NS = {
    **{name: ns for name, (_, ns) in PUBLISHED.items()},
    _SPLIT: 470_000_000,
    _COMBINE: 35_000_000,
    _MOE: 167_700_000,
}
_REST_WEIGHT = {_REDUCE: 3, _DIVIDE: 2, _ADD: 3, _FILL: 2, _CAST: 3, _NORM: 4, _DENSE: 30, _MHC: 8, _TOPK: 60}
_GRID = {
    SGEMM: (2, 2048, 32),
    COPY: (65536, 1, 1),
    MULTIPLY: (32768, 1, 1),
    _SPLIT: (32, 2, 3),
    _MOE: (188, 1, 1),
}


def _layer(kind: str) -> list[str]:
    """The kernels of one layer in order: mHC, projections, indexer (c4 only), attention, mHC, MoE."""
    site = [_MHC, _NORM] + [_REDUCE, _DIVIDE] * 20
    indexer = [_CAST, *[COPY] * 11, SGEMM, *[MULTIPLY] * 12, _REDUCE, _TOPK] if kind == "c4" else []
    scopes = 1 if kind == "swa" else 2
    attention = [_FILL, _SPLIT, _COMBINE] * scopes + [_ADD, _CAST] * 6
    return [
        *site,
        _DENSE,
        _DENSE,
        *indexer,
        *attention,
        _DENSE,
        *site,
        _NORM,
        _MOE,
        _ADD,
        _MOE,
        *[_CAST, _ADD] * 4,
    ]


def step_kernels() -> list[str]:
    """The kernel names of one step in order (5,596 launches)."""
    kinds = ["swa", "swa", *(["c4", "c128"] * 20), "c4"]
    names = [_FILL, MULTIPLY]
    for kind in kinds:
        names += _layer(kind)
    return [*names, _NORM, _DENSE]


def apportion(total: int, weights: np.ndarray) -> np.ndarray:
    """Integers in proportion to ``weights`` (float [n], > 0) that add up to ``total``."""
    bounds = np.rint(np.cumsum(weights) / weights.sum() * total).astype(np.int64)
    bounds[-1] = total
    return np.diff(bounds, prepend=0)


@dataclass(frozen=True)
class Campaign:
    """The trace and what is true of it.

    Attributes:
        trace: as a reader would give it.
        step_of: int64 [activities], the step each activity belongs to.
        step_launches: launches per step.
    """

    trace: Trace
    step_of: np.ndarray
    step_launches: int


@cache
def campaign(*, markers: bool = False, linked: bool = True, gap_ns: int = 40_000, seed: int = 0) -> Campaign:
    """Build the split-K profile.

    Args:
        markers: whether there are ``ProfilerStep#N`` annotations; without, only the kernel sequence repeats.
        linked: whether kernels have launches on the CPU.
        gap_ns: idle time between two steps.
        seed: of the variation between launches of one kernel (3 %).

    Returns:
        The trace; sums and launch counts are exactly those of :data:`PUBLISHED` and :data:`TOTAL_NS`.
    """
    rng = np.random.default_rng(seed)
    one = step_kernels()
    categories = sorted(set(one))
    code = np.tile(np.array([categories.index(n) for n in one]), STEPS)
    weight = rng.normal(1.0, 0.03, len(code)).clip(0.8, 1.2)
    rest = TOTAL_NS - sum(_KNOWN_NS.values())
    is_rest = np.isin(code, [categories.index(n) for n in _REST_WEIGHT])
    dur = np.zeros(len(code), dtype=np.int64)
    for name, ns in _KNOWN_NS.items():
        mine = code == categories.index(name)
        dur[mine] = apportion(ns, weight[mine])
    scale = np.array([_REST_WEIGHT.get(n, 0) for n in categories], dtype=float)
    dur[is_rest] = apportion(rest, (weight * scale[code])[is_rest])

    step_of = np.repeat(np.arange(STEPS), len(one))
    gap = rng.integers(300, 900, len(code))
    gap[:: len(one)] = gap_ns
    start = 1_000_000 + np.cumsum(gap) + np.concatenate([[0], np.cumsum(dur)[:-1]])
    grid = np.array([_GRID.get(n, (64, 1, 1)) for n in categories])[code]
    table = col.empty({**col.GPU_COLUMNS, **col.LINK_COLUMNS}).reindex(range(len(code)))
    filled: dict[str, object] = {
        col.START_NS: start, col.DUR_NS: dur, col.NAME: pd.Categorical.from_codes(code, categories),
        col.KIND: pd.Categorical([col.KERNEL] * len(code)), col.DEVICE: 0, col.STREAM: 7, col.RANK: 0,
        col.CORRELATION: np.arange(1, len(code) + 1), col.EVENT_INDEX: np.arange(len(code)),
        col.GRID_X: grid[:, 0], col.GRID_Y: grid[:, 1], col.GRID_Z: grid[:, 2], col.BLOCK_X: 128, col.BLOCK_Y: 1,
        col.BLOCK_Z: 1,
    }  # fmt: skip
    if linked:
        launched_by = pd.Categorical(["cudaLaunchKernel"] * len(code))
        filled |= {col.LAUNCH_START_NS: start - 5_000, col.LAUNCH_NAME: launched_by}
    for column, values in filled.items():
        table[column] = values
    table = table.astype(
        {c: t for c, t in {**col.GPU_COLUMNS, **col.LINK_COLUMNS}.items() if t != "category"}
    )
    events = []
    if markers:
        first = start[:: len(one)] - 6_000
        last = np.append(first[1:], start[-1] + dur[-1])
        events = [
            {col.NAME: f"ProfilerStep#{i}", col.START_NS: int(a), col.DUR_NS: int(b - a)}
            for i, (a, b) in enumerate(zip(first, last, strict=True))
        ]
    trace = Trace(Path("campaign.json"), TraceMeta(), table, event_table(events))
    return Campaign(trace, step_of, len(one))
