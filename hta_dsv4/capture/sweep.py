"""How does the bundled step's throughput grow with concurrency? Steps timed at each C without a profiler.

A repeat builds the step's caches afresh (weights stay), runs ``warmup`` steps that are dropped, then times ``steps`` of
them, waiting for the GPU after each, as a server does before it sends tokens. Rounds go over all values of C, up and
down in turn.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import torch

from hta_dsv4.analysis.sweep import Fact, Repeat, Sweep
from hta_dsv4.analysis.sweep_plan import SweepStoppedError, rounds
from hta_dsv4.capture.checks import check_counts, check_label
from hta_dsv4.capture.clock import StepClock
from hta_dsv4.capture.command import CaptureOptions, build_step
from hta_dsv4.capture.environment import device_facts, git_commit, software_versions
from hta_dsv4.capture.launch import Step, as_compiled, as_cuda_graph
from hta_dsv4.capture.weights import ModelWeights
from hta_dsv4.capture.workload import DecodeStep
from hta_dsv4.errors import HtaDsv4Error

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StepSweep:
    """What is asked of the bundled step.

    Attributes:
        variant: a named variant, or a label of the user's own with ``switches``.
        label: how tables call it; the variant by default.
        switches: single levers that differ from the variant's.
        config: flash | pro | tiny.
        context, max_context: tokens each request has seen; the static maximum.
        concurrency: values of C, increasing.
        repeats: measurements at each.
        steps, warmup: timed and dropped steps of each.
        device: ``cuda``, or ``cpu`` for the tiny model.
        seed: of weights and caches.
    """

    variant: str = "split_k"
    label: str | None = None
    switches: Mapping[str, str] = field(default_factory=dict)
    config: str = "flash"
    context: int = 4096
    max_context: int = 1 << 20
    concurrency: tuple[int, ...] = (1, 4, 16, 32)
    repeats: int = 3
    steps: int = 10
    warmup: int = 3
    device: str = "cuda"
    seed: int = 0

    def at(self, concurrency: int) -> CaptureOptions:
        """The step at one C, as the capture command describes it; nothing is written."""
        return CaptureOptions(
            variant=self.variant, switches=self.switches, concurrency=concurrency, config=self.config,
            context=self.context, max_context=self.max_context, steps=self.steps, warmup=self.warmup,
            out=Path(tempfile.gettempdir()), device=self.device, seed=self.seed,
        )  # fmt: skip


def run_step_sweep(options: StepSweep, say: Say | None = None) -> Sweep:
    """Measure.

    Args:
        options: what.
        say: told what happens, one short line each.

    Returns:
        Every repeat; one that does not fit the GPU's memory is there with the reason.

    Raises:
        HtaDsv4Error: an option is wrong, or there is no GPU.
        SweepStoppedError: Ctrl-C after the first repeat; carries those made until then.
    """
    say = say or (lambda _line: None)
    check_label(options.label or options.variant)
    for c in options.concurrency:
        check_counts(steps=options.steps, warmup=options.warmup, baseline=1, concurrency=c)
    made = datetime.now(timezone.utc).isoformat(timespec="seconds")
    repeats: list[Repeat] = []
    notes: list[str] = []
    about: dict[str, Fact] = {}
    weights: ModelWeights | None = None

    def so_far() -> Sweep:
        return Sweep(
            options.label or options.variant, "workload", tuple(repeats), made, about, tuple(dict.fromkeys(notes))
        )  # fmt: skip

    too_large: dict[int, str] = {}
    try:
        for repeat, c in rounds(options.concurrency, options.repeats):
            say(f"C={c}, repeat {repeat} of {options.repeats}")
            if c in too_large:
                repeats.append(Repeat(c, repeat, 0, None, unusable=too_large[c]))
                continue
            try:
                step = build_step(options.at(c), weights=weights)
                weights = step.weights
                about = about or _about(step, options)
                repeats.append(_time(step, repeat, options, notes))
            except (HtaDsv4Error, torch.OutOfMemoryError) as error:
                if not (isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)):
                    raise
                too_large[c] = f"out of memory at C={c}"
                repeats.append(Repeat(c, repeat, 0, None, unusable=too_large[c]))
            finally:
                step = None  # type: ignore[assignment]  # the next C needs the memory of this one's caches
                gc.collect()
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
    except KeyboardInterrupt as error:
        if not repeats:
            raise
        notes.append(
            f"stopped after {len(repeats)} of {len(options.concurrency) * options.repeats} measurements: interrupted"
        )
        raise SweepStoppedError(so_far(), error) from error
    return so_far()


def _time(step: DecodeStep, repeat: int, options: StepSweep, notes: list[str]) -> Repeat:
    fn: Step = step
    if step.switches.launch == "cuda_graph":
        fn = as_cuda_graph(step)
    elif step.switches.launch == "compile":
        fn, report = as_compiled(step)
        notes += report.lines[:1]
    clock = StepClock(step.device.type == "cuda")
    for _ in range(options.warmup):
        fn()
    clock.wait()
    times = []
    for _ in range(options.steps):
        clock.start()
        fn()
        times.append(round(clock.stop(by_events=True) * 1e6))
    c = step.shape.batch
    window = sum(times)
    return Repeat(c, repeat, window, c * len(times) * 1e9 / window, step_ns=tuple(times))


def _about(step: DecodeStep, options: StepSweep) -> dict[str, Fact]:
    """Conditions, without the machine's name."""
    versions = software_versions()
    about: dict[str, Fact] = {
        "config": step.config.name, "context": options.context, "max_context": options.max_context,
        "launch": step.switches.launch, "device": str(device_facts()["name"]),
        "switches": " ".join(f"{k}={v}" for k, v in step.switches.as_dict().items() if k != "launch"),
        "steps": options.steps, "warmup": options.warmup, "seed": options.seed,
    }  # fmt: skip
    about |= {name: versions[name] for name in ("torch", "triton") if name in versions}
    commit = git_commit()
    if commit:
        about["commit"] = commit
    return about
