"""Scopes, launch modes, the capture command and the campaign."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hta_dsv4.capture import campaign, command  # noqa: E402
from hta_dsv4.capture.command import CaptureOptions, build_step, run_capture  # noqa: E402
from hta_dsv4.capture.config import TINY, LayerKind, StepShape  # noqa: E402
from hta_dsv4.capture.launch import CompileReport, as_compiled, as_cuda_graph  # noqa: E402
from hta_dsv4.capture.scopes import scope  # noqa: E402
from hta_dsv4.capture.switches import VARIANTS, Switches  # noqa: E402
from hta_dsv4.capture.workload import DecodeStep  # noqa: E402
from hta_dsv4.errors import HtaDsv4Error  # noqa: E402

torch.set_num_threads(1)
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")


def decode() -> None:
    """Stands for a user's decode step."""
    with scope("layer.0/attention/core"):
        torch.ones(8, 8) @ torch.ones(8, 8)


def events_of(trace: Path) -> list[dict[str, Any]]:
    """Events of a kept trace."""
    with gzip.open(trace, "rt", encoding="utf-8") as f:
        events: list[dict[str, Any]] = json.load(f)["traceEvents"]
    return events


# --- scopes and launch modes ------------------------------------------------------------------------------------


def test_scopes_cost_nothing_without_a_profiler() -> None:
    """No profiler -> the same do-nothing object each time; under one -> a range of that name."""
    assert scope("a") is scope("b")
    with torch.profiler.profile() as p:
        assert scope("a") is not scope("b")
        decode()
    assert "layer.0/attention/core" in {e.name for e in p.events()}


@needs_no_gpu
def test_cuda_graph_without_a_gpu() -> None:
    """launch=cuda_graph on a CPU -> one line with the remedy."""
    with pytest.raises(HtaDsv4Error, match="launch=eager"):
        as_cuda_graph(decode)


def test_compile_reports_where_the_graph_breaks() -> None:
    """A step that prints between two parts -> compiled around it, and the report says where and how often."""

    def step() -> torch.Tensor:
        y = torch.ones(4) * 2
        torch._dynamo.graph_break("a reason of ours")
        return y + 1

    compiled, report = as_compiled(step, backend="eager")
    assert torch.equal(compiled(), torch.full((4,), 3.0))
    assert report.graphs == 2
    assert len(report.breaks) == 1
    assert "2 graphs" in report.lines[0]
    assert "a reason of ours" in report.lines[1]
    assert "\n" not in "".join(report.lines)


@pytest.mark.filterwarnings("ignore:Dynamo does not know:UserWarning")  # the report is where breaks are told
def test_whole_tiny_step_compiles_to_the_same_numbers() -> None:
    """The tiny step through torch.compile's tracer -> the eager step's logits, and a report of its graphs."""
    cpu = Switches(attention="reference", moe="torch", gemm="bf16", glue="torch")
    shape = StepShape(2, 300, 512)
    small = replace(TINY, layers=(LayerKind.C4,), experts=4, experts_per_token=2, sinkhorn_iters=2)
    eager, traced = (DecodeStep(small, shape, cpu, "cpu") for _ in range(2))
    compiled, report = as_compiled(traced, backend="eager")
    eager()
    assert eager.logits is not None
    assert traced.logits is not None
    torch.testing.assert_close(traced.logits, eager.logits, atol=1e-2, rtol=1e-2)
    compiled()
    assert isinstance(report, CompileReport)
    assert report.graphs >= 1
    assert report.operators > 100


def test_layers_of_one_kind_share_compiled_code() -> None:
    """Three kinds of layer, each twice and more -> the graphs of one of each, and no address among the breaks."""

    def report(*layers: LayerKind) -> CompileReport:
        form = Switches(attention="reference", moe="torch", gemm="bf16", glue="torch", launch="compile")
        small = replace(TINY, layers=layers, experts=4, experts_per_token=2, sinkhorn_iters=2, hash_layers=0)
        return as_compiled(DecodeStep(small, StepShape(2, 300, 512), form, "cpu"), backend="eager")[1]

    one, more = report(*LayerKind), report(*LayerKind, *LayerKind, LayerKind.C4)
    assert one.breaks
    assert (more.graphs, more.operators) == (one.graphs, one.operators)
    assert " at 0x" not in "".join(more.lines)


