"""What collectives carry and how near their link's speed they are: sizes, bandwidth, bound, and what is not said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hta_dsv4
from hta_dsv4.analysis.collective_speed import CollectiveSpeeds, Speed
from hta_dsv4.analysis.costs.geometry import FLASH, PRO
from hta_dsv4.analysis.costs.workload import Workload
from hta_dsv4.analysis.messages import messages
from hta_dsv4.analysis.wire import Message, kind_of, size_said, wire_bytes
from hta_dsv4.trace import activities as col
from tests.rank_traces import ALL_REDUCE, RankSim
from tests.speed import counted_of

TP2 = hta_dsv4.traces()["cuda_graph"].parent / "tp2"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
LOGITS = 32 * FLASH.vocab * 2


def message(kernel: str, rank: int = 0, **said: Any) -> Message:
    """What is read of one collective's arguments."""
    more = {col.BUCKET: "communication", **({col.COLLECTIVE: json.dumps(said)} if said else {})}
    part = counted_of([(kernel, 0, 1000, more)])
    found = messages(part.activities, part.step, part.steps, np.array([0]), None, rank)
    return found.distinct[0]


def speeds(sim: RankSim, folder: Path, **load: Any) -> CollectiveSpeeds:
    return hta_dsv4.load(sim.write(folder / "ranks"), **load).collective_speeds()


def only(found: CollectiveSpeeds) -> Speed:
    (one,) = found.rows
    return one


BF16, TWO, FOUR = {"dtype": "BFloat16"}, {"size": 2, "ranks": "[0, 1]"}, {"size": 4, "ranks": "[0, 1, 2, 3]"}


@pytest.mark.parametrize(
    ("said", "nbytes", "wire"),
    [
        ({"name": "allreduce", "elements": 131072, "elements_out": 131072, **BF16, **TWO}, 262144, 262144),
        ({"name": "allreduce", "elements": 1000, "dtype": "Float", **FOUR}, 4000, 6000),
        ({"name": "allreduce_coalesced", "elements": 10, "dtype": "Double", "ranks": "[3, 4]"}, 80, 80),
        ({"name": "_allgather_base", "elements": 100, "elements_out": 400, **BF16, **FOUR}, 800, 600),
        ({"name": "all_gather", "elements": 100, "elements_out": 350, **BF16, **FOUR}, 700, 500),
        ({"name": "all_gather", "elements": 100, **BF16, **FOUR}, 800, 600),
        ({"name": "_reduce_scatter_base", "elements": 400, "elements_out": 100, **BF16, **FOUR}, 800, 600),
        ({"name": "reduce_scatter", "elements": 400, "elements_out": 150, **BF16, **FOUR}, 800, 500),
        ({"name": "reduce_scatter", "elements_out": 100, **BF16, **FOUR}, 800, 600),
        ({"name": "all_to_all", "elements": 400, "elements_out": 400, **BF16, **FOUR}, 800, 600),
        ({"name": "broadcast", "elements": 10, "dtype": "Float8_e4m3fn", **FOUR}, 10, 10),
        ({"name": "_broadcast_oop", "elements": 10, "dtype": "Long", **FOUR}, 80, 80),
        ({"name": "reduce", "elements": 10, "dtype": "Int", **FOUR}, 40, 40),
        ({"name": "send", "elements": 10, "dtype": "Half"}, 20, 20),
    ],
)
def test_bytes_of_each_kind(said: dict[str, Any], nbytes: int, wire: float) -> None:
    """Kineto's arguments -> the size by NCCL's convention, and what each GPU must send or receive, unequal or not."""
    found = message("ncclDevKernel_X", **said)
    assert (found.nbytes, found.wire, found.how) == (nbytes, wire, "trace")


@pytest.mark.parametrize(("rank", "wire"), [(0, 180), (1, 60)])
def test_unequal_splits_are_a_rank_s_own(rank: int, wire: float) -> None:
    """All-to-all of unequal parts -> each rank's own part stays, and the larger of both directions is the wire."""
    said = {
        "name": "all_to_allv",
        "elements": 100,
        "elements_out": 60,
        "split_in": "[10, 90]",
        "split_out": "[30, 30]",
    }
    assert message("ncclDevKernel_SendRecv", rank, **said, **BF16, **TWO).wire == wire


