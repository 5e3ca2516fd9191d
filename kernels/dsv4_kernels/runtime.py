"""Between a checked call and a kernel launch: shared argument lists, operand types, launch options."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv4_kernels.call import DecodeCall

LOG2_E = 1.4426950408889634


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


def describe_device(tensor: Tensor) -> Device:
    """The device a tensor's kernels run on; asked once per GPU, so it is safe during graph capture."""
    if tensor.device.type != "cuda":
        return INTERPRETED_DEVICE
    return _query(tensor.device.index)


def operand_type() -> Any:
    """The matrix products' operand type: bf16, which holds every cached value exactly; else float32.

    The interpreter's ``tl.dot`` on 16-bit operands reads their bits as integers (Triton 3.6 to 3.9), so
    there the same code runs on float32.
    """
    return tl.float32 if interpreting() else tl.bfloat16


def launch_options(warps: int, pdl: bool) -> dict[str, Any]:
    """Launch keywords: warps, and programmatic dependent launch with the kernel's matching PDL switch."""
    if interpreting():
        return {"num_warps": warps, "PDL": False}
    return {"num_warps": warps, "PDL": pdl, "launch_pdl": pdl}


def kernel_arguments(call: DecodeCall) -> dict[str, Any]:
    """The arguments that describe a call's scopes, by the kernels' parameter names.

    Absent tensors are passed as the query, which no kernel touches under the matching switch: a None
    pointer would make another kernel signature.
    """
    main = call.scopes[0]
    extra = call.scopes[1] if len(call.scopes) > 1 else None
    unused = call.q
    return {
        "sink_ptr": call.sink if call.sink is not None else unused,
        "kv_ptr": main.cache.data,
        "page_stride": main.cache.data.stride(0),
        "index_ptr": main.indices,
        "width": main.width,
        "length_ptr": main.lengths if main.lengths is not None else unused,
        "extra_kv_ptr": extra.cache.data if extra else main.cache.data,
        "extra_page_stride": extra.cache.data.stride(0) if extra else main.cache.data.stride(0),
        "extra_index_ptr": extra.indices if extra else main.indices,
        "extra_width": extra.width if extra else 0,
        "extra_length_ptr": extra.lengths if extra and extra.lengths is not None else unused,
        "heads": call.heads,
        "q_len": call.q_len,
        "PAGE_SIZE": main.cache.page_size,
        "EXTRA_PAGE_SIZE": extra.cache.page_size if extra else 1,
        "HAS_EXTRA": extra is not None,
        "HAS_LENGTH": main.lengths is not None,
        "HAS_EXTRA_LENGTH": extra is not None and extra.lengths is not None,
    }
