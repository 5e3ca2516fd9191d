"""What a request more costs, and where throughput ends: the shipped captures of one variant over concurrency.

python examples/10_where_throughput_ends.py [RECORD.json ...]   # records of hta-dsv4 sweep --out
"""

from __future__ import annotations

import sys

from hta_dsv4.analysis.throughput import throughput
from hta_dsv4.present.throughput_grid import line_words
from hta_dsv4.runs.sweep_record import read_sweeps

SHIPPED = ["split_k", "split_k_c1", "split_k_c16", "split_k_c64"]


def main(records: list[str]) -> None:
    # Eager steps of the shipped captures wait for a slow host: their GPU time says what the GPU could give.
    sweeps = read_sweeps(records) if records else read_sweeps(SHIPPED, gpu_time=True)
    for found in map(throughput, sweeps):
        print(found.sweep.label)
        for level in found.levels:
            if level.tokens_per_s is not None and level.step_ns is not None:
                print(
                    f"  C={level.concurrency:<3} {level.tokens_per_s:8.1f} tok/s, {level.step_ns / 1e6:8.2f} ms/step"
                )
        if found.line is not None:
            each, ceiling = found.line.per_request_ns / 1e6, found.line.ceiling
            print(
                f"  a request more costs {each:.2f} ms; ceiling {ceiling.tokens_per_s or float('inf'):.0f} tok/s"
            )
        for sentence in (*line_words(found), *found.notes):
            print("  note:", sentence)


if __name__ == "__main__":
    main(sys.argv[1:])
