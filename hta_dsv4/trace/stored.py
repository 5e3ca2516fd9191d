"""How does a read trace lie on disk, and come back exactly? A :class:`Trace` <-> a folder of three files.

``activities.parquet`` and ``events.parquet`` hold numbers: categories as their codes, missing values as nulls.
``trace.json`` holds the rest: the labels of each category, every column's dtype, the metadata and the warnings. What
comes back equals what was stored, dtypes and order of categories included; whatever does not is an error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from hta_dsv4.trace.model import Trace

TABLES = ("activities", "events")
ROWS = 1 << 20  # rows of a row group: what is held a second time while writing and reading
_APART = (
    "path",
    *TABLES,
)  # fields of a trace that are no JSON; every other is stored and comes back by its type
_NULLABLE = {"Int32": np.int32, "Int64": np.int64}
_PLAIN = {"int32": np.int32, "int64": np.int64}


class Damaged(Exception):  # noqa: N818  # no error of the user's: the entry is made again
    """The files are not what was stored."""


def store(trace: Trace, folder: Path, about: Mapping[str, Any]) -> None:
    """Write a trace into an empty folder.

    Args:
        trace: as read.
        folder: where to; exists.
        about: JSON values to keep beside it (see :func:`about_of`).

    Raises:
        OSError: the files cannot be written.
        TypeError, ValueError: the trace holds what JSON or these tables cannot.
    """
    tables = {name: _write(getattr(trace, name), folder / f"{name}.parquet") for name in TABLES}
    facts = {name: getattr(trace, name) for name in _facts()}
    body = {"about": dict(about), "tables": tables, "facts": {**facts, "meta": asdict(trace.meta)}}
    text = json.dumps(body)
    (folder / "trace.json").write_text(f"{_digest(text.encode())}\n{text}\n", encoding="ascii")


def load(folder: Path, path: Path) -> Trace:
    """The trace stored in a folder.

    Args:
        folder: where it lies.
        path: what its ``path`` is to be.

    Raises:
        Damaged, OSError: it is not there, or not as it was written. (Of broken Parquet the library raises
            ``ArrowException`` as well.)
    """
    body = _body(folder)
    try:
        activities, events = (_read(folder / f"{t}.parquet", body["tables"][t]) for t in TABLES)
        # JSON has no tuples, and text alone as keys: the types of the fields say what there was
        facts = {n: msgspec.convert(body["facts"][n], t, str_keys=True) for n, t in _facts().items()}
        return Trace(path=path, activities=activities, events=events, **facts)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise Damaged(f"{folder}: {error}") from error


def about_of(folder: Path) -> dict[str, Any]:
    """What was kept beside the trace in a folder; raises as :func:`load`."""
    about = _body(folder).get("about")
    if not isinstance(about, dict):
        raise Damaged(f"{folder}: nothing about it")
    return about


@cache
def _facts() -> dict[str, Any]:
    """The fields of a trace that are JSON, and their types."""
    return {name: kind for name, kind in get_type_hints(Trace).items() if name not in _APART}


def _body(folder: Path) -> dict[str, Any]:
    try:
        digest, _, text = (folder / "trace.json").read_text(encoding="ascii").partition("\n")
    except UnicodeDecodeError as error:
        raise Damaged(f"{folder}: {error}") from error
    text = text.removesuffix("\n")
    if digest != _digest(text.encode()):
        raise Damaged(f"{folder}: trace.json is not as it was written")
    body: dict[str, Any] = json.loads(text)
    return body


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


# --- tables --------------------------------------------------------------------------------------------


def _write(table: pd.DataFrame, path: Path) -> dict[str, Any]:
    """Write one table; returns what :func:`_read` needs to know of it."""
    columns: dict[str, Any] = {}
    arrays: dict[str, tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]] = {}
    for name in table.columns:
        series = table[name]
        dtype = series.dtype
        if isinstance(dtype, pd.CategoricalDtype):
            labels = series.cat.categories
            if not all(isinstance(v, str) for v in labels):
                raise TypeError(f"column {name}: labels that are no text")
            columns[name] = {"labels": list(labels), "of": str(labels.dtype), "ordered": bool(dtype.ordered)}
            arrays[name] = series.cat.codes.to_numpy(), None
        elif str(dtype) in _NULLABLE:
            columns[name] = {"dtype": str(dtype)}
            mask = series.isna().to_numpy()
            arrays[name] = series.to_numpy(dtype=_NULLABLE[str(dtype)], na_value=0), mask
        elif str(dtype) in _PLAIN:
            columns[name] = {"dtype": str(dtype)}
            arrays[name] = series.to_numpy(), None
        else:
            raise TypeError(f"column {name} of dtype {dtype}: not one of the tables' dtypes")
    types = {n: pa.from_numpy_dtype(values.dtype) for n, (values, _) in arrays.items()}
    schema = pa.schema([pa.field(n, t) for n, t in types.items()])
    # Times, indices and ids grow from row to row: differences packed into few bits are 7 times smaller than
    # plain, and read faster, measured. 8 and 16 bit codes are 32 bits wide in Parquet, so they may be packed too.
    with pq.ParquetWriter(
        path, schema, compression="lz4", use_dictionary=False, write_statistics=False,
        column_encoding=dict.fromkeys(arrays, "DELTA_BINARY_PACKED"),
    ) as writer:  # fmt: skip
        for start in range(0, len(table), ROWS):
            part = slice(start, start + ROWS)
            made = [
                pa.array(values[part], mask=None if mask is None else mask[part])
                for values, mask in arrays.values()
            ]
            writer.write_table(pa.Table.from_arrays(made, schema=schema), row_group_size=ROWS)
    return {"rows": len(table), "columns": columns, "digest": _digest(path.read_bytes())}


def _read(path: Path, spec: Mapping[str, Any]) -> pd.DataFrame:
    """Read one table, a row group at a time, so that little is held twice."""
    data = path.read_bytes()  # packed, some 14 bytes a row
    if spec["digest"] != _digest(data):
        raise Damaged(f"{path}: not as it was written")
    rows, columns = int(spec["rows"]), spec["columns"]
    values: dict[str, npt.NDArray[Any]] = {}
    masks = {n: np.zeros(rows, np.bool_) for n, how in columns.items() if how.get("dtype") in _NULLABLE}
    at = 0
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        if file.schema_arrow.names != list(columns) or file.metadata.num_rows != rows:
            raise Damaged(f"{path}: other columns or rows than were written")
        for field in file.schema_arrow:
            values[field.name] = np.empty(rows, field.type.to_pandas_dtype())
        for group in _groups(file):
            end = at + group.num_rows
            for name, column in zip(group.column_names, group.columns, strict=True):
                chunk = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
                if name in masks:
                    if chunk.null_count:
                        masks[name][at:end] = chunk.is_null().to_numpy(zero_copy_only=False)
                        chunk = chunk.fill_null(0)
                elif chunk.null_count:
                    raise Damaged(f"{path}: nulls in column {name}")
                values[name][at:end] = chunk.to_numpy(zero_copy_only=False)
            at = end
    return pd.DataFrame({n: _column(values[n], masks.get(n), how) for n, how in columns.items()}, copy=False)


def _groups(file: pq.ParquetFile) -> Iterator[pa.Table]:
    for i in range(file.num_row_groups):
        yield file.read_row_group(i)


def _column(values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None, how: Mapping[str, Any]) -> Any:
    if "labels" in how:
        labels = pd.Index(how["labels"], dtype=how["of"])
        if len(values) and not -1 <= int(values.min()) <= int(values.max()) < len(labels):
            raise Damaged("codes without a label")
        return pd.Categorical.from_codes(values, dtype=pd.CategoricalDtype(labels, ordered=how["ordered"]))
    if mask is not None:
        return pd.arrays.IntegerArray(values.astype(_NULLABLE[how["dtype"]], copy=False), mask)
    return values.astype(_PLAIN[how["dtype"]], copy=False)
