"""The public call: check the arguments, choose a variant, run it."""

from __future__ import annotations

import os
from typing import Literal, get_args

import torch
from torch import Tensor

from dsv4_kernels import _expect
from dsv4_kernels._device import describe_device, interpreting, launching
from dsv4_kernels.call import Convention, DecodeCall, make_call
from dsv4_kernels.hopper_select import FORMS, Choice, choose, hopper_splits
from dsv4_kernels.hopper_support import unavailable, unsuited
from dsv4_kernels.layout import HEAD_DIM, PagedKV
from dsv4_kernels.mma import mma_decode
from dsv4_kernels.reference import reference_attention
from dsv4_kernels.select import combine_config, loop_config, split_configs
from dsv4_kernels.simt import simt_decode
from dsv4_kernels.split_k import split_k_decode

Variant = Literal["auto", "simt", "mma", "split_k", "hopper", "reference"]
ENVIRONMENT = "HTA_DSV4_ATTENTION"


def resolve_variant(variant: str, device_type: str) -> Variant:
    """The variant that runs: an explicit one, or for ``auto`` the environment's, or the default.

    Args:
        variant: One of :data:`Variant`.
        device_type: Device of the query; on ``cpu`` without Triton's interpreter only the reference runs.

    Returns:
        The variant; ``auto`` means that :func:`run_call` chooses by the card.

    Raises:
        ValueError: The argument or ``HTA_DSV4_ATTENTION`` names no variant, or one that cannot run here.
    """
    choices = get_args(Variant)
    if variant not in choices:
        raise ValueError(f"variant: expected one of {', '.join(choices)}, got {variant!r}")
    source = "variant"
    if variant == "auto":
        variant = os.environ.get(ENVIRONMENT) or "auto"
        source = ENVIRONMENT
        if variant not in choices:
            raise ValueError(f"{ENVIRONMENT}: expected one of {', '.join(choices)}, got {variant!r}")
    can_launch = device_type == "cuda" or interpreting()
    if variant == "auto":
        return "auto" if can_launch else "reference"
    if variant != "reference" and not can_launch:
        raise ValueError(
            f"{source}: {variant!r} needs tensors on a CUDA device (or TRITON_INTERPRET=1), got {device_type}; "
            "'reference' runs anywhere"
        )
    return variant  # type: ignore[return-value]


def run_call(call: DecodeCall, variant: Variant, num_splits: int | None = None) -> tuple[Tensor, Tensor]:
    """Run a checked call as ``variant`` on the configuration its static shapes select.

    Args:
        call: A checked call.
        variant: One of :data:`Variant`; ``auto`` is ``split_k``, but on sm_90 what
            :func:`~dsv4_kernels.hopper_select.choose` finds.
        num_splits: Programs per row's list; None to choose.

    Returns:
        bf16 ``[rows, H, 512]`` and float32 ``[rows, H]``.

    Raises:
        ValueError: ``hopper`` cannot run here.
    """
    if variant == "reference":
        out, lse = reference_attention(call)
        return out.to(torch.bfloat16), lse
    device = describe_device(call.q)
    if variant in ("auto", "hopper"):
        reason = unavailable(device) or unsuited(call)
        if reason is None:
            choice = choose(call.rows, call.heads, call.widths)
            if variant == "hopper" and choice.form == "split_k":
                choice = Choice("one_block", choice.combine)
            return run_choice(call, choice, num_splits)
        if variant == "hopper":
            raise ValueError(f"variant: 'hopper' needs {reason}")
    with launching(call.q):
        if variant == "simt":
            return simt_decode(call)
        config, splits = split_configs(device, call.rows, call.heads, call.widths, num_splits)
        if variant == "mma" or splits == 1:
            return mma_decode(call, loop_config(device, call.heads))
        return split_k_decode(call, config, combine_config(call.rows, call.heads), splits)