@pytest.mark.parametrize(
    "splits",
    [{"split_in": "[1, 2, ...]"}, {"split_in": "[50, 25, 25]"}, {"split_in": "[50, 50]", "ranks": "[4, 5]"}],
    ids=["shortened", "too many", "not a member"],
)
def test_splits_that_say_too_little(splits: dict[str, str]) -> None:
    """A shortened list, one of another length, a rank outside the group -> the size, and no wire."""
    said = {"name": "all_to_allv", "elements": 100, "elements_out": 100, **BF16, **TWO, **splits}
    found = message("ncclDevKernel_SendRecv", **said)
    assert (found.nbytes, found.wire) == (200, None)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"name": "allreduce", "elements": 5, **TWO},
        {"name": "allreduce", "elements": 5, "dtype": "Unheard", **TWO},
        {"name": "allreduce", "elements": -5, **BF16},
        {"name": "allreduce", "elements": "many", **BF16},
        {"name": "allreduce", "elements": [5], **BF16},
        {"name": "allreduce", "elements": 1.5, **BF16, **TWO},
        {"name": "allreduce", "elements": True, **BF16, **TWO},
        {"name": "allreduce", "elements": 1e30, **BF16, **TWO},
        {"name": "allreduce", "elements": 1 << 62, **BF16, **TWO},
        {"name": "all_gather", "elements": 5, **BF16},
    ],
)
def test_missing_or_broken_arguments_are_unknown(said: dict[str, Any]) -> None:
    """No arguments, no dtype, no count, no group, a count beyond what fits -> unknown, never 0."""
    found = message(ALL_REDUCE if not said or said["name"] == "allreduce" else GATHER, **said)
    assert (found.nbytes, found.wire, found.how) == (None, None, "unknown")
    assert found.kind in ("all_reduce", "all_gather")


@pytest.mark.parametrize("group", [{"size": 4, "ranks": "[0, 1]"}, {"size": 2, "ranks": "[0, 0]"}])
def test_a_group_that_contradicts_itself_has_no_size(group: dict[str, Any]) -> None:
    """Group size and list of ranks differ -> neither is believed: bytes are known, what crosses a link is not."""
    found = message(ALL_REDUCE, name="allreduce", elements=1000, dtype="Float", **group)
    assert (found.ranks, found.nbytes, found.wire) == (0, 4000, None)


def test_a_switch_has_no_wire() -> None:
    """NVLink SHARP adds in the switch -> the size, no bytes that must cross a link, no latency of plain NCCL."""
    found = message("ncclDevKernel_AllReduce_Sum_bf16_NVLS", name="allreduce", elements=64, **BF16, **TWO)
    assert (found.nbytes, found.wire, found.nccl, found.switch) == (128, None, False, True)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (ALL_REDUCE, "all_reduce"), (GATHER, "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"), ("ncclDevKernel_SendRecv", "send"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>", "all_reduce"), ("barrier", "other"),
        ("void one_shot_all_reduce_kernel<c10::BFloat16, 16, 2>", "all_reduce"), ("_reduce_oop", "reduce"),
    ],
)  # fmt: skip
def test_kinds(name: str, kind: str) -> None:
    """Names of torch and of kernels -> the kind; a reduce-scatter is no reduce."""
    assert kind_of(name) == kind


@pytest.mark.parametrize(
    ("kind", "factor"),
    [("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875), ("all_to_all", 0.875), ("broadcast", 1.0),
     ("reduce", 1.0), ("send", 1.0), ("other", None)],
)  # fmt: skip
def test_bus_factors_of_eight(kind: str, factor: float | None) -> None:
    """Eight ranks -> NCCL's factors between algorithm and bus bandwidth; a kind that is not known has none."""
    wire = wire_bytes(kind, 8, 1000)
    assert wire == (None if factor is None else factor * 1000)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 bytes"), (1023, "1,023 bytes"), (262144, "256 KiB"), (8_273_920, "7.89 MiB"), (1 << 31, "2 GiB")],
)
def test_sizes_in_words(nbytes: int, text: str) -> None:
    """Bytes -> three digits with a binary unit."""
    assert size_said(nbytes) == text


