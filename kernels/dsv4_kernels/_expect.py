"""Is an argument what the kernel was written for? One ``ValueError`` that names it if not.

Only metadata is looked at (shape, dtype, device, strides): no check ever reads a device value, so every check is
legal while a CUDA graph is being captured.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def tensor(
    name: str,
    value: object,
    dtypes: torch.dtype | Sequence[torch.dtype],
    shape: Sequence[int | str],
    *,
    device: torch.device | None = None,
) -> tuple[int, ...]:
    """Check one tensor's dtype, rank, sizes, contiguity and device.

    Args:
        name: The argument's name, as the caller wrote it.
        value: What was passed.
        dtypes: The dtype, or the dtypes, that are right.
        shape: One entry per dimension: a number is required exactly, a word names a free dimension.
        device: The device the tensor must share with the others; None takes any.

    Returns:
        The tensor's sizes.

    Raises:
        ValueError: The argument is not a contiguous tensor of that dtype, shape and device.
    """
    wanted = (dtypes,) if isinstance(dtypes, torch.dtype) else tuple(dtypes)
    words = " or ".join(str(dtype).removeprefix("torch.") for dtype in wanted)
    text = f"{name}: expected a contiguous {words} tensor of shape [{', '.join(map(str, shape))}]"
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{text}, got {type(value).__name__}")
    got = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if value.dtype not in wanted or value.dim() != len(shape):
        raise ValueError(f"{text}, got {got}")
    if any(isinstance(want, int) and want != size for want, size in zip(shape, value.shape, strict=True)):
        raise ValueError(f"{text}, got {got}")
    if not value.is_contiguous():
        raise ValueError(f"{text}, got {got} with strides {value.stride()}: call .contiguous() first")
    if device is not None and value.device != device:
        raise ValueError(f"{name}: expected on {device} like the other arguments, got on {value.device}")
    return tuple(value.shape)


def choice(name: str, value: str, choices: Sequence[str]) -> str:
    """Check that a word is one of the known ones.

    Args:
        name: The argument's name.
        value: What was passed.
        choices: The words that are known.

    Returns:
        The word.

    Raises:
        ValueError: It is not one of them; the message lists them.
    """
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(choices)}; got {value!r}")
    return value


def fast_form(variant: str, fast: str, slow: str, device: torch.device) -> str:
    """Resolve ``"auto"``: the fast form on a CUDA device, the torch form elsewhere.

    Args:
        variant: What the caller asked for.
        fast: The Triton form's name.
        slow: The torch form's name.
        device: Where the arguments live.

    Returns:
        A variant's name that is not ``"auto"``.
    """
    if variant != "auto":
        return variant
    return fast if device.type == "cuda" else slow
