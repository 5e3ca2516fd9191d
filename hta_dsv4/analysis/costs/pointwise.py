"""Everything that is not a product, by op name and shapes: elementwise, copies, reductions, gathers, norms, top-k.

A tensor that is broadcast counts once at its own size. Views are counted as the op sees them: an expanded operand
appears at its expanded size, so a copy out of an expanded view is overcounted.
"""

from __future__ import annotations

from hta_dsv4.analysis.costs.cost import MEASURED, Cost, unknown
from hta_dsv4.analysis.costs.shapes import Operand, broadcast, tensors

_SOURCE = "op shapes"
_BOOL = {
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "isnan",
    "isinf",
    "isfinite",
    "logical_and",
    "logical_or",
    "logical_not",
}
_ELEMENTWISE = _BOOL | {
    "add", "sub", "rsub", "mul", "div", "true_divide", "floor_divide", "remainder", "fmod", "pow", "square", "sqrt",
    "rsqrt", "exp", "exp2", "log", "log2", "log1p", "logaddexp", "sigmoid", "silu", "gelu", "relu", "tanh", "softplus",
    "neg", "abs", "reciprocal", "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "where", "bitwise_and",
    "bitwise_or", "bitwise_not", "bitwise_xor", "__and__", "__or__", "__rshift__", "__lshift__", "__xor__", "ceil",
    "floor", "round", "masked_fill", "lerp", "addcmul", "addcdiv", "view_as_real", "complex", "polar", "erf", "sin",
    "cos", "sign", "tril", "triu", "threshold", "hardtanh", "_to_copy", "to", "clone", "contiguous",
}  # fmt: skip
_REDUCTIONS = {
    "sum", "mean", "amax", "amin", "max", "min", "prod", "any", "all", "argmax", "argmin", "norm", "linalg_vector_norm",
    "var", "std", "var_mean", "logsumexp", "nansum", "count_nonzero", "_aminmax", "aminmax",
}  # fmt: skip
_SAME_SHAPE = {"_softmax", "_log_softmax", "softmax", "log_softmax", "cumsum", "sort", "native_layer_norm",
               "_fused_rms_norm", "rms_norm", "layer_norm", "flip", "roll"}  # fmt: skip
_FILLS = {"fill", "zero", "zeros", "ones", "full"}


def pointwise_cost(op: str, arguments: tuple[Operand | None, ...], kernel: str, grid_x: int | None) -> Cost:
    """Cost of an op that is not a product.

    Args:
        op: without its namespace and without the underscore of its in-place form.
        arguments: of the op, in order.
        kernel: name of the kernel that does the work, which may tell what the op does not.
        grid_x: its grid, from which a gather's row count is read; ``None`` where unknown.
    """
    given = tensors(arguments)
    sized = [o for o in given if o.shape]
    if not sized:
        return unknown(f"aten::{op}: the trace gives no shape")
    if not all(o.size for o in sized):
        odd = next(o.dtype for o in sized if not o.size)
        return unknown(f"aten::{op}: bytes of {odd or 'an untold dtype'} are not known")
    if op == "copy":
        source = given[1].nbytes if len(given) > 1 else 0
        return Cost(read=source, written=given[0].nbytes, known=MEASURED, source=_SOURCE)
    if op in _FILLS:
        return Cost(written=given[0].nbytes, known=MEASURED, source=_SOURCE)
    if op in _ELEMENTWISE:
        shape = broadcast([o.shape for o in given])
        out = Operand(shape, _out_dtype(op, given))
        return Cost(
            read=sum(o.nbytes for o in given),
            written=out.nbytes,
            flops=out.numel,
            known=MEASURED,
            source=_SOURCE,
        )
    if op in _REDUCTIONS:
        first = given[0]
        return Cost(
            read=first.nbytes, flops=first.numel, known=MEASURED, source=_SOURCE,
            assumes="what is written is not counted: the trace does not say which dimensions are reduced",
        )  # fmt: skip
    if op in _SAME_SHAPE:
        first = given[0]
        return Cost(
            read=sum(o.nbytes for o in sized), written=first.nbytes, flops=4.0 * first.numel, known=MEASURED,
            source=_SOURCE,
        )  # fmt: skip
    if op == "topk":
        return Cost(
            read=given[0].nbytes, flops=given[0].numel, known=MEASURED, source=_SOURCE,
            assumes="the selected values and indices are not counted: the trace does not say how many",
        )  # fmt: skip
    if op == "cat":
        total = sum(o.nbytes for o in sized)
        return Cost(read=total, written=total, known=MEASURED, source=_SOURCE)
    return _indexing(op, given, sized, kernel, grid_x)


def _indexing(
    op: str, given: tuple[Operand, ...], sized: list[Operand], kernel: str, grid_x: int | None
) -> Cost:
    first = sized[0]
    if op in ("gather", "take_along_dim") and len(sized) > 1:
        index = sized[-1]
        picked = index.numel * first.size
        return Cost(read=index.nbytes + picked, written=picked, known=MEASURED, source=_SOURCE)
    if op in ("index_select", "embedding") and len(sized) > 1:
        index = sized[-1]
        row = first.nbytes // max(first.shape[0], 1)
        moved = index.numel * row
        return Cost(
            read=index.nbytes + min(moved, first.nbytes), written=moved, known=MEASURED, source=_SOURCE
        )
    if op == "index" and "vectorized_gather_kernel" in kernel and grid_x:
        # One program column per gathered row; the op's index tensors themselves are not in the trace.
        moved = grid_x * (first.nbytes // max(first.shape[0], 1))
        return Cost(
            read=8.0 * grid_x + min(moved, first.nbytes), written=moved, known=MEASURED,
            source="op shapes, rows from the grid",
            assumes="the grid has one column per gathered row, as PyTorch's gather has",
        )  # fmt: skip
    if (
        op in ("scatter", "scatter_add", "index_add", "index_copy", "index_put", "_index_put_impl")
        and len(sized) > 1
    ):
        source = sized[-1]
        return Cost(
            read=sum(o.nbytes for o in sized[1:]), written=source.nbytes, known=MEASURED, source=_SOURCE
        )
    return unknown(f"aten::{op}: no cost model, or its output's size is not in the trace")


def _out_dtype(op: str, given: tuple[Operand, ...]) -> str:
    if op in _BOOL:
        return "bool"
    values = given[1:] if op == "where" and len(given) > 1 else given
    # Promotion: the widest of the operands that have dimensions (a scalar does not widen its partner).
    return max((o for o in values if o.shape), key=lambda o: o.size, default=values[0]).dtype
