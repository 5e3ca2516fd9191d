"""Which files did the server write, and are they whole? A folder before and after -> one read trace per rank.

A compressed trace is not written at once: it grows under its final name after the server has answered, so a file
counts when it has stopped growing and reads to its end as JSON.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hta_dsv4.errors import HtaDsv4Error, TraceError
from hta_dsv4.serving.decode_check import DecodeCheck, check_decode
from hta_dsv4.trace.model import Trace
from hta_dsv4.trace.reader import read_trace

FILES_S = 120.0
_TRACE = re.compile(r"\.trace\.json(\.gz)?$")
# vLLM's API server records itself too, without a step in it; SGLang's merged file repeats what the ranks' say.
_NO_RANK = re.compile(r"\.async_llm\.|^merged-")
_RANK = re.compile(r"(?:^|[^A-Za-z])rank[-_]?(\d{1,6})(?!\d)|-TP-(\d{1,6})(?!\d)")
# data-parallel groups: SGLang ...-TP-0-DP-1..., vLLM ...dp1_pp0_tp0_...
_GROUP = re.compile(r"-DP-(\d+)|(?:^|_)dp(\d+)_")
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One rank's trace, whole.

    Attributes:
        path: as the server wrote it.
        rank: by ``distributedInfo``, else by the file's name.
        trace: read.
        check: what its steps are.
    """

    path: Path
    rank: int
    trace: Trace
    check: DecodeCheck


