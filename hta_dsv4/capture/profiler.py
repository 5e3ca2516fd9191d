"""Trace any decode step: a few unprofiled steps for the clock, a few profiled ones for the file.

Two forms. :func:`capture_decode` calls a function that decodes once. :class:`DecodeCapture` wraps a loop of the
user's own. Both time the step before the profiler starts, because a profiled step is slower and a share table of it
must be able to say by how much; both wait for the GPU after every step, so that no activity of one step is counted
in the next; both write the trace and its manifest whole or not at all.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from hta_dsv4.capture.checks import (
    check_counts,
    check_details,
    check_label,
    companion_path,
    no_cuda_message,
    trace_file,
)
from hta_dsv4.capture.clock import StepClock
from hta_dsv4.capture.environment import device_facts, git_commit, query_driver, software_versions
from hta_dsv4.capture.scopes import mark_profiler, profiler_marked, profiler_on
from hta_dsv4.capture.tracefile import Slim, Summary, clean_trace
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace.manifest import Manifest, Timing, manifest_path, write_manifest
from hta_dsv4.trace.whole_files import write_atomically

_BUSY = "a torch profiler is already running in this process: stop it before capturing"
_ONE_AT_A_TIME = Lock()  # held inside the with block
_PROFILER_WARMUP = 2  # steps with the profiler on and not recorded: its first launches are slow


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """What a capture left.

    Attributes:
        trace: the trace file.
        manifest_path, manifest: what it says of itself.
        summary: activities, times and scopes of the recorded steps.
        companion: the eager capture of the same step, where one was asked for.
    """

    trace: Path
    manifest_path: Path
    manifest: Manifest
    summary: Summary
    companion: CaptureResult | None = None


class DecodeCapture:
    """Context manager around a decode loop; call :meth:`step` after each step, stop when :attr:`done`.

    ::

        with DecodeCapture(out="traces/mine", variant="mine", concurrency=32) as capture:
            while not capture.done:
                decode_one_token()
                capture.step()
        print(capture.result.trace)

    Args:
        out: file name of the trace (``.trace.json.gz`` is added where it does not end in ``.json`` or ``.gz``).
        variant: label, for tables and comparisons.
        concurrency: requests decoded by one step.
        steps: steps to record.
        warmup: steps before anything is measured (compilation, caches, autotuning).
        baseline: unprofiled steps to time.
        with_stack: record Python stacks (large).
        record_shapes: record operator input shapes.
        slim: ``"all"`` drops what no reader uses, ``"flows"`` the arrows from launch to kernel too
            (see :func:`~hta_dsv4.capture.tracefile.keep_trace`).
        require_cuda: refuse to run without a GPU; a trace of the CPU alone holds no activity.
        details: further :class:`~hta_dsv4.trace.manifest.Manifest` fields (config, switches, notes, ...).

    Raises:
        HtaDsv4Error: no steps asked for, no GPU, another profiler running (now, or in the loop), ``out`` no place for a
            file, details that no manifest has, loop too short, used a second time.
    """

    def __init__(
        self,
        *,
        out: str | Path,
        variant: str,
        concurrency: int,
        steps: int = 5,
        warmup: int = 3,
        baseline: int = 10,
        with_stack: bool = False,
        record_shapes: bool = True,
        slim: Slim = "",
        require_cuda: bool = True,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        check_counts(steps=steps, warmup=warmup, baseline=baseline, concurrency=concurrency)
        check_label(variant)
        check_details(details or {})
        self.cuda = torch.cuda.is_available()
        if require_cuda and not self.cuda:
            raise HtaDsv4Error(no_cuda_message())
        if profiler_on():
            raise HtaDsv4Error(_BUSY)
        self.out = trace_file(out)
        self.variant, self.concurrency = variant, concurrency
        self.steps, self.warmup, self.baseline = steps, warmup, baseline
        self.slim, self.details = slim, dict(details or {})
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.cuda else [])
        # two captures into one name, of one process or two, must not share it
        self._raw = self.out.with_name(f".{self.out.name}.{os.getpid()}-{id(self):x}.raw.json")
        self._profile = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=_PROFILER_WARMUP, active=steps, repeat=1),
            on_trace_ready=self._export,
            record_shapes=record_shapes,
            with_stack=with_stack,
        )
        self._clock = StepClock(self.cuda)
        self._entered = self._running = False
        self._count = 0
        self._unprofiled: list[float] = []
        self._profiled: list[float] = []
        self._driver: subprocess.Popen[str] | None = None
        self._result: CaptureResult | None = None

    @property
    def total(self) -> int:
        """Steps the loop must make: warm-up, timed, and profiled ones."""
        return self.warmup + self.baseline + _PROFILER_WARMUP + self.steps

    @property
    def done(self) -> bool:
        """Whether every step has been made."""
        return self._count >= self.total

    @property
    def result(self) -> CaptureResult:
        """The capture, after the ``with`` block.

        Raises:
            HtaDsv4Error: asked for before the block ended.
        """
        if self._result is None:
            raise HtaDsv4Error("the capture is not finished: read .result after the with block")
        return self._result

    def __enter__(self) -> DecodeCapture:
        if self._entered:
            raise HtaDsv4Error(f"{self.out}: a DecodeCapture captures once; make a new one")
        if not _ONE_AT_A_TIME.acquire(blocking=False):
            raise HtaDsv4Error(f"{self.out}: another capture is going on in this process; end it first")
        self._entered = True
        self._clock.wait()
        self._clock.start()
        return self

    def step(self) -> None:
        """Mark the end of a decode step.

        Raises:
            HtaDsv4Error: outside the ``with`` block, or another torch profiler was started or stopped in the loop.
        """
        if self.done:
            return
        if not self._entered:
            raise HtaDsv4Error(f"{self.out}: step() belongs inside the with block of the capture")
        self._check_profiler()
        self._count += 1
        timed_until = self.warmup + self.baseline
        elapsed = self._clock.stop(by_events=self._count <= timed_until)
        if self.warmup < self._count <= timed_until:
            self._unprofiled.append(elapsed)
            if self.cuda and self._count == self.warmup + (self.baseline + 1) // 2:
                self._driver = query_driver()
        elif self._count > timed_until + _PROFILER_WARMUP:
            self._profiled.append(elapsed)
        if self._count == timed_until:
            self._running = True
            with warnings.catch_warnings():
                # "clears events at the end of each cycle": one cycle is all we want
                warnings.simplefilter("ignore")
                self._profile.start()
        elif self._count > timed_until:
            self._profile.step()
        if self._running:
            mark_profiler(ours=not self.done)
        self._clock.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._running:
                self._running = False
                if profiler_marked() or self.done:
                    self._profile.stop()
            if kind is None:
                if not self.done:
                    raise HtaDsv4Error(
                        f"{self.out}: the loop ended after {self._count} of {self.total} steps "
                        f"({self.warmup} warm-up, {self.baseline} timed, {_PROFILER_WARMUP + self.steps} profiled); "
                        "run it until .done, or ask for fewer"
                    )
                self._finish()
        finally:
            _ONE_AT_A_TIME.release()
            self._raw.unlink(missing_ok=True)
            if self._driver is not None and self._driver.poll() is None:
                self._driver.kill()

    def _check_profiler(self) -> None:
        """A second profiler takes the process's one session; touching the first after that ends the process."""
        if profiler_marked() if self._running else not profiler_on():
            return
        self._running = False  # nothing of ours is left to stop
        raise HtaDsv4Error(
            f"{self.out}: the loop runs a torch profiler of its own; a process has one, take it out"
        )

    def _export(self, finished: profile) -> None:
        try:
            finished.export_chrome_trace(str(self._raw))
        except (OSError, RuntimeError) as error:
            raise HtaDsv4Error(
                f"{self.out}: the profiler could not write its file ({error}); free disk space"
            ) from error

    def _finish(self) -> None:
        body, summary = clean_trace(self._raw, self.out, slim=self.slim)
        if self.cuda and summary.activities == 0:
            raise HtaDsv4Error(
                f"{self.out}: the profiler saw no GPU activity; another tool may hold the GPU's counters "
                "(Nsight, a second profiler), or the step ran nothing on the GPU"
            )
        unprofiled, profiled = statistics.median(self._unprofiled), statistics.median(self._profiled)
        timing = Timing(
            unprofiled_step_ms=round(unprofiled, 4),
            unprofiled_steps=len(self._unprofiled),
            unprofiled_min_ms=round(min(self._unprofiled), 4),
            unprofiled_max_ms=round(max(self._unprofiled), 4),
            profiled_step_ms=round(profiled, 4),
            profiler_overhead=round(profiled / unprofiled - 1, 4),
            tokens_per_s=round(self.concurrency / unprofiled * 1e3, 4),
            activity_ms=round(summary.activity_ns / self.steps / 1e6, 6),
            activities=round(summary.activities / self.steps, 2),
            launches=round(summary.launches / self.steps, 2),
            own_ms=round(summary.own_ns / self.steps / 1e6, 6),
        )
        manifest = Manifest(
            trace=self.out.name,
            variant=self.variant,
            concurrency=self.concurrency,
            steps=self.steps,
            warmup=self.total - self.steps,
            captured_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            timing=timing,
            commit=git_commit(),
            device=device_facts(self._driver),
            versions=software_versions(),
            removed=summary.removed,
        )
        manifest = replace(manifest, **self.details)
        path = manifest_path(self.out)
        write_atomically((self.out, body), (path, manifest.as_toml()))
        self._result = CaptureResult(self.out, path, manifest, summary)


