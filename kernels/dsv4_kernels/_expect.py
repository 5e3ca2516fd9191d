"""Is an argument what the kernel was written for? One ``ValueError`` that names it if not.

On a GPU only metadata is looked at (shape, dtype, device, strides): no check reads a device value, so every check is
legal while a CUDA graph is being captured. Values on the CPU cost nothing to read and are checked (:func:`ids`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def that(condition: bool, name: str, expected: str, got: object) -> None:
    """Raise a ``ValueError`` that names the argument, what was expected and what came, unless a condition holds."""
    if not condition:
        raise ValueError(f"{name}: expected {expected}, got {got}")


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
        raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")
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


def instance(name: str, value: object, kind: type) -> None:
    """Check that an argument is one of this package's own handles.

    Args:
        name: The argument's name.
        value: What was passed.
        kind: The class it must be of.

    Raises:
        ValueError: It is of another class.
    """
    if not isinstance(value, kind):
        raise ValueError(f"{name}: expected a {kind.__name__}, got {type(value).__name__}")


def count(name: str, value: object, low: int = 1) -> int:
    """Check a whole number.

    Args:
        name: The argument's name.
        value: What was passed; a bool is no number here.
        low: The least that is right.

    Returns:
        The number.

    Raises:
        ValueError: It is no ``int``, or too small.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        words = {0: "an integer of 0 or more", 1: "a positive integer"}.get(
            low, f"an integer of at least {low}"
        )
        raise ValueError(f"{name}: expected {words}, got {value!r}")
    return value


def number(name: str, value: object, low: float = 0.0, *, infinite: bool = False) -> float:
    """Check a real number.

    Args:
        name: The argument's name.
        value: What was passed; anything that ``float`` takes, except text.
        low: The least that is right.
        infinite: Whether infinity is right too.

    Returns:
        The number as a ``float``.

    Raises:
        ValueError: It is no number, NaN, too small, or infinite where that is wrong.
    """
    words = f"{name}: expected a {'' if infinite else 'finite '}number of at least {low:g}"
    try:
        got = math.nan if isinstance(value, (str, bytes)) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        got = math.nan
    if not got >= low or (math.isinf(got) and not infinite):
        raise ValueError(f"{words}, got {value!r}")
    return got


def finite(name: str, value: torch.Tensor, limit: float = torch.finfo(torch.float32).max) -> None:
    """Check the values of a tensor that is about to be quantised (waits for its device).

    Args:
        name: The argument's name.
        value: Floating point.
        limit: The largest magnitude that is right.

    Raises:
        ValueError: It is not floating point, or a value is NaN, infinite or larger than ``limit``.
    """
    if not value.is_floating_point():
        raise ValueError(f"{name}: expected floating point, got {value.dtype}")
    if value.numel() and not bool((value.abs() <= limit).all()):
        raise ValueError(
            f"{name}: expected finite values of at most {limit:.4g}, got NaN, infinity or larger"
        )


def ids(name: str, value: torch.Tensor, size: int, low: int = 0) -> None:
    """Check the values of an integer tensor that lies on the CPU; one on a GPU is taken at its word.

    Args:
        name: The argument's name.
        value: Integers.
        size: They must be below this.
        low: The least that is right.

    Raises:
        ValueError: A value lies outside ``low .. size - 1``.
    """
    if value.device.type != "cpu" or not value.numel():
        return
    for extreme in (int(value.min()), int(value.max())):
        if not low <= extreme < size:
            raise ValueError(f"{name}: expected values from {low} to {size - 1}, got {extreme}")
