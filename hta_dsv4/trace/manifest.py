"""What a trace file does not say about itself, kept beside it as TOML. Torch-free.

One capture writes ``<name>.manifest.toml`` beside ``<name>.trace.json.gz``; a folder of captures can hold one
``manifest.toml`` for all of them. :func:`manifest_for` looks in both places.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, get_type_hints

from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace.toml_text import from_toml, to_toml
from hta_dsv4.trace.whole_files import write_atomically

TRACE_SUFFIX = ".trace.json.gz"
FOLDER_MANIFEST = "manifest.toml"
_MOST = 1e12  # milliseconds, tokens, launches: beyond are typing errors


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a step took, with and without the profiler; milliseconds, medians.

    Attributes:
        unprofiled_step_ms: before the profiler was started: CUDA events around each step, waiting after each.
        unprofiled_steps: steps behind that median; ``unprofiled_min_ms`` and ``unprofiled_max_ms`` are their range.
        profiled_step_ms: host clock between waits, while recording.
        profiler_overhead: profiled / unprofiled - 1.
        tokens_per_s: concurrency / unprofiled step time.
        activity_ms: summed durations of GPU activities per step, from the trace.
        own_ms: their own times per step (analysis.own_time); absent from older manifests.
        activities: kernels, copies and sets per step; ``launches``: CPU calls per step that caused them.
    """

    unprofiled_step_ms: float
    unprofiled_steps: int
    unprofiled_min_ms: float
    unprofiled_max_ms: float
    profiled_step_ms: float
    profiler_overhead: float
    tokens_per_s: float
    activity_ms: float
    activities: float
    launches: float
    own_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """One capture.

    Attributes:
        trace: file name of the trace.
        variant: label of the variant.
        concurrency: requests decoded together.
        steps, warmup: recorded steps and the steps before them, in all.
        captured_at: UTC, ISO 8601.
        timing: step times.
        config, context, max_context: model and sizes, where the bundled step was captured.
        switches: switch -> choice.
        launch: eager | cuda_graph | compile.
        companion: the eager trace of the same step (for replayed graphs), as a path from this one's folder.
        commit: git commit of this project's checkout, where it ran from one.
        device: name, SMs, memory, driver, clocks while the steps ran.
        versions: torch, triton, CUDA, Python.
        workload: facts about the bundled step (weight sets, cache sets, ...).
        parallel: this rank among those of a tensor-parallel step: rank, world_size, backend, and the straggler
            where one was planted; empty for a single process.
        removed: what was taken out of the profiler's file, one sentence each; empty when nothing was.
        notes: anything else worth knowing, one sentence each.
    """

    trace: str
    variant: str
    concurrency: int
    steps: int
    warmup: int
    captured_at: str
    timing: Timing
    config: str | None = None
    context: int | None = None
    max_context: int | None = None
    switches: Mapping[str, str] = field(default_factory=dict)
    launch: str = "eager"
    companion: str | None = None
    commit: str | None = None
    device: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    workload: Mapping[str, Any] = field(default_factory=dict)
    parallel: Mapping[str, Any] = field(default_factory=dict)
    removed: Sequence[str] = ()
    notes: Sequence[str] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data, absent values left out, scalars before tables (TOML wants that order)."""
        out: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Timing):
                value = {g.name: getattr(value, g.name) for g in fields(value)}
            if value is None or (isinstance(value, (Mapping, Sequence)) and not value):
                continue
            out[f.name] = list(value) if isinstance(value, tuple) else value
        return dict(sorted(out.items(), key=lambda kv: isinstance(kv[1], Mapping)))

    def as_toml(self) -> bytes:
        """The manifest file's content.

        Raises:
            HtaDsv4Error: a value that TOML cannot hold.
        """
        return to_toml(self.as_dict()).encode()


def stem(trace: Path) -> str:
    """File name of a trace without its suffixes: ``split_k.trace.json.gz`` -> ``split_k``."""
    name = trace.name
    for suffix in (".gz", ".json", ".pt", ".trace"):
        name = name.removesuffix(suffix)
    return name


def manifest_path(trace: Path) -> Path:
    """Where one capture's manifest stands."""
    return trace.with_name(f"{stem(trace)}.manifest.toml")


def write_manifest(trace: Path, manifest: Manifest) -> Path:
    """Write one capture's manifest beside its trace and return its path."""
    path = manifest_path(trace)
    write_atomically((path, manifest.as_toml()))
    return path


