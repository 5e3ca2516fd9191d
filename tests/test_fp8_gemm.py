"""The FP8 block product: whole and split, in Triton's interpreter and compiled; and how many splits are chosen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from benchmarks.fp8_splits import projections  # noqa: E402
from hta_dsv4.capture.config import model_config  # noqa: E402
from hta_dsv4.capture.fp8_gemm import choose_splits  # noqa: E402
from hta_dsv4.capture.linear import random_linear  # noqa: E402
from hta_dsv4.capture.parts import parts_for  # noqa: E402
from hta_dsv4.capture.switches import Switches  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]


def in_a_process(code: str, **environment: str) -> str:
    """What Python prints for ``code``: Triton decides at import whether it compiles or interprets."""
    inherited = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    paths = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | {"PYTHONPATH": paths} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


INTERPRETED = """
import json
import torch
from hta_dsv4.capture import fp8_gemm
from hta_dsv4.capture.linear import random_linear
errors = {}
for rows, groups, n, k in ((3, 1, 128, 640), (5, 2, 128, 512)):
    torch.manual_seed(1)
    w = random_linear(n, k, "fp8", torch.Generator().manual_seed(2), groups)
    x = torch.randn(rows, groups, k).bfloat16()
    want = fp8_gemm.fp8_block_matmul(x, w.weight, w.scales).double()  # the torch form
    q, s = fp8_gemm.quantize_activations(x.view(rows * groups, k))
    for splits in (1, 2, 3):
        got = fp8_gemm.multiply(q, s, w.weight, w.scales, rows, splits).double()
        errors[f"{groups}x{n}x{k}/{splits}"] = float((got - want).norm() / want.norm())
print(json.dumps(errors))
"""


def test_every_split_computes_the_same_product() -> None:
    """K of five and four groups in 1, 2 and 3 uneven parts, one product and two -> the torch form's numbers."""
    errors = json.loads(in_a_process(INTERPRETED, TRITON_INTERPRET="1"))
    assert len(errors) == 6
    assert max(errors.values()) < 5e-3, errors


COMPILED = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from hta_dsv4.capture import fp8_gemm
target = GPUTarget("cuda", int(sys.argv[1]) if len(sys.argv) > 1 else 90, 32)
for splits in (1, 3):
    out = "*bf16" if splits == 1 else "*fp32"
    fixed = {"BLOCK_M": 32, "BLOCK_N": 64, "GROUP": 128, "SPLITS": splits}
    signature = {"x_ptr": "*fp8e4nv", "xs_ptr": "*fp32", "w_ptr": "*fp8e4nv", "ws_ptr": "*fp32", "y_ptr": out,
                 "M": "i32", "N": "i32", "K": "i32", "batch": "i32"} | dict.fromkeys(fixed, "constexpr")
    source = ASTSource(fp8_gemm._fp8_block_gemm_kernel, signature=signature, constexprs=fixed)
    made = triton.compile(source, target=target, options={"num_warps": 4, "num_stages": 4})
    print("wgmma.mma_async" in made.asm["ptx"], made.metadata.shared)
"""


def test_compiled_for_hopper_it_multiplies_by_wgmma() -> None:
    """Whole and split, compiled for sm_90 -> asynchronous tensor-core products, the same shared memory."""
    whole, split = in_a_process(COMPILED).splitlines()
    assert whole == split
    assert whole.startswith("True")


# benchmarks/fp8_splits.py on an H200: rows, projection -> us at 1, 2, 3, 4, 6 and 8 splits
MEASURED = {
    (32, "wqkv_a"): (14.41, 9.14, 7.57, 7.22, 7.54, 7.29),
    (32, "wq_b"): (12.05, 18.75, 21.82, 23.71, 28.38, 33.92),
    (32, "wo_a"): (17.08, 15.00, 15.36, 15.14, 18.10, 19.01),
    (32, "wo_b"): (27.88, 18.10, 16.53, 14.83, 14.84, 15.02),
    (32, "shared w13"): (15.29, 11.40, 10.83, 9.89, 10.27, 11.35),
    (32, "shared w2"): (8.75, 7.74, 7.79, 7.82, 8.31, 8.72),
    (32, "indexer wq_b"): (6.05, 7.69, 8.05, 8.54, 9.81, 10.37),
    (1, "wqkv_a"): (11.56, 8.38, 7.09, 6.25, 6.05, 5.84),
    (1, "wq_b"): (10.87, 14.44, 14.46, 15.08, 15.97, 16.50),
    (1, "wo_a"): (14.59, 13.21, 12.56, 12.43, 13.20, 14.21),
    (1, "wo_b"): (23.09, 16.05, 14.02, 13.02, 12.65, 12.63),
    (1, "shared w13"): (12.41, 9.74, 8.81, 8.24, 8.56, 8.50),
    (1, "shared w2"): (7.10, 6.58, 6.36, 6.11, 6.59, 6.55),
    (1, "indexer wq_b"): (5.07, 6.05, 6.38, 6.28, 7.74, 7.71),
    (128, "wqkv_a"): (16.49, 12.52, 12.42, 11.49, 11.91, 11.19),
    (128, "wq_b"): (22.01, 42.49, 54.75, 65.14, 86.03, 102.68),
    (128, "wo_a"): (25.28, 33.89, 32.47, 36.36, 41.22, 46.86),
    (128, "wo_b"): (32.14, 30.82, 27.12, 34.94, 31.58, 36.58),
    (128, "shared w13"): (17.46, 18.61, 17.50, 21.71, 21.67, 25.68),
    (128, "shared w2"): (10.12, 12.27, 12.57, 16.11, 15.95, 18.89),
    (128, "indexer wq_b"): (7.95, 15.03, 14.92, 17.96, 21.00, 25.40),
}
SPLITS = (1, 2, 3, 4, 6, 8)


@pytest.mark.parametrize(("rows", "name"), MEASURED)
def test_split_counts_are_the_measured_ones(rows: int, name: str) -> None:
    """Each projection of Flash on 132 SMs -> never slower than undivided; at 32 rows within 2 % of the fastest."""
    groups, outputs, inputs = projections(model_config("flash"))[name]
    times = dict(zip(SPLITS, MEASURED[rows, name], strict=True))
    taken = times[choose_splits(groups * outputs, inputs, rows, sms=132)]
    assert taken <= times[1]
    if rows < 128:
        assert taken <= min(times.values()) * (1.02 if rows == 32 else 1.10)


def test_split_is_the_same_model() -> None:
    """gemm=fp8 and gemm=fp8_split, one seed -> the same weights; on the CPU the same numbers."""
    whole, split = (
        random_linear(128, 256, g, torch.Generator().manual_seed(5)) for g in ("fp8", "fp8_split")
    )
    assert torch.equal(whole.weight.view(torch.uint8), split.weight.view(torch.uint8))
    x = torch.randn(3, 256).bfloat16()
    assert torch.equal(whole(x), split(x, split=True))


def test_the_switch_reaches_the_product() -> None:
    """gemm=fp8_split -> the step's projections ask for the division, those of gemm=fp8 do not."""
    asked = []

    class Weights:
        def __call__(self, x: torch.Tensor, split: bool = False) -> torch.Tensor:
            asked.append(split)
            return x

    for gemm in ("fp8", "fp8_split"):
        parts_for(Switches(gemm=gemm)).project(Weights(), torch.ones(1))  # type: ignore[arg-type]
    assert asked == [False, True]
