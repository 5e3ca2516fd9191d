"""Where in the decode an activity ran: in which step, in which layer of the model, under which scope.

A step is its number in the trace. A layer is what a scope around the launch names: ``layer.3/attention``
(``record_function``), ``model.layers.3`` (a module's path), ``DeepseekV4DecoderLayer_3`` (a module call as the profiler
names it, recorded with stacks). A scope is the path of annotations and modules without the annotations that mark steps,
and with ``*`` for the number of a layer, so that all layers add up.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.markers import is_step_marker

STEP, LAYER, SCOPE = "step", "layer", "scope"
PLACES = (STEP, LAYER, SCOPE)
UNKNOWN = "unknown"
NONE = "none"
"""Layer of what runs under a scope that names no layer: embedding, head, sampling."""

_LAYER = re.compile(r"(?:(?:^|[^A-Za-z])layers?[._/ \[]|Decoder_?[Ll]ayer_)([0-9]+)(?!_?\d)")
_SAID = 0.0005  # a smaller part of the sum without a place is not told
_STEP_REMEDY = (
    "record with the profiler's schedule and step(), or give a trace of an engine that annotates steps"
)
_SCOPE_REMEDY = (
    "name parts with record_function('layer.3/attention'), or record modules with stacks and read them with --frames; "
    "graph replays take them from an eager trace, --companion"
)


def layer_of(scope: str) -> str | None:
    """The number of the layer that a scope names, without leading zeros; ``None`` where it names none."""
    found = _LAYER.search(scope)
    return (found[1].lstrip("0") or "0") if found else None


def path_of(scope: str) -> str:
    """A scope without step markers, the layer's number as ``*``; :data:`UNKNOWN` where nothing is left.

    Args:
        scope: as in the activity table, parts joined by ``" > "``.

    Returns:
        E.g. ``layer.*/attention/q_kv_proj``.
    """
    parts = [p for p in scope.split(col.SCOPE_SEP) if not is_step_marker(p)]
    return _LAYER.sub(lambda m: m[0][: -len(m[1])] + "*", col.SCOPE_SEP.join(parts)) or UNKNOWN


def place_labels(activities: pd.DataFrame, key: str) -> pd.Series[str]:
    """The step, layer or scope of each activity.

    Args:
        activities: classified activity table.
        key: one of :data:`PLACES`.

    Returns:
        Category of str, with the table's index; :data:`UNKNOWN` where the trace does not say, a layer also
        :data:`NONE`.
    """
    if key == STEP:
        numbers = activities[col.STEP].to_numpy(dtype=np.int64, na_value=-1)
        codes, labels = pd.factorize(numbers)
        names = [UNKNOWN if n < 0 else str(n) for n in labels.tolist()]
        return pd.Series(pd.Categorical.from_codes(codes, pd.Index(names)), index=activities.index)
    if col.SCOPE not in activities:
        return pd.Series(pd.Categorical([UNKNOWN] * len(activities)), index=activities.index)
    scopes = activities[col.SCOPE].astype("category").cat
    found = [path_of(str(s)) for s in scopes.categories]
    if key == LAYER:
        layers = [layer_of(str(s)) for s in scopes.categories]
        found = [
            layer or (UNKNOWN if path == UNKNOWN else NONE) for layer, path in zip(layers, found, strict=True)
        ]
    names = sorted({*found, UNKNOWN})
    at = {n: i for i, n in enumerate(names)}
    table = np.array([*(at[f] for f in found), at[UNKNOWN]], dtype=np.int64)  # the last is code -1, missing
    return pd.Series(
        pd.Categorical.from_codes(table[scopes.codes.to_numpy()], pd.Index(names)), index=activities.index
    )


def in_order(labels: pd.Series[str], key: str) -> pd.Series[int]:
    """What rows by step or layer are sorted by: their number, what has none last.

    Args:
        labels: of the rows.
        key: what they are; of a scope all are equal, as scopes have no order but by time.
    """
    if key not in (STEP, LAYER):
        return pd.Series(0, labels.index)
    # Of numbers without leading zeros the longer is the larger, and none is too large for this.
    order = sorted(set(labels), key=lambda s: (s in (UNKNOWN, NONE), len(s), s))
    return labels.map({s: len(order) if s in (UNKNOWN, NONE) else i for i, s in enumerate(order)}).astype(
        "int64"
    )


def place_notes(label: str, keys: tuple[str, ...], table: pd.DataFrame, share: str) -> tuple[str, ...]:
    """What a table by place lacks, as notes.

    Args:
        label: the variant's name.
        keys: what its rows are.
        table: the table, one column per key.
        share: its column of shares.

    Returns:
        One sentence for each key of which part is unknown.

    Raises:
        HtaDsv4Error: the trace says the step, layer or scope of nothing, with what would.
    """
    notes = []
    for key in keys:
        if key not in PLACES or not len(table):
            continue
        remedy = _STEP_REMEDY if key == STEP else _SCOPE_REMEDY
        lost = table[key] == UNKNOWN
        if lost.all() or (key == LAYER and table[key].isin([UNKNOWN, NONE]).all()):
            what = "the trace shows no steps" if key == STEP else f"no scope of the trace names a {key}"
            raise HtaDsv4Error(f"{label}: --by {key}: {what}; {remedy}")
        if key == STEP:
            notes.append("a row by step is that step's own; the totals below are the mean over steps")
        if (part := float(table.loc[lost, share].sum())) >= _SAID:
            notes.append(f"{100 * part:.1f} % of the sum have no {key}; {remedy}")
    return tuple(notes)
