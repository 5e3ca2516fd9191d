"""Whether tokens reach the client as they are made: vLLM's own decode times beside those of the streams."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hta_dsv4.analysis.throughput import throughput
from hta_dsv4.serving import sweep as server_sweep
from hta_dsv4.serving.engine_clock import DecodeTime, late, parse
from hta_dsv4.serving.sweep import repeat_of
from tests.serving.fake_server import serve
from tests.serving.test_server_sweep import MS, STEP, load_of, stream, swept

METRICS = b"""# HELP vllm:request_decode_time_seconds Histogram of time spent in DECODE phase for request.
# TYPE vllm:request_decode_time_seconds histogram
vllm:request_decode_time_seconds_bucket{engine="0",le="0.3",model_name="tiny"} 3.0
vllm:request_decode_time_seconds_count{engine="0",model_name="tiny"} 7.0
vllm:request_decode_time_seconds_sum{engine="0",model_name="tiny"} 2.5
vllm:request_decode_time_seconds_count{engine="1",model_name="tiny"} 3.0
vllm:request_decode_time_seconds_sum{engine="1",model_name="tiny"} 1.25e+00
"""
# Two requests of 100 tokens, 10 ms each: 990 ms from first to last.
LOAD = load_of(stream(0, 50 * MS, 100), stream(1, 50 * MS, 100))


def test_engines_figures_are_added_up() -> None:
    """Metrics of two engines -> their seconds and requests together; a page without the figure -> none."""
    assert parse(METRICS) == DecodeTime(3.75, 10)
    assert parse(b"# nothing\nvllm:num_requests_running 3\n") is None
    assert parse(METRICS.replace(b"2.5", b"2.5.5")) is None


@pytest.mark.parametrize(
    ("seconds", "requests", "said"),
    [
        (2 * 0.99, 2, ""),
        (2 * 1.05, 2, ""),  # within a tenth
        (2 * 30.0, 2, "the engine decoded for 30,000.0 ms a request, by its streams it was 990.0"),  # a rush
        (
            2 * 0.5,
            2,
            "the engine decoded for 500.0 ms a request, by its streams it was 990.0",
        ),  # the end came late
        (5 * 30.0, 5, ""),  # others' requests are in the figure: nothing can be said
    ],
)
def test_streams_are_held_to_the_engines_clock(seconds: float, requests: int, said: str) -> None:
    """The engine's own decode time of the same requests -> late where the two differ by more than a tenth."""
    found = late(LOAD, DecodeTime(100.0, 40), DecodeTime(100.0 + seconds, 40 + requests))
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_rush_after_silence_without_an_engines_clock() -> None:
    """All tokens within 10 ms after a second of silence -> late, unless 100,000 prompt tokens explain it."""
    rushed = load_of(*[stream(i, 1000 * MS, 100, step=MS // 10) for i in range(2)])
    assert late(rushed, None, None).startswith("outputs came within 9.9 ms after 1,000.0 ms of silence")
    long = replace(rushed, load=replace(rushed.load, prompt_tokens=60_000))
    assert late(long, None, None) == ""
    assert late(LOAD, None, None) == ""
    assert late(load_of(stream(0, 0, 50, error="answered 500")), None, None) == ""


def test_late_repeat_counts_in_no_figure() -> None:
    """A repeat whose tokens came late -> no throughput, the reason kept."""
    one = repeat_of(LOAD, 1, None, "tokens reach this client late")
    assert one.tokens_per_s is None
    assert one.unusable == "tokens reach this client late"
    assert repeat_of(LOAD, 1).mean_step_ns == pytest.approx(STEP)


def test_sweep_asks_the_engine_around_every_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that says its requests took an hour -> every repeat is late; that has no such figure -> all count."""
    asked: list[int] = []

    async def hours(_client: Any, engine: str, at_least: int = 0) -> DecodeTime:
        assert engine == "vllm"
        asked.append(at_least)
        return DecodeTime(3600.0 * at_least, at_least)

    with serve(tmp_path) as server:
        assert all(v.tokens_per_s for v in throughput(swept(server, repeats=1)).levels)
        monkeypatch.setattr(server_sweep, "decode_time", hours)
        found = throughput(swept(server, repeats=1))
    assert asked == [0, 1, 0, 4]
    assert [v.tokens_per_s for v in found.levels] == [None, None]
    assert any("the engine decoded for 3,600,000.0 ms a request" in n for n in found.notes)
