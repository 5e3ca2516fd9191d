"""Sweeps that exist already: records of ``hta-dsv4 sweep``, tables of figures, and captures with their manifests.

A record is the document that ``sweep --out`` and ``--json`` write (docs/sweep.md): what was measured is read back from
it, and every figure is worked out afresh. A table is CSV with ``variant, concurrency, tokens_per_s``; lines of one
variant and concurrency are repeats. A capture's manifest states its concurrency and the step time without the profiler.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from hta_dsv4.analysis.sweep import OWN_GPU_TIME, TIME, Fact, Repeat, Request, Sweep
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.shipped import resolve
from hta_dsv4.trace.manifest import FOLDER_MANIFEST, Manifest, manifest_for, read_folder_manifest

SCHEMA = 1
_LONGEST = 256 << 20  # bytes of a record; 100,000 requests are about 8 MB
_HEAD = 4096
_LEAST, _MOST = 1e-6, 1e12
"""Throughputs that are one, tokens per second: squares of what lies beyond do not fit a float."""
_OURS = re.compile(rb'"command"\s*:\s*"sweep"')
_COLUMNS = ("variant", "concurrency", "tokens_per_s")


# A time or a count of what has been; the largest are centuries.
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class _Request(msgspec.Struct):
    tokens: _Count
    ttft_ns: _Count | None = None
    tpot_ns: _Count | None = None


class _Repeat(msgspec.Struct):
    concurrency: int
    repeat: _Count
    window_ns: _Count
    tokens_per_s: float | None = None
    requests: list[_Request] = []  # msgspec copies it
    failures: list[str] = []
    step_ns: list[_Count] = []
    unusable: str | None = None


class _Variant(msgspec.Struct):
    label: str
    source: str
    repeats: list[_Repeat]
    made_at: str | None = None
    about: dict[str, str | int | float] = {}
    recorded_notes: list[str] = []


class _Record(msgspec.Struct):
    schema: int
    command: str
    variants: list[_Variant]


def read_sweeps(inputs: Sequence[str], gpu_time: bool = False) -> list[Sweep]:
    """Read what ``sweep --from`` names.

    Args:
        inputs: each ``[LABEL=]PATH`` of a record, a table, a trace with a manifest, a folder's ``manifest.toml`` or the
            folder; or the name of a shipped trace. Captures of one name (but for its ``_cN``) that differ in nothing
            but C are one variant; those of one LABEL whatever they are called.
        gpu_time: of captures, take the GPU time of a step (own times) instead of the step's time without the profiler.

    Returns:
        The variants, in the order in which they were named first.

    Raises:
        HtaDsv4Error: a file that is none of these or broken, two variants of one label, or ``gpu_time`` and no capture.
    """
    out: list[Sweep] = []
    captures: list[tuple[str | None, Manifest]] = []
    for text in inputs:
        label, path = resolve(text)
        label = (
            label if text.startswith(f"{label}=") else None
        )  # a shipped trace's name is no label of the user's
        if path.is_dir() or path.name == FOLDER_MANIFEST:
            folder = path / FOLDER_MANIFEST if path.is_dir() else path
            if not folder.is_file():
                raise HtaDsv4Error(f"{path}: holds no {FOLDER_MANIFEST}; name traces that have manifests")
            captures += [(label, m) for m in read_folder_manifest(folder)]
        elif path.suffix.lower() == ".csv":
            out += _named(label, _table(path), path)
        elif (body := _record_bytes(path)) is not None:
            out += _named(label, _record(path, body), path)
        else:
            manifest = manifest_for(path)
            if manifest is None:
                raise HtaDsv4Error(
                    f"{path}: neither a record of hta-dsv4 sweep, nor a .csv table, nor a trace with a manifest"
                )
            captures.append((label, manifest))
    if gpu_time and not captures:
        raise HtaDsv4Error("--gpu-time: only captures state their GPU time; name traces that have manifests")
    out += _from_captures(captures, gpu_time)
    labels = [s.label for s in out]
    twice = sorted({x for x in labels if labels.count(x) > 1})
    if twice:
        raise HtaDsv4Error(f"{twice[0]}: two variants of this label; tell them apart with LABEL=PATH")
    return out


def _named(label: str | None, found: list[Sweep], path: Path) -> list[Sweep]:
    if label is None:
        return found
    if len(found) > 1:
        raise HtaDsv4Error(f"{label}={path}: holds {len(found)} variants, so one label does not name them")
    one = found[0]
    return [Sweep(label, one.source, one.repeats, one.made_at, one.about, one.notes)]


def _record_bytes(path: Path) -> bytes | None:
    """A record's content; ``None`` where the file is something else, such as a trace."""
    try:
        with path.open("rb") as f:
            head = f.read(_HEAD)
            if not _OURS.search(head):
                return None
            body = head + f.read(_LONGEST)
    except OSError as error:
        raise HtaDsv4Error(f"{path}: cannot read ({error.strerror or error})") from error
    if len(body) > _LONGEST:
        raise HtaDsv4Error(f"{path}: longer than any record of a sweep; is it one?")
    return body


