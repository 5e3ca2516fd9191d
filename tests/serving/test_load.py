"""The load on a server: how many at once, what is sent, what is timed, and what is said when it fails."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.serving.client import ServerError, ServerUrl, message_of, open_client
from hta_dsv4.serving.load import (
    CANCELLED,
    Load,
    LoadResult,
    RequestTiming,
    Target,
    drive,
    prompt_ids,
    running,
)
from hta_dsv4.serving.sse import Stream
from hta_dsv4.serving.timing import StepTime, step_times
from tests.serving.fake_server import FakeServer, serve

LOAD = Load(concurrency=4, prompt_tokens=16, output_tokens=40, requests=11)


def driven(server: FakeServer, load: Load = LOAD, **target: Any) -> LoadResult:
    async def work() -> LoadResult:
        async with open_client(ServerUrl.parse(server.url)) as client:
            return await drive(client, Target("tiny", **target), load)

    return asyncio.run(work())


def test_never_more_than_c_at_once(tmp_path: Path) -> None:
    """11 requests at C = 4 -> all complete, 4 streams at the most, each with its 40 tokens by usage."""
    with serve(tmp_path) as server:
        result = driven(server)
    assert server.most_streams == 4
    assert server.completions == 11
    assert [t.index for t in result.completed] == list(range(11))
    assert {(t.prompt_tokens, t.completion_tokens, t.finish_reason) for t in result.timings} == {
        (16, 40, "length")
    }
    assert result.unsent == 0


def test_chunks_are_not_tokens(tmp_path: Path) -> None:
    """Chunks of up to 8 tokens -> fewer chunks than tokens, tokens counted by usage, times in order."""
    with serve(tmp_path, tokens_per_chunk=8, step_s=0.0005) as server:
        result = driven(server)
    for timing in result.timings:
        assert timing.chunk_tokens[-1] == timing.completion_tokens == 40
        assert list(timing.chunk_tokens) == sorted(timing.chunk_tokens)  # type: ignore[type-var]
        assert timing.t_first_ns is not None
        assert timing.t_submit_ns < timing.t_first_ns <= timing.chunk_ns[-1] <= timing.t_end_ns
    assert {len(t.chunk_ns) for t in result.timings} == {6}  # 1 + 4 * 8 + 7


def test_prompts_are_token_ids_no_two_alike(tmp_path: Path) -> None:
    """A load, run twice -> prompts of the asked length, all different, the same the second time."""
    with serve(tmp_path) as server:
        driven(server)
        driven(server)
    prompts = [tuple(b["prompt"]) for b in server.bodies]
    assert {len(p) for p in prompts} == {16}
    assert len(set(prompts[:11])) == 11
    assert sorted(prompts[:11]) == sorted(prompts[11:])
    assert prompt_ids(LOAD, 0) != prompt_ids(Load(4, 16, 40, 11, seed=1), 0)
    assert all(b["ignore_eos"] and b["stream"] and b["max_tokens"] == 40 for b in server.bodies)


def test_server_without_running_usage(tmp_path: Path) -> None:
    """No usage with the chunks -> the last chunk's counts, unknown ones on the way."""
    with serve(tmp_path, running_usage=False) as server:
        result = driven(server)
    assert {t.completion_tokens for t in result.completed} == {40}
    assert {n for t in result.completed for n in t.chunk_tokens} == {None}
    assert step_times(result, 0, result.t_end_ns) == []


def test_words_instead_of_ids(tmp_path: Path) -> None:
    """An engine that takes no token ids -> text of as many words."""
    with serve(tmp_path) as server:
        driven(server, Load(1, 16, 4, 1), token_ids=False)
    assert len(server.bodies[0]["prompt"].split()) == 16


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("fails midway", "failed midway: EngineCore died"),
        ("ends midway", "ended midway, after"),
        ("breaks midway", "connection was lost"),
        ("refuses a request", "answered 500: EngineCore encountered an issue"),
    ],
)
def test_a_request_fails(tmp_path: Path, fault: str, said: str) -> None:
    """One of 11 requests fails -> it is told with its reason, the others complete."""
    with serve(tmp_path, faults=fault) as server:
        result = driven(server)
    assert len(result.completed) == 10
    (failed,) = result.failed
    assert said in str(failed.error)


