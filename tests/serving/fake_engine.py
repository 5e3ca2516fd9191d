"""The engine of the fake server: a loop that decodes, records its own steps, and writes traces as real ones do.

A step gives every admitted request one token; a request's first step is its prefill. While a session is open each
step is annotated as vLLM or SGLang would, so that a trace shows what the loop really ran.
"""

from __future__ import annotations

import gzip
import json
import queue
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.builders import KinetoTrace


@dataclass
class Behaviour:
    """How the server behaves; faults are named by what a client sees."""

    engine: str = "vllm"
    owned_by: str | None = None
    model: str = "tiny"
    step_s: float = 0.002
    max_running: int = 256
    max_model_len: int = 4096
    key: str | None = None
    metrics: bool = True
    others: int = 0  # requests of other clients, in /metrics only
    running_usage: bool = True
    tokens_per_chunk: int = 2
    profiler_enabled: bool = True
    honours_window: bool = True  # False: an engine from before prefixes and step counts
    gpu: bool = True
    annotate: bool = True
    world_size: int = 1
    frontend: bool = True
    packed: bool = True  # False: plain .json, which appears whole
    export_s: float = 0.05
    grow_s: float = 0.1  # a .gz takes this long to become whole, after the stop's answer
    start_s: float = 0.0
    faults: frozenset[str] = frozenset()


@dataclass
class Request:
    """A request being decoded: its tokens arrive in ``out``; ``None`` ends it."""

    prompt_tokens: int
    output_tokens: int
    out: queue.Queue[int | None] = field(default_factory=queue.Queue)
    had: int = 0
    gone: bool = False


@dataclass
class Session:
    """A profiling session."""

    prefix: str
    folder: Path
    steps_left: int | None
    steps: list[tuple[int, int, float, float]] = field(
        default_factory=list
    )  # context, generation, start, end


class Engine:
    """The loop."""

    def __init__(self, behaviour: Behaviour, folder: Path) -> None:
        self.behaviour, self.folder = behaviour, folder
        self.lock = threading.Lock()
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.session: Session | None = None
        self.session_open = False  # vLLM's API server keeps it after the steps are over
        self.stopping = threading.Event()
        self.written: list[Path] = []
        self.writers: list[threading.Thread] = []
        self.thread = threading.Thread(target=self._loop, daemon=True)
        self.thread.start()

    def submit(self, request: Request) -> None:
        with self.lock:
            self.waiting.append(request)

    def start(self, session: Session) -> None:
        with self.lock:
            self.session, self.session_open = session, True

    def stop(self) -> bool:
        """End the session; False where none was recording. Returns when the files are written, as engines do."""
        with self.lock:
            session, self.session = self.session, None
            self.session_open = False
        if session is None:
            return False
        self._export(session)
        return True

    def close(self) -> None:
        self.stopping.set()
        self.thread.join()
        for writer in self.writers:
            writer.join()

    def _loop(self) -> None:
        while not self.stopping.wait(self.behaviour.step_s):
            with self.lock:
                self.running = [r for r in self.running if not r.gone and r.had < r.output_tokens]
                new = self.waiting[: self.behaviour.max_running - len(self.running)]
                self.waiting = self.waiting[len(new) :]
                new = [r for r in new if not r.gone]
                context, generation = len(new), len(self.running)
                self.running += new
                batch, session = list(self.running), self.session
            if not batch:
                continue
            began = time.monotonic()
            for request in batch:
                request.had += 1
                request.out.put(request.had)
                if request.had >= request.output_tokens:
                    request.out.put(None)
            if session is None:
                continue
            session.steps.append((context, generation, began, began + self.behaviour.step_s / 2))
            if session.steps_left is not None:
                session.steps_left -= 1
                if session.steps_left == 0:
                    with self.lock:
                        self.session = None
                    self._export(session)  # the loop writes: all streams stall meanwhile

    # -- files ------------------------------------------------------------------------------------------

    def _export(self, session: Session) -> None:
        time.sleep(self.behaviour.export_s)
        if "no file" in self.behaviour.faults:
            return
        b = self.behaviour
        for rank in range(b.world_size - (1 if "a rank without file" in b.faults else 0)):
            self._write(
                self.folder_of(session) / self._name(session, rank),
                self._trace(session, rank).text().encode(),
            )
        if b.engine == "vllm" and b.frontend:
            name = f"{session.prefix}_host_7.async_llm.{time.time_ns()}.pt.trace.json.gz"
            front = KinetoTrace(rank=None)
            front.add("python_function", "run", 0, 10, 1, 1)
            self._write(self.folder_of(session) / name, front.text().encode())
            (self.folder_of(session) / f"{session.prefix}_rank0.profiler_out.txt").write_text("a table")

    def folder_of(self, session: Session) -> Path:
        return session.folder if self.behaviour.engine == "sglang" else self.folder

    def _name(self, session: Session, rank: int) -> str:
        if self.behaviour.engine == "sglang":
            return f"{session.prefix}-TP-{rank}.trace.json.gz"
        stem = f"{session.prefix}_rank{rank}" if session.prefix else f"rank{rank}"
        return f"{stem}.{time.time_ns()}.pt.trace.json.gz"

    def _write(self, path: Path, body: bytes) -> None:
        """Under its final name at once, whole only later."""
        if not self.behaviour.packed:
            path.with_suffix("").write_bytes(body)
            return
        packed = gzip.compress(body, 1)
        if "cut json" in self.behaviour.faults:
            packed = gzip.compress(body[: len(body) // 2], 1)
        path.write_bytes(packed[: len(packed) // 2])
        self.written.append(path)
        if "never whole" in self.behaviour.faults:
            return

        def rest() -> None:
            time.sleep(self.behaviour.grow_s)
            with path.open("ab") as f:
                f.write(packed[len(packed) // 2 :])

        writer = threading.Thread(target=rest, daemon=True)
        writer.start()
        self.writers.append(writer)

    def _trace(self, session: Session, rank: int) -> KinetoTrace:
        b = self.behaviour
        t = KinetoTrace(rank=rank, world_size=b.world_size, device="NVIDIA H200")
        if not b.gpu:
            t.top["deviceProperties"] = []
        first = session.steps[0][2] if session.steps else 0.0
        for context, generation, start, end in session.steps:
            at, long = round((start - first) * 1e6, 3), round((end - start) * 1e6, 3)
            if b.annotate:
                t.annotation(self._marker(context, generation), at, long)
            for i, name in enumerate(("sgemm_32x32", "flash_fwd_splitkv_mla_kernel", "elementwise_kernel")):
                if b.gpu:
                    t.eager(name, long / 8, at=at + 1 + i * long / 4, delay=5)
                else:
                    t.op("aten::mm", at + 1 + i, 1)
        return t

    def _marker(self, context: int, generation: int) -> str:
        if self.behaviour.engine == "sglang":
            return f"step[EXTEND bs={context} toks=64]" if context else f"step[DECODE bs={generation}]"
        return f"execute_context_{context}({context * 16})_generation_{generation}({generation})"


def tokens(request: Request, together: int) -> tuple[int, bool] | None:
    """The next chunk's tokens: the first alone, then so many together; how many in all now, and whether it is over."""
    had = request.out.get(timeout=30)
    if had is None:
        return None
    while had > 1 and (had - 1) % together:
        more = request.out.get(timeout=30)
        if more is None:
            return had, True
        had = more
    return had, False


def dump(data: object) -> bytes:
    return json.dumps(data, ensure_ascii=False).encode()
