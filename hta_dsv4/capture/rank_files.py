"""The files of a capture by several ranks: a folder with one trace per rank and one manifest for all."""

from __future__ import annotations

import os
import statistics
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hta_dsv4.capture.parallel import Ranks, backend_of, of_all_ranks
from hta_dsv4.capture.profiler import CaptureResult
from hta_dsv4.capture.straggler import Straggler, measured_us
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace.manifest import FOLDER_MANIFEST, TRACE_SUFFIX, manifest_path, write_folder_manifest


def rank_trace(folder: Path, ranks: Ranks) -> Path:
    """A rank's trace in the folder of a capture: ``<folder>/<folder>_rank<N>.trace.json.gz``."""
    return folder / f"{folder.name}_rank{ranks.rank}{TRACE_SUFFIX}"


def companion_folder(folder: Path) -> Path:
    """Where the eager companions of a capture go: a folder of their own, or a rank would stand in one twice."""
    return folder.with_name(f"{folder.name}_eager")


def staged(trace: Path) -> Path:
    """Where a rank's trace stands until all ranks have theirs: a folder of the same name in a hidden one beside it.

    Args:
        trace: its final place, from :func:`rank_trace`.
    """
    folder = trace.parent
    return folder.parent / f".{folder.name}.making" / folder.name / trace.name


def discard(trace: Path) -> None:
    """Take away what a rank staged, and the folders that are empty then; never what is in its final place.

    Args:
        trace: as staged.
    """
    for path in (trace, manifest_path(trace), *trace.parent.glob(f".{trace.name}.*")):
        with suppress(OSError):
            path.unlink()
    for folder in (trace.parent, trace.parent.parent):
        with suppress(OSError):  # others' files are in it still
            folder.rmdir()


def _in_place(trace: Path) -> Path:
    """The final place of a staged trace, its folder made."""
    folder = trace.parent.parent.parent / trace.parent.name
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise HtaDsv4Error(f"{folder}: cannot be made ({error.strerror}); choose another --out") from error
    return folder / trace.name


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
    """Move the ranks' traces to their place and replace their manifests by one, when all ranks have ended.

    Args:
        result: this rank's capture, and its companion, as staged (:func:`staged`).
        ranks: this process; a single one keeps its own.
        straggler: planted, if any: every entry says how long it really took, per step, as its rank measured it.

    Returns:
        The same capture, in its final place, with the manifest as written.

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
    final = _in_place(result.trace)  # all ranks have their traces: none is left without the others'
    os.replace(result.trace, final)
    discard(result.trace)
    path = final.parent / FOLDER_MANIFEST
    if ranks.first:
        path = write_folder_manifest(final.parent, manifests)
    of_all_ranks(None, ranks)  # nobody goes on before the manifest stands
    return replace(
        result, trace=final, manifest=manifests[ranks.rank], manifest_path=path, companion=companion
    )
