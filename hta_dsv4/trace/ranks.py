"""Which files of a folder are the ranks of one run? Told by what is in them; the rest is named, with the reason.

Servers leave more in a folder than one trace per rank: a trace of the process in front (Python frames alone), traces
of CUDA graphs being captured before the first request, and a merged copy of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from hta_dsv4.trace import activities as col
from hta_dsv4.trace.link import is_graph_launch
from hta_dsv4.trace.meta import rank_of
from hta_dsv4.trace.model import Trace

Named = tuple[str, Trace]
"""A file's name and its trace."""

_CAPTURES = ("StreamBeginCapture", "StreamEndCapture", "GraphInstantiate")


def ranks_in(trace: Trace) -> tuple[int, ...]:
    """The ranks that a file holds: those of a merged one, else its own (0 where it does not say)."""
    return tuple(sorted(trace.meta.rank_labels)) or (rank_of(trace.meta),)


def world_size(traces: Sequence[Trace]) -> int | None:
    """How many ranks the run had, by ``distributedInfo.world_size``; ``None`` where no file says it.

    Where files differ, the largest: what it misses is said to be missing rather than passed over.
    """
    said = [t.meta.distributed.get("world_size") for t in traces]
    sizes = [int(s) for s in said if isinstance(s, int | str) and str(s).isdecimal() and 0 < int(s) < 1 << 31]
    return max(sizes, default=None)


def missing_ranks(traces: Sequence[Trace]) -> tuple[int, ...]:
    """Ranks below the world size that no file holds; empty where the world size is not said."""
    size = world_size(traces)
    have = {r for t in traces for r in ranks_in(t)}
    # A corrupt world size must not make a list of billions.
    return () if size is None else tuple(r for r in range(min(size, max(have) + 65_536)) if r not in have)


def is_capture_call(name: str) -> bool:
    """Whether a runtime call is part of capturing a CUDA graph."""
    return name.endswith(_CAPTURES)


def captures_only(trace: Trace) -> bool:
    """Whether CUDA graphs are captured in a trace and never replayed: a server warming up, not decoding.

    False where the CPU side was not read: then it cannot be told.
    """
    if not len(trace.events):
        return False
    names = [str(n) for n in trace.events[col.NAME].cat.categories]
    return any(is_capture_call(n) for n in names) and not any(is_graph_launch(n) for n in names)


def choose_ranks(traces: Sequence[Named]) -> tuple[list[Named], list[str]]:
    """Keep the files that are ranks of the run.

    Args:
        traces: every trace of the folder, with its file's name.

    Returns:
        Those that are ranks, in the same order, and one sentence for each that is left out. A file is left out only
        where another is what it is not: a folder of CPU-only traces keeps them all. Two files that both look like
        the same rank are both kept, for the caller to refuse.
    """
    kept, notes = list(traces), []
    working = [t for _, t in kept if len(t.activities) or t.meta.distributed or t.meta.rank_labels]
    for name, trace in traces:
        if not working or len(trace.activities) or trace.meta.distributed or trace.meta.rank_labels:
            continue
        kept.remove((name, trace))
        notes.append(
            f"{name} is no rank and left out: neither GPU activity nor distributedInfo, as a server's frontend "
            "process writes it"
        )
    for name, trace in list(kept):
        others = [t for n, t in kept if n != name and set(ranks_in(t)) & set(ranks_in(trace))]
        why = _other_than(trace, others)
        if why:
            kept.remove((name, trace))
            said = ", ".join(map(str, ranks_in(trace)))
            notes.append(f"{name} is left out: {why}; another file is rank {said}")
    return kept, notes


def _other_than(trace: Trace, others: Sequence[Trace]) -> str | None:
    """What tells a file from others of the same rank, where those are the real thing; ``None`` otherwise."""
    if not others:
        return None
    if captures_only(trace) and not all(captures_only(t) for t in others):
        return "it captures CUDA graphs and replays none"
    if not len(trace.activities) and any(len(t.activities) for t in others):
        return "it has no GPU activity"
    if trace.meta.rank_labels and not any(t.meta.rank_labels for t in others):
        single = {r for t in others for r in ranks_in(t)}
        if single.issuperset(trace.meta.rank_labels):
            return "it is a merged copy of the ranks that have files of their own"
    return None


def missing_note(traces: Sequence[Trace]) -> list[str]:
    """The sentence that says which ranks are missing, or none."""
    gone = missing_ranks(traces)
    if not gone:
        return []
    shown = ", ".join(map(str, gone[:8])) + (", ..." if len(gone) > 8 else "")
    one = len(gone) == 1
    return [
        f"rank{'' if one else 's'} {shown} of {world_size(traces)} {'is' if one else 'are'} missing "
        "(by distributedInfo.world_size): what their collectives waited for is not known"
    ]
