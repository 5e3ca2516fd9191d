"""The activity table and the event table: their columns, documented once.

Every other module names columns through the constants here. One *activity* is one thing the GPU did (a
kernel, a memcpy, a memset); an *event* is any other complete event of the trace (CPU ops, launches,
annotations on both sides, synchronisations, profiler overhead).

Times are exact int64 nanoseconds. Missing is missing (``NA``), never 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

# --- activity table: one row per activity, sorted by (start_ns, event_index) ---------------------------
START_NS = "start_ns"  # int64, ns since the trace's base time; exact, no rounding
DUR_NS = "dur_ns"  # int64, ns; 0 where the trace gives no duration (the reader warns and counts them)
NAME = "name"  # category of str: the kernel's name as the trace spells it
KIND = "kind"  # category: kernel | memcpy | memset
DEVICE = "device"  # Int32: GPU index as the trace gives it
STREAM = "stream"  # Int64: stream id; NA where the producer writes none (XPU); 0 is a valid stream (ROCm)
RANK = "rank"  # int32: rank of the process; 0 where unknown (see TraceMeta.rank_known)
CORRELATION = "correlation"  # Int64: id shared with the launch; NA where absent or 0 (0 is no link)
GRAPH_NODE = "graph_node"  # Int64: CUDA-graph node id where newer Kineto writes it
GRID_X, GRID_Y, GRID_Z = "grid_x", "grid_y", "grid_z"  # Int32
BLOCK_X, BLOCK_Y, BLOCK_Z = "block_x", "block_y", "block_z"  # Int32
REGISTERS = "registers"  # Int32: registers per thread
SHARED_MEM = "shared_mem"  # Int64: bytes of shared memory per block, static + dynamic
BYTES = "bytes"  # Int64: bytes of a copy or a set
EXTERNAL_ID = "external_id"  # Int64: Kineto's "External id", links to the CPU op
# category of str: what the trace says of a collective, JSON text with name, group, ranks, elements, dtype, seq,
# elements_out, size (of the group), split_in, split_out (where parts are unequal)
COLLECTIVE = "collective"
# category of str: the same of its counterpart in a companion, for a kernel of a graph replay (added by classify)
COMPANION_COLLECTIVE = "companion_collective"
COMPANION_EXACT = "companion_exact"  # bool: that counterpart has the same grid, too (added by classify)
EVENT_INDEX = "event_index"  # int64: position in traceEvents (HTA's "index")
# joined from the CPU side (absent from the table when read with cpu=False)
LAUNCH_NAME = "launch_name"  # category: cudaLaunchKernel, cuLaunchKernelEx, cudaGraphLaunch, ...
LAUNCH_START_NS = "launch_start_ns"  # Int64
LAUNCH_DUR_NS = "launch_dur_ns"  # Int64
LAUNCH_INDEX = "launch_index"  # Int64: event_index of the launch row in the event table
OP = "op"  # category: innermost CPU op around the launch
OP_SHAPES = "op_shapes"  # category: that op's input dims, JSON text
OP_DTYPES = "op_dtypes"  # category: that op's input types, JSON text
SCOPE = "scope"  # category: path of user annotations around the launch, outermost first, joined by SCOPE_SEP
# added by later floors
STEP = "step"  # Int32: index into the steps table
OWN_NS = "own_ns"  # int64: what the activity adds to the time its stream is busy (analysis.own_time)
BUCKET, ROLE, RULE, ORIGIN = "bucket", "role", "rule", "origin"  # category
# how the origin is known: scope | module | frame | op (around the launch) | companion (another trace's launch) |
# kernel | multiplicity | neighbour (inferred) | none
ORIGIN_METHOD = "origin_method"  # category
ORIGIN_CONFIDENCE = "origin_confidence"  # float32, 0 (unknown) to 1 (said by the trace itself)

SCOPE_SEP = " > "

KERNEL, MEMCPY, MEMSET = "kernel", "memcpy", "memset"
KINDS = (KERNEL, MEMCPY, MEMSET)

GPU_COLUMNS: dict[str, str] = {
    START_NS: "int64", DUR_NS: "int64", NAME: "category", KIND: "category",
    DEVICE: "Int32", STREAM: "Int64", RANK: "int32", CORRELATION: "Int64", GRAPH_NODE: "Int64",
    GRID_X: "Int32", GRID_Y: "Int32", GRID_Z: "Int32", BLOCK_X: "Int32", BLOCK_Y: "Int32", BLOCK_Z: "Int32",
    REGISTERS: "Int32", SHARED_MEM: "Int64", BYTES: "Int64", EXTERNAL_ID: "Int64", COLLECTIVE: "category",
    EVENT_INDEX: "int64",
}  # fmt: skip

LINK_COLUMNS: dict[str, str] = {
    LAUNCH_NAME: "category", LAUNCH_START_NS: "Int64", LAUNCH_DUR_NS: "Int64", LAUNCH_INDEX: "Int64",
    OP: "category", OP_SHAPES: "category", OP_DTYPES: "category", SCOPE: "category",
}  # fmt: skip

# --- event table: one row per complete event that is not an activity, sorted by (start_ns, event_index) -----
CATEGORY = (
    "category"  # category: cpu_op | cuda_runtime | cuda_driver | user_annotation | gpu_user_annotation | ...
)
PID, TID = "pid", "tid"  # category of str: as the trace writes them (Kineto mixes integers and strings)
SHAPES, DTYPES = "shapes", "dtypes"  # category: a cpu_op's "Input Dims" / "Input type", JSON text

EVENT_COLUMNS: dict[str, str] = {
    START_NS: "int64", DUR_NS: "int64", NAME: "category", CATEGORY: "category", RANK: "int32",
    PID: "category", TID: "category", DEVICE: "Int32", STREAM: "Int64", CORRELATION: "Int64",
    EXTERNAL_ID: "Int64", SHAPES: "category", DTYPES: "category", EVENT_INDEX: "int64",
}  # fmt: skip


def empty(columns: dict[str, str]) -> pd.DataFrame:
    """An empty frame with the given columns and dtypes.

    Args:
        columns: column name -> pandas dtype string, e.g. :data:`GPU_COLUMNS`.

    Returns:
        A frame of no rows.
    """
    import pandas as pd  # not above: processes that only decode need the names of columns and no tables

    return pd.DataFrame({c: pd.Series([], dtype=t) for c, t in columns.items()})