@dataclass(frozen=True, slots=True)
class Collected:
    """What a capture left in the folder.

    Attributes:
        ranks: whole traces, by rank.
        world_size: ranks that take part, as the traces say.
        broken: files that never became whole -> why.
        notes: what a reader should know, one sentence each.
    """

    ranks: tuple[RankTrace, ...]
    world_size: int
    broken: dict[str, str]
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks without a whole trace."""
        return tuple(sorted(set(range(self.world_size)) - {r.rank for r in self.ranks}))


def snapshot(folder: Path) -> frozenset[str]:
    """The traces that are in a folder now.

    Raises:
        HtaDsv4Error: it cannot be listed.
    """
    try:
        return frozenset(name for name in os.listdir(folder) if _TRACE.search(name))
    except OSError as error:
        raise HtaDsv4Error(
            f"--trace-dir {folder}: cannot be listed ({error.strerror or error}); give the folder the server writes "
            "its traces to, as this machine sees it"
        ) from error


def check_folder(folder: Path, written_by: str) -> None:
    """Check the folder the traces are to come from, before the server is asked for anything.

    Args:
        folder: as this machine sees it.
        written_by: the engine; SGLang dies of a folder that it cannot write, so that is tried here.

    Raises:
        HtaDsv4Error: it is missing, no folder, cannot be listed, or (SGLang) cannot be written.
    """
    if not folder.is_dir():
        raise HtaDsv4Error(
            f"--trace-dir {folder}: no such folder here; give the one the server writes its traces to, on a disk that "
            "this machine sees too"
        )
    snapshot(folder)
    if written_by != "sglang":
        return
    if not folder.is_absolute():
        raise HtaDsv4Error(f"--trace-dir {folder}: SGLang is told this path, so it must be absolute")
    probe = folder / f".hta-dsv4.{os.getpid()}.probe"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise HtaDsv4Error(
            f"--trace-dir {folder}: cannot be written ({error.strerror or error}), and SGLang dies of such a folder; "
            "nothing was asked of the server"
        ) from error


def collect(
    folder: Path,
    before: frozenset[str],
    prefix: str,
    concurrency: int,
    timeout_s: float = FILES_S,
    say: Callable[[str], None] | None = None,
) -> Collected:
    """Wait for the files of a capture and read them.

    Args:
        folder: where the server wrote.
        before: :func:`snapshot` before the capture.
        prefix: begins the names of this capture's files, where the engine honours it.
        concurrency: the batch each step should decode.
        timeout_s: longest wait for files to become whole, seconds.
        say: told what is waited for.

    Returns:
        What is there; :attr:`Collected.missing` and :attr:`Collected.broken` where something is not.

    Raises:
        HtaDsv4Error: the folder cannot be listed any more, or the capture left no file.
    """
    give_up = time.monotonic() + timeout_s
    seen: dict[str, tuple[int, int]] = {}
    done: dict[str, RankTrace] = {}
    broken: dict[str, str] = {}
    told = False
    while True:
        names, foreign = _new(folder, before, prefix)
        for name in sorted(set(names) - set(done)):
            state = _state(folder / name)
            if state is not None and seen.get(name) == state and name not in broken:
                try:  # it has not grown since the last look
                    done[name] = _read(folder / name, concurrency)
                except TraceError as error:
                    broken[name] = str(error)
            elif state is not None and seen.get(name) != state:
                seen[name] = state
                broken.pop(name, None)  # it grows on: not broken, not whole yet
        world = max([r.trace.meta.distributed.get("world_size", 1) for r in done.values()] or [1])
        have = {r.rank for r in done.values()}
        if done and set(names) == set(done) and len(have) >= world:
            break
        if time.monotonic() >= give_up:
            break
        if say is not None and not told and time.monotonic() > give_up - timeout_s + 2:
            say(f"waiting for the traces in {folder} to be complete")
            told = True
        time.sleep(_LOOK_S)
    for name in set(names) - set(done) - set(broken):
        broken[name] = f"{folder / name}: still being written"
    if not done and not broken:
        raise HtaDsv4Error(_nothing(folder, prefix, foreign, timeout_s))
    groups = len({_group(name) for name in names}) if names else 1
    ranks = tuple(
        replace(r, check=check_decode(r.trace, concurrency, r.rank, groups))
        for r in sorted(done.values(), key=lambda r: (r.rank, r.path.name))
    )
    return Collected(ranks, int(world), broken, tuple(_notes(names, prefix)))


def problem(found: Collected, folder: Path) -> str | None:
    """Why a capture is not what was asked for, in one line; ``None`` where it is.

    Args:
        found: what was collected.
        folder: where from.
    """
    if found.missing:
        lost = ", ".join(map(str, found.missing))
        why = "; ".join(found.broken.values()) or f"no file in {folder}"
        return f"of {found.world_size} ranks, {lost} left no whole trace ({why}); the others are kept"
    if found.broken:
        return f"{next(iter(found.broken.values()))}; the other traces are kept"
    for rank in found.ranks:
        if rank.check.steps and not rank.check.ok:
            return f"{rank.check.sentence}; the trace is kept, and its share table counts decode steps only"
    if all(not r.check.steps for r in found.ranks) and not any(len(r.trace.activities) for r in found.ranks):
        return f"{found.ranks[0].path}: the trace holds no step and no GPU activity: nothing ran while it was recorded"
    return None


def _new(folder: Path, before: frozenset[str], prefix: str) -> tuple[list[str], list[str]]:
    """This capture's files, and new ones that carry another session's name."""
    new = [n for n in sorted(snapshot(folder) - before) if not _NO_RANK.search(n)]
    ours = [n for n in new if n.startswith(prefix)]
    # vLLM from before prefixes; of SGLang, which has always had its profile_id, other names are other sessions'
    plain = [n for n in new if ".pt.trace." in n]
    return (ours, []) if ours else (plain, [n for n in new if n not in plain])


def _state(path: Path) -> tuple[int, int] | None:
    """Size and time of change; ``None`` where it is gone or empty."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_size, found.st_mtime_ns) if found.st_size else None


def _read(path: Path, concurrency: int) -> RankTrace:
    trace = read_trace(path)
    rank = trace.meta.distributed.get("rank")
    if not isinstance(rank, int):
        found = _RANK.search(path.name)
        rank = int(found[1] or found[2]) if found else 0
    return RankTrace(path, rank, trace, check_decode(trace, concurrency, rank))


def _group(name: str) -> str:
    found = _GROUP.search(name)
    return (found[1] or found[2]) if found else ""


def _notes(names: list[str], prefix: str) -> list[str]:
    if any(not n.startswith(prefix) for n in names):
        return [
            "the server did not name its files as asked (an older engine): every trace that was new in the folder was "
            "taken, and the number of steps may be more than asked"
        ]
    return []


def _nothing(folder: Path, prefix: str, foreign: list[str], timeout_s: float) -> str:
    if foreign:
        return (
            f"{folder}: no trace of this capture ({prefix}...) after {timeout_s:.0f} s, but {foreign[0]} is new: "
            "somebody else's session was running (try again when it is over), or the engine is older and names its "
            "files itself"
        )
    return (
        f"{folder}: no trace appeared within {timeout_s:.0f} s although the server said that it stopped its profiler; "
        "is this the folder it writes to, as the server sees it, and can it write there? Its log says more"
    )
