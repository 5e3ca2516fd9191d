"""The indexer, mHC and MoE kernels on this GPU: right first, then times, then a few other tiles.

The MoE's tiles are `tune_moe.py`'s to try.

Run: ``PYTHONPATH=kernels python kernels/benchmarks/check_other_gpu.py``
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable

import indexer
import mhc
import moe_fp4
import torch
from dsv4_kernels import mhc_fused, paged_logits
from dsv4_kernels.indexer import indexer_logits
from graph_timing import copy_bytes_per_us, median_us, need_gpu
from words import no_options


def sweep_logits() -> None:
    """Block, warps and stages of the scorer; programs per SM."""
    pool = indexer.generate_pool(131_072)
    sets = {(b, n): indexer.generate_request(b, pool, n) for b, n in ((1, 16_384), (32, 2048), (32, 262_144))}
    keep = (
        paged_logits.BLOCK_S,
        paged_logits.NUM_WARPS,
        paged_logits.NUM_STAGES,
        paged_logits.PROGRAMS_PER_SM,
    )
    for config in (keep, (64, 4, 2, 8), (128, 4, 3, 5), (128, 4, 4, 8), (128, 4, 2, 8)):
        paged_logits.BLOCK_S, paged_logits.NUM_WARPS, paged_logits.NUM_STAGES = config[:3]
        paged_logits.PROGRAMS_PER_SM = config[3]
        row = [
            median_us([lambda s=s: indexer_logits(s[0], pool, *s[1:], variant="triton")] * 4, 10)
            for s in sets.values()
        ]
        print("logits (block, warps, stages, per SM)", config, [f"{us:.1f}" for us in row])


def sweep_mhc() -> None:
    """Warps and tile of the finish; split-K parts and block of the product."""
    sites = {tokens: [mhc.generate_site(tokens) for _ in range(40)] for tokens in (1, 32, 128)}
    for config in (
        (4, 1024, 128, 128),
        (1, 1024, 128, 128),
        (1, 256, 128, 128),
        (2, 512, 64, 128),
        (4, 512, 64, 256),
    ):
        mhc_fused.FINISH_WARPS, mhc_fused.FINISH_BLOCK_D, mhc_fused.PARTS, mhc_fused.BLOCK_K = config
        row = [
            median_us([lambda s=s: mhc.mhc_pre(*s, variant="fused") for s in group], 10)
            for group in sites.values()
        ]
        print("mHC pre (finish warps, block, parts, K)", config, [f"{us:.2f}" for us in row])


def main() -> int:
    """Run every part, whatever the others do.

    Returns:
        How many failed.
    """
    need_gpu("check_other_gpu.py")
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), torch.__version__)
    ceiling = copy_bytes_per_us()
    print(f"copy ceiling {ceiling / 1e6:.2f} TB/s")
    failed = 0
    parts: list[Callable[[], None]] = [
        indexer.main,
        mhc.main,
        moe_fp4.main,
        sweep_logits,
        sweep_mhc,
    ]
    for part in parts:
        started = time.monotonic()
        try:
            part()
        except Exception:
            traceback.print_exc(limit=4, file=sys.stdout)
            failed += 1
        print(f"-- {part.__module__}.{part.__name__}: {time.monotonic() - started:.1f} s", flush=True)
        torch.cuda.empty_cache()
    return failed


if __name__ == "__main__":
    no_options(__doc__)
    sys.exit(main())