def test_nothing_listens() -> None:
    """A closed port -> C failures and no more requests, each with the address and a remedy."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"

    async def work() -> LoadResult:
        async with open_client(ServerUrl.parse(url)) as client:
            return await drive(client, Target("tiny"), LOAD)

    result = asyncio.run(work())
    assert 4 <= len(result.failed) < 8
    assert result.unsent == 11 - len(result.failed)
    assert url in str(result.failed[0].error)
    assert "is it running" in str(result.failed[0].error)


def test_a_silent_stream_times_out(tmp_path: Path) -> None:
    """A server that stalls -> the request fails after the read timeout instead of waiting for ever."""
    with serve(tmp_path, step_s=5) as server:
        result = driven(server, Load(1, 16, 4, 1), read_timeout_s=0.2)
    assert "silent for too long" in str(result.failed[0].error)


def test_no_proxy_no_redirect_no_other_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy in the environment and a server that redirects -> only the server itself is ever connected to."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    reached: list[Any] = []
    connect = socket.socket.connect

    def watched(self: socket.socket, address: Any) -> None:
        reached.append(address)
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", watched)
    with serve(tmp_path) as server:
        assert driven(server).failed == ()
        assert set(reached) == {("127.0.0.1", server.server_port)}
    reached.clear()
    with serve(tmp_path, faults="redirect") as server:
        result = driven(server)
        assert set(reached) == {("127.0.0.1", server.server_port)}
    assert "points to http://192.0.2.1/elsewhere, which is not followed" in str(result.failed[0].error)


def test_load_around_something(tmp_path: Path) -> None:
    """A load kept running around a body -> all decode inside it, and every stream is closed when it ends."""

    async def work() -> LoadResult:
        async with open_client(ServerUrl.parse(server.url)) as client:
            async with running(client, Target("tiny"), Load(4, 16, 4000, 4)) as load:
                await load.all_decoding(10)
                assert load.full
                before = load.tokens()
                assert await load.decoded(before, 5, 10)
                assert all(n >= before[i] + 5 for i, n in load.tokens().items())
            while server.streams:  # the server notices a closed connection at its next write
                await asyncio.sleep(0.01)
            return load.result()

    with serve(tmp_path) as server:
        result = asyncio.run(asyncio.wait_for(work(), 20))
    assert {t.error for t in result.timings} == {CANCELLED}
    assert result.failed == result.completed == ()
    assert result.decoding_windows() != ()


def test_waiting_for_all_ends_when_they_cannot(tmp_path: Path) -> None:
    """A server that runs 2 of 4 -> the wait ends with the flags to look at; outputs too short -> says so."""

    async def work(load: Load) -> None:
        url = ServerUrl.parse(server.url)
        async with open_client(url) as client, running(client, Target("tiny"), load) as under_way:
            await under_way.all_decoding(0.3)

    with serve(tmp_path, max_running=2) as server:
        with pytest.raises(
            ServerError, match=r"2 of 4 requests decode.*--max-num-seqs.*--max-running-requests"
        ):
            asyncio.run(work(Load(4, 16, 4000, 4)))
        with pytest.raises(
            ServerError, match=r"(ended before all 4 were decoding|all 4 decoded) at once.*--output-tokens"
        ):
            asyncio.run(work(Load(4, 16, 3, 4)))


def test_decoding_windows_are_where_all_decode() -> None:
    """Three requests at C = 2 with known times -> the two windows in which two decode, and no other time."""

    def timing(index: int, *chunks: int) -> RequestTiming:
        return RequestTiming(index, 0, chunks, tuple(range(1, len(chunks) + 1)), chunks[-1] + 1)

    result = LoadResult(
        Load(2, 1, 9, 3), (timing(0, 10, 50, 100), timing(1, 30, 60), timing(2, 70, 120)), 0, 130
    )
    assert result.decoding_windows() == ((30, 60), (70, 100))
    assert step_times(result, 0, 130) == [StepTime(45e-6, 2), StepTime(30e-6, 1), StepTime(50e-6, 1)]
    assert step_times(result, 40, 130) == [StepTime(50e-6, 1), StepTime(50e-6, 1)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"concurrency": 0}, "concurrency 0: must be at least 1"),
        ({"requests": 3}, "3 requests can never be 4 at once"),
        ({"output_tokens": 0}, "output tokens 0"),
    ],
)
def test_loads_that_are_none(changes: dict[str, int], said: str) -> None:
    """Counts that make no load -> refused, naming them."""
    with pytest.raises(HtaDsv4Error, match=said):
        Load(**{"concurrency": 4, "prompt_tokens": 16, "output_tokens": 40, "requests": 11, **changes})


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://gpu7:8000", "http://gpu7:8000"),
        ("gpu7:8000/v1/", "http://gpu7:8000"),
        ("https://[::1]:8443/llm/v1", "https://[::1]:8443/llm"),
        (" localhost:1 ", "http://localhost:1"),
    ],
)
def test_urls(text: str, url: str) -> None:
    """Addresses as people write them -> one form, without /v1."""
    assert ServerUrl.parse(text).text == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ftp://x",
        "http://",
        "http://x:99999",
        "http://x:0",
        "http://x:y",
        "http://x/?a=1",
        "http://[::1",
        "x\0",
    ],
)
def test_urls_that_are_none(text: str) -> None:
    """No address of a server -> one line with a remedy."""
    with pytest.raises(HtaDsv4Error, match="give http://HOST:PORT"):
        ServerUrl.parse(text)


def test_secrets_are_not_shown() -> None:
    """A key, and a password in a URL -> neither is in what is printed."""
    assert "s3cret" not in repr(ServerUrl.parse("http://x:1", "s3cret"))
    with pytest.raises(HtaDsv4Error) as error:
        ServerUrl.parse("http://me:s3cret@x:1")
    assert "s3cret" not in str(error.value)
    with pytest.raises(HtaDsv4Error, match="no HTTP header"):
        ServerUrl.parse("http://x:1", "a\nb")


def test_streams_are_cut_at_line_feeds_only() -> None:
    """Events in pieces of a byte, with U+2028 and U+0085 inside JSON, comments and CRLF -> the chunks as sent."""
    text = 'event: x\r\ndata: {"choices":[{"text":"\u2028\x85"}]}\r\n\r\n: ping\n\n'
    text += 'data:{"choices":[],"usage":{"completion_tokens":3}}\n\ndata: [DONE]\n\n'
    stream = Stream()
    chunks = [c for b in text.encode() for c, _ in stream.feed(bytes([b]))]
    assert [len(c.choices) for c in chunks] == [1, 0]
    assert chunks[1].usage is not None
    assert chunks[1].usage.completion_tokens == 3
    assert stream.done


@pytest.mark.parametrize(
    "line", [b"data: nonsense\n", b"data: [1]\n", b'data: {"choices":3}\n', b"data: " + b"[" * 9999 + b"\n"]
)
def test_streams_that_are_none(line: bytes) -> None:
    """Something other than completion chunks -> an error, not a crash."""
    with pytest.raises(HtaDsv4Error, match="no completion chunk"):
        list(Stream().feed(line))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error":{"message":"full\\nstop","code":1}}', "full stop"),
        (b'{"object":"error","message":"bad"}', "bad"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b"Internal Server Error", "Internal Server Error"),
        (b"", ""),
        (b"[" * 5000, "[" * 300),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_messages_of_servers(body: bytes, said: str) -> None:
    """Error answers in the engines' forms, and none -> one short line."""
    assert message_of(body) == said


def test_client_has_no_hidden_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A .netrc for the host -> not sent; only the key that was given."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password s3cret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    seen: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization"))
        return httpx.Response(200)

    async def work(key: str | None) -> None:
        async with open_client(ServerUrl.parse("http://127.0.0.1:1", key)) as client:
            client._transport = httpx.MockTransport(answer)
            await client.get("/v1/models")

    asyncio.run(work(None))
    asyncio.run(work("k"))
    assert seen == [None, "Bearer k"]
