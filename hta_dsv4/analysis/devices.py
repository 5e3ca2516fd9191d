"""What can this GPU do at best? Bandwidth, product rates and the cost of a launch, each with its source.

The table is :file:`devices.toml`. A ceiling that was measured overrides the vendor's figure; a GPU that is not in the
table has no ceilings, and nothing is assumed in their place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from hta_dsv4.analysis.links import Link, link_of
from hta_dsv4.trace.toml_text import from_toml

RATES = ("fp32", "tf32", "bf16", "fp8", "fp4")
"""Arithmetic a ceiling is known for; TFLOP/s, dense."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """One GPU's ceilings.

    Attributes:
        name: the table's name for it.
        dram_gb_s: bandwidth of reading and writing in equal parts, 10^9 bytes/s.
        read_gb_s: of reading alone; the same where only one figure is known.
        rates: arithmetic -> TFLOP/s.
        l2_bytes: last-level cache, bytes; ``None`` where not published.
        l2_gb_s: reading what lies in it, 10^9 bytes/s; ``None`` where not measured (vendors publish none).
        sms: streaming multiprocessors; ``None`` where not published.
        launch_ns: a kernel that does nothing, in a CUDA graph; ``None`` where not measured.
        measured: which of the figures were measured; the others are the vendor's.
        source: where the vendor's figures stand.
        measured_source: how the others were measured; empty where none was.
        link: between GPUs of one host; ``None`` where nothing is known of it.
    """

    name: str
    dram_gb_s: float
    read_gb_s: float
    rates: Mapping[str, float]
    l2_bytes: int | None = None
    l2_gb_s: float | None = None
    sms: int | None = None
    launch_ns: int | None = None
    measured: tuple[str, ...] = ()
    source: str = ""
    measured_source: str = ""
    link: Link | None = None

    def memory_ns(self, read: float, written: float) -> float:
        """Least time to move bytes from and to DRAM, ns.

        Between reading alone and a copy the time per byte is interpolated over the share that is written; beyond an
        equal share the copy's bandwidth stands, as nothing was measured there.

        Args:
            read: bytes read.
            written: bytes written.
        """
        total = read + written
        if total <= 0:
            return 0.0
        part = min(2 * written / total, 1.0)
        per_byte = (1 - part) / self.read_gb_s + part / self.dram_gb_s
        return total * per_byte  # bytes / (10^9 bytes/s) is ns

    def compute_ns(self, flops: float, arithmetic: str) -> float | None:
        """Least time for operations, ns; ``None`` where the rate is not known.

        Args:
            flops: operations, a multiply-add counted as two.
            arithmetic: one of :data:`RATES`.
        """
        if flops <= 0:
            return 0.0
        rate = self.rates.get(arithmetic)
        return None if rate is None else flops / rate / 1e3

    def sentences(self) -> tuple[str, ...]:
        """The ceilings and where they come from, in words."""

        def said(key: str, text: str) -> str:
            return f"{text} ({'measured' if key in self.measured else 'datasheet'})"

        bandwidth = said("dram_gb_s", f"{self.dram_gb_s:,.0f} GB/s")
        if self.read_gb_s != self.dram_gb_s:
            bandwidth += ", reading alone " + said("read_gb_s", f"{self.read_gb_s:,.0f} GB/s")
        if self.l2_gb_s is not None:
            bandwidth += ", L2 " + said("l2_gb_s", f"{self.l2_gb_s:,.0f} GB/s")
        rates = ", ".join(said(k, f"{k} {self.rates[k]:,.1f}") for k in RATES if k in self.rates)
        out = [f"{self.name}: DRAM {bandwidth}; TFLOP/s: {rates}", f"datasheet: {self.source}"]
        return (*out, self.measured_source) if self.measured_source else tuple(out)


@lru_cache(maxsize=1)
def _table() -> tuple[tuple[re.Pattern[str], Ceilings], ...]:
    text = files("hta_dsv4.analysis").joinpath("devices.toml").read_text(encoding="utf-8")
    return tuple((re.compile(d["match"], re.I), _ceilings(d)) for d in from_toml(text)["device"])


def _ceilings(entry: Mapping[str, Any]) -> Ceilings:
    own = entry.get("measured", {})
    rates = {k: float(own.get(k, entry.get(k, 0))) for k in RATES if k in own or k in entry}
    dram = float(own.get("dram_copy_gb_s", entry["dram_gb_s"]))
    named = {"dram_copy_gb_s": "dram_gb_s", "dram_read_gb_s": "read_gb_s", "l2_read_gb_s": "l2_gb_s"}
    return Ceilings(
        name=entry["name"],
        dram_gb_s=dram,
        read_gb_s=float(own.get("dram_read_gb_s", dram)),
        rates=rates,
        l2_bytes=entry.get("l2_bytes"),
        l2_gb_s=own.get("l2_read_gb_s"),
        sms=entry.get("sms"),
        launch_ns=own.get("launch_ns"),
        measured=tuple(named.get(k, k) for k in own if k != "source"),
        source=entry["source"],
        measured_source=own.get("source", ""),
        link=link_of(entry["link"]) if "link" in entry else None,
    )


def known_devices() -> tuple[Ceilings, ...]:
    """Every GPU of the table."""
    return tuple(c for _, c in _table())


def ceilings(name: str | None) -> Ceilings | None:
    """The ceilings of a GPU.

    Args:
        name: as the trace spells it (``NVIDIA H200``), or enough of it; ``None`` where the trace does not say.

    Returns:
        Its entry, or ``None`` where the table has none.
    """
    return next((c for pattern, c in _table() if name and pattern.search(name)), None)
