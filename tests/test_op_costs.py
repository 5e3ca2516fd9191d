"""Costs of ops, worked out by hand from shapes and dtypes as traces spell them."""

from __future__ import annotations

import pytest

from hta_dsv4.analysis.costs.assign import launch_costs
from hta_dsv4.analysis.costs.cost import MEASURED, UNKNOWN, Cost
from hta_dsv4.analysis.costs.gemm import gemm_cost
from hta_dsv4.analysis.costs.pointwise import pointwise_cost
from hta_dsv4.analysis.costs.shapes import operands
from hta_dsv4.analysis.costs.workload import Workload
from hta_dsv4.trace import activities as col
from tests.speed import counted_of


def product(op, shapes, dtypes, kernel="cutlass_80_simt_sgemm"):
    return gemm_cost(op, operands(shapes, dtypes), kernel)


def other(op, shapes, dtypes, kernel="elementwise_kernel", grid=None):
    return pointwise_cost(op, operands(shapes, dtypes), kernel, grid)


def test_the_indexers_fp32_product_moves_6_44_gb():
    """Bmm [32, 262144, 128] x [32, 128, 64] in FP32 -> 4.29 GB of keys, 2.15 GB of scores, 137 GFLOP."""
    cost = product("bmm", "[[32,262144,128],[32,128,64]]", '["float","float"]')
    assert cost.read == 32 * 128 * (262144 + 64) * 4
    assert cost.written == 32 * 262144 * 64 * 4
    assert cost.flops == 2 * 32 * 262144 * 128 * 64
    assert cost.moved / 1e9 == pytest.approx(6.44, abs=0.01)
    assert (cost.arithmetic, cost.known) == ("fp32", MEASURED)


@pytest.mark.parametrize(
    ("op", "shapes", "dtypes", "read", "written", "flops", "arithmetic"),
    [
        ("mm", "[[2,8],[8,4]]", '["float","float"]', 4 * (16 + 32), 4 * 8, 128, "fp32"),
        ("mm", "[[2,8],[8,4],[]]", '["c10::BFloat16","c10::BFloat16","Scalar"]', 2 * 48, 4 * 8, 128, "bf16"),
        ("mm", "[[2,8],[8,4]]", '["c10::BFloat16","c10::BFloat16"]', 2 * 48, 2 * 8, 128, "bf16"),
        ("addmm", "[[4],[2,8],[8,4],[],[]]", '["c10::Half","c10::Half","c10::Half","Scalar","Scalar"]',
         2 * (4 + 48), 2 * 8, 128, "bf16"),
        ("linear", "[[3,2,8],[4,8],[4]]", '["float","float","float"]', 4 * (48 + 32 + 4), 4 * 24, 384, "fp32"),
        ("_scaled_mm", "[[2,8],[8,4],[],[]]", '["c10::Float8_e4m3fn","c10::Float8_e4m3fn","float","float"]',
         48 + 8, 2 * 8, 128, "fp8"),
    ],
)  # fmt: skip
def test_products_read_each_factor_once_and_write_the_result(
    op, shapes, dtypes, read, written, flops, arithmetic
):
    """Small products -> bytes and operations as counted by hand."""
    cost = product(op, shapes, dtypes)
    assert (cost.read, cost.written, cost.flops, cost.arithmetic) == (read, written, flops, arithmetic)


def test_fp32_counts_as_tf32_only_where_the_kernel_says_so():
    """An FP32 product by a kernel named tf32 -> the tensor cores' rate."""
    assert (
        product("mm", "[[2,8],[8,4]]", '["float","float"]', "cutlass_tensorop_s1688tf32gemm").arithmetic
        == "tf32"
    )


@pytest.mark.parametrize(
    ("op", "shapes", "dtypes"),
    [("mm", "[[2,8],[7,4]]", '["float","float"]'), ("mm", "", ""), ("mm", "[[2,8]]", '["float"]'),
     ("bmm", "[[2,3,8],[3,8,4]]", '["float","float"]'), ("mm", "[[2,8],[8,4]]", '["odd","odd"]')],
)  # fmt: skip
def test_a_product_that_does_not_fit_is_unknown(op, shapes, dtypes):
    """Missing or contradictory shapes -> unknown, with the reason."""
    cost = product(op, shapes, dtypes)
    assert cost.known == UNKNOWN
    assert cost.source


@pytest.mark.parametrize(
    ("op", "shapes", "dtypes", "read", "written"),
    [
        ("copy", "[[4,8],[4,8],[]]", '["float","c10::Float8_e4m3fn","Scalar"]', 32, 128),
        ("fill", "[[4,8],[]]", '["c10::BFloat16","Scalar"]', 0, 64),
        ("mul", "[[4,8],[4,1]]", '["float","float"]', 128 + 16, 128),
        ("mul", "[[4,8],[]]", '["float","float"]', 128 + 4, 128),
        ("ge", "[[1,8],[4,1]]", '["long int","int"]', 64 + 16, 32),
        ("where", "[[4,8],[],[4,8]]", '["bool","float","float"]', 32 + 4 + 128, 128),
        ("masked_fill", "[[4,8],[4,8],[]]", '["float","bool","Scalar"]', 128 + 32, 128),
        ("sum", "[[4,8],[],[],[]]", '["float","ScalarList","Scalar",""]', 128, 0),
        ("_softmax", "[[4,8],[],[]]", '["float","Scalar","Scalar"]', 128, 128),
        ("_fused_rms_norm", "[[4,8],[],[8],[]]", '["c10::Half","ScalarList","c10::Half","Scalar"]', 64 + 16, 64),
        ("topk", "[[4,8],[],[],[],[]]", '["float","Scalar","Scalar","Scalar","Scalar"]', 128, 0),
        ("cat", "[[[4,8],[2,8]],[]]", '[["float","float"],"Scalar"]', 192, 192),
        ("gather", "[[4,80],[],[4,2],[]]", '["int","Scalar","long int","Scalar"]', 64 + 32, 32),
        ("embedding", "[[100,8],[4]]", '["c10::BFloat16","long int"]', 32 + 64, 64),
    ],
)  # fmt: skip
def test_pointwise_ops_move_each_tensor_once(op, shapes, dtypes, read, written):
    """Elementwise, copies, reductions, gathers -> bytes as counted by hand."""
    cost = other(op, shapes, dtypes)
    assert (cost.read, cost.written) == (read, written)
    assert cost.known == MEASURED


