"""Leave to L1 what a kernel does not use of an SM's shared memory.

L1 and shared memory are parts of one memory, and Triton has the driver make the shared part as large as it goes for any
kernel that uses more than 48 KB. Every load on its way holds a line of L1, so what is left bounds how many there are:
with 28 KB instead of 60 a program that gathers cold tokens takes 8 % longer.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

_PREFERRED_CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
_SHARED_KB = (
    0,
    8,
    16,
    32,
    64,
    100,
    132,
    164,
    196,
    228,
)  # what the shared part can be on sm_90; 256 less it is L1
_RESERVED_KB = 1  # of each block's, for the system

_told: set[int] = set()


@functools.cache
def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def carveout(shared: int) -> int:
    """The smallest shared part that holds one block of ``shared`` bytes, in percent of the largest, rounded down.

    Down, because the driver takes the next part that is no smaller than what it is asked for: 86 % is all there is,
    85 % is 196 KB.
    """
    need = shared / 1024 + _RESERVED_KB
    return 100 * min((size for size in _SHARED_KB if size >= need), default=_SHARED_KB[-1]) // _SHARED_KB[-1]


def leave_rest_to_l1(kernel: Any) -> None:
    """Ask the driver for no more shared memory than one block of a launched kernel has.

    A hint: later launches heed it, those of a CUDA graph too; results do not depend on it, and where the driver cannot
    be asked nothing happens.

    Args:
        kernel: What a Triton launch returned, for a kernel of which one block fills an SM.
    """
    handle = kernel.function
    if handle in _told:
        return
    _told.add(handle)
    driver = _driver()
    if driver is not None:
        driver.cuFuncSetAttribute(
            ctypes.c_void_p(handle), _PREFERRED_CARVEOUT, carveout(kernel.metadata.shared)
        )
