"""Which piece the producing warps of the Hopper form work on when: the loop around :mod:`hopper_produce`."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from dsv4_kernels.hopper_produce import (
    PIECE,
    WORDS,
    block_barrier,
    dependency_wait,
    load_codes,
    load_half,
    write_half,
)
from dsv4_kernels.hopper_state import Lists, Ring, Share


@gluon.jit
def announce(ring: Ring, buffer: gl.tensor) -> None:
    """Say that a piece of a buffer is written.

    Its readers are on the tensor cores' side of shared memory; the fence between the two sides is theirs. Here it
    would wait for the loads of the next pieces as well.
    """
    block_barrier()
    mbarrier.arrive(ring.full.index(buffer), count=1)


@gluon.jit
def write_bias(ring: Ring, buffer: gl.tensor, valid: gl.tensor, HALF: gl.constexpr) -> None:
    """0 for a piece's valid tokens, -inf for the others."""
    ring.bias.index(buffer).slice(HALF * PIECE, PIECE).store(gl.where(valid, 0.0, float("-inf")))


@gluon.jit
def load_piece(lists: Lists, block: gl.tensor, slots: gl.tensor) -> gl.tensor:
    """Start all loads of a piece: its left half, right half and scales, and which tokens are valid."""
    valid = slots >= 0
    where = lists.locate(block, slots)
    return load_half(where, valid, 0), load_half(where, valid, 1), load_codes(where, valid), valid


@gluon.jit
def start(lists: Lists, share: Share, piece: gl.constexpr) -> gl.tensor:
    """Start a piece, and the load of the slots of the next but one: what :func:`turn` takes and gives."""
    PIECES: gl.constexpr = lists.BLOCK_T // PIECE
    token = piece % PIECES * PIECE + gl.arange(0, PIECE, gl.SliceLayout(1, WORDS))
    block = share.first + piece // PIECES * share.step
    loaded = load_piece(lists, block, lists.slots(block, token))
    return loaded, lists.slots(block + 2 // PIECES * share.step, token)


@gluon.jit
def turn(
    state: gl.tensor, lists: Lists, share: Share, ring: Ring, piece: gl.tensor, HALF: gl.constexpr
) -> gl.tensor:  # fmt: skip
    """Write a piece whose bytes are on their way, and start the next but one in its registers.

    Args:
        state: What :func:`start` or the last turn of this parity gave.
        lists: The row's tokens.
        share: The program's blocks.
        ring: Where the piece goes.
        piece: Its number among the program's.
        HALF: Which piece of its block.
    """
    PIECES: gl.constexpr = lists.BLOCK_T // PIECE
    loaded, slots = state
    left, right, codes, valid = loaded
    i = piece // PIECES
    buffer = i % ring.BUFFERS
    block = share.first + (i + 2 // PIECES) * share.step
    where = lists.locate(block, slots)
    if HALF == 0:
        mbarrier.wait(ring.empty.index(buffer), ((i // ring.BUFFERS) & 1) ^ 1)
    write_bias(ring, buffer, valid, HALF)
    valid = slots >= 0
    tile = ring.words.index(buffer).slice(HALF * PIECE, PIECE, dim=0)
    write_half(tile, left, codes, 0)
    left = load_half(where, valid, 0)
    write_half(tile, right, codes, 1)
    announce(ring, buffer)
    right = load_half(where, valid, 1)
    codes = load_codes(where, valid)
    token = HALF * PIECE + gl.arange(0, PIECE, gl.SliceLayout(1, WORDS))
    return (left, right, codes, valid), lists.slots(block + 2 // PIECES * share.step, token)


@gluon.jit
def gather(lists: Lists, share: Share, ring: Ring) -> None:
    """All pieces of a program's blocks, the even ones through ``a`` and the odd ones through ``b``.

    But for the second piece of a first block of 64, which is :func:`help_first`'s.
    """
    PIECES: gl.constexpr = lists.BLOCK_T // PIECE
    dependency_wait()
    pieces = gl.cdiv(gl.maximum(share.blocks - share.first, 0), share.step) * PIECES
    a = start(lists, share, 0)
    b = start(lists, share, 3 if PIECES == 2 else 1)
    begin = 0
    if PIECES == 2:
        if pieces > 0:
            a = turn(a, lists, share, ring, 0, 0)
        begin = 2
    for piece in range(begin, pieces, 2):
        a = turn(a, lists, share, ring, piece, 0)
        if PIECES == 2:
            b = turn(b, lists, share, ring, piece + 1, 1)
        else:
            if piece + 1 < pieces:
                b = turn(b, lists, share, ring, piece + 1, 0)


@gluon.jit
def help_first(lists: Lists, share: Share, ring: Ring) -> None:
    """The second piece of the first block, made by four warps that have nothing to do yet."""
    if share.first < share.blocks:
        slots = lists.slots(share.first, PIECE + gl.arange(0, PIECE, gl.SliceLayout(1, WORDS)))
        left, right, codes, valid = load_piece(lists, share.first, slots)
        write_bias(ring, 0, valid, 1)
        tile = ring.words.index(0).slice(PIECE, PIECE, dim=0)
        write_half(tile, left, codes, 0)
        write_half(tile, right, codes, 1)
        announce(ring, 0)
