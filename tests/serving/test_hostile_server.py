"""Servers that answer nonsense, too much, or without end: one line each, and no connection left open."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from hta_dsv4.runs.sweep_record import read_sweeps
from hta_dsv4.serving import client, running
from tests.conftest import Done, cli

MODELS = json.dumps({"data": [{"id": "m", "owned_by": "sglang", "max_model_len": 4096}]}).encode()
Talk = Callable[[socket.socket], None]


def head(status: int = 200, *fields: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} X", *fields, "connection: close", "", ""]).encode()


def whole(body: bytes, status: int = 200, *fields: str) -> Talk:
    return lambda s: s.sendall(head(status, f"content-length: {len(body)}", *fields) + body)


def endless(block: bytes, pause_s: float, status: int = 200) -> Talk:
    def talk(s: socket.socket) -> None:
        s.sendall(head(status))
        while True:
            s.sendall(block)
            time.sleep(pause_s)

    return talk


def event(body: object) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


class Server:
    """Answers by path with raw bytes; counts connections that are open."""

    def __init__(self, answers: dict[str, Talk]) -> None:
        self.answers = {"/v1/models": whole(MODELS)} | answers
        self.open = 0
        self.heard: list[bytes] = []
        self.counting = threading.Lock()
        self.listening = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listening.getsockname()[1]}"

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._one, args=(self.listening.accept()[0],), daemon=True).start()

    def _one(self, s: socket.socket) -> None:
        with self.counting:
            self.open += 1
        with suppress(OSError, IndexError), s:
            asked = s.recv(1 << 16)
            self.heard.append(asked)
            path = asked.split(b" ")[1].decode()
            if path == "/v1/completions":
                while not asked.endswith(b"}"):
                    asked += s.recv(1 << 16)
            self.answers.get(path, whole(b"", 404))(s)
        with self.counting:
            self.open -= 1


@contextmanager
def serving(answers: dict[str, Talk]) -> Iterator[Server]:
    server = Server(answers)
    try:
        yield server
    finally:
        server.listening.close()


def sweep(server: Server, *more: str) -> Done:
    done = cli(
        "sweep", "--server", server.url, "-c", "2", "--repeats", "1", "--warmup", "0", "--prompt-tokens", "8",
        "--output-tokens", "16", "--json", *more,
    )  # fmt: skip
    for _ in range(200):
        if not server.open:
            break
        time.sleep(0.01)
    assert server.open == 0
    said = [line for line in done.stderr.splitlines() if line.startswith("hta-dsv4: ")]
    assert len(said) == (done.returncode == 2), done.stderr
    return done


TOKEN = {"choices": [{"index": 0, "text": "x"}]}


@pytest.mark.parametrize(
    ("models", "said"),
    [
        (whole(gzip.compress(MODELS), 200, "content-encoding: gzip"), "packed (gzip)"),
        (whole(b'{"error": {"message": "slow down"}}', 429), "answered 429 (slow down)"),
        (endless(b"x" * 65536, 0), "does not end"),
        (endless(b" ", 0.05), "not over after"),
        (whole(b"<html>"), "no list of models"),
        (lambda s: s.sendall(b"\xff\xfe\0junk\r\n\r\n"), "connection was lost"),
    ],
)
def test_first_answer_is_nonsense(monkeypatch: pytest.MonkeyPatch, models: Talk, said: str) -> None:
    """The list of models packed, refused, endless, dripping or no HTTP -> exit 2, one line, nothing printed."""
    monkeypatch.setattr(client, "_GRACE_S", -29.5)  # half a second for an answer in all
    with serving({"/v1/models": models}) as server:
        done = sweep(server)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("completions", "said"),
    [
        (endless(b"x" * 65536, 0, 500), "answered 500"),
        (endless(b"x", 0.05, 500), "answered 500"),
        (endless(event(TOKEN), 0), "max_tokens unheeded"),
        (endless(b": still here\n\n", 0.05), "sent no output"),
        (endless(b"data: " + b"x" * 65536, 0), "line without end"),
        (whole(event({**TOKEN, "usage": {"completion_tokens": -3}})), "no completion chunk"),
        (whole(event({**TOKEN, "usage": {"completion_tokens": 1 << 70}})), "no completion chunk"),
        (whole(gzip.compress(event(TOKEN)), 200, "content-encoding: gzip"), "packed (gzip)"),
    ],
)
def test_streams_are_nonsense(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, completions: Talk, said: str
) -> None:
    """Errors and streams without end or sense -> exit 2 with the reason; what was seen is a record that reads back."""
    monkeypatch.setattr(running, "_ERROR_S", 0.3)
    made = running.Target.__init__
    monkeypatch.setattr(
        running.Target, "__init__", lambda self, model, **_: made(self, model, read_timeout_s=0.5)
    )
    out = tmp_path / "record.json"
    with serving({"/v1/completions": completions}) as server:
        done = sweep(server, "--out", str(out))
    assert done.returncode == 2
    assert said in done.stderr
    assert json.loads(done.stdout)["variants"][0]["repeats"][0]["tokens_per_s"] is None
    (back,) = read_sweeps([str(out)])
    assert said in back.repeats[0].failures[0]


@pytest.mark.parametrize("key", [" sk-secret ", "sk-secret\n", "\tsk-secret"])
def test_key_with_blanks_around_it(key: str) -> None:
    """A key read from a file, with its line's end -> sent without it, and printed nowhere."""
    with serving({"/v1/models": whole(b"", 401)}) as server:
        done = sweep(server, "--api-key", key)
    assert done.returncode == 2
    assert "sk-secret" not in done.stderr + done.stdout
    assert b"Bearer sk-secret\r\n" in server.heard[0]


def test_why_never_repeats_a_header() -> None:
    """A request that cannot be sent for a header -> told without the header, which may be the key's."""
    url = client.ServerUrl.parse("http://localhost:1")
    error = httpx.LocalProtocolError("Illegal header value b'Bearer sk-secret '")
    assert "sk-secret" not in client.why(client.open_client(url), "/x", error)


@pytest.mark.parametrize(
    "url", ["http://u:hush@h:1", "u:hush@h", "http://u:hush@h:99999", "http:u:hush@h:x", "u:hush@[::1"]
)
def test_password_in_the_address(url: str) -> None:
    """A password in the address, whatever else is wrong with it -> refused, and not repeated."""
    done = cli("sweep", "--server", url)
    assert done.returncode == 2
    assert "HTA_DSV4_API_KEY" in done.stderr
    assert "hush" not in done.stderr
