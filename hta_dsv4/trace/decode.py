"""Which fields of an event do we read? JSON text of events -> columns, without keeping events alive.

The structs declare only what the tables need; everything else is skipped by the decoder, which is where the
speed comes from. Field order follows Kineto's, as the decoder looks for the next declared field first.
Numbers with a point arrive as their text (``float_hook=str``), so no digit of a time is ever lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from hta_dsv4.trace.activities import KERNEL, MEMCPY, MEMSET
from hta_dsv4.trace.times import to_ns

# Kineto's spelling today, and that of torch 1.8-1.11.
GPU_KINDS = {
    "kernel": KERNEL, "gpu_memcpy": MEMCPY, "gpu_memset": MEMSET,
    "Kernel": KERNEL, "Memcpy": MEMCPY, "Memset": MEMSET,
}  # fmt: skip
CATEGORY_NOW = {"Operator": "cpu_op", "Runtime": "cuda_runtime", "PythonFunction": "python_function"}
PYTHON = "python_function"
# What Kineto writes besides; anything else is reported, as it may be GPU time under a name we do not know.
OTHER_CATEGORIES = frozenset({
    "", "cpu_op", "user_annotation", "gpu_user_annotation", "cpu_instant_event", "overhead", "cuda_sync", "Trace",
    "cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime", "xpu_driver", "mtia_runtime",
    "glow_runtime", "privateuse1_runtime", "privateuse1_driver", "collective_comm", "cuda_profiler_range",
    "external_correlation", "ac2g", "fwdbwd", PYTHON,
})  # fmt: skip
_KIND_CODE = {KERNEL: 0, MEMCPY: 1, MEMSET: 2}
_NO_RAW = msgspec.Raw(b"")

INT64 = np.iinfo(np.int64)


class Args(msgspec.Struct, gc=False):
    """The ``args`` of an event, as far as a table needs them; values as written."""

    external_id: Any = msgspec.field(name="External id", default=None)
    external_id_old: Any = msgspec.field(name="external id", default=None)
    device: Any = None
    stream: Any = None
    correlation: Any = None
    registers: Any = msgspec.field(name="registers per thread", default=None)
    shared_mem: Any = msgspec.field(name="shared memory", default=None)
    grid: Any = None
    block: Any = None
    dtypes: msgspec.Raw = msgspec.field(name="Input type", default=_NO_RAW)
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=_NO_RAW)
    shapes_old: msgspec.Raw = msgspec.field(name="Input dims", default=_NO_RAW)
    bytes: Any = None
    graph_node: Any = msgspec.field(name="graph node id", default=None)


class GpuArgs(msgspec.Struct, gc=False):
    """:class:`Args` without the fields of CPU events: less to build where no CPU side is read."""

    external_id: Any = msgspec.field(name="External id", default=None)
    external_id_old: Any = msgspec.field(name="external id", default=None)
    device: Any = None
    stream: Any = None
    correlation: Any = None
    registers: Any = msgspec.field(name="registers per thread", default=None)
    shared_mem: Any = msgspec.field(name="shared memory", default=None)
    grid: Any = None
    block: Any = None
    bytes: Any = None
    graph_node: Any = msgspec.field(name="graph node id", default=None)


class Event(msgspec.Struct, gc=False):
    """One entry of ``traceEvents``."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Args | None = None


