"""One capture from a live server, from its first question to the kept files.

Load, wait until all decode, time steps without the profiler, record, stop, take the load back: this part runs in one
event loop and leaves nothing behind on the server, however it ends. Then, with the server out of it, the files.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from hta_dsv4.capture.checks import check_place, trace_file
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.serving.baseline import Measured, baseline, scheduler_agrees, too_short
from hta_dsv4.serving.client import ServerError, ServerUrl, open_client
from hta_dsv4.serving.collect import FILES_S, Collected, check_folder, collect, problem, snapshot
from hta_dsv4.serving.engines import AUTO, Served, detect
from hta_dsv4.serving.interrupts import Interrupts, run_interruptibly
from hta_dsv4.serving.keep import Naming, keep, profiled_step_ms
from hta_dsv4.serving.load import Target, running
from hta_dsv4.serving.profilers import PROFILERS, STOP_S, Window, profiling
from hta_dsv4.serving.timing import Load

Say = Callable[[str], None]

READY_S = 600.0  # for all prompts to be read and every request to decode
WINDOW_S = 600.0  # for the recorded steps
DEFAULT_OUTPUT = (
    2048  # tokens; outlasts warm-up, timed steps, a slow start of the profiler, and the recording
)
_MARGIN = 3  # tokens beyond the recorded steps: engines answer a step or two late


@dataclass(frozen=True, slots=True)
class ServerCapture:
    """What is asked for.

    Attributes:
        url: the server.
        trace_dir: the folder it writes its traces to, as this machine sees it.
        engine: ``vllm``, ``sglang`` or ``auto``.
        model: which, where the server has several; the first by default.
        concurrency: C, requests decoded together.
        prompt_tokens: of each request.
        output_tokens: of each request; by default as many as the model's length allows, up to 2048.
        steps: decode steps to record; warmup: before the timed ones; baseline: timed without the profiler.
        label: of the variant; the engine's name by default.
        out: trace file or folder.
        with_stack: record Python stacks (SGLang).
        seed: of the prompts.
        ready_s: longest wait until all decode; window_s: for the steps; stop_s: for the stop's answer; files_s: for
            whole files; seconds.
    """

    url: ServerUrl
    trace_dir: Path
    engine: str = AUTO
    model: str | None = None
    concurrency: int = 32
    prompt_tokens: int = 1024
    output_tokens: int | None = None
    steps: int = 10
    warmup: int = 3
    baseline: int = 50
    label: str | None = None
    out: Path | None = None
    with_stack: bool = False
    seed: int = 0
    ready_s: float = READY_S
    window_s: float = WINDOW_S
    stop_s: float = STOP_S
    files_s: float = FILES_S


@dataclass(frozen=True, slots=True)
class ServerCaptured:
    """What came of it.

    Attributes:
        label: of the variant.
        traces: kept files, by rank.
        found: the server's traces, read.
        interrupted: Ctrl-C came before it was over; what was whole is kept.
        problem: why the capture is not what was asked for, one line; ``None`` where it is.
        notes: what a reader should know.
    """

    label: str
    traces: tuple[Path, ...]
    found: Collected
    interrupted: bool = False
    problem: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def folder_or_file(self) -> Path:
        """What to load: the trace, or the folder of ranks."""
        return self.traces[0] if self.found.world_size == 1 else self.traces[0].parent


@dataclass(slots=True)
class _Recorded:
    """How far the server's part came; filled in on the way, so that an interrupt leaves what is known."""

    prefix: str
    before: frozenset[str] = frozenset()
    served: Served | None = None
    load: Load | None = None
    measured: Measured | None = None
    recording: bool = False
    notes: tuple[str, ...] = ()
    interrupts: Interrupts = field(default_factory=Interrupts)

    @property
    def interrupted(self) -> bool:
        return self.interrupts.count > 0


def capture_server(options: ServerCapture, say: Say) -> ServerCaptured:
    """Capture decode steps from a live server.

    Args:
        options: what to capture.
        say: told what happens, one short line each.

    Returns:
        The files kept, also where the steps are not what was asked for (:attr:`ServerCaptured.problem`).

    Raises:
        HtaDsv4Error: anything that leaves no trace to keep, one line.
        KeyboardInterrupt: interrupted before anything was whole.
    """
    if options.label is not None and not (options.label.strip() and options.label.isprintable()):
        raise HtaDsv4Error(f"--label {options.label!r}: must be one printable line, and not empty")
    recorded = _Recorded(prefix=f"hta-{secrets.token_hex(4)}")
    ending = "the requests and the profiler"
    run_interruptibly(_record(options, recorded, say), recorded.interrupts, say, ending)
    if recorded.interrupts.count > 1 or (recorded.interrupted and not recorded.recording):
        raise KeyboardInterrupt  # left at once, or nothing was recorded
    try:
        return _keep(options, recorded, say)
    except HtaDsv4Error as error:
        if not recorded.interrupted:
            raise
        say(f"nothing is kept: {error}")
        raise KeyboardInterrupt from error


