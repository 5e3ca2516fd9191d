"""The shipped captures of two H200s: the planted straggler's rank, layer and microseconds; nothing where none is."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path

import pytest

import hta_dsv4
from hta_dsv4.analysis.communication import Communication
from hta_dsv4.shipped import traces_dir

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TP2 = traces_dir() / "tp2"
NORMAL = ("split_k_c32_tp2", "cuda_graph_c32_tp2", "cuda_graph_c32_tp2_eager")
STRAGGLER = ("split_k_c32_tp2_straggler", "cuda_graph_c32_tp2_straggler")
HIDDEN = "cuda_graph_c32_tp2_straggler_eager"


@lru_cache(maxsize=6)
def said(name: str) -> Communication:
    """The collectives of a capture; each read once."""
    return hta_dsv4.load(TP2 / name).collectives()


def planted(name: str) -> tuple[int, int, float]:
    """Rank, layer and nanoseconds of the straggler, as measured in the capture, from its manifest."""
    manifest = tomllib.loads(Path(TP2 / name / "manifest.toml").read_text())
    (one,) = {
        (s["rank"], s["layer"], s["measured_us"] * 1000)
        for s in (t["parallel"]["straggler"] for t in manifest["trace"])
        if "measured_us" in s
    }
    return one


@pytest.mark.parametrize("name", [*NORMAL, *STRAGGLER, HIDDEN])
class TestEveryCapture:
    """What holds for all of them; a class keeps one capture's tests together."""

    def test_all_collectives_aligned(self, name: str) -> None:
        """Every capture -> one group of both ranks, 87 all-reduces and one all-gather in every step, layers 0 to 42."""
        (group,) = said(name).groups
        assert (group.ranks, group.aligned.places) == ((0, 1), 88)
        assert (group.aligned.place >= 0).all()
        assert {x for x in group.layers.layer if x is not None} == set(range(43))

    def test_transfer_and_wait_make_the_whole(self, name: str) -> None:
        """Every capture -> waits plus twice the transfer is the collectives' time in the tables, to the nanosecond."""
        (group,) = said(name).groups
        assert int(group.wait.sum()) + 2 * int(group.transfer.sum()) == int(group.dur.sum())

    def test_one_host_one_clock(self, name: str) -> None:
        """Two processes of one host -> offset below half a microsecond, ends within one (95 %), no drift."""
        (group,) = said(name).groups
        fit = group.clocks[1]
        assert abs(fit.offset_ns) < 500
        assert fit.p95_ns < 1_000
        assert not fit.drift_resolved

    def test_blame(self, name: str) -> None:
        """No straggler -> nothing blamed; one -> its rank, layer, half and microseconds within 10 %, and no other."""
        found = said(name)
        if name not in STRAGGLER:
            assert found.stragglers == ()
            if name in NORMAL:
                assert found.hidden == ()
                return
        rank, layer, ns = planted(name)
        ((group, late),) = found.hidden if name == HIDDEN else found.stragglers
        at = group.aligned.place.tolist().index(late.place)
        assert (late.rank, group.layers.layer[at], group.layers.half[at]) == (rank, layer, "attention")
        assert late.extra_ns == pytest.approx(ns, rel=0.1)
        assert (late.cause, late.extras[0].kernel) == ("work", "_planted_delay_kernel")
        assert late.extras[0].ns == pytest.approx(ns, rel=0.01)
        if name != HIDDEN:
            assert late.late_ns == pytest.approx(ns, rel=0.1)


def test_layers_by_count_are_those_of_the_companion() -> None:
    """The graph with its eager companion -> the layers told from scopes are those told from the count."""
    alone = hta_dsv4.load(TP2 / "cuda_graph_c32_tp2").collectives().groups[0].layers
    run = hta_dsv4.load(TP2 / "cuda_graph_c32_tp2", companion=TP2 / "cuda_graph_c32_tp2_eager")
    beside = run.collectives().groups[0].layers
    assert (alone.how, beside.how) == ("count", "scope")
    assert alone.layer == beside.layer
    inside = [i for i, layer in enumerate(alone.layer) if layer is not None]
    assert [alone.half[i] for i in inside] == [beside.half[i] for i in inside]
