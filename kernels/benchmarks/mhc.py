"""mHC on this GPU: right, and microseconds per site beside the bytes' floor.

Run: ``PYTHONPATH=kernels python kernels/benchmarks/mhc.py``
"""

from __future__ import annotations

import torch
from dsv4_kernels.mhc import MhcWeights, hc_head, mhc_post, mhc_pre
from graph_timing import copy_bytes_per_us, median_us, need_gpu, poisoned, relative
from words import no_options

DIM = 4096
SITES = 86


def generate_site(tokens: int) -> tuple[torch.Tensor, MhcWeights]:
    """Streams and one site's weights."""
    x = torch.randn(tokens, 4, DIM, device="cuda").to(torch.bfloat16)
    fn = torch.randn(24, 4 * DIM, device="cuda") * (4 * DIM) ** -0.5
    return x, MhcWeights(fn, torch.rand(3, device="cuda"), torch.randn(24, device="cuda"))


def check() -> None:
    """Compare the fused forms with the torch forms in float64 where that matters."""
    for tokens in (1, 17, 128):
        x, w = generate_site(tokens)
        want = mhc_pre(x, w, variant="torch")
        with poisoned():
            got = mhc_pre(x, w, variant="fused")
            mixed = mhc_post(got[0], x, got[1], got[2], variant="fused")
            head = hc_head(x, w.fn[:4].contiguous(), w.scale[:1], w.base[:4], variant="fused")
        errors = [relative(a, b) for a, b in zip(got, want, strict=True)]
        errors.append(relative(mixed, mhc_post(got[0], x, got[1], got[2], variant="torch")))
        errors.append(
            relative(head, hc_head(x, w.fn[:4].contiguous(), w.scale[:1], w.base[:4], variant="torch"))
        )
        print(
            f"mHC T {tokens:3d}: relative error y, post, comb, mixed, head: "
            + " ".join(f"{e:.1e}" for e in errors)
        )
        assert max(errors[0], *errors[3:]) < 2e-3
        assert max(errors[1:3]) < 1e-5


def times(ceiling: float) -> None:
    """Print microseconds per site, every site with weights of its own."""
    print("mHC per site, us        pre fused  floor   pre torch  post fused  floor  post torch   head fused")
    for tokens in (1, 32, 128):
        sites = [generate_site(tokens) for _ in range(SITES)]
        results = [mhc_pre(x, w, variant="fused") for x, w in sites]
        both = list(zip(sites, results, strict=True))
        row = []
        for variant, count in (("fused", SITES), ("torch", 4)):
            row.append(median_us([lambda s=s, v=variant: mhc_pre(*s, variant=v) for s in sites[:count]]))
            row.append(
                median_us(
                    [
                        lambda s=s, r=r, v=variant: mhc_post(r[0], s[0], r[1], r[2], variant=v)
                        for s, r in both[:count]
                    ]
                )
            )
        x, w = sites[0]
        fn, scale, base = w.fn[:4].contiguous(), w.scale[:1].contiguous(), w.base[:4].contiguous()
        head = median_us([lambda: hc_head(x, fn, scale, base, variant="fused")])  # noqa: B023
        stream = tokens * DIM * 2
        pre_floor = (24 * 4 * DIM * 4 + 5 * stream) / ceiling
        post_floor = 9 * stream / ceiling
        print(
            f"  T {tokens:3d}               {row[0]:9.2f} {pre_floor:6.2f} {row[2]:11.1f} {row[1]:11.2f} "
            f"{post_floor:6.2f} {row[3]:11.2f} {head:12.2f}"
        )


def main() -> None:
    """Check, then time."""
    need_gpu("mhc.py")
    torch.manual_seed(0)
    check()
    times(copy_bytes_per_us())


if __name__ == "__main__":
    no_options(__doc__)
    main()