def test_bound_by_latency(tmp_path: Path) -> None:
    """256 KiB in 8 us between two H200s -> 32.8 GB/s on the bus, 8 % of the link, latency; NCCL alone takes 7.1."""
    found = speeds(RankSim(2, layers=2, steps=3), tmp_path)
    one = only(found)
    assert (one.message.nbytes, one.per_step, one.each_ns) == (262144, 5, 8000)
    assert (one.bus_gb_s, one.algorithm_gb_s) == pytest.approx((32.768, 32.768))
    assert one.link_share == pytest.approx(32.768 / 393)
    assert (one.bound, one.alone_ns) == ("latency", 7105)
    assert one.sentence.startswith(
        "all_reduce of 256 KiB in 8.0 us is 32.8 GB/s, 8 % of the link: bound by latency; at the link's speed its "
        "bytes take 0.7 us, NCCL's smallest message 5.2 us"
    )
    assert "all GPUs of a group are taken to be of one host" in found.notes


def test_waits_are_taken_off(tmp_path: Path) -> None:
    """A rank that is 300 us late in one layer -> the same bandwidth: waiting is not slow transfer."""
    sim = RankSim(2, layers=2, steps=3)
    sim.straggle(1, 1, "moe", 300)
    assert only(speeds(sim, tmp_path)).bus_gb_s == pytest.approx(32.768)


def test_bound_by_bandwidth(tmp_path: Path) -> None:
    """256 MiB in 880 us -> 305 of 393 GB/s: bandwidth."""
    sim = RankSim(2, layers=1, transfer_us=880, arguments=lambda r, n: {"In msg nelems": 1 << 27})
    one = only(speeds(sim, tmp_path))
    assert (one.bound, round(one.bus_gb_s or 0)) == ("bandwidth", 305)


def test_bound_by_neither(tmp_path: Path) -> None:
    """An 8 MiB all-gather in 36 us, where latency and bytes ask for 15 -> neither."""

    def of(rank: int, number: int) -> dict[str, Any]:
        return {"Collective name": "_allgather_base", "In msg nelems": 1 << 21, "Out msg nelems": 1 << 22}

    one = only(speeds(RankSim(2, layers=1, transfer_us=36, kernel=GATHER, arguments=of), tmp_path))
    assert (one.message.kind, one.bound, one.message.wire) == ("all_gather", "neither", 1 << 22)
    assert "bound by neither latency nor bandwidth" in one.sentence


def test_sizes_are_kept_apart(tmp_path: Path) -> None:
    """Every second all-reduce of another size -> a row each, whose times make the whole."""
    sim = RankSim(2, layers=2, arguments=lambda r, n: {"In msg nelems": 4096 if n % 2 else 131072})
    found = speeds(sim, tmp_path)
    assert {(s.message.nbytes, s.collectives) for s in found.rows} == {(8192, 7), (262144, 8)}
    assert sum(s.taken_ns for s in found.rows) == 15 * 8000


def test_unequal_ranks_go_by_the_one_with_most(tmp_path: Path) -> None:
    """All-to-all in which rank 1 sends more -> its bytes."""

    def of(rank: int, number: int) -> dict[str, Any]:
        return {
            "Collective name": "all_to_allv", "In msg nelems": 3000 if rank else 1000, "Out msg nelems": 1000,
            "In split size": "[2900, 100]" if rank else "[500, 500]", "Out split size": "[500, 500]",
        }  # fmt: skip

    one = only(speeds(RankSim(2, layers=1, kernel="ncclDevKernel_SendRecv", arguments=of), tmp_path))
    assert (one.message.nbytes, one.message.wire) == (6000, 5800)


def test_four_ranks_have_no_measured_latency(tmp_path: Path) -> None:
    """Four ranks -> 1.5 times the bytes on the bus; small ones are not bound by bandwidth, and no more is said."""
    one = only(speeds(RankSim(4, layers=1), tmp_path))
    assert one.bus_gb_s == pytest.approx(1.5 * 32.768)
    assert (one.bound, one.latency_ns, one.alone_ns) == ("not bandwidth", None, None)
    assert one.sentence.endswith("the latency of 4 ranks was not measured")


def test_three_of_four_ranks(tmp_path: Path) -> None:
    """A rank of the group is not loaded -> its bytes, but no bandwidth and no verdict, and why."""
    folder = RankSim(4, layers=1).write(tmp_path, only=(0, 1, 3))
    found = hta_dsv4.load(folder).collective_speeds()
    one = only(found)
    assert (one.message.nbytes, one.ranks, one.bus_gb_s, one.bound, one.sentence) == (262144, 4, None, "", "")
    assert any("not loaded" in n for n in found.notes)


