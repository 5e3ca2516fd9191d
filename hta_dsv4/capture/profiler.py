"""Trace any decode step: a few unprofiled steps for the clock, a few profiled ones for the file.

Two forms. :func:`capture_decode` calls a function that decodes once. :class:`DecodeCapture` wraps a loop of the
user's own. Both time the step before the profiler starts, because a profiled step is slower and a share table of it
must be able to say by how much; both wait for the GPU after every step, so that no activity of one step is counted
in the next; both write the trace and its manifest whole or not at all.
"""

from __future__ import annotations

import statistics
import subprocess
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from hta_dsv4.capture.environment import device_facts, git_commit, query_driver, software_versions
from hta_dsv4.capture.manifest import TRACE_SUFFIX, Manifest, Timing, manifest_path, stem, write_manifest
from hta_dsv4.capture.scopes import profiler_on
from hta_dsv4.capture.tracefile import Slim, Summary, keep_trace
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.shipped import traces_dir

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
        out: file name of the trace (``.trace.json.gz`` is added where no suffix is given).
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
        details: further :class:`~hta_dsv4.capture.manifest.Manifest` fields (config, switches, notes, ...).

    Raises:
        HtaDsv4Error: no steps asked for, no GPU, another profiler running, ``out`` not writable, loop too short.
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
        if steps < 1:
            raise HtaDsv4Error(f"--steps {steps}: a trace needs at least one recorded step")
        if warmup < 0 or baseline < 1:
            raise HtaDsv4Error(f"--warmup {warmup}, baseline {baseline}: need at least 0 and 1 steps")
        if concurrency < 1:
            raise HtaDsv4Error(f"--concurrency {concurrency}: need at least one request")
        self.cuda = torch.cuda.is_available()
        if require_cuda and not self.cuda:
            raise HtaDsv4Error(no_cuda_message())
        if profiler_on():
            raise HtaDsv4Error(
                "a torch profiler is already running in this process: stop it before capturing"
            )
        out = Path(out)
        self.out = out if out.suffix in (".json", ".gz") else out.with_name(out.name + TRACE_SUFFIX)
        _check_writable(self.out)
        self.variant, self.concurrency = variant, concurrency
        self.steps, self.warmup, self.baseline = steps, warmup, baseline
        self.slim, self.details = slim, dict(details or {})
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.cuda else [])
        self._raw = self.out.with_name(f".{self.out.name}.{id(self):x}.raw.json")
        self._profile = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=_PROFILER_WARMUP, active=steps, repeat=1),
            on_trace_ready=self._export,
            record_shapes=record_shapes,
            with_stack=with_stack,
        )
        self._running = False
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
        self._wait()
        self._start_clock()
        return self

    def step(self) -> None:
        """Mark the end of a decode step."""
        if self.done:
            return
        self._count += 1
        timed_until = self.warmup + self.baseline
        elapsed = self._stop_clock()
        if self.warmup < self._count <= timed_until:
            self._unprofiled.append(elapsed)
            if self.cuda and self._count == self.warmup + (self.baseline + 1) // 2:
                self._driver = query_driver()
        elif self._count > timed_until + _PROFILER_WARMUP:
            self._profiled.append(elapsed)
        if self._count == timed_until:
            self._running = True
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore"
                )  # "clears events at the end of each cycle": one cycle is all we want
                self._profile.start()
        elif self._count > timed_until:
            self._profile.step()
        self._start_clock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._running:
                self._running = False
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
            self._raw.unlink(missing_ok=True)
            if self._driver is not None and self._driver.poll() is None:
                self._driver.kill()

    def _wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def _start_clock(self) -> None:
        if self.cuda:
            self._begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._begin.record()
        self._began = time.perf_counter()

    def _stop_clock(self) -> float:
        """Milliseconds since the clock was started: by CUDA events while unprofiled, else by the host's clock."""
        if self.cuda and self._count <= self.warmup + self.baseline:
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end.record()
            self._wait()
            return float(self._begin.elapsed_time(end))
        self._wait()
        return (time.perf_counter() - self._began) * 1e3

    def _export(self, finished: profile) -> None:
        try:
            finished.export_chrome_trace(str(self._raw))
        except (OSError, RuntimeError) as error:
            raise HtaDsv4Error(
                f"{self.out}: the profiler could not write its file ({error}); free disk space"
            ) from error

    def _finish(self) -> None:
        summary = keep_trace(self._raw, self.out, slim=self.slim)
        if self.cuda and summary.activities == 0:
            self.out.unlink(missing_ok=True)
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
            tokens_per_s=round(self.concurrency / unprofiled * 1e3, 2),
            activity_ms=round(summary.activity_ns / self.steps / 1e6, 6),
            activities=round(summary.activities / self.steps, 2),
            launches=round(summary.launches / self.steps, 2),
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
        try:
            path = write_manifest(self.out, manifest)
        except HtaDsv4Error:
            self.out.unlink(missing_ok=True)  # a trace whose conditions nobody knows is not left behind
            raise
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
        details=details | ({"companion": _companion_path(Path(out)).name} if companion else {}), **options,
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
        out=_companion_path(Path(out)), baseline=baseline, progress=progress,
        details=details | {"launch": "eager", "notes": [f"The eager form of {capture.out.name}."]}, **options,
    )  # fmt: skip
    return replace(result, companion=eager)


def no_cuda_message() -> str:
    """One line for a machine without a GPU, naming the traces that need none."""
    try:
        where = f"; traces captured on an H200 are in {traces_dir()}"
    except HtaDsv4Error:  # an installation without them
        where = ""
    return f"no CUDA device here, so there is nothing to trace{where}"


def _companion_path(out: Path) -> Path:
    return out.with_name(f"{stem(out)}_eager{TRACE_SUFFIX}")


def _check_writable(out: Path) -> None:
    """Fail before the GPU works, not after.

    Raises:
        HtaDsv4Error: ``out`` is a folder, or its folder cannot be made or written.
    """
    if out.is_dir():
        raise HtaDsv4Error(f"{out}: is a folder; --out names a file here")
    probe = manifest_path(out).with_name(f".{out.name}.probe")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise HtaDsv4Error(
            f"{out}: cannot write there ({error.strerror or error}); choose another --out"
        ) from error