def write_folder_manifest(
    folder: Path,
    manifests: Sequence[Manifest],
    notes: Sequence[str] = (),
    kept: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """One ``manifest.toml`` for a folder: ``[[trace]]`` per capture.

    Args:
        folder: where the traces stand.
        manifests: in the order a reader should see them.
        notes: about the folder as a whole.
        kept: entries of :func:`other_entries`, to come after them as they were.
    """
    text = to_toml({"notes": list(notes)}) if notes else ""
    for entry in (*(m.as_dict() for m in manifests), *kept):
        body = to_toml(entry, "trace")
        text += f"\n[[trace]]\n{body}"
    path = folder / FOLDER_MANIFEST
    write_atomically((path, text.encode()))
    return path


def other_entries(folder: Path, traces: Collection[str]) -> list[dict[str, Any]]:
    """What a folder's manifest says of its other traces, so that writing it anew does not lose them.

    Args:
        folder: where it stands, if it does.
        traces: names of files that are written about anew.

    Returns:
        Its entries as written, of files that are there.

    Raises:
        HtaDsv4Error: it cannot be read, or is not TOML.
    """
    place = folder / FOLDER_MANIFEST
    return [
        deepcopy(entry)
        for entry in (_entries(place) if place.is_file() else [])
        if isinstance(entry, dict)
        and isinstance(name := entry.get("trace"), str)
        and name not in traces
        and _stands(place, name)
    ]


def read_folder_manifest(path: Path) -> tuple[Manifest, ...]:
    """Read a folder's ``manifest.toml``, or one capture's manifest, in file order.

    Raises:
        HtaDsv4Error: missing, not TOML, or an entry lacks a field or holds another type there.
    """
    entries = _entries(path)
    if not entries:
        raise HtaDsv4Error(f"{path}: no [[trace]] entry; write one per trace file")
    return tuple(_manifest(path, entry, place) for place, entry in enumerate(entries, 1))


def manifest_for(trace: Path) -> Manifest | None:
    """The manifest of a trace: its own file, else its entry in the folder's; ``None`` where neither speaks of it.

    Raises:
        HtaDsv4Error: not TOML, or the entry lacks a field or holds another type there.
    """
    entry, place = manifest_entry(trace)
    return None if entry is None else _manifest(place, entry, trace.name)


def manifest_entry(trace: Path) -> tuple[dict[str, Any] | None, Path]:
    """What a manifest says of a trace, as written, however little; and where it stands.

    A manifest found by name may speak of another trace: of ``x.json`` beside ``x.trace.json.gz``, or of the name that
    this one had before both were renamed. The first is another capture's, and not believed.

    Returns:
        The entry, ``None`` where no manifest speaks of the trace; and the manifest's path.

    Raises:
        HtaDsv4Error: a manifest that is not TOML, or holds another type in a field that it knows.
    """
    own, folder = manifest_path(trace), trace.with_name(FOLDER_MANIFEST)
    for place in (own, folder):
        for entry in _entries(place) if place.is_file() else []:
            if not isinstance(entry, dict):
                continue
            named = entry.get("trace")
            if named == trace.name or (place == own and isinstance(named, str) and not _stands(trace, named)):
                return _checked(place, deepcopy(entry), trace.name), place
    return None, folder


def _stands(trace: Path, named: str) -> bool:
    """Whether there is a file of that name beside a trace; what is no file's name is none."""
    try:
        return trace.with_name(named).is_file()
    except ValueError:
        return False


@lru_cache(maxsize=4)
def _parsed(text: str) -> dict[str, Any]:
    """A manifest's content. A report asks for the same folder's manifest a hundred times, 10 ms each."""
    return from_toml(text)


def folder_notes(folder: Path) -> list[str]:
    """What a folder's manifest says of the folder as a whole, if one stands there.

    Raises:
        HtaDsv4Error: it cannot be read, or is not TOML.
    """
    place = folder / FOLDER_MANIFEST
    notes = _data(place).get("notes") if place.is_file() else None
    return [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []


def _entries(path: Path) -> list[Any]:
    """The entries of a manifest, not to be changed: the next caller is given the same."""
    data = _data(path)
    entries = data.get("trace")
    if isinstance(entries, str):
        return [data]
    return entries if isinstance(entries, list) else []


def _data(path: Path) -> dict[str, Any]:
    try:
        return _parsed(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HtaDsv4Error(f"{path}: cannot read ({error.strerror or error})") from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # of TOML, of UTF-8, a number of 5,000 digits, 5,000 brackets
        raise HtaDsv4Error(f"{path}: not TOML: {error}; correct it or take it away") from error


def _manifest(path: Path, entry: object, place: object) -> Manifest:
    import msgspec  # only reading needs it: a capture runs where torch alone is installed

    entry = deepcopy(entry)
    name = entry.get("trace", place) if isinstance(entry, Mapping) else place
    try:
        manifest = msgspec.convert(entry, Manifest)
    except msgspec.ValidationError as error:
        raise HtaDsv4Error(f"{path}: entry {name}: incomplete or misspelt ({error})") from error
    assert isinstance(entry, dict)
    _checked(path, entry, name)
    return manifest


def _checked(path: Path, entry: dict[str, Any], name: object) -> dict[str, Any]:
    """An entry whose known fields hold what they should, however few they are; times that are NaN left out.

    Raises:
        HtaDsv4Error: another type, or a time, count or rate that is none.
    """
    import msgspec

    types: dict[str, Any] = {**get_type_hints(Manifest), "timing": dict[str, Any]}
    where = f"{path}: entry {name}"
    for key in types.keys() & entry.keys():
        try:
            msgspec.convert(entry[key], types[key])
        except msgspec.ValidationError as error:
            raise HtaDsv4Error(f"{where}: {key}: {error}; correct it or take it away") from error
    timing = {
        k: v for k, v in entry.get("timing", {}).items() if not (isinstance(v, float) and math.isnan(v))
    }
    for key in (f.name for f in fields(Timing) if f.name in entry.get("timing", {})):
        value = timing.get(key)
        if value is None and key != "unprofiled_step_ms":
            continue
        least = -1.0 if key == "profiler_overhead" else 0.0
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= _MOST
        if not good or (value == 0 and key == "unprofiled_step_ms"):
            raise HtaDsv4Error(
                f"{where}: timing.{key} {entry['timing'][key]!r} is none that a step can have; correct it or take it "
                "away"
            )
    return {**entry, "timing": timing} if timing else {k: v for k, v in entry.items() if k != "timing"}
