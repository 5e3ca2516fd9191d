"""A small server that speaks vLLM's and SGLang's protocols over real HTTP, with their failures, for the tests.

What it saw is kept for them: streams open at once, every path that was asked for, whether a session is still open.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.serving.fake_engine import Behaviour, Engine, Request, Session, dump, tokens


class FakeServer(ThreadingHTTPServer):
    """The server; made by :func:`serve`."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, behaviour: Behaviour, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behaviour = behaviour
        self.engine = Engine(behaviour, folder)
        self.counting = threading.Lock()
        self.streams = self.most_streams = self.completions = 0
        self.asked: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.profile_bodies: list[dict[str, Any]] = []
        self.dead = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def calls(self) -> list[str]:
        """Calls to the profiler, in order."""
        return [a for a in self.asked if "profile" in a]

    def die(self) -> None:
        """As a crashed process: nothing listens any more, open streams break."""
        self.dead = True
        self.socket.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def log_message(self, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self._route("GET")

    def do_POST(self) -> None:
        self._route("POST")

    # -- answers ----------------------------------------------------------------------------------------

    def _answer(self, status: int, body: bytes = b"", kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        if body:
            self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _error(self, status: int, message: str, kind: str = "BadRequestError") -> None:
        self._answer(
            status, dump({"error": {"message": message, "type": kind, "param": None, "code": status}})
        )

    def _route(self, method: str) -> None:
        s, b = self.server, self.server.behaviour
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        with s.counting:
            s.asked.append(f"{method} {self.path}")
        if s.dead:
            self.close_connection = True
            return
        if "redirect" in b.faults:
            self._answer(307, location="http://192.0.2.1/elsewhere")
            return
        if b.key is not None and self.headers.get("authorization") != f"Bearer {b.key}":
            self._answer(401, dump({"error": "Unauthorized"}))
            return
        if self.path in ("/start_profile", "/stop_profile"):
            getattr(self, f"_{b.engine}_profile")(method, body)
            return
        known = {
            ("GET", "/v1/models"): self._models,
            ("GET", "/version"): self._version,
            ("GET", "/metrics"): self._metrics,
            ("POST", "/v1/completions"): lambda: self._completions(json.loads(body)),
        }.get((method, self.path))
        if known is None:
            self._answer(404, dump({"detail": "Not Found"}))
        else:
            known()

    def _models(self) -> None:
        b = self.server.behaviour
        owner = b.engine if b.owned_by is None else b.owned_by
        model = {"id": b.model, "object": "model", "owned_by": owner, "max_model_len": b.max_model_len}
        self._answer(200, dump({"object": "list", "data": [model]}))

    def _version(self) -> None:
        if self.server.behaviour.engine == "vllm":
            self._answer(200, dump({"version": "0.32.0"}))
        else:
            self._answer(404, dump({"detail": "Not Found"}))

    def _metrics(self) -> None:
        b = self.server.behaviour
        if not b.metrics:
            self._answer(404, dump({"detail": "Not Found"}))
            return
        name = "vllm:num_requests_running" if b.engine == "vllm" else "sglang:num_running_reqs"
        n = len(self.server.engine.running) + b.others
        text = f'# HELP {name} how many\n# TYPE {name} gauge\n{name}{{engine="0",model_name="tiny"}} {float(n)}\n'
        self._answer(200, text.encode(), "text/plain; version=0.0.4")

    # -- profilers --------------------------------------------------------------------------------------

    def _vllm_profile(self, method: str, body: bytes) -> None:
        s, b = self.server, self.server.behaviour
        if not b.profiler_enabled:
            self._answer(404, dump({"detail": "Not Found"}))
        elif method == "GET":
            self._answer(405, dump({"detail": "Method Not Allowed"}))
        elif self.path == "/start_profile":
            if body and self.headers.get("content-type") != "application/json":
                self._error(400, "Bad Request")
                return
            asked = json.loads(body or b"{}")
            s.profile_bodies.append(asked)
            if s.engine.session_open or "busy" in b.faults:
                self._error(
                    409,
                    "A profiling session is already active. Call /stop_profile before starting another session.",
                    "Conflict",
                )
                return
            self._take_time_to_start()
            honours = b.honours_window
            s.engine.start(
                Session(
                    asked.get("profile_prefix", "") if honours else "",
                    s.engine.folder,
                    asked.get("max_iterations") if honours else None,
                )
            )
            if "start lost" in b.faults:
                self.close_connection = True
                return
            self._answer(200)
        elif self._stop_may_go_on():
            s.engine.stop()  # 200 also where nothing was recording
            self._answer(200)

    def _sglang_profile(self, method: str, body: bytes) -> None:
        s, b = self.server, self.server.behaviour
        if self.path == "/start_profile":
            asked = json.loads(body or b"{}")
            s.profile_bodies.append(asked)
            self._take_time_to_start()
            prefix = "somebody" if "foreign session" in b.faults else asked.get("profile_id", "1.0")
            steps = asked.get("num_steps")
            s.engine.start(Session(prefix, Path(asked["output_dir"]), None if steps is None else int(steps)))
            self._answer(200, b"Start profiling.\n", "text/plain")
        elif self._stop_may_go_on():
            if s.engine.stop():
                self._answer(200, b"Stop profiling. This will take some time.\n", "text/plain")
            else:
                self._answer(500, b"Internal Server Error", "text/plain")

    def _take_time_to_start(self) -> None:
        s = self.server
        s.engine.stopping.wait(s.behaviour.start_s)
        while "slow start" in s.behaviour.faults and s.engine.running:  # so slow that the outputs have ended
            s.engine.stopping.wait(0.01)

    def _stop_may_go_on(self) -> bool:
        faults = self.server.behaviour.faults
        if "dies at stop" in faults:
            self.server.die()
            self.close_connection = True
            return False
        if "stop fails" in faults:
            self._error(503, "the engine does not answer", "InternalServerError")
            return False
        return True

    # -- completions ------------------------------------------------------------------------------------

    def _completions(self, asked: dict[str, Any]) -> None:
        s, b = self.server, self.server.behaviour
        with s.counting:
            s.bodies.append(asked)
            s.completions += 1
            mine = s.completions
            s.streams += 1
            s.most_streams = max(s.most_streams, s.streams)
        request = Request(len(asked["prompt"]), asked["max_tokens"])
        try:
            if len(asked["prompt"]) + asked["max_tokens"] > b.max_model_len:
                self._error(400, f"This model's maximum context length is {b.max_model_len} tokens")
                return
            if asked["model"] not in (b.model, "second"):
                self._error(404, f"The model `{asked['model']}` does not exist.", "NotFoundError")
                return
            if "refuses a request" in b.faults and mine == 2:
                self._error(500, "EngineCore encountered an issue", "InternalServerError")
                return
            s.engine.submit(request)
            self._stream(asked, request, mine)
        finally:
            request.gone = True
            with s.counting:
                s.streams -= 1

    def _stream(self, asked: dict[str, Any], request: Request, mine: int) -> None:
        b = self.server.behaviour
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        had = 0
        while found := tokens(request, b.tokens_per_chunk):
            had, over = found
            if self.server.dead:
                self.close_connection = True
                return
            if mine == 1 and had > 30 and "fails midway" in b.faults:
                self._event(dump({"error": {"message": "EngineCore died", "type": "x", "code": 500}}))
                self._event(b"[DONE]")
                break
            if mine == 1 and had > 30 and "ends midway" in b.faults:
                break
            if mine == 1 and had > 30 and "breaks midway" in b.faults:
                self.close_connection = True
                return
            last = over or had >= request.output_tokens
            chunk = {
                "id": "c", "object": "text_completion", "model": "tiny",
                # characters that end a line elsewhere, raw in JSON as both engines send them
                "choices": [{"index": 0, "text": "x\u2028\x85", "finish_reason": "length" if last else None}],
            }  # fmt: skip
            if b.running_usage and asked["stream_options"].get("continuous_usage_stats"):
                chunk["usage"] = self._usage(request, had)
            self._event(dump(chunk))
            if over:
                break
        else:
            over = True
        if had >= request.output_tokens:
            if asked["stream_options"].get("include_usage"):
                self._event(dump({"id": "c", "choices": [], "usage": self._usage(request, had)}))
            self._event(b"[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    @staticmethod
    def _usage(request: Request, had: int) -> dict[str, int]:
        return {
            "prompt_tokens": request.prompt_tokens,
            "completion_tokens": had,
            "total_tokens": request.prompt_tokens + had,
        }

    def _event(self, data: bytes) -> None:
        line = b"data: " + data + b"\n\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))


@contextmanager
def serve(folder: Path, behaviour: Behaviour | None = None, **changes: Any) -> Iterator[FakeServer]:
    """A running server.

    Args:
        folder: where vLLM's profiler was told to write.
        behaviour: how it behaves; or single fields of it as keywords.
        changes: fields of :class:`Behaviour`; ``faults`` may be one name.
    """
    if isinstance(changes.get("faults"), str):
        changes["faults"] = frozenset({changes["faults"]})
    server = FakeServer(behaviour or Behaviour(**changes), folder)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        with suppress(OSError, ValueError):
            server.shutdown()
        server.engine.close()
        with suppress(OSError):
            server.server_close()