def test_graphs_of_three_of_four_ranks(tmp_path: Path) -> None:
    """The same in graphs, where no kernel names its group -> no number of ranks is made up."""
    folder = RankSim(4, layers=1, graph=True, args=False).write(tmp_path, only=(0, 1, 3))
    one = only(hta_dsv4.load(folder).collective_speeds())
    assert (one.ranks, one.bus_gb_s, one.bound) == (0, None, "")


def test_one_rank_alone(tmp_path: Path) -> None:
    """One rank of two -> bytes, and its time with its waits: no bandwidth, no verdict, and why."""
    folder = RankSim(2, layers=1).write(tmp_path, only=(0,))
    found = hta_dsv4.load(folder).collective_speeds()
    one = only(found)
    assert (one.message.nbytes, one.upper, one.bus_gb_s, one.bound) == (262144, True, None, "")
    assert "cannot be told from transfer" in found.notes[0]


def test_a_gpu_whose_links_nobody_measured(tmp_path: Path) -> None:
    """B200s -> bus bandwidth, no share of a link, and what would measure it."""
    found = speeds(RankSim(2, layers=1, device="NVIDIA B200"), tmp_path)
    one = only(found)
    assert (round(one.bus_gb_s or 0, 1), one.link_share, one.bound) == (32.8, None, "")
    assert any("NVIDIA B200" in n and "benchmarks.links" in n for n in found.notes)


def test_two_hosts_have_no_link_of_one(tmp_path: Path) -> None:
    """Ranks on two hosts by their files -> no share of NVLink, and no floor of it; on one host there are both."""
    apart = hta_dsv4.load(RankSim(2, layers=1, hosts={0: "a", 1: "b"}).write(tmp_path / "apart"))
    near = hta_dsv4.load(RankSim(2, layers=1, hosts={0: "a", 1: "a"}).write(tmp_path / "near"))
    assert only(apart.collective_speeds()).link_share is None
    assert any("2 hosts" in n for n in apart.collective_speeds().notes)
    assert only(near.collective_speeds()).bound == "latency"

    def floor(run: hta_dsv4.Run) -> int | None:
        (row,) = [r for r in run.roofline().rows if r.key == ("communication",)]
        return row.floor_ns if row.known_ns else None

    assert floor(apart) is None
    assert floor(near) == 3 * 5248


def test_more_ranks_than_a_link_joins(tmp_path: Path) -> None:
    """Nine ranks of one group -> more than one host has: no share of its link, and why."""
    found = speeds(RankSim(9, layers=1), tmp_path)
    assert only(found).link_share is None
    assert any("joins at most 8" in n for n in found.notes)


def test_a_group_of_one_rank(tmp_path: Path) -> None:
    """Each rank in a group of its own -> no verdict, and nothing is said of more GPUs than a link joins."""
    sim = RankSim(2, layers=1, groups={0: ("a", (0,)), 1: ("b", (1,))})
    found = speeds(sim, tmp_path)
    assert not any("joins at most" in n for n in found.notes)
    assert all(s.link_share is None and not s.sentence for s in found.rows)


def graph_and_companion(tmp_path: Path, grid: tuple[int, int, int]) -> hta_dsv4.Run:
    eager = RankSim(2, layers=1, arguments=lambda r, n: {"grid": grid, "In msg nelems": 4096})
    replay = RankSim(2, layers=1, graph=True, args=False).write(tmp_path / "graph")
    return hta_dsv4.load(replay, companion=eager.write(tmp_path / "eager"))


def test_graphs_take_sizes_from_a_companion(tmp_path: Path) -> None:
    """Replayed kernels without arguments -> unknown, with what would tell; beside an eager capture its sizes."""
    run = graph_and_companion(tmp_path, (132, 1, 1))
    one = only(run.collective_speeds())
    assert (one.message.nbytes, one.message.how, one.ranks) == (8192, "companion", 2)
    alone = hta_dsv4.load(tmp_path / "graph").collective_speeds()
    assert (only(alone).message.how, only(alone).bus_gb_s) == ("unknown", None)
    assert any("--companion" in n for n in alone.notes)


def test_another_grid_is_another_size(tmp_path: Path) -> None:
    """A companion whose collectives have another grid -> its sizes are not believed."""
    assert only(graph_and_companion(tmp_path, (4, 1, 1)).collective_speeds()).message.how == "unknown"


