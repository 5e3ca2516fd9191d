"""The hint at --companion where graph replays have no origin: in a diff, a report, and a trace for Perfetto."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

import hta_dsv4
from hta_dsv4.classify.rules_file import default_rules
from hta_dsv4.cluster.reduction import Job, ReducedRun, reduce_trace
from hta_dsv4.present.report import build
from hta_dsv4.runs.companions import companion_notes
from tests.conftest import cli


def test_graphs_without_a_companion_are_told_of_it() -> None:
    """Two captured graphs by bucket -> a sentence each; by origin the tables say it; an eager trace -> none."""
    graph, eager = (hta_dsv4.load(hta_dsv4.traces()[n]) for n in ("moe_tuned", "moe_tuned_eager"))
    (said,) = companion_notes([eager, graph], ("bucket",))
    assert said.startswith("moe_tuned: 22.2 % of the sum have no origin; most of it runs in graph replays")
    assert said.endswith("give its eager trace with --companion moe_tuned=moe_tuned_eager")
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
    assert not [n for n in build([graph]).caveats if "--companion" in n]


def test_a_comment_says_it_too() -> None:
    """Markdown to standard output -> the hint among its caveats."""
    done = cli("report", "moe_tuned", "--format", "md")
    assert "give its eager trace with --companion moe_tuned=moe_tuned_eager" in done.stdout.replace(
        "\\_", "_"
    )  # as Markdown writes it


def test_annotate_says_it(tmp_path: Path) -> None:
    """A trace for Perfetto, whose tracks name origins -> the hint on stderr; with a companion none."""
    target = str(tmp_path / "x.pftrace")
    assert "--companion moe_tuned=moe_tuned_eager" in cli("annotate", "moe_tuned", "-o", target).stderr
    done = cli("annotate", "moe_tuned", "--companion", "moe_tuned_eager", "-o", str(tmp_path / "y.pftrace"))
    assert done.returncode == 0
    assert "--companion" not in done.stderr


def copied(folder: Path, *names: str, manifest: str | None = None) -> list[Path]:
    """Shipped traces in a folder of one's own, with the shipped manifest or another."""
    folder.mkdir()
    files = [Path(shutil.copy(hta_dsv4.traces()[n], folder)) for n in names]
    text = (
        (hta_dsv4.traces()[names[0]].parent / "manifest.toml").read_text() if manifest is None else manifest
    )
    (folder / "manifest.toml").write_text(text)
    return files


def option_in(note: str) -> list[str]:
    """What a shell makes of the option at the end of a hint."""
    return shlex.split(note[note.index("--companion") :])


def test_the_option_of_a_hint_can_be_copied_as_it_is(tmp_path: Path) -> None:
    """A trace of one's own, blanks in its folder's and label's name -> a path in quotes; given, the hint is gone."""
    graph, eager = copied(tmp_path / "my runs", "moe_tuned", "moe_tuned_eager")
    bare = json.loads(cli("diff", f"a b={graph}", "cuda_graph", "--json").stdout)["notes"]
    hints = [option_in(n) for n in bare if "--companion" in n]
    assert hints == [["--companion", f"a b={eager}"], ["--companion", "cuda_graph=cuda_graph_eager"]]
    given = json.loads(cli("diff", f"a b={graph}", "cuda_graph", *hints[0], *hints[1], "--json").stdout)[
        "notes"
    ]
    assert not [n for n in given if "--companion" in n]


def test_shares_and_findings_name_it() -> None:
    """Shares by origin, and what findings says the trace lacks -> the option with the companion's name."""
    said = json.loads(cli("shares", "moe_tuned", "--by", "origin", "--json").stdout)
    assert "give its eager trace with --companion moe_tuned=moe_tuned_eager" in json.dumps(said)
    lacks = hta_dsv4.load(hta_dsv4.traces()["moe_tuned"]).findings().recapture
    assert [f.rule for f in lacks if "give --companion moe_tuned=moe_tuned_eager" in f.action] == [
        "missing_companion"
    ]


@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "[[trace",
        '[[trace]]\ntrace = "moe_tuned.trace.json.gz"\ncompanion = 3\n',
        '[[trace]]\ntrace = "moe_tuned.trace.json.gz"\ncompanion = "gone.json"\n',
        '[[trace]]\ntrace = "moe_tuned.trace.json.gz"\ncompanion = "a\\u0000b"\n',
        '[[trace]]\ntrace = "moe_tuned.trace.json.gz"\ncompanion = "."\n',
    ],
)
def test_no_companion_is_made_up(tmp_path: Path, manifest: str) -> None:
    """A manifest without a companion, broken, or naming what is no file -> the hint without a name, no error of it."""
    (graph,) = copied(tmp_path / "x", "moe_tuned", manifest=manifest)
    (said,) = companion_notes([hta_dsv4.load(graph)], ())
    assert said.endswith("give an eager trace with --companion")


def test_the_companion_of_ranks_is_their_folder() -> None:
    """Two ranks, each with a companion in another folder -> that folder's name, and as given it silences the hint."""
    shipped = hta_dsv4.traces()
    run = hta_dsv4.load(shipped["cuda_graph_c32_tp2"], label="tp")
    (said,) = (n for n in run.origin_notes if "--companion" in n)
    assert option_in(said) == ["--companion", "tp=cuda_graph_c32_tp2_eager"]
    both = hta_dsv4.load(shipped["cuda_graph_c32_tp2"], companion=shipped["cuda_graph_c32_tp2_eager"])
    assert not [n for n in both.origin_notes if "its eager trace" in n]


def test_over_a_cluster_it_is_the_same() -> None:
    """A trace that a worker reduced -> the very hint of one that was read here."""
    file = hta_dsv4.traces()["moe_tuned"]
    one = reduce_trace(Job(file.name, file), default_rules())
    reduced = ReducedRun("mine", (one.trace,), default_rules(), reduced=(one,))
    (said,) = companion_notes([reduced], ())
    assert said == companion_notes([hta_dsv4.load(file, label="mine")], ())[0]
    assert said.endswith("--companion mine=moe_tuned_eager")
