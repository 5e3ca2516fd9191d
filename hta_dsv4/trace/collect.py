"""What does each batch of events add to the tables? Structs -> columns, without keeping events alive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hta_dsv4.trace.columns import Codes, Column, Columns, narrow, whole_numbers
from hta_dsv4.trace.schema import (
    CATEGORY_NOW,
    CPU,
    FLOWS,
    GPU,
    GPU_KINDS,
    KIND_CODE,
    NO_PHASE,
    NO_RAW,
    OTHER_CATEGORIES,
    PYTHON,
    SKIPPED,
    EventDecoder,
)
from hta_dsv4.trace.times import to_ns

_PYTHON = frozenset({PYTHON, "PythonFunction"})
# Start times up to 73 years from 0 (Unix time needs 59) and durations up to 417 days, so that no end, no span and
# no percentage of a sum can pass the end of int64. What is longer is corrupt.
FARTHEST_NS, LONGEST_NS = 1 << 61, 1 << 55


_CODED = {
    "name": "names", "category": "categories", "pid": "pids", "tid": "tids", "shapes": "shapes", "dtypes": "dtypes",
    "grid": "dims", "block": "dims", "collective": "collectives",
}  # fmt: skip
"""Column -> the collector's codes that it holds."""
_CODES = tuple(dict.fromkeys(_CODED.values()))


