"""The files of a capture by several ranks: a folder with one trace per rank and one manifest for all."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from hta_dsv4.capture.parallel import Ranks, backend_of, of_all_ranks
from hta_dsv4.capture.profiler import CaptureResult
from hta_dsv4.capture.straggler import Straggler, measured_us
from hta_dsv4.trace.manifest import FOLDER_MANIFEST, TRACE_SUFFIX, manifest_path, write_folder_manifest


def rank_trace(folder: Path, ranks: Ranks) -> Path:
    """A rank's trace in the folder of a capture: ``<folder>/<folder>_rank<N>.trace.json.gz``."""
    return folder / f"{folder.name}_rank{ranks.rank}{TRACE_SUFFIX}"


def companion_folder(folder: Path) -> Path:
    """Where the eager companions of a capture go: a folder of their own, or a rank would stand in one twice."""
    return folder.with_name(f"{folder.name}_eager")


def parallel_facts(ranks: Ranks, device: str, straggler: Straggler | None) -> dict[str, Any]:
    """What a manifest says of a rank; empty for a single process.

    Args:
        ranks: this process.
        device: where it computes.
        straggler: planted, if any.
    """
    if ranks.alone:
        return {}
    facts: dict[str, Any] = {
        "rank": ranks.rank,
        "world_size": ranks.world_size,
        "backend": backend_of(device),
    }
    if straggler is not None:
        facts["straggler"] = {
            "rank": straggler.rank,
            "layer": straggler.layer,
            "microseconds": straggler.microseconds,
        }
    return facts


def join_manifests(result: CaptureResult, ranks: Ranks, straggler: Straggler | None) -> CaptureResult:
    """Replace the ranks' own manifests by one for the folder, written by rank 0 when all have ended.

    Args:
        result: this rank's capture, and its companion.
        ranks: this process; a single one keeps its own.
        straggler: planted, if any: every entry says how long it really took, per step, as its rank measured it.

    Returns:
        The same capture, with the manifest as written.

    Raises:
        HtaDsv4Error: the folder cannot be written.
    """
    if ranks.alone:
        return result
    companion = result.companion and join_manifests(result.companion, ranks, straggler)
    took = measured_us(result.trace) if straggler is not None and straggler.rank == ranks.rank else []
    everyone = of_all_ranks((result.manifest, took), ranks)
    manifests = [manifest for manifest, _ in everyone]
    if straggler is not None:
        longest = everyone[straggler.rank][1]
        if longest:
            said = {
                "measured_us": round(statistics.median(longest), 3),
                "measured_min_us": round(min(longest), 3),
                "measured_max_us": round(max(longest), 3),
            }
            manifests = [
                replace(m, parallel={**m.parallel, "straggler": m.parallel["straggler"] | said})
                for m in manifests
            ]
    folder = result.trace.parent
    manifest_path(result.trace).unlink()
    path = folder / FOLDER_MANIFEST
    if ranks.first:
        path = write_folder_manifest(folder, manifests)
    of_all_ranks(None, ranks)  # nobody goes on before the manifest stands
    return replace(result, manifest=manifests[ranks.rank], manifest_path=path, companion=companion)
