"""The sweep of a live server: what counts as throughput, in which order, never more than C, and every failure."""

from __future__ import annotations

import itertools
import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from hta_dsv4.analysis.sweep import Sweep
from hta_dsv4.analysis.sweep_plan import SweepStoppedError
from hta_dsv4.analysis.throughput import throughput
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.serving.sweep import LEAST_STEPS, ServerSweep, repeat_of, run_server_sweep
from hta_dsv4.serving.timing import Load, LoadResult, RequestTiming
from tests.conftest import cli
from tests.serving.fake_server import FakeServer, serve

MS = 1_000_000
STEP = 10 * MS


def stream(
    index: int,
    first: int,
    steps: int,
    *,
    step: int = STEP,
    per_chunk: int = 1,
    told: bool = True,
    **changes: Any,
) -> RequestTiming:
    """A request that has its first token at ``first`` and one more each step, ``per_chunk`` of them to a chunk."""
    counts = [1, *range(1 + per_chunk, steps + 1, per_chunk)]
    if counts[-1] != steps:
        counts.append(steps)
    times = tuple(first + (n - 1) * step for n in counts)
    fields: dict[str, Any] = {
        "index": index, "t_submit_ns": 0, "chunk_ns": times, "chunk_tokens": tuple(n if told else None for n in counts),
        "t_end_ns": times[-1], "prompt_tokens": 16, "completion_tokens": steps, "finish_reason": "length",
    }  # fmt: skip
    return RequestTiming(**(fields | changes))


def load_of(*timings: RequestTiming, concurrency: int | None = None) -> LoadResult:
    c = concurrency or len(timings)
    return LoadResult(Load(c, 16, 100, len(timings)), timings, 0, max(t.t_end_ns for t in timings))


# --- what counts ----------------------------------------------------------------------------------------------


def test_ramp_and_drain_do_not_count() -> None:
    """Four requests that begin 20 steps apart -> the time from the last one's first token to the first one's last."""
    timings = [stream(i, 200 * MS * (i + 1), 100) for i in range(4)]
    one = repeat_of(load_of(*timings), 1)
    assert one.tokens_per_s == pytest.approx(4 / (STEP / 1e9))
    assert one.mean_step_ns == pytest.approx(STEP)
    assert one.window_ns == timings[0].chunk_ns[-1] - timings[3].chunk_ns[0]


def test_a_fast_ramp_is_left_out() -> None:
    """One request runs alone at 2 ms a token, then beside another at 10 -> 10 ms a step, not the mean of both."""
    alone = [(i + 1, 2 * MS * i) for i in range(50)]
    together = [(50 + i, 98 * MS + STEP * i) for i in range(1, 60)]
    counts, times = zip(*alone, *together, strict=True)
    first = stream(0, 0, 109, chunk_ns=times, chunk_tokens=counts, t_end_ns=times[-1])
    second = stream(1, 98 * MS + STEP, 59)
    one = repeat_of(load_of(first, second), 1)
    assert one.mean_step_ns == pytest.approx(STEP)
    assert one.requests[0].tpot_ns is not None
    assert one.requests[0].tpot_ns < STEP  # of the whole request, ramp and all, as TPOT is defined


def test_chunks_of_several_tokens_are_counted_by_usage() -> None:
    """Seven tokens to a chunk, at other moments in each stream -> the same step time: tokens count, not chunks."""
    timings = [stream(i, i * 3 * MS, 100, per_chunk=7) for i in range(4)]
    one = repeat_of(load_of(*timings), 1)
    assert one.mean_step_ns == pytest.approx(STEP)
    assert [q.tokens for q in one.requests] == [100] * 4
    assert [q.tpot_ns for q in one.requests] == [STEP] * 4
    assert [q.ttft_ns for q in one.requests] == [0, 3 * MS, 6 * MS, 9 * MS]


def test_usage_at_the_end_only_is_spread_over_the_chunks_and_said() -> None:
    """No counts with the chunks -> the right rate for even chunks, and a note."""
    notes: list[str] = []
    one = repeat_of(load_of(*[stream(i, 0, 100, told=False) for i in range(2)]), 1, notes)
    assert one.mean_step_ns == pytest.approx(STEP)
    assert "spread evenly over its chunks" in notes[0]


def test_waves_use_every_window() -> None:
    """Two waves with a gap between -> both windows, weighed by their length; the gap is not in it."""
    first = [stream(i, 0, 60) for i in range(2)]
    second = [stream(2 + i, 5000 * MS, 60, step=2 * STEP) for i in range(2)]
    one = repeat_of(load_of(*first, *second, concurrency=2), 1)
    assert one.window_ns == 59 * STEP + 59 * 2 * STEP
    assert one.tokens_per_s == pytest.approx((59 * 2 + 59 * 2) / (59 * 3 * STEP / 1e9))


