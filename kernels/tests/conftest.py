"""Kernels run in Triton's interpreter where there is no GPU; that must be set before triton is imported."""

import os
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")
# The interpreter runs numpy on small tiles: more threads only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import triton
from triton.runtime import interpreter


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


if _version(triton.__version__) < (3, 7) and _version(np.__version__) >= (2, 4):
    # That interpreter makes loop bounds of arrays of one value by int(), which numpy refuses since 2.4.
    _patch = interpreter._patch_lang_tensor

    def _patch_with_item(tensor: type, scope: Any) -> None:
        _patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = _patch_with_item
