"""How the FP8 paged KV cache of DeepSeek-V4 lies in memory, byte for byte.

One token is a record of 576 bytes: 448 e4m3 values (the part without rotary position), then 64 bf16
values (the rotary part). A page holds ``page_size`` records back to back, then a *scale section* of
8 bytes per token: seven UE8M0 scales, one for each 64 e4m3 values, and a pad byte. Pages are rounded up
to a multiple of 576 bytes, so every record of a pool starts on a multiple of 64 bytes.

Layout as read in FlashMLA's and sglang's cache writers ("MODEL1").
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_kernels import _expect

HEAD_DIM = 512
NOPE_DIM = 448
ROPE_DIM = 64
RECORD_BYTES = NOPE_DIM + 2 * ROPE_DIM  # 576
SCALE_GROUP = 64  # e4m3 values that share one scale
SCALE_BYTES = 8  # 7 scales and a pad byte
SCALE_BIAS = 127
E4M3_MAX = 448.0
MIN_AMAX = 1e-4  # the write rule's floor: an all-zero group still gets a finite scale
MAX_AMAX = (
    240.0 * 2.0**120
)  # the largest value that comes back finite, from e4m3 times its scale and from bf16 alike
MAX_PAGE_SIZE = 1 << 20  # the kernels count the bytes of a page in 32 bits


def page_bytes(page_size: int) -> int:
    """Bytes of one page: records and scales, rounded up to a multiple of a record.

    Args:
        page_size: Tokens in a page, 1 to 1,048,576.

    Returns:
        ``ceil(page_size * 584 / 576) * 576``.

    Raises:
        ValueError: ``page_size`` is not an integer in that range.
    """
    if _expect.count("page_size", page_size) > MAX_PAGE_SIZE:
        raise ValueError(f"page_size: expected at most {MAX_PAGE_SIZE}, got {page_size}")
    return -(-page_size * (RECORD_BYTES + SCALE_BYTES) // RECORD_BYTES) * RECORD_BYTES


@dataclass(frozen=True)
class PagedKV:
    """A pool of KV pages, as the kernels read it.

    Attributes:
        data: uint8 ``[pages, page_bytes(page_size)]``; pages may be further apart than their bytes (a
            slice of a larger allocation), the bytes of one page may not.
        page_size: Tokens in a page.

    Raises:
        ValueError: ``data`` has another dtype, shape, stride or alignment than described.
    """

    data: Tensor
    page_size: int

    def __post_init__(self) -> None:
        expected = page_bytes(self.page_size)
        data = self.data
        if not isinstance(data, Tensor):
            raise ValueError(f"PagedKV.data: expected a uint8 tensor, got {type(data).__name__}")
        if data.dtype != torch.uint8:
            raise ValueError(f"PagedKV.data: expected dtype uint8, got {data.dtype}")
        if data.ndim != 2 or data.shape[1] != expected:
            raise ValueError(
                f"PagedKV.data: expected shape [pages, {expected}] for page_size {self.page_size}, "
                f"got {list(data.shape)}"
            )
        if data.shape[0] < 1:
            raise ValueError("PagedKV.data: expected at least one page, got 0")
        if data.stride(1) != 1 or (data.shape[0] > 1 and data.stride(0) < expected):
            raise ValueError(
                f"PagedKV.data: expected strides (>= {expected}, 1), got {tuple(data.stride())}; "
                "the bytes of a page must be contiguous"
            )
        # The kernels read 16 bytes at a time; a page that starts elsewhere would fault.
        if data.data_ptr() % 16 or data.stride(0) % 16:
            raise ValueError(
                "PagedKV.data: expected pages that start on multiples of 16 bytes, got "
                f"address % 16 = {data.data_ptr() % 16}, page stride {data.stride(0)}"
            )

    @property
    def num_pages(self) -> int:
        """Pages in the pool."""
        return self.data.shape[0]

    @property
    def num_slots(self) -> int:
        """Token slots in the pool; flat indices run from 0 to ``num_slots - 1``."""
        return self.num_pages * self.page_size

    def records(self) -> Tensor:
        """The token records: uint8 view ``[pages, page_size, 576]``."""
        used = self.data[:, : self.page_size * RECORD_BYTES]
        return used.view(self.num_pages, self.page_size, RECORD_BYTES)

    def scales(self) -> Tensor:
        """The scale section: uint8 view ``[pages, page_size, 8]``, UE8M0, the last byte pad."""
        start = self.page_size * RECORD_BYTES
        used = self.data[:, start : start + self.page_size * SCALE_BYTES]
        return used.view(self.num_pages, self.page_size, SCALE_BYTES)


def _groups(nope: Tensor) -> Tensor:
    """``[..., 448]`` as ``[..., 7, 64]``: the values that share a scale."""
    return nope.reshape(*nope.shape[:-1], NOPE_DIM // SCALE_GROUP, SCALE_GROUP)


def scale_codes(nope: Tensor) -> Tensor:
    """UE8M0 scale of each 64-value group, by the cache's write rule ``2^ceil(log2(max(amax, 1e-4) / 448))``.

    The rule is evaluated on the exponent itself, not through a rounded logarithm, so a group whose
    largest value is exactly ``448 * 2^k`` gets ``2^k`` and the next float above it ``2^(k+1)``.

    Args:
        nope: float ``[..., 448]``.

    Returns:
        uint8 ``[..., 7]``, the biased exponents (scale = 2^(code - 127)).
    """
    amax = _groups(nope.double()).abs().amax(-1)
    mantissa, exponent = torch.frexp(amax.clamp_min(MIN_AMAX) / E4M3_MAX)
    # frexp's mantissa lies in [0.5, 1): exactly 0.5 is a power of two, whose ceil(log2) is one lower.
    power = exponent - (mantissa == 0.5).to(exponent.dtype)
    return (power + SCALE_BIAS).clamp(0, 254).to(torch.uint8)


def pack_kv(kv: Tensor, page_size: int) -> PagedKV:
    """Quantise tokens and lay them out in pages, token ``i`` in flat slot ``i``.

    Args:
        kv: float ``[tokens, 512]``, at most 3.19e38 in magnitude; the last 64 columns are the rotary part.
        page_size: Tokens in a page.

    Returns:
        A pool of ``ceil(tokens / page_size)`` pages (at least one) on ``kv``'s device. Slots past the
        last token, scale pads and the page's tail are zero.

    Raises:
        ValueError: ``kv`` is not float ``[tokens, 512]`` or holds NaN, infinities or values that would become one.
    """
    size = page_bytes(page_size)
    if not isinstance(kv, Tensor):
        raise ValueError(f"kv: expected a float tensor [tokens, {HEAD_DIM}], got {type(kv).__name__}")
    if kv.ndim != 2 or kv.shape[1] != HEAD_DIM or not kv.is_floating_point():
        raise ValueError(f"kv: expected float [tokens, {HEAD_DIM}], got {kv.dtype} {list(kv.shape)}")
    _expect.finite("kv", kv, MAX_AMAX)  # e4m3 can store neither NaN (as the kernels read it) nor infinity
    tokens = kv.shape[0]
    pages = max(1, -(-tokens // page_size))
    cache = PagedKV(torch.zeros(pages, size, dtype=torch.uint8, device=kv.device), page_size)
    if tokens == 0:
        return cache
    nope = kv[:, :NOPE_DIM].float()
    codes = scale_codes(nope)
    scale = torch.exp2(codes.float() - SCALE_BIAS)
    groups = _groups(nope) / scale[..., None]
    e4m3 = groups.flatten(1).to(torch.float8_e4m3fn).view(torch.uint8)
    rope = kv[:, NOPE_DIM:].to(torch.bfloat16).contiguous().view(torch.uint8)
    slots = torch.arange(tokens, device=kv.device)
    page, slot = slots // page_size, slots % page_size
    cache.records()[page, slot] = torch.cat([e4m3, rope], dim=1)
    cache.scales()[page, slot, : codes.shape[1]] = codes
    return cache


def gather_kv(cache: PagedKV, slots: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Dequantise chosen tokens.

    Args:
        cache: The pool.
        slots: integer tensor of any shape with flat indices in ``[0, cache.num_slots)``.
        dtype: float32 or float64; both hold every cached value exactly.

    Returns:
        ``[*slots.shape, 512]`` of ``dtype``.
    """
    flat = slots.reshape(-1).long()
    page, slot = flat // cache.page_size, flat % cache.page_size
    record = cache.records()[page, slot]
    e4m3 = record[:, :NOPE_DIM].contiguous().view(torch.float8_e4m3fn).to(dtype)
    rope = record[:, NOPE_DIM:].contiguous().view(torch.bfloat16).to(dtype)
    codes = cache.scales()[page, slot, : NOPE_DIM // SCALE_GROUP]
    scale = torch.exp2(codes.to(dtype) - SCALE_BIAS)
    nope = _groups(e4m3) * scale[..., None]
    return torch.cat([nope.flatten(1), rope], dim=1).reshape(*slots.shape, HEAD_DIM)


def unpack_kv(cache: PagedKV, tokens: int | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """The whole pool, dequantised, in slot order.

    Args:
        cache: The pool.
        tokens: How many leading slots to return; None for all of them.
        dtype: float32 or float64.

    Returns:
        ``[tokens, 512]`` of ``dtype``.

    Raises:
        ValueError: ``tokens`` is negative or more than the pool holds.
    """
    count = cache.num_slots if tokens is None else tokens
    if not 0 <= count <= cache.num_slots:
        raise ValueError(f"tokens: expected 0 to {cache.num_slots}, got {count}")
    return gather_kv(cache, torch.arange(count, device=cache.data.device), dtype)
