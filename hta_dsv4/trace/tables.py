"""What do the collected columns look like as tables? Columns -> the activity table and the event table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.extensions import ExtensionArray

from hta_dsv4.trace import activities as col
from hta_dsv4.trace.collect import Collector
from hta_dsv4.trace.columns import Codes, Columns, whole_numbers
from hta_dsv4.trace.meta import device_of_pid

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def categorical(
    codes: npt.NDArray[Any], labels: Sequence[Any], text: Callable[[Any], str | None] = str
) -> pd.Categorical:
    """Codes into ``labels`` -> a categorical that holds only labels in use.

    Args:
        codes: int, shape (n,); -1 is missing.
        labels: what the codes stand for.
        text: spells a label; labels spelled alike become one, ``None`` makes them missing.

    Returns:
        A categorical of n strings, categories in order of first use in ``labels``.
    """
    used = np.zeros(len(labels) + 1, np.bool_)
    used[codes] = True  # -1 marks the spare last place
    new: dict[str, int] = {}
    remap = np.full(len(labels) + 1, -1, np.int32)
    for i in np.flatnonzero(used[:-1]).tolist():
        spelled = text(labels[i])
        if spelled is not None:
            remap[i] = new.setdefault(spelled, len(new))
    dtype = pd.CategoricalDtype(pd.Index(list(new), dtype="str" if _STR else object), ordered=False)
    return pd.Categorical.from_codes(remap[codes], dtype=dtype, validate=False)


# pandas 3 keeps text as "str" by itself; pandas 2 as object.
_STR = int(pd.__version__.split(".")[0]) >= 3


def integer(values: Ints, mask: Mask, dtype: str) -> ExtensionArray:
    """Whole numbers with missing ones -> a nullable pandas array (``Int32`` or ``Int64``)."""
    return pd.arrays.IntegerArray(values.astype(np.int32 if dtype == "Int32" else np.int64), mask)


def json_text(raw: bytes) -> str | None:
    """JSON as compact text, so that one value has one spelling however the file was formatted."""
    return msgspec.json.format(raw, indent=-1).decode("utf-8", "replace") if raw else None


class Builder:
    """Builds both tables from a collector.

    Args:
        c: the collector, complete.
        rank: the file's rank.
        rank_of_pid: pid -> rank for a merged file; empty otherwise.
    """

    def __init__(self, c: Collector, rank: int, rank_of_pid: dict[str, int]) -> None:
        self.c = c
        self.rank = rank
        self.rank_of_pid = rank_of_pid

    def activities(self) -> pd.DataFrame:
        """The activity table, without the linked columns; dtypes of ``GPU_COLUMNS``."""
        table = self.c.gpu
        if not table.rows:
            return col.empty(col.GPU_COLUMNS)
        order, data = self._common(table)
        pid, _ = table.take("pid")
        device, absent = table.take("device")
        if absent.any():
            # Kineto's GPU rows carry the device as their pid as well.
            by_pid = [device_of_pid(str(p)) for p in self.c.pids]
            number = np.array([d or 0 for d in by_pid], np.int64)[pid]
            known = np.array([d is not None for d in by_pid], np.bool_)[pid]
            device, absent = np.where(absent, number, device), absent & ~known
        kind = pd.CategoricalDtype(list(col.KINDS))
        data[col.KIND] = pd.Categorical.from_codes(table.take("kind")[0][order], dtype=kind)
        data[col.DEVICE] = self._int32(device, absent, order, "device")
        correlation, none = table.take("correlation")
        data[col.CORRELATION] = integer(correlation[order], (none | (correlation == 0))[order], "Int64")
        for name in (col.STREAM, col.GRAPH_NODE, col.SHARED_MEM, col.BYTES, col.EXTERNAL_ID):
            values, mask = table.take(name)
            if name == col.EXTERNAL_ID:
                mask = mask | (values == 0)  # Kineto numbers ops from 1
            data[name] = integer(values[order], mask[order], "Int64")
        said = table.take("collective")[0][order]
        data[col.COLLECTIVE] = categorical(said, list(self.c.collectives), _collective_text)
        data[col.REGISTERS] = self._int32(*table.take(col.REGISTERS), order, col.REGISTERS)
        values, absent = self._dims()
        for what in ("grid", "block"):
            codes = table.take(what)[0]
            for i, axis in enumerate("xyz"):
                name = f"{what}_{axis}"
                data[name] = self._int32(values[codes, i], absent[codes, i], order, name)
        return pd.DataFrame({c: data[c] for c in col.GPU_COLUMNS}, copy=False)

    def events(self) -> pd.DataFrame:
        """The event table; dtypes of ``EVENT_COLUMNS``."""
        table, c = self.c.cpu, self.c
        if not table.rows:
            return col.empty(col.EVENT_COLUMNS)
        order, data = self._common(table)
        data[col.CATEGORY] = categorical(table.take("category")[0][order], list(c.categories))
        data[col.PID] = categorical(table.take("pid")[0][order], list(c.pids), _id_text)
        data[col.TID] = categorical(table.take("tid")[0][order], list(c.tids), _id_text)
        data[col.DEVICE] = self._int32(*table.take("device"), order, "device")
        stream, mask = table.take("stream")
        data[col.STREAM] = integer(stream[order], mask[order], "Int64")
        for name in (col.CORRELATION, col.EXTERNAL_ID):
            values, mask = table.take(name)
            data[name] = integer(values[order], (mask | (values == 0))[order], "Int64")
        data[col.SHAPES] = categorical(table.take("shapes")[0][order], list(c.shapes), json_text)
        data[col.DTYPES] = categorical(table.take("dtypes")[0][order], list(c.dtypes), json_text)
        return pd.DataFrame({k: data[k] for k in col.EVENT_COLUMNS}, copy=False)

    def _common(self, table: Columns) -> tuple[Any, dict[str, Any]]:
        start = table.take("start")[0]
        # Rows were added in file order, so a stable sort by start orders ties by their place in the file.
        order: Any = np.argsort(start, kind="stable")
        if len(start) < 2 or (order[1:] > order[:-1]).all():
            order = slice(None)  # in order already: nothing to copy
        data: dict[str, Any] = {
            col.START_NS: start[order],
            col.DUR_NS: table.take("dur")[0][order],
            col.NAME: categorical(table.take("name")[0][order], list(self.c.names)),
            col.EVENT_INDEX: table.take("index")[0][order],
        }
        if self.rank_of_pid:
            by_code = np.array([self.rank_of_pid.get(str(p), self.rank) for p in self.c.pids], np.int32)
            data[col.RANK] = by_code[table.columns["pid"].join()[0][order]]
        else:
            data[col.RANK] = np.full(table.rows, self.rank, np.int32)
        return order, data

    def _dims(self) -> tuple[Ints, Mask]:
        """The (x, y, z) of each spelling of a grid or block: values and what is missing, shape (spellings, 3)."""
        triples: list[Any] = []
        decoder = msgspec.json.Decoder(float_hook=str)  # no number is too long or too large to be looked at
        for raw in self.c.dims:
            try:
                triple = decoder.decode(raw) if raw else None
            except msgspec.DecodeError:
                triple = [bytes(raw).decode("utf-8", "replace")] * 3
            if isinstance(triple, list) and len(triple) == 3:
                triples.extend(triple)
            else:
                triples.extend((None, None, None))
        what = "spellings of grid or block that are no whole numbers, read as missing"
        values, mask = whole_numbers(triples, lambda shown: self.c.note(what, shown))
        return values.reshape(-1, 3), mask.reshape(-1, 3)

    def _int32(self, values: Ints, mask: Mask, order: Any, name: str) -> ExtensionArray:
        wide = ~mask & (np.abs(values) > np.iinfo(np.int32).max)
        if wide.any():
            self.c.note(f"values of {name} beyond 32 bits, read as missing", count=int(wide.sum()))
            mask = mask | wide
        return integer(np.where(mask, 0, values)[order], mask[order], "Int32")


def _collective_text(said: tuple[Any, ...]) -> str:
    names = (
        "name", "group", "ranks", "elements", "dtype", "seq", "elements_out", "size", "split_in", "split_out",
    )  # fmt: skip
    told = {k: v for k, v in zip(names, said, strict=True) if v not in (None, "[]")}  # no splits: equal parts
    return msgspec.json.encode(told).decode()


def _id_text(value: Any) -> str | None:
    return None if value is None else str(value)


def pids_as_text(codes: Codes) -> list[str]:
    """Every pid seen, as text."""
    return [str(p) for p in codes]
