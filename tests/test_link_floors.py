"""Floors of collectives: bytes over the link or the smallest message; what rests on them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import hta_dsv4
from hta_dsv4.analysis.costs.workload import Workload
from hta_dsv4.analysis.devices import ceilings, known_devices
from hta_dsv4.analysis.findings import Finding
from hta_dsv4.analysis.floors import Launches, launch_floors
from hta_dsv4.analysis.links import Link, link_of
from hta_dsv4.cli.main import app
from hta_dsv4.present.speeds_grid import SPEED_COLUMNS
from hta_dsv4.trace import activities as col
from tests.rank_traces import ALL_REDUCE, RankSim
from tests.speed import counted_of

LINK = Link("made", 100.0, 4, ranks=2, sizes=(100, 200, 400), times={"all_reduce": (10.0, 20.0, 80.0)})


def floors(device: str = "NVIDIA H200", kernel: str = ALL_REDUCE, **said: Any) -> Launches:
    """Of one collective of 20 us; two ranks' all-reduce of bf16 unless said otherwise."""
    usual = {"name": "allreduce", "elements": 131072, "dtype": "BFloat16", "size": 2}
    more = {col.BUCKET: "communication", col.COLLECTIVE: json.dumps({**usual, **said})}
    return launch_floors(counted_of([(kernel, 0, 20_000, more)]), Workload(), ceilings(device))


@pytest.mark.parametrize(
    ("said", "floor", "bound"),
    [
        ({}, 5248, "latency"),
        ({"elements": 1 << 26}, (1 << 27) / 393, "link"),
        ({"size": 4}, 1.5 * 262144 / 393, "link"),
        ({"name": "_reduce_scatter_base"}, 3808, "latency"),
        (
            {"name": "_reduce_scatter_base", "elements": 1 << 26, "elements_out": 1 << 25},
            (1 << 26) / 393,
            "link",
        ),
    ],
)
def test_floor_of_a_collective(said: dict[str, Any], floor: float, bound: str) -> None:
    """Small and large messages on H200s -> the smallest message's time, or bytes over the link, by rank count."""
    found = floors(**said)
    assert found.floor[0] == pytest.approx(floor)
    assert (found.bound[0], found.known[0]) == (bound, "measured")


def test_custom_kernels_have_no_nccl_latency() -> None:
    """A one-stage all-reduce of an engine's own -> its bytes over the link only."""
    found = floors(kernel="void cross_device_reduce_1stage<__nv_bfloat16, 2>")
    assert found.floor[0] == pytest.approx(262144 / 393)


@pytest.mark.parametrize(
    ("device", "said", "why"),
    [
        ("NVIDIA B200", {}, "no link"),
        ("NVIDIA H200", {"size": 16}, "16 ranks"),
        ("NVIDIA H200", {"size": None}, "not known"),
        ("NVIDIA H200", {"size": 1}, "a group of one rank"),
        ("NVIDIA H200", {"elements": None}, "size of the collective"),
    ],
)
def test_no_floor_without_figures(device: str, said: dict[str, Any], why: str) -> None:
    """A GPU without link figures, more ranks than one host, one rank, no size -> no floor, and the reason."""
    found = floors(device, **said)
    assert np.isnan(found.floor[0])
    assert found.known[0] == "unknown"
    assert why in found.costs[int(found.code[0])].source


@pytest.mark.parametrize(
    ("nbytes", "ns"), [(100, 10.0), (50, 10.0), (150, 15.0), (300, 50.0), (400, 80.0), (401, None)]
)
def test_times_between_measured_sizes(nbytes: int, ns: float | None) -> None:
    """Between two sizes a straight line; below the smallest its time; beyond the largest nothing."""
    assert LINK.alone_ns("all_reduce", 2, nbytes) == ns


def test_other_ranks_and_kinds_were_not_measured() -> None:
    """Four ranks where two were measured, or another kind -> nothing; five on a link that joins four -> not joined."""
    assert LINK.alone_ns("all_reduce", 4, 100) is None
    assert LINK.latency_ns("all_gather", 2) is None
    assert [LINK.joins(n) for n in (0, 1, 2, 4, 5)] == [False, False, True, True, False]


def test_the_vendor_s_figure_stands_until_measured() -> None:
    """A link with the datasheet's bandwidth alone -> that, called so, and no latency."""
    found = link_of({"name": "NVLink", "gb_s": 450, "gpus": 8, "source": "a datasheet"})
    assert (found.gb_s, found.measured, found.latency_ns("all_reduce", 2)) == (450, False, None)
    assert found.sentences() == ("NVLink: 450 GB/s one way (datasheet)",)


