"""Between a checked call and a kernel launch: shared argument lists, launch options."""

from __future__ import annotations

from typing import Any

from dsv4_kernels._device import interpreting
from dsv4_kernels.call import DecodeCall

LOG2_E = 1.4426950408889634


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