@pytest.mark.parametrize(
    ("timings", "why"),
    [
        ([stream(0, 0, 50), stream(1, 0, 50, error="answered 500")], "1 of 2 requests failed, so the batch"),
        ([stream(0, 0, 50), stream(1, 600 * MS, 50)], "never decoded all at once"),
        ([stream(0, 0, 50), stream(1, 450 * MS, 50)], f"fewer than {LEAST_STEPS} tokens each"),
        ([stream(0, 0, 50), stream(1, 0, 50, completion_tokens=None)], "gives no usage"),
    ],
)  # fmt: skip
def test_what_is_no_full_batch_counts_in_no_figure(timings: list[RequestTiming], why: str) -> None:
    """A failed request, no moment together, a short one, no usage -> no throughput, the reason said."""
    one = repeat_of(load_of(*timings), 1)
    assert one.tokens_per_s is None
    assert one.window_ns == 0
    assert why in one.unusable


# --- against a server -----------------------------------------------------------------------------------------

QUICK: dict[str, Any] = {
    "concurrency": (1, 4), "repeats": 2, "prompt_tokens": 16, "output_tokens": 30, "label": "mine",
}  # fmt: skip


def swept(server: FakeServer, **changes: Any) -> Sweep:
    return run_server_sweep(ServerSweep(server.url, **(QUICK | changes)))


class Costly:
    """Makes each step of the fake engine longer by so much per request it runs."""

    def __init__(self, server: FakeServer, per_request_s: float) -> None:
        self.engine, self.real, self.cost = server.engine, server.engine.stopping, per_request_s
        self.engine.stopping = self  # type: ignore[assignment]

    def wait(self, seconds: float) -> bool:
        return self.real.wait(seconds + self.cost * len(self.engine.running))

    def set(self) -> None:
        self.real.set()


def test_sweep_of_a_server_finds_what_a_request_costs(tmp_path: Path) -> None:
    """4 ms a step and 3 ms a request more -> about that; never more than C at once; all prompts different."""
    with serve(tmp_path, step_s=0.004) as server:
        Costly(server, 0.003)
        found = throughput(swept(server, concurrency=(1, 4, 8)))
    assert server.most_streams == 8
    # each C: a dropped wave, then two repeats of one wave
    assert server.completions == 3 * (1 + 4 + 8)
    prompts = [tuple(b["prompt"]) for b in server.bodies]
    assert len(set(prompts)) == len(prompts)
    assert not server.calls  # the profiler is left alone
    assert [(v.repeats, v.requests, v.failed, v.tokens) for v in found.levels] == [
        (2, 2, 0, 60), (2, 8, 0, 240), (2, 16, 0, 480),
    ]  # fmt: skip
    assert found.line is not None
    # waits are never shorter than asked for; a busy machine makes them longer
    assert 1.5e6 < found.line.per_request_ns < 12e6
    for v in found.levels:
        assert v.step_ns is not None
        assert v.step_ns > 0.95 * (4e6 + 3e6 * v.concurrency)
        assert v.tpot is not None
        assert v.ttft is not None


def test_order_and_warm_up(tmp_path: Path) -> None:
    """Two rounds over C = 1 and 4 -> up, then down; a short wave before each value's first repeat, none after."""
    with serve(tmp_path) as server:
        sweep = swept(server, output_tokens=50)
    assert [(r.repeat, r.concurrency) for r in sweep.repeats] == [(1, 1), (1, 4), (2, 4), (2, 1)]
    runs = [(n, len(list(g))) for n, g in itertools.groupby(b["max_tokens"] for b in server.bodies)]
    assert runs == [(32, 1), (50, 1), (32, 4), (50, 4 + 4 + 1)]
    assert sweep.about["engine"] == "vllm"
    assert sweep.source == "server"


def test_server_that_runs_fewer_at_once(tmp_path: Path) -> None:
    """C=4 at a server that decodes 2 at once -> no throughput at 4, which option to look at; C=1 is not touched."""
    with serve(tmp_path, max_running=2) as server:
        found = throughput(swept(server, repeats=1))
    assert found.levels[0].tokens_per_s is not None
    assert found.levels[1].tokens_per_s is None
    assert any("--max-num-seqs" in n for n in found.notes)
    assert found.line is None


