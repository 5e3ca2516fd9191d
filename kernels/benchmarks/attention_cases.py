"""Random sparse-MLA calls on a GPU, and how far a form's result is from float32 torch; the checks share them."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dsv4_kernels.call import DecodeCall, make_call
from dsv4_kernels.decode import Variant, run_call
from dsv4_kernels.layout import PagedKV, pack_kv
from dsv4_kernels.reference import relative_error

MODES = ("plain", "sink", "ragged")
MAX_ERROR, MAX_LSE = 4e-3, 1e-5


def poison() -> None:
    """Fill the memory the next allocations will get with NaN, so that an unwritten output shows."""
    blocks = [torch.full((1 << 26,), float("nan"), device="cuda") for _ in range(2)]
    blocks += [
        torch.full((size,), float("nan"), device="cuda") for size in (1 << 8, 1 << 12, 1 << 16, 1 << 20)
    ]
    del blocks


def make_case(
    batch: int,
    widths: tuple[int, int],
    mode: str,
    heads: int = 64,
    seed: int = 0,
    q_len: int = 1,
    pages: tuple[int, int] = (128, 64),
) -> DecodeCall:
    """A random call over small pools; fresh data for every seed.

    Args:
        batch: Requests.
        widths: Width of the main list and of the extra one, 0 for none.
        mode: ``plain``; ``sink``; or ``ragged``: a sink, random lengths, an empty request and 10 % of the indices -1.
        heads: Query heads.
        seed: Of the random numbers.
        q_len: Query tokens a request.
        pages: Tokens in a page of each pool.

    Returns:
        A checked call.
    """
    generator = torch.Generator("cuda").manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.rand(shape, device="cuda", generator=generator)

    def indices(pool: PagedKV, width: int) -> Tensor:
        shape = (batch, q_len, width)
        index = torch.randint(0, pool.num_slots, shape, device="cuda", generator=generator)
        return torch.where(rand(*shape) < (0.1 if mode == "ragged" else 0.0), -1, index).int()

    def lengths(width: int) -> Tensor | None:
        if mode != "ragged":
            return None
        length = (rand(batch) * (width + 1)).int()
        length[0] = width
        if batch > 2:
            length[1], length[2] = 0, 1  # a request with nothing at all, and one with one token a scope
        return length

    pools = tuple(
        pack_kv(torch.randn(tokens // page * page, 512, device="cuda", generator=generator), page)
        for tokens, page in zip((1 << 15, 1 << 16), pages, strict=True)
    )
    q = torch.randn(batch, q_len, heads, 512, device="cuda", generator=generator).bfloat16()
    sink = None if mode == "plain" else torch.randn(heads, device="cuda", generator=generator)
    extra = {"extra": pools[1], "extra_indices": indices(pools[1], widths[1]),
             "extra_topk_length": lengths(widths[1])} if widths[1] else {}  # fmt: skip
    main = indices(pools[0], widths[0])
    return make_call(q, pools[0], main, topk_length=lengths(widths[0]), attn_sink=sink, **extra)  # type: ignore[arg-type]


def compare(call: DecodeCall, variant: Variant, expected: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Relative output error and largest lse error of one run on poisoned memory; NaN if a result is."""
    poison()
    out, lse = run_call(call, variant)
    torch.cuda.synchronize()
    finite = torch.isfinite(expected[1])
    if not torch.equal(lse[~finite], expected[1][~finite]):
        return float("nan"), float("nan")
    difference = (lse - expected[1])[finite].abs()
    return relative_error(out, expected[0]), float(difference.max()) if difference.numel() else 0.0