class GpuEvent(msgspec.Struct, gc=False):
    """:class:`Event` with :class:`GpuArgs`."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    pid: Any = None
    ts: Any = None
    dur: Any = None
    args: GpuArgs | None = None


class Codes(dict[Any, int]):
    """Values -> 0, 1, 2, ... in order of first sight."""

    def __missing__(self, key: Any) -> int:
        """Give the next number to a value never seen."""
        code = self[key] = len(self)
        return code

    def encode(self, values: Iterable[Any]) -> npt.NDArray[np.int32]:
        """Codes of ``values``; int32, shape (n,)."""
        return np.fromiter(map(self.__getitem__, values), np.int32)


@dataclass
class Column:
    """One column as it grows: arrays by batch; ``mask`` True where missing."""

    values: list[npt.NDArray[Any]] = field(default_factory=list)
    masks: list[npt.NDArray[np.bool_]] = field(default_factory=list)

    def join(self) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """The whole column: (values, mask)."""
        if not self.values:
            return np.zeros(0, np.int64), np.zeros(0, np.bool_)
        return np.concatenate(self.values), np.concatenate(self.masks)


@dataclass
class Columns:
    """Columns of one table, their codes shared over batches."""

    columns: dict[str, Column] = field(default_factory=dict)
    rows: int = 0

    def add(self, name: str, values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None = None) -> None:
        """Append one batch to a column."""
        column = self.columns.setdefault(name, Column())
        column.values.append(values)
        column.masks.append(np.zeros(len(values), np.bool_) if mask is None else mask)

    def join(self, name: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """One whole column: (values, mask); empty where nothing was added."""
        return self.columns.get(name, Column()).join()


class Collector:
    """Takes batches of events and keeps columns: ``gpu`` for activities, ``cpu`` for all other complete events."""

    def __init__(self, *, cpu: bool, python_frames: bool) -> None:
        self.cpu_wanted = cpu
        self.python_frames = python_frames
        self.gpu, self.cpu = Columns(), Columns()
        self.names, self.categories, self.pids, self.tids = Codes(), Codes(), Codes(), Codes()
        self.shapes, self.dtypes = Codes(), Codes()
        self.count = 0  # events seen so far: the next event's index
        self.phases: Counter[Any] = Counter()
        self.notes: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self.frames_skipped = 0
        kind: Any = Event if cpu else GpuEvent
        # Unions of str are checked by the decoder; values of undeclared kind take the tolerant way below.
        self._decoder: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[kind], float_hook=str)
        self._one: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind, float_hook=str)
        self._kind = kind

    # -- text -> events ---------------------------------------------------------------------------------

    def decode(self, text: memoryview) -> list[Any]:
        """Decode an array of events."""
        return self._decoder.decode(text)

    def split(self, text: bytes) -> list[Any]:
        """Decode an array event by event; what has the wrong type is read as far as it goes."""
        events: list[Any] = []
        for raw in msgspec.json.decode(text, type=list[msgspec.Raw]):
            try:
                events.append(self._one.decode(raw))
            except msgspec.ValidationError:
                events.append(self._tolerant(raw))
        return events

    def _tolerant(self, raw: msgspec.Raw) -> Any:
        """Decode one entry field by field, keeping what has the right type."""
        try:
            parts = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        except msgspec.ValidationError:
            self.note(
                "entries of traceEvents that are no objects, ignored",
                bytes(raw)[:60].decode("utf-8", "replace"),
            )
            return self._kind(ph="")
        untyped = msgspec.json.Decoder(float_hook=str)
        values = {
            k: untyped.decode(v)
            for k, v in parts.items()
            if k in self._kind.__struct_fields__ and k != "args"
        }
        for k in ("ph", "cat", "name"):
            v = values.get(k)
            if v is not None and not isinstance(v, str):
                self.note(f'events whose "{k}" is no text, read as text', repr(v)[:60])
                values[k] = str(v)
        if "args" in parts:
            kind: Any = Args if self.cpu_wanted else GpuArgs
            try:
                values["args"] = msgspec.json.Decoder(kind | None, float_hook=str).decode(parts["args"])
            except msgspec.ValidationError:
                example = bytes(parts["args"])[:60].decode("utf-8", "replace")
                self.note('events whose "args" is no object, read without it', example)
        return self._kind(**values)

    # -- events -> columns ------------------------------------------------------------------------------

    def add(self, events: Sequence[Any]) -> None:
        """Take one batch of events, in file order."""
        base = self.count
        self.count += len(events)
        kinds = GPU_KINDS
        gpu: list[Any] = []
        gpu_at: list[int] = []
        cpu: list[Any] = []
        cpu_at: list[int] = []
        if self.cpu_wanted:
            skip_python = not self.python_frames
            for i, e in enumerate(events, base):
                if e.ph == "X":
                    cat = e.cat
                    if cat in kinds:
                        gpu.append(e)
                        gpu_at.append(i)
                    elif cat == PYTHON and skip_python:
                        self.frames_skipped += 1
                    else:
                        cpu.append(e)
                        cpu_at.append(i)
                elif e.cat in kinds or e.ph == "B" or e.ph is None:
                    self._unread(e)
        else:
            for i, e in enumerate(events, base):
                if e.cat in kinds:
                    if e.ph == "X":
                        gpu.append(e)
                        gpu_at.append(i)
                    else:
                        self._unread(e)
        if gpu:
            self._add_gpu(gpu, gpu_at)
        if cpu:
            self._add_cpu(cpu, cpu_at)

    def note(self, what: str, example: str = "", count: int = 1) -> None:
        """Count something odd; the first example is shown with the count."""
        self.notes[what] += count
        if example:
            self.examples.setdefault(what, example)

    def warnings(self) -> list[str]:
        """One sentence for each odd kind, with its count."""
        out = []
        for what, count in self.notes.items():
            example = self.examples.get(what)
            out.append(f"{count} {what}" + (f" (first: {example})" if example else ""))
        unknown = sorted(str(c) for c in self.categories if c not in OTHER_CATEGORIES)
        if unknown:
            shown = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
            out.append(f"events of unknown categories ({shown}) are not counted as GPU activity")
        return out

    def _unread(self, e: Any) -> None:
        """An event that should perhaps have been a row: say so, as its time is in no sum."""
        name = str(e.name)[:80]
        if e.ph == "B" and e.cat in GPU_KINDS:
            self.note("GPU activities written as begin/end (B/E) pairs are not counted", name)
        elif e.ph == "B":
            self.note("events written as begin/end (B/E) pairs are not read", name)
        elif e.ph is None:
            self.note('entries without a phase ("ph"), ignored', name)
        elif e.ph != "E":
            self.note("GPU activities that are no complete (X) events are not counted", name)

    def _add_common(self, table: Columns, events: list[Any], at: list[int]) -> list[Any]:
        """Times, name and index; returns the events that were kept."""
        start = to_ns([e.ts for e in events])
        if not start.ok.all():
            for i in np.flatnonzero(~start.ok)[:1].tolist():
                example = f"{events[i].name!r}, entry {at[i]}, ts {events[i].ts!r}"[:160]
                self.note("events without a usable start time, left out", example, int((~start.ok).sum()))
            keep = np.flatnonzero(start.ok).tolist()
            events, at = [events[i] for i in keep], [at[i] for i in keep]
            start = to_ns([e.ts for e in events])
            if not events:
                return events
        raw = [e.dur for e in events]
        dur = to_ns(raw)
        what = "activities" if table is self.gpu else "CPU events"
        if not dur.ok.all():
            i = int(np.flatnonzero(~dur.ok)[0])
            self.note(
                f"{what} without duration, counted as 0 ns", str(events[i].name)[:80], int((~dur.ok).sum())
            )
        if (dur.ns < 0).any():
            i = int(np.flatnonzero(dur.ns < 0)[0])
            example = f"{str(events[i].name)[:80]}, {raw[i]} us"
            self.note(f"{what} with a negative duration, counted as 0 ns", example, int((dur.ns < 0).sum()))
            np.maximum(dur.ns, 0, out=dur.ns)
        if start.rounded or dur.rounded:
            lost = "times with digits below a nanosecond, rounded half to even"
            self.note(lost, count=start.rounded + dur.rounded)
        table.add("start", start.ns)
        table.add("dur", dur.ns)
        table.add("index", np.array(at, np.int64))
        table.add("name", self.names.encode([e.name or "" for e in events]))
        table.add("pid", self._labels(self.pids, [e.pid for e in events]))
        table.rows += len(events)
        return events

    def _labels(self, codes: Codes, values: list[Any]) -> npt.NDArray[np.int32]:
        try:
            return codes.encode(values)
        except TypeError:  # a list or an object where an id belongs
            return codes.encode([v if isinstance(v, str | int | float) else str(v) for v in values])

    def _add_gpu(self, events: list[Any], at: list[int]) -> None:
        events = self._add_common(self.gpu, events, at)
        if not events:
            return
        table = self.gpu
        kinds = GPU_KINDS
        codes = _KIND_CODE
        table.add("kind", np.array([codes[kinds[e.cat]] for e in events], np.int8))
        empty = Args() if self.cpu_wanted else GpuArgs()
        args = [e.args or empty for e in events]
        self._ints(table, "device", [a.device for a in args])
        self._ints(table, "stream", [a.stream for a in args])
        self._ints(table, "correlation", [a.correlation for a in args])
        self._external(table, args)
        self._ints(table, "registers", [a.registers for a in args])
        self._ints(table, "shared_mem", [a.shared_mem for a in args])
        self._ints(table, "bytes", [a.bytes for a in args])
        self._ints(table, "graph_node", [a.graph_node for a in args])
        for what in ("grid", "block"):
            triples = [a.grid for a in args] if what == "grid" else [a.block for a in args]
            whole = [t if type(t) is list and len(t) == 3 else (None, None, None) for t in triples]
            for axis, values in zip("xyz", zip(*whole, strict=True), strict=True):
                self._ints(table, f"{what}_{axis}", list(values))

    def _add_cpu(self, events: list[Any], at: list[int]) -> None:
        events = self._add_common(self.cpu, events, at)
        if not events:
            return
        table = self.cpu
        now = CATEGORY_NOW
        table.add("category", self.categories.encode([now.get(e.cat, e.cat) or "" for e in events]))
        table.add("tid", self._labels(self.tids, [e.tid for e in events]))
        empty = Args()
        args = [e.args or empty for e in events]
        self._ints(table, "device", [a.device for a in args])
        self._ints(table, "stream", [a.stream for a in args])
        self._ints(table, "correlation", [a.correlation for a in args])
        self._external(table, args)
        table.add("shapes", self.shapes.encode([bytes(a.shapes) or bytes(a.shapes_old) for a in args]))
        table.add("dtypes", self.dtypes.encode([bytes(a.dtypes) for a in args]))

    def _external(self, table: Columns, args: list[Any]) -> None:
        values = [a.external_id for a in args]
        if None in values:
            values = [a.external_id if a.external_id is not None else a.external_id_old for a in args]
        self._ints(table, "external_id", values)

    def _ints(self, table: Columns, name: str, values: list[Any]) -> None:
        """Append whole numbers; text of digits counts, anything else is missing."""
        n = len(values)
        missing = values.count(None)
        if missing == n:
            table.add(name, np.zeros(n, np.int64), np.ones(n, np.bool_))
            return
        mask: npt.NDArray[np.bool_] | None = None
        if missing:
            mask = np.fromiter((v is None for v in values), np.bool_, n)
            values = [0 if v is None else v for v in values]
        if set(map(type, values)) == {int}:
            try:
                table.add(name, np.array(values, np.int64), mask)
                return
            except OverflowError:
                pass
        mask = np.zeros(n, np.bool_) if mask is None else mask
        out = np.zeros(n, np.int64)
        for i, v in enumerate(values):
            whole = None if mask[i] else _whole(v)
            if whole is None:
                if not mask[i] and v != "":
                    self.note(
                        f"values of {name} that are no 64-bit whole number, read as missing", repr(v)[:60]
                    )
                mask[i] = True
            else:
                out[i] = whole
        table.add(name, out, mask)


def _whole(value: Any) -> int | None:
    """A whole number that fits int64, from an int, or text such as ``"7"`` or ``7.0``."""
    if isinstance(value, bool):
        return None
    if not isinstance(value, int):
        try:
            number = float(value)
            value = (
                int(str(value)) if "." not in str(value) and "e" not in str(value).lower() else int(number)
            )
            if value != number and abs(number) < 2**53:
                return None
        except (TypeError, ValueError, OverflowError):
            return None
    return value if INT64.min <= value <= INT64.max else None
