"""``hta-dsv4 capture``: record the bundled decode step; the only command that needs torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hta_dsv4.cli.exit import say
from hta_dsv4.cli.options import Output, form, write
from hta_dsv4.cli.serving import (
    ApiKey,
    EngineOption,
    Label,
    Model,
    OutputTokens,
    PromptTokens,
    ServerOption,
    ServerWords,
    TraceDir,
    capture_from_server,
    refuse_mixed,
)
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present import machine
from hta_dsv4.present.shares_grid import shares_grid
from hta_dsv4.runs.loading import load
from hta_dsv4.shipped import traces


def capture(
    context_: typer.Context,
    variant: Annotated[
        str, typer.Option("--variant", help="original, mma, split_k, bf16_gemm, indexer_triton, ...")
    ] = "split_k",
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-c", help="Requests decoded together; 32 (tiny: 2).", min=1),
    ] = None,
    switch: Annotated[
        list[str] | None,
        typer.Option(
            "--switch", metavar="NAME=CHOICE", help="One lever changed, e.g. mhc=fused; repeatable."
        ),
    ] = None,
    config: Annotated[str, typer.Option("--config", help="flash, pro or tiny.")] = "flash",
    context: Annotated[
        int | None, typer.Option("--context", help="Tokens each request has seen; 4096 (tiny: 600).", min=1)
    ] = None,
    max_context: Annotated[
        int | None,
        typer.Option(
            "--max-context", help="Static maximum context: the padded widths; 1M (tiny: 2048).", min=1
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Decode steps to record; 5 (--server: 10).")
    ] = None,
    warmup: Annotated[int, typer.Option("--warmup", help="Steps run before anything is measured.")] = 3,
    baseline: Annotated[
        int | None,
        typer.Option(
            "--baseline", help="Unprofiled steps timed first: what the profiler adds; 10 (--server: 50)."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Trace file, or a folder; by default here.")
    ] = None,
    with_stack: Annotated[bool, typer.Option("--with-stack", help="Record Python stacks (large).")] = False,
    device: Annotated[
        str, typer.Option("--device", help="cuda; cpu records the host side of --config tiny.")
    ] = "cuda",
    straggler: Annotated[
        str | None,
        typer.Option(
            "--straggler",
            metavar="RANK:LAYER:MICROSECONDS",
            help="Under torchrun: extra work of one rank before the all-reduce after a layer's attention.",
        ),
    ] = None,
    server: ServerOption = None,
    engine: EngineOption = "auto",
    model: Model = None,
    prompt_tokens: PromptTokens = 1024,
    output_tokens: OutputTokens = None,
    trace_dir: TraceDir = None,
    label: Label = None,
    api_key: ApiKey = None,
    as_json: Annotated[bool, typer.Option("--json", help="The share table as JSON.")] = False,
) -> None:
    """Record a decode trace of the bundled DeepSeek-V4 step, or of a live server, and print its share table.

    The bundled step needs a GPU and the extra: pip install 'hta-dsv4[capture]'. With --server, decode steps at the
    asked concurrency are recorded by the server's own profiler: pip install 'hta-dsv4[server]'.

    Tensor parallelism over N GPUs, one trace per rank: torchrun --nproc-per-node N -m hta_dsv4 capture ...

    Example: hta-dsv4 capture --variant split_k --concurrency 32

    Example: hta-dsv4 capture --server http://localhost:8000 --concurrency 32 --trace-dir /tmp/traces
    """
    refuse_mixed(context_, server)
    if server is not None:
        words = ServerWords(
            server, engine, model, concurrency, prompt_tokens, output_tokens, steps, warmup, baseline, trace_dir,
            label, out, with_stack, api_key,
        )  # fmt: skip
        capture_from_server(words, as_json)
        return
    try:
        from hta_dsv4.capture.command import CaptureOptions, run_capture, staging_folders
        from hta_dsv4.capture.one_voice import end_process, one_voice
        from hta_dsv4.capture.parallel import ranks_from_environment
        from hta_dsv4.capture.straggler import Straggler
    except ModuleNotFoundError as error:
        raise HtaDsv4Error(
            f"capture needs {error.name}, which is not installed: pip install 'hta-dsv4[capture]'; without a GPU, "
            f"look at a shipped trace: {', '.join(traces())}"
        ) from error
    ranks = ranks_from_environment()
    with one_voice(ranks, say) as voice:
        # The tiny model is for a CPU: a step at the real sizes would take minutes there.
        usual = (2, 600, 2048) if config == "tiny" else (32, 4096, 1 << 20)
        options = CaptureOptions(
            variant=variant,
            switches=switches_of(switch or []),
            concurrency=concurrency or usual[0],
            config=config,
            context=context or usual[1],
            max_context=max_context or usual[2],
            steps=5 if steps is None else steps,
            warmup=warmup,
            baseline=10 if baseline is None else baseline,
            out=out,
            with_stack=with_stack,
            device=device,
            ranks=ranks,
            straggler=None if straggler is None else Straggler.parse(straggler),
        )
        voice.litter = staging_folders(options)
        progress = (lambda line: print(line, file=sys.stderr)) if ranks.first else None
        result = run_capture(options, progress, voice.checked)
    if ranks.first:
        # what several ranks captured is one variant: their folder
        found = [
            part.trace if ranks.alone else part.trace.parent for part in (result, result.companion) if part
        ]
        for path in found:
            print(f"wrote {path}", file=sys.stderr)
        _print_shares(found[0], variant, device, form(as_json))
    if not ranks.alone:
        end_process(0)


def _print_shares(path: Path, variant: str, device: str, chosen: Output) -> None:
    if device != "cuda":
        print("a CPU capture has no GPU activity: nothing to share out; try hta-dsv4 info", file=sys.stderr)
        return
    shares = [load(path, label=variant).shares("bucket")]
    write(
        chosen,
        lambda: machine.dumps("shares", machine.shares_body(shares)),
        lambda: machine.shares_rows(shares),
        lambda: [shares_grid(s) for s in shares],
        full=False,
    )


def switches_of(words: list[str]) -> dict[str, str]:
    """``NAME=CHOICE`` words as names and choices; HtaDsv4Error where one is written otherwise."""
    found = {}
    for word in words:
        name, equals, choice = word.partition("=")
        if not (name and equals and choice):
            raise HtaDsv4Error(f"--switch {word}: write it as NAME=CHOICE, e.g. mhc=fused")
        found[name] = choice
    return found
