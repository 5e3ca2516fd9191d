"""Where do the kernels run: how many SMs, and compiled or interpreted?"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
import triton.language as tl

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
"""Whether Triton interprets kernels on the CPU. Read once, as Triton itself does when a kernel is defined."""


@functools.cache
def num_sms(device: torch.device) -> int:
    """Streaming multiprocessors of a device.

    Args:
        device: Where the tensors live; a CPU (the interpreter) counts as 4, so that split code paths run in tests.

    Returns:
        The count; read from the driver once.
    """
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def operand(compiled: Any) -> Any:
    """A ``tl.dot`` operand type: float32 under the interpreter, which miscomputes narrower operands.

    Args:
        compiled: The Triton dtype the compiled kernel uses.

    Returns:
        A Triton dtype.
    """
    return tl.float32 if INTERPRETED else compiled
