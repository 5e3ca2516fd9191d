"""Record your own decode step with its manifest, then read it. Needs a CUDA GPU and the extra "capture".

python examples/03_capture_your_own_step.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import hta_dsv4


def main(folder: Path) -> None:
    import torch
    from torch.profiler import record_function

    from hta_dsv4.capture.profiler import capture_decode

    hidden = torch.randn(32, 4096, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def decode_once() -> None:
        with record_function("attention"):  # what the part is called becomes the origin of its kernels
            scores = torch.softmax(hidden @ weight, dim=-1)
        with record_function("moe"):
            torch.nn.functional.silu(scores @ weight)

    made = capture_decode(decode_once, variant="mine", concurrency=32, out=folder / "mine.trace.json.gz")
    timing = made.manifest.timing
    print(
        f"{made.trace}: {timing.unprofiled_step_ms:.3f} ms a step, {timing.profiled_step_ms:.3f} under the profiler"
    )
    print(hta_dsv4.load(made.trace).shares(by="bucket,origin").table)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("."))
    except (ModuleNotFoundError, hta_dsv4.HtaDsv4Error, AssertionError, RuntimeError) as error:
        sys.exit(f"no capture on this machine: {error}")
