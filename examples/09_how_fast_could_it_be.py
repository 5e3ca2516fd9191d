"""Floors, headroom, empty SMs, and what a change would bring.

python examples/09_how_fast_could_it_be.py [TRACE]
"""

from __future__ import annotations

import sys

import hta_dsv4
from hta_dsv4.analysis.change import parse_set
from hta_dsv4.present.notebook import show


def main(trace: str) -> None:
    run = hta_dsv4.load(trace)
    print(show(run.roofline("origin"), run.coverage(), top=5))
    largest = run.shares("origin").table["origin"][0]
    print(show(run.whatif([parse_set(f"origin:{largest}/2")])))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(hta_dsv4.traces()["mhc_fused"]))