def test_gathered_rows_are_read_off_the_grid():
    """Index of [681, 8448] bytes by 131,072 columns -> all rows written, the source read once."""
    cost = other(
        "index", "[[681,8448],[]]", '["unsigned char",""]', "vectorized_gather_kernel<16, long>", 131072
    )
    assert cost.written == 131072 * 8448
    assert cost.read == 8 * 131072 + 681 * 8448


@pytest.mark.parametrize(
    ("op", "shapes", "dtypes"),
    [("arange", "[[],[],[],[0]]", '["Scalar","Scalar","Scalar","long int"]'), ("fill", "[[],[]]", '["float","Scalar"]'),
     ("index", "[[681,8448],[]]", '["unsigned char",""]'), ("no_such_op", "[[4]]", '["float"]'),
     ("cat", "[[[4,8],[2,8]],[]]", '["TensorList","Scalar"]')],
)  # fmt: skip
def test_what_shapes_do_not_tell_is_unknown(op, shapes, dtypes):
    """Ops whose size or dtype is not in the trace -> unknown, with the reason."""
    cost = other(op, shapes, dtypes)
    assert cost.known == UNKNOWN
    assert cost.source


MM = {col.OP: "aten::mm", col.OP_SHAPES: "[[2,8],[8,4]]", col.OP_DTYPES: '["float","float"]'}


def test_an_ops_cost_goes_to_its_heavy_kernel_once():
    """A product and its split-K reduction in one call -> the cost at the product, the reduction a helper."""
    part = counted_of(
        [("sgemm", 0, 900, {**MM, col.EXTERNAL_ID: 5, col.ROLE: "gemm_fp32_simt"}),
         ("cublasLt::splitKreduce_kernel", 1000, 100, {**MM, col.EXTERNAL_ID: 5, col.ROLE: "gemm_splitk_reduce"})]
    )  # fmt: skip
    costs, code = launch_costs(part, Workload())
    first, second = (costs[i] for i in code)
    assert first.moved == 4 * (16 + 32 + 8)
    assert second.moved == 0
    assert "counted at" in second.source


def test_a_helper_of_an_unknown_cost_is_unknown():
    """A reduction that finishes a product nobody described -> unknown too, not a launch's floor."""
    part = counted_of(
        [("gemm", 0, 900, {col.ROLE: "gemm_bf16"}), ("red", 1000, 100, {col.ROLE: "gemm_splitk_reduce"})]
    )
    costs, code = launch_costs(part, Workload())
    assert {costs[i].known for i in code} == {UNKNOWN}


COPY = {
    col.OP: "aten::copy_",
    col.OP_SHAPES: "[[4,8],[4,8],[]]",
    col.OP_DTYPES: '["float","c10::BFloat16","Scalar"]',
}


@pytest.mark.parametrize(("numbers", "each"), [((7, 7), 96), ((7, 8), 192), ((None, None), 192)])
def test_equal_kernels_share_a_cost_only_within_one_call(numbers, each):
    """Two equal copies -> halves where the trace says they are one call, whole ones otherwise."""
    rows = [
        ("copy", t, 50, {**COPY, col.ROLE: "copy_cast", col.EXTERNAL_ID: n})
        for t, n in zip((0, 60), numbers, strict=True)
    ]
    costs, code = launch_costs(counted_of(rows), Workload())
    assert [costs[i].moved for i in code] == [each, each]


def test_copies_know_their_size_and_buses_are_left_out():
    """A device copy, a set and a copy to the host -> measured, measured, unknown."""
    part = counted_of(
        [("Memcpy DtoD (Device -> Device)", 0, 10, {col.KIND: col.MEMCPY, col.BYTES: 64, col.ROLE: "memcpy"}),
         ("Memset (Device)", 20, 10, {col.KIND: col.MEMSET, col.BYTES: 32, col.ROLE: "memset"}),
         ("Memcpy DtoH (Device -> Pinned)", 40, 10, {col.KIND: col.MEMCPY, col.BYTES: 64, col.ROLE: "memcpy"})]
    )  # fmt: skip
    costs, code = launch_costs(part, Workload())
    assert [costs[i] for i in code][:2] == [
        Cost(64, 64, known=MEASURED, source="copy size"), Cost(0, 32, known=MEASURED, source="copy size")
    ]  # fmt: skip
    assert costs[code[2]].known == UNKNOWN
