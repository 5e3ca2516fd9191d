r"""Launch one form of the sparse-MLA decode a few times on cold data, for a profiler of the GPU's counters to look at.

    ncu --clock-control none --set full --import-source on --kernel-name regex:sparse_mla_hopper \
        --launch-skip 4 --launch-count 1 --export report \
        python kernels/benchmarks/profile_call.py --batch 128      # then: ncu --import report.ncu-rep --page details

``--clock-control none`` leaves the clocks as the timings of ``sparse_mla.py`` saw them. The pools are that script's, so
every call reads tokens that no cache holds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dsv4_kernels.decode import run_call
from graph_timing import need_gpu
from sparse_mla import EXTRA_PAGE, MAIN_PAGE, SHAPES, make_calls, make_pool
from words import at_least_1

CALLS = 8


def main() -> None:
    """Launch what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=list(SHAPES), default="128+512")
    parser.add_argument("--batch", type=at_least_1, default=128)
    parser.add_argument("--variant", choices=["mma", "split_k", "hopper", "auto"], default="auto")
    options = parser.parse_args()
    need_gpu("profile_call.py")
    pools = make_pool(1.07e9, MAIN_PAGE, 1), make_pool(4.29e9, EXTRA_PAGE, 2)
    kept = [
        run_call(call, options.variant)
        for call in make_calls(pools, SHAPES[options.shape], options.batch, CALLS)
    ]
    torch.cuda.synchronize()
    print(f"{options.variant}, {options.shape}, B={options.batch}: {len(kept)} calls")


if __name__ == "__main__":
    main()
