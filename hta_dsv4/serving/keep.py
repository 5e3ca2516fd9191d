"""Under which names are a server's traces kept, and what is said of them? One file and one manifest per rank."""

from __future__ import annotations

import datetime
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hta_dsv4.analysis.own_time import own_ns
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.serving.baseline import Measured
from hta_dsv4.serving.collect import Collected, RankTrace
from hta_dsv4.serving.engines import Served
from hta_dsv4.serving.timing import Load
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.manifest import TRACE_SUFFIX, Manifest, Timing, manifest_path, stem, write_manifest
from hta_dsv4.trace.markers import START_NS, engine_steps
from hta_dsv4.trace.model import Trace
from hta_dsv4.trace.steps import find_steps


@dataclass(frozen=True, slots=True)
class Naming:
    """The variant and where it goes.

    Attributes:
        label: of the variant.
        concurrency: decoded together.
        out: file or folder as the user gave it; the current folder when absent.
    """

    label: str
    concurrency: int
    out: Path | None = None

    @property
    def path(self) -> Path:
        """The trace of a single rank: ``<label>_c<concurrency>.trace.json.gz`` in a folder, or the file named."""
        name = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', self.label)}_c{self.concurrency}{TRACE_SUFFIX}"
        if self.out is None:
            return Path(name)
        if self.out.is_dir() or not self.out.suffix:
            return self.out / name
        known = self.out.suffix in (".json", ".gz")
        return self.out if known else self.out.with_name(self.out.name + TRACE_SUFFIX)

    def of(self, rank: RankTrace, ranks: int) -> Path:
        """The trace of one rank; several go into a folder of that name, as ``rank<n>.trace.json.gz``.

        The name ends in ``.gz`` where the server's file does: the content is copied as it is.
        """
        one = self.path
        if ranks > 1:
            one = one.with_name(stem(one)) / f"rank{rank.rank}{TRACE_SUFFIX}"
        packed = ".gz" if rank.path.name.endswith(".gz") else ""
        return one.with_name(one.name.removesuffix(".gz") + packed)


def keep(
    found: Collected, naming: Naming, served: Served, load: Load, measured: Measured, notes: tuple[str, ...]
) -> tuple[Path, ...]:
    """Copy each rank's trace to its final name, byte for byte, with a manifest beside it.

    Args:
        found: whole traces.
        naming: label and place.
        served: engine and model.
        load: what was decoded.
        measured: step times without the profiler.
        notes: further sentences for the manifests.

    Returns:
        The traces kept, by rank. The server's own files stay where they are.

    Raises:
        HtaDsv4Error: two traces of one rank, or a file cannot be written.
    """
    ranks = [r.rank for r in found.ranks]
    if twice := {r for r in ranks if ranks.count(r) > 1}:
        names = ", ".join(r.path.name for r in found.ranks if r.rank in twice)
        raise HtaDsv4Error(f"{found.ranks[0].path.parent}: several traces of rank {min(twice)}: {names}")
    many = max(found.world_size, len(ranks))
    paths = [naming.of(r, many) for r in found.ranks]
    if many > 1 and (others := _others(paths)):
        raise HtaDsv4Error(
            f"{paths[0].parent}: holds other traces ({others[0]}), which would be read as ranks of this one; choose "
            f"another --label or --out, the server's files are still in {found.ranks[0].path.parent}"
        )
    kept = []
    for rank, path in zip(found.ranks, paths, strict=True):
        _copy(rank.path, path)
        try:
            write_manifest(path, _manifest(path.name, rank, naming, served, load, measured, notes))
        except BaseException:
            path.unlink(missing_ok=True)  # a trace whose conditions nobody knows is not left behind
            raise
        kept.append(path)
    return tuple(kept)


def _others(paths: list[Path]) -> list[str]:
    """Traces in the ranks' folder that this capture does not write over."""
    folder, ours = paths[0].parent, {p.name for p in paths}
    if not folder.is_dir():
        return []
    return sorted(n for n in os.listdir(folder) if re.search(r"\.json(\.gz)?$", n) and n not in ours)


def _copy(source: Path, path: Path) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # an older capture's manifest must not speak of the new trace, not even for a moment
        manifest_path(path).unlink(missing_ok=True)
        shutil.copyfile(source, beside)
        beside.replace(path)
    except OSError as error:
        raise HtaDsv4Error(
            f"{path}: cannot be copied from {source} ({error.strerror or error}); free space or choose another --out, "
            "the server's file is still there"
        ) from error
    finally:
        beside.unlink(missing_ok=True)


def _manifest(
    name: str,
    rank: RankTrace,
    naming: Naming,
    served: Served,
    load: Load,
    measured: Measured,
    notes: tuple[str, ...],
) -> Manifest:
    workload: dict[str, Any] = {
        "engine": served.engine,
        "model": served.model,
        "prompt_tokens": load.prompt_tokens,
        "output_tokens": load.output_tokens,
        "decoded_tokens": round(measured.decoded, 1),
        "seed": load.seed,
        "rank": rank.rank,
    }
    versions = {str(k): str(v) for k, v in rank.trace.meta.versions.items() if isinstance(v, (str, int))}
    if served.version is not None:
        versions[served.engine] = served.version
    devices = rank.trace.meta.devices
    said = (
        rank.check.sentence,
        "step times without the profiler are the client's: time between chunks over the tokens in them, the median "
        "over requests, their range as minimum and maximum; a step is taken to give each request one token",
        *notes,
    )
    return Manifest(
        trace=name,
        variant=naming.label,
        concurrency=naming.concurrency,
        steps=rank.check.steps,
        warmup=measured.warmup,
        captured_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        timing=_timing(rank.trace, naming.concurrency, measured),
        launch=served.engine,
        device={"name": devices[0].name} if devices and devices[0].name else {},
        versions=versions,
        workload=workload,
        notes=said,
    )


def _timing(trace: Trace, concurrency: int, measured: Measured) -> Timing:
    plain = measured.plain_ms
    profiled = profiled_step_ms(trace)
    acts, steps = trace.activities, find_steps(trace)
    counted = steps.of_activity.isin(steps.counted.index).to_numpy()
    n = max(len(steps.counted), 1)
    mine = acts[counted]
    launches = int(mine[col.LAUNCH_INDEX].nunique()) if col.LAUNCH_INDEX in mine else 0
    return Timing(
        unprofiled_step_ms=plain,
        unprofiled_steps=measured.steps,
        unprofiled_min_ms=min(measured.step_ms),
        unprofiled_max_ms=max(measured.step_ms),
        profiled_step_ms=profiled,
        profiler_overhead=profiled / plain - 1,
        tokens_per_s=concurrency * 1000 / plain,
        activity_ms=int(mine[col.DUR_NS].sum()) / 1e6 / n,
        activities=len(mine) / n,
        launches=launches / n,
        own_ms=int(own_ns(acts)[counted].sum()) / 1e6 / n,
    )


def profiled_step_ms(trace: Trace) -> float:
    """Median time from a step's annotation to the next one's, milliseconds; of a single step its own; NaN of none."""
    table, _ = engine_steps(trace)
    if len(table) > 1:
        return float(np.median(np.diff(np.sort(table[START_NS].to_numpy())))) / 1e6
    return float((table["end_ns"] - table[START_NS]).iloc[0]) / 1e6 if len(table) else float("nan")
