"""``hta-dsv4 capture``: build the bundled decode step, run it as asked, keep its trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from hta_dsv4.capture.checks import check_counts, check_label, check_place, no_cuda_message, trace_file
from hta_dsv4.capture.config import ModelConfig, StepShape, model_config
from hta_dsv4.capture.launch import Step, as_compiled, as_cuda_graph
from hta_dsv4.capture.memory import least_bytes, memory_of
from hta_dsv4.capture.parallel import ALONE, Ranks, process_group
from hta_dsv4.capture.profiler import CaptureResult, capture_decode
from hta_dsv4.capture.rank_files import (
    companion_folder,
    discard,
    join_manifests,
    parallel_facts,
    rank_trace,
    staged,
)
from hta_dsv4.capture.sharding import shard_config
from hta_dsv4.capture.straggler import Straggler
from hta_dsv4.capture.switches import Switches, variant_switches
from hta_dsv4.capture.tracefile import Slim
from hta_dsv4.capture.weights import ModelWeights
from hta_dsv4.capture.workload import DecodeStep
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace.manifest import TRACE_SUFFIX

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """What the command line asks for.

    Attributes:
        variant: a named variant, or a label of the user's own with ``switches``.
        switches: single levers that differ from the variant's: switch -> choice.
        concurrency: requests decoded together.
        config: flash | pro | tiny.
        context: tokens each request has seen; max_context: the static maximum.
        steps, warmup, baseline: recorded, unmeasured and timed steps.
        out: file or folder; the current folder when absent.
        with_stack: record Python stacks; slim: drop what no reader uses ("all"), and flow arrows ("flows").
        device: ``cuda`` (the current one), or ``cpu`` for a look at the host side of the tiny model.
        seed: of weights and caches.
        ranks: this process among those that compute the step together.
        straggler: extra work of one of them, planted to be found.
    """

    variant: str = "split_k"
    switches: Mapping[str, str] = field(default_factory=dict)
    concurrency: int = 32
    config: str = "flash"
    context: int = 4096
    max_context: int = 1 << 20
    steps: int = 3
    warmup: int = 3
    baseline: int = 10
    out: Path | None = None
    with_stack: bool = False
    slim: Slim = ""
    device: str = "cuda"
    seed: int = 0
    ranks: Ranks = ALONE
    straggler: Straggler | None = None

    @property
    def shape(self) -> StepShape:
        """Sizes of the step."""
        return StepShape(self.concurrency, self.context, self.max_context)

    @property
    def trace_path(self) -> Path:
        """Where the trace goes: ``<variant>_c<concurrency>.trace.json.gz`` in a folder, or the file named.

        Of several ranks it is a folder in that folder, with a file for each: ``<variant>_c<concurrency>_tp<ranks>``.
        What a label of the user's own holds beside letters, digits, dots and dashes becomes ``_`` in a file's name.

        Raises:
            HtaDsv4Error: several ranks were to write one file.
        """
        label = re.sub(r"[^\w.-]", "_", self.variant)
        name = f"{label}_c{self.concurrency}"
        names_file = self.out is not None and not self.out.is_dir() and bool(self.out.suffix)
        if not self.ranks.alone:
            if names_file:
                raise HtaDsv4Error(
                    f"--out {self.out}: {self.ranks.world_size} ranks write a file each; name a folder"
                )
            name += f"_tp{self.ranks.world_size}{'_straggler' if self.straggler else ''}"
            return rank_trace((self.out or Path()) / name, self.ranks)
        if self.out is not None and names_file:
            return self.out
        return (self.out or Path()) / f"{name}{TRACE_SUFFIX}"


def run_capture(
    options: CaptureOptions, progress: Progress | None = None, checked: Callable[[], None] | None = None
) -> CaptureResult:
    """Build the step, run it, write trace and manifest (and, for CUDA graphs, the eager companion).

    Among several ranks each does so, and all of them together write one manifest.

    Args:
        options: what to capture.
        progress: told what happens, one short line each.
        checked: called when the options are found right, before the ranks meet.

    Raises:
        HtaDsv4Error: an option is wrong, there is no GPU, memory ran out, or the files cannot be written.
    """
    check_options(options)
    if checked:
        checked()
    with process_group(options.ranks, options.ranks.device(options.device)):
        step = build_step(options, progress)
        return capture_step(step, options, progress)


def check_options(options: CaptureOptions) -> None:
    """Check everything that can be said without building anything or meeting the other ranks.

    Raises:
        HtaDsv4Error: an option is wrong, there is no GPU, or the files cannot be written.
    """
    if options.device not in ("cuda", "cpu"):
        raise HtaDsv4Error(
            f"--device {options.device}: choose cuda or cpu; CUDA_VISIBLE_DEVICES chooses among several GPUs"
        )
    config, switches, _ = model_config(options.config), _switches(options), options.shape
    check_label(options.variant)
    check_counts(
        steps=options.steps, warmup=options.warmup, baseline=options.baseline, concurrency=options.concurrency
    )
    if (options.device == "cuda" or switches.launch == "cuda_graph") and not torch.cuda.is_available():
        raise HtaDsv4Error(
            no_cuda_message()
            if options.device == "cuda"
            else "launch=cuda_graph needs a CUDA device; use launch=eager"
        )
    if options.device == "cpu" and config.name != "tiny":
        raise HtaDsv4Error(
            f"--device cpu: a step of {config.name} takes a GPU; a CPU records the host side of --config tiny"
        )
    shard_config(config, options.ranks.world_size)
    if options.straggler is not None:
        options.straggler.check(config, options.ranks)
    _check_memory(config, options)
    check_place(options.out)
    place = options.trace_path
    if options.ranks.alone:
        trace_file(place)
        return
    trace_file(
        place.parent.parent / place.name
    )  # the folder between is made when all ranks have their traces
    if place.parent.exists() and not place.parent.is_dir():
        raise HtaDsv4Error(f"{place.parent}: is a file; choose another --out")


def _check_memory(config: ModelConfig, options: CaptureOptions) -> None:
    switches = _switches(options)
    # what the torch forms score a compiler may fuse
    indexer = "triton" if switches.launch == "compile" else switches.indexer
    needed = least_bytes(config, options.shape, indexer)
    there = memory_of(options.ranks.device(options.device))
    if needed > there:
        where = "this machine" if options.device == "cpu" else "the GPU"
        raise HtaDsv4Error(
            f"{options.variant}: out of memory (the step takes at least {needed / 1e9:,.0f} GB, {where} has "
            f"{there / 1e9:,.0f}); {_lower(options)}"
        )


def staging_folders(options: CaptureOptions) -> list[Path]:
    """Where several ranks keep their files until all have theirs; of no use when one of them has failed."""
    if options.ranks.alone:
        return []
    return [path.parent.parent for path in (_written_to(options), _companion_out(options)) if path]


def _written_to(options: CaptureOptions) -> Path:
    """Where the trace is written; of several ranks it is moved to its place when all have theirs."""
    return options.trace_path if options.ranks.alone else staged(options.trace_path)


def build_step(
    options: CaptureOptions, progress: Progress | None = None, weights: ModelWeights | None = None
) -> DecodeStep:
    """Weights, caches and position of the step that ``options`` describe.

    Args:
        options: what to capture.
        progress: as in :func:`run_capture`.
        weights: drawn before, for the same configuration and number format (and this rank's share).

    Raises:
        HtaDsv4Error: an option is wrong, there is no GPU, or memory ran out.
    """
    check_options(options)
    config, switches, shape = model_config(options.config), _switches(options), options.shape
    if progress:
        progress(
            f"{options.variant}: building {config.name}, {shape.batch} requests of {shape.context} tokens"
        )
    try:
        return DecodeStep(
            config, shape, switches, options.ranks.device(options.device), options.seed, weights=weights,
            ranks=options.ranks, straggler=options.straggler,
        )  # fmt: skip
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        raise _out_of_memory(options, error) from error


def capture_step(
    step: DecodeStep, options: CaptureOptions, progress: Progress | None = None
) -> CaptureResult:
    """Capture a step built before, in the launch mode its switches name.

    Args:
        step: from :func:`build_step`.
        options: variant, sizes, steps and where to write.
        progress: as in :func:`run_capture`.

    Raises:
        HtaDsv4Error: as :func:`run_capture`.
    """
    notes: list[str] = []
    try:
        fn: Step = step
        companion: Step | None = None
        if step.switches.launch == "cuda_graph":
            fn, companion = as_cuda_graph(step), step
        elif step.switches.launch == "compile":
            fn, report = as_compiled(step)
            notes += report.lines
        result = capture_decode(
            fn,
            options.steps,
            warmup=options.warmup,
            baseline=options.baseline,
            variant=options.variant,
            concurrency=options.concurrency,
            out=_written_to(options),
            companion=companion,
            companion_out=_companion_out(options),
            progress=progress,
            with_stack=options.with_stack,
            slim=options.slim,
            require_cuda=options.device == "cuda",
            details=_details(step, options, notes),
        )
        return join_manifests(result, options.ranks, options.straggler)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        raise _out_of_memory(options, error) from error
    finally:
        if not options.ranks.alone:  # what was not moved to its place is of no use
            discard(_written_to(options))
            if beside := _companion_out(options):
                discard(beside)


def _companion_out(options: CaptureOptions) -> Path | None:
    if options.ranks.alone:
        return None
    return staged(rank_trace(companion_folder(options.trace_path.parent), options.ranks))


def _switches(options: CaptureOptions) -> Switches:
    switches = variant_switches(options.variant, options.switches)
    if options.device == "cpu":
        # Triton kernels need a GPU: the CPU runs their torch forms, and says so in the manifest's switches.
        switches = replace(switches, attention="reference", moe="torch", mhc="torch", glue="torch")
        if switches.indexer == "triton":
            switches = replace(switches, indexer="torch_fp32")
    return switches


def _details(step: DecodeStep, options: CaptureOptions, notes: list[str]) -> dict[str, Any]:
    config = step.config
    workload = {
        "layers": len(config.layers),
        "weight_sets": step.weights.sets,
        **{f"cache_sets_{kind}": n for kind, n in step.cache_sets.items()},
        "index_width": step.tables.c4.pages.shape[1] * 64,
        "c128_width": step.shape.c128_width,
        "seed": options.seed,
        "weights": "random",
    }
    return {
        "config": config.name,
        "context": options.context,
        "max_context": options.max_context,
        "switches": step.switches.as_dict(),
        "launch": step.switches.launch,
        "workload": workload,
        "parallel": parallel_facts(options.ranks, step.device.type, options.straggler),
        "notes": notes,
    }


def _is_out_of_memory(error: Exception) -> bool:
    """A GPU's allocator has an error of its own; the CPU's has a sentence, and too large a size has another."""
    said = ("can't allocate memory", "not enough memory", "Storage size calculation overflowed")
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in said)


def _out_of_memory(options: CaptureOptions, error: Exception) -> HtaDsv4Error:
    first = str(error).splitlines()[0]
    return HtaDsv4Error(f"{options.variant}: out of memory ({first}); {_lower(options)}")


def _lower(options: CaptureOptions) -> str:
    return (
        f"lower --max-context ({options.max_context}), --concurrency ({options.concurrency}) or --context "
        f"({options.context})"
    )
