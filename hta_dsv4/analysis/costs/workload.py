"""The workload a trace was recorded under: model, concurrency, context, static maximum.

It comes from the capture's manifest where one lies beside the trace, from the caller, or from the trace; what none of
them says stays ``None``, and the costs that need it are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from hta_dsv4.analysis.costs.geometry import C4, MODELS, SWA, WINDOW, Geometry
from hta_dsv4.analysis.costs.shapes import shapes_of
from hta_dsv4.classify.architecture import Reading
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.manifest import manifest_entry


@dataclass(frozen=True, slots=True)
class Workload:
    """What was decoded.

    Attributes:
        geometry: the model, or what one of several ranks holds of it; ``None`` where unknown.
        batch: requests decoded together, one token each.
        context: tokens each request has seen, on average.
        max_context: the static maximum that padded widths follow.
        sources: what was taken from where, one sentence each.
        undivided: whether several ranks share the model in a way that is not known, so that ``geometry`` is all of it.
        bundled: whether it is the bundled decode step, whose collectives are known, over so many ``ranks``.
    """

    geometry: Geometry | None = None
    batch: int | None = None
    context: float | None = None
    max_context: int | None = None
    sources: tuple[str, ...] = field(default=())
    undivided: bool = False
    bundled: bool = False
    ranks: int = 1

    @property
    def index_width(self) -> int | None:
        """Static width of the c4 index: ``max_context / 4`` in whole pages of 64."""
        return None if self.max_context is None else -(-max(self.max_context // 4, 1) // 64) * 64

    @property
    def c128_width(self) -> int | None:
        """Static width of the c128 list: ``max_context / 128`` in multiples of 64."""
        return None if self.max_context is None else -(-max(self.max_context // 128, 1) // 64) * 64

    def tokens(self, kind: str) -> float | None:
        """Entries beyond the sliding window that a query of such a layer attends to, on average."""
        if kind == SWA:
            return 0.0
        if self.context is None or self.geometry is None:
            return None
        return (
            min(self.context // 4, self.geometry.index_topk) if kind == C4 else max(self.context // 128, 1.0)
        )

    @property
    def window(self) -> float:
        """Entries of the sliding window, on average."""
        return WINDOW if self.context is None else min(self.context, WINDOW)

    @property
    def index_length(self) -> float | None:
        """Entries of the c4 index that are real, on average."""
        return None if self.context is None else self.context // 4


def workload(
    path: Path | None,
    activities: pd.DataFrame,
    reading: Reading | None,
    *,
    batch: int | None = None,
    context: float | None = None,
    max_context: int | None = None,
    ranks: int | None = None,
) -> Workload:
    """The workload of a trace: what the caller says, else its manifest, else what the trace shows.

    Args:
        path: the trace's file, beside which a manifest may lie; ``None`` for none.
        activities: its activity table, for op shapes.
        reading: what its launch counts say about the model.
        batch: requests decoded together, said by the caller; such words go before anything else.
        context: tokens each request has seen, on average, likewise.
        max_context: the static maximum, likewise.
        ranks: how many the run had, where the trace says it; how they share a model only a manifest says.

    Raises:
        HtaDsv4Error: a size that is not positive, or a manifest that is not TOML.
    """
    for name, value in (("--concurrency", batch), ("--context", context), ("--max-context", max_context)):
        if value is not None and value < 1:
            raise HtaDsv4Error(f"{name} {value}: need at least 1")
    found = _from_manifest(path) if path is not None else Workload()
    if found.geometry is None and reading is not None and reading.likely:
        known = next((g for g in MODELS.values() if g.name == reading.model.name), None)
        if known is not None:
            found = _with(found, f"model {known.name}: its launch counts fit", geometry=known)
    if found.batch is None and found.geometry is not None and batch is None:
        seen = _batch_of(activities, found.geometry)
        if seen is not None:
            found = _with(found, f"concurrency {seen}: rows of the activations, from op shapes", batch=seen)
    whole = found.geometry in MODELS.values()
    if whole and ranks is not None and ranks > 1:
        found = _with(
            found,
            f"{ranks} ranks, and nothing says how they share the model: floors are those of a GPU with all of it, "
            "so what is divided seems nearer to its floor than it is",
            undivided=True,
        )
    for key, value in (("batch", batch), ("context", context), ("max_context", max_context)):
        if value is not None:
            found = _with(found, f"{key} {value:g}: as given", **{key: value})
    return found


def _with(found: Workload, said: str, **changes: Any) -> Workload:
    return replace(found, sources=(*found.sources, said), **changes)


def _from_manifest(path: Path) -> Workload:
    entry, where = manifest_entry(path)
    if entry is None:
        return Workload()
    place = where.name
    context = entry.get("context")
    if context is None:
        return _from_server(entry, place)
    geometry, ranks = MODELS.get(str(entry.get("config"))), _ranks(entry)
    # The bundled step spreads its requests evenly over the last eighth below the context.
    context = context - context / 16
    return Workload(
        geometry=geometry if geometry is None else geometry.share(ranks),
        batch=entry.get("concurrency"),
        context=context,
        max_context=entry.get("max_context"),
        bundled=geometry is not None,
        ranks=ranks,
        sources=(
            f"{place}: {entry.get('config')}, concurrency {entry.get('concurrency')}, context up to "
            f"{entry.get('context')} (requests spread over its last eighth), static maximum {entry.get('max_context')}"
            + (
                f"; one of {ranks} tensor-parallel ranks: 1/{ranks} of the heads, expert widths and vocabulary"
                if ranks > 1
                else ""
            ),
        ),
    )


def _ranks(entry: Mapping[str, Any]) -> int:
    """Ranks among which the bundled step was divided (it is tensor-parallel and nothing else)."""
    size = entry.get("parallel", {}).get("world_size", 1)
    return size if isinstance(size, int) and size > 0 else 1


def _from_server(entry: Mapping[str, Any], place: str) -> Workload:
    """A live server's requests had their prompts and what they had decoded; a user's own code says no context."""
    batch, facts = entry.get("concurrency"), entry.get("workload", {})
    said, context = f"{place}: concurrency {batch}", None
    if "prompt_tokens" in facts:
        context = facts["prompt_tokens"] + facts.get("decoded_tokens", 0)
        said += (
            f", context {context:g}: prompts of {facts['prompt_tokens']} tokens to {facts.get('engine')} and "
            f"{facts.get('decoded_tokens', 0):g} decoded before the recording"
        )
    return Workload(
        geometry=MODELS.get(str(entry.get("config"))), batch=batch, context=context,
        max_context=entry.get("max_context"), sources=(said,),
    )  # fmt: skip


def _batch_of(activities: pd.DataFrame, geometry: Geometry) -> int | None:
    """Rows of the most frequent two-dimensional operand as wide as the residual stream."""
    if col.OP_SHAPES not in activities:
        return None
    counts = activities[col.OP_SHAPES].value_counts()
    seen: dict[int, int] = {}
    for text, n in counts.items():
        first = next(iter(shapes_of(str(text))), None)
        if n and first is not None and len(first) == 2 and first[1] == geometry.hidden:
            seen[first[0]] = seen.get(first[0], 0) + int(n)
    return max(seen, key=lambda b: (seen[b], -b)) if seen else None