async def _record(options: ServerCapture, recorded: _Recorded, say: Say) -> None:
    """Everything the server takes part in."""
    async with open_client(options.url) as client:
        served = await detect(client, options.engine)
        if options.model is not None:
            served = replace(served, model=options.model)
        recorded.served = served
        check_place(options.out)
        trace_file(_naming(options, served).path)  # before the server works, not after
        recorded.notes += (served.note,) if served.note else ()
        say(f"{served.engine} {served.version or ''}".strip() + f" serves {served.model}")
        load = recorded.load = _load(options, served)
        check_folder(options.trace_dir, served.engine)
        profiler = PROFILERS[served.engine](client)
        await profiler.check()
        recorded.before = snapshot(options.trace_dir)
        # streams stall while the ranks write their traces
        target = Target(served.model, read_timeout_s=options.stop_s + 60)
        window = Window(recorded.prefix, options.steps, options.trace_dir, options.with_stack)
        async with running(client, target, load) as under_way:
            say(f"waiting until {load.concurrency} requests of {load.prompt_tokens} tokens decode")
            await under_way.all_decoding(options.ready_s)
            recorded.notes += await scheduler_agrees(client, served.engine, under_way, say)
            measured, notes = await baseline(under_way, options.warmup, options.baseline, options.window_s)
            recorded.notes += notes
            say(measured.said)
            say(f"recording {options.steps} steps")
            async with profiling(profiler, window, say, options.stop_s):
                recorded.recording = True
                had = under_way.tokens()
                decoded = sum(had.values()) / max(len(had), 1)
                recorded.measured = replace(measured, decoded=decoded)
                if not await under_way.decoded(had, options.steps + _MARGIN, options.window_s):
                    raise ServerError(too_short(under_way))
            if under_way.failures:
                raise ServerError(f"a request failed: {under_way.failures[0]}")


def _load(options: ServerCapture, served: Served) -> Load:
    """One wave of C requests, none replaced: a new one would be read while the others decode."""
    room = None if served.max_model_len is None else served.max_model_len - options.prompt_tokens
    output = options.output_tokens
    if output is None:
        output = DEFAULT_OUTPUT if room is None else min(DEFAULT_OUTPUT, room)
    if room is not None and room < 1:
        raise HtaDsv4Error(
            f"--prompt-tokens {options.prompt_tokens}: leaves no room for outputs in the {served.max_model_len} tokens "
            f"of {served.model}; give fewer"
        )
    if room is not None and output > room:
        raise HtaDsv4Error(
            f"--prompt-tokens {options.prompt_tokens} and --output-tokens {output} do not fit {served.model}, whose "
            f"length is {served.max_model_len} tokens"
        )
    least = options.warmup + options.baseline + options.steps + _MARGIN
    if output <= least:
        raise HtaDsv4Error(
            f"--output-tokens {output}: too short for {options.warmup} steps of warm-up, {options.baseline} timed and "
            f"{options.steps} recorded; give more than {least}, better twice that"
        )
    return Load(options.concurrency, options.prompt_tokens, output, options.concurrency, options.seed)


def _keep(options: ServerCapture, recorded: _Recorded, say: Say) -> ServerCaptured:
    """Everything the files take part in."""
    assert recorded.served is not None
    assert recorded.load is not None
    assert recorded.measured is not None
    found = collect(
        options.trace_dir, recorded.before, recorded.prefix, options.concurrency, options.files_s, say
    )
    if not found.ranks:
        name, why = next(iter(found.broken.items()))
        raise HtaDsv4Error(f"{why} (after {options.files_s:.0f} s; {name} never became a whole trace)")
    notes = (*recorded.notes, *found.notes)
    if recorded.interrupted:
        notes += ("interrupted while it was recorded: fewer steps than asked",)
    if any(r.check.speculative for r in found.ranks):
        notes += (
            "speculative decoding: a step gives more than a token, so a step takes longer than time per token",
        )
    naming = _naming(options, recorded.served)
    kept = keep(found, naming, recorded.served, recorded.load, recorded.measured, notes)
    slowed = profiled_step_ms(found.ranks[0].trace) / recorded.measured.plain_ms - 1
    if math.isfinite(slowed):
        say(f"a recorded step takes {100 * slowed:+.1f} % of that more: what the profiler adds")
    return ServerCaptured(
        naming.label, kept, found, recorded.interrupted, problem(found, options.trace_dir), notes
    )


def _naming(options: ServerCapture, served: Served) -> Naming:
    return Naming(options.label or served.engine, options.concurrency, options.out)
