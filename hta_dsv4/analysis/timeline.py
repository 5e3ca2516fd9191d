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
_NEARLY = 0.9  # of the most that were outstanding: the queue was full, or nearly so
_BLOCKED = 10  # a call at a full queue that took this many times the usual waited for room
_LATE_NS = 2_000  # a start this much later than its own stream and launch explain has another cause
GRAPH_GAP_NS = 416
"""Between consecutive kernels of a graph replay, ns: the median of the shipped ``cuda_graph`` capture (one H200)."""

Ints = np.ndarray


@dataclass(frozen=True)
class Timeline:
    """One trace's activities, in time order, with what each waited for; and the host's calls, in theirs.

    Attributes:
        start, dur: int64 [n], ns.
        stream: int64 [n], one number per device and stream.
        run: int64 [n], run of consecutive steps; ``step``, the counted step.
        gap: int64 [n], least gap after the one before on the stream; negative where they overlapped.
        launch: int64 [n], number of the host's call; -1 where not recorded.
        latency: int64 [n], least time from the call to the start.
        direct: bool [n], whether the call is waited for: a graph's later kernels wait for their stream alone.
        other: int64 [n], activity on another stream that it waited for, -1 for none; ``other_gap`` ns after its end.
        cause: int8 [n]: STREAM, LAUNCH or OTHER, what allowed the start.
        call_at: int64 [calls], when each call was made, in order; ``call_place`` how many activities had begun by then.
        call_host: int64 [calls], the host's own work before it, ns; -1 for the first of a run.
        call_wait: int64 [calls], ns after the GPU drained at which it came; -1 where the host did not wait for that.
        call_room: int64 [calls], ns after the last start before it, where the launch queue was full; else -1.
        queue: activities outstanding at most, where that filled a queue; else 0.
    """

    start: Ints
    dur: Ints
    stream: Ints
    run: Ints
    step: Ints
    gap: Ints
    launch: Ints
    latency: Ints
    direct: Ints
    other: Ints
    other_gap: Ints
    cause: Ints
    call_at: Ints
    call_place: Ints
    call_host: Ints
    call_wait: Ints
    call_room: Ints
    queue: int

    def starts(self, dur: Ints, keep: Ints, *, graph_gap: int | None = None, host_scale: float = 1.0) -> Ints:
        """Run the timeline again.

        Args:
            dur: int64 [n], new durations.
            keep: bool [n], which activities still exist; a call of which nothing is left costs the host nothing.
            graph_gap: launch every step as one graph: no host inside a step, and at most this gap between kernels.
            host_scale: factor on the host's own work between calls.

        Returns:
            int64 [n], the starts; of what is not kept, where it would have begun.
        """
        n, graph = len(self.start), graph_gap is not None
        begin, end = [0] * n, [0] * n
        length, kept = dur.tolist(), keep.tolist()
        recorded, gap, latency, launch = (
            x.tolist() for x in (self.start, self.gap, self.latency, self.launch)
        )
        direct, other, other_gap = (x.tolist() for x in (self.direct, self.other, self.other_gap))
        stream, run, step = (x.tolist() for x in (self.stream, self.run, self.step))
        call_place, call_wait, call_room = (
            x.tolist() for x in (self.call_place, self.call_wait, self.call_room)
        )
        called, calls = self.call_at.tolist(), len(self.call_at)
        alive = np.bincount(self.launch[(self.launch >= 0) & keep], minlength=calls) > 0
        work = np.where(alive, np.rint(self.call_host * host_scale).astype(np.int64), 0)
        host = np.where(self.call_host < 0, -1, work).tolist()
        opens = self._opens_step().tolist()
        last: dict[int, int] = {}
        drained, c, now_run, now_step = 0, 0, -1, -1
        for i in range(n):
            while c < calls and call_place[c] <= i:  # the calls made before this activity began, in order
                if host[c] >= 0:
                    inside = graph and not opens[c]  # of a graph: no call of its own
                    at = called[c - 1] + (0 if inside else host[c])
                    if call_wait[c] >= 0 and not inside:
                        at = max(at, drained + call_wait[c])
                    if call_room[c] >= 0 and not graph:
                        at = max(at, begin[i - 1] + call_room[c])
                    called[c] = at
                c += 1
            new_step = step[i] != now_step
            if run[i] != now_run:
                last, drained, now_run = {}, recorded[i], run[i]
            now_step = step[i]
            allowed = -(1 << 62)
            before = last.get(stream[i])
            if before is not None:
                space = min(gap[i], graph_gap) if graph_gap is not None and not new_step else gap[i]
                allowed = max(end[before] + space, begin[before])
            if direct[i] and (not graph or new_step or before is None):
                allowed = max(allowed, called[launch[i]] + latency[i])
            if other[i] >= 0:
                allowed = max(allowed, end[other[i]] + other_gap[i])
            if allowed < -(1 << 61):  # nothing before it and no launch recorded: where it was
                allowed = recorded[i]
            begin[i] = end[i] = allowed
            if kept[i]:
                end[i] += length[i]
                last[stream[i]] = i
                drained = max(drained, end[i])
        return np.array(begin, dtype=np.int64)

    def _opens_step(self) -> Ints:
        """Bool [calls]: whether a call launched the first activity of a step."""
        first = np.flatnonzero(np.diff(self.step, prepend=-1) != 0)
        out = np.zeros(len(self.call_at), dtype=bool)
        out[self.launch[first][self.launch[first] >= 0]] = True
        return out


