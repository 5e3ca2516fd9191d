"""Faults to plant in the Hopper form, so that what finds races can be seen to find them.

Each is a copy of the package with one wait behind what it should be before, a wait for the wrong phase, or a buffer let
go before the product that reads it has ended. None of them can hang: every wait still comes, only too late.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

GATHER, CONSUME = "hopper_gather.py", "hopper_consume.py"
_EMPTY = "mbarrier.wait(ring.empty.index(buffer), ((i // ring.BUFFERS) & 1) ^ 1)\n"
_NEXT = "    announce(ring, buffer)\n    right"
_FULL = "        mbarrier.wait(ring.full.index(buffer), (i // ring.BUFFERS) & 1)\n"
_WEIGHTED = "        mbarrier.wait(ring.weighted.index(buffer), phase)\n"
_FENCE = "        fence_async_shared()\n"
_BIAS = "        bias = ring.bias.index(buffer).load(gl.SliceLayout(0, QK))\n"
_FACTOR = "        acc = acc * ring.factors.index(buffer).load(gl.SliceLayout(1, PV))[:, None]\n"
_WAIT = "        acc = warpgroup_mma_wait(0, [acc])\n"
_NOTE = "        # One thread arrives for all, and every warp must have finished its product.\n"
_RELEASE = "        block_barrier()\n        mbarrier.arrive(ring.empty.index(buffer), count=1)\n"
_LAST = "        i += 1\n    if target.WHOLE:\n        buffer = i % ring.BUFFERS\n        mbarrier.wait(ring.weighted"


@dataclass(frozen=True)
class Fault:
    """A fault, planted by replacing text that stands exactly once.

    Attributes:
        what: The fault, in words.
        edits: File, text, and what takes its place.
    """

    what: str
    edits: tuple[tuple[str, str, str], ...]


FAULTS: dict[str, Fault] = {
    "empty-late": Fault(
        "gatherer writes a piece before the buffer is free",
        (
            (GATHER, "    if HALF == 0:\n        " + _EMPTY, ""),
            (GATHER, _NEXT, "    if HALF == 0:\n        " + _EMPTY + _NEXT),
        ),
    ),
    "weighted-late": Fault(
        "follower reads weights and factors before they are there",
        (
            (CONSUME, _WEIGHTED, ""),
            (CONSUME, _WAIT + _RELEASE + _LAST, _WAIT + _WEIGHTED + _RELEASE + _LAST),
        ),
    ),
    "factor-early": Fault(
        "follower reads the factors alone too early",
        ((CONSUME, _WEIGHTED + _FENCE + _FACTOR, _FACTOR + _WEIGHTED + _FENCE),),
    ),
    "weighted-phase": Fault(
        "follower waits for the phase before",
        ((CONSUME, _WEIGHTED, _WEIGHTED.replace("phase)", "phase ^ 1)")),),
    ),
    "full-late": Fault(
        "scorer reads a block before it is there",
        ((CONSUME, _FULL, ""), (CONSUME, "        m_new = gl.maximum", _FULL + "        m_new = gl.maximum")),
    ),
    "bias-early": Fault(
        "scorer reads the validity values alone too early",
        ((CONSUME, "            is_async=True,\n        )\n" + _BIAS, "            is_async=True,\n        )\n"),
         (CONSUME, _FULL, _BIAS + _FULL)),
    ),
    "score-release": Fault(
        "scorer lets a block go while its product reads it",
        ((CONSUME, _WAIT + _NOTE + _RELEASE, _RELEASE + _WAIT),),
    ),
    "follow-release": Fault(
        "follower lets a block go while its product reads it",
        ((CONSUME, _WAIT + _RELEASE + _LAST, _RELEASE + _WAIT + _LAST),),
    ),
    "no-fence": Fault(
        "follower's products do not wait for stores past the other proxy",
        ((CONSUME, _WEIGHTED + _FENCE, _WEIGHTED),),
    ),
}  # fmt: skip


def plant(name: str, kernels: Path, target: Path) -> Path:
    """Copy the kernels with one fault in them.

    Args:
        name: A key of :data:`FAULTS`.
        kernels: The folder that holds ``dsv4_kernels`` and ``benchmarks``.
        target: Where to put the copy; its parent exists, it does not.

    Returns:
        ``target``.

    Raises:
        ValueError: The source no longer has the text that the fault replaces.
    """
    for folder in ("dsv4_kernels", "benchmarks"):
        shutil.copytree(kernels / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in FAULTS[name].edits:
        path = target / "dsv4_kernels" / file
        text = path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise ValueError(f"{file}: fault {name} expects this once, found {text.count(old)} times:\n{old}")
        path.write_text(text.replace(old, new), encoding="utf-8")
    return target
