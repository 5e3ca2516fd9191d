"""Kineto's ``Input Dims`` and ``Input type`` as sizes and bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from hta_dsv4.analysis.costs.cost import DTYPE_BYTES

Shape = tuple[int, ...]
_SCALARS = ("Scalar", "ScalarList", "")


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor argument of an op.

    Attributes:
        shape: sizes.
        dtype: as Kineto spells it.
    """

    shape: Shape
    dtype: str

    @property
    def numel(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes per element; 0 for a dtype that is not known."""
        return DTYPE_BYTES.get(self.dtype, 0)

    @property
    def nbytes(self) -> int:
        """Bytes, each element once."""
        return self.numel * self.size


@lru_cache(maxsize=8192)
def shapes_of(text: str) -> tuple[Shape, ...]:
    """``"[[32,4096],[]]"`` as one shape per argument; anything unreadable gives ()."""
    try:
        value = json.loads(text)
    except ValueError:
        return ()
    return tuple(_shape(one) for one in value) if isinstance(value, list) else ()


@lru_cache(maxsize=8192)
def operands(shapes: str, dtypes: str) -> tuple[Operand | None, ...]:
    """The arguments of an op, in order, tensor lists spread out; ``None`` for what is not a tensor.

    Args:
        shapes: ``Input Dims`` as JSON text.
        dtypes: ``Input type`` as JSON text.
    """
    try:
        sizes, types = json.loads(shapes), json.loads(dtypes)
    except ValueError:
        return ()
    if not isinstance(sizes, list) or not isinstance(types, list):
        return ()
    out: list[Operand | None] = []
    for i, dtype in enumerate(types):
        size = sizes[i] if i < len(sizes) else []
        if isinstance(size, list) and size and all(isinstance(x, list) for x in size):
            names = (
                dtype if isinstance(dtype, list) else [""] * len(size)
            )  # a list of tensors: its dtypes, if told
            out += [Operand(_shape(x), str(t)) for x, t in zip(size, names, strict=False)]
        elif not isinstance(dtype, str) or dtype in _SCALARS:
            out.append(None)
        else:
            out.append(Operand(_shape(size), dtype))
    return tuple(out)


def _shape(value: object) -> Shape:
    return tuple(d for d in value if isinstance(d, int)) if isinstance(value, list) else ()


def tensors(arguments: Sequence[Operand | None]) -> tuple[Operand, ...]:
    """The arguments that are tensors, scalars in tensors' place (no dimensions) included."""
    return tuple(a for a in arguments if a is not None)


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape that elementwise operands broadcast to; the longest operand's where they do not fit each other."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(max(s[d] for s in padded) for d in range(rank))
