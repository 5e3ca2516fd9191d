"""Run by test_workload in a process of its own, because Triton reads TRITON_INTERPRET when it is imported.

Prints one JSON line: part switched to its Triton form -> largest relative error of the logits.
"""

from __future__ import annotations

import json
from dataclasses import replace

from hta_dsv4.capture.config import TINY, LayerKind, StepShape
from hta_dsv4.capture.switches import Switches
from hta_dsv4.capture.workload import DecodeStep

TORCH = Switches(attention="reference", moe="torch", gemm="fp32", glue="torch")
# One layer of each kind, one request whose position closes a ratio-4 and a ratio-128 group: every kernel has work.
CONFIG = replace(TINY, layers=(LayerKind.SWA, LayerKind.C4, LayerKind.C128), experts_per_token=2, experts=4)
SHAPE = StepShape(batch=1, context=384, max_context=512)
CHANGES = {
    "simt": {"attention": "simt"},
    "mma": {"attention": "mma"},
    "split_k": {"attention": "split_k"},
    "indexer": {"indexer": "triton"},
    "mhc": {"mhc": "fused"},
    "moe": {"moe": "triton"},
    "glue": {"glue": "fused"},
}


def main() -> None:
    """Compare each form with the torch forms."""
    want = None
    errors = {}
    for name, change in {"torch": {}, **CHANGES}.items():
        step = DecodeStep(CONFIG, SHAPE, replace(TORCH, **change), "cpu")
        step.position.fill_(SHAPE.context - 1)
        step()
        assert step.logits is not None
        if want is None:
            want = step.logits
        else:
            errors[name] = float(((step.logits - want).norm(dim=1) / want.norm(dim=1)).max())
    print(json.dumps(errors))


if __name__ == "__main__":
    main()
