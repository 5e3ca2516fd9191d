"""What the groups of warps of the Hopper form are handed: a row's lists, a program's share, shared memory, results.

Aggregates, because a group of warps takes its arguments one by one and there would be thirty of them.
"""

# ruff: noqa: RET505
# (Triton wants an else beside a constexpr return.)
# No ``from __future__ import annotations``: an aggregate reads the types of its fields when it is made.
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.core import _aggregate as aggregate


@aggregate
class Lists:
    """A row's concatenated [main | extra] list, in blocks of ``BLOCK_T`` tokens, and the pools it points into.

    No block straddles the two lists; the first ``main_blocks`` are the main one's.
    """

    kv_ptr: gl.tensor
    page_stride: gl.tensor
    index_ptr: gl.tensor
    length: gl.tensor
    extra_kv_ptr: gl.tensor
    extra_page_stride: gl.tensor
    extra_index_ptr: gl.tensor
    extra_length: gl.tensor
    main_blocks: gl.tensor
    PAGE_SIZE: gl.constexpr
    EXTRA_PAGE_SIZE: gl.constexpr
    HAS_EXTRA: gl.constexpr
    BLOCK_T: gl.constexpr

    @gluon.constexpr_function
    def __init__(
        self, kv_ptr: gl.tensor, page_stride: gl.tensor, index_ptr: gl.tensor, length: gl.tensor,
        extra_kv_ptr: gl.tensor, extra_page_stride: gl.tensor, extra_index_ptr: gl.tensor, extra_length: gl.tensor,
        main_blocks: gl.tensor, PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr, HAS_EXTRA: gl.constexpr,
        BLOCK_T: gl.constexpr,
    ) -> None:  # fmt: skip
        self.kv_ptr = kv_ptr
        self.page_stride = page_stride
        self.index_ptr = index_ptr
        self.length = length
        self.extra_kv_ptr = extra_kv_ptr
        self.extra_page_stride = extra_page_stride
        self.extra_index_ptr = extra_index_ptr
        self.extra_length = extra_length
        self.main_blocks = main_blocks
        self.PAGE_SIZE = gl.constexpr(PAGE_SIZE)
        self.EXTRA_PAGE_SIZE = gl.constexpr(EXTRA_PAGE_SIZE)
        self.HAS_EXTRA = gl.constexpr(HAS_EXTRA)
        self.BLOCK_T = gl.constexpr(BLOCK_T)

    @gluon.jit
    def slots(self, block: gl.tensor, token: gl.tensor) -> gl.tensor:
        """Flat slots of tokens ``token`` of a block; -1 past its list's length, and for blocks past the last."""
        if self.HAS_EXTRA:
            is_extra = block >= self.main_blocks
            position = gl.where(is_extra, block - self.main_blocks, block) * self.BLOCK_T + token
            limit = gl.where(is_extra, self.extra_length, self.length)
            pointer = gl.where(is_extra, self.extra_index_ptr, self.index_ptr)
            return gl.load(pointer + position, mask=position < limit, other=-1)
        else:
            position = block * self.BLOCK_T + token
            return gl.load(self.index_ptr + position, mask=position < self.length, other=-1)

    @gluon.jit
    def locate(self, block: gl.tensor, slots: gl.tensor) -> gl.tensor:
        """Where a block's tokens lie: their page, and the offsets of record and scales in it (of slot 0 for -1)."""
        # Unsigned, so that a division by a page size is a shift where that is a power of two.
        token = gl.where(slots >= 0, slots, 0).to(gl.uint32)
        if self.HAS_EXTRA:
            is_extra = block >= self.main_blocks
            page = gl.where(is_extra, token // self.EXTRA_PAGE_SIZE, token // self.PAGE_SIZE)
            slot = gl.where(is_extra, token % self.EXTRA_PAGE_SIZE, token % self.PAGE_SIZE)
            start = gl.where(is_extra, self.extra_kv_ptr, self.kv_ptr)
            stride = gl.where(is_extra, self.extra_page_stride, self.page_stride)
            section = gl.where(is_extra, self.EXTRA_PAGE_SIZE * 576, self.PAGE_SIZE * 576)
            return start + page.to(gl.int64) * stride, slot * 576, section + slot * 8
        else:
            slot = token % self.PAGE_SIZE
            page_ptr = self.kv_ptr + (token // self.PAGE_SIZE).to(gl.int64) * self.page_stride
            return page_ptr, slot * 576, slot * 8 + self.PAGE_SIZE * 576


@aggregate
class Share:
    """The blocks of one program: ``first, first + step, ...`` below ``blocks``."""

    first: gl.tensor
    blocks: gl.tensor
    step: gl.tensor

    @gluon.constexpr_function
    def __init__(self, first: gl.tensor, blocks: gl.tensor, step: gl.tensor) -> None:
        self.first = first
        self.blocks = blocks
        self.step = step


@aggregate
class Ring:
    """``BUFFERS`` decoded blocks in shared memory, and what goes with each.

    A buffer's ``full`` completes when all its pieces have been announced, ``weighted`` when the scorer has left
    weights and factors, ``empty`` when both consumers are through with all of it.

    Attributes:
        words: int32 ``[BUFFERS, BLOCK_T, 256]``, the tokens' values as pairs of bf16.
        bias: float32 ``[BUFFERS, BLOCK_T]``, 0 for a valid token and -inf for another.
        weights: bf16 ``[BUFFERS, 64, BLOCK_T]``.
        factors: float32 ``[BUFFERS, 64]``, by which what was accumulated before is multiplied.
        full: mbarriers ``[BUFFERS, 1]``, as are ``empty`` and ``weighted``.
    """

    words: gl.shared_memory_descriptor
    bias: gl.shared_memory_descriptor
    weights: gl.shared_memory_descriptor
    factors: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    weighted: gl.shared_memory_descriptor
    BLOCK_T: gl.constexpr
    BUFFERS: gl.constexpr

    @gluon.constexpr_function
    def __init__(
        self, words: gl.shared_memory_descriptor, bias: gl.shared_memory_descriptor,
        weights: gl.shared_memory_descriptor, factors: gl.shared_memory_descriptor,
        full: gl.shared_memory_descriptor, empty: gl.shared_memory_descriptor,
        weighted: gl.shared_memory_descriptor, BLOCK_T: gl.constexpr, BUFFERS: gl.constexpr,
    ) -> None:  # fmt: skip
        self.words = words
        self.bias = bias
        self.weights = weights
        self.factors = factors
        self.full = full
        self.empty = empty
        self.weighted = weighted
        self.BLOCK_T = gl.constexpr(BLOCK_T)
        self.BUFFERS = gl.constexpr(BUFFERS)


@aggregate
class Target:
    """Where results go: those of 64 heads from ``64 * group`` on, of a row (``WHOLE``) or of its split ``part``."""

    out_ptr: gl.tensor
    lse_ptr: gl.tensor
    sum_ptr: gl.tensor
    row: gl.tensor
    part: gl.tensor
    group: gl.tensor
    heads: gl.tensor
    WHOLE: gl.constexpr

    @gluon.constexpr_function
    def __init__(
        self, out_ptr: gl.tensor, lse_ptr: gl.tensor, sum_ptr: gl.tensor, row: gl.tensor, part: gl.tensor,
        group: gl.tensor, heads: gl.tensor, WHOLE: gl.constexpr,
    ) -> None:  # fmt: skip
        self.out_ptr = out_ptr
        self.lse_ptr = lse_ptr
        self.sum_ptr = sum_ptr
        self.row = row
        self.part = part
        self.group = group
        self.heads = heads
        self.WHOLE = gl.constexpr(WHOLE)
