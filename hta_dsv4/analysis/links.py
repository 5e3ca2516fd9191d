"""What joins the GPUs of one host, and what does a collective take on it with nothing beside?

Figures stand in :file:`devices.toml` and come from :file:`benchmarks/links.py`. Bandwidths are one way, per GPU. A GPU
whose links nobody looked at has none, and nothing is assumed in their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ONE_SHOT = "one_shot"
"""An all-reduce in which each rank reads everyone's part (torch's symmetric memory), beside the kinds of NCCL."""


@dataclass(frozen=True, slots=True)
class Link:
    """The links between the GPUs of one host.

    Attributes:
        name: what they are.
        gb_s: one way, per GPU, 10^9 bytes/s: as measured, else the vendor's.
        gpus: how many of them they join at most.
        measured: whether ``gb_s`` was.
        ranks: how many ranks the times are of; 0 where there are none.
        sizes: bytes, ascending.
        times: kind -> ns of a kernel that carries the first sizes, on so many ranks with nothing beside it.
        source: where the vendor's figure stands; ``measured_source`` how the others were measured.
    """

    name: str
    gb_s: float
    gpus: int
    measured: bool = False
    ranks: int = 0
    sizes: tuple[int, ...] = ()
    times: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    source: str = ""
    measured_source: str = ""

    def joins(self, ranks: int) -> bool:
        """Whether a group of so many ranks fits on one such host (0: unknown, which does not)."""
        return 1 < ranks <= self.gpus

    def wire_ns(self, wire: float) -> float:
        """Least time for bytes over the link, ns."""
        return wire / self.gb_s

    def latency_ns(self, kind: str, ranks: int) -> float | None:
        """What the smallest message takes; ``None`` where it was not measured for so many ranks."""
        found = self.times.get(kind)
        return found[0] if found and ranks == self.ranks else None

    def alone_ns(self, kind: str, ranks: int, nbytes: int) -> float | None:
        """What a message takes with nothing beside it, between two measured sizes on a straight line.

        Args:
            kind: of collective, or :data:`ONE_SHOT`.
            ranks: of its group.
            nbytes: its size.

        Returns:
            ns; ``None`` where it was not measured for so many ranks, or the size is beyond the largest measured.
        """
        found = self.times.get(kind)
        if not found or ranks != self.ranks:
            return None
        sizes = self.sizes[: len(found)]
        if nbytes > sizes[-1]:
            return None
        return float(np.interp(nbytes, sizes, found))  # below the smallest: as long as that

    def sentences(self) -> tuple[str, ...]:
        """The link and where its figures come from, in words."""
        said = f"{self.name}: {self.gb_s:,.0f} GB/s one way ({'measured' if self.measured else 'datasheet'})"
        latency = ", ".join(f"{k} {t[0] / 1e3:.1f} us" for k, t in self.times.items() if k != ONE_SHOT)
        if latency:
            said += f"; the smallest message, {self.ranks} ranks: {latency}"
        return (said, self.measured_source) if self.measured_source else (said,)


def link_of(entry: Mapping[str, Any]) -> Link:
    """The ``[device.link]`` of a device table."""
    own = entry.get("measured", {})
    times = {k.removesuffix("_ns"): tuple(map(float, v)) for k, v in own.items() if k.endswith("_ns")}
    return Link(
        name=entry["name"],
        gb_s=float(own.get("copy_gb_s", entry["gb_s"])),
        gpus=entry["gpus"],
        measured="copy_gb_s" in own,
        ranks=own.get("ranks", 0),
        sizes=tuple(own.get("sizes", ())),
        times=times,
        source=entry["source"],
        measured_source=own.get("source", ""),
    )