def run_choice(call: DecodeCall, choice: Choice, num_splits: int | None = None) -> tuple[Tensor, Tensor]:
    """Run a call on an sm_90 GPU in a given form; arguments and results as :func:`run_call`."""
    device = describe_device(call.q)
    with launching(call.q):
        if choice.form == "split_k":
            config, splits = split_configs(device, call.rows, call.heads, call.widths, num_splits)
            if splits == 1:
                return mma_decode(call, loop_config(device, call.heads))
            return split_k_decode(call, config, choice.combine, splits)
        # Imported only here: it compiles for sm_90 alone, and needs Gluon.
        from dsv4_kernels.hopper import hopper_decode

        form = FORMS[choice.form]
        splits = hopper_splits(call.rows, call.heads, call.widths, device.num_sms, form.block_t, num_splits)
        return hopper_decode(call, form, choice.combine, splits)


def sparse_mla_decode(
    q: Tensor,
    cache: PagedKV,
    indices: Tensor,
    *,
    topk_length: Tensor | None = None,
    extra: PagedKV | None = None,
    extra_indices: Tensor | None = None,
    extra_topk_length: Tensor | None = None,
    attn_sink: Tensor | None = None,
    softmax_scale: float = HEAD_DIM**-0.5,
    convention: Convention = "flashmla",
    variant: Variant = "auto",
    num_splits: int | None = None,
    check_indices: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """DeepSeek-V4 sparse-MLA decode over one or two lists of cached tokens.

    Every query token attends to the tokens its lists name, in one softmax over their union; K and V are the
    same 512-vector. On a GPU the call can be captured into a CUDA graph: it reads nothing back, and what it
    launches and allocates depends on shapes alone. The outputs of a call must not be freed before the
    graph that holds it.

    Args:
        q: bf16 ``[B, S, H, 512]``; S > 1 for draft tokens, which share their request's lengths.
        cache: Main pool (the sliding window).
        indices: int32 ``[B, S, topk]`` flat slots of ``cache``; -1 anywhere means none.
        topk_length: int32 ``[B]``, leading entries of ``indices`` that may be valid; None for all.
        extra: Second pool (compressed tokens), with its own page size.
        extra_indices: int32 ``[B, S, extra_topk]`` flat slots of ``extra``.
        extra_topk_length: int32 ``[B]`` for ``extra_indices``.
        attn_sink: float32 ``[H]``, a logit per head that joins the softmax's denominator only.
        softmax_scale: Factor on ``q . k``.
        convention: What ``lse`` means with a sink and for empty rows, see
            :data:`~dsv4_kernels.call.Convention`.
        variant: ``simt`` (the baseline), ``mma``, ``split_k``, ``hopper`` (sm_90 alone), ``reference`` (torch), or
            ``auto``: the environment variable ``HTA_DSV4_ATTENTION`` if set, else the fastest form measured on the
            card: ``split_k``, or on sm_90 that or ``hopper``.
        num_splits: Programs per row's list, for ``split_k`` and ``hopper``; None for
            :func:`~dsv4_kernels.select.num_splits`. 1 runs the single-launch kernel; more than there are blocks,
            or than 256, run as that many.
        check_indices: Compare index and length *values* with the pools (waits for a GPU, not capturable).
            None: only on the CPU. Where it is not checked an index past the pool is undefined behaviour, a negative
            one is none, and a length outside 0 .. topk counts as 0 or topk.

    NaN or infinity in ``q``, in a named token or in ``attn_sink`` leaves no finite output in that head's row, and none
    elsewhere is touched; an infinite sink takes all of the weight (output 0), one of -inf none.

    Returns:
        Output bf16 ``[B, S, H, 512]`` and lse float32 ``[B, S, H]`` (natural log).

    Raises:
        ValueError: An argument has the wrong type, shape, dtype, device or range; the message names it.
    """
    chosen = resolve_variant(variant, q.device.type if isinstance(q, Tensor) else "cpu")
    call = make_call(
        q, cache, indices, topk_length=topk_length, extra=extra, extra_indices=extra_indices,
        extra_topk_length=extra_topk_length, attn_sink=attn_sink, softmax_scale=softmax_scale,
        convention=convention, check_indices=check_indices,
    )  # fmt: skip
    if num_splits is not None:
        _expect.count("num_splits", num_splits)
        # "auto" may become any form by the environment, which must not turn a legal call into an error.
        if variant not in ("auto", "split_k", "hopper"):
            raise ValueError(
                f"num_splits: expected None, variant {variant!r} does not split, got {num_splits}"
            )
    return call.unflatten(*run_call(call, chosen, num_splits))
