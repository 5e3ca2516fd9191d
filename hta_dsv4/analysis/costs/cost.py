"""The cost of one launch: the bytes and operations no implementation can avoid, and how they are known."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hta_dsv4.analysis.wire import Message

MEASURED, MODELLED, UNKNOWN = "measured", "modelled", "unknown"
"""Counted from what the trace recorded of this launch (sizes, shapes, dtypes); worked out from the architecture and
the workload; not known."""

DTYPE_BYTES = {
    "float": 4, "float32": 4, "double": 8, "float64": 8, "c10::BFloat16": 2, "c10::Half": 2, "bfloat16": 2, "half": 2,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "c10::Float8_e4m3fnuz": 1, "c10::Float8_e8m0fnu": 1,
    "c10::Float4_e2m1fn_x2": 1, "unsigned char": 1, "signed char": 1, "char": 1, "bool": 1, "short": 2,
    "short int": 2, "int": 4, "unsigned int": 4, "long": 8, "long int": 8, "c10::complex<float>": 8,
    "c10::complex<double>": 16, "unsigned short": 2, "unsigned long": 8,
}  # fmt: skip
"""Kineto's spelling of a dtype -> bytes per element."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one launch costs at least.

    Attributes:
        read, written: bytes that must come from and go to memory, each tensor once.
        flops: operations, a multiply-add counted as two.
        arithmetic: which product rate bounds them (``fp32``, ``tf32``, ``bf16``, ``fp8``, ``fp4``).
        known: :data:`MEASURED`, :data:`MODELLED` or :data:`UNKNOWN`.
        source: what the numbers were taken from, a few words.
        assumes: what must hold for them, one sentence; empty where nothing.
        requested: bytes that the launch's programs ask for, repeats included (they may come from a cache); ``None``
            where it is not worked out. ``requested / (read + written)`` is the redundancy.
        issued: operations that the launch's programs carry out, padding included; ``None`` likewise.
        message: what a collective carries over links; ``None`` for everything else.
    """

    read: float = 0.0
    written: float = 0.0
    flops: float = 0.0
    arithmetic: str = "fp32"
    known: str = MODELLED
    source: str = ""
    assumes: str = ""
    requested: float | None = None
    issued: float | None = None
    message: Message | None = None

    @property
    def moved(self) -> float:
        """Bytes read and written."""
        return self.read + self.written

    def part(self, of: int) -> Cost:
        """One of ``of`` launches that share this cost in equal parts."""
        if of == 1:
            return self
        return replace(
            self,
            read=self.read / of,
            written=self.written / of,
            flops=self.flops / of,
            requested=None if self.requested is None else self.requested / of,
            issued=None if self.issued is None else self.issued / of,
        )


def unknown(why: str) -> Cost:
    """A cost that cannot be told, with the reason as its source."""
    return Cost(known=UNKNOWN, source=why)


def helper(of: str) -> Cost:
    """A launch whose work another launch's cost already holds: an implementation without it moves nothing more.

    Args:
        of: where the cost is counted.
    """
    return Cost(known=MODELLED, source=f"counted at {of}")
