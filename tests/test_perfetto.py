"""The Perfetto export, read back through Perfetto's own schema."""

from __future__ import annotations

import gzip
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hta_dsv4
from hta_dsv4.classify.rules_file import default_rules
from hta_dsv4.cli import report as cli_report
from hta_dsv4.present.perfetto import gpus, lanes
from hta_dsv4.present.perfetto_file import perfetto_bytes
from hta_dsv4.runs.run import Run
from hta_dsv4.trace import activities as col
from tests.conftest import CASES, cli
from tests.frames import kernel, make_trace, marker

pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


@dataclass
class Back:
    """A Perfetto file as its slices and counters."""

    slices: list[tuple[str, str, str, int, int]] = field(
        default_factory=list
    )  # category, track, name, start, end
    notes: list[dict[str, object]] = field(default_factory=list)  # of the activities
    counters: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    tracks: list[str] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)

    def of(self, category: str) -> list[tuple[str, str, str, int, int]]:
        return [s for s in self.slices if s[0] == category]


def read(content: bytes) -> Back:
    """Read a file back; fails where a track's begins and ends do not alternate or time runs backwards."""
    trace = pb.Trace()
    trace.ParseFromString(content)
    back, names, interned, open_, last = Back(), {}, {}, {}, 0
    kinds = ("event_names", "event_categories", "debug_annotation_names", "debug_annotation_string_values")
    for packet in trace.packet:
        for kind in kinds:
            for entry in getattr(packet.interned_data, kind):
                text = entry.str.decode() if kind.endswith("values") else entry.name
                interned[kind, entry.iid] = text
        if packet.HasField("track_descriptor"):
            found = packet.track_descriptor
            assert found.uuid not in names
            names[found.uuid] = found.name
            (back.processes if found.HasField("process") else back.tracks).append(found.name)
        if not packet.HasField("track_event"):
            continue
        event, track = packet.track_event, names[packet.track_event.track_uuid]
        assert packet.timestamp >= last
        last = packet.timestamp
        if event.type == event.TYPE_COUNTER:
            back.counters[track].append((packet.timestamp, event.counter_value))
        elif event.type == event.TYPE_SLICE_BEGIN:
            assert event.track_uuid not in open_, f"{track}: a slice begins before the one before it ended"
            category = interned["event_categories", event.category_iids[0]]
            open_[event.track_uuid] = (
                category,
                track,
                interned["event_names", event.name_iid],
                packet.timestamp,
            )
            if category == "activity":
                back.notes.append({
                    interned[kinds[2], n.name_iid]: interned[kinds[3], n.string_value_iid]
                    if n.HasField("string_value_iid") else n.int_value
                    for n in event.debug_annotations
                })  # fmt: skip
        else:
            assert event.type == event.TYPE_SLICE_END
            back.slices.append((*open_.pop(event.track_uuid), packet.timestamp))
    assert not open_
    return back


def wanted(run: Run) -> Counter[tuple[str, int, int]]:
    table = run.activities
    start, dur = table[col.START_NS].to_numpy(), table[col.DUR_NS].to_numpy().clip(min=0)
    return Counter(zip(table[col.NAME].astype(str), start.tolist(), (start + dur).tolist(), strict=True))


@pytest.mark.parametrize("name", ["cuda_graph", "h200_probe"])
def test_every_activity_of_a_real_trace_is_one_slice_with_its_exact_times(name):
    """A shipped trace -> as many slices as activities, names, starts and ends equal, on every track in turn."""
    run = hta_dsv4.load(hta_dsv4.traces()[name])
    back = read(perfetto_bytes(gpus(run)))
    assert Counter((n, a, b) for _, _, n, a, b in back.of("activity")) == wanted(run)
    assert len(back.of("step")) == len(run.steps[0].table)


@pytest.mark.parametrize(
    "case", ["13-pdl-overlap-same-stream", "14-two-streams", "15-duration-overruns-next", "26-merged-ranks-TP",
             "36-two-gpus-one-process", "37-hostile-kernel-names", "28-no-dur-null-args", "30-rocm-stream-zero"],
)  # fmt: skip
def test_overlaps_ranks_devices_and_hostile_names_survive(case):
    """A case trace -> one slice per activity; a process per rank and device."""
    run = hta_dsv4.load(CASES / f"{case}.json")
    back = read(perfetto_bytes(gpus(run)))
    assert Counter((n, a, b) for _, _, n, a, b in back.of("activity")) == wanted(run)
    devices = run.activities[[col.RANK, col.DEVICE]].drop_duplicates()
    assert len(back.processes) == len(devices)


def made(*rows: dict[str, object], markers: tuple[dict[str, object], ...] = ()) -> Run:
    return Run("made", (make_trace(rows, markers),), default_rules())


def test_overlapping_kernels_of_one_bucket_lie_on_two_tracks():
    """Two kernels of one bucket that overlap -> two tracks of that bucket."""
    back = read(
        perfetto_bytes(gpus(made(kernel("ncclDevKernel_A", 0, 100), kernel("ncclDevKernel_B", 50, 100))))
    )
    assert sorted(t for _, t, *_ in back.of("activity")) == ["communication", "communication, overlapping"]


def test_a_kernel_that_takes_no_time_is_a_slice_too():
    """A kernel of 0 ns at the end of another -> two slices, begin before end."""
    back = read(perfetto_bytes(gpus(made(kernel("a", 0, 100), kernel("a", 100, 0)))))
    assert [(a, b) for *_, a, b in back.of("activity")] == [(0, 100), (100, 100)]