def timeline(part: Counted) -> Timeline:
    """Find out what each activity of the counted steps waited for.

    Args:
        part: the counted activities of one rank.
    """
    acts = part.activities
    start = acts[col.START_NS].to_numpy().astype(np.int64)
    dur = acts[col.DUR_NS].to_numpy().astype(np.int64).clip(min=0)
    at, took = _column(part, col.LAUNCH_START_NS), _column(part, col.LAUNCH_DUR_NS).clip(min=0)
    at = np.where(at <= start, at, -1)  # a call after the start did not cause it (a clock that drifts)
    device = acts[col.DEVICE].to_numpy(dtype=np.int64, na_value=-1)
    number = acts[col.STREAM].to_numpy(dtype=np.int64, na_value=-1)
    pairs = np.stack([device, number])
    stream = np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)
    run, end = part.run[part.step], start + dur
    launch, first = _calls(at, run)
    causes = _causes(start, end, at, stream, run, launch, first)
    calls = _host(start, end, at[first], took[first], run, launch, first)
    return Timeline(start, dur, stream, run, part.step, causes.gap, launch, causes.latency, causes.direct, causes.other,
                    causes.other_gap, causes.cause, *calls)  # fmt: skip


def _column(part: Counted, name: str) -> Ints:
    acts = part.activities
    if name not in acts:
        return np.full(len(acts), -1, dtype=np.int64)
    return acts[name].to_numpy(dtype=np.int64, na_value=-1)


def _calls(at: Ints, run: Ints) -> tuple[Ints, Ints]:
    """Number of each activity's call in order of time (a graph launch is one call of many), and its first activity."""
    known = np.flatnonzero(at >= 0)
    launch = np.full(len(at), -1, dtype=np.int64)
    if not len(known):
        return launch, known
    pairs = np.stack([run[known], at[known]])
    _, first, inverse = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
    launch[known] = inverse.reshape(-1)
    return launch, known[first]


@dataclass(frozen=True)
class _Causes:
    gap: Ints
    latency: Ints
    direct: Ints
    other: Ints
    other_gap: Ints
    cause: Ints


def _causes(start: Ints, end: Ints, at: Ints, stream: Ints, run: Ints, launch: Ints, first: Ints) -> _Causes:
    n = len(start)
    before = np.full(n, -1, dtype=np.int64)
    for s in np.unique(stream):
        mine = np.flatnonzero(stream == s)
        before[mine[1:]] = np.where(run[mine[1:]] == run[mine[:-1]], mine[:-1], -1)
    has, never = before >= 0, np.iinfo(np.int64).min // 4
    free = np.where(has, end[before], never)
    direct = np.zeros(n, dtype=bool)
    direct[first] = True
    after_call = np.where(at >= 0, start - at, 0)
    waits = direct & (after_call > 0)
    least = int(after_call[waits].min()) if waits.any() else 0
    by_launch = direct & (~has | (at + least > free))
    typical = int(np.median(after_call[by_launch])) if by_launch.any() else least
    seen = np.where(has, start - free, 0)
    close = has & ~by_launch
    usual = min(int(np.median(seen[close])), _LATE_NS) if close.any() else 0
    cause = np.where(by_launch, LAUNCH, STREAM).astype(np.int8)
    gap = np.where(by_launch, np.minimum(seen, usual), seen)
    latency = np.where(by_launch, after_call, np.minimum(after_call, typical))
    other, other_gap = np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=np.int64)
    if len(np.unique(stream)) > 1:
        explained = np.maximum(np.where(has, free + usual, never), np.where(direct, at + typical, never))
        own = np.maximum(free, np.where(direct, at, never))
        _other_streams(
            start, end, stream, run, np.flatnonzero(start > explained + _LATE_NS), own, other, other_gap
        )
        late = other >= 0
        cause[late] = OTHER
        gap[late] = np.minimum(seen[late], usual)
        latency[late] = np.minimum(after_call[late], typical)
    return _Causes(gap, latency, direct, other, other_gap, cause)


