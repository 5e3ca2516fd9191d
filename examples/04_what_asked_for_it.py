"""Which part of the model asked for the work of each bucket, also under a CUDA graph.

Kernels of a graph replay know no operator; the eager companion of the same step tells.
python examples/04_what_asked_for_it.py [TRACE [COMPANION]]
"""

from __future__ import annotations

import sys

import hta_dsv4


def main(trace: str, companion: str | None) -> None:
    run = hta_dsv4.load(trace, companion=companion)
    table = run.shares(by="bucket,origin").table
    wide = table.pivot_table(index="bucket", columns="origin", values="share", aggfunc="sum").mul(100)
    print(wide.round(1).to_string(na_rep=""))
    for fit in run.fits:
        if fit is not None:
            print(fit.sentence)
    shares = run.activities.groupby("origin_method", observed=True)["dur_ns"].sum()
    print("how the origins are known:", (shares / shares.sum()).round(3).to_dict())


if __name__ == "__main__":
    shipped = hta_dsv4.traces()
    given = sys.argv[1:3] or [str(shipped["cuda_graph"]), str(shipped["cuda_graph_eager"])]
    main(given[0], given[1] if len(given) > 1 else None)
