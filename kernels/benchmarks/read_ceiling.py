"""How fast can this GPU only read? The ceiling of kernels that stream weights or keys and write next to nothing."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from graph_timing import median_us


@triton.jit
def _read_kernel(x_ptr: tl.tensor, out_ptr: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr) -> None:
    total = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in tl.range(tl.program_id(0).to(tl.int64) * BLOCK, count, tl.num_programs(0) * BLOCK):
        total += tl.load(x_ptr + start + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.program_id(0), tl.sum(total, axis=0))


def read_bytes_per_us() -> float:
    """Bytes read per microsecond by a sum over 4 GiB, the best of a few shapes."""
    count = 1 << 30
    x = torch.randint(0, 100, (count,), dtype=torch.int32, device="cuda")
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    out = torch.empty(16 * sms, dtype=torch.int32, device="cuda")
    kernel: Any = _read_kernel
    times = [
        median_us([lambda b=block, g=grid: kernel[(g * sms,)](x, out, count, BLOCK=b, num_warps=4)], 6)
        for block in (2048, 4096, 8192)
        for grid in (8, 16)
    ]
    return 4 * count / min(times)
