"""Where do the kernels run: which GPU with how many SMs, and compiled or interpreted?"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

INTERPRETER_SMS = (
    4  # of the CPU, for grids that follow the SM count alone: enough to split, few enough to be quick
)


@dataclass(frozen=True)
class Device:
    """What the choice of a configuration depends on.

    Attributes:
        capability: Compute capability as one number, 90 for sm_90.
        num_sms: Streaming multiprocessors.
        shared_limit: Bytes of shared memory a thread block may ask for.
    """

    capability: int
    num_sms: int
    shared_limit: int


# Stands in where there is no GPU (the interpreter): the campaign's card, an RTX PRO 6000.
INTERPRETED_DEVICE = Device(capability=120, num_sms=188, shared_limit=101_376)


def interpreting() -> bool:
    """Whether Triton runs kernels in its interpreter (``TRITON_INTERPRET=1`` before its import)."""
    return bool(triton.knobs.runtime.interpret)


@functools.cache
def _query(index: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    limit = int(properties.shared_memory_per_block_optin)  # type: ignore[attr-defined]  # missing in the stubs
    return Device(properties.major * 10 + properties.minor, properties.multi_processor_count, limit)


def describe_device(tensor: torch.Tensor) -> Device:
    """The device a tensor's kernels run on; asked once per GPU, so it is safe during graph capture."""
    if tensor.device.type != "cuda":
        return INTERPRETED_DEVICE
    return _query(tensor.device.index)


def num_sms(tensor: torch.Tensor) -> int:
    """Streaming multiprocessors of a tensor's GPU; :data:`INTERPRETER_SMS` on the CPU."""
    return describe_device(tensor).num_sms if tensor.device.type == "cuda" else INTERPRETER_SMS


def operand(compiled: Any) -> Any:
    """A ``tl.dot`` operand type: the compiled kernel's, or float32 under the interpreter.

    The interpreter's ``tl.dot`` on narrower operands reads their bits as integers (Triton 3.6 to 3.9).

    Args:
        compiled: The Triton dtype the compiled kernel uses.

    Returns:
        A Triton dtype.
    """
    return tl.float32 if interpreting() else compiled


def launching(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Makes a tensor's GPU the current one for launches: Triton launches there, wherever the pointers lead.

    Args:
        tensor: One of the call's arguments; they share one device.

    Returns:
        A context; it does nothing where that GPU is the current one already, or on the CPU.
    """
    device = tensor.device
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)
