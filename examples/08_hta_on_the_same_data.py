"""HTA's own analyses on the same trace, without its rounding, and checked.

python examples/08_hta_on_the_same_data.py [TRACE]
"""

from __future__ import annotations

import sys

import hta_dsv4


def main(trace: str) -> None:
    run = hta_dsv4.load(trace)
    print(run.hta.temporal_breakdown().to_string(index=False))
    by_type, _ = run.hta.kernel_breakdown()
    print(by_type.to_string(index=False))
    analysis = run.hta.analysis  # HTA's TraceAnalysis itself, for everything else it can do
    print(type(analysis).__module__, type(analysis).__name__)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(hta_dsv4.traces()["cuda_graph"]))
