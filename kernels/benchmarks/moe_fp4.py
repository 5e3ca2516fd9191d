"""The FP4 MoE on this GPU: right in both formats, and microseconds beside the floor of the experts' bytes.

Run: ``PYTHONPATH=kernels python kernels/benchmarks/moe_fp4.py``
"""

from __future__ import annotations

import torch
from dsv4_kernels.moe_fp4 import Fp4Experts, moe_fp4, random_experts, route
from graph_timing import copy_bytes_per_us, median_us, need_gpu, poisoned, relative
from read_ceiling import read_bytes_per_us
from words import no_options

DIM, INTER, EXPERTS = 4096, 2048, 256


def generate_tokens(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs and a random routing."""
    x = torch.randn(tokens, DIM, device="cuda").to(torch.bfloat16)
    ids, weights = route(torch.randn(tokens, EXPERTS, device="cuda"), variant="torch")
    return x, ids, weights


def check(experts: Fp4Experts) -> None:
    """Compare both forms, random and crowded routings, outputs poisoned; graph replays; and the router."""
    for tokens in (1, 4, 40, 128, 256):
        x, ids, weights = generate_tokens(tokens)
        if tokens >= 40:
            ids[:, 0] = 255
        want = moe_fp4(x, experts, ids, weights, variant="torch")
        with poisoned():
            got = moe_fp4(x, experts, ids, weights, variant="triton")
        error = relative(got, want)
        print(f"MoE {experts.format} T {tokens:3d}: relative error {error:.1e}")
        assert error < 8e-3
    check_replay(experts)
    logits, bias = torch.randn(64, EXPERTS, device="cuda") * 4, torch.randn(EXPERTS, device="cuda")
    want_ids, want_weights = route(logits, bias=bias, variant="torch")
    with poisoned():
        ids, weights = route(logits, bias=bias, variant="triton")
    # Two scores a rounding apart may change places.
    assert float((ids == want_ids).float().mean()) > 0.99
    assert relative(weights, want_weights) < 1e-4


def check_replay(experts: Fp4Experts) -> None:
    """Two calls in one graph, the second on the first's answer; new routings between replays; each replay twice."""
    x, ids, weights = generate_tokens(32)
    moe_fp4(x, experts, ids, weights, variant="triton")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        middle = moe_fp4(x, experts, ids, weights, variant="triton")
        got = moe_fp4(middle, experts, ids, weights, variant="triton")
    for _ in range(20):
        new = generate_tokens(32)
        for held, fresh in zip((x, ids, weights), new, strict=True):
            held.copy_(fresh)
        graph.replay()
        first = got.clone()
        graph.replay()
        assert torch.equal(first, got), "two replays differ"
        want = moe_fp4(middle, experts, ids, weights, variant="torch")
        assert relative(got, want) < 8e-3
    print(f"MoE {experts.format}: right and the same twice in 20 graph replays with new routings")


def times(experts: Fp4Experts, copy: float, read: float) -> None:
    """Print microseconds per layer, cold: every call of a graph has its own routing, a replay reads over 1 GB."""
    print(f"MoE {experts.format}        us  experts  floor copy    x     read    x    TB/s  route us")
    for tokens in (1, 4, 8, 16, 32, 64, 128, 256):
        sets = [generate_tokens(tokens) for _ in range(16 if tokens < 16 else 4)]
        distinct = sum(ids.unique().numel() for _, ids, _ in sets) / len(sets)
        us = median_us([lambda s=s: moe_fp4(s[0], experts, *s[1:], variant="triton") for s in sets])
        logits = torch.randn(tokens, EXPERTS, device="cuda")
        route_us = median_us([lambda: route(logits, variant="triton")] * 20)  # noqa: B023
        size = distinct * experts.expert_bytes
        print(
            f"  T {tokens:3d}    {us:9.1f} {distinct:7.1f} {size / copy:10.1f} {us * copy / size:6.2f} "
            f"{size / read:8.1f} {us * read / size:5.2f} {size / us / 1e6:6.2f} {route_us:8.2f}",
            flush=True,
        )
    x, ids, weights = generate_tokens(1)
    print(f"  T   1 torch  {median_us([lambda: moe_fp4(x, experts, ids, weights, variant='torch')], 3):9.1f}")


def main() -> None:
    """Check, then time, both formats."""
    need_gpu("moe_fp4.py")
    torch.manual_seed(0)
    copy, read = copy_bytes_per_us(), read_bytes_per_us()
    print(f"copy ceiling {copy / 1e6:.2f} TB/s, read ceiling {read / 1e6:.2f} TB/s")
    for fmt in ("mxfp4", "nvfp4"):
        experts = random_experts(EXPERTS, DIM, INTER, fmt, device="cuda")
        check(experts)
        times(experts, copy, read)


if __name__ == "__main__":
    no_options(__doc__)
    main()