class Collector:
    """Takes batches of events and keeps columns.

    Args:
        cpu: keep the CPU side too.
        python_frames: keep Python frames among it.

    Attributes:
        decoder: decodes the batches that :meth:`add` takes.
        gpu: columns of the activities.
        cpu: columns of all other complete events.
        count: events seen so far, of any kind.
        notes: what was odd, and how often.
    """

    def __init__(self, *, cpu: bool, python_frames: bool) -> None:
        self.cpu_wanted = cpu
        self.python_frames = python_frames
        self.gpu, self.cpu = Columns(), Columns()
        self.names, self.categories, self.pids, self.tids = Codes(), Codes(), Codes(), Codes()
        self.shapes, self.dtypes, self.dims, self.collectives = Codes(), Codes(), Codes(), Codes()
        self.count = 0  # events seen so far: the next event's index
        self.notes: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self.decoder = EventDecoder(cpu, python_frames, self.note)

    def __getstate__(self) -> dict[str, Any]:
        """What :meth:`absorb` needs; a decoder cannot leave its process."""
        return {k: v for k, v in self.__dict__.items() if k != "decoder"}

    def add(self, events: Sequence[Any]) -> None:
        """Take one batch of events, in file order."""
        base = self.count
        self.count += len(events)
        sides = self.decoder.sides
        try:
            side = np.fromiter(map(sides.__getitem__, map(type, events)), np.int8, len(events))
        except KeyError:  # events of any category in one type of struct
            side = np.fromiter(map(self._side, events), np.int8, len(events))
        wanted = np.flatnonzero(side).tolist()
        if [events[i].ph for i in wanted].count("X") != len(wanted):
            for i in wanted:
                if events[i].ph != "X":
                    self._unread(events[i])
                    side[i] = SKIPPED
        for which, add in ((GPU, self._add_gpu), (CPU, self._add_cpu)):
            at = np.flatnonzero(side == which)
            if len(at):
                add([events[i] for i in at.tolist()], at + base)

    def _side(self, e: Any) -> int:
        """Whether an event is of the GPU, of the CPU, or of no interest."""
        if e.cat in GPU_KINDS:
            return GPU
        if e.ph is None or e.ph == "B":
            return CPU  # where it is complained of
        if e.cat in FLOWS or not self.cpu_wanted or e.ph != "X":
            return SKIPPED
        return CPU if self.python_frames or e.cat not in _PYTHON else SKIPPED

    def alike(self) -> Collector:
        """An empty collector of the same kind."""
        return Collector(cpu=self.cpu_wanted, python_frames=self.python_frames)

    def absorb(self, part: Collector) -> None:
        """Take what another collector made of the events that follow, as if they had been added here.

        Args:
            part: a collector of one batch, which noted nothing.
        """
        codes = {}
        for name in _CODES:
            mine, theirs = getattr(self, name), getattr(part, name)
            # The spare last place is for -1, which means missing.
            codes[name] = np.array([mine.setdefault(v, len(mine)) for v in theirs] + [-1], np.int32)
        for table, more in ((self.gpu, part.gpu), (self.cpu, part.cpu)):
            for name, column in more.columns.items():
                into = table.columns.setdefault(name, Column())
                for rows, values, mask in column.parts:
                    if values is not None and name == "index":
                        values = values + np.int64(self.count)
                    elif values is not None and name in _CODED:
                        values = codes[_CODED[name]][values]
                    into.parts.append((rows, narrow(values) if values is not None else None, mask))
            table.rows += more.rows
        self.count += part.count

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
            self.note(NO_PHASE, name)
        elif e.ph != "E" and e.cat in GPU_KINDS:
            self.note("GPU activities that are no complete (X) events are not counted", name)

    def _add_common(self, table: Columns, events: list[Any], at: npt.NDArray[np.int64]) -> list[Any]:
        """Times, name and index; returns the events that were kept."""
        start = to_ns([e.ts for e in events])
        usable = start.ok & (start.ns >= -FARTHEST_NS) & (start.ns <= FARTHEST_NS)
        if not usable.all():
            for i in np.flatnonzero(~usable)[:1].tolist():
                example = f"{events[i].name!r}, entry {at[i]}, ts {events[i].ts!r}"[:160]
                self.note("events without a usable start time, left out", example, int((~usable).sum()))
            keep = np.flatnonzero(usable).tolist()
            events, at = [events[i] for i in keep], at[keep]
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
        if (beyond := dur.ns > LONGEST_NS).any():
            i = int(np.flatnonzero(beyond)[0])
            example = f"{str(events[i].name)[:80]}, {raw[i]} us"[:160]
            self.note(f"{what} with an impossible duration, counted as 0 ns", example, int(beyond.sum()))
            dur.ns[beyond] = 0
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
        table.add("index", at)
        table.add("name", self.names.encode([e.name or "" for e in events]))
        table.add("pid", self._labels(self.pids, [e.pid for e in events]))
        table.rows += len(events)
        return events

    def _labels(self, codes: Codes, values: list[Any]) -> npt.NDArray[np.int32]:
        try:
            return codes.encode(values)
        except TypeError:  # a list or an object where an id belongs
            return codes.encode([_scalar(v) for v in values])

    def _add_gpu(self, events: list[Any], at: npt.NDArray[np.int64]) -> None:
        events = self._add_common(self.gpu, events, at)
        if not events:
            return
        table = self.gpu
        kinds = [e.cat for e in events]
        code = {k: KIND_CODE[GPU_KINDS[k]] for k in set(kinds)}
        table.add("kind", np.fromiter(map(code.__getitem__, kinds), np.int8, len(kinds)))
        empty = self.decoder.no_args
        args = [e.args or empty for e in events]
        self._ints(table, "device", [a.device for a in args])
        self._ints(table, "stream", [a.stream for a in args])
        self._ints(table, "correlation", [a.correlation for a in args])
        self._external(table, args)
        self._ints(table, "registers", [a.registers for a in args])
        self._ints(table, "shared_mem", [a.shared_mem for a in args])
        self._ints(table, "bytes", [a.bytes for a in args])
        self._ints(table, "graph_node", [a.graph_node for a in args])
        table.add("collective", self._collectives(args))
        # A trace has few different shapes of launch: keep the text's number here, read each text once later.
        table.add("grid", self.dims.encode([b"" if a.grid is NO_RAW else bytes(a.grid) for a in args]))
        table.add("block", self.dims.encode([b"" if a.block is NO_RAW else bytes(a.block) for a in args]))

    def _add_cpu(self, events: list[Any], at: npt.NDArray[np.int64]) -> None:
        events = self._add_common(self.cpu, events, at)
        if not events:
            return
        table = self.cpu
        categories = [e.cat for e in events]
        if None in (distinct := set(categories)) or distinct & CATEGORY_NOW.keys():
            categories = [CATEGORY_NOW.get(c, c) or "" for c in categories]
        if "" in distinct or None in distinct:
            nameless = next(str(e.name)[:80] for e in events if not e.cat)
            count = categories.count("")
            self.note("complete events without a category, not counted as GPU activity", nameless, count)
        table.add("category", self.categories.encode(categories))
        table.add("tid", self._labels(self.tids, [e.tid for e in events]))
        empty = self.decoder.no_args
        args = [e.args or empty for e in events]
        self._ints(table, "device", [a.device for a in args])
        self._ints(table, "stream", [a.stream for a in args])
        self._ints(table, "correlation", [a.correlation for a in args])
        self._external(table, args)
        shapes = [a.shapes if a.shapes is not NO_RAW else a.shapes_old for a in args]
        table.add("shapes", self.shapes.encode([b"" if r is NO_RAW else bytes(r) for r in shapes]))
        table.add(
            "dtypes", self.dtypes.encode([b"" if a.dtypes is NO_RAW else bytes(a.dtypes) for a in args])
        )

    def _collectives(self, args: list[Any]) -> npt.NDArray[np.int32]:
        """Codes of what is said about collectives; -1 where an activity is none."""
        codes = np.full(len(args), -1, np.int32)
        at = [i for i, a in enumerate(args) if a.collective is not None]
        if at:
            said = [args[i] for i in at]
            fields = [
                (
                    a.collective, a.process_group, a.group_ranks, a.elements, a.collective_dtype, a.sequence,
                    a.elements_out, a.group_size, a.split_in, a.split_out,
                )
                for a in said
            ]  # fmt: skip
            codes[at] = self._labels(self.collectives, [tuple(map(_scalar, f)) for f in fields])
        return codes

    def _external(self, table: Columns, args: list[Any]) -> None:
        values = [a.external_id for a in args]
        if None in values:
            values = [a.external_id if a.external_id is not None else a.external_id_old for a in args]
        self._ints(table, "external_id", values)

    def _ints(self, table: Columns, name: str, values: list[Any]) -> None:
        what = f"values of {name} that are no 64-bit whole number, read as missing"
        table.add(name, *whole_numbers(values, lambda shown: self.note(what, shown)))


def _scalar(value: Any) -> Any:
    """A value that can be told apart from others: lists and objects as their text."""
    return value if value is None or isinstance(value, str | int | float) else str(value)
