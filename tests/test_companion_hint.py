"""The hint at --companion in a diff of graph replays, whose launch table shows origins."""

from __future__ import annotations

import json

import hta_dsv4
from hta_dsv4.runs.companions import companion_notes
from tests.conftest import cli


def test_graphs_without_a_companion_are_told_of_it() -> None:
    """Two captured graphs by bucket -> a sentence each; by origin the tables say it; an eager trace -> none."""
    graph, eager = (hta_dsv4.load(hta_dsv4.traces()[n]) for n in ("moe_tuned", "moe_tuned_eager"))
    (said,) = companion_notes([eager, graph], ("bucket",))
    assert said.startswith("moe_tuned: 22.2 % of the sum have no origin; most of it runs in graph replays")
    assert said.endswith("give an eager trace with --companion")
    assert companion_notes([graph], ("bucket", "origin")) == ()


def test_diff_says_it_and_a_companion_silences_it() -> None:
    """A diff of two graphs -> the hint for both; with companions -> for none."""
    names = ["cuda_graph", "moe_tuned"]
    bare = json.loads(cli("diff", *names, "--json").stdout)["notes"]
    assert [n.split(":")[0] for n in bare if "--companion" in n] == names
    given = [a for n in names for a in ("--companion", f"{n}={n}_eager")]
    assert not [
        n for n in json.loads(cli("diff", *names, *given, "--json").stdout)["notes"] if "--companion" in n
    ]
