"""The whole campaign in one command: every variant and the scaling points, one GPU, a few minutes.

``python -m hta_dsv4.capture.campaign --out traces`` writes a trace and a manifest entry per row of :data:`PLAN`,
most important first, and prints one line for each. It needs torch and triton only. What does not fit the time
budget or the GPU's memory is named at the end and in ``manifest.toml``, not silently left out. What the manifest says
of other traces in the folder stays.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from hta_dsv4.capture.checks import check_counts, no_cuda_message
from hta_dsv4.capture.command import CaptureOptions, build_step, capture_step
from hta_dsv4.capture.config import model_config
from hta_dsv4.capture.profiler import CaptureResult
from hta_dsv4.capture.tracefile import Slim, Summary
from hta_dsv4.capture.weights import ModelWeights
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace.manifest import (
    TRACE_SUFFIX,
    Manifest,
    folder_notes,
    manifest_path,
    other_entries,
    write_folder_manifest,
)

MILLION = 1 << 20
CONTEXT = 4096  # real tokens per request in every row, so that rows differ by what their name says


@dataclass(frozen=True, slots=True)
class Row:
    """One capture of the campaign: ``name`` is the file's, ``steps`` the recorded ones, ``slim`` what is left out."""

    name: str
    variant: str
    concurrency: int = 32
    max_context: int = MILLION
    steps: int = 2
    slim: Slim = "all"


# Two recorded steps where the torch Sinkhorn runs (some 17,000 launches a step), more where steps are small.
PLAN = (
    Row("original", "original"),
    Row("mma", "mma"),
    Row("split_k", "split_k"),
    Row("bf16_gemm", "bf16_gemm"),
    Row("indexer_triton", "indexer_triton"),
    Row("mhc_fused", "mhc_fused", steps=3),
    Row("cuda_graph", "cuda_graph", steps=3),
    Row("tuned", "tuned", steps=8, slim="flows"),
    Row("fp8_split", "fp8_split", steps=8, slim="flows"),
    Row("tuned_c1", "tuned", concurrency=1, steps=8, slim="flows"),
    Row("compiled", "compiled", slim="flows"),
    Row("mma_c1", "mma", concurrency=1, slim="flows"),
    Row("split_k_c1", "split_k", concurrency=1, slim="flows"),
    Row("split_k_c16", "split_k", concurrency=16, slim="flows"),
    Row("split_k_c64", "split_k", concurrency=64, slim="flows"),
    Row("split_k_8k", "split_k", max_context=8192, slim="flows"),
    Row("split_k_64k", "split_k", max_context=65536, slim="flows"),
)


def options_for(row: Row, out: Path, config: str, baseline: int) -> CaptureOptions:
    """Capture options of one row, writing into ``out``."""
    return CaptureOptions(
        variant=row.variant, concurrency=row.concurrency, config=config, context=CONTEXT,
        max_context=row.max_context, steps=row.steps, warmup=2, baseline=baseline,
        out=out / f"{row.name}{TRACE_SUFFIX}", slim=row.slim,
    )  # fmt: skip