def _record(path: Path, body: bytes) -> list[Sweep]:
    try:
        record = msgspec.json.decode(body, type=_Record)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise HtaDsv4Error(f"{path}: a broken record of hta-dsv4 sweep ({error}); measure again") from error
    if record.schema != SCHEMA:
        raise HtaDsv4Error(f"{path}: schema {record.schema}; this version reads {SCHEMA}")
    if not record.variants:
        raise HtaDsv4Error(f"{path}: a record with no variant in it")
    found = []
    for v in record.variants:
        if not v.repeats:
            raise HtaDsv4Error(f"{path}: {v.label}: no measurement in it")
        repeats = tuple(
            Repeat(
                r.concurrency, r.repeat, r.window_ns, r.tokens_per_s,
                tuple(Request(q.tokens, q.ttft_ns, q.tpot_ns) for q in r.requests),
                tuple(r.failures), tuple(r.step_ns), r.unusable or "",
            )
            for r in v.repeats
        )  # fmt: skip
        seen: set[tuple[int, int]] = set()
        for r in repeats:
            _check(f"{path}: {v.label}", r.concurrency, r.tokens_per_s)
            if (r.concurrency, r.repeat) in seen:
                raise HtaDsv4Error(
                    f"{path}: {v.label}: C={r.concurrency}, repeat {r.repeat} stands in it twice; take "
                    "out one"
                )
            seen.add((r.concurrency, r.repeat))
        found.append(Sweep(v.label, v.source, repeats, v.made_at or "", v.about, tuple(v.recorded_notes)))
    return found


def _check(where: str, concurrency: int, tokens_per_s: float | None) -> None:
    if not 1 <= concurrency <= _MOST:
        raise HtaDsv4Error(f"{where}: concurrency {concurrency}; must be at least 1, and one that can be")
    if tokens_per_s is not None and not _LEAST <= tokens_per_s <= _MOST:
        raise HtaDsv4Error(f"{where}: C={concurrency}: {tokens_per_s:g} tokens per second is no throughput")


def _table(path: Path) -> list[Sweep]:
    """Figures from elsewhere, one line a measurement."""
    repeats: dict[str, list[Repeat]] = {}
    counted: Counter[tuple[str, int]] = Counter()
    try:
        with path.open(encoding="utf-8-sig", newline="") as f:
            lines = csv.DictReader(f)
            missing = [c for c in _COLUMNS if c not in (lines.fieldnames or ())]
            if missing:
                raise HtaDsv4Error(
                    f"{path}: no column {', '.join(missing)}; wanted are {', '.join(_COLUMNS)}"
                )
            for line in lines:
                where = f"{path}, line {lines.line_num}"
                label = line["variant"] or ""
                there = repeats.setdefault(label, [])
                concurrency, rate = _numbers(where, line["concurrency"], line["tokens_per_s"])
                _check(where, concurrency, rate)
                counted[label, concurrency] += 1
                number = counted[label, concurrency]
                said = "" if rate is not None else "the table gives no throughput"
                there.append(Repeat(concurrency, number, 0, rate, unusable=said))
    except OSError as error:
        raise HtaDsv4Error(f"{path}: cannot read ({error.strerror or error})") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise HtaDsv4Error(f"{path}: not a CSV table ({error})") from error
    if not repeats:
        raise HtaDsv4Error(f"{path}: a table without a line")
    return [Sweep(label, "table", tuple(rs)) for label, rs in repeats.items()]