def capture_decode(
    fn: Callable[[], object],
    steps: int = 5,
    *,
    warmup: int = 3,
    variant: str,
    concurrency: int,
    out: str | Path,
    baseline: int = 10,
    companion: Callable[[], object] | None = None,
    companion_out: Path | None = None,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> CaptureResult:
    """Trace a function that decodes one token per request.

    Args:
        fn: decodes once: eager code, a compiled callable, or a CUDA graph's ``replay``.
        steps: steps to record.
        warmup: steps before anything is measured.
        variant: label.
        concurrency: requests decoded by one step.
        out: file name of the trace.
        baseline: unprofiled steps to time.
        companion: the same step launched eagerly. Kernels of a replayed graph carry no operator and no scope; this
            second trace, ``<name>_eager.trace.json.gz``, tells what asked for each of them.
        companion_out: another name for it.
        progress: told what happens, one short line each.
        options: further arguments of :class:`DecodeCapture`.

    Returns:
        Paths, manifest and summary.

    Raises:
        HtaDsv4Error: as :class:`DecodeCapture`.
    """
    say = progress or (lambda _line: None)
    details = dict(options.pop("details", None) or {})
    with DecodeCapture(
        out=out, variant=variant, concurrency=concurrency, steps=steps, warmup=warmup, baseline=baseline,
        details=details, **options,
    ) as capture:  # fmt: skip
        say(f"{variant}: {capture.total} steps, the last {steps} recorded")
        while not capture.done:
            fn()
            capture.step()
        say(f"{variant}: writing {capture.out}")
    result = capture.result
    if companion is None:
        return result
    eager = capture_decode(
        companion, steps, warmup=warmup, variant=f"{variant} (eager companion)", concurrency=concurrency,
        out=companion_out or companion_path(result.trace), baseline=baseline, progress=progress,
        details=details | {"launch": "eager", "notes": [f"The eager form of {capture.out.name}."]}, **options,
    )  # fmt: skip
    # Named only once it is there: a companion that could not be captured is not spoken of.
    manifest = replace(
        result.manifest, companion=Path(os.path.relpath(eager.trace, result.trace.parent)).as_posix()
    )
    write_manifest(result.trace, manifest)
    return replace(result, manifest=manifest, companion=eager)
