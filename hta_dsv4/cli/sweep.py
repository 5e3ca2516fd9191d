"""``hta-dsv4 sweep``: throughput over concurrency, of a live server, of the bundled step, or of what was measured."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from hta_dsv4.analysis.sweep_plan import SweepStoppedError, levels_of
from hta_dsv4.analysis.throughput import Throughput, throughput
from hta_dsv4.cli.capture import switches_of
from hta_dsv4.cli.files import write_whole
from hta_dsv4.cli.options import AsCsv, AsJson, AsMd, AsParquet, Full, form, write
from hta_dsv4.cli.serving import ApiKey, tell
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present import machine
from hta_dsv4.present.throughput_grid import throughput_grids
from hta_dsv4.present.throughput_json import sweep_body, sweep_rows
from hta_dsv4.runs.sweep_record import read_sweeps

Kept = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        metavar="[LABEL=]PATH",
        help="Measure nothing: a record of this command, a .csv of variant,concurrency,tokens_per_s, a trace with its "
        "manifest, or a folder of them. More may follow as arguments.",
    ),
]


_PAGES = (".html", ".htm")
_BOTH = ("concurrency", "repeats", "warmup")
_BELONGS = {
    "--server": (
        "server", "engine", "api_key", "model", "prompt_tokens", "output_tokens", "waves", *_BOTH,
    ),
    "--variant": (
        "variant", "switch", "config", "context_tokens", "max_context", "steps", "device", *_BOTH,
    ),
    "--from": ("kept", "more", "gpu_time"),
}  # fmt: skip
"""Which options mean something to which kind of sweep; those in none of them to all."""


def sweep(
    context: typer.Context,
    more: Annotated[
        list[str] | None, typer.Argument(metavar="[LABEL=]PATH", help="Further ones after --from.")
    ] = None,
    server: Annotated[
        str | None, typer.Option("--server", metavar="URL", help="A live SGLang or vLLM server.")
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option("--variant", help="The bundled step: original, mma, split_k, ... Needs a GPU."),
    ] = None,
    kept: Kept = None,
    concurrency: Annotated[
        str, typer.Option("--concurrency", "-c", metavar="C,C,...", help="Values of C, with commas.")
    ] = "1,4,16,32",
    repeats: Annotated[int, typer.Option("--repeats", help="Measurements at each C, kept apart.", min=1)] = 3,
    label: Annotated[str | None, typer.Option("--label", help="The variant's name in tables.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the record here, for --from.")
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--figure", metavar="FILE", help="Draw it: .html works offline; .svg, .png, .pdf with kaleido."
        ),
    ] = None,
    gpu_time: Annotated[
        bool, typer.Option("--gpu-time", help="Of captures: the step's GPU time (own), not its step time.")
    ] = False,
    prompt_tokens: Annotated[
        int, typer.Option("--prompt-tokens", help="--server: tokens of each prompt.", min=1)
    ] = 1024,
    output_tokens: Annotated[
        int, typer.Option("--output-tokens", help="--server: tokens decoded for each request.", min=2)
    ] = 256,
    waves: Annotated[
        int, typer.Option("--waves", help="--server: requests at each of the C places in a repeat.", min=1)
    ] = 1,
    engine: Annotated[str, typer.Option("--engine", help="--server: auto, sglang or vllm.")] = "auto",
    api_key: ApiKey = None,
    model: Annotated[
        str | None, typer.Option("--model", help="--server: which model, if it has several.")
    ] = None,
    switch: Annotated[
        list[str] | None,
        typer.Option(
            "--switch",
            metavar="NAME=CHOICE",
            help="--variant: one lever changed, e.g. mhc=fused; repeatable.",
        ),
    ] = None,
    config: Annotated[str, typer.Option("--config", help="--variant: flash, pro or tiny.")] = "flash",
    context_tokens: Annotated[
        int | None,
        typer.Option("--context", help="--variant: tokens each request has seen; 4096 (tiny: 600).", min=1),
    ] = None,
    max_context: Annotated[
        int | None,
        typer.Option("--max-context", help="--variant: static maximum context; 1M (tiny: 2048).", min=1),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", help="--variant: timed steps a repeat.", min=1)] = 10,
    warmup: Annotated[
        int | None,
        typer.Option(
            "--warmup",
            help="Dropped before each repeat's steps (3), or before a server's first repeat (1 wave).",
            min=0,
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="--variant: cuda; cpu for --config tiny.")] = "cuda",
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_md: AsMd = False,
    parquet: AsParquet = None,
    full: Full = False,
) -> None:
    """Throughput over concurrency: tok/s, time per token, time to the first, and what a request more costs.

    Step time is fitted as a + b*C and tested for being a line; 1/b is the ceiling. Intervals throughout; no profiler.

    Example: hta-dsv4 sweep --server http://localhost:30000 --concurrency 1,4,16,64 --label mma --out mma.json

    Example: hta-dsv4 sweep --from original.json mma.json split_k.json --figure sweep.html
    """
    chosen = form(as_json, as_csv, as_md, parquet)
    named = [*(kept or ()), *(more or ())]
    asked = [n for n, v in (("--server", server), ("--variant", variant), ("--from", kept)) if v]
    if len(asked) != 1 or (more and not kept):
        raise HtaDsv4Error(
            f"sweep: {' and '.join(asked) + ' given' if asked else 'nothing to measure'}; give one of --server URL, "
            "--variant NAME, --from FILE..."
        )
    _refuse_foreign(context, asked[0])
    if variant and os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
        raise HtaDsv4Error("sweep --variant runs on one GPU; start it without torchrun (WORLD_SIZE is set)")
    for path, option in ((out, "--out"), (figure, "--figure")):
        if path is not None:
            _target(path, option)
    if figure is not None:
        _drawable(figure)
    stopped: BaseException | None = None
    try:
        if kept:
            sweeps = read_sweeps(named, gpu_time)
            if label is not None and len(sweeps) > 1:
                raise HtaDsv4Error("--label: several variants; name each as LABEL=PATH")
            sweeps = [replace(s, label=label or s.label) for s in sweeps]
        elif server is not None:
            from hta_dsv4.serving.sweep import ServerSweep, run_server_sweep

            of_server = ServerSweep(
                url=server, key=api_key or None, label=label, model=model, engine=engine,
                concurrency=levels_of(concurrency), repeats=repeats, prompt_tokens=prompt_tokens,
                output_tokens=output_tokens, waves=waves, warmup=1 if warmup is None else warmup,
            )  # fmt: skip
            sweeps = [run_server_sweep(of_server, tell)]
        else:
            from hta_dsv4.capture.sweep import StepSweep, run_step_sweep

            usual = (600, 2048) if config == "tiny" else (4096, 1 << 20)
            of_step = StepSweep(
                variant=variant or "", label=label, switches=switches_of(switch or []), config=config,
                context=context_tokens or usual[0], max_context=max_context or usual[1],
                concurrency=levels_of(concurrency), repeats=repeats, steps=steps,
                warmup=3 if warmup is None else warmup, device=device,
            )  # fmt: skip
            sweeps = [run_step_sweep(of_step, tell)]
    except ModuleNotFoundError as error:
        extra = "server" if server is not None else "capture"
        raise HtaDsv4Error(
            f"sweep needs {error.name}, which is not installed: pip install 'hta-dsv4[{extra}]'; without it, look at "
            "what was measured: hta-dsv4 sweep --from split_k split_k_c1 split_k_c16 split_k_c64"
        ) from error
    except SweepStoppedError as error:
        sweeps, stopped = [error.sweep], error.cause
    found = [throughput(s) for s in sweeps]
    if out is not None:
        write_whole(out, (machine.dumps("sweep", sweep_body(found)) + "\n").encode(), "--out")
        tell(f"wrote {out}")
    write(
        chosen,
        lambda: machine.dumps("sweep", sweep_body(found)),
        lambda: sweep_rows(found),
        lambda: throughput_grids(found),
        full,
    )
    if figure is not None:  # last: a browser that does not draw takes no measurement away
        _draw(figure, found)
        tell(f"wrote {figure}")
    if stopped is not None:
        raise stopped


def _refuse_foreign(context: typer.Context, kind: str) -> None:
    """An option that this kind of sweep would ignore is a mistake, not silence.

    Raises:
        HtaDsv4Error: naming it, and what it goes with.
    """
    for parameter in context.command.params:
        name = parameter.name or ""
        goes = [k for k, names in _BELONGS.items() if name in names]
        source = context.get_parameter_source(name)
        if goes and kind not in goes and source is not None and source.name == "COMMANDLINE":
            raise HtaDsv4Error(
                f"{parameter.opts[0]}: means nothing to sweep {kind}; it goes with {' or '.join(goes)}"
            )


def _target(path: Path, option: str) -> None:
    """Looked at before anything is measured, as measuring takes long.

    Raises:
        HtaDsv4Error: a folder, or in no folder.
    """
    if path.is_dir():
        raise HtaDsv4Error(f"{path}: this is a folder; name a file in it with {option}")
    if not path.parent.is_dir():
        raise HtaDsv4Error(f"{path}: there is no folder {path.parent}; make it, or name another file")


def _drawable(path: Path) -> None:
    """Whether a figure of this name can be drawn, asked before anything is measured.

    Raises:
        HtaDsv4Error: another form, or an image without kaleido.
    """
    if path.suffix.lower() in _PAGES:
        return
    from hta_dsv4.present.throughput_page import IMAGES

    form = path.suffix.lower().lstrip(".")
    if form not in IMAGES:
        raise HtaDsv4Error(f"--figure {path} is no form of a figure; name it .html, .svg, .png or .pdf")
    if find_spec("kaleido") is None:
        raise HtaDsv4Error(
            f"--figure {path}: images need pip install 'hta-dsv4[notebook]' (kaleido) and Chromium; .html needs nothing"
        )


def _draw(path: Path, found: list[Throughput]) -> None:
    """The figure as a page with the tables, or as an image."""
    from hta_dsv4.present.throughput_page import (
        figure_image,
        throughput_page,
    )  # Plotly takes a second to import

    if path.suffix.lower() in _PAGES:
        content = throughput_page(found).encode()
    else:
        content = figure_image(found, path.suffix.lower().lstrip("."))
    write_whole(path, content, "--figure")
