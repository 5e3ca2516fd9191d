"""Matrix products by their operands' shapes: mm, addmm, linear, bmm, baddbmm, scaled products."""

from __future__ import annotations

import re

from hta_dsv4.analysis.costs.cost import MEASURED, Cost, unknown
from hta_dsv4.analysis.costs.shapes import Operand, tensors

_SOURCE = "op shapes"
_BY_DTYPE = {1: "fp8", 2: "bf16", 4: "fp32", 8: "fp32"}
# Which two tensors of the op's arguments are multiplied.
_FACTORS = {
    "mm": (0, 1), "bmm": (0, 1), "matmul": (0, 1), "linear": (0, 1), "addmm": (1, 2), "_addmm_activation": (1, 2),
    "baddbmm": (1, 2), "_scaled_mm": (0, 1), "_scaled_grouped_mm": (0, 1), "mv": (0, 1), "dot": (0, 1),
}  # fmt: skip
_OUT_DTYPE_ARGUMENT = {"mm": 2, "bmm": 2}
_TF32 = re.compile(r"tf32|xmma_gemm_f32f32_tf32|_s1688", re.I)


def is_product(op: str) -> bool:
    """Whether ``op`` (without its namespace) is a matrix product this module knows."""
    return op in _FACTORS


def gemm_cost(op: str, arguments: tuple[Operand | None, ...], kernel: str) -> Cost:
    """Cost of a matrix product: each factor read once, the result written once.

    The arithmetic is that of the operands' dtype; FP32 operands count as TF32 only where the kernel's name says so.

    Args:
        op: without its namespace.
        arguments: of the op, in order.
        kernel: name of the kernel that does the work.
    """
    at = _FACTORS[op]
    # scalar arguments hold their places, except before the factors of linear, mm and the like
    given = [a for a in arguments if a is not None and a.shape]
    both = tuple(given[i] for i in at if i < len(given))
    if len(both) != 2 or not all(o.size for o in both):
        return unknown(f"aten::{op}: the trace does not give shapes and dtypes of both factors")
    left, right = both
    sizes = _result(op, left.shape, right.shape)
    if sizes is None:
        return unknown(f"aten::{op}: shapes {list(left.shape)} and {list(right.shape)} do not multiply")
    batch, m, n, k = sizes
    width = max(left.size, right.size)
    out_size = width if width > 1 else 2  # an 8-bit product is written in 16 bits
    if op in _OUT_DTYPE_ARGUMENT and len(arguments) > _OUT_DTYPE_ARGUMENT[op]:
        out_size = 4  # the overload with an output dtype: an FP32 result of narrower factors
    extra = sum(o.nbytes for o in tensors(arguments) if o is not left and o is not right)
    arithmetic = _BY_DTYPE.get(width, "fp32")
    if arithmetic == "fp32" and _TF32.search(kernel):
        arithmetic = "tf32"
    return Cost(
        read=left.nbytes + right.nbytes + extra,
        written=batch * m * n * out_size,
        flops=2.0 * batch * m * n * k,
        arithmetic=arithmetic,
        known=MEASURED,
        source=_SOURCE,
    )


def _result(op: str, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, int, int, int] | None:
    """Batch, m, n, k of a product; ``None`` where the shapes do not fit."""
    if op == "linear":
        if len(b) != 2 or a[-1] != b[1]:
            return None
        rows = 1
        for d in a[:-1]:
            rows *= d
        return 1, rows, b[0], b[1]
    if len(a) == len(b) == 3:
        return (a[0], a[1], b[2], a[2]) if a[0] == b[0] and a[2] == b[1] else None
    if len(b) == 1:
        return (1, a[0], 1, a[1]) if len(a) == 2 and a[1] == b[0] else None
    if len(a) != 2 or len(b) != 2 or a[1] != b[0]:
        return None
    return 1, a[0], b[1], a[1]
