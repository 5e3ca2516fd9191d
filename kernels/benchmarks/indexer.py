"""The indexer on this GPU: right at every length, and microseconds beside the bytes' floor.

Run: ``PYTHONPATH=kernels python kernels/benchmarks/indexer.py``
"""

from __future__ import annotations

import torch
from dsv4_kernels.indexer import PagedIndexK, indexer_logits, indexer_topk
from graph_timing import copy_bytes_per_us, median_us, need_gpu, poisoned, relative
from read_ceiling import read_bytes_per_us
from words import no_options

WIDTH = 262_144  # 1,048,576 tokens of context / 4
LENGTHS = (2048, 32_768, 262_144)  # contexts of 8K, 128K and 1M


def generate_pool(pages: int) -> PagedIndexK:
    """A cache of random keys with scales near 0.01."""
    data = torch.randint(0, 0x78, (pages, 8448), dtype=torch.uint8, device="cuda")
    data[:, :8192] |= torch.randint(0, 2, (pages, 8192), dtype=torch.uint8, device="cuda") << 7
    data[:, 8192:] = (torch.rand(pages, 64, device="cuda") * 0.01 + 0.005).view(torch.uint8)
    return PagedIndexK(data)


def generate_request(batch: int, pool: PagedIndexK, length: int) -> tuple[torch.Tensor, ...]:
    """q, weights, scattered page table, equal lengths."""
    pages = pool.data.shape[0]
    table = torch.randperm(pages, device="cuda").repeat(-(-batch * WIDTH // 64 // pages))
    table = table[: batch * WIDTH // 64].view(batch, -1).to(torch.int32)
    q = torch.randn(batch, 64, 128, device="cuda").to(torch.float8_e4m3fn)
    lengths = torch.full((batch,), length, dtype=torch.int32, device="cuda")
    return q, torch.randn(batch, 64, device="cuda"), table, lengths


def check(pool: PagedIndexK) -> None:
    """Compare both launches with float32 torch on poisoned buffers, and a graph replay after a change of lengths."""
    q, weights, table, lengths = generate_request(6, pool, 0)
    lengths.copy_(torch.tensor([0, 511, 700, 4097, 20_000, WIDTH]))
    want = indexer_logits(q, pool, weights, table, lengths, variant="torch_fp32", chunk=2)
    for kind in ("e4m3", "bf16"):
        query = q if kind == "e4m3" else q.to(torch.bfloat16)
        with poisoned():
            got = indexer_logits(query, pool, weights, table, lengths, variant="triton")
        errors = [relative(got[i, :n], want[i, :n]) for i, n in enumerate(lengths.tolist()) if n]
        print(f"indexer logits {kind}: worst relative error {max(errors):.2e}")
        assert max(errors) < 2e-3
        assert torch.isnan(got[1, 511:]).all(), "written past the length"
    want = want.where(want != float("-inf"), torch.nan)
    graph = torch.cuda.CUDAGraph()
    for topk in (512, 1024):
        with poisoned():
            slots = indexer_topk(want, lengths, table, topk, variant="triton")
        compare_topk(want, lengths, table, topk, slots)
    with torch.cuda.graph(graph):
        slots = indexer_topk(want, lengths, table, 512, variant="triton")
    for _ in range(3):
        lengths.copy_(lengths.roll(1))
        want.copy_(torch.randn_like(want).round(decimals=2))
        graph.replay()
        compare_topk(want, lengths, table, 512, slots)
    print("indexer top-k: exact for 512 and 1024, and in three graph replays with new lengths and ties")


def compare_topk(
    logits: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor, topk: int, slots: torch.Tensor
) -> None:
    """Fail unless the kept scores are torch.topk's and the slots distinct."""
    for row, length in enumerate(lengths.tolist()):
        keep = min(topk, length)
        kept = slots[row, :keep].long()
        assert (slots[row, keep:] == -1).all()
        scores = torch.full((int(table.max()) * 64 + 64,), torch.nan, device="cuda")
        columns = torch.arange(length, device="cuda")
        scores[(table[row, columns >> 6].long() << 6) | (columns & 63)] = logits[row, :length]
        assert kept.unique().numel() == keep
        assert torch.equal(scores[kept].sort().values, logits[row, :length].topk(keep).values.sort().values)


def generate_sets(batch: int, pool: PagedIndexK, length: int) -> list[tuple[torch.Tensor, ...]]:
    """Requests enough that one pass over them reads 400 MB of keys: none finds its own in L2. 512 at most."""
    count = min(512, max(2, -(-400_000_000 // (batch * length * 132))))
    return [generate_request(batch, pool, length) for _ in range(count)]


def times(pool: PagedIndexK, copy: float, read: float) -> None:
    """Print microseconds of both launches, at the static width of a 1M context."""
    print(
        "indexer, static width 262,144       logits us  floor copy    x   read    x   top-k us   torch.topk form us"
    )
    for batch in (1, 32):
        for length in LENGTHS:
            sets = generate_sets(batch, pool, length)
            logits_us = median_us(
                [lambda s=s: indexer_logits(s[0], pool, *s[1:], variant="triton") for s in sets]
            )
            pairs = [(s, indexer_logits(s[0], pool, *s[1:], variant="triton")) for s in sets[:16]]
            topk_us = median_us(
                [lambda s=s, x=x: indexer_topk(x, s[3], s[2], 512, variant="triton") for s, x in pairs]
            )
            (q, w, t, n), x = pairs[0]
            torch_us = median_us([lambda x=x, n=n, t=t: indexer_topk(x, n, t, 512, variant="torch")], 3)
            size = batch * length * 136
            print(
                f"  B {batch:3d}  length {length:7,d}            {logits_us:9.2f} {size / copy:10.2f} "
                f"{logits_us * copy / size:5.2f} {size / read:7.2f} {logits_us * read / size:5.2f} {topk_us:9.1f} "
                f"{torch_us:12.1f}",
                flush=True,
            )
        for variant in ("torch_fp32", "torch_bf16"):
            us = median_us([lambda v=variant: indexer_logits(q, pool, w, t, n, variant=v)], 3)  # noqa: B023
            print(f"  B {batch:3d}  any length, {variant:12s}  {us:9.1f}")


def main() -> None:
    """Check, then time."""
    need_gpu("indexer.py")
    torch.manual_seed(0)
    pool = generate_pool(131_072)
    check(pool)
    times(pool, copy_bytes_per_us(), read_bytes_per_us())


if __name__ == "__main__":
    no_options(__doc__)
    main()
