"""What a worker does: look whether it may, read, reduce; and how the work gets there, as code and bytes.

A worker that lacks the package, has another version of it or does not see the file says so in a line of its own.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import FunctionType
from typing import Any

from hta_dsv4.classify.rules import RuleSet
from hta_dsv4.classify.rules_file import default_rules
from hta_dsv4.cluster.reduction import Job, counted_part, reduce_trace
from hta_dsv4.errors import HtaDsv4Error, TraceError


@dataclass(frozen=True)
class Outcome:
    """What a worker sends back: a result, or the line that a single process would have ended with."""

    value: Any = None
    error: str = ""
    is_trace_error: bool = False


@cache
def source_digest() -> str:
    """A digest of the source and rules that tables come from: machines that agree in it compute the same numbers."""
    found = hashlib.sha256()
    root = Path(__file__).resolve().parents[1]
    floors = ("trace", "classify", "analysis", "runs", "cluster")
    for path in sorted(p for floor in floors for p in (root / floor).rglob("*")):
        if path.suffix in (".py", ".toml"):
            found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def unpack_and_run(packed: bytes) -> Any:
    """On a worker, sent as code: a worker without this package fails the task with the reason instead of dying."""
    import pickle

    return pickle.loads(packed)()


def by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a function that is pickled as its code, not as a name to be imported."""
    assert isinstance(function, FunctionType)
    copy = FunctionType(function.__code__, {"__builtins__": __builtins__}, "hta_dsv4_read")
    copy.__module__, copy.__qualname__ = "__main__", "hta_dsv4_read"
    return copy


def guarded(task: Callable[[], Outcome], digest: str) -> Outcome:
    """On a worker: the same code as the one that asks, and errors as the line they are."""
    if digest != source_digest():
        here = f"hta_dsv4 {metadata.version('hta-dsv4')} ({source_digest()})"
        return Outcome(
            error=f"worker on {socket.gethostname()} runs another {here}, not {digest}: numbers might differ; install "
            "the same version there and restart it"
        )
    try:
        return task()
    except TraceError as error:
        return Outcome(error=str(error), is_trace_error=True)
    except HtaDsv4Error as error:
        return Outcome(error=str(error))
    except MemoryError:
        return Outcome(
            error=f"out of memory on {socket.gethostname()}; give workers more, or fewer a machine"
        )


def reduce_job(job: Job, rules: RuleSet | None) -> Outcome:
    """Read and reduce one file; the bundled rules where none are sent."""
    _visible(job)
    return Outcome(reduce_trace(job, rules or default_rules()))


def count_job(job: Job, rank: int, rules: RuleSet | None) -> Outcome:
    """The counted steps of one rank of one file."""
    _visible(job)
    return Outcome(counted_part(job, rules or default_rules(), rank))


def _visible(job: Job) -> None:
    """Whether a worker sees the very file that it is asked to read."""
    host = socket.gethostname()
    remedy = "keep traces on a file system that all machines share, under one path"
    try:
        size = job.path.stat().st_size
    except OSError as error:
        raise HtaDsv4Error(
            f"{job.path}: a worker on {host} does not see it ({error.strerror}); {remedy}"
        ) from error
    if size != job.size:
        raise HtaDsv4Error(f"{job.path}: {size:,} bytes on {host}, but {job.size:,} here; {remedy}")
