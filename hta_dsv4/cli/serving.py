"""``hta-dsv4 capture --server URL``: decode steps of a live SGLang or vLLM server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hta_dsv4.cli.options import form, write
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present import machine
from hta_dsv4.present.shares_grid import shares_grid
from hta_dsv4.present.text import printable
from hta_dsv4.runs.loading import load

if TYPE_CHECKING:
    from hta_dsv4.serving.session import ServerCaptured

ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server", metavar="URL", help="A live SGLang or vLLM server, e.g. http://localhost:8000, instead."
    ),
]
EngineOption = Annotated[str, typer.Option("--engine", help="With --server: auto, sglang or vllm.")]
Model = Annotated[
    str | None, typer.Option("--model", help="With --server: which model, where it serves several.")
]
PromptTokens = Annotated[
    int, typer.Option("--prompt-tokens", help="With --server: tokens of each random prompt.", min=1)
]
OutputTokens = Annotated[
    int | None,
    typer.Option(
        "--output-tokens",
        help="With --server: tokens of each output; up to 2048 as the model's length allows.",
        min=1,
    ),
]
TraceDir = Annotated[
    Path | None,
    typer.Option(
        "--trace-dir",
        help="With --server: the folder the server writes traces to, on its disk or a shared one.",
    ),
]
Label = Annotated[
    str | None, typer.Option("--label", help="With --server: name of the variant; the engine's by default.")
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        envvar="HTA_DSV4_API_KEY",
        help="With --server: its key; better by the variable, where ps does not show it.",
        show_default=False,
    ),
]

# Which options of the bundled step mean nothing to a server, and what to do instead.
_BUNDLED = {
    "variant": "name the variant by --label",
    "switch": "switches are of the bundled step; start the server with what you want to compare",
    "config": "the server's model is captured",
    "context": "say --prompt-tokens",
    "max_context": "the server sets it when it starts",
    "device": "the server's devices are captured",
    "straggler": "it is planted into the bundled step, under torchrun",
}
_SERVERS = ("engine", "model", "prompt_tokens", "output_tokens", "trace_dir", "label")


@dataclass(frozen=True, slots=True)
class ServerWords:
    """The command line's words for a capture from a server, as given."""

    server: str
    engine: str
    model: str | None
    concurrency: int | None
    prompt_tokens: int
    output_tokens: int | None
    steps: int | None
    warmup: int
    baseline: int | None
    trace_dir: Path | None
    label: str | None
    out: Path | None
    with_stack: bool
    api_key: str | None


def refuse_mixed(context: typer.Context, server: str | None) -> None:
    """Refuse options of the other kind of capture.

    Raises:
        HtaDsv4Error: one was given that means nothing here.
    """
    given = {
        n for n in context.params if getattr(context.get_parameter_source(n), "name", "") == "COMMANDLINE"
    }
    if server is None:
        for name in _SERVERS:
            if name in given:
                raise HtaDsv4Error(
                    f"--{name.replace('_', '-')} goes with --server; without it the bundled step is captured"
                )
        return
    for name, remedy in _BUNDLED.items():
        if name in given:
            raise HtaDsv4Error(f"--{name.replace('_', '-')} means nothing with --server: {remedy}")


def capture_from_server(words: ServerWords, as_json: bool) -> None:
    """Capture, keep, check, print the share table.

    Args:
        words: what was asked for.
        as_json: the share table as JSON.

    Raises:
        HtaDsv4Error: nothing could be captured, or the steps are not what was asked for.
        KeyboardInterrupt: interrupted; what was whole is kept and named.
    """
    try:
        from hta_dsv4.serving.session import ServerCapture, capture_server
    except ModuleNotFoundError as error:
        raise HtaDsv4Error(
            f"capture --server needs {error.name}, which is not installed: pip install 'hta-dsv4[server]'"
        ) from error
    from hta_dsv4.serving.client import ServerUrl
    from hta_dsv4.serving.engines import AUTO, ENGINES

    if words.engine not in (AUTO, *ENGINES):
        raise HtaDsv4Error(f"--engine {words.engine}: choose one of {', '.join((AUTO, *ENGINES))}")
    if words.trace_dir is None:
        raise HtaDsv4Error(
            "--server wants --trace-dir: the folder the server writes its traces to (vLLM: torch_profiler_dir of its "
            "--profiler-config; SGLang: any folder that both machines see and the server can write)"
        )
    if words.with_stack and words.engine == "vllm":
        raise HtaDsv4Error("--with-stack: vLLM is told when it starts (torch_profiler_with_stack)")
    steps = 10 if words.steps is None else words.steps  # from 6 on a difference has an interval
    baseline = 50 if words.baseline is None else words.baseline
    for name, value, least in (
        ("--steps", steps, 1), ("--warmup", words.warmup, 0), ("--baseline", baseline, 1),
    ):  # fmt: skip
        if value < least:
            raise HtaDsv4Error(f"{name} {value}: must be at least {least}")
    options = ServerCapture(
        url=ServerUrl.parse(words.server, words.api_key),
        trace_dir=words.trace_dir,
        engine=words.engine,
        model=words.model,
        concurrency=words.concurrency or 32,
        prompt_tokens=words.prompt_tokens,
        output_tokens=words.output_tokens,
        steps=steps,
        warmup=words.warmup,
        baseline=baseline,
        label=words.label,
        out=words.out,
        with_stack=words.with_stack,
    )
    done = capture_server(options, tell)
    _report(done, as_json)


def tell(line: str) -> None:
    """Write what goes on to stderr; a server's words are in it: one line, which cannot drive the terminal."""
    print(printable(" ".join(line.split())), file=sys.stderr)


def _report(done: ServerCaptured, as_json: bool) -> None:
    for path in done.traces:
        tell(f"wrote {path}")
    for rank in done.found.ranks:
        if not rank.check.steps or rank.check.ok:
            tell(rank.check.sentence)
    for note in done.notes:
        tell(note)
    if done.interrupted:
        raise KeyboardInterrupt
    if any(len(r.trace.activities) for r in done.found.ranks):
        _print_shares(done.folder_or_file, done.label, as_json)
    elif done.problem is None:
        tell("a CPU-only trace, no GPU activity in it: nothing to share out; try hta-dsv4 info")
    if done.problem is not None:
        raise HtaDsv4Error(done.problem)


def _print_shares(path: Path, label: str, as_json: bool) -> None:
    shares = [load(path, label=label).shares("bucket")]
    document: Callable[[], str] = lambda: machine.dumps("shares", machine.shares_body(shares))  # noqa: E731
    write(
        form(as_json),
        document,
        lambda: machine.shares_rows(shares),
        lambda: [shares_grid(s) for s in shares],
        full=False,
    )
