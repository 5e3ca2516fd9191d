"""What was measured over concurrency: requests, repeats at one C, and the sweep they are of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Fact = str | int | float

TIME, OWN_GPU_TIME = "time", "own GPU time"
"""Entry of ``about`` that says that a GPU's own time stands in place of the step's time."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request that came to its end.

    Attributes:
        tokens: completion tokens by the server's ``usage``.
        ttft_ns: from sending to the first output; ``None`` where not measured.
        tpot_ns: time per output token after the first: from first to last output over the tokens between; ``None``
            with a single token.
    """

    tokens: int
    ttft_ns: int | None = None
    tpot_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Repeat:
    """One measurement at one concurrency.

    Attributes:
        concurrency: C.
        repeat: its number, from 1.
        window_ns: time in which all C decoded; 0 where there was none.
        tokens_per_s: in that window; ``None`` where the repeat cannot be used.
        requests: those that came to their end.
        failures: one line for each that did not.
        step_ns: each step's time, where single steps were timed.
        unusable: why it counts in no figure, else empty.
    """

    concurrency: int
    repeat: int
    window_ns: int
    tokens_per_s: float | None
    requests: tuple[Request, ...] = ()
    failures: tuple[str, ...] = ()
    step_ns: tuple[int, ...] = ()
    unusable: str = ""

    @property
    def mean_step_ns(self) -> float | None:
        """Time in which each request gets one token."""
        return None if self.tokens_per_s is None else self.concurrency * 1e9 / self.tokens_per_s


@dataclass(frozen=True)
class Sweep:
    """Measurements of one variant over concurrency.

    Attributes:
        label: the variant.
        source: what was measured: ``server``, ``workload`` (the bundled step), ``captures`` (by their manifests),
            ``table`` (figures from elsewhere).
        repeats: in the order they were made.
        made_at: UTC, ISO 8601; empty where unknown.
        about: conditions, by name: model, engine, prompt_tokens, ...
        notes: what a reader must know, one sentence each.
    """

    label: str
    source: str
    repeats: tuple[Repeat, ...]
    made_at: str = ""
    about: Mapping[str, Fact] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def of_gpu_time(self) -> bool:
        """Whether its times are the GPU's own, not those of steps: the two are no multiples of each other."""
        return self.about.get(TIME) == OWN_GPU_TIME
