"""Starts and ends a real vLLM server on the CPU, from the environment that scripts/install_live.sh makes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.live.tiny_model import write_tiny_model

PYTHON = Path(__file__).parents[2] / ".venv-live" / "bin" / "python"
READY_S = 300.0

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}  # fmt: skip


@dataclass(frozen=True)
class Server:
    """A server that answers.

    Attributes:
        url: its address.
        traces: the folder its profiler writes to.
        log: what it prints.
    """

    url: str
    traces: Path
    log: Path

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return str(answer.read().decode())

    def post(self, path: str) -> int:
        """Status of an empty POST."""
        request = urllib.request.Request(self.url + path, data=b"", method="POST")
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def running(self) -> float:
        """Requests that its scheduler runs."""
        lines = self.get("/metrics").splitlines()
        return sum(float(x.rsplit(" ", 1)[1]) for x in lines if x.startswith("vllm:num_requests_running{"))


@contextmanager
def vllm_server(folder: Path, *, profiler: bool = True, ranks: int = 1) -> Iterator[Server]:
    """A server of the tiny model, ready; ended afterwards.

    Args:
        folder: for model, traces and log.
        profiler: enable it.
        ranks: tensor-parallel size, one core each.
    """
    model, traces, log = write_tiny_model(folder / "tiny"), folder / "traces", folder / "log"
    traces.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", "tiny",
        "--host", "127.0.0.1", "--port", str(port), "--load-format", "dummy", "--dtype", "float32",
        "--max-model-len", "8192", "--max-num-seqs", "32", "--enforce-eager", "-tp", str(ranks),
    ]  # fmt: skip
    if profiler:
        config = {"profiler": "torch", "torch_profiler_dir": str(traces), "torch_profiler_with_stack": False}
        command += ["--profiler-config", json.dumps(config)]
    environment = {**os.environ, **_ENVIRONMENT}
    if ranks > 1:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(i) for i in range(ranks))
    with log.open("wb") as out:
        # a group of its own, so that its workers can be ended with it
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    server = Server(f"http://127.0.0.1:{port}", traces, log)
    try:
        _wait(server, process)
        yield server
    finally:
        _end(process)


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + READY_S
    while True:
        with suppress(OSError):
            server.get("/health")
            return
        if process.poll() is not None or time.monotonic() > give_up:
            tail = server.log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"the server did not start ({process.poll()}):\n{tail}")
        time.sleep(0.5)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Politely, then not: a server with streams in flight may wait for ever."""
    for number, patience in ((signal.SIGTERM, 20), (signal.SIGKILL, 20)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            break
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # workers that outlived it
