"""Where the GPU time of a decode step goes.

python examples/01_share_table.py [TRACE]
"""

from __future__ import annotations

import sys

import hta_dsv4


def main(trace: str) -> None:
    run = hta_dsv4.load(trace)
    shares = run.shares(by="bucket")
    print(f"{shares.label}: {shares.median_rank.steps} decode steps")
    for row in shares.table.to_dict("records"):
        print(f"{row['bucket']:16} {row['time_ns_per_step'] / 1e6:10.3f} ms/step {100 * row['share']:5.1f} %")
    size = shares.median_rank.extent
    print(
        f"sum {size.sum_ns / 1e6:.3f} ms, busy {size.busy_ns / 1e6:.3f}, wall {size.wall_ns / 1e6:.3f} over all steps"
    )
    for note in shares.notes:
        print("note:", note)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(hta_dsv4.traces()["mhc_fused"]))