CUSTOM = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)"
ASKED = {
    col.OP: "_C_custom_ar::all_reduce", col.OP_SHAPES: "[[],[32,4096],[32,4096],[],[]]",
    col.OP_DTYPES: '["Scalar","c10::BFloat16","c10::BFloat16","Scalar","Scalar"]',
}  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "more", "expected"),
    [
        (CUSTOM, {}, Message("all_reduce", 2, 262144, 262144.0, "trace")),
        (CUSTOM.replace("2>", "4>"), {}, Message("all_reduce", 4, 262144, 393216.0, "trace")),
        ("void one_shot_all_reduce_kernel<c10::BFloat16, 16, 2>", {}, Message("all_reduce", 0, 262144, None, "trace")),
        ("void multimem_all_reduce_kernel<c10::BFloat16>", {},
         Message("all_reduce", 0, 262144, None, "trace", switch=True)),
        (CUSTOM, {col.OP: "aten::add"}, Message("all_reduce")),
        (CUSTOM, {col.OP_SHAPES: "[[],[]]"}, Message("all_reduce")),
        (CUSTOM, {col.LAUNCH_NAME: "cudaGraphLaunch", col.COMPANION_EXACT: False}, Message("all_reduce")),
        (CUSTOM, {col.LAUNCH_NAME: "cudaGraphLaunch", col.COMPANION_EXACT: True},
         Message("all_reduce", 2, 262144, 262144.0, "companion")),
    ],
)  # fmt: skip
def test_custom_all_reduces_go_by_their_op(kernel: str, more: dict[str, Any], expected: Message) -> None:
    """An engine's own all-reduce -> the first tensor of its op, its ranks by its template; in graphs by a companion."""
    part = counted_of([(kernel, 0, 1000, {col.BUCKET: "communication"})])
    acts = part.activities.assign(**{k: [v] for k, v in {**ASKED, **more}.items()})
    assert messages(acts, part.step, part.steps, np.array([0]), None).distinct == (expected,)


@pytest.mark.parametrize(
    ("name", "companion", "how"),
    [
        ("split_k_c32_tp2", None, "trace"),
        ("cuda_graph_c32_tp2", "cuda_graph_c32_tp2_eager", "companion"),
        ("cuda_graph_c32_tp2", None, "model"),
    ],
)
def test_shipped_ranks_agree_on_sizes(name: str, companion: str | None, how: str) -> None:
    """Two H200s, by arguments, companion and model -> the same two sizes; all-reduces are bound by latency."""
    run = hta_dsv4.load(TP2 / name, companion=None if companion is None else TP2 / companion)
    rows = run.collective_speeds().rows
    assert [(s.message.kind, s.message.nbytes, s.message.how, s.per_step) for s in rows] == [
        ("all_reduce", 32 * FLASH.hidden * 2, how, 87), ("all_gather", LOGITS, how, 1),
    ]  # fmt: skip
    assert (rows[0].bound, rows[1].bound) == ("latency", "neither")
    assert 30 < (rows[0].bus_gb_s or 0) < 35
    transfer = sum(int(g.transfer[g.counted].sum()) for g in run.collectives().groups)
    assert sum(s.taken_ns for s in rows) == transfer


@pytest.mark.parametrize(
    "w",
    [
        Workload(PRO.share(2), 32, bundled=True, ranks=2),
        Workload(FLASH.share(2), None, bundled=True, ranks=2),
        Workload(FLASH.share(2), 32, bundled=False, ranks=2),
        Workload(FLASH, 32, bundled=True, ranks=1),
    ],
    ids=["other count", "no batch", "not the bundled step", "one rank"],
)
def test_the_model_gives_no_size_where_it_does_not_fit(w: Workload) -> None:
    """Another number of collectives than the model's, or a step that is not the bundled one -> no size."""
    rows = [(ALL_REDUCE, i * 10_000, 8_000, {col.BUCKET: "communication"}) for i in range(87)]
    part = counted_of([*rows, (GATHER, 900_000, 8_000, {col.BUCKET: "communication"})])
    at = np.arange(88)
    fits = Workload(FLASH.share(2), 32, bundled=True, ranks=2)
    known = messages(part.activities, part.step, part.steps, at, fits).distinct
    assert {m.nbytes for m in known} == {262144, LOGITS}
    assert {m.nbytes for m in messages(part.activities, part.step, part.steps, at, w).distinct} == {None}
