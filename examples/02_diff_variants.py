"""Why one variant is faster than another: exact effects of the change, per step.

python examples/02_diff_variants.py [BEFORE AFTER]
"""

from __future__ import annotations

import sys

import hta_dsv4


def main(before: str, after: str) -> None:
    why = hta_dsv4.why({"before": before, "after": after}).whole
    assert why is not None
    parts = why.decomposition
    print(
        f"{parts.base.per_step.own_ns / 1e6:.3f} -> {parts.other.per_step.own_ns / 1e6:.3f} ms of GPU time per step"
    )
    for effect, ns in parts.effects.items():
        print(f"  {effect.removesuffix('_ns'):12} {ns / 1e6:+10.3f} ms")
    print("kernels that moved most:")
    for row in parts.table("kernel").head(5).to_dict("records"):
        print(f"  {row['delta_ns'] / 1e6:+9.3f} ms  {row['kernel'][:80]}")
    for rewrite in why.alignment.rewrites[:3]:
        print(f"{len(rewrite.base)} kernels became {len(rewrite.other)}, {rewrite.times} times a step")


if __name__ == "__main__":
    shipped = hta_dsv4.traces()
    main(
        *(
            sys.argv[1:3]
            if len(sys.argv) > 2
            else (str(shipped["cuda_graph_eager"]), str(shipped["cuda_graph"]))
        )
    )
