"""How long the host alone keeps the GPU waiting between two steps, so that enqueueing ahead would win that time.

Not all of a gap between two steps with nothing queued is the host's to win. Left out is what it spent

* in a call that waits: for the GPU (synchronisations, copies that block) or, where the trace has Python frames, for
  something else: a lock, a socket, a queue of requests, sleep. Only calls of the thread that launched next, and none
  in which it launched anything;
* in the profiler's own work (buffers requested and flushed);
* in a graph's launch call, which a profiler makes longer by some microseconds a node: in the shipped captures of graphs
  2.5 to 6 ms a step, of which the same steps without the profiler have nothing.

A wait without frames is not seen, so what is left is the most that can be won. It is told step by step: a host that is
late does so before every step, one that waited for requests now and then.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from hta_dsv4.analysis.gaps import (
    BEGIN_NS,
    BETWEEN,
    CALL,
    LATE,
    NEXT,
    START,
    WAITED,
    Gaps,
    named_intervals,
    overlap_ns,
    waits_for_gpu,
)
from hta_dsv4.analysis.window import Window
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.labels import where_label
from hta_dsv4.trace.link import is_graph_launch, is_launch_category

Ints = npt.NDArray[np.int64]

_WAITING = re.compile(
    r"(?:^|[\s.:_])(?:sleep|poll|select|wait|acquire|acquire_read|dequeue|recv|recv_bytes|recv_multipart|recv_pyobj)"
    r"(?:$|[\s(>])"
)
"""Python's calls that block, as the profiler spells them: ``threading.py(320): wait``, ``<built-in method acquire of
_thread.lock object at 0x7f>``, ``zmq/sugar/socket.py(955): recv_pyobj``, ``shm_broadcast.py(512): acquire_read``."""
_PYTHON = ("python_function", "user_annotation", "cpu_op")
_NONE = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def host_between_ns(part: Window, found: Gaps, events: pd.DataFrame) -> Ints:
    """The host's own part of what lies in front of each step.

    Args:
        part: the counted steps.
        found: their gaps, those between steps among them.
        events: event table of the same trace.

    Returns:
        int64 [steps that follow another], ns, 0 where the GPU did not run dry; of several devices added.
    """
    follows = part.run_of_step[1:] == part.run_of_step[:-1]
    table = found.table[found.table[BETWEEN].to_numpy(dtype=bool)]
    if not len(table):
        return np.zeros(int(follows.sum()), dtype=np.int64)
    ahead = table[NEXT].to_numpy()
    graph = where_label(part.activities[col.LAUNCH_NAME], is_graph_launch)[ahead]
    begin = table[BEGIN_NS].to_numpy()
    late = (table[LATE] + table[WAITED]).to_numpy()
    lost = np.zeros(len(table), dtype=np.int64)
    mine = events[events[col.RANK] == part.rank] if len(events) else events
    if len(mine):
        profiler = named_intervals(mine, lambda c: c == "overhead", lambda n: True)
        of_event = _threads(mine)
        of_launch = _thread_of_launch(part.activities, mine, of_event)
        calls = part.activities[col.LAUNCH_START_NS].to_numpy(dtype=np.int64, na_value=0)
        for thread in np.unique(of_launch[ahead]):
            rows = np.flatnonzero(of_launch[ahead] == thread)
            launched = np.sort(calls[of_launch == thread])
            away = _union(profiler, _waits(mine[of_event == thread], launched) if thread >= 0 else _NONE)
            lost[rows] = overlap_ns(begin[rows], (begin + late)[rows], away)
    own = late - lost + np.where(graph, 0, table[CALL].to_numpy()) + table[START].to_numpy()
    of_step = np.zeros(part.steps, dtype=np.int64)
    np.add.at(of_step, part.step[ahead], own)
    after: Ints = of_step[1:][follows]
    return after


def _threads(events: pd.DataFrame) -> Ints:
    """A number per event that says which thread of which process it is of."""
    process, thread = (events[c].cat.codes.to_numpy(dtype=np.int64) + 1 for c in (col.PID, col.TID))
    return process * (int(thread.max()) + 1) + thread


def _thread_of_launch(acts: pd.DataFrame, events: pd.DataFrame, of_event: Ints) -> Ints:
    """The thread that launched each activity; -1 where the call is not among the events."""
    launch = acts[col.LAUNCH_INDEX].to_numpy(dtype=np.int64, na_value=-1)
    index = events[col.EVENT_INDEX].to_numpy()
    order = np.argsort(index, kind="stable")
    row = order[np.minimum(np.searchsorted(index[order], launch), len(index) - 1)]
    return np.where(index[row] == launch, of_event[row], -1)


def _waits(thread: pd.DataFrame, launched: Ints) -> tuple[Ints, Ints]:
    """Calls of a thread in which it waited: for the GPU or for something else, and launched nothing meanwhile."""
    start, end = _union(
        named_intervals(thread, is_launch_category, waits_for_gpu),
        named_intervals(thread, lambda c: c in _PYTHON, lambda n: _WAITING.search(n) is not None),
    )
    idle = np.searchsorted(launched, start, side="right") == np.searchsorted(launched, end, side="left")
    return start[idle], end[idle]


def _union(one: tuple[Ints, Ints], other: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """The intervals of both, by start."""
    start, end = (np.concatenate(pair) for pair in zip(one, other, strict=True))
    order = np.argsort(start, kind="stable")
    return start[order], end[order]