def _other_streams(
    start: Ints, end: Ints, stream: Ints, run: Ints, late: Ints, own: Ints, other: Ints, other_gap: Ints
) -> None:
    """Fill ``other`` for late starts: the last end on another stream that lies after their own bounds."""
    places = {int(s): np.flatnonzero(stream == s) for s in np.unique(stream)}
    reach = {s: np.maximum.accumulate(end[p]) for s, p in places.items()}
    ends = {s: r.tolist() for s, r in reach.items()}
    for i in late.tolist():
        best = -1
        for s, mine in places.items():
            if s == stream[i]:
                continue
            k = bisect_right(ends[s], int(start[i])) - 1
            # The activity that reaches farthest among those that had ended.
            j = int(mine[bisect_right(ends[s], ends[s][k] - 1)]) if k >= 0 else -1
            fits = j >= 0 and j < i and run[j] == run[i] and end[j] > own[i]
            if fits and (best < 0 or end[j] > end[best]):
                best = j
        if best >= 0:
            other[i], other_gap[i] = best, start[i] - end[best]


def _host(
    start: Ints, end: Ints, at: Ints, took: Ints, run: Ints, launch: Ints, first: Ints
) -> tuple[Ints, Ints, Ints, Ints, Ints, int]:
    """When each call came, its own work, and where the host waited: for the GPU, or for room in the queue."""
    calls = len(at)
    place = np.searchsorted(start, at, side="left") if calls else np.zeros(0, dtype=np.int64)
    room, wait = np.full(calls, -1, dtype=np.int64), np.full(calls, -1, dtype=np.int64)
    if not calls:
        return at, place, np.zeros(0, dtype=np.int64), wait, room, 0
    same = np.append(False, run[first[1:]] == run[first[:-1]])
    # Nothing begun in this run before a call: nothing that it could have waited for.
    led = same & (place > 0) & (run[np.maximum(place - 1, 0)] == run[first])
    delta = np.diff(at, prepend=at[0])
    reach = np.maximum.accumulate(end)
    drained = reach[np.maximum(place - 1, 0)]
    slept = drained - np.append(at[0], (at + took)[:-1])
    # Launched before a call and ended by then; the GPU has drained where that is all of them.
    made = np.bincount(launch[launch >= 0], minlength=calls)
    ended = np.searchsorted(np.sort(end[launch >= 0]), at, side="right")
    idle = (np.cumsum(made) - made <= ended) & (drained <= at)
    waited = led & idle & (slept > _WAIT_NS) & (at - drained < slept)
    # Outstanding calls: their first activity has not ended.
    outstanding = np.maximum(np.arange(calls) - np.searchsorted(np.sort(end[first]), at, side="right"), 0)
    most = int(outstanding.max())
    queue = most if most >= _FULL_QUEUE else 0
    crowded = outstanding >= _NEARLY * queue if queue else np.zeros(calls, dtype=bool)
    usual = int(np.median(took))
    if usual > 0:  # a call that found the queue full took long; what it took beyond the usual was waiting
        blocked = np.append(0, np.where(crowded & (took > _BLOCKED * usual), took - usual, 0)[:-1])
    else:  # durations of calls are not recorded: every call at a full queue may have waited
        plain = same & ~waited & ~crowded
        typical = int(np.median(delta[plain])) if plain.any() else 0
        blocked = np.where(crowded, np.maximum(delta - typical, 0), 0)
    full = led & ~waited & (blocked > 0)
    plain = same & ~waited & ~full
    typical = int(np.median(delta[plain])) if plain.any() else 0
    host = np.where(waited, np.minimum(delta, typical), np.where(full, np.maximum(delta - blocked, 0), delta))
    wait[waited] = (at - drained)[waited]
    room[full] = at[full] - start[place[full] - 1]
    return at, place, np.where(same, host, -1), wait, room, queue
