"""The sweep of the bundled step: steps timed at each C on the CPU, what does not fit, what is interrupted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from hta_dsv4.analysis.sweep_plan import SweepStoppedError  # noqa: E402
from hta_dsv4.analysis.throughput import throughput  # noqa: E402
from hta_dsv4.capture import sweep as step_sweep  # noqa: E402
from hta_dsv4.capture.sweep import StepSweep, run_step_sweep  # noqa: E402
from hta_dsv4.errors import HtaDsv4Error  # noqa: E402
from tests.conftest import cli  # noqa: E402

torch.set_num_threads(1)
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")

TINY = StepSweep(
    variant="split_k", config="tiny", context=64, max_context=128, concurrency=(1, 2), repeats=2, steps=1, warmup=0,
    device="cpu",
)  # fmt: skip


def test_steps_of_the_tiny_model_are_timed_at_each_c() -> None:
    """C = 1 and 2, two repeats of two steps -> four repeats up and down, their steps kept, warm-up not among them."""
    sweep = run_step_sweep(replace(TINY, steps=2, warmup=1))
    assert [(r.repeat, r.concurrency) for r in sweep.repeats] == [(1, 1), (1, 2), (2, 2), (2, 1)]
    for r in sweep.repeats:
        assert len(r.step_ns) == 2
        assert r.window_ns == sum(r.step_ns)
        assert r.tokens_per_s == pytest.approx(r.concurrency * 2 * 1e9 / r.window_ns)
    assert sweep.about["config"] == "tiny"
    assert sweep.about["device"] == "cpu"
    assert "attention=reference" in str(sweep.about["switches"])
    found = throughput(sweep)
    assert found.levels[0].tpot is not None
    assert found.levels[0].tpot.n == 4


def test_warm_up_and_timed_steps_are_the_ones_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two warm-up steps, three timed -> five calls a repeat, the caches built afresh for each, weights once."""
    built = []
    calls = []
    real = step_sweep.build_step

    def build(options, weights=None):  # type: ignore[no-untyped-def]
        step = real(options, weights=weights)
        built.append((options.concurrency, weights is not None))
        forward = type(step).__call__

        class Counted(type(step)):  # type: ignore[misc]
            def __call__(self) -> torch.Tensor:
                calls.append(self.shape.batch)
                return forward(self)

        step.__class__ = Counted
        return step

    monkeypatch.setattr(step_sweep, "build_step", build)
    run_step_sweep(replace(TINY, warmup=2, steps=3, repeats=1))
    assert built == [(1, False), (2, True)]
    assert calls == [1] * 5 + [2] * 5


def test_memory_that_runs_out_at_one_c_is_said_and_the_others_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory at C=2 -> no figure there with the reason, in every repeat without trying again; C=1 and 3 measured."""
    tried = []
    real = step_sweep.build_step

    def build(options, weights=None):  # type: ignore[no-untyped-def]
        tried.append(options.concurrency)
        if options.concurrency == 2:
            raise HtaDsv4Error("split_k: out of memory (...); lower --max-context")
        return real(options, weights=weights)

    monkeypatch.setattr(step_sweep, "build_step", build)
    found = throughput(run_step_sweep(replace(TINY, concurrency=(1, 2, 3))))
    assert tried == [1, 2, 3, 3, 1]
    assert [v.tokens_per_s is None for v in found.levels] == [False, True, False]
    assert any("C=2, repeat 2 counts in no figure: out of memory" in n for n in found.notes)
    assert found.line is not None
    assert found.line.values == (1, 3)


def test_interrupt_keeps_the_repeats_that_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the third repeat -> two are kept, and it is said; in the first -> nothing to keep."""
    done = []
    real = step_sweep.build_step

    def build(options, weights=None):  # type: ignore[no-untyped-def]
        if len(done) == stop:
            raise KeyboardInterrupt
        done.append(options.concurrency)
        return real(options, weights=weights)

    monkeypatch.setattr(step_sweep, "build_step", build)
    stop = 2
    with pytest.raises(SweepStoppedError) as stopped:
        run_step_sweep(TINY)
    assert len(stopped.value.sweep.repeats) == 2
    assert "stopped after 2 of 4 measurements: interrupted" in stopped.value.sweep.notes
    stop, done[:] = 0, []
    with pytest.raises(KeyboardInterrupt):
        run_step_sweep(TINY)


def test_the_command_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweep --variant with --device cpu -> a table and a record; nothing else is written."""
    monkeypatch.chdir(tmp_path)
    done = cli(
        "sweep", "--variant", "split_k", "--config", "tiny", "--device", "cpu", "--context", "64",
        "--max-context", "128",
        "-c", "1,2", "--repeats", "1", "--steps", "2", "--warmup", "1", "--label", "tiny", "--out", "r.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "tiny: throughput over concurrency (workload)" in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--variant", "no_such"), "not one of original, mma"),
        (("--variant", "split_k", "--config", "huge"), "no such model"),
        (("--variant", "split_k", "--switch", "mhc"), "write it as NAME=CHOICE"),
        (("--variant", "split_k", "-c", "1,x"), "whole number of at least 1"),
        (("--variant", "split_k", "--device", "tpu"), "choose cuda or cpu"),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], said: str) -> None:
    """A wrong variant, model, switch, C or device -> exit 2, the remedy in the last line."""
    done = cli("sweep", *words)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]


@needs_no_gpu
def test_without_a_gpu() -> None:
    """No GPU -> exit 2, saying so and where captures are."""
    done = cli("sweep", "--variant", "split_k")
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr


@pytest.mark.parametrize("size", ["2", "many"])
def test_under_torchrun(monkeypatch: pytest.MonkeyPatch, size: str) -> None:
    """WORLD_SIZE of 2, or nonsense -> refused: every process would measure for itself."""
    monkeypatch.setenv("WORLD_SIZE", size)
    assert "without torchrun" in cli("sweep", "--variant", "split_k").stderr