# --- command and campaign ---------------------------------------------------------------------------------------


def test_command_on_the_cpu(tmp_path: Path) -> None:
    """run_capture of the tiny model on the CPU -> every part's scope in the trace, switches in the manifest."""
    options = CaptureOptions(
        variant="mma", concurrency=2, config="tiny", context=300, max_context=512, steps=1, warmup=1, baseline=1,
        out=tmp_path, device="cpu",
    )  # fmt: skip
    said: list[str] = []
    result = run_capture(options, said.append)
    assert result.trace == tmp_path / "mma_c2.trace.json.gz"
    assert result.manifest.switches["attention"] == "reference"  # what ran, not what was wished for
    assert result.manifest.workload["layers"] == 5
    names = [str(e.get("name")) for e in events_of(result.trace) if e.get("cat") == "user_annotation"]
    assert names.count("layer.2/indexer/logits") == 1
    assert sum(n.endswith("/indexer/logits") for n in names) == 2
    assert sum("/mhc_pre/" in n for n in names) == 10
    assert sum(n.endswith("/attention/core") for n in names) == 5
    assert sum(n.endswith("/moe/experts") for n in names) == 5
    assert any("building tiny" in line for line in said)


@pytest.mark.parametrize("device", ["cuda:1", "meta", "tpu"])
def test_device_that_is_none(device: str) -> None:
    """--device of another kind -> one line with the choices and the remedy."""
    with pytest.raises(HtaDsv4Error, match=f"--device {device}: choose cuda or cpu"):
        run_capture(CaptureOptions(config="tiny", device=device))


def test_options_are_checked_before_the_model_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bad steps, --out or launch mode -> the error comes before weights are drawn."""
    monkeypatch.setattr(command, "DecodeStep", lambda *_args, **_kw: pytest.fail("must not be built"))
    small = CaptureOptions(config="tiny", device="cpu", context=64, max_context=256, out=tmp_path)
    bad = [replace(small, steps=0), replace(small, out=Path("/dev/full"))]
    if not torch.cuda.is_available():
        bad.append(replace(small, switches={"launch": "cuda_graph"}))
    for options in bad:
        with pytest.raises(HtaDsv4Error):
            build_step(options)


def test_label_of_a_file_of_its_own(tmp_path: Path) -> None:
    """A label with a slash -> still one file in the folder named; letters of any script stay."""
    assert (
        CaptureOptions(variant="my/own é", out=tmp_path).trace_path == tmp_path / "my_own_é_c32.trace.json.gz"
    )


def test_campaign_plan_covers_the_published_one() -> None:
    """The plan -> all named variants at C=32, three further concurrencies, three maximum contexts; unique names."""
    names = [row.name for row in campaign.PLAN]
    assert len(set(names)) == len(names)
    assert {row.variant for row in campaign.PLAN if row.concurrency == 32} == set(VARIANTS)
    split_k = [row for row in campaign.PLAN if row.variant == "split_k"]
    assert {r.concurrency for r in split_k} == {1, 16, 32, 64}
    assert {r.max_context for r in split_k if r.concurrency == 32} == {8192, 65536, 1 << 20}
    assert all(2 <= row.steps <= 10 for row in campaign.PLAN)


@needs_no_gpu
def test_campaign_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No GPU, or an unknown row -> exit code 2 and one line."""
    assert campaign.main(["--out", str(tmp_path / "t")]) == 2
    assert list(tmp_path.iterdir()) == []
    assert "no CUDA device" in capsys.readouterr().err
    assert campaign.main(["--out", str(tmp_path), "--only", "nothing"]) == 2
    assert "original" in capsys.readouterr().err