def _numbers(where: str, concurrency: str | None, rate: str | None) -> tuple[int, float | None]:
    try:
        c = int(concurrency or "")
    except ValueError as error:
        raise HtaDsv4Error(f"{where}: concurrency {concurrency!r} is no whole number") from error
    try:
        return c, float(rate) if rate and rate.strip() else None
    except ValueError as error:
        raise HtaDsv4Error(f"{where}: tokens_per_s {rate!r} is no number") from error


def sweeps_beside(traces: Sequence[tuple[str, Path]]) -> list[Sweep]:
    """The same variants at other concurrencies, where the folder's manifest has them.

    Args:
        traces: label and file of each variant.

    Returns:
        Step time, then GPU time, of each variant that was captured at two values of C or more; nothing of the others.

    Raises:
        HtaDsv4Error: a manifest that cannot be read.
    """
    out = []
    for label, path in traces:
        own = manifest_for(path) if path.is_file() else None
        folder = path.with_name(FOLDER_MANIFEST)
        if own is None or not folder.is_file():
            continue
        same = (_stem(own), *_same(own))
        group = [m for m in read_folder_manifest(folder) if (_stem(m), *_same(m)) == same]
        if len({m.concurrency for m in group}) > 1:
            out += [_sweep_of(label, group, gpu_time) for gpu_time in (False, True)]
    return out


def _from_captures(captures: Sequence[tuple[str | None, Manifest]], gpu_time: bool) -> list[Sweep]:
    """Captures that differ in nothing but C, as one variant each."""
    groups: dict[tuple[object, ...], list[Manifest]] = {}
    for label, m in captures:
        # One set of switches before and after a kernel was tuned is two variants: only their names tell them apart.
        group = groups.setdefault((label, None if label else _stem(m), *_same(m)), [])
        if m not in group:  # a folder and a trace in it
            group.append(m)
    return [_sweep_of(str(key[0]) if key[0] else None, group, gpu_time) for key, group in groups.items()]


def _same(m: Manifest) -> tuple[object, ...]:
    """What captures of one variant have in common: everything stated but C."""
    return (
        tuple(sorted(m.switches.items())), m.launch, m.config, m.context, m.max_context, m.device.get("name"),
        tuple(sorted(m.versions.items())), None if m.switches else m.variant,
    )  # fmt: skip


def _stem(m: Manifest) -> str:
    """The variant's name without the concurrency: ``split_k`` of ``split_k_c16``."""
    return re.sub(r"_c\d+$", "", m.variant)


def _sweep_of(label: str | None, group: Sequence[Manifest], gpu_time: bool) -> Sweep:
    name = label or _stem(group[0])
    repeats: list[Repeat] = []
    for m in sorted(group, key=lambda m: m.concurrency):
        own_ms = m.timing.activity_ms if m.timing.own_ms is None else m.timing.own_ms
        step_ms = own_ms if gpu_time else m.timing.unprofiled_step_ms
        steps = m.steps if gpu_time else m.timing.unprofiled_steps
        _check(f"{m.trace}: manifest", m.concurrency, m.concurrency / step_ms if step_ms else math.inf)
        number = 1 + sum(r.concurrency == m.concurrency for r in repeats)
        window = round(step_ms * 1e6 * steps)
        repeats.append(Repeat(m.concurrency, number, window, m.concurrency * 1e3 / step_ms))
    first = group[0]
    about: dict[str, Fact] = {}
    for key in ("config", "context", "max_context", "launch"):
        value = getattr(first, key)
        if value is not None:
            about[key] = value
    if "name" in first.device:
        about["device"] = str(first.device["name"])
    if gpu_time:
        about[TIME] = OWN_GPU_TIME
    summed = sorted({m.concurrency for m in group if m.timing.own_ms is None})
    counts = sorted({m.timing.unprofiled_steps for m in group})
    note = (
        "GPU time of a recorded step (own times) in place of its step time: what it would be if nothing kept the GPU "
        "waiting"
        + (
            f"; at C={', '.join(map(str, summed))} the manifest states summed durations alone (no timing.own_ms), "
            "which count twice what starts early"
            if summed
            else ""
        )
        if gpu_time
        else f"step times are medians of {' or '.join(map(str, counts))} steps without the profiler, from the manifests"
    )
    return Sweep(name + (" (GPU time)" if gpu_time else ""), "captures", tuple(repeats), "", about, (note,))
