"""What is the message of a collective: how many bytes, and how many of them must cross a link?

Sizes are what NCCL's own tests call so: the whole buffer of an all-reduce, a broadcast or a send; what an all-gather
ends with and a reduce-scatter or an all-to-all begins with. The *wire* is what each GPU must send or receive at the
least, the larger of the two: ``2 (n - 1) / n`` of an all-reduce over n ranks that no switch adds up, ``(n - 1) / n`` of
an all-gather, a reduce-scatter and an all-to-all, all of a broadcast, a reduce or a send. Wire over time is NCCL's bus
bandwidth, size over time its algorithm bandwidth.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
)
BROADCAST, REDUCE, SEND, OTHER = "broadcast", "reduce", "send", "other"
TRACE, COMPANION, MODEL, UNKNOWN = "trace", "companion", "model", "unknown"
"""Where a size comes from."""
SAID = {
    TRACE: "from the trace", COMPANION: "from the companion", MODEL: "from the model's shapes", UNKNOWN: "not known",
}  # fmt: skip

_KINDS = (  # the first that fits a name in lower case without underscores
    (ALL_REDUCE, re.compile(r"allreduce|crossdevicereduce")),
    (REDUCE_SCATTER, re.compile(r"reducescatter")),
    (ALL_GATHER, re.compile(r"allgather")),
    (ALL_TO_ALL, re.compile(r"alltoall")),
    (BROADCAST, re.compile(r"broadcast")),
    (SEND, re.compile(r"^i?(send|recv)$|kernelsendrecv")),
    (REDUCE, re.compile(r"^reduce(oop)?$|kernelreduce")),
)


@dataclass(frozen=True, slots=True)
class Message:
    """What one collective carries, on one rank.

    Attributes:
        kind: one of this module's kinds; :data:`OTHER` where its name says none.
        ranks: of its group; 0 where unknown.
        nbytes: its size; ``None`` where unknown.
        wire: bytes that this GPU must send or receive, the larger; ``None`` where that is not known.
        how: :data:`TRACE`, :data:`COMPANION`, :data:`MODEL` or :data:`UNKNOWN`.
        nccl: whether the kernel is one of NCCL's, without a switch.
        switch: whether its kernel has a switch add up or copy (NVLink SHARP, multicast), so that fewer bytes than
            usual may cross a link; then ``wire`` is ``None``.
    """

    kind: str
    ranks: int = 0
    nbytes: int | None = None
    wire: float | None = None
    how: str = UNKNOWN
    nccl: bool = False
    switch: bool = False


def kind_of(name: str) -> str:
    """The kind of a collective, from its name in torch or its kernel's; :data:`OTHER` where that says none."""
    plain = name.lower().replace("_", "")
    return next((kind for kind, pattern in _KINDS if pattern.search(plain)), OTHER)


def wire_bytes(kind: str, ranks: int, nbytes: float) -> float | None:
    """Bytes each GPU must send or receive for a collective of equal parts; ``None`` where that is not known.

    Args:
        kind: of collective.
        ranks: of its group.
        nbytes: its size.
    """
    if kind in (BROADCAST, REDUCE, SEND):
        return nbytes
    if ranks < 1 or kind not in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL):
        return None
    return (2 if kind == ALL_REDUCE else 1) * (ranks - 1) / ranks * nbytes


def size_said(nbytes: float) -> str:
    """A size for a sentence: ``256 KiB``, ``7.89 MiB``."""
    for unit, one in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= one:
            value = nbytes / one
            return f"{value:,.0f} {unit}" if value >= 100 or value == int(value) else f"{value:.3g} {unit}"
    return f"{nbytes:,.0f} bytes"
