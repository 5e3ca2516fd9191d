"""The hint at --companion where graph replays have no origin: in a diff, a report, and a trace for Perfetto."""

from __future__ import annotations

import json
from pathlib import Path

import hta_dsv4
from hta_dsv4.present.report import build
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


def test_a_report_says_it_on_its_page_and_at_the_terminal(tmp_path: Path) -> None:
    """A report of a graph -> the hint among the caveats of its page and once on stderr; with a companion none."""
    target = tmp_path / "x.html"
    done = cli("report", "moe_tuned", "-o", str(target))
    (said,) = (line for line in done.stderr.splitlines() if "--companion" in line)
    assert said.startswith("note: moe_tuned: 22.2 % of the sum have no origin")
    assert "<li>moe_tuned: 22.2 % of the sum have no origin" in target.read_text(encoding="utf-8")
    files = hta_dsv4.traces()
    graph = hta_dsv4.load(files["moe_tuned"], companion=files["moe_tuned_eager"])
    assert not [n for n in build([graph]).caveats if "give an eager trace" in n]


def test_a_comment_says_it_too() -> None:
    """Markdown to standard output -> the hint among its caveats."""
    done = cli("report", "moe_tuned", "--format", "md")
    assert "give an eager trace with --companion" in done.stdout


def test_annotate_says_it(tmp_path: Path) -> None:
    """A trace for Perfetto, whose tracks name origins -> the hint on stderr; with a companion none."""
    target = str(tmp_path / "x.pftrace")
    assert "give an eager trace with --companion" in cli("annotate", "moe_tuned", "-o", target).stderr
    done = cli("annotate", "moe_tuned", "--companion", "moe_tuned_eager", "-o", str(tmp_path / "y.pftrace"))
    assert done.returncode == 0
    assert "give an eager trace" not in done.stderr