def test_link_figures_of_the_table() -> None:
    """Every link in the device table -> sources, ascending sizes, a positive time for each, no bus faster than it."""
    links = [c.link for c in known_devices() if c.link is not None]
    assert links
    for link in links:
        assert link.source
        assert link.measured_source
        assert list(link.sizes) == sorted(set(link.sizes))
        for kind, times in link.times.items():
            assert 0 < len(times) <= len(link.sizes), kind
            factor = {"all_reduce": 1.0, "one_shot": 1.0}.get(kind, 0.5)  # of two ranks
            assert link.ranks == 2
            assert all(ns > link.wire_ns(factor * size) for size, ns in zip(link.sizes, times, strict=False))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks whose all-reduces of 2 MiB take 26 us, as NCCL does there; one shot takes 18.1."""
    sim = RankSim(2, layers=4, steps=3, transfer_us=26, arguments=lambda r, n: {"In msg nelems": 1 << 20})
    return sim.write(tmp_path_factory.mktemp("ranks"))


def communication(run: hta_dsv4.Run) -> Finding:
    (one,) = [r.finding for r in run.findings().ranked if r.finding.rule == "communication"]
    return one


def test_a_measured_faster_way_is_a_saving(folder: Path) -> None:
    """2 MiB in 26 us, where one shot was measured at 18.1 -> 7.9 us of each saved, and the way is named."""
    one = communication(hta_dsv4.load(folder))
    assert one.recoverable is not None
    assert one.recoverable.mid == pytest.approx(9 * (26_000 - 18_113), rel=1e-6)
    assert (one.recoverable.low, one.recoverable.high) == (
        0,
        pytest.approx(9 * (26_000 - 2**21 / 393), rel=1e-6),
    )
    assert "in one shot takes 18.1 us at this size on this link and saves 7.9 us of each" in one.action


def test_without_figures_no_saving(tmp_path: Path) -> None:
    """The same between GPUs of unknown links, and without sizes -> no saving, the reason, and what would tell."""
    far = RankSim(2, layers=4, transfer_us=26, device="NVIDIA B200").write(tmp_path / "far")
    bare = RankSim(2, layers=4, transfer_us=26, args=False).write(tmp_path / "bare")
    for path in (far, bare):
        one = communication(hta_dsv4.load(path))
        assert one.recoverable is None
        assert "not known" in one.unknown_because
        assert "bytes of each collective" in one.needs


def test_what_if_halves_the_wire(folder: Path) -> None:
    """Half the bytes of collectives bound by latency or link -> no faster than their smallest message allows."""
    run = hta_dsv4.load(folder)
    from hta_dsv4.analysis.change import halve_bytes, parse_set

    (half,) = run.whatif([halve_bytes("communication")]).effects
    (floor,) = run.whatif([parse_set("communication=floor")]).effects
    wire = 2**21 / 393
    assert floor.bound == "link"
    assert floor.time_ns_after == pytest.approx(9 * wire, rel=1e-3)
    assert half.time_ns_after == pytest.approx(9 * 26_000 * 5248 / wire, rel=0.02)


def test_ranks_json_and_rows(folder: Path) -> None:
    """Command ranks, --json and --rows messages --csv -> the same figures, every column."""
    runner = CliRunner()
    body = json.loads(runner.invoke(app, ["ranks", str(folder), "--json"]).stdout)
    (row,) = body["variants"][0]["messages"]["rows"]
    assert list(row) == list(SPEED_COLUMNS)
    assert (row["bytes"], row["each_ns"], row["bound"]) == (2**21, 26_000, "neither")
    lines = runner.invoke(app, ["ranks", str(folder), "--rows", "messages", "--csv"]).stdout.splitlines()
    assert next(csv.reader(lines)) == ["variant", *SPEED_COLUMNS]
    assert len(lines) == 2
    text = runner.invoke(app, ["ranks", str(folder)]).stdout
    assert "collectives by what they carry, waits taken off" in text


def test_roofline_json_has_the_wire(folder: Path) -> None:
    """Command roofline, --json -> the link of the device, bytes over it and their time, apart from bytes of memory."""
    body = json.loads(CliRunner().invoke(app, ["roofline", str(folder), "--json"]).stdout)
    (variant,) = body["variants"]
    (row,) = [r for r in variant["rows"] if r["bucket"] == "communication"]
    assert variant["device"]["link"]["gb_s"] == 393
    assert (row["link_bytes_per_step"], row["bytes_per_step"], row["bound"]) == (9 * 2**21, 0, "link")
    assert row["link_ns_per_step"] == pytest.approx(9 * 2**21 / 393)
    assert any("waits for other ranks" in n for n in variant["notes"])
