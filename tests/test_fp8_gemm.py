"""The FP8 block product: whole and split, in Triton's interpreter and compiled; and how many splits are chosen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

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


def test_splits_fill_the_gpu() -> None:
    """Flash's projections on 132 SMs -> a program an SM or more, where K has groups enough; wide ones stay whole."""
    c = model_config("flash")
    heads, groups = c.heads * 512, c.o_groups
    shapes = {
        "wqkv_a": (c.q_lora + 512, c.hidden),
        "wq_b": (heads, c.q_lora),
        "wo_a": (groups * c.o_lora, heads // groups),
        "wo_b": (c.hidden, groups * c.o_lora),
        "w13": (2 * c.moe_inter, c.hidden),
        "w2": (c.hidden, c.moe_inter),
    }
    found = {name: choose_splits(n, k, sms=132) for name, (n, k) in shapes.items()}
    assert found == {"wqkv_a": 6, "wq_b": 1, "wo_a": 2, "wo_b": 3, "w13": 3, "w2": 3}
    assert choose_splits(128, 128, sms=132) == 1  # one group cannot be divided


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
