"""The step's timeline as a model that can be run again with other durations: who waited for what, and how long.

Each activity starts when the last of these allows it, and in the trace as recorded one of them allowed it exactly then:

* its stream: the end of the one before, plus the gap that was seen between them (programmatic launches may overlap);
* its launch: the host's call, plus the time until the GPU began;
* another stream: where it began later than both explain, the last activity there that had ended.

The host launches one call after another, as far apart as it did, and waits where it was seen to wait: for the GPU to
drain, or for room in a full launch queue. With unchanged durations the model gives back the recorded timeline exactly.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from hta_dsv4.analysis.counted import Counted
from hta_dsv4.trace import activities as col

STREAM, LAUNCH, OTHER = 0, 1, 2
_WAIT_NS = 100_000  # the host slept longer than this while the GPU was still at work: it waited for it
_FULL_QUEUE = 512  # fewer outstanding launches than this never filled a queue (CUDA's holds 1,024)
_LATE_NS = 2_000  # a start this much later than its own stream and launch explain has another cause
GRAPH_GAP_NS = 416
"""Between consecutive kernels of a graph replay, ns: the median of the shipped ``cuda_graph`` capture (one H200)."""

Ints = np.ndarray


@dataclass(frozen=True)
class Timeline:
    """One trace's activities with what each waited for, in the order in which they were launched.

    Attributes:
        order: int64 [n], row of the counted activities at each place; all other arrays follow this order.
        start, dur: int64 ns.
        stream: int64, one number per device and stream.
        run: int64, run of consecutive steps.
        step: int64, counted step.
        gap: int64, least gap after the one before on the stream; negative where they overlapped.
        launch: int64, number of the host's call; -1 where not recorded.
        latency: int64, least time from the call to the start, 0 where not recorded.
        other: int64, place of an activity on another stream that it waited for, -1 for none; ``other_gap`` ns.
        cause: int8: STREAM, LAUNCH or OTHER, what allowed the start.
        call_at: int64 [calls], the host's calls; ``call_host`` the host's own work before each, ns;
        call_wait: int64 [calls], ns after the GPU drained at which the call came; -1 where the host did not wait.
        call_first: int64 [calls], place of the call's first activity.
        call_full: int64 [calls], place of the activity whose start made room in the queue, -1 for none, and
        call_room: int64 [calls], ns after it.
        queue: activities that were outstanding at most, where that filled a queue; else 0.
    """

    order: Ints
    start: Ints
    dur: Ints
    stream: Ints
    run: Ints
    step: Ints
    gap: Ints
    launch: Ints
    latency: Ints
    other: Ints
    other_gap: Ints
    cause: Ints
    call_at: Ints
    call_host: Ints
    call_wait: Ints
    call_first: Ints
    call_full: Ints
    call_room: Ints
    queue: int

    def starts(self, dur: Ints, keep: Ints, *, graph_gap: int | None = None, host_scale: float = 1.0) -> Ints:
        """Run the timeline again.

        Args:
            dur: int64 [n], new durations, in this timeline's order.
            keep: bool [n], which activities still exist; a call of which nothing is left costs the host nothing.
            graph_gap: launch every step as one graph: no host inside a step, and at most this gap between kernels.
            host_scale: factor on the host's own work between calls.

        Returns:
            int64 [n], the starts; of what is not kept, where it would have begun.
        """
        n = len(self.order)
        begin, end = [0] * n, [0] * n
        length, kept = dur.tolist(), keep.tolist()
        gap, latency, launch = self.gap.tolist(), self.latency.tolist(), self.launch.tolist()
        other, other_gap = self.other.tolist(), self.other_gap.tolist()
        stream, run, step = self.stream.tolist(), self.run.tolist(), self.step.tolist()
        call_at, call_wait, call_full = (
            self.call_at.tolist(),
            self.call_wait.tolist(),
            self.call_full.tolist(),
        )
        call_room, call_first = self.call_room.tolist(), self.call_first.tolist()
        alive = np.bincount(self.launch[(self.launch >= 0) & keep], minlength=len(call_at)) > 0
        host = np.where(alive, np.rint(self.call_host * host_scale).astype(np.int64), 0).tolist()
        called = list(call_at)
        last: dict[int, int] = {}
        drained, now_run, now_step, now_call = 0, -1, -1, -1
        for i in range(n):
            new_run, new_step = run[i] != now_run, step[i] != now_step
            if new_run:
                last, drained, now_run = {}, int(self.start[i]), run[i]
            now_step = step[i]
            c = launch[i]
            if c >= 0 and c != now_call and call_first[c] == i:
                if c > 0 and run[call_first[c - 1]] == run[i]:
                    inside = graph_gap is not None and not new_step  # of a graph: no call of its own
                    at = called[c - 1] + (0 if inside else host[c])
                    if call_wait[c] >= 0 and not inside:
                        at = max(at, drained + call_wait[c])
                    if call_full[c] >= 0 and graph_gap is None:
                        at = max(at, begin[call_full[c]] + call_room[c])
                    if self.queue and i > self.queue and graph_gap is None:
                        at = max(at, begin[i - self.queue - 1])
                    called[c] = at
                now_call = c
            allowed = -(1 << 62)
            before = last.get(stream[i])
            if before is not None:
                space = gap[i] if graph_gap is None or new_step else min(gap[i], graph_gap)
                allowed = max(end[before] + space, begin[before])
            if c >= 0 and (graph_gap is None or new_step or before is None):
                allowed = max(allowed, called[c] + latency[i])
            if other[i] >= 0 and other[i] < i and run[other[i]] == run[i]:
                allowed = max(allowed, end[other[i]] + other_gap[i])
            if allowed < -(1 << 61):  # nothing before it and no launch recorded: where it was
                allowed = int(self.start[i])
            begin[i] = allowed
            end[i] = allowed + (length[i] if kept[i] else 0)
            if kept[i]:
                last[stream[i]] = i
                drained = max(drained, end[i])
        return np.array(begin, dtype=np.int64)


def timeline(part: Counted) -> Timeline:
    """Find out what each activity of the counted steps waited for.

    Args:
        part: the counted activities of one rank.
    """
    acts = part.activities
    start = acts[col.START_NS].to_numpy().astype(np.int64)
    dur = acts[col.DUR_NS].to_numpy().astype(np.int64).clip(min=0)
    at = _column(part, col.LAUNCH_START_NS)
    took = _column(part, col.LAUNCH_DUR_NS).clip(min=0)
    order = np.lexsort((start, np.where(at >= 0, at, start), part.run[part.step]))
    start, dur, at, took = start[order], dur[order], at[order], took[order]
    device = acts[col.DEVICE].to_numpy(dtype=np.int64, na_value=-1)[order]
    number = acts[col.STREAM].to_numpy(dtype=np.int64, na_value=-1)[order]
    stream = (
        np.unique(np.stack([device, number]), axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)
    )
    step, run = part.step[order], part.run[part.step][order]
    end = start + dur
    launch, call_first = _calls(at, run)
    call_at = at[call_first]
    gap, latency, other, other_gap, cause = _causes(start, end, at, stream, run, launch, call_first)
    full, room, wait, host, queue = _host(start, end, run, call_at, call_at + took[call_first], call_first)
    return Timeline(
        order, start, dur, stream, run, step, gap, launch, latency, other, other_gap, cause, call_at, host, wait,
        call_first, full, room, queue,
    )  # fmt: skip


def _column(part: Counted, name: str) -> Ints:
    acts = part.activities
    if name not in acts:
        return np.full(len(acts), -1, dtype=np.int64)
    return acts[name].to_numpy(dtype=np.int64, na_value=-1)


def _calls(at: Ints, run: Ints) -> tuple[Ints, Ints]:
    """Number of each activity's call (a graph launch is one call of many), and each call's first activity."""
    known = np.flatnonzero(at >= 0)
    launch = np.full(len(at), -1, dtype=np.int64)
    if not len(known):
        return launch, known
    new = np.append(True, (np.diff(at[known]) != 0) | (np.diff(run[known]) != 0))
    launch[known] = np.cumsum(new) - 1
    return launch, known[new]


def _causes(
    start: Ints, end: Ints, at: Ints, stream: Ints, run: Ints, launch: Ints, call_first: Ints
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    n = len(start)
    before = np.full(n, -1, dtype=np.int64)
    for s in np.unique(stream):
        mine = np.flatnonzero(stream == s)
        before[mine[1:]] = np.where(run[mine[1:]] == run[mine[:-1]], mine[:-1], -1)
    has = before >= 0
    free = np.where(has, end[before], np.iinfo(np.int64).min // 4)
    first = np.zeros(n, dtype=bool)
    first[call_first] = True
    after_call = np.where(at >= 0, start - at, 0)
    # Only a call's first activity tells how long a launch takes; the others of a graph come after it.
    direct = first & (after_call > 0)
    least = int(after_call[direct].min()) if direct.any() else 0
    by_launch = direct & (at + least > free)
    typical = int(np.median(after_call[by_launch])) if by_launch.any() else least
    seen = np.where(has, start - free, 0)
    close = has & ~by_launch
    usual = int(np.median(seen[close])) if close.any() else 0
    cause = np.where(by_launch, LAUNCH, STREAM).astype(np.int8)
    gap = np.where(by_launch, np.minimum(seen, usual), seen)
    latency = np.where(by_launch, after_call, np.minimum(after_call, typical))
    latency = np.where(first, latency, np.minimum(after_call, 0))
    other, other_gap = np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=np.int64)
    if len(np.unique(stream)) > 1:
        explained = np.maximum(
            np.where(has, free + usual, np.iinfo(np.int64).min // 4), np.where(at >= 0, at + typical, -1)
        )
        _other_streams(
            start, end, stream, run, np.flatnonzero(start > explained + _LATE_NS), free, at, other, other_gap
        )
        late = other >= 0
        cause[late] = OTHER
        gap[late] = np.minimum(seen[late], usual)
        latency[late] = np.where(
            first[late], np.minimum(after_call[late], typical), np.minimum(after_call[late], 0)
        )
    return gap, latency, other, other_gap, cause


def _other_streams(
    start: Ints, end: Ints, stream: Ints, run: Ints, late: Ints, free: Ints, at: Ints, other: Ints, other_gap: Ints
) -> None:  # fmt: skip
    """Fill ``other`` for late starts: the last end on another stream that lies after their own bounds."""
    places = {int(s): np.flatnonzero(stream == s) for s in np.unique(stream)}
    ends = {s: np.maximum.accumulate(end[p]).tolist() for s, p in places.items()}
    for i in late.tolist():
        best = -1
        for s, mine in places.items():
            if s == stream[i]:
                continue
            k = bisect_right(ends[s], int(start[i])) - 1
            if k >= 0:
                j = int(mine[k])
                if j < i and run[j] == run[i] and end[j] > max(int(free[i]), int(at[i])) and (
                    best < 0 or end[j] > end[best]
                ):  # fmt: skip
                    best = j
        if best >= 0:
            other[i], other_gap[i] = best, start[i] - end[best]


def _host(
    start: Ints, end: Ints, run: Ints, call_at: Ints, back: Ints, call_first: Ints
) -> tuple[Ints, Ints, Ints, Ints, int]:
    """Where the host waited, for what, and its own work before each call."""
    calls = len(call_at)
    full, wait = np.full(calls, -1, dtype=np.int64), np.full(calls, -1, dtype=np.int64)
    room, host = np.zeros(calls, dtype=np.int64), np.zeros(calls, dtype=np.int64)
    if calls < 2:
        return full, room, wait, host, 0
    delta = np.diff(call_at, prepend=call_at[0])
    same = np.append(False, run[call_first[1:]] == run[call_first[:-1]])
    reach = np.maximum.accumulate(end)
    drained = reach[np.maximum(call_first - 1, 0)]
    slept = drained - np.append(back[0], back[:-1])
    waited = same & (drained <= call_at) & (slept > _WAIT_NS) & (call_at - drained < slept)
    # Outstanding at a call: launched before it and not yet ended.
    outstanding = call_first - np.searchsorted(reach, call_at, side="right")
    outstanding = np.maximum(outstanding, 0)
    most = int(outstanding.max())
    limit = most if most >= _FULL_QUEUE else 0
    throttled = same & (outstanding >= 0.97 * limit) & ~waited if limit else np.zeros(calls, dtype=bool)
    plain = same & ~waited & ~throttled
    typical = int(np.median(delta[plain])) if plain.any() else 0
    host = np.where(same, np.where(waited | throttled, np.minimum(delta, typical), delta), 0)
    wait[waited] = (call_at - drained)[waited]
    oldest = call_first - outstanding
    began = throttled & (start[np.clip(oldest, 0, len(start) - 1)] <= call_at)
    full[began] = oldest[began]
    room[began] = call_at[began] - start[oldest[began]]
    # The rest of a throttled call's delay has no activity to hang on: it stays the host's own.
    host = np.where(throttled & ~began, delta, host)
    return full, room, wait, host, limit