def run_campaign(
    out: Path,
    rows: Sequence[Row] = PLAN,
    *,
    config: str = "flash",
    baseline: int = 5,
    budget_s: float = 420.0,
) -> tuple[list[Manifest], list[str]]:
    """Capture rows in order until the budget is spent.

    Args:
        out: folder for traces and ``manifest.toml``, made if needed.
        rows: what to capture.
        config: model.
        baseline: unprofiled steps to time per row.
        budget_s: seconds; a row is not begun when the slowest row so far would not fit the rest.

    Returns:
        Manifests in order, companions after their graph; and one sentence per row not captured.

    Raises:
        HtaDsv4Error: a model or number that makes no capture, a manifest in ``out`` that is none, no GPU, or ``out``
            cannot be written.
    """
    # before the GPU works: every row would fail alike
    model_config(config)
    check_counts(steps=1, warmup=0, baseline=baseline, concurrency=1)
    if not 0 < budget_s < math.inf:
        raise HtaDsv4Error(f"--budget {budget_s}: give seconds above 0")
    other_entries(out, ())
    if not torch.cuda.is_available():
        raise HtaDsv4Error(no_cuda_message())
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HtaDsv4Error(
            f"{out}: cannot make the folder ({error.strerror or error}); choose another --out"
        ) from error
    begin, slowest = time.perf_counter(), 0.0
    manifests: list[Manifest] = []
    missing: list[str] = []
    weights: ModelWeights | None = None

    def keep(row: Row, result: CaptureResult) -> None:
        for part in (result, result.companion):
            if part is not None:
                # The label a reader sees is the row's: "split_k" alone would not tell the scaling points apart.
                label = row.name if part is result else f"{row.name}_eager"
                manifests.append(replace(part.manifest, variant=label))
                manifest_path(part.trace).unlink()
                print(line(label, part), flush=True)

    print(header(), flush=True)
    for row in rows:
        started = time.perf_counter()
        if slowest > budget_s - (started - begin):
            missing.append(f"{row.name}: not captured, the time budget of {budget_s:.0f} s was spent.")
            continue
        try:
            options = options_for(row, out, config, baseline)
            step = build_step(options, weights=weights)
            weights = step.weights
            keep(row, capture_step(step, options))
        except HtaDsv4Error as error:
            missing.append(f"{row.name}: not captured: {error}")
        except Exception as error:  # one kernel that does not run must not cost the other rows
            missing.append(f"{row.name}: not captured: {type(error).__name__}: {str(error).splitlines()[0]}")
        finally:
            step = None  # type: ignore[assignment]  # free its caches before the next row takes memory
            torch.cuda.empty_cache()
        if missing and missing[-1].startswith(f"{row.name}:"):
            print(missing[-1], flush=True)
        slowest = max(slowest, time.perf_counter() - started)
    if manifests:
        kept = other_entries(out, {m.trace for m in manifests})
        notes = [
            f"Captured by python -m hta_dsv4.capture.campaign --config {config}; rows share one GPU and one process.",
            *missing,
        ]
        if kept:
            notes.append(f"From before, as they were: {', '.join(str(entry['trace']) for entry in kept)}.")
            notes += [note for note in folder_notes(out) if note not in notes]  # which may be about those
        write_folder_manifest(out, manifests, notes, kept)
    return manifests, missing


def header() -> str:
    """Column heads of :func:`line`."""
    return f"{'variant':<18}{'step ms':>9}{'profiled':>10}{'tok/s':>8}{'launches':>9}{'busy ms':>9}{'MB':>6}  by scope"


def line(label: str, result: CaptureResult) -> str:
    """One capture as a line: unprofiled and profiled step, launches, summed activity time per step, size, scopes."""
    t = result.manifest.timing
    size = result.trace.stat().st_size / 1e6
    return (
        f"{label:<18}{t.unprofiled_step_ms:>9.2f}{t.profiled_step_ms:>10.2f}{t.tokens_per_s:>8.1f}"
        f"{t.launches:>9.0f}{t.activity_ms:>9.2f}{size:>6.2f}  {top_scopes(result.summary)}"
    )


def top_scopes(summary: Summary, count: int = 5) -> str:
    """The largest parts of the model by share of summed activity time."""
    parts: Counter[str] = Counter()
    for scope, ns in summary.scope_ns.items():
        parts["/".join(scope.split("/")[:2]) or "(no scope)"] += ns
    total = max(summary.activity_ns, 1)
    return ", ".join(f"{name} {ns / total:.1%}" for name, ns in parts.most_common(count))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line of the campaign; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m hta_dsv4.capture.campaign", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for traces and manifest.toml")
    parser.add_argument("--config", default="flash", help="flash | pro | tiny")
    parser.add_argument("--baseline", type=int, default=5, help="unprofiled steps to time per row")
    parser.add_argument("--budget", type=float, default=420.0, help="seconds for everything")
    parser.add_argument("--only", nargs="*", metavar="ROW", help="names of rows; all when absent")
    args = parser.parse_args(arguments)
    known = {row.name: row for row in PLAN}
    try:
        unknown = [name for name in args.only or () if name not in known]
        if unknown:
            raise HtaDsv4Error(f"--only {' '.join(unknown)}: choose among {', '.join(known)}")
        rows = [known[name] for name in args.only] if args.only else list(PLAN)
        _, missing = run_campaign(
            args.out, rows, config=args.config, baseline=args.baseline, budget_s=args.budget
        )
    except HtaDsv4Error as error:
        print(error, file=sys.stderr)
        return 2
    for sentence in missing:
        print(sentence)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