def test_one_failing_request_spoils_its_repeat_alone(tmp_path: Path) -> None:
    """The second request is refused -> its repeat is told and counts in no figure, the others stand."""
    with serve(tmp_path, faults="refuses a request") as server:
        found = throughput(swept(server, warmup=0))
    first = next(v for v in found.levels if v.concurrency == 4)
    assert (first.tried, first.repeats, first.failed) == (2, 1, 1)
    assert any("EngineCore encountered an issue" in n for n in found.notes)


def test_a_server_that_refuses_everything_refuses_the_sweep(tmp_path: Path) -> None:
    """Prompts longer than it admits, told by it or found out -> one line, before anything is measured."""
    with (
        serve(tmp_path, max_model_len=40) as server,
        pytest.raises(HtaDsv4Error, match="admits 40 tokens a request"),
    ):
        swept(server)
    assert not server.bodies
    with serve(tmp_path) as server:
        server.behaviour.max_model_len = 4096
        done = cli("sweep", "--server", server.url, "--prompt-tokens", "5000", "-c", "1")
    assert done.returncode == 2
    assert "add up to 5256" in done.stderr


def test_unreachable_server_is_one_line() -> None:
    """Nothing listens -> exit 2, one line that says so."""
    done = cli("sweep", "--server", "http://127.0.0.1:9", "-c", "1")
    assert done.returncode == 2
    assert "cannot reach the server" in done.stderr
    assert done.stderr.count("\n") == 1


def test_key_is_sent_and_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key by the environment -> the server answers; neither output nor record hold it."""
    monkeypatch.setenv("HTA_DSV4_API_KEY", "s3cr3t-key")
    record = tmp_path / "r.json"
    with serve(tmp_path, key="s3cr3t-key") as server:
        done = cli(
            "sweep", "--server", server.url, "-c", "1,2", "--repeats", "1", "--prompt-tokens", "16",
            "--output-tokens", "30", "--out", str(record), "--label", "x",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "s3cr3t" not in done.stdout + done.stderr + record.read_text()


def test_server_that_dies_midway_leaves_what_was_whole(tmp_path: Path) -> None:
    """Gone after the first repeats -> exit 2, their table and record, the line names the server."""
    record = tmp_path / "r.json"
    with serve(tmp_path) as server:
        whole = threading.Event()

        def kill() -> None:
            for _ in range(10_000):
                if server.completions >= 9:  # C=1 and C=4 once, warm-ups before them: 10 requests
                    break
                whole.wait(0.002)
            server.die()

        killer = threading.Thread(target=kill)
        killer.start()
        done = cli(
            "sweep", "--server", server.url, "-c", "1,4", "--repeats", "3", "--prompt-tokens", "16",
            "--output-tokens", "30", "--out", str(record), "--label", "x",
        )  # fmt: skip
        killer.join()
    assert done.returncode == 2
    assert "the server no longer answers" in done.stderr
    body = json.loads(record.read_text())["variants"][0]
    assert any("stopped after" in n for n in body["notes"])
    assert body["levels"][0]["tokens_per_s"] is not None


def test_interrupt_ends_every_request(tmp_path: Path) -> None:
    """Ctrl-C in a long repeat -> what was whole is kept, no stream stays open on the server."""
    import _thread

    with serve(tmp_path, step_s=0.01) as server:

        def interrupt() -> None:
            pause = threading.Event()
            for _ in range(10_000):
                if server.streams == 4 and server.completions > 5:  # the second repeat at C=4
                    break
                pause.wait(0.002)
            pause.wait(0.1)
            _thread.interrupt_main()

        thread = threading.Thread(target=interrupt)
        before = signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # a run in the background ignores it
        thread.start()
        try:
            with pytest.raises(SweepStoppedError) as stopped:
                swept(server, warmup=0, output_tokens=200, repeats=2)
        finally:
            thread.join()
            signal.signal(signal.SIGINT, before)
        for _ in range(200):
            if not server.streams:
                break
            threading.Event().wait(0.01)
        assert server.streams == 0
    assert isinstance(stopped.value.cause, KeyboardInterrupt)
    assert 1 <= len(stopped.value.sweep.repeats) < 4
    assert any("interrupted" in n for n in stopped.value.sweep.notes)


def test_others_on_the_server_are_said(tmp_path: Path) -> None:
    """Requests of other clients run as the sweep begins -> a note: the figures are not the server's alone."""
    with serve(tmp_path, others=3) as server:
        sweep = swept(server, repeats=1)
    assert any("3 requests of others" in n for n in sweep.notes)
