"""What a report was made from: the trace files and their manifests, by content hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hta_dsv4.present.grid import ABSENT, Grid
from hta_dsv4.runs.run import Run

_SHOWN = 12
"""Hexadecimal digits of a hash that are shown: enough to tell files apart, short enough to read out."""


@dataclass(frozen=True, slots=True)
class Capture:
    """One trace file behind a report.

    Attributes:
        label: the variant's name.
        file: the file's name, without its folder: a report is sent to others.
        sha256: of the file's content.
        gpus: names of the GPUs, as the trace says them.
        steps: counted decode steps.
        manifest: what the capture's manifest says; ``None`` where there is none.
    """

    label: str
    file: str
    sha256: str
    gpus: tuple[str, ...]
    steps: int
    manifest: Mapping[str, Any] | None = None

    @property
    def manifest_sha256(self) -> str | None:
        """Of the manifest's entry as JSON with sorted keys: equal entries give equal hashes wherever they stand."""
        if self.manifest is None:
            return None
        text = json.dumps(self.manifest, sort_keys=True, separators=(",", ":"), default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def setting(self) -> str:
        """The capture in words, from its manifest: ``C=32, context 4,096 of 1,048,576, eager, torch 2.11``."""
        if self.manifest is None:
            return "no manifest"
        words, get = [], self.manifest.get
        if get("concurrency"):
            words.append(f"C={get('concurrency')}")
        if get("context"):
            most = f" of {get('max_context'):,}" if get("max_context") else ""
            words.append(f"context {get('context'):,}{most}")
        words += [str(get(k)) for k in ("config", "launch") if get(k)]
        versions = get("versions") or {}
        words += [f"{k} {versions[k]}" for k in ("torch", "triton") if k in versions]
        return ", ".join(words) or "a manifest that says nothing"


def capture_files(run: Run, manifests: Mapping[Path, Mapping[str, Any]] | None = None) -> list[Capture]:
    """The files of one variant.

    Args:
        run: the variant.
        manifests: trace file -> what its manifest says.

    Returns:
        One entry per trace.
    """
    out = []
    for trace, steps in zip(run.traces, run.steps, strict=True):
        with open(trace.path, "rb") as file:
            digest = (
                hashlib.file_digest(file, "sha256").hexdigest()
                if hasattr(hashlib, "file_digest")
                else _sha(file)
            )
        gpus = tuple(sorted({d.name for d in trace.meta.devices if d.name}))
        out.append(
            Capture(
                run.label,
                trace.path.name,
                digest,
                gpus,
                len(steps.counted),
                (manifests or {}).get(trace.path),
            )
        )
    return out


def _sha(file: Any) -> str:
    """Python 3.10 has no ``hashlib.file_digest``."""
    found = hashlib.sha256()
    while block := file.read(1 << 20):
        found.update(block)
    return found.hexdigest()


def report_hash(captures: Sequence[Capture]) -> str:
    """One hash of everything a report was made from: equal for the same files and manifests in the same order."""
    text = "\n".join(f"{c.label}\t{c.sha256}\t{c.manifest_sha256 or '-'}" for c in captures)
    return hashlib.sha256(text.encode()).hexdigest()


def captures_grid(captures: Sequence[Capture]) -> Grid:
    """The files as a table."""
    rows = tuple(
        (
            c.label, c.file, " and ".join(c.gpus) or "unknown", c.setting, c.sha256[:_SHOWN],
            (c.manifest_sha256 or ABSENT)[:_SHOWN], f"{c.steps}",
        )
        for c in captures
    )  # fmt: skip
    headers = ("variant", "file", "GPU", "capture", "sha256", "manifest", "steps")
    whole = f"all of the above, hashed: {report_hash(captures)[:_SHOWN]}"
    return Grid("captures", headers, rows, notes=(whole,), left=6, prose=True)
