"""Does each arrival on an mbarrier stand for its whole group of warps? Read from the machine-independent code (PTX).

Triton lets one thread arrive for the 128 of its group. That orders the others' accesses only if a barrier of the group
comes between them and the arrival, and if the group's products have ended by then. And tiles written by plain stores
are seen by products only past a proxy fence, of the writer before it arrives or of the reader after it has waited. No
checker that runs the kernel sees all three, so they are read here: :func:`find_faults`. And compute-sanitizer's
racecheck follows an mbarrier only for the thread that arrives itself: :func:`every_thread_arrives` rewrites a kernel
into the same one with an arrival of each thread.
"""

from __future__ import annotations

import re

GROUP = 128  # threads of a group of four warps

_ARRIVE = re.compile(r"mbarrier\.arrive\.")
_ARRIVE_ONE = re.compile(r"@%p\d+ (mbarrier\.arrive\.shared::cta\.b64 _, \[%r\d+\];)")
_INIT = re.compile(r"(mbarrier\.init\.shared::cta\.b64 \[%r\d+\], )(\d+);")
_BARRIER = re.compile(rf"(bar|barrier)\.sync\s+\d+, {GROUP};")
# Where the straight line of code before an arrival ends.
_EDGE = re.compile(
    r"^(\$?L?\w*:|(@!?%p\d+ )?(bra|brx|ret|call)\b|(@!?%p\d+ )?mbarrier\.|(bar|barrier)\.sync)"
)
_SHARED = re.compile(r"\b(ld|st|red|atom)\.\S*shared|stmatrix|ldmatrix|cp\.async|wgmma\.mma_async")
_TILE_STORE = re.compile(r"stmatrix|st\.shared\.v4")
_PRODUCT = re.compile(r"wgmma\.mma_async")
_FENCE = re.compile(r"fence\.proxy\.async")
_PRODUCTS_ENDED = re.compile(r"wgmma\.wait_group\.sync\.aligned\s+0;")
_WAIT = re.compile(r"mbarrier\.(try|test)_wait")
_NOISE = re.compile(r"^(\.loc|//|$|[{}]$|\.reg)")


def _lines(ptx: str) -> list[str]:
    return [line for line in (raw.strip() for raw in ptx.splitlines()) if not _NOISE.match(line)]


def count_arrivals(ptx: str) -> int:
    """Arrivals on mbarriers in a kernel's PTX."""
    return sum(1 for line in _lines(ptx) if _ARRIVE.search(line))


def _readers_fence(lines: list[str]) -> bool:
    """Whether every product comes after a fence that comes after the last wait on an mbarrier."""
    fenced = True
    for line in lines:
        if _WAIT.search(line):
            fenced = False
        elif _FENCE.match(line):
            fenced = True
        elif _PRODUCT.search(line) and not fenced:
            return False
    return True


def find_faults(ptx: str) -> list[str]:
    """Arrivals that do not stand for their whole group.

    Args:
        ptx: A kernel's PTX, as Triton 3.6 or 3.7 writes it.

    Returns:
        A line for each fault: the arrival's number in the text, from 0, and what is wrong. Empty if all is well.
    """
    lines = _lines(ptx)
    faults = []
    readers_fence = _readers_fence(lines)
    arrivals = [i for i, line in enumerate(lines) if _ARRIVE.search(line)]
    for number, at in enumerate(arrivals):
        back = at - 1
        while back >= 0 and not (_EDGE.match(lines[back]) or _SHARED.search(lines[back])):
            back -= 1
        if back < 0 or not _BARRIER.match(lines[back]):
            faults.append(f"arrival {number}: no barrier of the group right before it")
            continue
        fenced = ended = False
        while back > 0 and not _EDGE.match(lines[back - 1]):
            back -= 1
            line = lines[back]
            fenced |= bool(_FENCE.match(line))
            ended |= bool(_PRODUCTS_ENDED.match(line))
            if _PRODUCT.search(line) and not ended:
                faults.append(f"arrival {number}: a product may still be reading")
                break
            if _TILE_STORE.search(line) and not (fenced or readers_fence):
                faults.append(f"arrival {number}: a tile that nobody fences for products")
                break
    return faults


def every_thread_arrives(ptx: str) -> str:
    """The same kernel with an arrival of each of the 128 threads wherever one arrives for them.

    Args:
        ptx: A kernel's PTX; one without mbarriers comes back as it is.

    Returns:
        PTX in which every mbarrier counts 128 times as many arrivals.

    Raises:
        ValueError: An arrival or an initialisation of a form that this does not know.
    """
    arrivals, inits = count_arrivals(ptx), len(re.findall(r"mbarrier\.init\.", ptx))
    ptx, rewritten = _ARRIVE_ONE.subn(r"\1", ptx)
    ptx, counted = _INIT.subn(lambda match: f"{match[1]}{int(match[2]) * GROUP};", ptx)
    if (rewritten, counted) != (arrivals, inits):
        raise ValueError(
            f"ptx: {rewritten} of {arrivals} arrivals and {counted} of {inits} initialisations could be rewritten"
        )
    return ptx
