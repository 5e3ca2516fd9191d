"""Whether the Hopper form (:mod:`dsv4_kernels.hopper`) can run: the card, and what this Triton's Gluon offers."""

from __future__ import annotations

import functools
import importlib

from dsv4_kernels._device import Device, interpreting
from dsv4_kernels.call import DecodeCall
from dsv4_kernels.select import WGMMA_SHARED

# What the device code uses, by module. One name of a tuple is enough: Triton 3.7 renamed the barrier.
_LANGUAGE = "triton.experimental.gluon.language"
_NEEDED: dict[str, tuple[str | tuple[str, ...], ...]] = {
    "triton.experimental.gluon": ("jit", "constexpr_function"),
    "triton.language.core": ("_aggregate",),
    _LANGUAGE: (
        "warp_specialize", "allocate_shared_memory", "inline_asm_elementwise", "convert_layout", "join", "to_tensor",
        "NVMMASharedLayout", "NVMMADistributedLayout", "SwizzledSharedLayout", "BlockedLayout", "DotOperandLayout",
        ("barrier", "thread_barrier"),
    ),
    f"{_LANGUAGE}.nvidia.ampere": ("async_copy",),
    f"{_LANGUAGE}.nvidia.hopper": ("fence_async_shared", "mbarrier", "warpgroup_mma", "warpgroup_mma_wait"),
}  # fmt: skip


@functools.cache
def missing_from_gluon() -> str | None:
    """The first thing this Triton's Gluon lacks, or None; Gluon is experimental and moves between versions."""
    for module, names in _NEEDED.items():
        try:
            found = importlib.import_module(module)
        except ImportError:
            return module
        for name in names:
            either = (name,) if isinstance(name, str) else name
            if not any(hasattr(found, one) for one in either):
                return f"{module}.{either[0]}"
    return None


def unsuited(call: DecodeCall) -> str | None:
    """Why the Hopper form cannot run a call, or None if it can; in words as :func:`unavailable`'s."""
    # Copied to shared memory 16 bytes at a time; only a view at an odd offset into something larger is not.
    return "a query that starts on a multiple of 16 bytes" if call.q.data_ptr() % 16 else None


def unavailable(device: Device) -> str | None:
    """Why the Hopper form cannot run on a device, or None if it can.

    Args:
        device: Where the tensors are.

    Returns:
        A reason to follow "needs ...", without a full stop.
    """
    if interpreting():
        return "a GPU, Gluon has no interpreter"
    if device.capability != 90:
        return f"an sm_90 GPU, this is sm_{device.capability}"
    if device.shared_limit < WGMMA_SHARED:
        return f"{WGMMA_SHARED} bytes of shared memory a block, this GPU gives {device.shared_limit}"
    lacking = missing_from_gluon()
    return None if lacking is None else f"{lacking}, which this Triton has not"
