"""The cost of every launch of a trace: by the op that launched it, else by its role in a decode step.

Collectives have the bytes of their message, which go over links.

An op may own several kernels. Its cost, each tensor once, goes to the kernel that takes most of the op's time, in equal
parts where that one is launched several times (PyTorch cuts tensors beyond 2 GiB in pieces); its other kernels are
helpers, which an ideal implementation would not need.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pandas as pd

from hta_dsv4.analysis.costs.cost import MEASURED, MODELLED, UNKNOWN, Cost, helper, unknown
from hta_dsv4.analysis.costs.decode import BY_ROLE, HELPERS, Place
from hta_dsv4.analysis.costs.gemm import gemm_cost, is_product
from hta_dsv4.analysis.costs.geometry import C4, C128, Geometry
from hta_dsv4.analysis.costs.pointwise import pointwise_cost
from hta_dsv4.analysis.costs.shapes import Operand, operands
from hta_dsv4.analysis.costs.workload import Workload
from hta_dsv4.analysis.counted import Counted
from hta_dsv4.analysis.messages import messages
from hta_dsv4.analysis.wire import MODEL, SAID
from hta_dsv4.trace import activities as col

_LAYER = re.compile(r"\blayers?[._/](\d+)\b")
_PIECE = 2**31 - 1  # bytes: PyTorch's elementwise kernels index with 32 bits
COMMUNICATION = "communication"
_NO_OP = "no op recorded (a graph replay without a companion, or a launch outside any op)"

Ints = np.ndarray
Put = Callable[[Ints, Cost], None]


def launch_costs(part: Counted, w: Workload) -> tuple[list[Cost], Ints]:
    """The cost of each activity of the counted steps.

    Args:
        part: classified activities.
        w: what was decoded.

    Returns:
        Distinct costs, and int64 [activities], each activity's place among them.
    """
    acts = part.activities
    names = acts[col.NAME].astype(str).to_numpy()
    index: dict[Cost, int] = {}
    code = np.full(len(acts), -1, dtype=np.int64)

    def put(rows: Ints, cost: Cost) -> None:
        code[rows] = index.setdefault(cost, len(index))

    _copies(acts, put)
    _collectives(part, w, put)
    role = acts[col.ROLE].astype(str).to_numpy()
    _by_op(acts, names, role, code, put)
    _by_role(part, names, role, code, w, put)
    costs = list(index)
    return costs, code


def _copies(acts: pd.DataFrame, put: Put) -> None:
    kind = acts[col.KIND].astype(str).to_numpy()
    size = acts[col.BYTES].to_numpy(dtype=np.int64, na_value=-1)
    names = acts[col.NAME].astype(str).to_numpy()
    for what in (col.MEMCPY, col.MEMSET):
        for nbytes in np.unique(size[kind == what]):
            rows = np.flatnonzero((kind == what) & (size == nbytes))
            if nbytes < 0:
                put(rows, unknown("the trace does not give the copy's size"))
                continue
            inside = np.array(["DtoD" in names[r] or what == col.MEMSET for r in rows])
            read = float(nbytes) if what == col.MEMCPY else 0.0
            put(rows[inside], Cost(read, float(nbytes), known=MEASURED, source="copy size"))
            put(rows[~inside], unknown("a copy over the bus: its ceiling is not in the table"))


def _collectives(part: Counted, w: Workload, put: Put) -> None:
    acts = part.activities
    kernel = (acts[col.KIND] == col.KERNEL) & (acts[col.BUCKET].astype(str) == COMMUNICATION)
    found = messages(acts, part.step, part.steps, np.flatnonzero(kernel), w, part.rank)
    for i, m in enumerate(found.distinct):
        cost = unknown("the size of the collective's message is not known")
        if m.nbytes is not None and m.wire is None:
            cost = unknown("how many of a collective's bytes must cross a link is not known")
        elif m.wire is not None:
            source = f"the message's size ({SAID[m.how]})"
            cost = Cost(known=MODELLED if m.how == MODEL else MEASURED, source=source, message=m)
        put(found.rows[found.code == i], cost)


def _by_op(acts: pd.DataFrame, names: Ints, role: Ints, code: Ints, put: Put) -> None:
    if col.OP not in acts:
        return
    text = {
        c: acts[c].astype(object).where(acts[c].notna(), "").to_numpy()
        for c in (col.OP, col.OP_SHAPES, col.OP_DTYPES)
    }
    open_ = np.flatnonzero((text[col.OP] != "") & (code < 0))
    if not len(open_):
        return
    key = pd.MultiIndex.from_arrays([text[c][open_] for c in text]).factorize()[0].astype(np.int64)
    call = _calls(acts, open_, key)
    duration = acts[col.DUR_NS].to_numpy()
    grid = acts[col.GRID_X].to_numpy(dtype=np.int64, na_value=0)
    for k in range(int(key.max()) + 1):
        mine = np.flatnonzero(key == k)
        rows = open_[mine]
        op = str(text[col.OP][rows[0]])
        if not op.startswith("aten::"):
            continue
        arguments = operands(str(text[col.OP_SHAPES][rows[0]]), str(text[col.OP_DTYPES][rows[0]]))
        name_code, labels = pd.factorize(names[rows])
        # What finishes another kernel's work is never the main one, however long it takes.
        weight = np.where(np.isin(role[rows], list(HELPERS)), 0.0, duration[rows])
        main = int(np.argmax(np.bincount(name_code, weights=weight)))
        leads = name_code == main
        helpers, rows, of_call = rows[~leads], rows[leads], call[mine][leads]
        pieces = np.bincount(of_call)[of_call]
        if not any(a is not None and a.nbytes > _PIECE for a in arguments) and op not in (
            "aten::topk",
            "aten::sort",
        ):
            # Equal kernels side by side are pieces of one call only where the trace numbers the calls.
            pieces = np.where(_numbered(acts)[rows], pieces, 1)
        plain = op.removeprefix("aten::")
        cost = unknown(f"{op}: no kernel")
        for n, g in sorted({(int(p), int(x)) for p, x in zip(pieces, grid[rows], strict=True)}):
            cost = _op_cost(plain, arguments, str(labels[main]), g)
            put(rows[(pieces == n) & (grid[rows] == g)], cost.part(n))
        put(helpers, cost if is_unknown(cost) else helper(f"the op's main kernel ({op})"))


def _op_cost(op: str, arguments: tuple[Operand | None, ...], kernel: str, grid_x: int) -> Cost:
    if is_product(op):
        return gemm_cost(op, arguments, kernel)
    base = op if op.endswith("__") else op.rstrip("_")
    return pointwise_cost(base, arguments, kernel, grid_x or None)


def _numbered(acts: pd.DataFrame) -> Ints:
    return acts[col.EXTERNAL_ID].notna().to_numpy()


def _calls(acts: pd.DataFrame, rows: Ints, key: Ints) -> Ints:
    """Which call of its op each row belongs to: by the trace's number of the call, else by rows in one piece."""
    number = acts[col.EXTERNAL_ID].to_numpy(dtype=np.int64, na_value=-1)[rows]
    pieces = np.cumsum(np.append(True, (np.diff(key) != 0) | (np.diff(rows) != 1)))
    by_number = np.where(number >= 0, number, -pieces)
    return pd.factorize(by_number)[0].astype(np.int64)


