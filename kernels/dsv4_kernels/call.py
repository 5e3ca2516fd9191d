"""One sparse-MLA decode call, checked once and flattened, so that every variant reads the same thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from dsv4_kernels import _expect
from dsv4_kernels.layout import HEAD_DIM, PagedKV

MAX_ROWS = 65_535
LARGEST_SCALE = 1e38  # times log2(e) it is still a float32

Convention = Literal["flashmla", "sglang"]
"""What ``lse`` means where implementations differ (the output is the same in both).

* ``flashmla``: natural log of the softmax denominator *without* the sink; a row with no valid token
  returns +inf.
* ``sglang``: with a sink, ``logaddexp(lse, sink)``; a row with no valid token returns -inf, or the sink.

Either way such a row's output is 0.
"""


@dataclass(frozen=True)
class Scope:
    """One list of tokens to attend to, and the pool it points into.

    Attributes:
        cache: The pool.
        indices: int32 ``[rows, width]``, flat slots, -1 where there is none; contiguous.
        lengths: int32 ``[rows / q_len]``, how many leading entries may be valid, or None for ``width``.
    """

    cache: PagedKV
    indices: Tensor
    lengths: Tensor | None

    @property
    def width(self) -> int:
        """Padded width of the list, in tokens."""
        return self.indices.shape[1]


@dataclass(frozen=True)
class DecodeCall:
    """A checked call. A *row* is one query token; ``rows = B * q_len``.

    Attributes:
        q: bf16 ``[rows, H, 512]``, contiguous.
        scopes: The main scope, then the extra one if there is one; one softmax runs over their union.
        sink: float32 ``[H]`` or None.
        scale: Softmax scale.
        convention: See :data:`Convention`.
        batch: B of the caller's q.
        q_len: Query tokens per request (1, or 1 + draft tokens).
    """

    q: Tensor
    scopes: tuple[Scope, ...]
    sink: Tensor | None
    scale: float
    convention: Convention
    batch: int
    q_len: int

    @property
    def rows(self) -> int:
        """Query tokens in the call."""
        return self.q.shape[0]

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.q.shape[1]

    @property
    def widths(self) -> tuple[int, ...]:
        """Padded width of each scope, in tokens."""
        return tuple(scope.width for scope in self.scopes)

    def outputs(self, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
        """Fresh, unwritten results: ``[rows, H, 512]`` of ``dtype`` and float32 ``[rows, H]``."""
        lse = torch.empty(self.rows, self.heads, dtype=torch.float32, device=self.q.device)
        return torch.empty_like(self.q, dtype=dtype), lse

    def unflatten(self, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        """Results in the caller's shape: ``[B, q_len, H, 512]`` and ``[B, q_len, H]``."""
        shape = (self.batch, self.q_len, self.heads)
        return out.view(*shape, HEAD_DIM), lse.view(shape)