def test_times_before_the_base_are_moved_to_zero_together():
    """A kernel that starts before the trace's base time -> all times moved by the same amount, durations kept."""
    back = read(perfetto_bytes(gpus(made(kernel("a", -50, 20), kernel("b", 10, 5)))))
    assert sorted((a, b) for *_, a, b in back.of("activity")) == [(0, 20), (60, 65)]


def test_slices_tell_bucket_origin_grid_and_stream():
    """A kernel with a grid -> its slice says bucket, role, rule, stream and grid; what is missing is left out."""
    (note,) = read(perfetto_bytes(gpus(made(kernel("_sparse_mla_mma_kernel", 0, 9, grid_x=7))))).notes
    assert (note["bucket"], note["grid_x"], note["stream"]) == ("attention", 7, 7)
    assert "bytes" not in note


def test_counters_follow_what_runs_and_add_up_per_step():
    """Two steps with known kernels -> running goes 1, 2, 1, 0; the bucket's sum per step is its kernels' durations."""
    steps = tuple(marker(f"ProfilerStep#{i}", i * 1000, i * 1000 + 900) for i in range(4))
    rows = [kernel("ncclA", i * 1000 + 10, 100, launch=i * 1000 + 5, stream=7) for i in range(4)]
    rows += [kernel("ncclB", i * 1000 + 60, 100, launch=i * 1000 + 6, stream=8) for i in range(4)]
    run = made(*rows, markers=steps)
    back = read(perfetto_bytes(gpus(run)))
    assert back.counters["activities running"][:4] == [(10, 1), (60, 2), (110, 1), (160, 0)]
    table = run.activities
    per_step = table.groupby(col.STEP)[col.DUR_NS].sum()
    sums = [v for k, values in back.counters.items() if k.startswith("sum per step") for _, v in values]
    assert sum(sums) == int(per_step.sum())


def test_covered_sms_are_written_where_the_trace_knows_them():
    """A trace with numSms and grids -> a counter between 0 and 132; without -> none, and the reason."""
    back = read(perfetto_bytes(gpus(hta_dsv4.load(hta_dsv4.traces()["h200_probe"]))))
    values = [v for _, v in back.counters["SMs covered (upper bound)"]]
    assert 0 <= min(values) <= max(values) == 132
    (gpu,) = gpus(made(kernel("a", 0, 10)))
    assert "SM" in gpu.notes[0]


@given(
    st.lists(
        st.tuples(st.sampled_from(["ncclA", "memo", "_moe_fp4_gemm_kernel"]), st.integers(0, 300), st.integers(0, 90)),
        min_size=1, max_size=40,
    )
)  # fmt: skip
@settings(max_examples=40)
def test_any_timeline_survives(rows):
    """Any kernels, overlapping or not -> one slice each, exact, every track balanced."""
    run = made(*(kernel(n, s, d) for n, s, d in rows))
    back = read(perfetto_bytes(gpus(run)))
    assert Counter((n, a, b) for _, _, n, a, b in back.of("activity")) == wanted(run)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 30)), max_size=30))
def test_lanes_are_as_few_as_the_deepest_overlap(rows):
    """Any intervals that take time -> on each track none overlaps, and no more tracks than run at once."""
    rows = sorted(rows)
    start = np.array([a for a, _ in rows], dtype=np.int64)
    end = start + np.array([d for _, d in rows], dtype=np.int64)
    found = lanes(start, end)
    for lane in set(found.tolist()):
        mine = found == lane
        assert (end[mine][:-1] <= start[mine][1:]).all()
    deepest = max((int(((start <= t) & (end > t)).sum()) for t in start), default=0)
    assert len(set(found.tolist())) <= max(deepest, 1)


def test_annotate_writes_plain_and_compressed_files(tmp_path):
    """Annotate to .pftrace and .pftrace.gz -> the same content; a second run gives the same bytes."""
    probe = str(hta_dsv4.traces()["h200_probe"])
    plain, packed = tmp_path / "out.pftrace", tmp_path / "out.pftrace.gz"
    assert cli("annotate", probe, "-o", str(plain)).returncode == 0
    assert cli("annotate", probe, "-o", str(packed)).returncode == 0
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert len(read(plain.read_bytes()).of("activity")) == 185


def test_annotate_refuses_what_has_no_gpu_activity(tmp_path):
    """A CPU-only trace -> one line on stderr, exit code 2, no file."""
    out = tmp_path / "x.pftrace"
    done = cli("annotate", str(CASES / "25c-cpu-only.json"), "-o", str(out))
    assert (done.returncode, done.stderr.count("\n"), out.exists()) == (2, 1, False)
    assert "CPU-only" in done.stderr


def test_annotate_does_not_write_over_its_input(tmp_path):
    """-o naming the trace itself, also through a link -> refused, the trace unchanged."""
    trace = tmp_path / "t.json"
    trace.write_bytes((CASES / "00-baseline.json").read_bytes())
    link = tmp_path / "link.json"
    link.symlink_to(trace)
    for out in (trace, link):
        done = cli("annotate", str(trace), "-o", str(out))
        assert done.returncode == 2
        assert "being read" in done.stderr
    assert trace.read_bytes() == (CASES / "00-baseline.json").read_bytes()


def test_a_missing_package_is_one_line_with_the_remedy(monkeypatch):
    """No perfetto installed -> the extra to install."""
    monkeypatch.setitem(__import__("sys").modules, "perfetto.trace_builder.proto_builder", None)
    with pytest.raises(hta_dsv4.HtaDsv4Error, match=r"hta-dsv4\[perfetto\]"):
        perfetto_bytes([])
    assert cli_report.annotate.__doc__