def _by_role(part: Counted, names: Ints, role: Ints, code: Ints, w: Workload, put: Put) -> None:
    acts, g, B = part.activities, w.geometry, w.batch
    has_op = acts[col.OP].notna().to_numpy() if col.OP in acts else np.zeros(len(acts), dtype=bool)
    left = np.flatnonzero(code < 0)
    origin = acts[col.ORIGIN].astype(str).to_numpy() if col.ORIGIN in acts else np.full(len(acts), "unknown")
    for r in np.unique(role[left]):
        rows = left[role[left] == r]
        model = BY_ROLE.get(str(r))
        if str(r) in HELPERS and g is not None and B is not None:
            put(rows, helper(HELPERS[str(r)]))
            continue
        if model is None or g is None or B is None:
            if model is not None:
                why = (
                    "the model is not known" if g is None else "the concurrency is not known (--concurrency)"
                )
            else:
                why = f"no cost model for role {r}"
            for flag in (True, False):
                at = rows[has_op[rows] == flag]
                put(at, unknown(why if flag or model is not None else f"{why}; {_NO_OP}"))
            continue
        layer = _layers(part, rows, g)
        place = pd.DataFrame({"origin": origin[rows], "step": part.step[rows], "layer": layer})
        group = place.groupby(["origin", "step", "layer"], sort=False)
        nth, of = group.cumcount().to_numpy(), group["step"].transform("size").to_numpy()
        grids = [
            acts[c].to_numpy(dtype=np.int64, na_value=0)[rows] for c in (col.GRID_X, col.GRID_Y, col.GRID_Z)
        ]
        kinds = np.array([None if x < 0 or x >= len(g.layers) else g.layers[x] for x in layer], dtype=object)
        frame = pd.DataFrame({"kind": kinds, "origin": origin[rows], "nth": nth, "of": of, "x": grids[0], "y": grids[1],
                              "z": grids[2], "name": names[rows]})  # fmt: skip
        for at in frame.groupby(list(frame.columns), dropna=False, sort=False).indices.values():
            i = int(at[0])
            spot = Place(
                kinds[i], str(origin[rows[i]]), int(nth[i]), int(of[i]),
                (int(grids[0][i]), int(grids[1][i]), int(grids[2][i])), str(names[rows[i]]),
            )  # fmt: skip
            put(rows[at], model(spot, w, g, B))


def _layers(part: Counted, rows: Ints, g: Geometry) -> Ints:
    """The layer of each row: as its scope names it, else by its place among the step's launches; -1 where neither."""
    acts = part.activities
    out = np.full(len(rows), -1, dtype=np.int64)
    if col.SCOPE in acts:
        scope = acts[col.SCOPE].iloc[rows]
        found = (
            scope.astype(object)
            .where(scope.notna(), "")
            .astype(str)
            .str.extract(_LAYER.pattern, expand=False)
        )
        out = pd.to_numeric(found, errors="coerce").fillna(-1).to_numpy().astype(np.int64)
    if (out >= 0).all():
        return out
    kinds = g.layers
    of_kind = {k: [i for i, kind in enumerate(kinds) if kind == k] for k in (C4, C128)}
    both = [i for i, kind in enumerate(kinds) for _ in range(1 if kind == "swa" else 2)]
    for step in range(part.steps):
        mine = np.flatnonzero((part.step[rows] == step) & (out < 0))
        n = len(mine)
        places = next(
            (
                p
                for p in (
                    list(range(len(kinds))),
                    both,
                    of_kind[C4],
                    of_kind[C128],
                    sorted(of_kind[C4] + of_kind[C128]),
                )
                if n and n % len(p) == 0 and (p is not both or n == len(both))
            ),
            None,
        )
        if places is not None:
            each = n // len(places)
            out[mine] = np.repeat(places, each)
    return out


def is_unknown(cost: Cost) -> bool:
    """Whether nothing is known of a cost."""
    return cost.known == UNKNOWN