def _describe(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"


def _scope(
    q: Tensor, prefix: str, cache: PagedKV, indices: Tensor | None, lengths: Tensor | None, check: bool
) -> Scope:
    batch, q_len = q.shape[0], q.shape[1]
    cache_name = "cache" if prefix == "" else "extra"
    indices_name, length_name = f"{prefix}indices", f"{prefix}topk_length"
    _expect.instance(cache_name, cache, PagedKV)
    _expect.that(cache.data.device == q.device, cache_name, f"data on {q.device}", cache.data.device)
    if indices is None:
        raise ValueError(f"{indices_name}: expected int32 [B, S, topk] beside {cache_name}, got None")
    shaped = indices.ndim == 3 and indices.shape[:2] == (batch, q_len) and indices.shape[2] >= 1
    _expect.that(
        shaped and indices.dtype == torch.int32 and indices.device == q.device,
        indices_name, f"int32 [{batch}, {q_len}, topk >= 1] on {q.device}", _describe(indices),
    )  # fmt: skip
    if lengths is not None:
        _expect.that(
            lengths.dtype == torch.int32 and lengths.shape == (batch,) and lengths.device == q.device,
            length_name, f"int32 [{batch}] on {q.device}", _describe(lengths),
        )  # fmt: skip
        lengths = lengths.contiguous()
    flat = indices.reshape(batch * q_len, indices.shape[2]).contiguous()
    if check and flat.numel():
        low, high = int(flat.min()), int(flat.max())
        _expect.that(low >= -1, indices_name, "values >= -1", low)
        _expect.that(
            high < cache.num_slots, indices_name,
            f"values below {cache.num_slots} ({cache.num_pages} pages of {cache.page_size})", high,
        )  # fmt: skip
        if lengths is not None:
            _expect.that(int(lengths.min()) >= 0, length_name, "values >= 0", int(lengths.min()))
            longest = int(lengths.max())
            _expect.that(longest <= flat.shape[1], length_name, f"values up to {flat.shape[1]}", longest)
    return Scope(cache, flat, lengths)


def make_call(
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
    check_indices: bool | None = None,
) -> DecodeCall:
    """Check the arguments of a decode call and flatten its query tokens into rows.

    Args:
        q: bf16 ``[B, S, H, 512]``.
        cache: Main pool (the sliding window).
        indices: int32 ``[B, S, topk]`` into ``cache``, -1 for none.
        topk_length: int32 ``[B]``, leading entries of ``indices`` that may be valid; None for all.
        extra: Second pool (compressed tokens), attended to in the same softmax.
        extra_indices: int32 ``[B, S, extra_topk]`` into ``extra``.
        extra_topk_length: int32 ``[B]`` for ``extra_indices``.
        attn_sink: float32 ``[H]``, a logit per head that joins the denominator only.
        softmax_scale: Factor on ``q . k``.
        convention: Meaning of ``lse``, see :data:`Convention`.
        check_indices: Whether to compare the *values* of indices and lengths with the pools. None: on the
            CPU yes, on a GPU no, because it waits for the device and cannot be captured into a graph.

    Returns:
        The checked call.

    Raises:
        ValueError: An argument has the wrong shape, dtype, device or range; the message names it.
    """
    named = {"q": q, "indices": indices, "topk_length": topk_length, "extra_indices": extra_indices,
             "extra_topk_length": extra_topk_length, "attn_sink": attn_sink}  # fmt: skip
    for name, value in named.items():
        optional = name not in ("q", "indices")
        _expect.that(
            isinstance(value, Tensor) or (optional and value is None), name, "a tensor", type(value).__name__
        )
    shaped = q.ndim == 4 and q.shape[3] == HEAD_DIM and min(q.shape) >= 1
    _expect.that(
        shaped and q.dtype == torch.bfloat16,
        "q",
        f"bfloat16 [B, S, H, {HEAD_DIM}], none of them 0",
        _describe(q),
    )
    batch, q_len, heads, _ = q.shape
    choices = get_args(Convention)
    _expect.that(convention in choices, "convention", f"one of {', '.join(choices)}", repr(convention))
    # The kernels scale in float32: less than its least normal number would be 0 there, more than its largest infinite.
    scale = _expect.number("softmax_scale", softmax_scale, torch.finfo(torch.float32).tiny)
    _expect.that(scale <= LARGEST_SCALE, "softmax_scale", f"at most {LARGEST_SCALE:g}", softmax_scale)
    _expect.that(
        check_indices is None or isinstance(check_indices, bool),
        "check_indices",
        "True, False or None",
        repr(check_indices),
    )
    if attn_sink is not None:
        _expect.that(
            attn_sink.dtype == torch.float32 and attn_sink.shape == (heads,) and attn_sink.device == q.device,
            "attn_sink", f"float32 [{heads}] on {q.device}", _describe(attn_sink),
        )  # fmt: skip
        attn_sink = attn_sink.contiguous()
    check = q.device.type == "cpu" if check_indices is None else check_indices
    scopes = [_scope(q, "", cache, indices, topk_length, check)]
    if extra is not None:
        scopes.append(_scope(q, "extra_", extra, extra_indices, extra_topk_length, check))
    else:
        _expect.that(extra_indices is None, "extra_indices", "None without extra", "a tensor")
        _expect.that(extra_topk_length is None, "extra_topk_length", "None without extra", "a tensor")
    # Rows and head groups are the y and z of the launch grids.
    _expect.that(batch * q_len <= MAX_ROWS, "q", f"at most {MAX_ROWS} query tokens (B * S)", batch * q_len)
    flat_q = q.reshape(batch * q_len, heads, HEAD_DIM).contiguous()
    return DecodeCall(flat_q, tuple(scopes), attn_sink, scale, convention, batch, q_len)
